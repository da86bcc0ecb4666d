# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the benchmarks on test hosts have in common: a host, playbooks, and how figures are told."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = Path(os.environ.get("GPUFLEET_CACHE", Path.home() / ".cache/gpufleet"))
DEMO = ROOT / "playbooks/examples/demo/inventory.yml"
ENVIRONMENT = {
    **os.environ,
    "PATH": f"{ROOT}/.venv/bin:{os.environ['PATH']}",
    "ANSIBLE_COLLECTIONS_PATH": f"{ROOT}/.collections",
}


def host_is_up() -> list[str]:
    """Start the host of the benchmarks where it is not there; returns the words that name its inventories."""
    testhosts = ROOT / "tests/support/testhosts"
    subprocess.run([testhosts, "prepare", "--wheels"], check=True, stdout=subprocess.DEVNULL)
    subprocess.run([testhosts, "up", "--set", "bench", "gpu-bench"], check=True, stdout=subprocess.DEVNULL)
    return [f"--inventory={CACHE}/hosts/bench/inventory.yml", f"--inventory={DEMO}"]


def playbook(*words: str) -> subprocess.Popen[str]:
    """Begin to run a playbook; its output comes line by line from ``stdout``."""
    return subprocess.Popen(
        ["ansible-playbook", *words], env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def run(*words: str) -> str:
    """Run a playbook to its end; what it printed. A playbook that fails ends the benchmark with its output."""
    process = playbook(*words)
    output, _nothing = process.communicate()
    if process.returncode != 0:
        raise SystemExit(output)
    return output


def tell(**figures: float) -> None:
    """The closing lines for machines: a name and a number each."""
    print()
    for name, figure in figures.items():
        print(f"{name} {figure:.3f}")
