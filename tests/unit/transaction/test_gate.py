# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The way between a stop and a start: free at once, free after a while, or blocked by somebody who has a name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpufleet.sglang.plugins.module_utils._host.gpus import Gpu, GpuError, parse
from ansible_collections.gpufleet.sglang.plugins.module_utils._host.processes import Listener
from ansible_collections.gpufleet.sglang.plugins.module_utils._host.systemd import Unit
from ansible_collections.gpufleet.sglang.plugins.module_utils._transaction.gate import (
    Blocker,
    GateError,
    HostProbes,
    Process,
    Seen,
    Waiting,
    Wanted,
    cuda_visible_devices,
    explain,
    look,
    read_seen,
    used_gpus,
    used_ports,
    wait_until_free,
)
from ansible_collections.gpufleet.sglang.tests.unit.host.smi import Card, print_xml
from hypothesis import given, settings
from hypothesis import strategies as st

UNIT = "sglang-kimi.service"
STOPPED = {
    "LoadState": "loaded",
    "ActiveState": "inactive",
    "SubState": "dead",
    "Result": "success",
    "InvocationID": "abc",
    "ExecMainCode": "1",
    "ExecMainStatus": "0",
    "ActiveExitTimestampMonotonic": "4000000",
    "ExecMainExitTimestampMonotonic": "6000000",
}
RUNNING = {**STOPPED, "ActiveState": "active", "SubState": "running", "ControlGroup": f"/system.slice/{UNIT}"}
WANTED = Wanted((("127.0.0.1", 30000),), 1024, {"pp-size": 2})
FREE = parse(print_xml([Card()] * 2))
STRANGER = Process(812, "nginx: master process", "www-data", "nginx.service")


def seen(values: Mapping[str, str]) -> Seen:
    """The unit, as systemctl show tells it."""
    return read_seen(UNIT, "".join(f"{key}={value}\n" for key, value in values.items()))


@dataclass
class Host:
    """A host, and a clock that only sleeping moves. ``after`` is what it is from some second on."""

    state: Mapping[str, str] = field(default_factory=lambda: STOPPED)
    listeners: dict[int, int] = field(default_factory=dict)
    left: list[int] = field(default_factory=list)
    cards: list[Gpu] = field(default_factory=lambda: FREE)
    names: dict[int, Process] = field(default_factory=lambda: {812: STRANGER})
    own: tuple[int, ...] = ()
    driver: str = ""
    now: float = 0.0
    looks: int = 0
    later: dict[float, dict[str, Any]] = field(default_factory=dict)

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds
        for at in [at for at in self.later if at <= self.now]:
            vars(self).update(self.later.pop(at))

    def seen(self) -> Seen:
        self.looks += 1
        return seen(self.state)

    def listener(self, host: str, port: int) -> Listener | None:
        pid = self.listeners.get(port)
        return None if pid is None else Listener("foreign" if pid else "unknown", pid)

    def leftovers(self, unit: Unit) -> list[int]:
        return self.left

    def gpus(self) -> list[Gpu]:
        if self.driver:
            raise GpuError(self.driver)
        return self.cards

    def process(self, pid: int) -> Process:
        return self.names.get(pid, Process(pid))

    def is_own(self, pid: int, unit: Unit) -> bool:
        return pid in self.own


def wait(host: Host, wanted: Wanted = WANTED, timeout: float = 120, poll_interval: float = 1) -> Waiting:
    return wait_until_free(wanted, host, timeout, poll_interval, host.clock, host.sleep)


def held(index: int, used: str, *processes: tuple[int, str]) -> list[Gpu]:
    """Two GPUs, one of which is used."""
    cards = [Card(), Card()]
    cards[index] = Card(used, [(pid, "x", size) for pid, size in processes])
    return parse(print_xml(cards))


# --- waiting ----------------------------------------------------------------------------------------------------------


def test_a_free_way_costs_one_look() -> None:
    host = Host()
    waiting = wait(host)
    assert (waiting.look.blockers, waiting.look.gpus, waiting.waited, host.looks) == ((), (0, 1), 0.0, 1)


def test_it_waits_as_long_as_it_takes() -> None:
    host = Host(listeners={30000: 5}, left=[5], cards=held(1, "90000 MiB"))
    host.later = {3.0: {"listeners": {}}, 17.0: {"left": []}, 41.0: {"cards": FREE}}
    waiting = wait(host)
    assert waiting.look.blockers == ()
    assert waiting.waited == 41.0


