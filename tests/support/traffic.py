# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Clients that ask a server again and again, and tell in the end how many of their requests failed."""

from __future__ import annotations

import argparse
import json
import time
from concurrent.futures import ThreadPoolExecutor

import requests


def ask(url: str, tokens: int, until: float) -> list[str]:
    """One client: a request, a tenth of a second, the next one. What each came to; ``200`` is an answer."""
    outcomes = []
    with requests.Session() as session:
        session.trust_env = False
        while time.monotonic() < until:
            content = {"model": "tiny", "prompt": "1 2 3", "max_tokens": tokens, "ignore_eos": True}
            try:
                outcomes.append(str(session.post(f"{url}/v1/completions", json=content, timeout=120).status_code))
            except requests.exceptions.RequestException as error:
                outcomes.append(type(error).__name__)
            time.sleep(0.1)
    return outcomes


def main() -> None:
    """Print one JSON object: ``answered``, ``failed`` and what the failures were."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--clients", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=1)
    arguments = parser.parse_args()

    until = time.monotonic() + arguments.seconds
    with ThreadPoolExecutor(arguments.clients) as pool:
        clients = [pool.submit(ask, arguments.url, arguments.tokens, until) for _client in range(arguments.clients)]
    outcomes = [outcome for client in clients for outcome in client.result()]
    failures = [outcome for outcome in outcomes if outcome != "200"]
    print(json.dumps({"answered": len(outcomes) - len(failures), "failed": len(failures), "failures": failures[:5]}))


if __name__ == "__main__":
    main()
