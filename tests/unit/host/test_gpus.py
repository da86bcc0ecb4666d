# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""nvidia-smi's XML: what it tells is read, what it does not tell is None, and anything else is one clear error."""

from __future__ import annotations

import contextlib

import pytest
from ansible_collections.gpufleet.sglang.plugins.module_utils._host.gpus import (
    Gpu,
    GpuError,
    GpuProcess,
    ask,
    parse,
    visible,
)
from ansible_collections.gpufleet.sglang.tests.unit.host.smi import Card, print_xml, uuid
from hypothesis import given, settings
from hypothesis import strategies as st

EIGHT = parse(print_xml([Card()] * 8))


def test_gpus_and_their_processes() -> None:
    text = print_xml(
        [Card("90116 MiB", [(4711, "sglang::scheduler_PP0", "90108 MiB"), (812, "/usr/bin/X <&>", "4 MiB")]), Card()]
    )
    name = "NVIDIA RTX PRO 6000 Blackwell Server Edition"
    processes = (GpuProcess(4711, 90108, "sglang::scheduler_PP0"), GpuProcess(812, 4, "/usr/bin/X <&>"))
    assert parse(text) == [Gpu(0, uuid(0), name, 97887, 90116, processes), Gpu(1, uuid(1), name, 97887, 3)]


def test_what_the_driver_does_not_tell() -> None:
    text = print_xml(
        [Card("N/A", [(4711, "", "N/A"), ("N/A", "gone", "7 MiB"), (5, "x", "[Insufficient Permissions]")])]
    )
    (gpu,) = parse(text)
    assert gpu.used_mib is None
    assert gpu.processes == (GpuProcess(4711, None), GpuProcess(5, None, "x"))


def test_a_gpu_of_another_age_has_less_to_tell() -> None:
    assert parse("<nvidia_smi_log><gpu/></nvidia_smi_log>") == [Gpu(0, "", "", None, None)]
    assert parse("<nvidia_smi_log></nvidia_smi_log>") == []


@pytest.mark.parametrize(
    ("size", "mib"), [("3 MiB", 3), ("2 GiB", 2048), ("512 KiB", 0), ("7", 7), ("-1 MiB", None), ("1e9 MiB", None)]
)
def test_sizes(size: str, mib: int | None) -> None:
    assert parse(print_xml([Card(size)]))[0].used_mib == mib


@pytest.mark.parametrize("text", ["", "No devices were found\n", "<gpu>", "<other/>"])
def test_what_is_no_answer_is_said(text: str) -> None:
    with pytest.raises(GpuError, match="nvidia-smi -q -x"):
        parse(text)


def test_a_host_without_nvidia_smi_has_no_gpus() -> None:
    assert ask(lambda command: (127, "", "not found")) == []


def test_an_nvidia_smi_that_fails_is_said_with_its_words() -> None:
    said = "Unable to determine the device handle for GPU0000:01:00.0: Unknown Error\nmore"
    with pytest.raises(GpuError, match=r"failed \(15\): Unable to .*: Unknown Error\Z"):
        ask(lambda command: (15, said, ""))


def test_it_is_asked_for_xml() -> None:
    asked = []

    def run(command: list[str]) -> tuple[int, str, str]:
        asked.append(command)
        return 0, print_xml([Card()]), ""

    assert len(ask(run)) == 1
    assert asked == [["nvidia-smi", "-q", "-x"]]


@pytest.mark.parametrize(
    ("devices", "indices"),
    [
        ("0,1", [0, 1]),
        ("5, 2", [5, 2]),
        (uuid(3), [3]),
        (f"{uuid(3)[:9]},1", [3, 1]),
        ("GPU-", []),  # means more than one
        ("0,9,1", [0]),
        ("0,0", [0]),
        ("-1", []),
        ("", []),
        ("MIG-1234", []),
        ("¹", []),
    ],
)
def test_visible_devices(devices: str, indices: list[int]) -> None:
    assert [gpu.index for gpu in visible(EIGHT, devices)] == indices


@settings(max_examples=150)
@given(st.text(max_size=60), st.integers(0, 4000), st.integers(0, 60))
def test_broken_output_never_breaks_it(noise: str, at: int, cut: int) -> None:
    text = print_xml([Card("5 MiB", [(1, "x", "1 MiB")]), Card()])
    with contextlib.suppress(GpuError):
        gpus = parse(text[:at] + noise + text[at + cut :])
        assert all(gpu.used_mib is None or gpu.used_mib >= 0 for gpu in gpus)


@settings(max_examples=100)
@given(st.text(max_size=40))
def test_visible_devices_are_a_choice_of_the_gpus(devices: str) -> None:
    chosen = visible(EIGHT, devices)
    assert len(set(chosen)) == len(chosen) <= 8
