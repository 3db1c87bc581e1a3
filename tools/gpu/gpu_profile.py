# SPDX-License-Identifier: Apache-2.0
"""The part of tools/gpu/gpu_report.py that profiles kernels: ncu. Speed of light, occupancy and stalls of the first
launch of six kernels in a step of GPT-2 124M, at the clock that training has. A kernel that is not found is reported,
and is not a failure: machines may forbid the counters."""
import copy
import re

from gpu_session import as_code
from gpu_training import MODELS, train_overrides, write_ids_once

KERNELS = [("attention, forward", "attention_fwd_sm90"), ("attention, backward", "attention_bwd_sm90"),
           ("matrix multiplication", "nvjet|gemm|xmma|cutlass"), ("norm, backward", "norm_bwd"),
           ("loss, sum of the exponentials", "loss_row_sum"), ("AdamW", "adamw_update")]
SECTIONS = ["SpeedOfLight", "Occupancy", "WarpStateStats"]
FIGURES = [("", r"Duration +(\w+ +[\d.,]+)"), ("memory ", r"Memory Throughput +(% +[\d.,]+)"),
           ("compute ", r"Compute \(SM\) Throughput +(% +[\d.,]+)"),
           ("occupancy ", r"Achieved Occupancy +(% +[\d.,]+)")]


def summary(out):
    """'120 us, memory 35.1 %, ...' of what ncu prints; '': no kernel."""
    found = [(name, re.search(pattern, out)) for name, pattern in FIGURES]
    return ", ".join(name + " ".join(reversed(match.group(1).split())) for name, match in found if match)


def part_ncu(s):
    profiler = s.tool("ncu")
    if profiler is None:
        s.report.row("ncu", "not run: Nsight Compute is not installed")
        return
    model = copy.copy(MODELS[0])
    model.layers = 2
    write_ids_once(s, model)
    command, _ = s.train("ncu", model.recipe, *train_overrides(s, model, f"cluster.device={s.device}",
                                                               "train.train_iters=1"))
    # LD_LIBRARY_PATH is set for our program, which `env` starts, and not for the profiler.
    ours = ["env", *(f"{key}={value}" for key, value in s.libraries().items()), *command]
    sections = [word for section in SECTIONS for word in ("--section", section)]
    texts = []
    for name, kernel in KERNELS:
        if not s.has_time(f"ncu, {name}"):
            continue
        outcome = s.run([profiler, "--clock-control", "none", "--target-processes", "all", *sections, "--kernel-name",
                         f"regex:{kernel}", "--launch-count", "1", "--kill", "yes", *ours], 30)
        figures = summary(outcome.out)
        last = outcome.why if outcome.status is None else (outcome.out.strip().splitlines() or ["no output"])[-1]
        s.report.row(f"ncu, {name}", figures or f"not measured: {last}")
        texts.append(f"{name}: {kernel}\n{measured_lines(outcome.out)}" if figures else "")
    s.report.section("Kernels, profiled", as_code("\n".join(text for text in texts if text)))


def measured_lines(out):
    """ncu's own lines, without the program's."""
    kept = out[out.find("Section:"):] if "Section:" in out else ""
    return "\n".join(line for line in kept.splitlines() if not line.startswith("=="))
