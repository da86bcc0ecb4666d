# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A virtual environment with an SGLang that is as small as can be, and has the parts that are asked for."""

from __future__ import annotations

import json
import sys
from pathlib import Path

SERVER_ARGS = """
import json, os, sys

class Deprecated(__import__("argparse")._StoreAction):
    def __init__(self, *args, new_flag=None, **kwargs):
        self.new_flag = new_flag
        super().__init__(*args, **kwargs)

class ServerArgs:
    @staticmethod
    def add_cli_args(parser):
        parser.add_argument("--model-path", "--model", required=True)
        parser.add_argument("--tp-size", "--tensor-parallel-size", type=int, default=1)
        parser.add_argument("--pp-size", "--pipeline-parallel-size", type=int, default=1)
        parser.add_argument("--pp-max-micro-batch-size", type=int)
        parser.add_argument("--attention-backend", choices=["flashinfer", "triton"])
        parser.add_argument("--cuda-graph-max-bs-decode", type=int)
        parser.add_argument("--cuda-graph-max-bs-prefill", type=int)
        parser.add_argument("--cuda-graph-bs", type=int, nargs="+")
        parser.add_argument("--old-way", action=Deprecated, new_flag="--new-way")
        parser.add_argument("--trust-remote-code", action="store_true")
        parser.add_argument("--extra-config", type=json.loads)
        parser.add_argument("--api-key")
        parser.add_argument("--device")
        parser.add_argument("--config")

    def __init__(self, given):
        self.given = given

    def check_server_args(self):
        seen = {"given": self.given, "environment": dict(os.environ), "argv": sys.argv, "cwd": os.getcwd()}
        if "SEEN" in os.environ:
            with open(os.environ["SEEN"], "a") as stream:
                print(json.dumps(seen), file=stream)
        print("something on the standard output")
        assert self.given.get("pp-max-micro-batch-size", 1) > 0, "pp_max_micro_batch_size must be positive"
        assert self.given.get("tp-size") != 3
        if self.given.get("attention-backend") == "triton":
            raise ValueError("triton needs a GPU with compute capability 8.0")
        if "bs" in str(self.given.get("cuda-graph-bs")):
            json.loads("{")
        if self.given["model-path"].endswith("broken"):
            raise ValueError("this model is broken")
        if self.given.get("tp-size") == 5:
            __import__("socket").create_connection(("127.0.0.1", 9))

def prepare_server_args(argv):
    with open(argv[1]) as stream:
        return ServerArgs(json.load(stream))
"""
MODELS = """
class StagesForCausalLM:
    def forward(self, input_ids, pp_proxy_tensors=None):
        pass

class WholeForCausalLM:
    def forward(self, input_ids):
        pass
"""


def make_engine(directory: Path, version: str = "0.5.23", server_args: str = SERVER_ARGS) -> Path:
    """An engine in *directory*, with the Python that runs the tests behind it."""
    site = directory / "lib" / "python3.11" / "site-packages"
    (site / "sglang" / "srt" / "models").mkdir(parents=True)
    (site / "sglang" / "srt" / "server_args.py").write_text(server_args)
    (site / "sglang" / "srt" / "models" / "tiny.py").write_text(MODELS)
    information = site / f"sglang-{version}.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n")
    (information / "RECORD").write_text("")
    set_python(directory, f'PYTHONPATH={site} exec {sys.executable} "$@"')
    return directory


def set_python(engine: Path, command: str) -> None:
    """Have the Python of the engine do that."""
    python = engine / "bin" / "python"
    python.parent.mkdir(exist_ok=True)
    python.write_text(f"#!/bin/sh\n{command}\n")
    python.chmod(0o755)


def make_model(directory: Path, architecture: str = "StagesForCausalLM") -> Path:
    """A model of which there is nothing but its class."""
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps({"architectures": [architecture]}))
    return directory
