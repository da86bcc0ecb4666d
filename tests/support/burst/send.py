# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Send bursts of concurrent requests to an SGLang server, and wait for their answers.

Each burst comes twice. "spread": each request by itself and all at once, as users send them; the first ones are at work
before the last ones have arrived. "together": all of them in one message, which the scheduler gets in one piece.
The requests are called spread-0, spread-1, ..., together-0, ...: by these names the server's log tells them apart.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import requests

# Tokens of a prompt. Each prompt of a burst starts with another one: a scheduler may let requests that start alike wait
# for each other.
_PROMPT = 4
_TIMEOUT = 300.0


def prompt(number: int) -> list[int]:
    """Return the tokens of the prompt of request *number*, 0 to 500."""
    return [number + position for position in range(_PROMPT)]


def body(names: list[str], prompts: list[list[int]], tokens: int) -> dict[str, Any]:
    """Return the body of a message with one request for each of *names*, each with an answer of *tokens* tokens."""
    sampling = {"max_new_tokens": tokens, "ignore_eos": True, "temperature": 0.0}
    # A message of several requests stays in one piece only where they come as tokens.
    return {"rid": names, "input_ids": prompts, "sampling_params": sampling}


@contextmanager
def session() -> Iterator[requests.Session]:
    """Yield a session that goes straight to the server, whatever proxy is set in the environment."""
    with requests.Session() as opened:
        opened.trust_env = False
        yield opened


def ask(url: str, names: list[str], prompts: list[list[int]], tokens: int) -> int:
    """Send one message, and return how many answers of the right length came back."""
    with session() as opened:
        answer = opened.post(f"{url}/generate", json=body(names, prompts, tokens), timeout=_TIMEOUT)
    answer.raise_for_status()
    return sum(1 for one in answer.json() if one["meta_info"]["completion_tokens"] == tokens)


def spread(url: str, count: int, tokens: int) -> int:
    """Send *count* requests at once, each by itself, and return how many were answered in full."""
    with ThreadPoolExecutor(count) as threads:
        answered = threads.map(lambda number: ask(url, [f"spread-{number}"], [prompt(number)], tokens), range(count))
        return sum(answered)


def together(url: str, count: int, tokens: int) -> int:
    """Send *count* requests in one message, and return how many were answered in full."""
    names = [f"together-{number}" for number in range(count)]
    return ask(url, names, [prompt(number) for number in range(count)], tokens)


def main() -> None:
    """Send both bursts, one after the other; fail where an answer is missing or too short."""
    parser = argparse.ArgumentParser(description="Send bursts of concurrent requests to an SGLang server.")
    parser.add_argument("url", help="of the server, without a path")
    parser.add_argument("--requests", type=int, required=True, help="how many at once")
    parser.add_argument("--tokens", type=int, default=64, help="the length of each answer")
    arguments = parser.parse_args()
    for send in (spread, together):
        answered = send(arguments.url, arguments.requests, arguments.tokens)
        if answered != arguments.requests:
            parser.exit(1, f"{send.__name__}: expected {arguments.requests} answers in full, got {answered}\n")


if __name__ == "__main__":
    main()