def test_it_ends_in_time_and_names_what_is_left() -> None:
    host = Host(listeners={30000: 812})
    waiting = wait(host, timeout=2.5)
    assert (waiting.waited, host.looks) == (2.5, 4)
    assert waiting.look.blockers == (Blocker("port", STRANGER, port=30000),)
    assert explain(UNIT, waiting) == (
        "sglang-kimi.service cannot be started, the way is not free after 2 s: port 30000 is taken by process 812 "
        "(nginx: master process, user www-data, nginx.service). Nothing was killed. Stop what has the port, or change "
        "sglang_server_port."
    )


def test_no_time_is_one_look() -> None:
    host = Host(left=[5])
    assert wait(host, timeout=0).waited == 0
    assert host.looks == 1


@settings(max_examples=60)
@given(st.floats(0, 300), st.floats(0.1, 30), st.one_of(st.none(), st.floats(0.1, 400)))
def test_it_never_waits_longer_than_it_may(timeout: float, poll_interval: float, free_at: float | None) -> None:
    host = Host(left=[5], later={} if free_at is None else {free_at: {"left": []}})
    waiting = wait(host, timeout=timeout, poll_interval=poll_interval)
    assert waiting.waited <= timeout + 1e-6
    if waiting.look.blockers:
        assert waiting.waited == pytest.approx(timeout)
    else:
        assert free_at is not None
        assert waiting.waited == pytest.approx(free_at, abs=poll_interval)


def test_a_running_server_is_not_waited_for() -> None:
    host = Host(state=RUNNING)
    with pytest.raises(GateError, match="it is active; stop it first"):
        wait(host)
    assert host.now == 0


def test_one_that_systemd_starts_again_is_running() -> None:
    with pytest.raises(GateError, match="it is activating"):
        wait(Host(state={**STOPPED, "ActiveState": "activating", "SubState": "auto-restart"}))


def test_one_that_still_ends_is_waited_for() -> None:
    host = Host(
        state={**RUNNING, "ActiveState": "deactivating"}, left=[5], later={20.0: {"left": [], "state": STOPPED}}
    )
    waiting = wait(host)
    assert (waiting.waited, waiting.look.stop.how) == (20.0, "clean")


def test_a_unit_that_is_not_there_is_said() -> None:
    with pytest.raises(GateError, match="systemd has none"):
        wait(Host(state={"LoadState": "not-found", "ActiveState": "inactive"}))


# --- what is in the way -----------------------------------------------------------------------------------------------


def test_memory_is_told_by_who_holds_it_the_largest_first() -> None:
    host = Host(cards=held(1, "90120 MiB", (9, "4 MiB"), (812, "90100 MiB")))
    assert look(WANTED, host).blockers == (
        Blocker("gpu", STRANGER, gpu=1, used_mib=90100),
        Blocker("gpu", Process(9), gpu=1, used_mib=4),
    )


def test_memory_that_nobody_holds_any_more_is_in_the_way_too() -> None:
    (blocker,) = look(WANTED, Host(cards=held(0, "50000 MiB"))).blockers
    assert blocker == Blocker("gpu", gpu=0, used_mib=50000)
    assert blocker.text() == "50000 MiB of GPU 0 held by a process that cannot be seen"


@pytest.mark.parametrize(("used", "blocked"), [("1024 MiB", False), ("1025 MiB", True), ("N/A", False)])
def test_the_threshold(used: str, blocked: bool) -> None:
    assert bool(look(WANTED, Host(cards=held(0, used))).blockers) == blocked


def test_gpus_of_others_are_not_looked_at() -> None:
    host = Host(cards=held(1, "90000 MiB"))
    assert look(replace(WANTED, devices="0"), host).blockers == ()
    assert look(replace(WANTED, config={"device": "cpu"}), host).gpus == ()


def test_a_listener_that_cannot_be_seen() -> None:
    (blocker,) = look(WANTED, Host(listeners={30000: 0})).blockers
    assert blocker.text() == "port 30000 is taken by a process that cannot be seen"
    assert blocker.to_dict()["pid"] is None


def test_a_driver_that_does_not_answer_keeps_nothing_down() -> None:
    seen_now = look(WANTED, Host(driver="nvidia-smi -q -x failed (9)"))
    assert (seen_now.blockers, seen_now.gpus, seen_now.problem) == ((), (), "nvidia-smi -q -x failed (9)")


def test_what_would_be_in_the_way_of_a_server_that_still_runs() -> None:
    predict = replace(WANTED, predict=True)
    host = Host(
        state=RUNNING, listeners={30000: 5}, own=(5, 6), left=[5, 6], cards=held(0, "90000 MiB", (6, "89000 MiB"))
    )
    assert look(predict, host).blockers == ()
    host.cards = held(0, "90004 MiB", (6, "89900 MiB"), (812, "4 MiB"))
    assert look(predict, host).blockers == ()
    host.cards = held(0, "95000 MiB", (6, "89000 MiB"), (812, "5000 MiB"))
    assert look(predict, host).blockers == (Blocker("gpu", STRANGER, gpu=0, used_mib=5000),)
    host.listeners = {30000: 812}
    assert look(predict, host).blockers[0] == Blocker("port", STRANGER, port=30000)


