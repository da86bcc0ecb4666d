# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This file is private to the collection: it may change without notice.

"""What a layout is worth under load: memory that is read, collectives between GPUs, hops between stages, prefill. Pure.

Right for comparing layouts with each other; the constants and the published figures behind them are named where they
stand. Times are seconds, sizes bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.memory import Layout
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.model import ModelShape
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.partition import head_bytes, share_of_experts
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.scheduler import Schedule


@dataclass(frozen=True)
class Link:
    """How GPUs reach each other: *latency* of one collective with the launch of its kernels, *bandwidth* of the bus."""

    latency: float
    bandwidth: float


# Fitted to Kimi K2.6 with TP 8 on 8 RTX PRO 6000, 1024 tokens in and 256 out (github.com/soulmachine/skills,
# benchmark "canon", SGLang INT4 with FP8 KV cache): 59.6 / 201 / 295 / 345 / 345 / 382 tokens/s at 1 to 128 requests.
# With P2P the latency follows from 90 tokens/s at 1 request (Kimi K2.5, github.com/voipmonitor/rtx6kpro,
# models/kimi-k25.md); the bandwidth of P2P and the row of NVLink are nominal, not fitted to a measurement.
LINKS = {
    "pcie": Link(90e-6, 12e9),
    "pcie_p2p": Link(62e-6, 25e9),
    "nvlink": Link(15e-6, 300e9),
}

# The part of the memory bandwidth that decoding reaches: with it, pp 8 without collectives gives 33.7 tokens/s at one
# request, where 34 were measured.
MEMORY_EFFICIENCY = 0.6

# What prefill computes for each byte that the memory could deliver, as reached and not as advertised.
_FLOP_PER_BYTE = 39.0

# Relative figures do not depend on it; it stands in where the bandwidth of the GPUs is not known.
TYPICAL_BANDWIDTH = 1.5e12

_ACTIVATION_BYTES = 2
_BYTES_PER_NUMBER = {"int4": 0.5625, "awq": 0.5625, "gptq": 0.5625, "nvfp4": 0.5625, "mxfp4": 0.53, "fp8": 1.0}


@dataclass(frozen=True)
class _Stage:
    """What one GPU of a pipeline stage reads and computes."""

    layers: int
    fixed: float
    routed: float
    per_request: float
    flops_per_token: float


@dataclass(frozen=True)
class Machine:
    """A model in one layout on its GPUs. *attention_dp* data-parallel ranks share the *tp_size* GPUs of a stage."""

    shape: ModelShape
    stages: tuple[_Stage, ...]
    tp_size: int
    attention_dp: int
    dcp_size: int
    link: Link
    bandwidth: float

    def _collectives(self, tokens: int) -> float:
        """Return the seconds one layer spends on its all-reduces (ring: 2 (n - 1) / n of the bytes pass each GPU)."""
        if self.tp_size == 1:
            return 0.0
        payload = tokens * self.shape.hidden_size * _ACTIVATION_BYTES
        attention_tp = self.tp_size // self.attention_dp
        seconds = 0.0
        # One behind the attention, among the GPUs that share it; one behind the experts, among all.
        for members, size in ((attention_tp, payload / self.attention_dp), (self.tp_size, payload)):
            if members > 1:
                seconds += self.link.latency + 2 * (members - 1) / members * size / self.link.bandwidth
        if self.dcp_size > 1:
            # The partial results of the attention are put together, and the queries are gathered before.
            seconds += 2 * self.link.latency + 2 * payload / self.link.bandwidth
        return seconds

    def _hop(self, tokens: int) -> float:
        if len(self.stages) == 1:
            return 0.0
        return self.link.latency / 2 + tokens * self.shape.hidden_size * _ACTIVATION_BYTES / self.link.bandwidth

    def stage_seconds(self, batch: int) -> list[float]:
        """Return what each stage needs to decode a micro-batch of *batch* requests, with the hop to the next."""
        share = share_of_experts(self.shape, batch)
        reach = self.bandwidth * MEMORY_EFFICIENCY
        requests = math.ceil(batch / self.attention_dp)
        layer, hop = self._collectives(batch), self._hop(batch)
        return [
            (stage.fixed + stage.routed * share + stage.per_request * requests) / reach + stage.layers * layer + hop
            for stage in self.stages
        ]

    def chunk_seconds(self, tokens: int) -> float:
        """Return what the slowest stage needs for *tokens* of prompts in one pass."""
        share = share_of_experts(self.shape, tokens)
        layer = self._collectives(tokens)
        return max(
            max(
                stage.flops_per_token * tokens / (self.bandwidth * _FLOP_PER_BYTE),
                (stage.fixed + stage.routed * share) / (self.bandwidth * MEMORY_EFFICIENCY),
            )
            + stage.layers * layer
            for stage in self.stages
        ) + self._hop(tokens)

    def first_token_seconds(self, prompt: int, chunk: int) -> float:
        """Return the time to the first token of a lone prompt: its chunks follow each other through the stages."""
        size = min(prompt, chunk) if chunk > 0 else prompt
        passes = -(-prompt // max(size, 1))
        return (passes + len(self.stages) - 1) * self.chunk_seconds(max(size, 1))

    def bubble_fraction(self, prompt: int, chunk: int) -> float:
        """Return the part of the time that stages idle while a lone prompt is prefilled, 0.0 to 1.0."""
        passes = -(-prompt // max(chunk, 1)) if chunk > 0 else 1
        return (len(self.stages) - 1) / (passes + len(self.stages) - 1)

    def tokens_per_second(self, planned: Schedule, prompt: int, answer: int, chunk: int) -> float:
        """Return the output tokens per second of a steady load: each answer has its prompt to be prefilled as well."""
        if not planned.running:
            return 0.0
        times = [(self.stage_seconds(size), count) for size, count in planned.batches]
        # The slowest stage serves all slots in turn; a slot passes all stages: whichever takes longer.
        busy = sum(max(stages) * count for stages, count in times)
        decode = max(busy, sum(times[0][0])) / planned.running
        size = min(prompt * planned.running, chunk) if chunk > 0 else prompt
        prefill = self.chunk_seconds(size) / size * prompt / answer if prompt else 0.0
        return 1.0 / (decode + prefill)


def machine(
    shape: ModelShape,
    layout: Layout,
    tokens_per_request: float,
    tp_size: int,
    attention_dp: int,
    dcp_size: int,
    link: Link,
    bandwidth: float,
) -> Machine:
    """Return *shape* split as *layout*; *bandwidth* in bytes per second, *tokens_per_request* those in the KV cache."""
    return Machine(
        shape,
        tuple(_stages(shape, layout, tokens_per_request, tp_size, attention_dp)),
        tp_size,
        attention_dp,
        dcp_size,
        link,
        bandwidth,
    )


def _stages(shape: ModelShape, layout: Layout, tokens: float, tp_size: int, attention_dp: int) -> Sequence[_Stage]:
    weights = shape.weights
    width = next((size for name, size in _BYTES_PER_NUMBER.items() if name in shape.quantization.lower()), 2.0)
    plain = 1.0 if width == 1.0 else 2.0
    active = shape.experts_per_token / shape.experts if shape.experts else 1.0
    stages = []
    start = 0
    for rank in layout.ranks:
        end = start + rank.layers
        routed = sum(weights.routed[start:end])
        dense = sum(weights.layers[start:end]) - routed
        head = head_bytes(shape) if end == shape.layers else 0
        states = shape.cached[start:end].count(False) * shape.state_bytes / tp_size
        stages.append(
            _Stage(
                layers=rank.layers,
                fixed=dense / (tp_size / attention_dp) + head / tp_size,
                routed=routed / tp_size,
                per_request=rank.kv_bytes_per_token * tokens + states,
                flops_per_token=2 * (routed * active / width + dense / plain) / tp_size,
            )
        )
        start = end
    return stages
