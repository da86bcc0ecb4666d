# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One set of test hosts as podman has it. podman is the only record: what it does not know does not exist."""

from __future__ import annotations

import ipaddress
import json
import os
import resource
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import keys
from .cache import Cache, digest
from .shell import TestHostsError, attempt, run

_LABEL = "gpufleet."
_FIRST_ADDRESS = 10
_CAP_SYS_RESOURCE = 24


@dataclass(frozen=True)
class Host:
    """A container that is a test host."""

    set_name: str
    name: str
    container: str
    status: str
    """podman's word: running, exited, created..."""
    pid: int
    bridge_address: str
    ssh_port: int | None
    """The published port of sshd on 127.0.0.1, where the bridge cannot be reached."""
    cache: str
    recipe: str

    @property
    def address(self) -> tuple[str, int]:
        """Where sshd answers to this machine."""
        return ("127.0.0.1", self.ssh_port) if self.ssh_port else (self.bridge_address, 22)

    def alive(self, proc: Path = Path("/proc")) -> bool:
        """Whether its init runs. podman goes on to say "running" when its processes were killed behind its back."""
        if self.status != "running":
            return False
        try:
            # The process may be another one by now. Its cgroup is named after the container, except that of an
            # ordinary user's podman without systemd, who has one cgroup; podman tells the init, too, who it is.
            process = proc / str(self.pid)
            known_as = (process / "cgroup").read_bytes() + (process / "environ").read_bytes()
        except OSError:
            return False
        return self.container[:32].encode() in known_as


@dataclass(frozen=True)
class Recipe:
    """How the hosts of a set are made."""

    image: str
    mounts: tuple[tuple[str, str], ...]
    """Source and target; all read-only."""
    ports: tuple[str, ...]
    """HOSTPORT:PORT, published on 127.0.0.1."""

    @property
    def key(self) -> str:
        """Changes with everything that a running host cannot take over."""
        return digest(repr(part).encode() for part in (self.image, self.mounts, self.ports))


def rootless() -> bool:
    """Whether podman runs as an ordinary user: its bridges then are in a network namespace that we are not in."""
    return os.geteuid() != 0


def ulimits(limits: Mapping[str, int], may_raise: bool) -> list[str]:
    """podman arguments for a machine where nobody may raise limits: podman would try to, and fail."""
    # podman itself goes down to 32768 processes, and its children cannot go above that again.
    highest = {"nofile": 1048576, "nproc": 32768}
    if may_raise:
        return []
    chosen = {name: highest[name] if limit < 0 else min(limit, highest[name]) for name, limit in limits.items()}
    return [f"--ulimit={name}={value}:{value}" for name, value in chosen.items()]


def _machine_ulimits() -> list[str]:
    limits = {"nofile": resource.RLIMIT_NOFILE, "nproc": resource.RLIMIT_NPROC}
    status = Path("/proc/self/status").read_text()
    effective = next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith("CapEff:"))
    hard = {name: resource.getrlimit(limit)[1] for name, limit in limits.items()}
    return ulimits(hard, may_raise=bool(effective >> _CAP_SYS_RESOURCE & 1))


def run_arguments(cache: Cache, recipe: Recipe, set_name: str, name: str, address: str, by_port: bool) -> list[str]:
    """The arguments of `podman run` for one host; `by_port` publishes sshd on a free port of 127.0.0.1."""
    labels = {"set": set_name, "host": name, "address": address, "cache": str(cache.root), "recipe": recipe.key}
    mounts = [
        (str(cache.ssh / f"{keys.USER}.pub"), "/root/.ssh/authorized_keys"),
        (str(cache.ssh / keys.HOST), "/etc/ssh/ssh_host_ed25519_key"),
        *recipe.mounts,
    ]
    published = [*(["127.0.0.1::22"] if by_port else []), *(f"127.0.0.1:{port}" for port in recipe.ports)]
    return [
        "--detach",
        "--systemd=always",
        "--privileged",
        "--pids-limit=0",
        f"--name=gpufleet-{set_name}.{name}",
        f"--hostname={name}",
        f"--network-alias={name}",
        f"--network=gpufleet-{set_name}",
        f"--ip={address}",
        *(f"--label={_LABEL}{key}={value}" for key, value in labels.items()),
        *(f"--volume={source}:{target}:ro" for source, target in mounts),
        *(f"--publish={port}" for port in published),
        recipe.image,
        "/sbin/init",
    ]


def host_of(entry: Mapping[str, Any]) -> Host:
    """A host from an entry of `podman ps --format json`."""
    label = {key[len(_LABEL) :]: value for key, value in entry["Labels"].items() if key.startswith(_LABEL)}
    ssh = [port["host_port"] for port in entry["Ports"] or [] if port["container_port"] == 22]
    return Host(
        set_name=label["set"],
        name=label["host"],
        container=entry["Id"],
        status=entry["State"],
        pid=entry["Pid"],
        bridge_address=label["address"],
        ssh_port=ssh[0] if ssh else None,
        cache=label["cache"],
        recipe=label["recipe"],
    )


