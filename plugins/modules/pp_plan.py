#!/usr/bin/python

# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: pp_plan
short_description: Plan the pipeline-parallel scheduler parameters of an SGLang server
version_added: 0.1.0
author:
  - gpufleet contributors (@gpufleet)
description:
  - Computes the arguments that decide how well an SGLang server with O(pp_size) above 1 works -
    C(pp_max_micro_batch_size), C(max_running_requests), C(mem_fraction_static), the size of the CUDA graphs and the
    split of the layers - from the model, the GPUs and the load that is expected.
  - Tells what the scheduler will do with that load, with SGLang's own values, without a cap and with each sensible cap,
    and what is worth knowing about it, as findings with stable codes.
  - Reads a model directory where it is given one - C(config.json) and the headers of the safetensors files, never the
    weights - and asks C(nvidia-smi) for the GPUs where it is not told. It changes nothing and needs nothing but Python.
  - 'The slots of the scheduler are C(pp_size + pp_async_batch_depth). A slot takes waiting requests until it holds
    C(pp_max_micro_batch_size); then the next slot has its turn. SGLang sets that cap to C(max_running_requests //
    pp_size), which lets the requests of a usual load gather in few slots, and leaves the stages of the others without
    work.'
extends_documentation_fragment:
  - gpufleet.sglang.attributes
attributes:
  check_mode:
    support: full
    details:
      - It never changes anything.
  diff_mode:
    support: none
    details:
      - There is nothing that could differ.
  idempotent:
    support: full
