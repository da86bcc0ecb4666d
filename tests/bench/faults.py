# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Servers that are broken on purpose: what server_ready says of each, how late, and what a shell loop would have said.

Real faults are of real SGLang on a test host; the others are of a stand-in on the same host. The loop polls every 15 s,
60 times at most: failed where ``systemctl is-active`` says so, ready where ``/v1/models`` has an id.
"""

from __future__ import annotations

import argparse
import base64
import json
import math
import os
import re
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible_collections.gpufleet.sglang.tests.bench import fleet
from ansible_collections.gpufleet.sglang.tests.bench.faults_table import REAL, REBOOT, STANDIN, WAITING, Fault

SET, HOST = "faults", "gpu-f"
PLAY = str(fleet.ROOT / "tests/bench/faults.yml")
INVENTORY = f"--inventory={fleet.CACHE}/hosts/{SET}/inventory.yml"
HOST_FILES = {
    "/srv/faults/faults.sh": fleet.ROOT / "tests/bench/faults.sh",
    "/srv/faults/standin.py": fleet.ROOT / "tests/support/standin/standin.py",
}
LOOP_INTERVAL, LOOP_POLLS = 15.0, 60
LATE = 2.0
"""Seconds from when a fault can be seen to the result on the controller, at most."""
POLL_CPU = 2.0
"""Percent of a core that waiting may use on the host."""
ROUND_TRIP = re.compile(r"^<(?!localhost)\S+> (?:SSH: EXEC|PUT) ", re.MULTILINE)
MARKS = ("<!-- begin of the table that faults.py writes -->", "<!-- end of that table -->")


def on_host(script: str) -> str:
    """Run shell on the test host; its output."""
    return fleet.on_host(SET, HOST, f". /srv/faults/faults.sh; {script}")


def restart_host() -> str:
    """Reboot the test host."""
    words = [str(fleet.TESTHOSTS), "reboot", "--set", SET, HOST]
    return subprocess.run(words, capture_output=True, text=True, check=False).stderr


def host_is_up(real: bool) -> None:
    """A host with what the faults are made with and, where they are ``real``, the demo's server, stopped."""
    inventories = fleet.host_is_up(SET, HOST)
    for path, source in HOST_FILES.items():
        content = base64.b64encode(source.read_bytes()).decode()
        fleet.on_host(SET, HOST, f"mkdir -p /srv/faults; echo {content} | base64 -d >{path}")
    if real and "No such" in on_host("ls /etc/systemd/system/sglang-demo.service"):
        fleet.run(*inventories, "gpufleet.sglang.deploy")
    on_host("systemctl disable --now --quiet sglang-demo; clean")


def first_line(pattern: str, since: float) -> float | None:
    """When the unit's journal first had a line like that, in seconds since the epoch."""
    for line in on_host(f"journalctl --unit $unit --since @{since:.0f} --output=json --all").splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        message, at = entry.get("MESSAGE"), int(entry.get("__REALTIME_TIMESTAMP", 0)) / 1e6
        if at >= since and isinstance(message, str) and re.search(pattern, message):
            return at
    return None


