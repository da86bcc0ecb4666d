# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""How late is ready: from SGLang's own "fired up" line to the end of the task, its completion included."""

from __future__ import annotations

import json
import statistics
import tempfile
from pathlib import Path

from ansible_collections.gpufleet.sglang.tests.bench.fleet import ROOT, host_is_up, run, tell

STARTS = 10


def main() -> None:
    """Ten real starts on a test host."""
    inventories = host_is_up()
    run(*inventories, "gpufleet.sglang.deploy")
    with tempfile.TemporaryDirectory() as directory:
        output = Path(directory) / "moments.json"
        run(*inventories, str(ROOT / "tests/bench/ready.yml"), "-e", f"starts={STARTS}", "-e", f"output={output}")
        moments = json.loads(output.read_text(encoding="utf-8"))
    print("start   ready after   later than the server said so")
    for number, moment in enumerate(moments, 1):
        print(f"{number:5}   {moment['elapsed']:9.1f} s   {moment['returned'] - moment['fired_up']:9.2f} s")
    late = [moment["returned"] - moment["fired_up"] for moment in moments]
    tell(ready_late_median_s=statistics.median(late), ready_late_max_s=max(late))


if __name__ == "__main__":
    main()
