# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Generations: what is promoted comes back as it was, whole or not at all."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from ansible_collections.gpufleet.sglang.plugins.module_utils._transaction.generations import GenerationError, Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A server with three files."""
    files = tuple(tmp_path / "etc" / name for name in ("sglang-kimi.service", "server.yaml", "environment"))
    files[0].parent.mkdir()
    for path in files:
        path.write_text(f"{path.name} 1\n", encoding="utf-8")
    files[1].chmod(0o640)
    return Store(tmp_path / "store" / "kimi", files)


def change(store: Store, text: str) -> None:
    """Another server.yaml."""
    store.files[1].write_text(text, encoding="utf-8")


def test_a_promotion_is_needed_once_for_each_change(store: Store) -> None:
    assert store.needs_promotion()
    assert store.promote(keep=5).number == 1
    assert not store.needs_promotion()
    change(store, "two")
    assert store.needs_promotion()
    assert store.promote(keep=5).number == 2


def test_files_come_back_with_their_modes(store: Store) -> None:
    store.promote(keep=5)
    change(store, "broken")
    store.files[1].chmod(0o600)
    store.files[2].unlink()
    generation = store.find()
    assert store.differing(generation) == list(store.files[1:])
    store.restore(generation, shutil.move)
    assert store.differing(generation) == []
    assert store.files[1].read_text(encoding="utf-8") == "server.yaml 1\n"
    assert store.files[1].stat().st_mode & 0o777 == 0o640
    assert sorted(path.name for path in store.files[1].parent.iterdir()) == sorted(path.name for path in store.files)


def test_the_oldest_generations_go(store: Store) -> None:
    for number in range(7):
        change(store, str(number))
        store.promote(keep=3)
    assert [generation.number for generation in store.generations()] == [5, 6, 7]
    assert store.find(6).number == 6
    with pytest.raises(GenerationError, match=r"\(5, 6, 7\), found 4"):
        store.find(4)


def test_a_promotion_that_was_cut_short_is_not_seen_and_goes_away(store: Store) -> None:
    store.promote(keep=5)
    leftover = store.root / "incomplete-x"
    leftover.mkdir()
    assert [generation.number for generation in store.generations()] == [1]
    change(store, "two")
    store.promote(keep=5)
    assert not leftover.exists()


def test_going_back_goes_to_what_is_not_there_now(store: Store) -> None:
    assert store.earlier() is None
    store.promote(keep=5)
    assert store.earlier() is None
    change(store, "two")
    earlier = store.earlier()
    assert earlier is not None
    assert earlier.number == 1
    store.promote(keep=5)
    assert store.earlier() == earlier
    change(store, "broken")
    newest = store.earlier()
    assert newest is not None
    assert newest.number == 2


def test_nothing_to_go_back_to_is_said(store: Store) -> None:
    with pytest.raises(GenerationError, match="has been proven yet"):
        store.find()


def test_a_server_that_is_not_deployed_cannot_be_promoted(store: Store) -> None:
    store.files[2].unlink()
    with pytest.raises(GenerationError, match=r"there is no .*environment"):
        store.needs_promotion()


def test_copies_are_for_root_alone(store: Store) -> None:
    store.promote(keep=1)
    assert store.root.stat().st_mode & 0o777 == 0o700
