# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This file is private to the collection: it may change without notice.

"""How a running pipeline is used: is each stage fed, and if not, what holds the requests back. Pure.

Neither a line of the journal nor the gauge of running requests tells how many requests run: each is one slot's. How
many there are is known from the HTTP side; how they lie is that number over what a filled slot holds.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import mean
from typing import Any

from ansible_collections.gpufleet.sglang.plugins.module_utils._diagnosis.batches import Batch

KV_FULL = 0.95
"""Share of the KV cache in use from which on there is no room for another request."""

_SAMPLE = re.compile(r"(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>[^}]*)\})? (?P<value>[-+.\w]+)(?: \d+)?\Z")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_GENERATING = re.compile(r"/(?:v1/(?:chat/)?completions|v1/responses|generate)\Z")


@dataclass(frozen=True)
class Pipeline:
    """What a pipeline is set to: stages, slots, requests a slot takes (None: not known), requests in all."""

    pp_size: int
    slots: int
    cap: int | None = None
    max_running_requests: int | None = None


@dataclass(frozen=True)
class Load:
    """What it does: requests that SGLang has taken in (None: not known), that wait, per filled slot; share of KV."""

    requests: int | None
    queued: int
    per_slot: float
    token_usage: float

    @property
    def running(self) -> int | None:
        """Requests that run, over all slots."""
        return None if self.requests is None else max(self.requests - self.queued, 0)

    def filled(self, slots: int) -> int | None:
        """How many slots have requests in them."""
        if not self.running or not self.per_slot:
            return None if self.running is None else 0
        return min(max(round(self.running / self.per_slot), 1), slots)


@dataclass(frozen=True)
class Finding:
    """A code that stays the same from release to release, what was seen, and what to change."""

    code: str
    message: str
    advice: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The form in which a module returns it."""
        return asdict(self)


def load_of(metrics: Sequence[str], batches: Iterable[Batch]) -> Load:
    """The load from answers of /metrics (none where they are off) and from decode lines of one rank."""
    batches = [batch for batch in batches if batch.kind == "decode"]
    samples = [list(read_metrics(text)) for text in metrics]
    # A time without requests would make the same slots seem to be filled by fewer of them.
    samples = [sample for sample in samples if _requests(sample) != 0] or samples
    known = [value for value in map(_requests, samples) if value is not None]
    queued = [_greatest(sample, "sglang:num_queue_reqs") for sample in samples] or [batch.queued for batch in batches]
    usage = [_greatest(sample, "sglang:token_usage") for sample in samples] or [batch.token_usage for batch in batches]
    gauges = [_greatest(sample, "sglang:num_running_reqs") for sample in samples]
    running = [float(batch.running) for batch in batches if batch.running] or [gauge for gauge in gauges if gauge]
    return Load(
        requests=round(mean(known)) if known else None,
        queued=round(mean(queued)) if queued else 0,
        per_slot=mean(running) if running else 0.0,
        token_usage=max(usage, default=0.0),
    )


def _requests(sample: Sample) -> float | None:
    return _total(sample, "sglang:http_requests_active", _GENERATING)


def judge(pipeline: Pipeline, load: Load) -> Finding:
    """What there is to say of a pipeline; the first thing that holds it back."""
    cap = "" if pipeline.cap is None else f", {pipeline.cap} fit into each"
    if load.queued:
        limit = _limit(pipeline, load)
        if limit:
            return Finding(
                "saturated",
                f"{load.queued} requests wait, since {limit}",
                "Send fewer requests at once, raise max_running_requests, or make room for more KV cache.",
            )
        return Finding(
            "starved",
            f"{load.queued} requests wait, although there is room for them: the {pipeline.slots} slots are full{cap}",
            "Raise pp_max_micro_batch_size in sglang_server_args (the module micro_batch lowers it only).",
        )
    if load.requests is None:
        return Finding(
            "unknown",
            "how many requests run is not known, since the server has no metrics",
            "Set enable_metrics: true in sglang_server_args.",
        )
    if not load.running:
        return Finding("idle", "no request runs")
    filled = load.filled(pipeline.slots) or 0
    if load.running < pipeline.pp_size:
        return Finding(
            "underfed",
            f"{load.running} requests cannot fill {pipeline.pp_size} stages",
            "Send more requests at once, or use fewer stages.",
        )
    if filled < pipeline.pp_size:
        return Finding(
            "concentrated",
            f"{load.running} requests lie in {filled} of {pipeline.slots} slots{cap}: "
            f"{pipeline.pp_size - filled} of {pipeline.pp_size} stages have nothing to do at any time",
            f"Set pp_max_micro_batch_size to {-(-load.running // pipeline.slots)} for so many requests.",
        )
    return Finding("balanced", f"{load.running} requests lie in {filled} of {pipeline.slots} slots")


def _limit(pipeline: Pipeline, load: Load) -> str:
    """What leaves no room for another request apart from the cap; empty where nothing does."""
    if load.token_usage >= KV_FULL:
        return f"the KV cache is full ({load.token_usage:.0%})"
    limit, running = pipeline.max_running_requests, load.running
    if running is None:
        running = round(load.per_slot * pipeline.slots)
    if limit and running >= limit:
        return f"max_running_requests ({limit}) run"
    return ""


def read_metrics(text: str) -> Iterable[tuple[str, dict[str, str], float]]:
    """Name, labels and value of each sample in the text form of Prometheus; what is not a number is left out."""
    for line in text.splitlines():
        match = _SAMPLE.match(line.strip())
        if match is None:
            continue
        with contextlib.suppress(ValueError):
            value = float(match["value"])
            if math.isfinite(value):
                yield match["name"], dict(_LABEL.findall(match["labels"] or "")), value


Sample = Sequence["tuple[str, dict[str, str], float]"]


def _greatest(sample: Sample, name: str) -> float:
    """The value of a gauge that each rank exports for itself."""
    return max((value for key, _labels, value in sample if key == name), default=0.0)


def _total(sample: Sample, name: str, paths: re.Pattern[str]) -> float | None:
    """The sum of a gauge over some of the server's paths; None where there is no such gauge."""
    values = [(labels, value) for key, labels, value in sample if key == name]
    if not values:
        return None
    return sum(value for labels, value in values if any(paths.search(label) for label in labels.values()))
