# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How test hosts are described to podman, and read back from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpufleet.sglang.tests.support.testhosts_lib.cache import Cache
from ansible_collections.gpufleet.sglang.tests.support.testhosts_lib.podman import (
    Host,
    Recipe,
    free_address,
    host_of,
    run_arguments,
    ulimits,
)
from ansible_collections.gpufleet.sglang.tests.support.testhosts_lib.shell import TestHostsError

CONTAINER = "5d0c" * 16
RECIPE = Recipe(image="localhost/image:1", mounts=(("/c/models", "/srv/models"),), ports=("31000:30000",))


def entry(**changes: Any) -> dict[str, Any]:
    """Return an entry of podman ps, as it is for a running host."""
    labels = {"set": "mine", "host": "gpu-a", "address": "10.89.3.10", "cache": "/c", "recipe": RECIPE.key}
    return {
        "Id": CONTAINER,
        "State": "running",
        "Pid": 4711,
        "Labels": {"io.other": "x", **{f"gpufleet.{key}": value for key, value in labels.items()}},
        "Ports": None,
        **changes,
    }


def proc(room: Path, cgroup: str, environ: str = "container=podman") -> Path:
    """Return a /proc in which process 4711 is in that cgroup and has that environment."""
    (room / "4711").mkdir()
    (room / "4711" / "cgroup").write_text(f"0::{cgroup}\n")
    (room / "4711" / "environ").write_text(f"TERM=xterm\0{environ}\0")
    return room


def test_host_is_reached_on_the_bridge() -> None:
    host = host_of(entry())
    assert host == Host("mine", "gpu-a", CONTAINER, "running", 4711, "10.89.3.10", None, "/c", RECIPE.key)
    assert host.address == ("10.89.3.10", 22)


def test_host_with_published_sshd_is_reached_through_it() -> None:
    ports = [
        {"host_ip": "127.0.0.1", "container_port": 30000, "host_port": 31000, "range": 1, "protocol": "tcp"},
        {"host_ip": "127.0.0.1", "container_port": 22, "host_port": 40123, "range": 1, "protocol": "tcp"},
    ]
    assert host_of(entry(Ports=ports)).address == ("127.0.0.1", 40123)


def test_running_host_is_alive(tmp_path: Path) -> None:
    assert host_of(entry()).alive(proc(tmp_path, f"/libpod_parent/libpod-{CONTAINER}/init.scope"))


def test_running_host_of_an_ordinary_user_is_alive(tmp_path: Path) -> None:
    assert host_of(entry()).alive(proc(tmp_path, "/user/init.scope", f"container_uuid={CONTAINER[:32]}"))


def test_killed_host_is_not_alive_whatever_podman_says(tmp_path: Path) -> None:
    assert not host_of(entry()).alive(tmp_path)


def test_reused_process_id_is_no_host(tmp_path: Path) -> None:
    assert not host_of(entry()).alive(proc(tmp_path, "/user.slice"))


def test_stopped_host_is_not_alive(tmp_path: Path) -> None:
    assert not host_of(entry(State="exited")).alive(proc(tmp_path, f"/libpod-{CONTAINER}"))


def test_labels_written_are_the_labels_read() -> None:
    arguments = run_arguments(Cache(Path("/c")), RECIPE, "mine", "gpu-a", "10.89.3.10", by_port=False)
    labels = dict(part[len("--label=") :].split("=", 1) for part in arguments if part.startswith("--label="))
    assert host_of(entry(Labels=labels)) == host_of(entry())


def test_everything_mounted_is_read_only() -> None:
    arguments = run_arguments(Cache(Path("/c")), RECIPE, "mine", "gpu-a", "10.89.3.10", by_port=False)
    volumes = [part for part in arguments if part.startswith("--volume=")]
    assert "--volume=/c/models:/srv/models:ro" in volumes
    assert all(volume.endswith(":ro") for volume in volumes)


@pytest.mark.parametrize(("by_port", "published"), [(False, []), (True, ["127.0.0.1::22"])])
def test_ports_are_published_on_this_machine_only(by_port: bool, published: list[str]) -> None:
    arguments = run_arguments(Cache(Path("/c")), RECIPE, "mine", "gpu-a", "10.89.3.10", by_port=by_port)
    found = [part[len("--publish=") :] for part in arguments if part.startswith("--publish=")]
    assert found == [*published, "127.0.0.1:31000:30000"]


def test_names_of_sets_and_hosts_cannot_be_confused() -> None:
    def container(set_name: str, host: str) -> str:
        arguments = run_arguments(Cache(Path("/c")), RECIPE, set_name, host, "10.89.3.10", by_port=False)
        return next(part for part in arguments if part.startswith("--name="))

    assert container("a-b", "c") != container("a", "b-c")


def test_recipe_changes_with_each_part() -> None:
    others = [
        Recipe("localhost/image:2", RECIPE.mounts, RECIPE.ports),
        Recipe(RECIPE.image, (), RECIPE.ports),
        Recipe(RECIPE.image, RECIPE.mounts, ()),
    ]
    assert len({RECIPE.key, *(other.key for other in others)}) == 4


def test_lowest_free_address_is_taken() -> None:
    assert free_address("10.89.3.0/24", []) == "10.89.3.10"
    assert free_address("10.89.3.0/24", ["10.89.3.10", "10.89.3.12"]) == "10.89.3.11"


def test_full_subnet_is_an_error() -> None:
    with pytest.raises(TestHostsError, match="no address is free"):
        free_address("10.89.3.0/28", [f"10.89.3.{last}" for last in range(10, 15)])


def test_limits_are_left_to_podman_where_it_may_raise_them() -> None:
    assert ulimits({"nofile": 20000, "nproc": 96364}, may_raise=True) == []


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"nofile": 20000, "nproc": 96364}, ["--ulimit=nofile=20000:20000", "--ulimit=nproc=32768:32768"]),
        ({"nofile": -1, "nproc": -1}, ["--ulimit=nofile=1048576:1048576", "--ulimit=nproc=32768:32768"]),
    ],
)
def test_limits_stay_below_those_of_this_machine(limits: dict[str, int], expected: list[str]) -> None:
    assert ulimits(limits, may_raise=False) == expected
