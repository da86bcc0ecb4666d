# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The image of a test host: Debian with systemd, sshd and Python, built from packages, without a registry."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from .cache import digest
from .debian import machine_settings, machine_sources
from .podman import Podman
from .shell import TestHostsError, run, say

NAME = "localhost/gpufleet-testhost"

# bookworm on every machine: the wheels are made for its Python 3.11.
SUITE = "bookworm"

PACKAGES = (
    "systemd",
    "systemd-sysv",
    "dbus",
    "python3",
    "python3-venv",
    "python3-requests",
    "iproute2",
    "procps",
    "ca-certificates",
    "openssh-server",
    "rsync",
)

HOOKS = (
    # Every cache has host keys of its own, which are mounted.
    'rm -f "$1"/etc/ssh/ssh_host_*',
    # The apt settings of the machine that built the image.
    'rm -f "$1"/etc/apt/apt.conf.d/99mmdebstrap',
)

CHANGES = ('CMD ["/sbin/init"]', "STOPSIGNAL SIGRTMIN+3")


def reference() -> str:
    """The image's full name; its tag changes with what the image is made from."""
    return f"{NAME}:{digest(part.encode() for part in (SUITE, *PACKAGES, *HOOKS, *CHANGES))}"


def build_command(tarball: Path, sources: Path, settings: Sequence[str]) -> list[str]:
    """The mmdebstrap command that writes the root file system as a tar file."""
    return [
        "mmdebstrap",
        "--quiet",
        "--variant=minbase",
        f"--include={','.join(PACKAGES)}",
        *(f"--aptopt={setting}" for setting in settings),
        *(f"--customize-hook={hook}" for hook in HOOKS),
        SUITE,
        str(tarball),
        str(sources),
    ]


def build(podman: Podman) -> None:
    """Build the image and give it to podman."""
    sources = machine_sources(SUITE)
    if not sources:
        raise TestHostsError(
            f"found no Debian package source under /etc/apt from which to take {SUITE}: add one, "
            "or give `testhosts up` an image of your own with --image (systemd, sshd and python3 have to be in it)"
        )
    say(f"building the image {reference()} (about a minute)")
    with tempfile.TemporaryDirectory(prefix="testhosts-") as room:
        tarball, listing = Path(room, "root.tar"), Path(room, "debian.sources")
        listing.write_text("\n".join(source.deb822() for source in sources))
        run(build_command(tarball, listing, machine_settings()))
        podman.import_image(tarball, reference(), CHANGES)