def test_a_message_introduces_each_process_once_and_counts_the_rest() -> None:
    long = Process(5, "python3 -c " + "x" * 200, "sglang", UNIT)
    host = Host(
        left=[5],
        names={5: long},
        listeners={30000: 5},
        cards=held(0, "80000 MiB", (5, "70000 MiB"), (8, "1 MiB"), (9, "1 MiB")),
    )
    told = explain(UNIT, wait(host, timeout=0))
    assert told.count("(python3 -c xx") == 1
    assert "port 30000 is taken by process 5; 70000 MiB of GPU 0 held by process 5; " in told
    assert "; and 1 more. Nothing was killed. " in told
    assert len(told) < 600
    assert "\n" not in told


# --- how it stopped ---------------------------------------------------------------------------------------------------

KILLED = {**STOPPED, "ActiveState": "failed", "Result": "signal", "ExecMainCode": "2", "ExecMainStatus": "9"}


@pytest.mark.parametrize(
    ("values", "how", "clean"),
    [
        (STOPPED, "clean", True),
        (KILLED, "killed_itself", True),
        ({**KILLED, "Result": "timeout"}, "timeout", False),
        ({**KILLED, "Result": "oom-kill"}, "failed", False),
        # The main process was gone before the unit left its active state: nobody had asked for it.
        ({**KILLED, "ActiveExitTimestampMonotonic": "6000001"}, "failed", False),
        ({**KILLED, "ActiveExitTimestampMonotonic": "0"}, "failed", False),
        ({**KILLED, "Result": "success", "ActiveState": "inactive"}, "unknown", None),
        ({**STOPPED, "Result": "exit-code", "ExecMainStatus": "3"}, "failed", False),
        ({**STOPPED, "ExecMainCode": "0", "ExecMainExitTimestampMonotonic": "0"}, "unknown", None),
        (RUNNING, "running", None),
        ({**RUNNING, "ActiveState": "deactivating"}, "running", None),
        ({}, "unknown", None),
    ],
)
def test_how_the_last_run_ended(values: dict[str, str], how: str, clean: bool | None) -> None:
    stop = seen(values).stop
    assert (stop.how, stop.clean) == (how, clean)


def test_an_end_is_told_in_words() -> None:
    assert seen(KILLED).stop.exit == "signal 9"
    assert seen(STOPPED).stop.exit == "exit status 0"
    assert seen({}).stop.exit == ""


# --- what a server uses -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "ports"),
    [
        ({}, [30000]),
        ({"nccl-port": 29500}, [30000, 29500]),
        ({"dist-init-addr": "10.0.0.1:5000"}, [30000, 5000]),
        ({"dist-init-addr": "[fd00::1]:5000", "node-rank": 0, "nnodes": 2}, [30000, 5000]),
        ({"dist-init-addr": "10.0.0.1:5000", "node-rank": 1, "nnodes": 2}, [30000]),
        ({"nccl-init-addr": "a:5000", "nccl-port": "5000"}, [30000, 5000]),
        ({"dist-init-addr": "nonsense", "nccl-port": True}, [30000]),
    ],
)
def test_ports(config: dict[str, Any], ports: list[int]) -> None:
    assert [port for _host, port in used_ports("0.0.0.0", 30000, config)] == ports


EIGHT = parse(print_xml([Card()] * 8))


@pytest.mark.parametrize(
    ("config", "devices", "indices"),
    [
        ({}, None, range(8)),
        ({}, "2,3", [2, 3]),
        ({"pp-size": 8}, None, range(8)),
        ({"model-path": "/m"}, None, [0]),
        ({"tp-size": 2, "base-gpu-id": 4}, None, [4, 5]),
        ({"tp-size": 2, "pp-size": 2}, None, [0, 1, 2, 3]),
        ({"tp-size": 2, "gpu-id-step": 2}, None, [0, 2]),
        ({"tp-size": 2, "dp-size": 2}, None, [0, 1, 2, 3]),
        ({"tp-size": 2, "dp-size": 2, "enable-dp-attention": True}, None, [0, 1]),
        ({"tp-size": 8, "nnodes": 2}, None, [0, 1, 2, 3]),
        ({"pp-size": 2, "nnodes": 2, "tp-size": 4}, None, [0, 1, 2, 3]),
        ({"tensor-parallel-size": "4"}, "7,6,5,4,3", [7, 6, 5, 4]),
        ({"tp-size": 2, "base-gpu-id": 1}, "4,5,6", [5, 6]),
        ({"tp-size": 16}, None, range(8)),
        ({"tp-size": 2}, "", []),
        ({"device": "cpu", "tp-size": 2}, None, []),
    ],
)
def test_gpus(config: dict[str, Any], devices: str | None, indices: list[int]) -> None:
    assert {gpu.index for gpu in used_gpus(EIGHT, config, devices)} == set(indices)


