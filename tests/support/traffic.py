# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Clients that ask a server again and again: how many requests failed, and how long none was answered."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise

import requests


@dataclass(frozen=True)
class Outcome:
    """What a request came to, an HTTP status or the name of an error, and when, in seconds of the monotonic clock."""

    at: float
    text: str

    @property
    def answered(self) -> bool:
        return self.text == "200"


def ask(url: str, tokens: int, over: Callable[[], bool], timeout: float = 120) -> list[Outcome]:
    """One client: a request, a tenth of a second, the next one, until it is ``over``."""
    outcomes = []
    with requests.Session() as session:
        session.trust_env = False
        while not over():
            content = {"model": "tiny", "prompt": "1 2 3", "max_tokens": tokens, "ignore_eos": True}
            try:
                text = str(session.post(f"{url}/v1/completions", json=content, timeout=timeout).status_code)
            except requests.exceptions.RequestException as error:
                text = type(error).__name__
            outcomes.append(Outcome(time.monotonic(), text))
            time.sleep(0.1)
    return outcomes


def longest_gap(outcomes: Iterable[Outcome]) -> float:
    """The most seconds between two answers."""
    moments = sorted(outcome.at for outcome in outcomes if outcome.answered)
    return max((later - earlier for earlier, later in pairwise(moments)), default=0.0)


def main() -> None:
    """Print one JSON object: ``answered``, ``failed``, what the failures were, and ``longest_gap`` in seconds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--clients", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=1)
    arguments = parser.parse_args()

    until = time.monotonic() + arguments.seconds
    with ThreadPoolExecutor(arguments.clients) as pool:
        clients = [
            pool.submit(ask, arguments.url, arguments.tokens, lambda: time.monotonic() >= until)
            for _client in range(arguments.clients)
        ]
    outcomes = [outcome for client in clients for outcome in client.result()]
    failures = [outcome.text for outcome in outcomes if not outcome.answered]
    told = {
        "answered": len(outcomes) - len(failures),
        "failed": len(failures),
        "failures": failures[:5],
        "longest_gap": longest_gap(outcomes),
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main()
