# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This file is private to the collection: it may change without notice.

"""An SGLang server over HTTP, with requests: bounded in time and size, without redirects, proxies or surprises."""

from __future__ import annotations

import contextlib
import json
import signal
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

try:
    import requests
except ImportError:
    HAS_REQUESTS = False
else:
    HAS_REQUESTS = True

    class _Session(requests.Session):
        """Redirects lead nowhere. Told only not to follow them, requests reads all of their bodies to see where to."""

        def get_redirect_target(self, _resp: requests.Response) -> None:
            return None


MAX_BODY = 1 << 20
"""Bytes of an answer that are read at most; most of SGLang's are far smaller, /server_info has some 40,000."""


@dataclass(frozen=True)
class Answer:
    """What came back: an HTTP status with a body, or an ``error`` in its place, ``late`` where the time was over."""

    status: int = 0
    body: bytes = b""
    error: str = ""
    elapsed: float = 0.0
    late: bool = False

    def json(self) -> Any:
        """The body as JSON; None where it is not."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None

    @property
    def untrusted(self) -> bool:
        """Whether the server's certificate was refused, which no waiting helps against."""
        words = ("certificate", "doesn't match")  # the second one is how urllib3 before 2.0 says it
        return self.error.startswith("TLS: ") and any(word in self.error.lower() for word in words)

    @property
    def text(self) -> str:
        """What to show of the answer to a person: one short line."""
        if self.error:
            return self.error
        words = " ".join(self.body[:2000].decode("utf-8", "replace").split())
        return f"HTTP {self.status}" + (f": {words[:160]}" if words else "")


class Client:
    """A client of one server, for the main thread. No method raises for what the network or the server does."""

    def __init__(self, base_url: str, api_key: str = "", verify: bool | str = True, max_body: int = MAX_BODY) -> None:
        self.base_url = base_url
        self._max_body = max_body
        self._session = _Session()
        self._session.trust_env = False  # a proxy that is meant for the world would answer in the server's place
        self._session.verify = verify
        self._session.headers["Accept-Encoding"] = "identity"  # so that no small answer grows when it is unpacked
        if api_key:
            # As bytes: in a text, requests takes Latin-1 only.
            self._session.headers["Authorization"] = f"Bearer {api_key}".encode()

    def get(self, path: str, timeout: float) -> Answer:
        """GET ``path``; ``timeout`` in seconds bounds the whole of it."""
        return self._ask("GET", path, timeout, None)

    def post(self, path: str, content: Any, timeout: float) -> Answer:
        """POST ``content`` as JSON; ``timeout`` in seconds bounds the whole of it."""
        return self._ask("POST", path, timeout, content)

    def _ask(self, method: str, path: str, timeout: float, content: Any) -> Answer:
        began = time.monotonic()
        try:
            with _bounded(timeout):
                status, body = self._request(method, path, timeout, content)
            return Answer(status, body, "", time.monotonic() - began)
        except (_LateError, requests.exceptions.Timeout):
            return Answer(error=f"no whole answer within {timeout:g} s", elapsed=time.monotonic() - began, late=True)
        except _LongError:
            error = f"an answer of more than {self._max_body} bytes"
        except requests.exceptions.SSLError as problem:
            error = f"TLS: {_reason(problem)}"
        except requests.exceptions.ConnectionError as problem:
            error = _reason(problem)
        except (requests.exceptions.RequestException, ValueError, OSError) as problem:
            error = f"not an answer of HTTP: {_reason(problem)}"
        return Answer(error=error, elapsed=time.monotonic() - began)

    def _request(self, method: str, path: str, timeout: float, content: Any) -> tuple[int, bytes]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # who turns validate_certs off need not be told at each request
            response = self._session.request(method, self.base_url + path, json=content, timeout=timeout, stream=True)
        with response:
            body = bytearray()
            for chunk in response.iter_content(1 << 14):
                body += chunk
                if len(body) > self._max_body:
                    raise _LongError
            return response.status_code, bytes(body)


class _LateError(Exception):
    """The time for a request is over."""


class _LongError(Exception):
    """An answer is longer than anybody wants it."""


@contextlib.contextmanager
def _bounded(seconds: float) -> Iterator[None]:
    """Raise _LateError after some time.

    The timeout of requests is for each read: a server that sends a byte now and then never exceeds it. Only a signal
    ends it wherever it is, in a handshake or among the headers. It is repeated, should a destructor swallow the first.
    """

    def too_late(*_signal: object) -> None:
        raise _LateError

    earlier = signal.signal(signal.SIGALRM, too_late)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.001), 0.1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, earlier)


def _reason(problem: BaseException) -> str:
    """The innermost cause, which is the only part of a chain of wrapped errors that tells something."""
    seen: set[int] = set()
    while id(problem) not in seen:
        seen.add(id(problem))
        inner = getattr(problem, "reason", None) or next(
            (arg for arg in problem.args if isinstance(arg, Exception)), None
        )
        if not isinstance(inner, BaseException):
            break
        problem = inner
    text = " ".join(str(problem).rsplit(">: ", 1)[-1].split())
    return text[:200] or type(problem).__name__


def url_host(host: str) -> str:
    """The host part of a URL for a client on the same machine as a server that was given ``host``."""
    bare = host.strip("[]")
    if bare in ("", "0.0.0.0"):
        return "127.0.0.1"
    if bare == "::":
        return "[::1]"
    return f"[{bare}]" if ":" in bare else bare
