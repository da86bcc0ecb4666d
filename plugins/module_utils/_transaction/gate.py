# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This file is private to the collection: it may change without notice.

"""Between the stop and the start of a server: what is still in the way, by name. Nothing is ever killed.

The clock and the looks at the host are handed in; `HostProbes` are the real ones.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Callable, Protocol

from ansible_collections.gpufleet.sglang.plugins.module_utils._host.gpus import Gpu, GpuError, ask, visible
from ansible_collections.gpufleet.sglang.plugins.module_utils._host.processes import Listener, find_listener, in_cgroup
from ansible_collections.gpufleet.sglang.plugins.module_utils._host.systemd import (
    Runner,
    SystemdError,
    Unit,
    parse_show,
)
from ansible_collections.gpufleet.sglang.plugins.module_utils._readiness.causes import redact
from ansible_collections.gpufleet.sglang.plugins.module_utils._sglang.names import canonical_arguments

NAMED = 4
"""Blockers that a message names; the others are counted there."""
SHOWN = 60
"""Characters of a command line that a message shows."""

_RUNNING = ("active", "activating", "reloading")
_SIGKILL = 9
_VISIBLE = re.compile(r"^[ \t]*CUDA_VISIBLE_DEVICES=[\"']?([^\"'\n]*)", re.MULTILINE)
_ADVICE = {
    "port": "Stop what has the port, or change sglang_server_port.",
    "process": "Find out what it waits for and end it; one that no signal ends needs a restart of the host.",
    "gpu": "End what holds the memory, or give the server other GPUs by CUDA_VISIBLE_DEVICES in "
    "sglang_server_environment.",
}


class GateError(RuntimeError):
    """There is no sense in waiting."""


@dataclass(frozen=True)
class Process:
    """A process for people; ``unit`` is the systemd unit or scope that it runs in, or else its cgroup."""

    pid: int
    command: str = ""
    user: str = ""
    unit: str = ""

    def __str__(self) -> str:
        command = self.command if len(self.command) <= SHOWN else self.command[: SHOWN - 1] + "…"
        words = [command, f"user {self.user}" if self.user else "", self.unit]
        about = ", ".join(word for word in words if word)
        return f"process {self.pid}" + (f" ({about})" if about else "")


@dataclass(frozen=True)
class Blocker:
    """One thing in the way: ``kind`` is ``port``, ``process`` or ``gpu``; who it is, is None where nobody tells."""

    kind: str
    process: Process | None = None
    port: int | None = None
    gpu: int | None = None
    used_mib: int | None = None

    def text(self, who: str = "") -> str:
        """In words; ``who`` is what to call the process, if it was introduced before."""
        who = who or (str(self.process) if self.process else "a process that cannot be seen")
        if self.kind == "port":
            return f"port {self.port} is taken by {who}"
        if self.kind == "gpu":
            held = "memory" if self.used_mib is None else f"{self.used_mib} MiB"
            return f"{held} of GPU {self.gpu} held by {who}"
        return f"{who} is left of the earlier start"

    def to_dict(self) -> dict[str, Any]:
        """Flat, for people who filter lists."""
        who = self.process
        return {
            "kind": self.kind,
            "pid": who.pid if who else None,
            "command": who.command if who else "",
            "user": who.user if who else "",
            "unit": who.unit if who else "",
            "port": self.port,
            "gpu": self.gpu,
            "used_mib": self.used_mib,
            "text": self.text(),
        }


@dataclass(frozen=True)
class Stop:
    """How the last run of a unit ended.

    ``how`` is ``clean``; ``killed_itself`` (asked to stop, it ended itself by SIGKILL and in time, as releases up to
    0.5.18 do); ``timeout`` (systemd killed it, since it did not end in time); ``failed`` (it ended unasked, or badly);
    ``running``; or ``unknown`` (it never ran, or systemd has forgotten).
    """

    how: str
    result: str
    exit: str = ""

    @property
    def clean(self) -> bool | None:
        """Whether it was an orderly stop; None where there was none, or nobody knows."""
        return {"running": None, "unknown": None}.get(self.how, self.how in ("clean", "killed_itself"))


@dataclass(frozen=True)
class Seen:
    """A unit as systemd tells it, and how it ended."""

    unit: Unit
    stop: Stop

    @property
    def running(self) -> bool:
        """Whether the unit was started, or is going to be by itself."""
        return self.unit.active_state in _RUNNING


class Probes(Protocol):
    """The looks at the host. Each takes a bounded time."""

    def seen(self) -> Seen:
        """The unit. Raises SystemdError where systemd does not answer."""

    def listener(self, host: str, port: int) -> Listener | None:
        """Who listens there."""

    def leftovers(self, unit: Unit) -> list[int]:
        """The processes in the unit's cgroup, and those that carry its InvocationID."""

    def gpus(self) -> list[Gpu]:
        """The GPUs of the host. Raises GpuError where they do not tell."""

    def process(self, pid: int) -> Process:
        """Who a process is."""

    def is_own(self, pid: int, unit: Unit) -> bool:
        """Whether a process belongs to the unit."""


