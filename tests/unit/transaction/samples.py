# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the module returns of a server, for tests that change a part of it."""

from __future__ import annotations

from typing import Any

FAILURE = {
    "cause": "gpu_out_of_memory_at_load",
    "summary": "a GPU ran out of memory while the model was loaded: PP3",
    "evidence": [],
    "advice": "Raise mem_fraction_static in sglang_server_args, or divide the layers better with "
    "SGLANG_PP_LAYER_PARTITION in sglang_server_environment.",
}
SERVER: dict[str, Any] = {
    "name": "kimi",
    "unit": "sglang-kimi.service",
    "state": "active",
    "since": "2026-11-29T14:02:11+00:00",
    "since_seconds": 47893.2,
    "restarts": 0,
    "version": "0.5.23",
    "model": "kimi-k2.6",
    "port": 30000,
    "pp_size": 8,
    "pp_max_micro_batch_size": 4,
    "ready": True,
    "phase": "ready",
    "detail": "",
    "failure": None,
    "restart_owed": False,
    "generation": 7,
    "promoted": "2026-11-29T14:04:40+00:00",
    "changed_files": [],
    "watch": None,
}


def server(**parts: Any) -> dict[str, Any]:
    """A server that is ready, apart from *parts*."""
    return {**SERVER, **parts}


DOWN = {"ready": False, "pp_max_micro_batch_size": None}
FLEET: dict[str, dict[str, Any]] = {
    "gpu-a": {"servers": [server()]},
    "gpu-b": {
        "servers": [
            server(**DOWN, phase="loading", detail="22 of 64 shards, 210.4 GB read", since_seconds=74.0),
            server(**DOWN, name="glm", model="glm-5", state="inactive", phase="stopped", since_seconds=200000.0),
        ]
    },
    "gpu-c": {"servers": [server(**DOWN, state="failed", phase="loading", failure=FAILURE, since_seconds=720.0)]},
    "gpu-d": {"servers": []},
    "gpu-e": {
        "unreachable": True,
        "msg": 'Task failed: Data could not be sent to remote host "10.0.0.5". Make sure this host can be reached over '
        "ssh: ssh: connect to host 10.0.0.5 port 22: No route to host\nmore",
    },
    "gpu-f": {"msg": "Task failed: Module failed: systemctl list-units failed (1): no bus", "failed": False},
}
