# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where testhosts keeps its things, and that they are complete or absent."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.gpufleet.sglang.tests.support.testhosts_lib.cache import (
    Cache,
    appearing,
    digest,
    write_if_changed,
)


@pytest.mark.parametrize(
    ("environ", "root"),
    [
        ({"GPUFLEET_CACHE": "/srv/c", "HOME": "/home/a"}, "/srv/c"),
        ({"XDG_CACHE_HOME": "/home/a/x", "HOME": "/home/a"}, "/home/a/x/gpufleet"),
        ({"GPUFLEET_CACHE": "", "HOME": "/home/a"}, "/home/a/.cache/gpufleet"),
    ],
)
def test_place_of_the_cache(environ: dict[str, str], root: str) -> None:
    assert Cache.of(environ).root == Path(root)


def test_digest_tells_boundaries_apart() -> None:
    assert digest([b"ab", b"c"]) != digest([b"a", b"bc"])
    assert digest([b"ab", b"c"]) == digest([b"ab", b"c"])


def test_directory_appears_complete(tmp_path: Path) -> None:
    target = tmp_path / "wheels" / "key"
    with appearing(target) as draft:
        (draft / "a.whl").write_text("a")
        assert not target.exists()
    assert [path.name for path in target.iterdir()] == ["a.whl"]
    assert list(target.parent.iterdir()) == [target]


def test_directory_stays_absent_when_making_it_fails(tmp_path: Path) -> None:
    def make() -> None:
        with appearing(tmp_path / "key") as draft:
            (draft / "a.whl").write_text("a")
            raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        make()
    assert list(tmp_path.iterdir()) == []


def test_unchanged_file_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "room" / "inventory.yml"
    assert write_if_changed(path, "a")
    before = path.stat().st_mtime_ns
    assert not write_if_changed(path, "a")
    assert path.stat().st_mtime_ns == before
    assert write_if_changed(path, "b")
    assert [entry.name for entry in path.parent.iterdir()] == ["inventory.yml"]


def test_lock_is_free_again_after_its_block(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cache = Cache(tmp_path)
    for _time in range(2):
        with cache.locked("image"):
            pass
    assert capsys.readouterr().out == ""
