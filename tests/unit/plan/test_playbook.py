# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The playbook gpufleet.sglang.plan: what it prints and what it writes, without a host and without a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpufleet.sglang.tests.unit.plan.models import KIMI

CHECKOUT = Path(__file__).parents[3]
GIVEN = {
    "target": "localhost",
    "plan_pp_size": 8,
    "plan_target_concurrency": 32,
    "plan_max_running_requests": 64,
    "plan_gpus": {"count": 8, "memory_mib": 97887, "name": '<b>GPU</b> & "more"'},
}


def play(directory: Path, given: dict[str, Any], *more: str) -> subprocess.CompletedProcess[str]:
    """Run the playbook with *given* as extra variables, in a home of its own."""
    return subprocess.run(
        [sys.executable, "-m", "ansible", "playbook", "gpufleet.sglang.plan", "-e", json.dumps(given), *more],
        env={
            **os.environ,
            "ANSIBLE_COLLECTIONS_PATH": str(CHECKOUT / ".collections"),
            "ANSIBLE_HOME": str(directory / "home"),
            "ANSIBLE_LOCALHOST_WARNING": "false",
            "ANSIBLE_INVENTORY_UNPARSED_WARNING": "false",
            "COLUMNS": "80",
            "LC_ALL": "C.UTF-8",
            "PWD": str(directory),
        },
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    )


class Page(HTMLParser):
    """Collects what a page would load, and the tags it has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.tags: dict[str, int] = {}
        self.words = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] = self.tags.get(tag, 0) + 1
        self.loads += [str(value) for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data: str) -> None:
        self.words += data


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The plan of the first user, printed and written; its configuration is a file on the controller."""
    directory = tmp_path_factory.mktemp("plan")
    (directory / "config.json").write_text(json.dumps({**KIMI, "architectures": ["<script>Kimi</script>"]}))
    given = {
        **GIVEN,
        "plan_model_config_file": "config.json",
        "plan_measured": [
            {"concurrency": 1, "output_tokens_per_second": 34},
            {"concurrency": 32, "output_tokens_per_second": 248, "pp_max_micro_batch_size": 8},
        ],
        "plan_json": str(directory / "plan.json"),
        "plan_html": "plan.html",
    }
    run = play(directory, given)
    assert run.returncode == 0, run.stdout + run.stderr
    return directory, run.stdout


def test_it_prints_the_plan(written: tuple[Path, str]) -> None:
    lines = written[1].splitlines()
    assert "▸ balanced              4  [ 4][ 4][ 4][ 4][ 4][ 4][ 4][ 4]      362-513   ███" in lines
    assert max(map(len, lines[: lines.index("ok: [localhost]")])) <= 80
    assert "  SGLANG_PP_LAYER_PARTITION=8,8,8,8,8,7,7,7" in lines


def test_json(written: tuple[Path, str]) -> None:
    plans = json.loads((written[0] / "plan.json").read_text())
    assert set(plans) == {"localhost"}
    assert plans["localhost"]["args"]["pp_max_micro_batch_size"] == 4
    assert plans["localhost"]["memory"]["kv_tokens"] == 793_392


def test_html_is_complete_and_escaped(written: tuple[Path, str]) -> None:
    page = Page((written[0] / "plan.html").read_text())
    assert page.loads == []
    assert "script" not in page.tags
    assert page.tags["table"] == 2
    assert "<script>Kimi</script>, 61 layers, int4" in page.words
    assert '<b>GPU</b> & "more"' in page.words
    assert "793,392" in page.words
    assert "64 // 8 = 8" in page.words


def test_inventory(tmp_path: Path) -> None:
    """What the roles would use is what is planned; a plan that cannot work fails at the end, shown all the same."""
    (tmp_path / "hosts.yml").write_text(
        json.dumps(
            {
                "sglang": {
                    "hosts": {"one": {}, "two": {"sglang_engine_version": "0.4.5"}},
                    "vars": {
                        "ansible_python_interpreter": sys.executable,
                        "sglang_engine_version": "0.5.15.post1",
                        "sglang_server_target_concurrency": 60,
                        "sglang_server_args": {"pp_size": 8, "max_running_requests": 60, "pp_max_micro_batch_size": 60},
                    },
                }
            }
        )
    )
    run = play(tmp_path, {"plan_json": "plan.json"}, "-i", "hosts.yml", "-c", "local")
    assert run.returncode == 2
    assert run.stdout.count("! concentrated") == 2
    assert "SGLang 0.4.5 cannot split a model into 8 pipeline stages." in run.stdout
    plans = json.loads((tmp_path / "plan.json").read_text())
    assert {host: plan["works"] for host, plan in plans.items()} == {"one": True, "two": False}
    assert plans["one"]["scheduler"]["occupancy"] == [60, 0, 0, 0, 0, 0, 0, 0]


def test_check_mode_writes_nothing(tmp_path: Path) -> None:
    run = play(tmp_path, {**GIVEN, "plan_json": str(tmp_path / "plan.json")}, "--check")
    assert run.returncode == 0
    assert "32 REQUESTS IN 8 SLOTS" in run.stdout
    assert not (tmp_path / "plan.json").exists()
