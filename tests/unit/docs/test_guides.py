# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every command and link of README and the guides: those that need no host run, all others are known to parse."""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpufleet.sglang.tests.unit.plan.models import KIMI

ROOT = Path(__file__).parents[3]
GUIDES = sorted(
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/*.md"), *ROOT.glob("roles/*/README.md")]
)
TOOLS = Path(sys.executable).parent
BLOCK = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`(ansible-doc [^`]+)`")
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)\s#]*)(?:#([^)\s]*))?\)")
# What reaches for the network, for packages or for the user's own files, and has nothing here that could be wrong.
ONLY_WORDS = {"export", "git", "python3", "/opt/sglang/bin/pip"}


def commands(text: str) -> list[list[str]]:
    """The commands of a guide as words, without the comments behind them."""
    found = INLINE.findall(text)
    for block in BLOCK.findall(text):
        found += [line[2:] for line in block.replace("\\\n", " ").splitlines() if line.startswith("$ ")]
    return [words for line in found for part in line.split(" && ") if (words := shlex.split(part, comments=True))]


def label(value: Any) -> str:
    """Name a test case."""
    return " ".join(value)[:80] if isinstance(value, list) else str(value.relative_to(ROOT))


ALL = [(guide, words) for guide in GUIDES for words in commands(guide.read_text(encoding="utf-8"))]


def ansible(directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run one of Ansible's commands in a directory that has nothing of the checkout but the installed collection."""
    environment = {
        **os.environ,
        "ANSIBLE_COLLECTIONS_PATH": str(ROOT / ".collections"),
        "ANSIBLE_HOME": str(directory / "ansible"),
        "ANSIBLE_LOCALHOST_WARNING": "false",
        "ANSIBLE_NOCOLOR": "1",
        "PWD": str(directory),
    }
    return subprocess.run(
        [str(TOOLS / words[0]), *words[1:]],
        cwd=directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def value_of(words: list[str], *options: str) -> list[str]:
    """The values that options have on a command line."""
    return [words[index + 1] for index, word in enumerate(words[:-1]) if word in options]


def extra_variables(words: list[str]) -> set[str]:
    """The names of the variables that a command line sets with -e."""
    names: set[str] = set()
    for value in value_of(words, "-e", "--extra-vars"):
        names |= (
            set(json.loads(value)) if value.startswith("{") else {part.split("=")[0] for part in shlex.split(value)}
        )
    return names


def known_variables() -> set[str]:
    """The public variables of the roles, and all that the playbooks read."""
    names = {name for path in ROOT.glob("roles/*/defaults/main.yml") for name in yaml.safe_load(path.read_text()) or {}}
    for path in [*ROOT.glob("playbooks/*.yml"), *ROOT.glob("playbooks/*/*.yml")]:
        names |= set(re.findall(r"\b[a-z]\w*\b", re.sub(r"(?m)^\s*#.*$", "", path.read_text())))
    return names


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A user's directory: the inventory that README shows, and the configuration of a model."""
    inventory = re.search(r"^```yaml\n(sglang:\n.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert inventory
    (tmp_path / "inventory.yml").write_text(inventory[1] + '    vault_sglang_api_key: "not-a-key"\n')
    (tmp_path / "your-playbook.yml").write_text("- hosts: all\n")
    return tmp_path


def test_there_are_commands() -> None:
    assert len(ALL) >= 20
    assert {words[0] for _guide, words in ALL} >= {"ansible-doc", "ansible-playbook", "make"}


@pytest.mark.parametrize(("guide", "words"), ALL, ids=label)
def test_command(guide: Path, words: list[str], directory: Path) -> None:
    program = words[0]
    if program == "ansible-playbook":
        # The inventory is the one of README, whatever the guide calls it.
        words = [
            "inventory.yml" if before in ("-i", "--inventory") else word for before, word in zip(["", *words], words)
        ]
        assert extra_variables(words) <= known_variables()
        checked = ansible(directory, *words, "--syntax-check")
        assert checked.returncode == 0, checked.stderr
        tags = {tag for value in value_of(words, "--tags", "--skip-tags") for tag in value.split(",")}
        if tags:
            listed = ansible(directory, "ansible-playbook", "-i", "inventory.yml", words[3], "--list-tags").stdout
            assert tags <= set(re.findall(r"[\w-]+", listed)), listed
    elif program == "ansible-doc":
        shown = ansible(directory, *words)
        assert shown.returncode == 0, shown.stderr
        assert len(shown.stdout.splitlines()) > 20, shown.stdout
        assert "was not found" not in shown.stderr
    elif program == "make":
        subprocess.run([*words, "--dry-run"], cwd=ROOT, check=True, capture_output=True)
    elif program == "cd":
        assert words[1] == Path(galaxy()["repository"]).name
    elif program == "ansible-galaxy":
        assert words[1:] == ["collection", "install", f"{galaxy()['namespace']}.{galaxy()['name']}"]
    elif program.startswith("tests/"):
        assert os.access(ROOT / program, os.X_OK)
        shown = subprocess.run([ROOT / program, words[1], "--help"], capture_output=True, text=True, check=True)
        for option in (word for word in words[2 : words.index("--") if "--" in words else None] if word[:2] == "--"):
            assert option in shown.stdout
    else:
        assert program in ONLY_WORDS, f"{guide.name} has a command that no test knows: {shlex.join(words)}"


def galaxy() -> Any:
    """What Galaxy knows of the collection."""
    return yaml.safe_load((ROOT / "galaxy.yml").read_text())


def test_the_plan_of_the_readme_is_made_of_its_inventory(directory: Path) -> None:
    (words,) = [words for _guide, words in ALL if "gpufleet.sglang.plan" in words and "plan_gpus" in str(words)][:1]
    (directory / "config.json").write_text(json.dumps(KIMI))
    run = ansible(directory, *words)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "32 REQUESTS IN 8 SLOTS" in run.stdout


@pytest.mark.parametrize("guide", GUIDES, ids=label)
def test_links_lead_somewhere_also_from_the_tarball(guide: Path) -> None:
    ignored = galaxy()["build_ignore"]
    for target, anchor in LINK.findall(guide.read_text(encoding="utf-8")):
        path = (guide.parent / target).resolve() if target else guide
        assert path.exists(), target
        inside = path.relative_to(ROOT)
        shipped = not any(fnmatch.fnmatch(part, ignore) for part in inside.parts[:1] for ignore in ignored)
        assert shipped, f"{target} is not in the tarball: link to {galaxy()['repository']}/tree/main/{inside}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in headings}


def test_workflows_run_targets_of_the_makefile() -> None:
    workflows = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
    targets = {
        word
        for path in workflows
        for job in yaml.safe_load(path.read_text())["jobs"].values()
        for step in job["steps"]
        if str(step.get("run", "")).startswith("make ")
        for word in re.sub(r"\$\{\{.*?\}\}", "", step["run"]).split()[1:]
        if "=" not in word
    }
    assert targets >= {"docs", "molecule", "test-quick"}
    for target in targets:
        subprocess.run(["make", "--dry-run", target], cwd=ROOT, check=True, capture_output=True)