@settings(max_examples=100)
@given(
    st.dictionaries(
        st.sampled_from(["pp-size", "tp-size", "dp-size", "nnodes", "base-gpu-id", "gpu-id-step", "node-rank"]),
        st.one_of(st.integers(-5, 10**9), st.booleans(), st.text(max_size=5), st.none()),
    ),
    st.one_of(st.none(), st.text(alphabet="0123456789,GPU- ", max_size=12)),
)
def test_any_configuration_means_some_of_the_gpus(config: dict[str, Any], devices: str | None) -> None:
    chosen = used_gpus(EIGHT, config, devices)
    assert len(set(chosen)) == len(chosen)
    assert used_ports("::", 1, config)


@pytest.mark.parametrize(
    ("text", "devices"),
    [
        ("", None),
        ('CUDA_VISIBLE_DEVICES="2,3"\n', "2,3"),
        ("A=1\n  CUDA_VISIBLE_DEVICES='0'\nB=2\n", "0"),
        ("CUDA_VISIBLE_DEVICES=\n", ""),
        ("# CUDA_VISIBLE_DEVICES=1\nMY_CUDA_VISIBLE_DEVICES=2\n", None),
        ("CUDA_VISIBLE_DEVICES=0\nCUDA_VISIBLE_DEVICES=1\n", "1"),
    ],
)
def test_visible_devices_of_an_environment_file(text: str, devices: str | None) -> None:
    assert cuda_visible_devices(text) == devices


# --- the host ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A /proc with a process in the unit, one that only carries its mark, a dead one, and a stranger."""
    marked = "PATH=/bin\0INVOCATION_ID=abc\0"
    for pid, cgroup, environ, state in [
        (10, f"/system.slice/{UNIT}", "", "S"),
        (11, "/user.slice/user-0.slice/session-4.scope", marked, "D"),
        (12, f"/system.slice/{UNIT}", "", "Z"),
        (13, "/system.slice/nginx.service", "INVOCATION_ID=abcd\0", "S"),
    ]:
        directory = tmp_path / str(pid)
        directory.mkdir()
        (directory / "cgroup").write_text(f"0::{cgroup}\n")
        (directory / "environ").write_text(environ)
        (directory / "stat").write_text(f"{pid} (a) b) {state} 1 1")
        (directory / "cmdline").write_text("python3\0-m\0x\0--api-key\0sk-0123456789abcdefghij\0" if pid == 11 else "")
        (directory / "comm").write_text("nginx\n")
    (tmp_path / "self").mkdir()
    return tmp_path


def no_run(command: list[str]) -> tuple[int, str, str]:
    return 1, "", "not here"


def test_leftovers_are_found_by_cgroup_and_by_mark(proc: Path) -> None:
    probes = HostProbes(UNIT, no_run, str(proc))
    assert probes.leftovers(seen(STOPPED).unit) == [10, 11]
    assert probes.leftovers(seen({**STOPPED, "InvocationID": ""}).unit) == [10]


def test_processes_are_named_without_secrets(proc: Path) -> None:
    probes = HostProbes(UNIT, no_run, str(proc))
    process = probes.process(11)
    assert process.command.startswith("python3 -m x --api-key ")
    assert "0123456789" not in process.command
    assert process.unit == "session-4.scope"
    assert process.user
    assert probes.process(13) == Process(13, "nginx", process.user, "nginx.service")
    assert probes.process(99) == Process(99)


def test_the_probes_ask_systemd_and_the_driver() -> None:
    asked = []

    def run(command: list[str]) -> tuple[int, str, str]:
        asked.append(command)
        return (0, "ActiveState=active\n", "") if command[0] == "systemctl" else (127, "", "")

    probes = HostProbes(UNIT, run)
    assert probes.seen().running
    assert probes.gpus() == []
    assert asked == [["systemctl", "show", "--", UNIT], ["nvidia-smi", "-q", "-x"]]


def test_all_spellings_of_an_argument_take_the_same_gpus() -> None:
    wanted = used_gpus(EIGHT, {"pp-size": 2, "tp-size": 2}, None)
    assert len(wanted) == 4
    assert used_gpus(EIGHT, {"pp": 2, "tp": 2}, None) == wanted
    assert used_gpus(EIGHT, {"pipeline_parallel_size": 2, "tensor-parallel-size": 2}, None) == wanted
