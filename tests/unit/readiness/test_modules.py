# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The modules as a whole, against a stand-in on a real socket and a systemctl of the test's own."""

from __future__ import annotations

import io
import json
import os
import socket
import tarfile
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.gpufleet.sglang.plugins.module_utils._host.processes import Pulse
from ansible_collections.gpufleet.sglang.plugins.module_utils._readiness.waiting import HostProbes
from ansible_collections.gpufleet.sglang.plugins.modules import diagnose, server_ready
from ansible_collections.gpufleet.sglang.tests.support.standin.standin import Standin

SYSTEMCTL = """#!/bin/sh
printf '%s\\n' {lines}
"""
JOURNALCTL = """#!/bin/sh
case "$*" in
    *--follow*) exec sleep 600 ;;
    *--dmesg*) ;;
    *) cat {journal} ;;
esac
"""
FAST: dict[str, Any] = {"poll_interval": 0.05, "health_interval": 0.1, "stall_timeout": 0}


class Host:
    """This machine, with one unit whose only process is this one."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.journal = directory / "journal"
        self.journal.write_text("")
        cgroup = Path("/proc/self/cgroup").read_text().splitlines()[-1].split(":", 2)[-1]
        self.unit = {
            "LoadState": "loaded", "ActiveState": "active", "SubState": "running", "Result": "success",
            "InvocationID": "one", "MainPID": str(os.getpid()), "NRestarts": "0", "ControlGroup": cgroup,
        }  # fmt: skip
        self.program("journalctl", JOURNALCTL.format(journal=self.journal))
        self.is_in()

    def program(self, name: str, text: str) -> None:
        (self.directory / name).write_text(text)
        (self.directory / name).chmod(0o755)

    def is_in(self, **properties: str) -> None:
        self.unit.update(properties)
        lines = " ".join(f"'{key}={value}'" for key, value in self.unit.items())
        self.program("systemctl", SYSTEMCTL.format(lines=lines))

    def says(self, *lines: str) -> None:
        entries = [json.dumps({"MESSAGE": line, "__REALTIME_TIMESTAMP": "1795990000000000"}) for line in lines]
        self.journal.write_text("\n".join(entries) + "\n")


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return Host(tmp_path)


def run(module: ModuleType, capsys: pytest.CaptureFixture[str], check: bool = False, **params: Any) -> dict[str, Any]:
    arguments = {"name": "kimi", "_ansible_check_mode": check, "_ansible_remote_tmp": "/tmp", **params}
    with patch_module_args(arguments), pytest.raises(SystemExit):
        module.main()
    return dict(json.loads(capsys.readouterr().out))


def standin(*steps: Any, **script: Any) -> Standin:
    return Standin({"port": 0, "steps": list(steps) or ["listen", "ready"], **script}, io.StringIO())


def test_ready(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    with standin() as server:
        assert server.url
        result = run(server_ready, capsys, port=server.port, models=["tiny"], **FAST)
    assert result["ready"]
    assert result["phase"] == "ready"
    assert result["models"] == ["tiny"]
    assert result["unit"] == "sglang-kimi.service"
    assert [path for _at, path in server.requests].count("/v1/completions") == 1
    assert "/health" not in {path for _at, path in server.requests}


def test_before_the_port_is_open_nothing_is_asked(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        result = run(server_ready, capsys, port=port, timeout=1, **FAST)
    assert result["failure"]["cause"] == "timeout"
    assert result["tolerated"] == 0


def test_what_the_options_leave_open_is_in_the_file(
    host: Host, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = tmp_path / "server.yaml"
    with standin(api_key="k3y", models=["kimi"]) as server:
        assert server.url
        config.write_text(f'api-key: "k3y"\nport: {server.port}\nserved-model-name: "kimi"\n')
        assert run(server_ready, capsys, config=str(config), **FAST)["ready"]
        config.write_text(f'api-key: "other k3y"\nport: {server.port}\n')
        result = run(server_ready, capsys, config=str(config), **FAST)
    assert result["failure"]["cause"] == "unauthorized"
    assert "k3y" not in json.dumps(result)


def test_a_failure_has_all_there_is_to_know(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    host.is_in(ActiveState="failed", Result="exit-code", ExecMainCode="1", ExecMainStatus="1")
    host.says("api_key='s3cret'", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 448.00 MiB.")
    result = run(server_ready, capsys, **FAST)
    assert result["failed"]
    assert result["failure"]["cause"] == "gpu_out_of_memory_at_runtime"
    assert result["msg"].startswith("sglang-kimi.service is not ready: a GPU ran out of memory")
    assert "s3cret" not in json.dumps(result)
    assert result["phase"] == "starting"


def test_check_mode_looks_once_and_does_not_fail(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    host.is_in(LoadState="not-found", ActiveState="inactive")
    result = run(server_ready, capsys, check=True, **FAST)
    assert not result.get("failed")
    assert result["failure"]["cause"] == "unit_missing"
    assert result["attempts"] == 1


def test_a_slice_is_taken_up_by_the_next(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    with standin("listen") as server:
        assert server.url
        first = run(server_ready, capsys, port=server.port, slice=0.2, **FAST)
        second = run(server_ready, capsys, port=server.port, slice=0.2, resume=first["resume"], **FAST)
    assert not first["ready"]
    assert second["phase"] == "warming_up"
    assert second["attempts"] > first["attempts"]
    assert second["elapsed"] > first["elapsed"]


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"name": "a b"}, "cannot be the name of a systemd unit"),
        ({"config": "/nothing/there.yaml"}, "cannot be read"),
    ],
)
@pytest.mark.parametrize("module", [server_ready, diagnose])
def test_bad_input_is_one_line(
    module: ModuleType, params: dict[str, Any], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run(module, capsys, **params)
    assert result["failed"]
    assert said in result["msg"]
    assert "\n" not in result["msg"]


def test_a_host_without_systemd(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    host.program("systemctl", "#!/bin/sh\necho 'Failed to connect to bus' >&2; exit 1\n")
    for module in (server_ready, diagnose):
        assert "Failed to connect to bus" in run(module, capsys)["msg"]


METRICS = """sglang:http_requests_active{endpoint="/v1/chat/completions",method="POST"} 60.0
sglang:num_queue_reqs{pp_rank="0"} 0.0
sglang:num_running_reqs{pp_rank="0"} 60.0
sglang:token_usage{pp_rank="0"} 0.12
"""
INFO = {
    "version": "0.5.23", "pp_size": 8, "pp_async_batch_depth": 0, "pp_max_micro_batch_size": None, "api_key": "s3cret",
    "internal_states": [{"pp_max_micro_batch_size": 256, "max_running_requests": 2048}],
}  # fmt: skip


def test_a_running_pipeline_is_diagnosed(host: Host, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    host.says("[2026-11-01 10:07:12 PP0] a line", "Authorization: Bearer s3cret")
    answers = {"/metrics": {"body": METRICS}, "/server_info": {"body": INFO}}
    bundle = tmp_path / "bundle.tar.gz"
    with standin(answers=answers) as server:
        assert server.url
        result = run(diagnose, capsys, port=server.port, seconds=0.3, bundle=str(bundle))
    assert (result["state"], result["cause"]) == ("slow", "concentrated")
    assert result["load"]["filled"] == 1
    assert "pp_max_micro_batch_size to 8" in result["advice"]
    assert result["changed"]
    assert bundle.stat().st_mode & 0o777 == 0o600
    with tarfile.open(bundle) as archive:
        names = {member.name.partition("/")[2] for member in archive}
        texts = b"".join((archive.extractfile(member) or io.BytesIO()).read() for member in archive.getmembers())
    assert names == {
        "diagnosis.json", "journal.txt", "kernel.txt", "nvidia_smi.txt", "packages.txt", "server_config.json",
        "server_info.json", "status.txt", "unit.txt",
    }  # fmt: skip
    assert b"s3cret" not in texts
    assert b"concentrated" in texts


def test_a_server_that_does_not_tell_what_it_runs_with_is_ready_all_the_same(
    host: Host, capsys: pytest.CaptureFixture[str]
) -> None:
    with standin() as server:
        assert server.url
        result = run(diagnose, capsys, port=server.port, seconds=0.3)
    assert (result["state"], result["cause"]) == ("ready", "")
    assert "load" not in result


def test_a_failed_server_is_diagnosed(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    host.is_in(ActiveState="failed", Result="exit-code", ExecMainCode="1", ExecMainStatus="2")
    host.says("launch_server.py: error: unrecognized arguments: --foo")
    result = run(diagnose, capsys, seconds=0.3)
    assert (result["state"], result["cause"]) == ("failed", "bad_argument")
    assert result["evidence"] == ["launch_server.py: error: unrecognized arguments: --foo"]


@pytest.mark.parametrize("steps", [["listen"], ["listen", {"become": "hung"}]])
def test_a_server_that_hangs_is_diagnosed_in_time(
    host: Host, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, steps: list[Any]
) -> None:
    """Also where it hangs in the request that is to show whether it does."""
    monkeypatch.setattr(HostProbes, "pulse", lambda *_words: Pulse(1, 1.0, 1))
    began = time.monotonic()
    with standin(*steps) as server:
        assert server.url
        result = run(diagnose, capsys, port=server.port, seconds=1)
    assert (result["state"], result["cause"]) == ("hung", "stalled")
    assert time.monotonic() - began < 10.0


def test_in_check_mode_no_bundle_is_written(host: Host, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    host.is_in(ActiveState="inactive")
    result = run(diagnose, capsys, check=True, seconds=0.3, bundle=str(tmp_path / "bundle.tar.gz"))
    assert (result["state"], result["changed"]) == ("stopped", True)
    assert not (tmp_path / "bundle.tar.gz").exists()
