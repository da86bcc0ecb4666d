# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Settings for all tests."""

from __future__ import annotations

import os
from pathlib import Path

import hypothesis
from hypothesis.configuration import set_hypothesis_home_dir
from hypothesis.database import DirectoryBasedExampleDatabase

CACHE = Path(__file__).parents[1] / ".cache" / "hypothesis"

# No deadline: the machine may be busy. In CI the same examples every time, so that a red run is the change's own.
set_hypothesis_home_dir(str(CACHE))
hypothesis.settings.register_profile("here", deadline=None, database=DirectoryBasedExampleDatabase(CACHE / "examples"))
hypothesis.settings.register_profile("ci", deadline=None, database=None, derandomize=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "here")
