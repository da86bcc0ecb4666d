# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Releases: how they order, and what each of them calls things."""

from __future__ import annotations

import pytest
from ansible_collections.gpufleet.sglang.plugins.module_utils._sglang.releases import (
    ARGUMENTS,
    FAULTS,
    FEATURES,
    NEWEST_KNOWN,
    ReleaseError,
    argument_name,
    first_release_with,
    has_feature,
    known_faults,
    kv_cache_dtype_name,
    parse_release,
)


def test_order() -> None:
    names = [
        *("0.4.6.post5", "0.5.2", "0.5.9.dev3", "0.5.9rc1", "0.5.9rc2", "0.5.9", "0.5.9.post1", "0.5.9.post2"),
        *("0.5.10", "0.5.15.post1", "0.5.23", "1.0"),
    ]
    releases = [parse_release(name) for name in names]
    shuffled = releases[::-1]
    assert sorted(shuffled) == releases
    assert len(set(releases)) == len(names)


@pytest.mark.parametrize("text", ["v0.5.12.post1-cu130", "0.5.12.post1+local", " 0.5.12.post1 ", "0.5.12post1"])
def test_other_ways_to_write_it(text: str) -> None:
    assert parse_release(text) == parse_release("0.5.12.post1")


@pytest.mark.parametrize("text", ["", "latest", "5", "0.5.x", "0.5.23; rm", "0.5.\n23", "9" * 40 + ".1"])
def test_no_release(text: str) -> None:
    with pytest.raises(ReleaseError, match=r"expected a release such as 0.5.15.post1, got"):
        parse_release(text)


@pytest.mark.parametrize(
    ("release", "cap", "graphs", "depth"),
    [
        ("0.4.10.post2", "max_micro_batch_size", "cuda_graph_max_bs", None),
        ("0.5.2", "max_micro_batch_size", "cuda_graph_max_bs", None),
        ("0.5.3.post3", "pp_max_micro_batch_size", "cuda_graph_max_bs", None),
        ("0.5.6.post2", "pp_max_micro_batch_size", "cuda_graph_max_bs", None),
        ("0.5.7", "pp_max_micro_batch_size", "cuda_graph_max_bs", "pp_async_batch_depth"),
        ("0.5.14", "pp_max_micro_batch_size", "cuda_graph_max_bs", "pp_async_batch_depth"),
        ("0.5.15", "pp_max_micro_batch_size", "cuda_graph_max_bs_decode", "pp_async_batch_depth"),
        ("0.5.23", "pp_max_micro_batch_size", "cuda_graph_max_bs_decode", "pp_async_batch_depth"),
    ],
)
def test_argument_names(release: str, cap: str, graphs: str, depth: str | None) -> None:
    named = [
        argument_name(name, parse_release(release))
        for name in (
            "pp_max_micro_batch_size",
            "cuda_graph_max_bs_decode",
            "pp_async_batch_depth",
            "mem_fraction_static",
        )
    ]
    assert named == [cap, graphs, depth, "mem_fraction_static"]


def test_kv_cache_types() -> None:
    assert kv_cache_dtype_name("bf16", parse_release("0.5.2")) == "auto"
    assert kv_cache_dtype_name("bf16", parse_release("0.5.7")) == "bf16"
    assert kv_cache_dtype_name("fp8_e4m3", parse_release("0.5.2")) == "fp8_e4m3"


def test_first_release() -> None:
    assert first_release_with("pp_async_batch_depth") == "0.5.7"
    assert first_release_with("pp_max_micro_batch_size") is None
    assert first_release_with("pp_size") is None


@pytest.mark.parametrize(
    ("feature", "last_without", "first_with"),
    [
        ("remainder_on_last_ranks", "0.5.5.post3", "0.5.6"),
        ("limit_divided_by_dp", "0.4.9.post6", "0.5.3"),
        ("ready_endpoint", "0.5.19", "0.5.20"),
        ("info_endpoints", "0.5.5", "0.5.6"),
        ("micro_batch_rejection_reported", "0.5.19", "0.5.23"),
    ],
)
def test_features(feature: str, last_without: str, first_with: str) -> None:
    assert not has_feature(feature, parse_release(last_without))
    assert has_feature(feature, parse_release(first_with))


def test_the_stall_of_half_prefilled_requests() -> None:
    def stalls(release: str) -> bool:
        return any("half-prefilled" in fault.what for fault in known_faults(parse_release(release), ("pipeline",)))

    known = {name: stalls(name) for name in ("0.5.6.post2", "0.5.9", "0.5.10.post1", "0.5.11")}
    assert known == {"0.5.6.post2": False, "0.5.9": True, "0.5.10.post1": True, "0.5.11": False}
    assert known_faults(parse_release("0.5.9"), ()) == []


def test_tables_name_real_releases() -> None:
    spans = [entry.span for names in ARGUMENTS.values() for entry in names]
    spans += [fault.span for fault in FAULTS]
    spans += list(FEATURES.values())
    for span in spans:
        bounds = [parse_release(bound) for bound in (span.since, span.before) if bound]
        assert bounds == sorted(bounds)
        assert all(bound <= parse_release(NEWEST_KNOWN) for bound in bounds)
