# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Ask the server on a test host one question, and print what it says."""

from __future__ import annotations

import argparse
from pathlib import Path

import requests
import yaml


def main() -> None:
    """Find the host in an inventory, the model in its list, and ask."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("inventory", type=Path, help="as testhosts writes it")
    parser.add_argument("host")
    parser.add_argument("question")
    parser.add_argument("--port", type=int, default=30000)
    arguments = parser.parse_args()

    hosts = yaml.safe_load(arguments.inventory.read_text(encoding="utf-8"))["sglang"]["hosts"]
    url = f"http://{hosts[arguments.host]['ansible_host']}:{arguments.port}/v1"
    with requests.Session() as session:
        session.trust_env = False
        model = session.get(f"{url}/models", timeout=10).json()["data"][0]["id"]
        question = {"role": "user", "content": arguments.question}
        answer = session.post(
            f"{url}/chat/completions", json={"model": model, "messages": [question], "max_tokens": 16}, timeout=60
        )
        answer.raise_for_status()
    content = answer.json()
    print(f"POST {url}/chat/completions")
    print(f"you   {arguments.question}")
    print(f"{model}  {content['choices'][0]['message']['content'].strip()}")
    print(f"({content['usage']['completion_tokens']} tokens; the model's weights are random, the way to them is real)")


if __name__ == "__main__":
    main()
