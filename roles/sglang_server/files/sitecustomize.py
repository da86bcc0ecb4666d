# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Keeps the keys of an SGLang server out of its log.

SGLang logs its resolved arguments, keys included, when it starts. Python imports this file before SGLang, in each of
its processes (PYTHONPATH in the unit), and every record that is logged afterwards passes through it. Formats, levels
and the rank prefixes stay SGLang's own.
"""

from __future__ import annotations

import logging
import re
from typing import Any, Callable

# "api_key": '...' as Python or JSON writes a dictionary, api_key='...' as Python writes a data class.
_KEY = re.compile(
    r"""(?P<name>(?:api_key|keyfile_password)["']?\s*[:=]\s*)(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")""", re.DOTALL
)
_NAMES = ("api_key", "keyfile_password")


def _redacting(make_record: Callable[..., logging.LogRecord]) -> Callable[..., logging.LogRecord]:
    def make(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = make_record(*args, **kwargs)
        try:
            text = record.getMessage()
            if any(name in text for name in _NAMES):
                record.msg, record.args = _KEY.sub(r"\g<name>'<secret>'", text), None
        except Exception:  # noqa: BLE001, S110 (a record that cannot be formatted is logging's to report)
            pass
        return record

    return make


logging.setLogRecordFactory(_redacting(logging.getLogRecordFactory()))
