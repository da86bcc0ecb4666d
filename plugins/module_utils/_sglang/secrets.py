# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This file is private to the collection: it may change without notice.

"""Keeps keys, tokens and passwords out of what is returned: by their names, and as values wherever they are."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from ansible_collections.gpufleet.sglang.plugins.module_utils._sglang.config import HIDDEN, is_secret_variable

# The last word counts, or the last but a letter: api_key, watermark_key_b, but not tokenizer_path or token_capacity.
_SECRET_NAME = re.compile(
    r"(?:\A|_)(?:keys?|token|secrets?|password|passwd|passphrase|credentials?|authorization)(?:_[a-z0-9])?\Z"
)
# Counted or waited for, not hidden: time_to_first_token.
_COUNT = re.compile(r"(?:first|per)_token\Z")
_IN_URL = re.compile(r"(?<=://)[^\s/@]*:[^\s/@]*(?=@)")
_IN_HEADER = re.compile(r"(?i)\b(bearer|basic)\s+[^\s'\"]+")


def is_secret_name(name: str) -> bool:
    """Whether an argument, a variable or a key of some JSON is a secret, as far as its name tells."""
    if name.isupper():
        return is_secret_variable(name)
    word = name.replace("-", "_").lower()
    return bool(_SECRET_NAME.search(word)) and not _COUNT.search(word)


def without_secrets(value: Any, secrets: Iterable[str] = ()) -> Any:
    """A copy of *value* (as JSON gives it) without what is called like a secret, and without *secrets* in any text."""
    hidden = tuple(secrets)
    if isinstance(value, Mapping):
        return {
            hide(str(key), hidden): without_secrets(item, hidden)
            for key, item in value.items()
            if not is_secret_name(str(key))
        }
    if isinstance(value, (list, tuple)):
        return [without_secrets(item, hidden) for item in value]
    if isinstance(value, str):
        return hide(_json_without_secrets(value), hidden)
    return value


def hide(text: str, secrets: Iterable[str]) -> str:
    """*text* without the *secrets*, also as Python, JSON and a shell write them, and without passwords in URLs."""
    spellings = {spelling for secret in secrets if secret for spelling in _spellings(secret)}
    for spelling in sorted(spellings, key=len, reverse=True):
        text = text.replace(spelling, HIDDEN)
    return _IN_HEADER.sub(rf"\1 {HIDDEN}", _IN_URL.sub(HIDDEN, text))


def known_secrets(value: Any, secret: bool = False) -> set[str]:
    """The texts in *value* that are secrets, all of them where it is one itself, otherwise those named like one."""
    if isinstance(value, Mapping):
        return {
            text for name, item in value.items() for text in known_secrets(item, secret or is_secret_name(str(name)))
        }
    if isinstance(value, (list, tuple)):
        return {text for item in value for text in known_secrets(item, secret)}
    if isinstance(value, str):
        content = _json(value)
        inside = set() if content is None else known_secrets(content, secret)
        return inside | ({value} if secret and value else set())
    return {str(value)} if secret and value is not None and not isinstance(value, bool) else set()


def _spellings(secret: str) -> set[str]:
    return {
        secret,
        repr(secret)[1:-1],
        json.dumps(secret)[1:-1],
        json.dumps(secret, ensure_ascii=False)[1:-1],
        shlex.quote(secret),
    }


def _json(text: str) -> Any:
    """What is in a text that is a list or a mapping as JSON has it; None for any other."""
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        return json.loads(text)
    except ValueError:
        return None


def _json_without_secrets(text: str) -> str:
    """Arguments that take JSON are given as text: what has a name there is judged by it, too."""
    content = _json(text)
    clean = without_secrets(content)
    return text if clean == content else json.dumps(clean, ensure_ascii=False)
