# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Sphinx configuration of the site that `make docs` builds. The guides keep their places in the checkout."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from docutils import nodes

project = "gpufleet.sglang"
author = "gpufleet contributors"
project_copyright = "2026, gpufleet contributors"
title = html_title = html_short_title = "gpufleet.sglang"
extensions = ["myst_parser", "sphinx_antsibull_ext"]
myst_heading_anchors = 3
myst_enable_extensions = ["deflist"]
highlight_language = "YAML+Jinja"
html_theme = "sphinx_ansible_theme"
html_theme_options = {"display_version": False, "topbar_links": {}, "documentation_home_url": "index.html"}
html_show_sphinx = False
nitpicky = True
default_role = "any"

SOURCES = "https://github.com/gpufleet/gpufleet.sglang/blob/main/"
_LINK = re.compile(r"(?<=\]\()(?!https?:|#|mailto:)(?P<path>[^)#\s]*)(?P<anchor>#[^)\s]*)?(?=\))")


def to_sources(docname: str, text: str, pages: Path) -> str:
    """Let the links of a guide to what is no page of the site, such as a directory of examples, lead to the sources."""

    def lead(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(docname), match["path"]))
        return match[0] if (pages / target).is_file() else SOURCES + target + (match["anchor"] or "")

    return _LINK.sub(lead, text)


def _read(app: Any, docname: str, source: list[str]) -> None:
    if Path(app.env.doc2path(docname)).suffix == ".md":
        source[0] = to_sources(docname, source[0], Path(app.srcdir))


# Labels of Ansible's own documentation that antsibull-docs refers to. Other sites resolve them with intersphinx; this
# one is built without a network.
ANSIBLE = "https://docs.ansible.com/ansible/latest/"
LABELS = {
    "action_plugins": "plugins/action.html",
    "ansible_configuration_settings": "reference_appendices/config.html",
    "common_return_values": "reference_appendices/common_return_values.html",
}


def _refer(app: Any, env: Any, node: Any, content: Any) -> nodes.reference | None:
    page = LABELS.get(node.get("reftarget", ""))
    return nodes.reference("", "", content, internal=False, refuri=ANSIBLE + page) if page else None


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("source-read", _read)
    app.connect("missing-reference", _refer)
