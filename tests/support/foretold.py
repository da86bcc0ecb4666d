# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Compare what a run in check mode foretold with what the run then did.

Both are files that the callback ``record`` wrote. What counts is which tasks changed something, and the diffs that they
showed; a task is named with the host. What a directory holds that is removed does not count: tasks before may have
removed some of it, which check mode only speaks of. Prints what differs, and ends with 1 if anything does.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def changes(lines: Iterable[str], without: Iterable[str]) -> Counter[str]:
    """The changes of a run, each as JSON, and how often it was made; tasks of the names ``without`` do not count."""
    entries = (json.loads(line) for line in lines)
    kept = (entry for entry in entries if entry["changed"] and entry["task"] not in without)
    return Counter(json.dumps([entry["host"], entry["task"], _without_listings(entry["diff"])]) for entry in kept)


def _without_listings(diff: Any) -> Any:
    """The same without ``path_content``, wherever it is."""
    if isinstance(diff, list):
        return [_without_listings(part) for part in diff]
    if isinstance(diff, dict):
        return {key: _without_listings(part) for key, part in diff.items() if key != "path_content"}
    return diff


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("check", type=Path, help="the record of the run in check mode")
    parser.add_argument("run", type=Path, help="the record of the run")
    parser.add_argument("--without", action="append", default=[], metavar="TASK", help="a task that may differ")
    arguments = parser.parse_args()

    foretold, done = (
        changes(path.read_text(encoding="utf-8").splitlines(), arguments.without)
        for path in (arguments.check, arguments.run)
    )
    for text in (foretold - done).elements():
        print(f"foretold, and not done: {text}")
    for text in (done - foretold).elements():
        print(f"done, and not foretold: {text}")
    print(f"{(foretold & done).total()} changes came as foretold")
    raise SystemExit(foretold != done)


if __name__ == "__main__":
    main()
