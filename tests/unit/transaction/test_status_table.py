# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The table of all hosts: what stands in it, and that it fits whatever stands in it."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pytest
from ansible_collections.gpufleet.sglang.plugins.action.server_status import WIDTH, render
from ansible_collections.gpufleet.sglang.tests.unit.transaction.samples import DOWN, FAILURE, FLEET, server
from hypothesis import given, settings
from hypothesis import strategies as st

NOW = datetime(2026, 11, 30, 3, 20, tzinfo=timezone.utc)
TABLE = """\
SGLang · 6 hosts · 1 of 4 servers ready · 2 not seen                            2026-11-30 03:20 UTC
━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━
  HOST   SERVER  UNIT      SINCE   SGLang  MODEL      PP  CAP  READY                 LAST DEPLOY
✓ gpu-a  kimi    active    13 h    0.5.23  kimi-k2.6   8    4  yes                   #7 Nov 29 14:04
… gpu-b  kimi    active    74 s    0.5.23  kimi-k2.6   8    -  loading               #7 Nov 29 14:04
· gpu-b  glm     inactive  2 d     0.5.23  glm-5       8    -  stopped               #7 Nov 29 14:04
✗ gpu-c  kimi    failed    12 min  0.5.23  kimi-k2.6   8    -  gpu out of memory a…  #7 Nov 29 14:04
· gpu-d  no server
? gpu-e  unreachable
? gpu-f  cannot be looked at
━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━
… gpu-b kimi
    22 of 64 shards, 210.4 GB read
✗ gpu-c kimi gpu_out_of_memory_at_load
    A GPU ran out of memory while the model was loaded: PP3.
    → Raise mem_fraction_static in sglang_server_args, or divide the layers better with
      SGLANG_PP_LAYER_PARTITION in sglang_server_environment.
? gpu-e unreachable
    ssh: connect to host 10.0.0.5 port 22: No route to host
? gpu-f cannot be looked at
    systemctl list-units failed (1): no bus
"""


def drawn(*servers: dict[str, Any]) -> list[str]:
    return render({"gpu-a": {"servers": list(servers)}}, NOW)


def test_a_fleet() -> None:
    assert "\n".join(render(FLEET, NOW)) == TABLE.rstrip("\n")


def test_one_server_that_is_ready_has_no_notes() -> None:
    lines = drawn(server())
    assert len(lines) == 5
    assert lines[0].startswith("SGLang · 1 host · 1 of 1 server ready ")
    assert lines[3].startswith("✓ gpu-a  kimi")


@pytest.mark.parametrize(
    ("parts", "note"),
    [
        ({"restart_owed": True}, "    It runs with other files than there are now: it is owed a restart."),
        ({"restarts": 1}, "    systemd has started it again by itself (1 time)."),
        ({"restarts": 3}, "    systemd has started it again by itself (3 times)."),
        (
            {"changed_files": ["/etc/sglang/kimi/server.yaml", "/etc/sglang/kimi/environment"]},
            "    * configured otherwise than in generation 7: server.yaml, environment",
        ),
    ],
)
def test_what_is_said_of_a_server_that_is_ready(parts: dict[str, Any], note: str) -> None:
    lines = drawn(server(**parts))
    assert lines[-2:] == ["! gpu-a kimi", note]
    assert ("#7* Nov 29 14:04" in lines[3]) == ("changed_files" in parts)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (None, "-"),
        (0.0, "0 s"),
        (59.9, "59 s"),
        (119.9, "119 s"),
        (120.0, "2 min"),
        (7199.0, "119 min"),
        (7200.0, "2 h"),
        (172799.0, "47 h"),
        (172800.0, "2 d"),
        (8640000.0, "100 d"),
    ],
)
def test_ages(seconds: float | None, shown: str) -> None:
    assert f"  active  {shown}  " in drawn(server(since_seconds=seconds))[3].replace("    ", "  ").replace("   ", "  ")


def test_a_server_of_which_little_is_known() -> None:
    unknown = dict.fromkeys(("since_seconds", "version", "model", "pp_size", "port", "generation", "promoted"))
    line = drawn(server(**DOWN, **unknown, state="not-found", phase=""))[3]
    assert line.split() == ["?", "gpu-a", "kimi", "not-found", *["-"] * 7]


def test_a_play_without_hosts() -> None:
    assert render({}, NOW)[0].startswith("SGLang · 0 hosts · 0 of 0 servers ready")


def test_long_names_are_cut_and_the_rest_stays() -> None:
    long = server(name="n" * 60, model="m" * 70, **DOWN, failure={**FAILURE, "cause": "c" * 40})
    lines = render({"gpu-node-0123456789.rack7.example.org": {"servers": [long]}}, NOW)
    assert max(map(len, lines)) == WIDTH
    assert lines[3].endswith("#7 Nov 29 14:04")
    assert lines[3].count("…") == 4


WORDS = st.text(max_size=120)
SERVERS = st.builds(
    server,
    name=WORDS,
    state=st.sampled_from(["active", "activating", "auto-restart", "failed", "not-found", ""]),
    since_seconds=st.one_of(st.none(), st.floats(0, 1e9)),
    restarts=st.integers(0, 10**6),
    version=st.one_of(st.none(), st.text(max_size=12)),
    model=st.one_of(st.none(), WORDS),
    pp_size=st.one_of(st.none(), st.integers(1, 64)),
    ready=st.booleans(),
    detail=WORDS,
    failure=st.one_of(st.none(), st.fixed_dictionaries({"cause": WORDS, "summary": WORDS, "advice": WORDS})),
)


@settings(max_examples=80)
@given(
    st.dictionaries(WORDS, st.builds(lambda servers: {"servers": servers}, st.lists(SERVERS, max_size=3)), max_size=4)
)
def test_whatever_stands_in_it_fits_and_moves_no_cursor(results: dict[str, dict[str, Any]]) -> None:
    for line in render(results, NOW):
        assert len(line) <= WIDTH
        assert line.isprintable()
