# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The runner of Molecule scenarios: names of host sets, order, table of times."""

from __future__ import annotations

import re
from pathlib import Path

from ansible_collections.gpufleet.sglang.tests.support import scenarios


def test_sets_of_lanes_and_checkouts_differ_and_are_names() -> None:
    names = {scenarios.set_name(lane, root) for lane in (1, 2) for root in (Path("/a"), Path("/b"))}
    assert len(names) == 4
    assert all(re.fullmatch(r"[a-z0-9-]{1,32}", name) for name in names)


def test_every_scenario_runs_and_a_new_one_is_not_forgotten() -> None:
    names = [path.parent.name for path in scenarios.SCENARIOS.glob("*/molecule.yml")]
    assert set(scenarios.ORDER) <= set(names)
    assert sorted(scenarios.ordered([*names, "brand_new"])) == sorted([*names, "brand_new"])


def test_steps_are_read_from_what_molecule_prints() -> None:
    steps = scenarios.Steps()
    for now, line in [
        (10.0, "\x1b[36mINFO    \x1b[0m \x1b[32mreuse\x1b[0m ➜ \x1b[33mconverge\x1b[0m: Executing"),
        (70.0, "INFO     reuse ➜ converge: Executed: Successful"),
        (70.5, "INFO     reuse ➜ verify: Executing"),
        (90.5, "INFO     reuse ➜ verify: Executed: Failed"),
    ]:
        steps.see(line, now)
    assert steps.seconds() == [("converge", 60.5), ("verify", 20.0)]


def test_table_names_what_failed_and_what_did_not_run() -> None:
    outcomes = [scenarios.Outcome("reuse", 2, 81.0, failed=True, steps=[("converge", 60.5)])]
    lines = scenarios.table(outcomes, ["pipeline"], 90.0).splitlines()
    assert lines[1].split() == ["reuse", "2", "81.0", "failed", "converge", "60"]
    assert lines[2].startswith("pipeline")
    assert "did not run" in lines[2]
