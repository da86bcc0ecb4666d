# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What must stay true of the repository as a whole, where two files have to agree and no tool compares them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
ROLES = sorted(path for path in (ROOT / "roles").glob("*") if path.is_dir())
MODULES = sorted(path.stem for path in (ROOT / "plugins" / "modules").glob("*.py"))
PRIVATE_UTILS = sorted((ROOT / "plugins" / "module_utils").rglob("*.py"))
SOURCES = sorted(
    path
    for room in ("plugins", "roles", "tests")
    for path in (ROOT / room).rglob("*")
    if path.is_file() and (path.suffix == ".py" or (not path.suffix and path.stat().st_mode & 0o100))
)

LICENCE_HEADER = (
    "# Copyright (c) 2026, gpufleet contributors\n"
    "# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)\n"
    "# SPDX-License-Identifier: GPL-3.0-or-later\n"
)
PRIVATE_HEADER = "# This file is private to the collection: it may change without notice.\n"
YAML_TYPES: dict[str, tuple[type, ...]] = {
    "bool": (bool,),
    "dict": (dict,),
    "float": (float, int),
    "int": (int,),
    "list": (list,),
    "path": (str,),
    "raw": (object,),
    "str": (str,),
}


def load(path: Path) -> Any:
    """Return the content of a YAML file, an empty mapping for one without content or one that is not there."""
    return (yaml.safe_load(path.read_text(encoding="utf-8")) if path.exists() else None) or {}


def role_defaults(role: Path) -> dict[str, Any]:
    """Return the public variables of a role with their values."""
    return dict(load(role / "defaults" / "main.yml"))


def role_options(role: Path) -> dict[str, dict[str, Any]]:
    """Return what the entry points of a role document, by variable."""
    specs = load(role / "meta" / "argument_specs.yml")["argument_specs"]
    return {name: option for entry_point in specs.values() for name, option in entry_point.get("options", {}).items()}


def is_template(value: object) -> bool:
    """Tell whether a default is computed by Ansible, so that its type and its value are not known here."""
    return isinstance(value, str) and "{{" in value


def name_of(path: Path) -> str:
    """Name a test case after a path in the repository."""
    return str(path.relative_to(ROOT))


def test_action_group_has_every_module() -> None:
    group = load(ROOT / "meta" / "runtime.yml")["action_groups"]["sglang"]
    assert group == MODULES


def test_oldest_tested_ansible_core_is_the_required_one() -> None:
    tested = [tuple(map(int, re.findall(r"\d+", path.stem))) for path in (ROOT / "requirements").glob("core-*.txt")]
    required = load(ROOT / "meta" / "runtime.yml")["requires_ansible"]
    assert required == ">={}.{}.0".format(*min(tested))


def test_changelog_ends_with_the_version_of_the_collection() -> None:
    releases = load(ROOT / "changelogs" / "changelog.yaml")["releases"]
    newest = max(releases, key=lambda version: [int(part) for part in version.split(".")])
    assert newest == load(ROOT / "galaxy.yml")["version"]


def test_plugins_are_no_python_package() -> None:
    assert list((ROOT / "plugins").rglob("__init__.py")) == []


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_source_has_licence_header(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert LICENCE_HEADER in text.split('"""')[0], f"{name_of(path)} must start with:\n{LICENCE_HEADER}"


@pytest.mark.parametrize("path", PRIVATE_UTILS, ids=name_of)
def test_private_module_util_says_so(path: Path) -> None:
    assert PRIVATE_HEADER in path.read_text(encoding="utf-8"), f"{name_of(path)} must say:\n{PRIVATE_HEADER}"


@pytest.mark.parametrize("role", ROLES, ids=name_of)
class TestRole:
    """The files of a role agree with each other."""

    @pytest.mark.parametrize("file", ["README.md", "meta/main.yml", "meta/argument_specs.yml", "tasks/main.yml"])
    def test_has_file(self, role: Path, file: str) -> None:
        assert (role / file).is_file()

    def test_every_default_is_documented(self, role: Path) -> None:
        assert sorted(role_defaults(role).keys() - role_options(role).keys()) == []

    def test_documented_defaults_are_the_defaults(self, role: Path) -> None:
        defaults = role_defaults(role)
        documented = {name: option.get("default") for name, option in role_options(role).items()}
        known = {name: value for name, value in defaults.items() if not is_template(value)}
        assert {name: documented.get(name) for name in known} == known
        assert {name for name, value in documented.items() if value is not None} <= defaults.keys()

    def test_defaults_have_the_documented_type(self, role: Path) -> None:
        options = role_options(role)
        for name, value in role_defaults(role).items():
            if value is None or is_template(value):
                continue
            documented = options.get(name, {}).get("type", "str")
            assert isinstance(value, YAML_TYPES[documented]), f"{name} is documented as {documented}"
            assert isinstance(value, bool) <= (documented in {"bool", "raw"}), f"{name} is documented as {documented}"

    def test_required_variables_have_no_default(self, role: Path) -> None:
        required = {name for name, option in role_options(role).items() if option.get("required")}
        assert sorted(required & role_defaults(role).keys()) == []
