# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Debian packages through whatever apt sources this machine has."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from .shell import TestHostsError, attempt, run, say

PACKAGES = (
    "podman",
    "crun",
    "netavark",
    "aardvark-dns",
    "mmdebstrap",
    "nftables",
    "iptables",
    "iproute2",
    "openssh-client",
    "python3-venv",
)

# Only these pockets: an image should hold what a freshly installed host would hold.
_POCKETS = ("", "-updates", "-security")

# apt settings without which this machine could not download; mmdebstrap's apt does not read this machine's apt.conf.d.
_NEEDED_SETTING = re.compile(r"^Acquire::(https?::|Retries |Check-Valid-Until |Check-Date )")


@dataclass(frozen=True)
class Source:
    """One apt source of binary packages."""

    uris: tuple[str, ...]
    suites: tuple[str, ...]
    components: tuple[str, ...]
    signed_by: str = ""
    trusted: str = ""

    def deb822(self) -> str:
        """The stanza of a .sources file."""
        fields = {
            "Types": "deb",
            "URIs": " ".join(self.uris),
            "Suites": " ".join(self.suites),
            "Components": " ".join(self.components),
            "Signed-By": self.signed_by,
            "Trusted": self.trusted,
        }
        return "".join(f"{name}: {value}\n" for name, value in fields.items() if value)


def parse_sources(text: str) -> Iterator[Source]:
    """The sources of a deb822 file (`.sources`). Disabled ones and source packages are left out."""
    for stanza in re.split(r"\n\s*\n", text):
        fields: dict[str, str] = {}
        name = ""
        for line in stanza.splitlines():
            if line.startswith("#"):
                continue
            if line[:1] in (" ", "\t") and name:
                fields[name] += f"\n{line}"
            elif ":" in line:
                name, value = line.split(":", 1)
                name = name.lower()
                fields[name] = value.strip()
        if "deb" in fields.get("types", "").split() and fields.get("enabled", "yes").lower() != "no":
            yield Source(
                uris=tuple(fields.get("uris", "").split()),
                suites=tuple(fields.get("suites", "").split()),
                components=tuple(fields.get("components", "").split()),
                signed_by=fields.get("signed-by", ""),
                trusted=fields.get("trusted", ""),
            )


def parse_list(text: str) -> Iterator[Source]:
    """The sources of a one-line-per-source file (`.list`)."""
    for line in text.splitlines():
        match = re.match(
            r"deb\s+(?:\[(?P<options>[^]]*)\]\s+)?(?P<uri>\S+)\s+(?P<suite>\S+)(?P<components>[^#]*)", line.strip()
        )
        if match:
            options = dict(option.split("=", 1) for option in (match["options"] or "").split() if "=" in option)
            yield Source(
                uris=(match["uri"],),
                suites=(match["suite"],),
                components=tuple(match["components"].split()),
                signed_by=options.get("signed-by", ""),
                trusted=options.get("trusted", ""),
            )


def for_suite(sources: Iterable[Source], codenames: Sequence[str], wanted: str) -> list[Source]:
    """Debian's own sources among `sources`, for the release `wanted` instead of this machine's.

    `codenames` are the names by which this machine's sources call its release, such as ("trixie", "stable").
    Other people's repositories are left out: they have another key, other components or other suites.
    """
    renamed = {f"{name}{pocket}": f"{wanted}{pocket}" for name in codenames for pocket in _POCKETS}
    found = []
    for source in sources:
        suites = tuple(renamed[suite.rstrip("/")] for suite in source.suites if suite.rstrip("/") in renamed)
        ours = not source.signed_by or "debian-archive-keyring" in source.signed_by or "BEGIN PGP" in source.signed_by
        if suites and ours and "main" in source.components:
            adapted = replace(source, suites=suites, components=("main",))
            if adapted not in found:
                found.append(adapted)
    return found


def machine_sources(wanted: str, etc: Path = Path("/etc")) -> list[Source]:
    """The apt sources with which this machine gets the Debian release `wanted`."""
    everything: list[Source] = []
    parts = etc / "apt/sources.list.d"
    for path in [etc / "apt/sources.list", *sorted(parts.glob("*.list")), *sorted(parts.glob("*.sources"))]:
        if path.is_file():
            parse = parse_sources if path.suffix == ".sources" else parse_list
            everything.extend(parse(path.read_text(errors="replace")))
    codename = _os_release(etc).get("VERSION_CODENAME", "")
    return for_suite(everything, (codename, "stable", "oldstable", "testing"), wanted)


def machine_settings() -> list[str]:
    """This machine's apt settings (`Name "value";`) that downloads need: proxies, certificates, validity checks."""
    return [line for line in run(["apt-config", "dump"]).splitlines() if _NEEDED_SETTING.match(line)]


def install_missing() -> None:
    """Install what testhosts itself needs. Root on Debian only; anybody else is told what is missing."""
    installed = _installed()
    missing = [name for name in PACKAGES if name not in installed]
    if not missing:
        return
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        if shutil.which("podman"):
            return  # the user's own podman, from wherever it came; mmdebstrap is asked for when an image is built
        raise TestHostsError(f"podman is missing: install these packages (Debian's names): {' '.join(missing)}")
    say(f"installing {' '.join(missing)}")
    # Another apt or dpkg may be at work on this machine: wait for its lock.
    apt = ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-q", "-y", "-o", "DPkg::Lock::Timeout=600"]
    run([*apt, "update"])
    run([*apt, "install", "--no-install-recommends", *missing])


def _installed() -> set[str]:
    if not shutil.which("dpkg-query"):
        return set()
    _code, out, _err = attempt(["dpkg-query", "-W", "-f", "${db:Status-Abbrev}${Package}\\n", *PACKAGES])
    return {line[3:] for line in out.splitlines() if line.startswith("ii ")}


def _os_release(etc: Path) -> dict[str, str]:
    path = etc / "os-release"
    lines = path.read_text().splitlines() if path.is_file() else []
    return {name: value.strip('"') for name, _equals, value in (line.partition("=") for line in lines) if value}