class Loop(threading.Thread):
    """The shell loop beside ours: it looks at once, and every 15 s until it has a verdict or is told to stop."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.began = time.time()
        self.said, self.at = "", 0.0
        self.over = threading.Event()

    def run(self) -> None:
        polls = 0
        while not self.said and not self.over.wait(max(0.0, self.began + polls * LOOP_INTERVAL - time.time())):
            self.look(self.began + polls * LOOP_INTERVAL)
            polls += 1

    def look(self, at: float) -> None:
        said = on_host("loop").strip()
        if said in ("FAILED", "READY") and not self.said:
            self.said, self.at = said, max(at, time.time())

    def conclude(self) -> None:
        """Nothing changes any more: what it would say at its next look is what it would say now."""
        self.over.set()
        self.join()
        if not self.said:
            passed = time.time() - self.began
            self.look(self.began + math.ceil(passed / LOOP_INTERVAL) * LOOP_INTERVAL)
        if not self.said:
            self.said, self.at = "TIMEOUT", self.began + LOOP_POLLS * LOOP_INTERVAL


@dataclass(frozen=True)
class Outcome:
    """What came out. Times in seconds; ``late`` is from when it could be seen, and was asked for."""

    fault: Fault
    said: str
    late: float
    loop_said: str
    loop_late: float
    summary: str
    evidence: str
    left: str

    @property
    def false_ready(self) -> bool:
        """Whether a broken server was called ready."""
        return self.said == "ready" and self.fault.expected != "ready"

    @property
    def loop_false_ready(self) -> bool:
        """The same of the loop."""
        return self.loop_said == "READY" and self.fault.expected != "ready"

    @property
    def unproven(self) -> bool:
        """Whether neither the summary nor the evidence of its cause names what is broken."""
        return not re.search(self.fault.evidence, self.told)

    @property
    def told(self) -> str:
        """All that is said of the cause."""
        return f"{self.summary} / {self.evidence}"

    @property
    def problems(self) -> list[str]:
        """What should not be; empty for a fault that was told as it should be."""
        return [
            *([f"expected {self.fault.expected}: {self.summary}"] if self.said != self.fault.expected else []),
            *([f"expected within {LATE:g} s"] if self.late > LATE else []),
            *([f"expected evidence like {self.fault.evidence!r}: {self.told}"] if self.unproven else []),
            *([f"left behind: {self.left}"] if self.left else []),
        ]


def attempt(fault: Fault, keep: bool) -> Outcome:
    """Break the server, wait for it, and see; ``keep`` leaves the server to the fault that follows."""
    began = time.time()
    trouble = on_host(fault.prepare)
    prepared = time.time()
    loop = Loop()
    loop.start()
    with tempfile.TemporaryDirectory() as directory:
        outputs = [Path(directory) / f"{number}.json" for number in range(fault.waits)]
        waits = [begin_wait(fault.options, output) for output in outputs]
        if fault.during:
            while fault.when and first_line(fault.when, began) is None and waits[0].poll() is None:
                time.sleep(0.5)
            trouble += on_host(fault.during) if fault.during != REBOOT else restart_host()
            prepared = time.time()
        texts = [wait.communicate()[0] for wait in waits]
        loop.conclude()
        if not all(output.exists() for output in outputs):
            summary = trouble + texts[0][-600:]
            return Outcome(fault, "no outcome", math.inf, loop.said, math.inf, summary, "", on_host("clean").strip())
        contents = [json.loads(output.read_text(encoding="utf-8")) for output in outputs]
    # Of several waits, one that went wrong counts.
    content = next((content for content in contents if said_of(content) != fault.expected), contents[0])
    failure = content["ready"].get("failure", {})
    visible = ((first_line(fault.seen_by, began) if fault.seen_by else None) or prepared) + fault.after
    return Outcome(
        fault,
        said_of(content),
        # Nobody can tell before being asked.
        content["returned"] - max(visible, content["began"] + fault.after),
        loop.said,
        loop.at - max(visible, loop.began),
        " ".join((trouble + failure.get("summary", "")).split()),
        " / ".join(failure.get("evidence", [])),
        "" if keep else " ".join(on_host("clean").split()),
    )


def begin_wait(options: dict[str, Any], output: Path, *words: str) -> subprocess.Popen[str]:
    """Begin to wait for the server; what came out gets into ``output``."""
    variables = json.dumps({"wanted": options, "output": str(output)})
    return fleet.playbook(INVENTORY, PLAY, "-e", variables, *words)


def said_of(content: dict[str, Any]) -> str:
    """What a wait came to: ready, or a cause."""
    ready = content["ready"]
    return "ready" if ready.get("ready") else str(ready.get("failure", {}).get("cause", ready.get("msg", "?")))


def cost_of_waiting() -> dict[str, float]:
    """What a quiet wait for a server that loads costs: CPU and connections on the host, and round trips to it.

    One that shows progress has a round trip more for each ``progress_interval`` and each phase.
    """
    on_host(f"standin {WAITING}")
    before = int(on_host("opened"))
    with tempfile.TemporaryDirectory() as directory:
        output = Path(directory) / "quiet.json"
        wait = begin_wait({"progress": False}, output, "-vvv")
        time.sleep(10)
        cpu = float(on_host("poll_cpu 30"))
        requests = int(on_host("opened")) - before
        text = wait.communicate()[0]
        seconds = json.loads(output.read_text(encoding="utf-8"))["ready"]["elapsed"]
    on_host("clean")
    return {
        "poll_cpu_percent": cpu,
        "requests_before_open": requests,
        "ssh_round_trips_per_minute": len(re.findall(ROUND_TRIP, text)) * 60 / seconds,
    }


def chosen(words: Sequence[str], table: Sequence[Fault]) -> list[Fault]:
    """The faults with one of the words in their names, all without any; each with those that it follows."""
    picked: list[Fault] = []
    for fault in reversed(table):
        needed = bool(picked) and picked[-1].follows
        if needed or not words or any(word in fault.name for word in words):
            picked.append(fault)
    return picked[::-1]


def tried(faults: Sequence[Fault]) -> list[Outcome]:
    """All faults, one after another, each with a line of its own."""
    outcomes = []
    for number, fault in enumerate(faults):
        if fault.needs and "no" in on_host(f"{fault.needs} || echo no"):
            print(f"- {fault.name:44} not tried: this machine has not what it needs")
            continue
        outcome = attempt(fault, keep=number + 1 < len(faults) and faults[number + 1].follows)
        outcomes.append(outcome)
        print(
            f"{'!' if outcome.problems else ' '} {fault.name:44} {outcome.said:28} {outcome.late:6.1f} s"
            f"   loop: {outcome.loop_said:8} {outcome.loop_late:6.1f} s",
            flush=True,
        )
        for line in outcome.problems or ([outcome.summary] if os.environ.get("VERBOSE") else []):
            print(f"      {line}", flush=True)
    return outcomes


def figures_of(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """What all came to."""
    broken = [outcome for outcome in outcomes if outcome.fault.expected != "ready"]
    return {
        "faults": len(broken),
        "good": len(outcomes) - len(broken),
        "false_ready": sum(outcome.false_ready for outcome in outcomes),
        "wrong_cause": sum(outcome.said != outcome.fault.expected for outcome in outcomes),
        "late_max_s": max((outcome.late for outcome in outcomes), default=0.0),
        "left_behind": sum(bool(outcome.left) for outcome in outcomes),
        "loop_false_ready": sum(outcome.loop_false_ready for outcome in broken),
        "loop_late_max_s": max((outcome.loop_late for outcome in broken if not outcome.loop_false_ready), default=0.0),
    }


def markdown(outcomes: Sequence[Outcome], figures: dict[str, float]) -> str:
    """The table of the guide, with what it comes to above it."""
    whole = {name: f"{figure:.0f}" for name, figure in figures.items()}
    result = (
        f"{whole['faults']} faults and {whole['good']} good starts: {whole['false_ready']} times ready where it was "
        f"not, {whole['wrong_cause']} wrong causes, at most {figures['late_max_s']:.1f} s late. The loop says ready "
        f"of {whole['loop_false_ready']} servers that are broken."
    )
    lines = [result, "", "| fault | where | what came out | late | the loop |", "|---|---|---|---|---|"]
    for outcome in outcomes:
        where = "real SGLang" if outcome.fault in REAL else "stand-in"
        late = max(outcome.loop_late, 0.0)
        loop = {"FAILED": f"failed, {late:.1f} s", "READY": f"ready, {late:.1f} s"}.get(
            outcome.loop_said, "nothing for 15 min"
        )
        loop = "**ready**" if outcome.loop_false_ready else loop
        lines.append(f"| {outcome.fault.name} | {where} | `{outcome.said}` | {max(outcome.late, 0.0):.1f} s | {loop} |")
    return "\n".join(lines)


def publish(text: str, guide: Path) -> None:
    """Put the table between its marks in a guide."""
    before, begin, rest = guide.read_text(encoding="utf-8").partition(MARKS[0])
    _old, end, behind = rest.partition(MARKS[1])
    if not (begin and end):
        raise SystemExit(f"{guide}: expected the lines {MARKS[0]} and {MARKS[1]}")
    guide.write_text(f"{before}{begin}\n\n{text}\n\n{end}{behind}", encoding="utf-8")


def main() -> int:
    """All faults, or those that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", help="only the faults with one of these in their names")
    parser.add_argument("--standin", action="store_true", help="only those that need no real SGLang")
    parser.add_argument("--check", action="store_true", help="end with status 1 where one is not told as it should be")
    parser.add_argument("--markdown", type=Path, metavar="GUIDE", help="write the table into this file")
    asked = parser.parse_args()
    whole = not asked.words and not asked.standin
    if asked.markdown and not whole:
        parser.error("--markdown is for all faults")
    faults = chosen(asked.words, STANDIN if asked.standin else (*STANDIN, *REAL))
    host_is_up(real=any(fault in REAL for fault in faults))
    outcomes = tried(faults)
    figures = {**figures_of(outcomes), **(cost_of_waiting() if whole else {})}
    fleet.tell(**figures)
    if asked.markdown:
        publish(markdown(outcomes, figures), asked.markdown)
    wrong = any(outcome.problems for outcome in outcomes)
    dear = figures.get("poll_cpu_percent", 0.0) > POLL_CPU or figures.get("requests_before_open", 0) > 0
    return int(asked.check and (wrong or dear))


if __name__ == "__main__":
    raise SystemExit(main())
