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
TESTHOSTS = ROOT / "tests/support/testhosts"
ENVIRONMENT = {
    **os.environ,
    "PATH": f"{ROOT}/.venv/bin:{os.environ['PATH']}",
    "ANSIBLE_COLLECTIONS_PATH": f"{ROOT}/.collections",
}


def host_is_up(set_name: str = "bench", host: str = "gpu-bench") -> list[str]:
    """Start the host of the benchmarks where it is not there; returns the words that name its inventories."""
    subprocess.run([TESTHOSTS, "prepare", "--wheels"], check=True, stdout=subprocess.DEVNULL)
    subprocess.run([TESTHOSTS, "up", "--set", set_name, host], check=True, stdout=subprocess.DEVNULL)
    return [f"--inventory={CACHE}/hosts/{set_name}/inventory.yml", f"--inventory={DEMO}"]


def on_host(set_name: str, host: str, script: str) -> str:
    """Run shell on a test host; all that it printed. How it ended is not asked."""
    words = [str(TESTHOSTS), "exec", "--set", set_name, host, "--", "sh", "-c", script]
    return subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False).stdout


def playbook(*words: str, **environment: str) -> subprocess.Popen[str]:
    """Begin to run a playbook; its output comes line by line from ``stdout``."""
    return subprocess.Popen(
        ["ansible-playbook", *words],
        env={**ENVIRONMENT, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
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