def free_address(subnet: str, taken: Iterable[str]) -> str:
    """The lowest address of the subnet that no host of the set has."""
    network = ipaddress.ip_network(subnet)
    used = set(taken)
    for offset in range(_FIRST_ADDRESS, network.num_addresses - 1):
        address = str(network[offset])
        if address not in used:
            return address
    raise TestHostsError(f"no address is free in {subnet}: this set has too many hosts")


class Podman:
    """The podman commands of the test hosts, run in the namespace that `enter` leads into."""

    def __init__(self, enter: Sequence[str]) -> None:
        self._podman = [*enter, "podman"]

    def hosts(self, set_name: str | None = None) -> list[Host]:
        """The hosts of a set, or of all sets."""
        label = f"{_LABEL}set={set_name}" if set_name else f"{_LABEL}set"
        found = json.loads(run([*self._podman, "ps", "--all", f"--filter=label={label}", "--format=json"]) or "[]")
        return sorted(map(host_of, found or []), key=lambda host: (host.set_name, host.name))

    def has_image(self, name: str) -> bool:
        """Whether the image is there."""
        return attempt([*self._podman, "image", "exists", name])[0] == 0

    def import_image(self, tarball: Path, name: str, changes: Sequence[str]) -> None:
        """Make an image of a root file system; `changes` are lines of a Containerfile."""
        options = [part for change in changes for part in ("--change", change)]
        run([*self._podman, "import", "--quiet", *options, str(tarball), name])

    def idle(self) -> bool:
        """Whether podman has no container at all, not even one that is none of ours."""
        return not run([*self._podman, "ps", "--all", "--quiet"]).strip()

    def subnet(self, set_name: str) -> str:
        """The subnet of the set's bridge, which is made when it is missing."""
        network = f"gpufleet-{set_name}"
        if attempt([*self._podman, "network", "exists", network])[0] != 0:
            run([*self._podman, "network", "create", f"--label={_LABEL}set={set_name}", network])
        (entry,) = json.loads(run([*self._podman, "network", "inspect", network]))
        subnet: str = entry["subnets"][0]["subnet"]
        return subnet

    def create(self, cache: Cache, recipe: Recipe, set_name: str, name: str, address: str) -> bool:
        """Make and start a host; False when somebody has the address already."""
        arguments = run_arguments(cache, recipe, set_name, name, address, by_port=rootless())
        code, _out, err = attempt([*self._podman, "run", *_machine_ulimits(), *arguments])
        if code != 0:
            # Not even started, but there: the name and the address would be taken.
            attempt([*self._podman, "rm", "--force", f"gpufleet-{set_name}.{name}"])
            if "is already allocated" in err:
                return False
            raise TestHostsError(f"podman cannot start {name}: {err.strip().splitlines()[-1] if err else code}")
        return True

    def start(self, host: Host) -> bool:
        """Start a host that was shut down; False when podman cannot."""
        return attempt([*self._podman, "start", host.container])[0] == 0

    def restart(self, host: Host) -> None:
        """Shut a host down in good order and start it again."""
        run([*self._podman, "restart", "--time=60", host.container])

    def remove(self, host: Host) -> None:
        """Remove a host at once, whatever its state."""
        command = [*self._podman, "rm", "--force", "--time=0", "--volumes", host.container]
        # The first attempt only makes podman see that the processes are gone, where somebody killed them.
        if attempt(command)[0] != 0:
            run(command)

    def remove_network(self, set_name: str) -> None:
        """Remove the set's bridge."""
        network = f"gpufleet-{set_name}"
        if attempt([*self._podman, "network", "exists", network])[0] == 0:
            run([*self._podman, "network", "rm", network])

    def execute(self, host: Host, command: Sequence[str], terminal: bool) -> list[str]:
        """The command line that runs `command` in a host."""
        return [*self._podman, "exec", "--interactive", *(["--tty"] if terminal else []), host.container, *command]

    def state(self, host: Host) -> str:
        """systemd's word for the whole host: running, degraded, starting... or empty while it cannot be asked."""
        return attempt([*self._podman, "exec", host.container, "systemctl", "is-system-running"])[1].strip()

    def wait(
        self,
        hosts: Sequence[Host],
        timeout: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Wait until each host has booted and its sshd answers."""
        deadline = clock() + timeout
        for host in hosts:
            while not (self.state(host) in ("running", "degraded") and _greets(*host.address)):
                if clock() > deadline:
                    state = self.state(host) or "nothing"
                    raise TestHostsError(
                        f"{host.name} has not booted within {timeout:.0f} s (systemd says {state}): "
                        f"look with `testhosts exec --set {host.set_name} {host.name} -- journalctl -b`"
                    )
                sleep(0.1)


def _greets(address: str, port: int) -> bool:
    try:
        with socket.create_connection((address, port), timeout=2) as connection:
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False
