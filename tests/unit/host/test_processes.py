# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Who listens and who works, read from a /proc of the test's own."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from ansible_collections.gpufleet.sglang.plugins.module_utils._host.processes import (
    Listener,
    Pulse,
    find_listener,
    pulse,
)

UNIT = "/system.slice/sglang-kimi.service"
HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"


class Proc:
    """A directory like /proc."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "net").mkdir()
        self.sockets = {"tcp": HEAD, "tcp6": HEAD}
        self.write()

    def write(self) -> None:
        for name, text in self.sockets.items():
            (self.root / "net" / name).write_text(text)

    def listens(self, address: str, port: int, inode: int, table: str = "tcp", state: str = "0A") -> None:
        self.sockets[table] += (
            f"   0: {address}:{port:04X} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000 0 0 {inode} 1\n"
        )
        self.write()

    def process(
        self,
        pid: int,
        cgroup: str,
        *,
        inode: int = 0,
        started: int = 100,
        ticks: int = 0,
        read: int = 0,
        name: str = "python",
    ) -> None:
        directory = self.root / str(pid)
        (directory / "fd").mkdir(parents=True)
        (directory / "cgroup").write_text(f"12:devices:/\n0::{cgroup}\n")
        (directory / "cmdline").write_text(f"{name}\0-m\0server\0")
        fields = [
            "S",
            "1",
            "1",
            "1",
            "0",
            "-1",
            "0",
            "0",
            "0",
            "0",
            "0",
            str(ticks),
            "0",
            "0",
            "0",
            "20",
            "0",
            "1",
            "0",
            str(started),
        ]
        (directory / "stat").write_text(f"{pid} (a ) name) " + " ".join(fields) + "\n")
        (directory / "io").write_text(f"rchar: {read}\nwchar: 5\nread_bytes: {read // 2}\n")
        if inode:
            (directory / "fd" / "7").symlink_to(f"socket:[{inode}]")
        (directory / "fd" / "0").symlink_to("/dev/null")


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


LOOPBACK, WILDCARD, OTHER = "0100007F", "00000000", "0500000A"


@pytest.mark.parametrize(
    ("cgroup", "started", "owner"),
    [
        (UNIT, 100, "unit"),
        (UNIT + "/workers", 150, "unit"),
        (UNIT, 99, "stale"),
        ("/system.slice/sglang-kimi.service.other", 100, "foreign"),
        ("/user.slice/session-1.scope", 50, "foreign"),
    ],
)
def test_whose_process_listens(proc: Proc, cgroup: str, started: int, owner: str) -> None:
    proc.listens(LOOPBACK, 30000, 4711)
    proc.process(10, UNIT, started=100)
    proc.process(11, cgroup, inode=4711, started=started)
    assert find_listener("127.0.0.1", 30000, UNIT, 10, str(proc.root)) == Listener(owner, 11, "python -m server")


@pytest.mark.parametrize(
    ("host", "address", "table", "found"),
    [
        ("127.0.0.1", LOOPBACK, "tcp", True),
        ("127.0.0.1", WILDCARD, "tcp", True),
        ("127.0.0.1", "0" * 32, "tcp6", True),
        ("127.0.0.1", OTHER, "tcp", False),
        ("0.0.0.0", OTHER, "tcp", True),
        ("10.0.0.5", OTHER, "tcp", True),
        ("10.0.0.5", "0000000000000000FFFF00000500000A", "tcp6", True),
        ("::1", "00000000000000000000000001000000", "tcp6", True),
        ("gpu-a", OTHER, "tcp", True),
    ],
)
def test_addresses(proc: Proc, host: str, address: str, table: str, found: bool) -> None:
    proc.listens(address, 30000, 4711, table)
    assert (find_listener(host, 30000, UNIT, 0, str(proc.root)) == Listener("unknown")) is found


def test_a_connection_is_no_listener(proc: Proc) -> None:
    proc.listens(LOOPBACK, 30000, 4711, state="01")
    proc.listens(LOOPBACK, 30001, 4712)
    assert find_listener("127.0.0.1", 30000, UNIT, 0, str(proc.root)) is None


def test_tables_that_cannot_be_read_or_understood(proc: Proc) -> None:
    proc.listens("nonsense", 30000, 1)
    proc.sockets["tcp6"] += "x x:y z 0A\n 0: zz:zzzz a 0A b c d e f 9 1\n"
    proc.write()
    assert find_listener("127.0.0.1", 30000, UNIT, 0, str(proc.root)) is None
    assert find_listener("127.0.0.1", 30000, UNIT, 0, str(proc.root / "nothing")) is None


def test_what_a_unit_has_done(proc: Proc) -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    proc.process(10, UNIT, ticks=2 * ticks, read=1000)
    proc.process(11, UNIT, ticks=ticks, read=500)
    proc.process(12, "/elsewhere", ticks=99 * ticks, read=99)
    assert pulse(UNIT, proc=str(proc.root)) == Pulse(2, 3.0, 1500)
    assert pulse(UNIT, 10, str(proc.root)) == Pulse(2, 1.0, 500)
    assert pulse("", proc=str(proc.root)) == Pulse()


def test_the_real_kernel() -> None:
    """This process listens; it is nobody's unit."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        found = find_listener("127.0.0.1", port, "/no.slice/such.service")
        assert found is not None
        assert (found.owner, found.pid) == ("foreign", os.getpid())
    assert find_listener("127.0.0.1", port, "/no.slice/such.service") is None
