# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Entry of `python3 tests/support/testhosts_lib`."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

# As a package, so that its modules find each other; instead of its own directory, where they would shadow others.
sys.path[0] = str(Path(__file__).resolve().parents[2])

sys.exit(importlib.import_module("support.testhosts_lib.cli").main())
