# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Whatever bytes a server sends as status, headers and body, the client makes an answer of them, and no traceback."""

from __future__ import annotations

import contextlib
import socketserver
import threading
from collections.abc import Iterator

import pytest
from ansible_collections.gpufleet.sglang.plugins.module_utils._sglang.client import MAX_BODY, Client
from ansible_collections.gpufleet.sglang.tests.unit.readiness.test_fuzz import EXAMPLES
from hypothesis import example, given
from hypothesis import strategies as st

PIECES = st.sampled_from(
    [
        b"HTTP/1.1 ", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 302 Found\r\n", b"HTTP/1.1 100 Continue\r\n\r\n", b"204 ",
        b"\r\n", b"\n", b"\r\n\r\n", b": ", b" ", b"\t", b"\x00", b"\xff", b"Content-Length: ", b"-1", b"7",
        b"99999999999999999999", b"Transfer-Encoding: chunked\r\n", b"7\r\n{\"a\":1}\r\n", b"0\r\n\r\n", b"fffff\r\n",
        b"Content-Encoding: gzip\r\n", b"Content-Encoding: deflate, gzip\r\n", b"Content-Type: text/html; charset=",
        b"Connection: keep-alive\r\n", b"Location: ", b"http://[", b"//", b"http://127.0.0.1:99999/", b"Set-Cookie: ",
        b"a=b; Expires=", b"WWW-Authenticate: Digest ", b"Proxy-Connection: ", b"Retry-After: ", b"{\"data\": [",
    ]
)  # fmt: skip
ANSWERS = st.tuples(
    st.sampled_from([b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 302 Found\r\n", b"HTTP/1.0 503 Busy\r\n", b"HTTP/2 "]),
    st.lists(PIECES | st.binary(max_size=20), max_size=20).map(b"".join),
).map(b"".join)


class Server(socketserver.TCPServer):
    """Sends the same bytes to everybody."""

    allow_reuse_address = True
    answer = b""

    def handle_error(self, *_request: object) -> None:
        """Clients may go away."""


class Handler(socketserver.StreamRequestHandler):
    """Waits for the head of a request, answers, and hangs up."""

    def handle(self) -> None:
        while self.rfile.readline().strip():
            pass
        with contextlib.suppress(OSError):
            self.wfile.write(self.server.answer)  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.05,))
        thread.start()
        yield made
        made.shutdown()
        thread.join()


@EXAMPLES
@given(ANSWERS)
@example(b"\r\n")  # its error is an empty line
def test_any_bytes_are_an_answer(server: Server, answer: bytes) -> None:
    server.answer = answer
    got = Client(f"http://127.0.0.1:{server.server_address[1]}").get("/v1/models", 30)
    assert bool(got.error) != bool(got.status)
    assert not got.late
    assert len(got.body) <= MAX_BODY
    assert len(got.text) <= 230
    assert not got.untrusted
    got.json()
