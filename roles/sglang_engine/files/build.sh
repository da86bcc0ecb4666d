#!/bin/sh
# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Builds a virtual environment, unless it is complete.
# Usage: build.sh VENV PYTHON REQUIREMENTS MARKER [ARGUMENTS OF PIP]
set -eu
umask 022
venv=$1 python=$2 requirements=$3 marker=$4
shift 4

# A lock that dies with this process: who comes second waits, and finds the engine complete.
exec 9<"${venv%/*}"
flock --timeout 3600 9 || {
    echo "Another run has been building in ${venv%/*} for an hour: see what it does, and run this again." >&2
    exit 75
}
if [ -e "$venv/engine.json" ]; then
    exit 0
fi

# What an aborted run left is not to be trusted.
"$python" -m venv --clear "$venv"
printf '%s\n' "$requirements" >"$venv/requirements.txt"
"$venv/bin/python" -m pip install --no-input --disable-pip-version-check --no-cache-dir --no-color --quiet \
    --requirement "$venv/requirements.txt" "$@"

# Written last: an engine without this file is one that was cut short.
printf '%s\n' "$marker" >"$venv/engine.json.new"
mv "$venv/engine.json.new" "$venv/engine.json"
