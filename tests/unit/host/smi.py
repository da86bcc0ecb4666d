# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What ``nvidia-smi -q -x`` prints, for GPUs of the test's own, after nvsmi_device_v12.dtd."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from xml.sax.saxutils import escape


@dataclass(frozen=True)
class Card:
    """A GPU; sizes are texts, as the driver prints them. A process is its pid, its name and its memory."""

    used: str = "3 MiB"
    processes: Sequence[tuple[int | str, str, str]] = field(default=())
    name: str = "NVIDIA RTX PRO 6000 Blackwell Server Edition"


def uuid(index: int) -> str:
    """The UUID of a GPU."""
    return f"GPU-{index}c0ffee0-1111-2222-3333-44445555666{index}"


def print_xml(cards: Sequence[Card]) -> str:
    """The whole document, with the parts around those that matter."""
    return (
        '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">\n<nvidia_smi_log>\n'
        "\t<timestamp>Mon Nov 30 03:20:11 2026</timestamp>\n\t<driver_version>580.95.05</driver_version>\n"
        f"\t<cuda_version>13.0</cuda_version>\n\t<attached_gpus>{len(cards)}</attached_gpus>\n"
        + "".join(_card(index, card) for index, card in enumerate(cards))
        + "</nvidia_smi_log>\n"
    )


def _card(index: int, card: Card) -> str:
    return f"""\t<gpu id="00000000:{index + 1:02X}:00.0">
\t\t<product_name>{escape(card.name)}</product_name>
\t\t<product_brand>NVIDIA RTX</product_brand>
\t\t<persistence_mode>Enabled</persistence_mode>
\t\t<mig_mode>
\t\t\t<current_mig>Disabled</current_mig>
\t\t\t<pending_mig>Disabled</pending_mig>
\t\t</mig_mode>
\t\t<mig_devices>
\t\t\tNone
\t\t</mig_devices>
\t\t<uuid>{uuid(index)}</uuid>
\t\t<minor_number>{7 - index}</minor_number>
\t\t<pci>
\t\t\t<pci_bus_id>00000000:{index + 1:02X}:00.0</pci_bus_id>
\t\t</pci>
\t\t<fb_memory_usage>
\t\t\t<total>97887 MiB</total>
\t\t\t<reserved>638 MiB</reserved>
\t\t\t<used>{card.used}</used>
\t\t\t<free>97246 MiB</free>
\t\t</fb_memory_usage>
\t\t<bar1_memory_usage>
\t\t\t<total>131072 MiB</total>
\t\t\t<used>1 MiB</used>
\t\t</bar1_memory_usage>
\t\t<processes>
{"".join(map(_process, card.processes))}\t\t</processes>
\t</gpu>
"""


def _process(process: tuple[int | str, str, str]) -> str:
    pid, name, used = process
    return f"""\t\t\t<process_info>
\t\t\t\t<gpu_instance_id>N/A</gpu_instance_id>
\t\t\t\t<compute_instance_id>N/A</compute_instance_id>
\t\t\t\t<pid>{pid}</pid>
\t\t\t\t<type>C</type>
\t\t\t\t<process_name>{escape(name)}</process_name>
\t\t\t\t<used_memory>{used}</used_memory>
\t\t\t</process_info>
"""
