# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""How long a plan takes: the pure core, a directory of 595 GB in 64 files, and the module as Ansible runs it.

Prints a table for people, then lines of key and value: plan_ms, plan_kimi_dir_s, plan_kimi_dir_mb, plan_module_s,
layouts_ms, tp8_published_error_max_percent (fitted points), tp8_held_out_error_max_percent.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TREE = Path(__file__).parents[2] / ".collections"
sys.path.insert(0, str(TREE))

from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.memory import Gpus  # noqa: E402
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.model import read_config  # noqa: E402
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.outcome import result  # noqa: E402
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.plan import make_plan  # noqa: E402
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.request import Measured, Wishes  # noqa: E402
from ansible_collections.gpufleet.sglang.tests.unit.plan.models import KIMI, kimi_directory  # noqa: E402
from ansible_collections.gpufleet.sglang.tests.unit.plan.published import (  # noqa: E402
    PP8_POINTS,
    TP8_HELD_OUT,
    TP8_POINTS,
    modelled,
)

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(TREE)}
MODULE = "ansible_collections.gpufleet.sglang.plugins.modules.pp_plan"
# What Ansible hands to a module goes through the same door as in production: arguments on standard input.
ENTRY = f"""
import json, resource, runpy, sys
from ansible.module_utils.testing import patch_module_args
with patch_module_args(json.load(sys.stdin)):
    try:
        runpy.run_module({MODULE!r}, run_name="__main__", alter_sys=True)
    finally:
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)
"""


def core() -> float:
    """Return the milliseconds of one plan with all of its results, the median of many."""
    shape, gpus = read_config(KIMI), Gpus(8, 97887, "GPU", 1792.0)
    wishes = Wishes(
        target_concurrency=32,
        pp_size=8,
        max_running_requests=64,
        measured=(Measured(1, 34.0), Measured(32, 248.0, 8)),
    )
    times = []
    for _round in range(500):
        began = time.perf_counter()
        result(make_plan(wishes, shape, gpus))
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1000


def search() -> float:
    """Return the milliseconds of a plan that searches the layouts of eight GPUs, the median of many."""
    shape, gpus = read_config(KIMI), Gpus(8, 97887, "GPU", 1792.0)
    wishes = Wishes(target_concurrency=32, layouts="search")
    times = []
    for _round in range(30):
        began = time.perf_counter()
        make_plan(wishes, shape, gpus)
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1000


def worst(published: dict[int, float]) -> float:
    """Return the largest error against *published* throughput of TP 8, in percent."""
    return max(abs(modelled(load, tp_size=8) / value - 1) for load, value in published.items()) * 100


def module(arguments: dict[str, object], rounds: int) -> tuple[float, float]:
    """Return seconds and MiB of the module in a process of its own, the best of *rounds*: start of Python included."""
    seconds, kibibytes = [], []
    for _round in range(rounds):
        began = time.perf_counter()
        run = subprocess.run(
            [sys.executable, "-c", ENTRY],
            input=json.dumps(arguments),
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            check=True,
        )
        seconds.append(time.perf_counter() - began)
        kibibytes.append(int(run.stderr.splitlines()[-1]))
    return min(seconds), max(kibibytes) / 1024


def main() -> None:
    gpus = {"count": 8, "memory_mib": 97887}
    load = {"pp_size": 8, "target_concurrency": 32, "max_running_requests": 64}
    core_ms = core()
    module_s, module_mb = module({**load, "gpus": gpus, "model_config": KIMI}, 5)
    with tempfile.TemporaryDirectory() as directory:
        size = kimi_directory(Path(directory))
        directory_s, directory_mb = module({**load, "gpus": gpus, "model_path": directory}, 3)
    print(f"{'one plan, pure core':<44} {core_ms:8.2f} ms")
    print(f"{'the module, with a config.json':<44} {module_s:8.2f} s  {module_mb:6.0f} MiB")
    print(f"{f'the module, with {size / 1e9:.0f} GB in 64 files':<44} {directory_s:8.2f} s  {directory_mb:6.0f} MiB")
    print()
    print(f"plan_ms {core_ms:.3f}")
    print(f"plan_kimi_dir_s {directory_s:.3f}")
    print(f"plan_kimi_dir_mb {directory_mb:.1f}")
    print(f"plan_module_s {module_s:.3f}")
    print(f"layouts_ms {search():.1f}")
    print(f"tp8_published_error_max_percent {worst(TP8_POINTS):.1f}")
    print(f"tp8_held_out_error_max_percent {worst(TP8_HELD_OUT):.1f}")
    pp8 = max(abs(modelled(load, pp_size=8, cap=cap, input_tokens=64) / value - 1) for load, cap, value in PP8_POINTS)
    print(f"pp8_measured_error_max_percent {pp8 * 100:.1f}")


if __name__ == "__main__":
    main()
