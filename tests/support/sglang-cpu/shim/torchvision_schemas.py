# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Lets a CUDA build of torchvision be imported beside a CPU build of torch.

Its operators cannot be loaded there, and its import then fails on the first one that it describes. The schemas alone
satisfy it; nothing that SGLang does with a text model calls the operators.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import torch  # type: ignore[import-not-found,unused-ignore]

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)

# The declarations last as long as this object.
_library: Any = None


def declare() -> None:
    """Declare the schemas, unless torchvision's own operators can be loaded."""
    global _library
    if _library is None and not _operators_load():
        _library = torch.library.Library("torchvision", "DEF")
        for schema in _SCHEMAS:
            _library.define(schema)


def _operators_load() -> bool:
    spec = importlib.util.find_spec("torchvision")
    for place in (spec.submodule_search_locations if spec else None) or ():
        try:
            torch.ops.load_library(str(Path(place, "_C.so")))
        except OSError:
            continue
        return True
    return False
