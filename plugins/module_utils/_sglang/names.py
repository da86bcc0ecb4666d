# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This file is private to the collection: it may change without notice.

"""The names of SGLang's arguments: one spelling for each, whichever the user, a file or a server has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# The names that SGLang parsers (0.4.6 to 0.5.23) take for one argument, by the one that each of these releases with
# the argument knows. tests/contract/sglang/test_names.py compares them. What was renamed later is in releases.py.
_SPELLINGS: Mapping[str, tuple[str, ...]] = {
    "attn-cp-size": ("attention-context-parallel-size",),
    "attn-dp-size": ("attention-data-parallel-size",),
    "cuda-graph-prefill-max-context": ("context-bucket",),
    "dcp-size": ("decode-context-parallel-size",),
    "dist-init-addr": ("nccl-init-addr",),
    "dp-size": ("data-parallel-size", "dp"),
    "enable-hierarchical-cache": ("enable-hicache",),
    "ep-size": ("expert-parallel-size", "ep"),
    "grpc-http-sidecar-port": ("smg-http-sidecar-port",),
    "hisparse-config": ("hierarchical-sparse-attention-extra-config",),
    "model-path": ("model",),
    "moe-dp-size": ("moe-data-parallel-size",),
    "pp-size": ("pipeline-parallel-size", "pp"),
    "speculative-draft-model-path": ("speculative-draft-model",),
    "tp-size": ("tensor-parallel-size", "tp"),
}
ALIASES: Mapping[str, str] = {alias: name for name, aliases in _SPELLINGS.items() for alias in aliases}


def canonical(name: str) -> str:
    """The one name of an argument, as in server.yaml: ``--pipeline_parallel_size`` and ``pp`` are ``pp-size``."""
    key = str(name).removeprefix("--").replace("_", "-")
    return ALIASES.get(key, key)


def canonical_arguments(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a server.yaml holds, under the one name of each argument. Of two spellings the last counts, as in SGLang."""
    return {canonical(name): value for name, value in config.items()}
