# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The hook that keeps keys out of SGLang's log, run as the unit runs it: by a Python that finds it on PYTHONPATH."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HOOK = Path(__file__).parents[3] / "roles/sglang_server/files"
PROGRAM = """
import logging, sys
logging.basicConfig(stream=sys.stdout, format="[%(asctime)s PP1] %(message)s", datefmt="then", force=True)
logging.getLogger("sglang.srt.entrypoints.engine").warning({message!r}, *{args!r})
"""


def logged(message: str, *args: object) -> str:
    """What a program logs that starts with the hook."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(message=message, args=args)],
        env={**os.environ, "PYTHONPATH": str(HOOK)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.rstrip("\n")


@pytest.mark.parametrize("key", ["plain", "it's", 'say "hi"', "back\\slash", "a, b) c}", "%s %d", "$X # y"])
@pytest.mark.parametrize(
    "message",
    [
        "server_args={arguments!r}",  # 0.5.23
        "server_args=ServerArgs(model_path='m', api_key={key!r}, admin_api_key={key!r}, port=1)",  # before
        '{{"ssl_keyfile_password": {key!r}}}',
    ],
)
def test_keys_do_not_show(message: str, key: str) -> None:
    arguments = {"model_path": "m", "api_key": key, "admin_api_key": key, "port": 1}
    text = logged("%s", message.format(arguments=arguments, key=key))
    assert key not in text
    assert "<secret>" in text


def test_everything_else_is_left_as_it_is() -> None:
    assert logged("api_key is %s, port %d", None, 30000) == "[then PP1] api_key is None, port 30000"
    assert logged("server_args={'api_key': None, 'port': 1}") == "[then PP1] server_args={'api_key': None, 'port': 1}"


def test_a_record_that_cannot_be_formatted_is_still_logged() -> None:
    program = PROGRAM.format(message="%d of %d", args=("x",))
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": str(HOOK)}, capture_output=True, check=True
    )
    assert b"Logging error" in done.stderr
