# SPDX-License-Identifier: Apache-2.0
"""Targets of the GPU report, one line each: reached, not reached, not measured. The parts of gpu_report.py add
results; a target made of several results is reached when all of them have been added, and passed."""

FIGURES = {  # name: (target, number of results that it consists of)
    "ops": ("every op against double precision: all types, odd shapes, poisoned outputs", 15),
    "memcheck": ("compute-sanitizer memcheck finds nothing in the op suite", 6),
    "racecheck": ("compute-sanitizer racecheck finds nothing in the op suite", 4),
    "gpt3-1.3b mfu": ("GPT-3 1.3B, sequences of 2048, bf16: 50 % model FLOPs utilization", 1),
    "llama3-8b mfu": ("layers of Llama 3 8B, as many as fit, sequences of 4096, bf16: 50 %", 1),
    "gpt2-124m mfu": ("GPT-2 124M, sequences of 1024, bf16: 45 %", 1),
    "gpt3-1.3b torch": ("GPT-3 1.3B: 1.1 x PyTorch's tokens per second", 1),
    "llama3-8b torch": ("layers of Llama 3 8B: 1.1 x PyTorch's tokens per second", 1),
    "gpt2-124m torch": ("GPT-2 124M: 1.1 x PyTorch's tokens per second", 1),
    "copy": ("memory-bound ops at 85 % of the rate of a copy, at the sizes of three models in bf16 and one in fp32", 4),
    "attention": ("own attention at 80 % of cuDNN's rate, forward and backward, at the sizes of three models", 3),
    "faster": ("training uses the faster of both attention backends", 3),
    "waits": ("no host wait and no allocation inside a step, bf16 with fp32 masters, with and without CUDA "
              "graphs; one wait at its end, for loss, norm and step statistics", 4),
    "graph memory": ("GPU memory of CUDA graphs in addition to the plan, GPT-2 124M: a figure", 1),
    "rerun": ("one GPU, deterministic: two runs are bit-identical", 1),
    "rerun aligned": ("one GPU, deterministic: two runs of GPT-2 124M with 2 layers, whose shapes suit tensor cores, "
                      "are bit-identical", 1),
    "schedules": ("one GPU, deterministic: schedules are bit-identical", 3),
    "resume": ("one GPU, deterministic: resumed and uninterrupted runs are bit-identical", 1),
    "plan steps": ("steps predicted by a plan with this GPU's profile: median error 5 %", 1),
    "plan memory": ("GPT-2 124M: the largest microbatch that fits by its plan trains, the next one is refused", 1),
    "cube bf16": ("8 ranks on one GPU, 2 x 2 x 2, every schedule: the loss is within the bf16 bound of one rank", 11),
    "cube fp32": ("8 ranks on one GPU, 2 x 2 x 2: the loss is within the fp32 bound of one rank", 2),
}


class Wanted:
    def __init__(self):
        self.seen = {name: [] for name in FIGURES}

    def see(self, name, good, details):
        self.seen[name].append((good, details))

    def state(self, name):
        """-> the state and its details: for a target of several results, those that failed, or the number so far."""
        seen, count = self.seen[name], FIGURES[name][1]
        bad = [details for good, details in seen if not good]
        if not seen:
            return "not measured", ""
        if bad:
            return "not reached", "; ".join(bad)
        if len(seen) < count:
            return "not measured", f"{len(seen)} of {count} measured, all good"
        return "reached", seen[0][1] if count == 1 else f"all {len(seen)}"

    def lines(self):
        return ["| target | result | details |", "|---|---|---|",
                *(f"| {FIGURES[name][0]} | {' | '.join(self.state(name))} |" for name in FIGURES)]
