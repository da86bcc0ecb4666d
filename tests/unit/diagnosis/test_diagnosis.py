# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What is said of a server that runs, and what goes into a bundle."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest
from ansible_collections.gpufleet.sglang.plugins.module_utils._diagnosis.batches import Batch
from ansible_collections.gpufleet.sglang.plugins.module_utils._diagnosis.bundle import MAX_FILE, pack, packages
from ansible_collections.gpufleet.sglang.plugins.module_utils._diagnosis.diagnosis import (
    batches_of_first_rank,
    diagnose,
    read_gpus,
)
from ansible_collections.gpufleet.sglang.plugins.module_utils._diagnosis.pipeline import (
    Load,
    Pipeline,
    judge,
    load_of,
    read_metrics,
)
from ansible_collections.gpufleet.sglang.plugins.module_utils._host.journal import Entry
from ansible_collections.gpufleet.sglang.plugins.module_utils._readiness.catalogue import BY_CODE
from ansible_collections.gpufleet.sglang.plugins.module_utils._readiness.causes import failure
from ansible_collections.gpufleet.sglang.plugins.module_utils._readiness.readiness import Verdict, Wait

DOCS = Path(__file__).parents[3] / "docs" / "readiness.md"
PP8 = Pipeline(8, 8, cap=8, max_running_requests=64)
WIDE = Pipeline(8, 8, cap=256, max_running_requests=2048)


@pytest.mark.parametrize(
    ("pipeline", "load", "code"),
    [
        (WIDE, Load(64, 0, 64.0, 0.1), "concentrated"),
        (WIDE, Load(60, 0, 30.0, 0.1), "concentrated"),
        (PP8, Load(64, 0, 8.0, 0.1), "balanced"),
        (PP8, Load(60, 0, 7.5, 0.1), "balanced"),
        (Pipeline(8, 8, cap=7, max_running_requests=64), Load(60, 4, 7.0, 0.1), "starved"),
        (PP8, Load(80, 16, 8.0, 0.1), "saturated"),
        (PP8, Load(40, 10, 4.0, 0.99), "saturated"),
        (PP8, Load(5, 0, 1.0, 0.1), "underfed"),
        (PP8, Load(0, 0, 0.0, 0.0), "idle"),
        (PP8, Load(None, 0, 3.0, 0.1), "unknown"),
        (PP8, Load(None, 9, 8.0, 0.1), "saturated"),
        (Pipeline(8, 8, cap=4, max_running_requests=64), Load(None, 9, 4.0, 0.1), "starved"),
        (Pipeline(1, 1, cap=64, max_running_requests=64), Load(3, 0, 3.0, 0.1), "balanced"),
        (Pipeline(8, 9, cap=8), Load(64, 0, 8.0, 0.1), "balanced"),
    ],
)
def test_findings(pipeline: Pipeline, load: Load, code: str) -> None:
    finding = judge(pipeline, load)
    assert finding.code == code
    assert f"`{code}`" in DOCS.read_text(encoding="utf-8")
    assert bool(finding.advice) is (code not in ("balanced", "idle"))


def test_a_concentrated_pipeline_is_told_its_cap() -> None:
    finding = judge(WIDE, Load(60, 0, 60.0, 0.1))
    assert "60 requests lie in 1 of 8 slots, 256 fit into each: 7 of 8 stages" in finding.message
    assert "pp_max_micro_batch_size to 8" in finding.advice


METRICS = """# HELP sglang:http_requests_active Number of currently active HTTP requests
# TYPE sglang:http_requests_active gauge
sglang:http_requests_active{endpoint="/v1/chat/completions",method="POST"} 40.0
sglang:http_requests_active{endpoint="/generate",method="POST"} 2.0
sglang:http_requests_active{endpoint="/metrics",method="GET"} 1.0
sglang:num_queue_reqs{pp_rank="0",model_name="a, \\"b\\""} 2.0
sglang:num_queue_reqs{pp_rank="1",model_name="x"} 2.0
sglang:num_running_reqs{pp_rank="0"} 5.0
sglang:token_usage{pp_rank="0"} 0.25
sglang:token_usage{pp_rank="1"} NaN
nonsense
sglang:broken{a="b"} x.y
"""


