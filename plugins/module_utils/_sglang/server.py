# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This file is private to the collection: it may change without notice.

"""Where a server is and how it is asked, from what a module was given and the file that the server was started with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ansible_collections.gpufleet.sglang.plugins.module_utils._sglang.client import Client, url_host
from ansible_collections.gpufleet.sglang.plugins.module_utils._sglang.config import (
    ConfigError,
    is_secret_argument,
    load_server_yaml,
)

# The options of the documentation fragment gpufleet.sglang.server.
SERVER_OPTIONS: Mapping[str, dict[str, Any]] = {
    "name": {"type": "str"},
    "config": {"type": "path"},
    "host": {"type": "str"},
    "port": {"type": "int"},
    "api_key": {"type": "str", "no_log": True},
    "ca_path": {"type": "path"},
    "validate_certs": {"type": "bool", "default": True},
}

_DEFAULT_HOST = "127.0.0.1"
_DEFAULT_PORT = 30000


class ServerError(ValueError):
    """It cannot be told where the server is."""


@dataclass(frozen=True)
class Server:
    """A server, and what it was started with (``config``, by SGLang's names; empty where no file tells)."""

    host: str
    port: int
    tls: bool
    api_key: str
    admin_api_key: str
    verify: bool | str
    config: Mapping[str, Any]

    @property
    def url(self) -> str:
        """The address that a client on the same host asks."""
        return f"{'https' if self.tls else 'http'}://{url_host(self.host)}:{self.port}"

    @property
    def secrets(self) -> tuple[str, ...]:
        """What must not show in anything that is returned."""
        configured = [str(value) for name, value in self.config.items() if is_secret_argument(name)]
        return tuple(secret for secret in (self.api_key, self.admin_api_key, *configured) if secret)

    def client(self) -> Client:
        """A client with the key that models are asked with."""
        return Client(self.url, self.api_key, self.verify)

    def admin_client(self) -> Client:
        """A client with the key that changes are asked with; SGLang takes the other one where there is none."""
        return Client(self.url, self.admin_api_key or self.api_key, self.verify)


def find_server(params: Mapping[str, Any]) -> Server:
    """The server that the options mean. Raises ServerError with one line for a file that cannot be read."""
    config = _read_config(params)
    port = params["port"] or config.get("port", _DEFAULT_PORT)
    if isinstance(port, bool) or not str(port).isdecimal() or not 0 < int(port) < 65536:
        raise ServerError(f"port: expected 1 to 65535, found {port!r}; correct the option port or the file config")
    return Server(
        host=str(params["host"] or config.get("host", _DEFAULT_HOST)),
        port=int(port),
        tls=bool(config.get("ssl-certfile")),
        api_key=str(params["api_key"] or config.get("api-key", "")),
        admin_api_key=str(params.get("admin_api_key") or config.get("admin-api-key", "")),
        verify=(params["ca_path"] or True) if params["validate_certs"] else False,
        config=config,
    )


def _read_config(params: Mapping[str, Any]) -> dict[str, Any]:
    path, name = params["config"], params["name"]
    if path is None and not name:
        return {}
    try:
        with open(path or f"/etc/sglang/{name}/server.yaml", encoding="utf-8") as stream:
            return load_server_yaml(stream.read())
    except FileNotFoundError as error:
        if path is None:
            return {}
        raise ServerError(f"config cannot be read: {error}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ServerError(f"the configuration of the server cannot be read: {error}") from None
    except ConfigError as error:
        raise ServerError(str(error)) from None
