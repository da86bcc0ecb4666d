# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This file is private to the collection: it may change without notice.

"""A tar.gz of texts without secrets, to be sent to somebody who helps."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata

from ansible_collections.gpufleet.sglang.plugins.module_utils._readiness.causes import redact

MAX_FILE = 4_000_000
"""Characters of a file in a bundle; of a longer one the end is kept."""


def pack(name: str, files: Mapping[str, str], secrets: Sequence[str]) -> bytes:
    """The files, each line redacted, in a directory ``name``."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for path in sorted(files):
            lines = (redact(line, secrets) for line in files[path][-MAX_FILE:].splitlines())
            content = "".join(f"{line}\n" for line in lines).encode("utf-8", "replace")
            member = tarfile.TarInfo(f"{name}/{path}")
            member.size, member.mode = len(content), 0o600
            archive.addfile(member, io.BytesIO(content))
    return stream.getvalue()


def packages() -> Iterable[str]:
    """What is installed for this Python: under SGLang's, what SGLang runs with."""
    found = {f"{item.metadata['Name']}=={item.version}" for item in metadata.distributions()}
    return sorted(found, key=str.lower)