def batch(running: int, kind: str = "decode") -> Batch:
    return Batch(kind, "PP0", 0.0, running, 3, 0.5, 10.0)


def test_the_load_is_that_of_all_slots() -> None:
    batches = [batch(8), batch(4), batch(0), batch(99, "prefill")]
    load = load_of([METRICS, METRICS.replace("40.0", "44.0")], batches)
    assert load == Load(requests=44, queued=2, per_slot=6.0, token_usage=0.25)
    assert load.running == 42
    assert load.filled(8) == 7


def test_a_load_that_comes_and_goes_is_told_as_it_is_while_it_is_there() -> None:
    """Between two bursts, slots that were filled evenly would seem to be few."""
    busy, quiet = ('sglang:http_requests_active{endpoint="/v1/completions"} ' + number for number in ("8.0", "0.0"))
    load = load_of([quiet, busy, busy, quiet, quiet], [batch(4), batch(4), batch(0)])
    assert load.requests == 8
    assert load.filled(2) == 2
    assert load_of([quiet, quiet], []).requests == 0


def test_the_load_without_metrics_and_without_lines() -> None:
    assert load_of([], [batch(8)]) == Load(None, 3, 8.0, 0.5)
    assert load_of([METRICS], []) == Load(42, 2, 5.0, 0.25)
    assert load_of([], []) == Load(None, 0, 0.0, 0.0)


def test_metrics_of_another_form_are_left_out() -> None:
    assert len(list(read_metrics(METRICS))) == 7
    assert list(read_metrics("<html>\n\n{}")) == []


def test_batches_of_all_ranks_are_the_same_told_again() -> None:
    line = "[2026-11-01 10:07:12 PP{}] Decode batch, #running-req: 8, #token: 1, token usage: 0.01, #queue-req: 0"
    assert len(batches_of_first_rank(Entry.of(line.format(rank)) for rank in (1, 0, 2, 0))) == 2


@pytest.mark.parametrize("code", sorted(BY_CODE))
def test_failures_are_told_with_their_state(code: str) -> None:
    found = diagnose(Verdict("loading", failure=failure(code, "x", ["line"])), Wait(), None)
    assert found.cause == code
    assert found.evidence == ("line",)
    assert found.state in ("stopped", "failed", "hung")


def test_states_of_servers_that_have_not_failed() -> None:
    assert diagnose(Verdict("loading", "2 of 4 shards"), Wait(), None).state == "loading"
    ready = Wait(models=["kimi"])
    assert diagnose(Verdict("ready"), ready, None).summary == "serves kimi"
    assert diagnose(Verdict("ready"), ready, judge(PP8, Load(64, 0, 8.0, 0.1))).state == "ready"
    slow = diagnose(Verdict("ready"), ready, judge(WIDE, Load(64, 0, 64.0, 0.1)))
    assert (slow.state, slow.cause) == ("slow", "concentrated")
    assert json.loads(json.dumps(slow.to_dict()))["evidence"] == []


@pytest.mark.parametrize(
    ("output", "gpus"),
    [
        ("0, 97, 83000, 97887\n1, 0, 1, 97887\n", 2),
        ("0, [N/A], 1, 2\n", 0),
        ("NVIDIA-SMI has failed because it could not communicate with the NVIDIA driver", 0),
        ("", 0),
    ],
)
def test_gpus(output: str, gpus: int) -> None:
    assert len(read_gpus(output)) == gpus


def test_a_bundle_holds_no_secret() -> None:
    content = pack("sglang-kimi.service", {"b.txt": "api_key: abc\nk3y here\n", "a.txt": "fine"}, ["k3y"])
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        texts = {member.name: (archive.extractfile(member) or io.BytesIO()).read().decode() for member in archive}
        assert all(member.mode == 0o600 for member in archive)
    assert texts == {
        "sglang-kimi.service/a.txt": "fine\n",
        "sglang-kimi.service/b.txt": "api_key: <secret>\n<secret> here\n",
    }


def test_a_bundle_is_bounded() -> None:
    assert len(pack("x", {"a.txt": "x\n" * MAX_FILE}, [])) < MAX_FILE


def test_packages() -> None:
    assert any(line.startswith("pytest==") for line in packages())