options:
  model_path:
    description:
      - Directory of the model on the host the module runs on.
      - Files outside of the directory are not read, whatever its index or its links say. A snapshot of the Hugging Face
        cache, which consists of links to the blobs next to it, is fine.
    type: path
  model_config:
    description:
      - The content of the C(config.json) of the model, where its files are not at hand.
      - The weights are then worked out from the shape of the model.
      - Without O(model_path) and O(model_config), the scheduler is planned without looking at memory.
    type: dict
  weight_bytes:
    description:
      - The size of all weights in bytes, to correct what is worked out from O(model_config).
    type: int
  gpus:
    description:
      - The GPUs of each node.
      - Left out, C(nvidia-smi) is asked on the host the module runs on, where a model is to be fitted or O(pp_size) is
        left out.
    type: dict
    suboptions:
      count:
        description: How many GPUs each node has.
        type: int
        required: true
      memory_mib:
        description: The memory of the smallest of them in MiB, as C(nvidia-smi) shows it.
        type: int
        required: true
      memory_bandwidth_gbs:
        description: Memory bandwidth of one GPU in GB/s, to tell how far a prediction is from what the memory allows.
        type: float
      name:
        description: What to call them.
        type: str
        default: ''
  nnodes:
    description: The number of nodes.
    type: int
    default: 1
  pp_size:
    description:
      - The number of pipeline stages.
      - Left out, all GPUs are used.
    type: int
  tp_size:
    description: The number of GPUs that share each stage.
    type: int
    default: 1
  dp_size:
    description:
      - The number of copies of the model.
      - Everything about the scheduler and the memory is told for one of them.
    type: int
    default: 1
  enable_dp_attention:
    description:
      - Whether the O(dp_size) ranks share the O(tp_size) GPUs of a stage, each with an attention of its own.
      - O(dp_size) then needs no further GPUs, as SGLang counts them.
    type: bool
    default: false
  dcp_size:
    description: How many of the O(tp_size) GPUs share the tokens of the KV cache among them (decode context parallel).
    type: int
    default: 1
  ep_size:
    description: Over how many groups of the O(tp_size) GPUs the experts are spread as whole experts.
    type: int
    default: 1
  layouts:
    description:
      - Whether to plan the layout that is given, or to look at all that use the GPUs there are.
    type: str
    choices:
      given: O(pp_size), O(tp_size), O(dp_size) and O(dcp_size) are planned as they are given.
      search: They are ignored. All layouts are ranked in RV(layouts), and the best one is planned.
    default: given
  gpu_link:
    description: How the GPUs reach each other, for O(layouts=search).
    type: str
    choices:
      pcie: PCIe without peer-to-peer access, data passes through the memory of the host.
      pcie_p2p: PCIe with peer-to-peer access.
      nvlink: NVLink.
    default: pcie
  target_concurrency:
    description:
      - The number of requests that are to run at once.
      - Left out, it is O(max_running_requests).
    type: int
  input_tokens:
    description: The length of a usual prompt in tokens.
    type: int
    default: 1024
  output_tokens:
    description: The length of a usual answer in tokens.
    type: int
    default: 1024
  strategy:
    description:
      - How to set C(pp_max_micro_batch_size) where O(pp_max_micro_batch_size) does not.
      - A value of O(pp_max_micro_batch_size) wins over the strategy.
    type: str
    choices:
      balanced: The smallest cap that lets O(target_concurrency) requests run at once, so that they fill all slots.
      sglang_auto: Left to SGLang, which takes C(max_running_requests // pp_size).
      uncapped: As large as C(max_running_requests), so that there is none.
    default: balanced
  layer_balance:
    description: How to split the layers over the stages where O(layer_partition) does not.
    type: str
    choices:
      memory: So that the KV cache holds the most tokens.
      latency: So that the slowest stage is as fast as can be.
      sglang: Left to SGLang.
    default: memory
  max_running_requests:
    description:
      - The limit on running requests, fixed by hand. Counted over all O(dp_size) copies, as SGLang does.
    type: int
  pp_max_micro_batch_size:
    description: The cap on the requests of one slot, fixed by hand.
    type: int
  pp_async_batch_depth:
    description: How many slots there are beyond O(pp_size).
    type: int
    default: 0
  mem_fraction_static:
    description: The part of the GPU memory for weights and KV cache, fixed by hand.
    type: float
  layer_partition:
    description: The number of layers of each stage, fixed by hand.
    type: list
    elements: int
  kv_cache_dtype:
    description: The type of the numbers in the KV cache.
    type: str
    choices: [auto, bf16, bfloat16, fp8_e4m3, fp8_e5m2]
    default: auto
  context_length:
    description:
      - The longest request in tokens, fixed by hand.
      - Left out, it is what the model says.
    type: int
  chunked_prefill_size:
    description:
      - The most tokens of a prompt that are processed in one pass, fixed by hand. V(-1) switches chunks off.
      - Left out, SGLang chooses by the memory of the GPU.
    type: int
  sglang_version:
    description:
      - The release the plan is for, for example V(0.5.15.post1).
      - Left out, it is the newest one this module knows, V(0.5.23).
    type: str
  measured:
    description:
      - Throughput that was measured on these GPUs with this model, to predict in tokens per second.
      - One point sets the height of the prediction, two with different micro-batches its shape as well.
    type: list
    elements: dict
    suboptions:
      concurrency:
        description: The number of requests that ran at once.
        type: int
        required: true
      output_tokens_per_second:
        description: Output tokens per second of all requests together.
        type: float
        required: true
      pp_max_micro_batch_size:
        description:
          - The cap that was in force.
          - Left out, it is SGLang's own, C(max_running_requests // pp_size).
        type: int
  on_error:
    description: What to do about a plan that cannot work, that is, one with a finding of severity V(error).
    type: str
    choices:
      fail: Fail, and return the whole plan with it.
      report: Return it with RV(works) V(false).
    default: fail
  show:
    description: Whether to print the plan on the controller.
    type: str
    choices:
      none: Print nothing.
      short: The table of alternatives and the findings.
      full: Everything, in 80 columns.
    default: none
seealso:
  - module: gpufleet.sglang.server_info
    description: What a running server really has.
  - module: gpufleet.sglang.micro_batch
    description: Change the cap of a running server.
notes:
  - Throughput is predicted for decoding, from what a stage has to read for each step. It says which way to go, not how
    far. Measure.
  - Sliding-window layers are counted like any other. SGLang can hold more tokens than said where it gives them a
    smaller cache.
"""

EXAMPLES = r"""
- name: Eight GPUs, eight stages, 32 requests at once
  gpufleet.sglang.pp_plan:
    model_path: /models/Kimi-K2.6
    pp_size: 8
    target_concurrency: 32
    max_running_requests: 64
    sglang_version: 0.5.23
  register: plan

- name: Show what to start the server with
  ansible.builtin.debug:
    msg: "{{ plan.args | combine({'env': plan.environment}) }}"

- name: Without a host, without a GPU
  delegate_to: localhost
  gpufleet.sglang.pp_plan:
    model_config: "{{ lookup('ansible.builtin.file', 'Kimi-K2.6/config.json') | from_json }}"
    gpus:
      count: 8
      memory_mib: 97887
      memory_bandwidth_gbs: 1792
    pp_size: 8
    target_concurrency: 32
    max_running_requests: 64
    measured:
      - concurrency: 1
        output_tokens_per_second: 34
      - concurrency: 32
        output_tokens_per_second: 248
        pp_max_micro_batch_size: 8
    show: full

- name: Judge values that are in use already
  gpufleet.sglang.pp_plan:
    pp_size: 8
    target_concurrency: 32
    max_running_requests: 64
    pp_max_micro_batch_size: 64
    on_error: report
  register: plan
"""

RETURN = r"""
args:
  description:
    - Arguments for the server, under the names that O(sglang_version) knows. What SGLang would do anyway is left out.
  returned: success, and failure because of a plan that cannot work
  type: dict
  sample:
    cuda_graph_max_bs_decode: 4
    decode_log_interval: 41
    max_running_requests: 64
    mem_fraction_static: 0.85
    pp_max_micro_batch_size: 4
    pp_size: 8
    tp_size: 1
environment:
  description: Environment variables for the server.
  returned: as RV(args)
  type: dict
  sample:
    SGLANG_PP_LAYER_PARTITION: 8,8,8,8,8,7,7,7
scheduler:
  description: What the scheduler does with O(target_concurrency) requests, for one of O(dp_size) copies.
  returned: as RV(args)
  type: dict
  contains:
    strategy:
      description: The strategy that was followed; V(explicit) where O(pp_max_micro_batch_size) was given.
      returned: always
      type: str
      sample: balanced
    pp_size:
      description: The number of pipeline stages.
      returned: always
      type: int
      sample: 8
    slots:
      description: The number of slots, C(pp_size + pp_async_batch_depth).
      returned: always
      type: int
      sample: 8
    pp_max_micro_batch_size:
      description: The cap in force, SGLang's own where the argument is left out.
      returned: always
      type: int
      sample: 4
    sglang_auto_micro_batch_size:
      description: The cap that SGLang takes where the argument is left out.
      returned: always
      type: int
      sample: 8
    max_running_requests:
      description: The limit in force; less than what is asked for where the KV cache is too small for it.
      returned: always
      type: int
      sample: 64
    concurrency:
      description: The number of requests that come at once.
      returned: always
      type: int
      sample: 32
    capacity:
      description: The number of requests that can run at once.
      returned: always
      type: int
      sample: 32
    occupancy:
      description: The number of requests in each slot.
      returned: always
      type: list
      elements: int
      sample: [4, 4, 4, 4, 4, 4, 4, 4]
    filled_slots:
      description: The number of slots that have a request.
      returned: always
      type: int
      sample: 8
    running:
      description: The number of requests that run.
      returned: always
      type: int
      sample: 32
    queued:
      description: The number of requests that wait.
      returned: always
      type: int
      sample: 0
memory:
  description:
    - What each pipeline rank holds, on one of its GPUs.
    - V(null) without a model, and where it has fewer layers than there are ranks.
  returned: as RV(args)
  type: dict
  contains:
    ranks:
      description: The pipeline ranks in order.
      returned: always
      type: list
      elements: dict
      contains:
        rank:
          description: The rank.
          returned: always
          type: int
          sample: 1
        layers:
          description: The number of its layers.
          returned: always
          type: int
          sample: 8
        weight_bytes:
          description: The bytes of its weights.
          returned: always
          type: int
          sample: 79398985728
        state_bytes:
          description: The bytes of the states that its layers without a KV cache keep for all running requests.
          returned: always
          type: int
          sample: 0
        kv_bytes_per_token:
          description: The bytes that a token takes in its KV cache.
          returned: always
          type: int
          sample: 9216
        kv_tokens:
          description: The tokens it has room for; V(null) where the GPUs are not known or the rank caches nothing.
          returned: always
          type: int
          sample: 793392
    kv_tokens:
      description: The tokens the server has room for, which is what its tightest rank has room for.
      returned: always
      type: int
      sample: 793392
    limiting_rank:
      description: The tightest rank.
      returned: always
      type: int
      sample: 1
    partition:
      description: The number of layers of each rank.
      returned: always
      type: list
      elements: int
      sample: [8, 8, 8, 8, 8, 7, 7, 7]
    fits:
      description: Whether the weights fit and leave room for a token; V(null) where the GPUs are not known.
      returned: always
      type: bool
      sample: true
    weight_bytes:
      description: The bytes of all weights.
      returned: always
      type: int
      sample: 595135678464
    weights_from:
      description:
        - Where the sizes come from. V(files) are the headers of the safetensors files, V(config) is worked out from the
          shape of the model, V(weight_bytes) is worked out and scaled to O(weight_bytes).
      returned: always
      type: str
      choices: [files, config, weight_bytes]
      sample: files
    mem_fraction_static:
      description: The part of the memory for weights and KV cache.
      returned: always
      type: float
      sample: 0.85
    sglang_auto_mem_fraction_static:
      description: The part that SGLang takes where the argument is left out.
      returned: always
      type: float
      sample: 0.777
    static_bytes:
      description: The bytes of that part, after what the driver and the communication library have taken.
      returned: always
      type: int
      sample: 86710891315
    gpu_memory_bytes:
      description: The memory of one GPU in bytes.
      returned: always
      type: int
      sample: 102641958912
    gpu_name:
      description: What the GPUs are called.
      returned: always
      type: str
      sample: NVIDIA RTX PRO 6000 Blackwell Server Edition
    alternatives:
      description: The splits of the layers that were looked at.
      returned: always
      type: list
      elements: dict
      contains:
        layer_balance:
          description: The name of the split; V(explicit) for O(layer_partition).
          returned: always
          type: str
          sample: sglang
        chosen:
          description: Whether this is the split of the plan.
          returned: always
          type: bool
          sample: false
        partition:
          description: The number of layers of each rank.
          returned: always
          type: list
          elements: int
          sample: [7, 7, 7, 8, 8, 8, 8, 8]
        kv_tokens:
          description: The tokens it leaves room for.
          returned: always
          type: int
          sample: 538528
        heaviest_weight_bytes:
          description: The weights of its heaviest rank.
          returned: always
          type: int
          sample: 81747810304
        limiting_rank:
          description: Its tightest rank.
          returned: always
          type: int
          sample: 7
  sample:
    kv_tokens: 793392
    limiting_rank: 1
    partition: [8, 8, 8, 8, 8, 7, 7, 7]
throughput:
  description: How fast the plan is predicted to decode.
  returned: as RV(args)
  type: dict
  contains:
    basis:
      description:
        - What the prediction rests on. V(calibrated) is O(measured), V(model) is what the model makes a stage read for
          each step, which tells proportions only; with V(none) there is no prediction.
      returned: always
      type: str
      choices: [calibrated, model, none]
      sample: calibrated
    output_tokens_per_second:
      description: Output tokens per second of all requests together; V(null) unless calibrated.
      returned: always
      type: float
      sample: 433.1
    bandwidth_bound_tokens_per_second:
      description: What the memory bandwidth would allow; V(null) where it is not known.
      returned: always
      type: float
      sample: 727.9
    left_out_error_percent:
      description:
        - The error on points that the fit did not use, each of O(measured) left out once.
        - V(null), that is unknown, with fewer than three points.
      returned: always
      type: float
      sample: 4.2
    output_tokens_per_second_range:
      description: The lowest and the highest value that O(measured) allows; V(null) unless calibrated.
      returned: always
      type: list
      elements: float
      sample: [362.3, 512.7]
    caps_that_do_not_differ:
      description: Other caps whose range overlaps; empty where the cap of the plan clearly differs from all.
      returned: always
      type: list
      elements: int
      sample: [2]
    largest_error_percent:
      description: The distance to the point of O(measured) that is fitted worst; V(null) unless calibrated.
      returned: always
      type: float
      sample: 0.0
    measured:
      description: The points it was calibrated by.
      returned: always
      type: list
      elements: dict
      sample:
        - concurrency: 32
          output_tokens_per_second: 248.0
          pp_max_micro_batch_size: 8
  sample:
    basis: calibrated
    output_tokens_per_second: 433.1
alternatives:
  description: Each strategy and each sensible cap, smallest cap first, and what comes of it.
  returned: as RV(args)
  type: list
  elements: dict
  contains:
    strategies:
      description: The strategies that lead to this cap.
      returned: always
      type: list
      elements: str
      sample: [sglang_auto]
    chosen:
      description: Whether this is what the plan does.
      returned: always
      type: bool
      sample: false
    pp_max_micro_batch_size:
      description: The cap in force.
      returned: always
      type: int
      sample: 8
    max_running_requests:
      description: The limit in force.
      returned: always
      type: int
      sample: 64
    capacity:
      description: The number of requests that can run at once.
      returned: always
      type: int
      sample: 64
    occupancy:
      description: The number of requests in each slot.
      returned: always
      type: list
      elements: int
      sample: [8, 8, 8, 8, 0, 0, 0, 0]
    filled_slots:
      description: The number of slots that have a request.
      returned: always
      type: int
      sample: 4
    running:
      description: The number of requests that run.
      returned: always
      type: int
      sample: 32
    queued:
      description: The number of requests that wait.
      returned: always
      type: int
      sample: 0
    relative_throughput:
      description: The predicted throughput as a part of the best of all alternatives; V(null) where none is predicted.
      returned: always
      type: float
      sample: 0.5727
    output_tokens_per_second:
      description: The predicted throughput; V(null) unless calibrated.
      returned: always
      type: float
      sample: 248.0
    output_tokens_per_second_range:
      description: The lowest and the highest throughput that O(measured) allows; V(null) unless calibrated.
      returned: always
      type: list
      elements: float
      sample: [202.9, 300.1]
layouts:
  description:
    - With O(layouts=search), all layouts that use the GPUs there are, best first. Those that fit come first.
    - Speeds are modelled from the memory that is read and the bytes that pass between GPUs. They compare layouts with
      each other.
  returned: as RV(args)
  type: list
  elements: dict
  contains:
    pp_size:
      description: The number of pipeline stages.
      returned: always
      type: int
      sample: 8
    tp_size:
      description: The number of GPUs that share each stage.
      returned: always
      type: int
      sample: 1
    dp_size:
      description: The number of copies, or of ranks with an attention of their own.
      returned: always
      type: int
      sample: 1
    enable_dp_attention:
      description: Whether RV(layouts[].dp_size) counts ranks of data-parallel attention.
      returned: always
      type: bool
      sample: false
    dcp_size:
      description: How many GPUs share the tokens of the KV cache.
      returned: always
      type: int
      sample: 1
    fits:
      description: Whether the layout can work.
      returned: always
      type: bool
      sample: true
    why_not:
      description: What keeps it from working; empty where it fits.
      returned: always
      type: str
      sample: ''
    kv_tokens:
      description: The tokens all copies together have room for.
      returned: always
      type: int
      sample: 793392
    running:
      description: The number of requests that run at once.
      returned: always
      type: int
      sample: 32
    pp_max_micro_batch_size:
      description: The cap on the requests of one slot.
      returned: always
      type: int
      sample: 4
    relative_throughput:
      description: Output tokens per second as a part of those of the best layout; V(null) where it does not fit.
      returned: always
      type: float
      sample: 1.0
    relative_time_to_first_token:
      description: The time to the first token of a lone prompt, compared with the best layout.
      returned: always
      type: float
      sample: 1.0
    prefill_bubble:
      description: The part of the time that stages idle while a lone prompt is prefilled.
      returned: always
      type: float
      sample: 0.875
findings:
  description: What is worth knowing, worst first.
  returned: as RV(args)
  type: list
  elements: dict
  contains:
    code:
      description:
        - A stable code.
        - About the scheduler V(balanced), V(concentrated), V(starved), V(saturated), V(underfed), V(floor_loss),
          V(cap_above_limit), V(depth_untested), V(measured_contradict),
          V(measured_above_bandwidth), V(caps_do_not_differ), V(graphs_too_small), V(overlap_disabled).
        - About memory V(does_not_fit), V(kv_limits), V(partition_improves_kv), V(partition_invalid), V(gpus_idle),
          V(auto_mem_fraction_too_low).
        - About the release V(release_too_old), V(release_has_fault), V(rejected_by_sglang).
      returned: always
      type: str
      sample: concentrated
    severity:
      description: How bad it is. A plan with an V(error) cannot work.
      returned: always
      type: str
      choices: [error, warning, info]
      sample: warning
    message:
      description: What was expected, and what was seen.
      returned: always
      type: str
      sample: '32 requests fill 4 of 8 slots: each of the 8 stages is idle 50% of the time.'
    advice:
      description: Which option to change; empty where there is nothing to do.
      returned: always
      type: str
      sample: 'pp_max_micro_batch_size: 4'
explanation:
  description: What SGLang does by itself, what taking the cap away does, what the plan does and why, a paragraph each.
  returned: as RV(args)
  type: list
  elements: str
  sample:
    - 'Left alone, SGLang caps a micro-batch at 64 // 8 = 8 (max_running_requests // pp_size). 32 requests fill 4 of 8
      slots: work for 4 of 8 stages at a time, idle 50%.'
model:
  description: What was understood of the model; V(null) without one.
  returned: as RV(args)
  type: dict
  contains:
    architecture:
      description: The model class.
      returned: always
      type: str
      sample: KimiK25ForConditionalGeneration
    layers:
      description: The number of its layers.
      returned: always
      type: int
      sample: 61
    attention:
      description: What the KV cache holds, a latent (V(MLA)) or keys and values (V(GQA)).
      returned: always
      type: str
      choices: [MLA, GQA]
      sample: MLA
    layers_with_kv_cache:
      description: The number of its layers that have a KV cache.
      returned: always
      type: int
      sample: 61
    experts:
      description: The number of routed experts of a layer, 0 without any.
      returned: always
      type: int
      sample: 384
    experts_per_token:
      description: The number of them that each token goes to.
      returned: always
      type: int
      sample: 8
    quantization:
      description: How the weights are stored.
      returned: always
      type: str
      sample: int4
    context_length:
      description: The longest request the model takes; V(null) where it does not say.
      returned: always
      type: int
      sample: 262144
  sample:
    architecture: KimiK25ForConditionalGeneration
    layers: 61
sglang_version:
  description: The release the plan is for.
  returned: as RV(args)
  type: str
  sample: 0.5.23
works:
  description: Whether the plan can work, that is, has no finding of severity V(error).
  returned: as RV(args)
  type: bool
  sample: true
"""

from dataclasses import fields
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.errors import PlanError
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.memory import GPU_QUERY, Gpus, read_gpus
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.model import (
    ModelShape,
    read_config,
    read_directory,
)
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.outcome import result
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.plan import make_plan
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.request import (
    GPU_LINKS,
    LAYER_BALANCES,
    LAYOUTS,
    STRATEGIES,
    Measured,
    Wishes,
)

ARGUMENT_SPEC: dict[str, Any] = {
    "model_path": {"type": "path"},
    "model_config": {"type": "dict"},
    "weight_bytes": {"type": "int"},
    "gpus": {
        "type": "dict",
        "options": {
            "count": {"type": "int", "required": True},
            "memory_mib": {"type": "int", "required": True},
            "memory_bandwidth_gbs": {"type": "float"},
            "name": {"type": "str", "default": ""},
        },
    },
    "nnodes": {"type": "int", "default": 1},
    "pp_size": {"type": "int"},
    "tp_size": {"type": "int", "default": 1},
    "dp_size": {"type": "int", "default": 1},
    "enable_dp_attention": {"type": "bool", "default": False},
    "dcp_size": {"type": "int", "default": 1},
    "ep_size": {"type": "int", "default": 1},
    "layouts": {"type": "str", "choices": list(LAYOUTS), "default": "given"},
    "gpu_link": {"type": "str", "choices": list(GPU_LINKS), "default": "pcie"},
    "target_concurrency": {"type": "int"},
    # Tokens of text are no secrets, though their names sound like it.
    "input_tokens": {"type": "int", "default": 1024, "no_log": False},
    "output_tokens": {"type": "int", "default": 1024, "no_log": False},
    "strategy": {"type": "str", "choices": list(STRATEGIES), "default": "balanced"},
    "layer_balance": {"type": "str", "choices": list(LAYER_BALANCES), "default": "memory"},
    "max_running_requests": {"type": "int"},
    "pp_max_micro_batch_size": {"type": "int"},
    "pp_async_batch_depth": {"type": "int", "default": 0},
    "mem_fraction_static": {"type": "float"},
    "layer_partition": {"type": "list", "elements": "int"},
    "kv_cache_dtype": {
        "type": "str",
        "choices": ["auto", "bf16", "bfloat16", "fp8_e4m3", "fp8_e5m2"],
        "default": "auto",
    },
    "context_length": {"type": "int"},
    "chunked_prefill_size": {"type": "int"},
    "sglang_version": {"type": "str"},
    "measured": {
        "type": "list",
        "elements": "dict",
        "options": {
            "concurrency": {"type": "int", "required": True},
            "output_tokens_per_second": {"type": "float", "required": True, "no_log": False},
            "pp_max_micro_batch_size": {"type": "int"},
        },
    },
    "on_error": {"type": "str", "choices": ["fail", "report"], "default": "fail"},
    "show": {"type": "str", "choices": ["none", "short", "full"], "default": "none"},
}


def read_model(params: dict[str, Any]) -> ModelShape | None:
    """Return the model that the options name, or None where they name none."""
    if params["model_path"] is not None:
        return read_directory(params["model_path"])
    if params["model_config"] is not None:
        return read_config(params["model_config"], weight_bytes=params["weight_bytes"])
    return None


def find_gpus(module: AnsibleModule) -> Gpus | None:
    """Return the GPUs that the options name, or that nvidia-smi lists where the plan cannot do without them."""
    given = module.params["gpus"]
    if given is not None:
        return Gpus(given["count"], given["memory_mib"], given["name"], given["memory_bandwidth_gbs"] or 0.0)
    if module.params["pp_size"] and module.params["model_path"] is None and module.params["model_config"] is None:
        return None
    program = module.get_bin_path("nvidia-smi")
    if program is None:
        raise PlanError(
            "gpus: left out, and there is no nvidia-smi on this host to ask; give gpus with count and memory_mib"
        )
    code, output, errors = module.run_command([program, *GPU_QUERY])
    if code:
        raise PlanError(f"gpus: left out, and nvidia-smi failed: {(errors or output).strip()[:200]}")
    return read_gpus(output)


def wishes(params: dict[str, Any]) -> Wishes:
    """Return the options as the planner takes them: under the same names."""
    values = {field.name: params[field.name] for field in fields(Wishes)}
    values["layer_partition"] = None if params["layer_partition"] is None else tuple(params["layer_partition"])
    values["measured"] = tuple(Measured(**point) for point in params["measured"] or ())
    return Wishes(**values)


def main() -> None:
    module = AnsibleModule(
        argument_spec=ARGUMENT_SPEC,
        supports_check_mode=True,
        mutually_exclusive=[("model_path", "model_config")],
        required_by={"weight_bytes": "model_config"},
    )
    try:
        plan = make_plan(wishes(module.params), read_model(module.params), find_gpus(module))
    except PlanError as error:
        module.fail_json(msg=str(error))
    if not plan.works and module.params["on_error"] == "fail":
        errors = [finding for finding in plan.findings if finding.severity == "error"]
        module.fail_json(
            msg="This plan cannot work: " + " ".join(f"{error.message} ({error.advice})" for error in errors),
            **result(plan),
        )
    module.exit_json(changed=False, **result(plan))


if __name__ == "__main__":
    main()