@dataclass(frozen=True)
class Wanted:
    """What has to be free: ``ports`` as pairs of host and port, and of each GPU all memory but ``max_used_mib``.

    ``config`` and ``devices`` tell which GPUs these are: server.yaml, and CUDA_VISIBLE_DEVICES if it is set. With
    ``predict``, a unit that still runs is taken for stopped.
    """

    ports: tuple[tuple[str, int], ...]
    max_used_mib: int
    config: Mapping[str, Any]
    devices: str | None = None
    predict: bool = False


@dataclass(frozen=True)
class Look:
    """What was seen at once; ``gpus`` are the indices of those looked at, ``problem`` is why there are none."""

    stop: Stop
    blockers: tuple[Blocker, ...]
    gpus: tuple[int, ...]
    problem: str = ""


@dataclass(frozen=True)
class Waiting:
    """The last look, and the seconds that passed until then."""

    look: Look
    waited: float


def wait_until_free(
    wanted: Wanted,
    probes: Probes,
    timeout: float,
    poll_interval: float,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> Waiting:
    """Look until nothing is in the way, at most ``timeout`` seconds by ``clock``, which begins at 0.

    Raises GateError for a unit that runs or is not there, unless ``wanted`` predicts.
    """
    while True:
        seen = look(wanted, probes)
        now = clock()
        if not seen.blockers or now >= timeout:
            return Waiting(seen, now)
        sleep(min(poll_interval, timeout - now))


def look(wanted: Wanted, probes: Probes) -> Look:
    """What is in the way now. Raises GateError as `wait_until_free` does."""
    seen = probes.seen()
    if not wanted.predict:
        _check(seen)
    gpus: list[Gpu] = []
    problem = ""
    try:
        gpus = used_gpus(probes.gpus(), wanted.config, wanted.devices)
    except GpuError as error:
        # That a driver does not answer is no reason to keep a server down.
        problem = str(error)
    blockers = [
        *(Blocker("process", probes.process(pid)) for pid in ([] if seen.running else probes.leftovers(seen.unit))),
        *_ports(wanted, probes, seen),
        *_memory(gpus, wanted, probes, seen),
    ]
    return Look(seen.stop, tuple(blockers), tuple(gpu.index for gpu in gpus), problem)


def explain(unit: str, waiting: Waiting) -> str:
    """One line: what is in the way and what to do about it."""
    blockers = waiting.look.blockers
    told: set[Process] = set()
    named = "; ".join(_told(blocker, told) for blocker in blockers[:NAMED])
    more = f"; and {len(blockers) - NAMED} more" if len(blockers) > NAMED else ""
    return (
        f"{unit} cannot be started, the way is not free after {waiting.waited:.0f} s: {named}{more}. "
        f"Nothing was killed. {_ADVICE[blockers[0].kind]}"
    )


def _told(blocker: Blocker, told: set[Process]) -> str:
    """A blocker in words; a process that was introduced before goes by its number."""
    who = blocker.process
    if who is None or who not in told:
        told |= {who} if who else set()
        return blocker.text()
    return blocker.text(f"process {who.pid}")


def _check(seen: Seen) -> None:
    if seen.unit.load_state == "not-found":
        raise GateError(f"expected a unit {seen.unit.name}, systemd has none")
    if seen.running:
        raise GateError(f"expected that {seen.unit.name} is stopped, it is {seen.unit.active_state}; stop it first")


def _ports(wanted: Wanted, probes: Probes, seen: Seen) -> Sequence[Blocker]:
    found = []
    for host, port in wanted.ports:
        listener = probes.listener(host, port)
        if listener is None or (seen.running and listener.pid and probes.is_own(listener.pid, seen.unit)):
            continue
        found.append(Blocker("port", probes.process(listener.pid) if listener.pid else None, port=port))
    return found


def _memory(gpus: Sequence[Gpu], wanted: Wanted, probes: Probes, seen: Seen) -> Sequence[Blocker]:
    found = []
    for gpu in gpus:
        others = [entry for entry in gpu.processes if not (seen.running and probes.is_own(entry.pid, seen.unit))]
        released = sum(entry.used_mib or 0 for entry in gpu.processes if entry not in others)
        used = (gpu.used_mib or 0) - released
        if used <= wanted.max_used_mib:
            continue
        others.sort(key=lambda entry: entry.used_mib or 0, reverse=True)
        found += [Blocker("gpu", probes.process(entry.pid), gpu=gpu.index, used_mib=entry.used_mib) for entry in others]
        # Memory comes back some time after its process is gone; it may also be that of a container's process.
        if not others and not (seen.running and released):
            found.append(Blocker("gpu", gpu=gpu.index, used_mib=used))
    return found


# --- what a server uses -----------------------------------------------------------------------------------------------


def used_ports(host: str, port: int, config: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    """The ports that a server listens on, as far as its server.yaml names them. Those for NCCL are on any address."""
    config = canonical_arguments(config)
    ports = [(host, port)]
    nccl = _number(config.get("nccl-port"))
    if nccl:
        ports.append(("0.0.0.0", nccl))
    first_node = not _number(config.get("node-rank"))
    address = str(config.get("dist-init-addr") or "")
    rendezvous = _number(address.rpartition(":")[2])
    if rendezvous and first_node:
        ports.append(("0.0.0.0", rendezvous))
    return tuple(dict.fromkeys(ports))


def used_gpus(gpus: Sequence[Gpu], config: Mapping[str, Any], devices: str | None) -> list[Gpu]:
    """The GPUs that a server takes: of those it can see, those that SGLang counts out to its ranks on this node."""
    if config.get("device") == "cpu":
        return []
    seen = list(gpus) if devices is None else visible(gpus, devices)
    if not config:
        return seen
    wanted = _ordinals(config)
    return [gpu for number, gpu in enumerate(seen) if number in wanted]


def cuda_visible_devices(environment: str) -> str | None:
    """The CUDA_VISIBLE_DEVICES in the text of an environment file; None where it is not set there."""
    found = _VISIBLE.findall(environment)
    return found[-1].strip() if found else None


def _ordinals(config: Mapping[str, Any]) -> frozenset[int]:
    """The numbers of the GPUs, as SGLang's engine gives them to the ranks of pipelines, tensors and replicas."""
    config = canonical_arguments(config)

    def size(default: int, name: str) -> int:
        number = _number(config.get(name))
        return default if number is None else number

    pipeline = size(1, "pp-size") or 1
    tensor = size(1, "tp-size") or 1
    nodes = size(1, "nnodes") or 1
    base, step = size(0, "base-gpu-id"), size(1, "gpu-id-step")
    stages = max(pipeline // nodes, 1)
    width = max(tensor // max(nodes // pipeline, 1), 1)
    # With data-parallel attention, the replicas share the ranks of the tensors.
    shared = bool(config.get("enable-dp-attention"))
    replicas = 1 if shared else size(1, "dp-size") or 1
    return frozenset(
        base + replica * tensor * pipeline * step + stage * width + rank * step
        for replica in range(min(replicas, 64))
        for stage in range(min(stages, 64))
        for rank in range(min(width, 64))
    )


def _number(value: Any) -> int | None:
    """A number that is not negative; server.yaml may hold it as text."""
    text = "" if isinstance(value, bool) else str(value)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 7 else None


# --- the host ---------------------------------------------------------------------------------------------------------


def read_seen(name: str, output: str) -> Seen:
    """A unit and its last stop from the ``KEY=value`` lines of ``systemctl show``."""
    values = dict(line.split("=", 1) for line in output.splitlines() if "=" in line)
    unit = parse_show(name, output)
    asked = _micro(values, "ActiveExitTimestampMonotonic")
    ended = _micro(values, "ExecMainExitTimestampMonotonic")
    killed = unit.exec_code == "killed" and unit.exec_status == _SIGKILL
    if unit.active_state in (*_RUNNING, "deactivating"):
        how = "running"
    elif not ended or (killed and unit.result == "success"):
        how = "unknown"  # the second is what "systemctl reset-failed" leaves
    elif killed and unit.result == "signal" and 0 < asked < ended:
        # A unit leaves its active state when it is asked to stop; one that crashes, when its main process has ended.
        how = "killed_itself"
    else:
        how = {"success": "clean", "timeout": "timeout"}.get(unit.result, "failed")
    return Seen(unit, Stop(how, unit.result, unit.exit_text if ended else ""))


def _micro(values: Mapping[str, str], name: str) -> int:
    text = values.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else 0


@dataclass(frozen=True)
class HostProbes:
    """The probes of a host with systemd."""

    unit_name: str
    run: Runner
    proc: str = "/proc"

    def seen(self) -> Seen:
        """See `Probes`."""
        status, output, error = self.run(["systemctl", "show", "--", self.unit_name])
        if status != 0:
            raise SystemdError(f"systemctl show {self.unit_name} failed ({status}): {error.strip() or 'no message'}")
        return read_seen(self.unit_name, output)

    def listener(self, host: str, port: int) -> Listener | None:
        """See `Probes`."""
        return find_listener(host, port, "", proc=self.proc)

    def leftovers(self, unit: Unit) -> list[int]:
        """See `Probes`."""
        pids = sorted(int(name) for name in os.listdir(self.proc) if name.isdigit())
        return [pid for pid in pids if pid != os.getpid() and self.is_own(pid, unit) and self._lives(pid)]

    def gpus(self) -> list[Gpu]:
        """See `Probes`."""
        return ask(self.run)

    def process(self, pid: int) -> Process:
        """See `Probes`."""
        words = " ".join(self._read(pid, "cmdline").replace("\0", " ").split()) or self._read(pid, "comm").strip()
        try:
            number = os.stat(f"{self.proc}/{pid}").st_uid
            user = _user(number)
        except OSError:
            user = ""  # it is gone by now
        return Process(pid, redact(words)[:200], user, _unit_of(self._read(pid, "cgroup")))

    def is_own(self, pid: int, unit: Unit) -> bool:
        """See `Probes`."""
        # When all of its processes have ended, systemd does not tell the cgroup of a unit any more.
        if in_cgroup(pid, unit.control_group or f"/system.slice/{unit.name}", self.proc):
            return True
        mark = f"INVOCATION_ID={unit.invocation_id}"
        return bool(unit.invocation_id) and mark in self._read(pid, "environ").split("\0")

    def _lives(self, pid: int) -> bool:
        """Whether it is more than an entry that its parent has not picked up, which holds nothing."""
        return self._read(pid, "stat").rpartition(")")[2].split()[:1] not in ([], ["Z"], ["X"])

    def _read(self, pid: int, name: str) -> str:
        try:
            with open(f"{self.proc}/{pid}/{name}", encoding="utf-8", errors="replace") as stream:
                return stream.read()
        except OSError:
            return ""


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def _unit_of(cgroups: str) -> str:
    """The innermost unit in the content of /proc/PID/cgroup, or the cgroup where it has no such name."""
    # The unified hierarchy is the last line; with the older ones, systemd's is a line before it.
    paths = [line.split(":", 2)[-1].strip() for line in cgroups.splitlines()]
    for path in reversed(paths):
        names = [name for name in path.split("/") if name.endswith((".service", ".scope"))]
        if names:
            return names[-1]
    return next((path for path in reversed(paths) if path not in ("", "/")), "")
