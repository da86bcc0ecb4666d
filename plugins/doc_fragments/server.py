# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How a module finds the server it asks: C(extends_documentation_fragment: gpufleet.sglang.server)."""

from __future__ import annotations


class ModuleDocFragment:
    """The options in SERVER_OPTIONS of module_utils/_sglang/server.py."""

    DOCUMENTATION = r"""
requirements:
  - requests (Python library, on the host of the server; the virtual environment of SGLang has it)
options:
  name:
    description:
      - The server, by the name that the role P(gpufleet.sglang.sglang_server#role) deployed it under.
    type: str
  config:
    description:
      - The file that the server was started with. Host, port, keys and TLS are taken from it where the options do not
        give them.
      - The default is C(/etc/sglang/NAME/server.yaml) where O(name) is given and that file is there.
    type: path
  host:
    description:
      - Where the server listens.
      - The default is C(host) in O(config), else V(127.0.0.1).
    type: str
  port:
    description:
      - The port of the server.
      - The default is C(port) in O(config), else V(30000).
    type: int
  api_key:
    description:
      - The key to ask with.
      - The default is C(api-key) in O(config).
    type: str
  ca_path:
    description:
      - A file with the certificates that a server with TLS is trusted by. The default is the system's.
    type: path
  validate_certs:
    description:
      - Whether the certificate of a server with TLS has to be valid.
    type: bool
    default: true
"""
