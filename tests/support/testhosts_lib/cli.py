# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The command line of testhosts."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ..tiny_model import make_tiny_model
from . import debian, image, inventory, keys, namespace, wheels
from .cache import Cache, write_if_changed
from .podman import Host, Podman, Recipe, free_address
from .shell import TestHostsError, passthrough, say

DESCRIPTION = """\
Systemd hosts for tests, on this machine, with podman: Ansible reaches them over ssh.

  testhosts prepare --wheels          install what is missing, build the image, fetch SGLang for CPUs (once)
  testhosts up --set mine gpu-a gpu-b start two hosts on a bridge of their own, write an inventory
  testhosts down --set mine           remove them, with everything that belongs to them

In each host: /srv/wheels (SGLang for CPUs, installable without an index) and /srv/models (tiny models), read-only.
Root on Debian 12 or 13 needs nothing beforehand; an ordinary user needs a working rootless podman.
"""
EPILOG = "State is kept in $GPUFLEET_CACHE, otherwise in ~/.cache/gpufleet. See docs/test_hosts.md."

MODEL = "tiny-opt"
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?")
_PORTS = re.compile(r"[0-9]{1,5}:[0-9]{1,5}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code of the command that it ran for the user, else 0, or 1 after an error line."""
    arguments = parser().parse_args(argv)
    handler: Callable[[Cache, argparse.Namespace], int] = arguments.handler
    try:
        return handler(Cache.of(os.environ), arguments)
    except TestHostsError as error:
        say(f"testhosts: {error}", to=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def parser() -> argparse.ArgumentParser:
    """The parser with all commands."""
    top = argparse.ArgumentParser(
        prog="testhosts", description=DESCRIPTION, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = top.add_subparsers(metavar="COMMAND", required=True)

    def command(handler: Callable[[Cache, argparse.Namespace], int], name: str, text: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text)
        added.set_defaults(handler=handler)
        return added

    def set_option(to: argparse.ArgumentParser) -> None:
        to.add_argument("--set", required=True, type=_name, help="name of the set of hosts")

    this = command(_prepare, "prepare", "install what is missing, build the image, make the models")
    this.add_argument("--wheels", action="store_true", help="fetch SGLang for CPUs into the wheel directory, too")

    this = command(_up, "up", "start hosts and write their inventory; does nothing when they run")
    set_option(this)
    this.add_argument("--image", help="an image of your own, with systemd, sshd and python3")
    this.add_argument(
        "--port", action="append", default=[], type=_ports, metavar="HOSTPORT:PORT", help="publish a port"
    )
    this.add_argument("hosts", nargs="+", type=_name, metavar="HOST")

    this = command(_down, "down", "remove hosts, and the set with its last one")
    set_option(this)
    this.add_argument("hosts", nargs="*", type=_name, metavar="HOST", help="default: all hosts of the set")

    command(_list, "list", "show all hosts")

    this = command(_exec, "exec", "run a command in a host")
    set_option(this)
    this.add_argument("host", type=_name, metavar="HOST")
    this.add_argument("command", nargs=argparse.REMAINDER, metavar="-- CMD", help="default: a shell")

    this = command(_reboot, "reboot", "shut a host down, start it, wait until it has booted")
    set_option(this)
    this.add_argument("host", type=_name, metavar="HOST")

    this = command(
        _run, "run", "run a command where podman works with these hosts (only differs on cgroup v1 machines)"
    )
    this.add_argument("command", nargs=argparse.REMAINDER, metavar="-- CMD")

    command(_lock, "lock", "resolve the requirements of SGLang for CPUs anew and write their lock file")
    return top


def _name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"{text!r}: a name has lower-case letters, digits and inner hyphens, at most 32"
        )
    return text


def _ports(text: str) -> str:
    if not _PORTS.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r}: expected two port numbers, such as 30000:30000")
    return text


def _after_dashes(command: Sequence[str]) -> list[str]:
    return list(command[1:] if command[:1] == ["--"] else command)


def _prepare(cache: Cache, arguments: argparse.Namespace) -> int:
    debian.install_missing()
    keys.ensure(cache)
    _ensure_model(cache)
    with _podman() as podman:
        _ensure_image(cache, podman)
    say(f"image {image.reference()}")
    if arguments.wheels:
        say(f"wheels {wheels.fill(cache)}")
    say(f"models {cache.models}")
    return 0


@contextmanager
def _podman() -> Iterator[Podman]:
    """Podman where it can work; when it is left without any container, the place is cleared."""
    with ExitStack() as stack:
        podman = Podman(stack.enter_context(namespace.entered()))
        yield podman
        idle = podman.idle()
    if idle:
        namespace.remove_if_unused()


def _ensure_image(cache: Cache, podman: Podman) -> str:
    name = image.reference()
    if not podman.has_image(name):
        with cache.locked("image"):
            if not podman.has_image(name):
                image.build(podman)
    return name


def _ensure_model(cache: Cache) -> None:
    with cache.locked("models"):
        make_tiny_model.write_model(cache.models / MODEL)


def _up(cache: Cache, arguments: argparse.Namespace) -> int:
    if arguments.port and len(arguments.hosts) > 1:
        raise TestHostsError("--port publishes a port of one host: give one HOST with it, the others without it")
    keys.ensure(cache)
    _ensure_model(cache)
    with _podman() as podman, cache.locked(f"set-{arguments.set}"):
        recipe = Recipe(
            image=arguments.image or _ensure_image(cache, podman),
            mounts=_mounts(cache),
            ports=tuple(arguments.port),
        )
        fresh = _bring_up(cache, podman, recipe, arguments.set, arguments.hosts)
        hosts = podman.hosts(arguments.set)
        podman.wait([host for host in hosts if host.name in fresh])
        hosts = [host for host in hosts if host.alive()]
        path = _write_inventory(cache, arguments.set, hosts)
    for host in hosts:
        say(f"{host.name} {'started' if host.name in fresh else 'runs'} at {host.address[0]} port {host.address[1]}")
        if host.name in arguments.hosts and host.recipe != recipe.key:
            say(f"{host.name} was made with another image, mounts or ports; run `down` and `up` to create it again")
    if not wheels.directory(cache).is_dir():
        say("new hosts have no /srv/wheels: run `testhosts prepare --wheels` first to provide SGLang for CPUs")
    say(f"ansible-playbook --inventory {path} PLAYBOOK")
    return 0


def _write_inventory(cache: Cache, set_name: str, hosts: Sequence[Host]) -> Path:
    path = cache.hosts(set_name) / "inventory.yml"
    write_if_changed(path, inventory.render(set_name, {host.name: host.address for host in hosts}, cache.ssh))
    return path


def _mounts(cache: Cache) -> tuple[tuple[str, str], ...]:
    offered = wheels.directory(cache)
    return (*([(str(offered), "/srv/wheels")] if offered.is_dir() else []), (str(cache.models), "/srv/models"))


def _bring_up(cache: Cache, podman: Podman, recipe: Recipe, set_name: str, wanted: Sequence[str]) -> list[str]:
    """Start what does not run; returns the names of the hosts that were started."""
    known = {host.name: host for host in podman.hosts(set_name)}
    for host in known.values():
        if host.cache != str(cache.root):
            raise TestHostsError(
                f"the set {set_name} belongs to GPUFLEET_CACHE={host.cache}, this is {cache.root}: take another name, "
                f"or remove it with `testhosts down --set {set_name}`"
            )
    idle = [name for name in dict.fromkeys(wanted) if name not in known or not known[name].alive()]
    subnet = podman.subnet(set_name) if idle else ""
    for name in idle:
        if name in known:
            if known[name].status != "running" and podman.start(known[name]):
                continue
            say(f"{name} cannot be started again; creating it again")
            podman.remove(known.pop(name))
        taken = [host.bridge_address for host in known.values()]
        # podman forgets to give back the address of a host that it could not start.
        while not podman.create(cache, recipe, set_name, name, address := free_address(subnet, taken)):
            taken.append(address)
        known = {host.name: host for host in podman.hosts(set_name)}
    return idle


def _down(cache: Cache, arguments: argparse.Namespace) -> int:
    with _podman() as podman, cache.locked(f"set-{arguments.set}"):
        for host in podman.hosts(arguments.set):
            if not arguments.hosts or host.name in arguments.hosts:
                podman.remove(host)
                say(f"removed {host.name}")
        left = podman.hosts(arguments.set)
        if left:
            _write_inventory(cache, arguments.set, left)
        else:
            podman.remove_network(arguments.set)
            shutil.rmtree(cache.hosts(arguments.set), ignore_errors=True)
    return 0


def _list(_cache: Cache, _arguments: argparse.Namespace) -> int:
    with _podman() as podman:
        hosts = podman.hosts()
    rows = [("SET", "HOST", "STATE", "SSH")]
    for host in hosts:
        state = "dead" if host.status == "running" and not host.alive() else host.status
        rows.append((host.set_name, host.name, state, f"{host.address[0]}:{host.address[1]}"))
    widths = [max(map(len, column)) for column in zip(*rows)]
    for row in rows:
        say("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
    return 0


def _one(podman: Podman, set_name: str, name: str) -> Host:
    for host in podman.hosts(set_name):
        if host.name == name:
            if not host.alive():
                raise TestHostsError(f"{name} does not run: `testhosts up --set {set_name} {name}`")
            return host
    raise TestHostsError(f"the set {set_name} has no host {name}: `testhosts list` shows what there is")


def _exec(_cache: Cache, arguments: argparse.Namespace) -> int:
    command = _after_dashes(arguments.command) or ["/bin/bash", "-l"]
    with _podman() as podman:
        return passthrough(
            podman.execute(_one(podman, arguments.set, arguments.host), command, terminal=sys.stdin.isatty())
        )


def _reboot(cache: Cache, arguments: argparse.Namespace) -> int:
    with _podman() as podman, cache.locked(f"set-{arguments.set}"):
        host = _one(podman, arguments.set, arguments.host)
        podman.restart(host)
        podman.wait([host])
    say(f"{host.name} has booted")
    return 0


def _run(_cache: Cache, arguments: argparse.Namespace) -> int:
    command = _after_dashes(arguments.command)
    if not command:
        raise TestHostsError("nothing to run: testhosts run -- CMD...")
    with namespace.entered() as enter:
        # nsenter starts in the root directory.
        place = ["env", "-C", os.getcwd()] if enter else []
        return passthrough([*enter, *place, *command])


def _lock(_cache: Cache, _arguments: argparse.Namespace) -> int:
    say(f"wrote {wheels.lock()}")
    return 0
