# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This file is private to the collection: it may change without notice.

"""What changed in which SGLang release, as data.

Every table has the same two columns: *since* (the first release that has it) and *before* (the first release that no
longer has it); None means "as far back / forward as is known". Where a change happened between two releases that were
read, the later one is named, so that an argument is never given to a release that may lack it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass

# The newest release the tables below were checked against; used where no release is named.
NEWEST_KNOWN = "0.5.23"

# The first release without a known pipeline-parallel fault that changes or loses output.
RECOMMENDED = "0.5.16"


class ReleaseError(ValueError):
    """A release was named in a way that cannot be compared."""


@functools.total_ordering
@dataclass(frozen=True)
class Release:
    """A released version, ordered as packages are: dev < rc < final < post."""

    number: tuple[int, ...]
    stage: int  # -2 dev, -1 pre-release, 0 final, 1 post
    serial: int
    text: str

    @property
    def _key(self) -> tuple[tuple[int, ...], int, int]:
        return (self.number, self.stage, self.serial)

    def __lt__(self, other: Release) -> bool:
        return self._key < other._key

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Release) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __str__(self) -> str:
        return self.text


# Container tags add a suffix ("v0.5.12.post1-cu130"), source builds a local part ("0.5.9.dev12+g1a2b3c"): neither
# orders.
_VERSION = re.compile(
    r"v?(?P<number>\d{1,6}(?:\.\d{1,6}){1,3})(?:\.?(?P<stage>dev|a|b|rc|post)(?P<serial>\d{1,9})?)*(?:[-+][0-9A-Za-z.+_-]*)?"
)
_STAGES = {"dev": -2, "a": -1, "b": -1, "rc": -1, "post": 1}


@functools.lru_cache(maxsize=256)
def parse_release(text: str) -> Release:
    """Return the release that *text* names ("0.5.15.post1"); raise ReleaseError when it names none."""
    match = _VERSION.fullmatch(text.strip())
    if match is None:
        raise ReleaseError(f"sglang_version: expected a release such as 0.5.15.post1, got {text[:60]!r}")
    number = tuple(int(part) for part in match["number"].split("."))
    number += (0,) * (4 - len(number))
    return Release(number, _STAGES.get(match["stage"] or "", 0), int(match["serial"] or 0), text.strip())


@dataclass(frozen=True)
class Span:
    """The releases from *since* on, up to but without *before*."""

    since: str | None = None
    before: str | None = None

    def __contains__(self, release: Release) -> bool:
        return (self.since is None or release >= parse_release(self.since)) and (
            self.before is None or release < parse_release(self.before)
        )


@dataclass(frozen=True)
class Name:
    """What an argument is called in a span of releases."""

    name: str
    span: Span


# The arguments that a plan sets and that are not the same in every release, under their newest name.
ARGUMENTS: Mapping[str, tuple[Name, ...]] = {
    "pp_max_micro_batch_size": (
        Name("max_micro_batch_size", Span(before="0.5.3")),
        Name("pp_max_micro_batch_size", Span(since="0.5.3")),
    ),
    "cuda_graph_max_bs_decode": (
        Name("cuda_graph_max_bs", Span(before="0.5.15")),
        Name("cuda_graph_max_bs_decode", Span(since="0.5.15")),
    ),
    "pp_async_batch_depth": (Name("pp_async_batch_depth", Span(since="0.5.7")),),
}

# KV cache types that an older release knows by another name, or only as its default.
KV_CACHE_DTYPES: Mapping[str, tuple[Name, ...]] = {
    "bfloat16": (Name("auto", Span(before="0.5.5")), Name("bfloat16", Span(since="0.5.5"))),
    "bf16": (Name("auto", Span(before="0.5.5")), Name("bf16", Span(since="0.5.5"))),
}

# Behaviour, endpoints and entry points by release.
FEATURES: Mapping[str, Span] = {
    "pipeline_parallel": Span(since="0.4.6"),
    "config_file": Span(since="0.5.3"),
    "serve_command": Span(since="0.5.6.post2"),
    "health_generates": Span(since="0.5.3"),
    "info_endpoints": Span(since="0.5.6"),
    "admin_api_key": Span(since="0.5.8"),
    "loads_endpoint": Span(since="0.5.9"),
    "ready_endpoint": Span(since="0.5.20"),
    "exit_zero_after_sigterm": Span(since="0.5.19"),
    "micro_batch_rejection_reported": Span(since="0.5.23"),
    "micro_batch_validated": Span(since="0.5.11"),
    "limit_divided_by_dp": Span(since="0.5.3"),
    "remainder_on_last_ranks": Span(since="0.5.6"),
    "mixed_chunk_with_pipeline": Span(since="0.5.11"),
}


@dataclass(frozen=True)
class Fault:
    """A known fault of a span of releases.

    *needs* names what must be in use for it to matter: "pipeline", "depth" or "metrics".
    """

    span: Span
    needs: str
    severity: str
    what: str
    advice: str


FAULTS: tuple[Fault, ...] = (
    Fault(
        Span(since="0.5.9", before="0.5.11"),
        "pipeline",
        "warning",
        "a half-prefilled request is not continued while its slot or the request pool is full: it stalls, and hangs "
        "for ever when it holds the last row itself",
        "use SGLang 0.5.11 or later",
    ),
    Fault(
        Span(before="0.5.16"),
        "pipeline",
        "warning",
        "structured output (tool calls, JSON schemas) is unusable, and the triton attention backend fails on every "
        "rank but the first, when the model is split into stages",
        "use SGLang 0.5.16 or later; before that, set attention_backend to flashinfer and do without tool calls",
    ),
    Fault(
        Span(before="0.5.23"),
        "pipeline",
        "info",
        "a request in the middle of its prefill is counted twice, which can hold the number of running requests at one "
        "below max_running_requests",
        "use SGLang 0.5.23, or allow one request more",
    ),
    Fault(
        Span(),
        "metrics",
        "info",
        "/v1/loads and sglang:num_running_reqs show one slot of the pipeline, not the whole server",
        "do not scale by them",
    ),
)


@dataclass(frozen=True)
class ModelClass:
    """From which release on a model class can be loaded, and from which on it can be split into stages."""

    since: str
    pipeline_since: str


MODEL_CLASSES: Mapping[str, ModelClass] = {
    "KimiK25ForConditionalGeneration": ModelClass(since="0.5.9", pipeline_since="0.5.10"),
}


def argument_name(argument: str, release: Release) -> str | None:
    """Return what *release* calls *argument* (given under its newest name), or None where the release lacks it."""
    return _resolve(ARGUMENTS, argument, release)


def kv_cache_dtype_name(dtype: str, release: Release) -> str:
    """Return the value that asks *release* for a KV cache of *dtype*."""
    return _resolve(KV_CACHE_DTYPES, dtype, release) or "auto"


def _resolve(table: Mapping[str, tuple[Name, ...]], key: str, release: Release) -> str | None:
    if key not in table:
        return key
    return next((entry.name for entry in table[key] if release in entry.span), None)


def has_feature(feature: str, release: Release) -> bool:
    """Say whether *release* behaves as *feature* (a key of FEATURES) says."""
    return release in FEATURES[feature]


def known_faults(release: Release, needs: tuple[str, ...]) -> list[Fault]:
    """Return the faults of *release* that matter to a server that uses what *needs* names."""
    return [fault for fault in FAULTS if fault.needs in needs and release in fault.span]


def first_release_with(argument: str) -> str | None:
    """Return the first release that knows *argument* under any name, or None where every known release does."""
    return ARGUMENTS[argument][0].span.since if argument in ARGUMENTS else None
