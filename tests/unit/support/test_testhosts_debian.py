# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which apt sources a test host's image is made from."""

from __future__ import annotations

from pathlib import Path

from ansible_collections.gpufleet.sglang.tests.support.testhosts_lib.debian import (
    Source,
    for_suite,
    machine_sources,
    parse_list,
    parse_sources,
)

KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
DEBIAN = Source(("http://mirror.example/debian",), ("bookworm", "bookworm-updates"), ("main",), KEYRING)

DEB822 = f"""\
Types: deb deb-src
# the nearest mirror
URIs: http://mirror.example/debian
Suites: trixie trixie-updates trixie-backports
Components: main contrib
Signed-By: {KEYRING}

Types: deb
URIs: http://mirror.example/security
Suites: trixie-security
Components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 mQINBGPL
 -----END PGP PUBLIC KEY BLOCK-----

Types: deb-src
URIs: http://mirror.example/debian
Suites: trixie
Components: main

Types: deb
Enabled: no
URIs: http://disabled.example/debian
Suites: trixie
Components: main
"""

ONE_LINE = f"""\
# deb http://commented.example/debian trixie main
deb [arch=amd64 signed-by={KEYRING}] http://mirror.example/debian trixie main contrib # nearest
deb-src http://mirror.example/debian trixie main
deb http://mirror.example/security trixie-security main
deb [trusted=yes] file:/srv/own ./
"""


def test_deb822_sources_are_read() -> None:
    archive, security = parse_sources(DEB822)
    assert archive == Source(
        ("http://mirror.example/debian",),
        ("trixie", "trixie-updates", "trixie-backports"),
        ("main", "contrib"),
        KEYRING,
    )
    assert security.suites == ("trixie-security",)
    assert security.signed_by.splitlines()[1] == " -----BEGIN PGP PUBLIC KEY BLOCK-----"


def test_one_line_sources_are_read() -> None:
    archive, security, own = parse_list(ONE_LINE)
    assert archive == Source(("http://mirror.example/debian",), ("trixie",), ("main", "contrib"), KEYRING)
    assert security == Source(("http://mirror.example/security",), ("trixie-security",), ("main",))
    assert own.trusted == "yes"


def test_a_written_source_reads_back_the_same() -> None:
    for source in parse_sources(DEB822):
        assert list(parse_sources(source.deb822())) == [source]


def test_another_release_is_taken_from_the_same_mirror() -> None:
    (archive, security) = for_suite(parse_sources(DEB822), ("trixie", "stable"), "bookworm")
    assert archive == DEBIAN
    assert security.suites == ("bookworm-security",)
    assert security.uris == ("http://mirror.example/security",)


def test_suites_may_be_called_stable() -> None:
    source = Source(("http://mirror.example/debian",), ("stable", "stable-updates"), ("main",))
    (found,) = for_suite([source], ("trixie", "stable"), "bookworm")
    assert found.suites == ("bookworm", "bookworm-updates")


def test_repositories_of_others_are_left_out() -> None:
    others = [
        Source(("http://other.example/deb",), ("bookworm",), ("main",), "/etc/apt/keyrings/other.gpg"),
        Source(("http://other.example/deb",), ("bookworm",), ("stable",)),
        Source(("http://other.example/deb",), ("bookworm-pgdg",), ("main",)),
        Source(("http://other.example/deb",), ("nodistro",), ("main",)),
    ]
    assert for_suite([*others, DEBIAN, DEBIAN], ("bookworm",), "bookworm") == [DEBIAN]


def test_both_formats_of_a_machine_are_read(tmp_path: Path) -> None:
    parts = tmp_path / "apt" / "sources.list.d"
    parts.mkdir(parents=True)
    (tmp_path / "os-release").write_text('NAME="Debian"\nVERSION_CODENAME=trixie\n')
    (tmp_path / "apt" / "sources.list").write_text("deb http://old.example/debian trixie main\n")
    (parts / "debian.sources").write_text(DEB822)
    (parts / "saved.sources.bak").write_text(DEB822.replace("mirror", "saved"))
    found = [uri for source in machine_sources("bookworm", etc=tmp_path) for uri in source.uris]
    assert found == ["http://old.example/debian", "http://mirror.example/debian", "http://mirror.example/security"]
