# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The ssh keys of a cache: one for the user, one for all its hosts, so that a new host is known before it is met."""

from __future__ import annotations

from .cache import Cache, appearing
from .shell import run

USER = "id_ed25519"
HOST = "host_ed25519"
KNOWN_HOSTS = "known_hosts"


def ensure(cache: Cache) -> None:
    """Make the keys, once."""
    with cache.locked("ssh"):
        if cache.ssh.is_dir():
            return
        with appearing(cache.ssh) as draft:
            draft.chmod(0o700)
            for name in (USER, HOST):
                run(
                    [
                        "ssh-keygen",
                        "-q",
                        "-t",
                        "ed25519",
                        "-N",
                        "",
                        "-C",
                        "gpufleet test hosts",
                        "-f",
                        str(draft / name),
                    ]
                )
            kind, key, *_comment = (draft / f"{HOST}.pub").read_text().split()
            (draft / KNOWN_HOSTS).write_text(f"* {kind} {key}\n")
