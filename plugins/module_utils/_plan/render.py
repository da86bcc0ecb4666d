# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This file is private to the collection: it may change without notice.

"""A plan for people: what the module pp_plan returned, drawn in 80 columns of plain text that survive being pasted."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

WIDTH = 80
GIB = 2**30

# A slot is drawn as a box where all boxes fit into a line of the table, as a block where there are more of them.
_MOST_BOXES = 8
_MOST_BLOCKS = 32
_MOST_DRAWN = 32
_BLOCKS = " ▁▂▃▄▅▆▇█"
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_MARKS = {"error": "✗", "warning": "!", "info": "·"}

_STRATEGIES = {
    "balanced": "balanced",
    "sglang_auto": "SGLang auto",
    "uncapped": "uncapped",
    "explicit": "given",
}


def render(plan: Mapping[str, Any], short: bool = False) -> list[str]:
    """Return the lines that show *plan*, what the module returned; *short* leaves the memory and the reasons out."""
    lines = list(_title(plan))
    if not short:
        lines += _memory(plan)
        lines += _slots(plan)
    lines += _alternatives(plan)
    lines += _findings(plan)
    if not short:
        lines += _reasons(plan)
    lines += _arguments(plan)
    return [_fit(line).rstrip() for line in lines]


def _title(plan: Mapping[str, Any]) -> Iterator[str]:
    args, model, room = plan["args"], plan["model"], plan["memory"]
    yield "━" * WIDTH
    shape = f"pp {args['pp_size']} x tp {args['tp_size']}" + (f" x dp {args['dp_size']}" if args.get("dp_size") else "")
    verdict = "" if plan["works"] else "  ✗ CANNOT WORK"
    yield _ends(f"SGLang {plan['sglang_version']} · pipeline plan{verdict}", shape)
    if model:
        name = model["architecture"] or "model"
        experts = f", {model['experts']} experts" if model["experts"] else ""
        size = f", {_gib(room['weight_bytes'])}" if room else ""
        yield _fit(f"{name} · {model['layers']} layers{experts}, {model['attention']}, {model['quantization']}{size}")
    if room and room["gpu_memory_bytes"]:
        count = args["pp_size"] * args["tp_size"] * args.get("dp_size", 1)
        yield _fit(f"{count} x {room['gpu_name'] or 'GPU'} · {_gib(room['gpu_memory_bytes'])} each")
    yield "━" * WIDTH


def _heading(text: str, right: str = "") -> Iterator[str]:
    yield ""
    yield _ends(text.upper(), right)


# --- memory -----------------------------------------------------------------------------------------------------------


def _memory(plan: Mapping[str, Any]) -> Iterator[str]:
    room = plan["memory"]
    if not room:
        return
    total, static = room["gpu_memory_bytes"], room["static_bytes"]
    heaviest = max(rank["weight_bytes"] for rank in room["ranks"])
    if total is None:
        yield from _heading("Weights per rank", "GPUs not known")
    else:
        yield from _heading("Memory per rank", f"mem_fraction_static {room['mem_fraction_static']:g} = {_gib(static)}")
    columns = 44
    yield f"rank{'':{columns + 11}} {'weights':>9} {'tokens' if total else '':>7}"
    for rank in room["ranks"]:
        tightest = rank["rank"] == room["limiting_rank"]
        weights = rank["weight_bytes"] + rank["state_bytes"]
        if total is None:
            drawn = "█" * round(columns * weights / max(heaviest, 1))
            cache = "heaviest" if tightest else ""
        else:
            used = (room["kv_tokens"] or 0) * rank["kv_bytes_per_token"]
            drawn = _stacked(columns, total, (("█", weights), ("▓", used), ("░", max(static - weights - used, 0))))
            cache = "too big" if weights > static else _tokens(rank["kv_tokens"])
        mark = "◄" if tightest else " "
        yield f"{rank['rank']:>3} {rank['layers']:>3} layers {drawn:<{columns}} {_gib(weights, 5)} {cache:>7}{mark}"
    if total is not None:
        yield _fit("    █ weights  ▓ KV cache in use  ░ more room than the tightest rank  · outside")
        yield _fit(f"    KV cache: {room['kv_tokens']:,} tokens, limited by rank {room['limiting_rank']}")
    if len(room["alternatives"]) > 1:
        for split in room["alternatives"]:
            mark = "▸" if split["chosen"] else " "
            layers = " ".join(map(str, split["partition"]))
            holds = "" if split["kv_tokens"] is None else _tokens(split["kv_tokens"]) + " tokens"
            yield _ends(_fit(f"  {mark} {split['layer_balance']:<8} {layers}", WIDTH - 16), holds)


def _stacked(columns: int, total: int, parts: Sequence[tuple[str, int]]) -> str:
    """Draw *parts* of *total* behind each other; what is left is dotted."""
    drawn, end = "", 0
    for sign, size in parts:
        end += size
        drawn += sign * (min(round(columns * end / total), columns) - len(drawn))
    return drawn + "·" * (columns - len(drawn))


# --- slots ------------------------------------------------------------------------------------------------------------


def _slots(plan: Mapping[str, Any]) -> Iterator[str]:
    scheduler = plan["scheduler"]
    occupancy, cap = scheduler["occupancy"], scheduler["pp_max_micro_batch_size"]
    yield from _heading(
        f"{scheduler['concurrency']} requests in {scheduler['slots']} slots", f"at most {cap} in a slot"
    )
    # The first slots are filled first: of those behind them, only the rest of a row is drawn.
    drawn = min(-(-max(scheduler["filled_slots"], 1) // _MOST_BOXES) * _MOST_BOXES, _MOST_DRAWN, len(occupancy))
    for start in range(0, drawn, _MOST_BOXES):
        row = occupancy[start : min(start + _MOST_BOXES, drawn)]
        # A box is 7 columns inside; the part of it that is filled is the part of the cap that is used.
        yield " " + " ".join("┌───────┐" for _held in row)
        yield " " + " ".join(f"│{_filled(held, cap)}│" for held in row)
        yield " " + " ".join(f"└{f' {_count(held)} ' if held else '':─^7}┘" for held in row)
    if len(occupancy) > drawn:
        rest = sum(occupancy[drawn:])
        yield f" and {len(occupancy) - drawn} more slots, " + (f"{rest} requests in them" if rest else "all empty")
    waits = f" · {scheduler['queued']} wait" if scheduler["queued"] else ""
    yield f" {scheduler['running']} run{waits} · {scheduler['filled_slots']} of {scheduler['slots']} slots filled"


def _filled(held: int, cap: int) -> str:
    return f"{'█' * (-(-7 * min(held, cap) // cap)):<7}"


# --- alternatives -----------------------------------------------------------------------------------------------------


def _alternatives(plan: Mapping[str, Any]) -> Iterator[str]:
    rows = plan["alternatives"]
    predicted = rows[0]["relative_throughput"] is not None
    calibrated = rows[0]["output_tokens_per_second"] is not None
    yield from _heading(
        "Side by side", {True: "output tokens/s"}.get(calibrated, "relative speed" if predicted else "")
    )
    yield f"{'':20}{'cap':>5}  {'slots':<32}{'wait':>5}"
    for row in rows:
        names = ", ".join(_STRATEGIES[name] for name in row["strategies"])
        mark = "▸" if row["chosen"] else " "
        speed = ""
        if predicted:
            if calibrated:
                low, high = row["output_tokens_per_second_range"]
                speed = f"{_count(low)}-{_count(high):<5} {_bar(row['relative_throughput'], 3)}"
            else:
                speed = f"{row['relative_throughput']:>6.0%} {_bar(row['relative_throughput'], 7)}"
        drawn = _fit(_drawn_slots(row["occupancy"]), 32)
        cap, waiting = _count(row["pp_max_micro_batch_size"]), _count(row["queued"]) if row["queued"] else ""
        yield f"{mark} {_fit(names, 18):<18}{cap:>5}  {drawn:<32}{waiting:>5} {speed}"
    if predicted:
        source = "fitted to what was measured" if calibrated else "from the bytes a step reads"
        yield f"  Predicted for decoding, {source}."


def _drawn_slots(occupancy: Sequence[int]) -> str:
    if len(occupancy) <= _MOST_BOXES and max(occupancy) < 100:
        return "".join(f"[{held or '':>2}]" for held in occupancy)
    if len(occupancy) <= _MOST_BLOCKS:
        most = max(*occupancy, 1)
        return "".join(_BLOCKS[-(-8 * held // most)] if held else "·" for held in occupancy)
    filled = sum(1 for held in occupancy if held)
    return f"{filled} of {len(occupancy)} filled, up to {max(occupancy)} in one"


def _bar(part: float, columns: int) -> str:
    eighths = round(part * columns * 8)
    return "█" * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")


# --- words ------------------------------------------------------------------------------------------------------------


def _findings(plan: Mapping[str, Any]) -> Iterator[str]:
    if not plan["findings"]:
        return
    yield from _heading("Findings")
    for finding in plan["findings"]:
        yield f"{_MARKS[finding['severity']]} {finding['code']}"
        yield from _wrapped(finding["message"], "    ")
        if finding["advice"]:
            yield from _wrapped(finding["advice"], "    → ")


def _reasons(plan: Mapping[str, Any]) -> Iterator[str]:
    yield from _heading("Why")
    for number, paragraph in enumerate(plan["explanation"]):
        if number:
            yield ""
        yield from _wrapped(paragraph, "  ")


def _arguments(plan: Mapping[str, Any]) -> Iterator[str]:
    if not plan["works"]:
        return
    yield from _heading("To start the server with")
    flags = " ".join(f"--{name.replace('_', '-')}\0{value}" for name, value in plan["args"].items())
    yield from (line.replace("\0", " ") for line in _wrapped(flags, "  "))
    for name, value in plan["environment"].items():
        yield from _wrapped(f"{name}={value}", "  ")
    yield ""


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        _printable(text),
        WIDTH,
        initial_indent=indent,
        subsequent_indent=" " * len(indent),
        break_on_hyphens=False,
    )


def _ends(left: str, right: str) -> str:
    """Put *left* and *right* at the two ends of a line."""
    return f"{_fit(left, WIDTH - len(right) - 1):<{WIDTH - len(right)}}{right}" if right else _fit(left)


def _fit(text: str, columns: int = WIDTH) -> str:
    text = _printable(text)
    return text if len(text) <= columns else text[: columns - 1] + "…"


def _printable(text: str) -> str:
    """Keep what a model or a driver calls itself from moving the cursor."""
    return "".join(sign if sign.isprintable() or sign == "\0" else "?" for sign in text)


def _gib(size: int, width: int = 0) -> str:
    return f"{size / GIB:>{width}.1f} GiB"


def _count(number: float) -> str:
    """Return a number in at most five or six columns."""
    if number < 10**5:
        return f"{number:.0f}"
    return f"{number / 10**6:.1f}M" if number < 10**9 else f"{number:.0e}"


def _tokens(count: int | None) -> str:
    """Return a number of tokens in three or four digits."""
    if count is None:
        return "-"
    for factor, unit in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if count >= factor:
            value = count / factor
            return f"{value:.2f} {unit}" if value < 10 else f"{value:.0f} {unit}"
    return str(count)
