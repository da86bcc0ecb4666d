# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What testhosts writes for Ansible and for pip, and its command line."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from ansible_collections.gpufleet.sglang.tests.support.testhosts_lib import cli, image, inventory, namespace, wheels

INPUTS = wheels.INPUTS


def test_inventory_has_all_that_ansible_needs() -> None:
    text = inventory.render("mine", {"gpu-b": ("127.0.0.1", 40123), "gpu-a": ("10.89.3.10", 22)}, Path("/c/ssh"))
    group = yaml.safe_load(text)["sglang"]
    assert group["hosts"] == {
        "gpu-a": {"ansible_host": "10.89.3.10", "ansible_port": 22},
        "gpu-b": {"ansible_host": "127.0.0.1", "ansible_port": 40123},
    }
    assert group["vars"]["ansible_ssh_private_key_file"] == "/c/ssh/id_ed25519"
    assert "UserKnownHostsFile=/c/ssh/known_hosts" in group["vars"]["ansible_ssh_common_args"]
    assert group["vars"]["ansible_ssh_pipelining"] is True
    assert group["vars"]["ansible_python_interpreter"] == "/usr/bin/python3"


def test_pins_of_wheels() -> None:
    names = ["torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl", "Jinja2-3.1.6-py3-none-any.whl"]
    names += ["huggingface_hub-2.4.0-py3-none-any.whl"]
    assert wheels.pins(names) == ["huggingface-hub==2.4.0", "jinja2==3.1.6", "torch==2.13.0"]


def test_cuda_libraries_of_torch_are_what_is_not_locked() -> None:
    requirements = [
        "typing-extensions>=4.10.0",
        'cuda-toolkit[cublas,cudart]==13.0.3; platform_system == "Linux"',
        'triton==3.7.1; platform_system == "Linux" and python_version < "3.15"',
        'optree>=0.13.0; extra == "optree"',
        "Jinja2",
    ]
    locked = ["jinja2==3.1.6", "triton==3.8.0", "typing-extensions==4.16.0"]
    assert wheels.not_locked(requirements, locked) == ["cuda-toolkit[cublas,cudart]==13.0.3"]


def test_lock_has_what_is_asked_for() -> None:
    def lines(name: str) -> list[str]:
        return [line for line in (INPUTS / name).read_text().splitlines() if line and not line.startswith("#")]

    locked = dict(line.split("==") for line in lines(wheels.LOCK))
    asked = [line.partition("==") for name in ("requirements.in", "requirements-nodeps.in") for line in lines(name)]
    for name, _sign, version in asked:
        found = locked[name.lower().replace("_", "-")]
        assert version in ("", found), f"{name} {found} is locked, {version} is asked for: run testhosts lock"


def test_sdists_are_never_downloaded() -> None:
    assert "--only-binary=:all:" in wheels.target_arguments()


def test_image_changes_with_its_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    before = image.reference()
    monkeypatch.setattr(image, "PACKAGES", (*image.PACKAGES, "curl"))
    assert image.reference() != before


def test_settings_of_this_machine_reach_the_build() -> None:
    command = image.build_command(
        Path("/t/root.tar"), Path("/t/debian.sources"), ['Acquire::http::Proxy "http://p:1";']
    )
    assert '--aptopt=Acquire::http::Proxy "http://p:1";' in command
    assert command[-3:] == ["bookworm", "/t/root.tar", "/t/debian.sources"]


def test_namespace_is_needed_without_cgroup_v2_only(tmp_path: Path) -> None:
    assert namespace.needed(tmp_path)
    (tmp_path / "cgroup.controllers").touch()
    assert not namespace.needed(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["up", "--set", "Mine", "gpu-a"], "lower-case letters"),
        (["up", "--set", "mine", "gpu_a"], "lower-case letters"),
        (["up", "--set", "mine", "--port", "30000", "gpu-a"], "two port numbers"),
        (["up", "gpu-a"], "--set"),
        (["up", "--set", "mine"], "HOST"),
        ([], "COMMAND"),
    ],
)
def test_bad_command_line_is_one_clear_line(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    assert caught.value.code == 2
    assert complaint in capsys.readouterr().err.splitlines()[-1]


def test_run_wants_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "--"]) == 1
    assert capsys.readouterr().err == "testhosts: nothing to run: testhosts run -- CMD...\n"


def test_port_of_this_machine_goes_to_one_host(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["up", "--set", "mine", "--port", "30000:30000", "gpu-a", "gpu-b"]) == 1
    assert "give one HOST with it" in capsys.readouterr().err
