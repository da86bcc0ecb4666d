# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The locks of a host: one holder at a time, whatever happens to it."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import pytest
from ansible_collections.gpufleet.sglang.plugins.module_utils._transaction.lock import LockError, Locks
from hypothesis import given
from hypothesis import strategies as st


class Clock:
    """Seconds since the boot, as the test has it."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def locks(tmp_path: Path, clock: Clock) -> Locks:
    return Locks(tmp_path / "locks", clock)


def hold(locks: Locks, run: str, lease: float = 100, gone: str = "") -> str:
    """Whose the lock is after that run tried to take it."""
    return locks.hold("kimi", run, f"run {run}", lease, gone).run


def test_the_second_run_has_to_wait_for_the_first(locks: Locks) -> None:
    assert hold(locks, "a") == "a"
    assert hold(locks, "b") == "a"
    locks.release("kimi", "b")
    assert hold(locks, "b") == "a"
    locks.release("kimi", "a")
    assert hold(locks, "b") == "b"


def test_a_run_takes_its_own_lock_again_and_keeps_when_it_took_it(locks: Locks, clock: Clock) -> None:
    first = locks.hold("kimi", "a", "run a", 100)
    clock.now += 50
    second = locks.hold("kimi", "a", "run a", 200)
    assert second.taken == first.taken
    assert locks.remaining(second) == 200


def test_locks_of_other_servers_are_others(locks: Locks) -> None:
    assert hold(locks, "a") == "a"
    assert locks.hold("glm", "b", "", 100).run == "b"


def test_a_lease_that_is_over_frees_the_lock(locks: Locks, clock: Clock) -> None:
    hold(locks, "a")
    clock.now += 99
    assert hold(locks, "b") == "a"
    clock.now += 2
    assert locks.holder("kimi") is None
    assert hold(locks, "b") == "b"
    assert hold(locks, "a") == "b"


def test_steps_prolong_the_lock_of_their_own_run_only(locks: Locks, clock: Clock) -> None:
    hold(locks, "a")
    clock.now += 90
    locks.prolong("kimi", "a")
    locks.prolong("kimi", "b", 1000)
    clock.now += 90
    assert hold(locks, "b") == "a"
    locks.prolong("kimi", "a", 500)
    clock.now += 499
    assert hold(locks, "b") == "a"


def test_a_lease_that_is_over_is_prolonged_while_nobody_else_has_the_lock(locks: Locks, clock: Clock) -> None:
    hold(locks, "a")
    clock.now += 200
    locks.prolong("kimi", "a")
    assert hold(locks, "b") == "a"


def test_a_run_that_is_known_to_be_gone_is_not_waited_for(locks: Locks) -> None:
    hold(locks, "a")
    assert hold(locks, "b", gone="c") == "a"
    assert hold(locks, "b", gone="a") == "b"


def test_nothing_is_left_when_all_is_given_back(locks: Locks) -> None:
    hold(locks, "a")
    locks.hold("glm", "a", "", 100)
    locks.release("kimi", "a")
    assert sorted(os.listdir(locks.directory)) == ["glm.lock"]
    locks.release("glm", "a")
    assert not locks.directory.exists()
    locks.release("glm", "a")
    locks.prolong("glm", "a")
    assert not locks.directory.exists()


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"run": 1}', "null"])
def test_a_file_that_is_no_lock_locks_nobody_out(locks: Locks, content: str) -> None:
    locks.directory.mkdir()
    (locks.directory / "kimi.lock").write_text(content)
    assert locks.holder("kimi") is None
    assert hold(locks, "a") == "a"


def test_what_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LockError, match="file cannot be used: Not a directory"):
        Locks(tmp_path / "file").hold("kimi", "a", "", 100)


def _contend(directory: Path, run: str) -> None:
    locks, count = Locks(directory), 0
    while count < 50:
        if locks.hold("kimi", run, "", 100).run == run:
            marker = directory.parent / "inside"
            handle = os.open(marker, os.O_CREAT | os.O_EXCL)  # fails where two are inside
            os.close(handle)
            marker.unlink()
            locks.release("kimi", run)
            count += 1


def test_processes_that_contend_are_never_inside_together(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_contend, args=(tmp_path / "locks", str(number))) for number in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0, 0, 0]


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from(["hold", "release", "prolong", "wait"]), st.floats(1, 300)),
        max_size=40,
    )
)
def test_who_was_told_to_hold_it_holds_it_until_release_or_lease(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str, float]]
) -> None:
    clock = Clock()
    locks = Locks(tmp_path_factory.mktemp("locks") / "locks", clock)
    owner, until = "", 0.0
    for run, step, seconds in steps:
        if step == "hold":
            got = hold(locks, run, seconds)
            if owner and owner != run and clock.now < until:
                assert got == owner
            else:
                assert got == run
                owner, until = run, clock.now + seconds
        elif step == "release":
            locks.release("kimi", run)
            owner = "" if owner == run else owner
        elif step == "prolong":
            locks.prolong("kimi", run, 300)
            until = clock.now + 300 if owner == run else until
        else:
            clock.now += seconds
