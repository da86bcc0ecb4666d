# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stands in for the get-pip.py that ansible-test downloads, so that sanity tests need nothing but the package index.

ansible-test runs it with the Python of an empty virtual environment and with what to install as arguments. Two of them
are options of get-pip.py that pip does not know.
"""

from __future__ import annotations

import subprocess
import sys

GET_PIP_ONLY = {"--no-setuptools", "--no-wheel"}

subprocess.run([sys.executable, "-m", "ensurepip"], check=True, stdout=subprocess.DEVNULL)
wanted = [argument for argument in sys.argv[1:] if argument not in GET_PIP_ONLY]
sys.exit(subprocess.call([sys.executable, "-m", "pip", "install", "--quiet", *wanted]))
