#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's training step of GPT-2 124M on a CPU: the baseline for Cuboid's step.

Written as PyTorch users write it: eager, fp32, one fused projection for q, k and v,
F.scaled_dot_product_attention where the version has it, torch.optim.AdamW, gradients of the
microbatches accumulated before the optimizer's step. No dropout, and no clipping unless asked for.

    tools/benchmarks/bench_torch.py --micro-batches 8 --threads 2

On Debian 12, `apt install python3-torch` gives version 1.13. Caution: that one multiplies with OpenBLAS,
which takes a processor newer than itself for one without AVX (an Emerald Rapids for a "Prescott", a fifth of
its speed), and obeys an OPENBLAS_CORETYPE left in the environment (Haswell: half). A slow rival
proves nothing, so the core is chosen here from the processor's flags, and the result names the one in use.
"""

import argparse
import ctypes
import json
import math
import os
import platform
import resource
import statistics
import sys
import time


def cpuinfo(key):
    """The words of the first line of that name in /proc/cpuinfo."""
    try:
        with open("/proc/cpuinfo") as text:
            return next(line.split(":", 1)[1].split() for line in text if line.split(":")[0].strip() == key)
    except (OSError, StopIteration):
        return []


def choose_openblas_core():
    """Before OpenBLAS is loaded: it reads its environment once."""
    flags = set(cpuinfo("flags"))
    for variable in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
        os.environ.pop(variable, None)
    if {"avx512f", "avx512dq", "avx512bw", "avx512vl"} <= flags:
        os.environ["OPENBLAS_CORETYPE"] = "SkylakeX"
    elif {"avx2", "fma"} <= flags:
        os.environ["OPENBLAS_CORETYPE"] = "Haswell"


choose_openblas_core()

try:
    import torch
    import torch.nn as nn
    import torch.nn.functional as F
except ImportError:
    sys.exit("bench_torch.py: this Python has no PyTorch; on Debian: apt install python3-torch, then /usr/bin/python3")

LAYERS, HIDDEN, HEADS, VOCABULARY, POSITIONS = 12, 768, 12, 50257, 1024
HAS_SDPA = hasattr(F, "scaled_dot_product_attention")


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(HIDDEN, 3 * HIDDEN)
        self.proj = nn.Linear(HIDDEN, HIDDEN)
        if not HAS_SDPA:
            hidden = torch.ones(POSITIONS, POSITIONS, dtype=torch.bool).triu(1)
            self.register_buffer("hidden", hidden, persistent=False)

    def forward(self, x):
        rows, seq, _ = x.shape
        q, k, v = (y.view(rows, seq, HEADS, -1).transpose(1, 2) for y in self.qkv(x).split(HIDDEN, dim=2))
        if HAS_SDPA:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(q.size(-1)))
            scores = scores.masked_fill(self.hidden[:seq, :seq], float("-inf"))
            y = F.softmax(scores, dim=-1) @ v
        return self.proj(y.transpose(1, 2).reshape(rows, seq, HIDDEN))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm(HIDDEN)
        self.attention = Attention()
        self.norm2 = nn.LayerNorm(HIDDEN)
        self.fc1 = nn.Linear(HIDDEN, 4 * HIDDEN)
        self.fc2 = nn.Linear(4 * HIDDEN, HIDDEN)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x)), approximate="tanh"))


class GPT2(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, HIDDEN)
        self.position = nn.Embedding(POSITIONS, HIDDEN)
        self.blocks = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.norm = nn.LayerNorm(HIDDEN)
        self.head = nn.Linear(HIDDEN, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                deviation = 0.02 / math.sqrt(2 * LAYERS) if name.endswith(("proj.weight", "fc2.weight")) else 0.02
                nn.init.normal_(parameter, std=deviation)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, tokens, labels):
        x = self.embedding(tokens) + self.position(torch.arange(tokens.size(1)))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, VOCABULARY), labels.reshape(-1))


def make_optimizer(model, fused):
    matrices = [p for p in model.parameters() if p.dim() == 2]
    others = [p for p in model.parameters() if p.dim() != 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    more = {"fused": True} if fused else {}
    return torch.optim.AdamW(groups, lr=3e-4, betas=(0.9, 0.95), eps=1e-8, **more)


def train_step(model, optimizer, batches, clip_grad):
    """-> the mean loss over the microbatches"""
    optimizer.zero_grad(set_to_none=True)
    total = 0.0
    for tokens, labels in batches:
        loss = model(tokens, labels) / len(batches)
        loss.backward()
        total += loss.item()
    if clip_grad > 0.0:
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip_grad)
    optimizer.step()
    return total


def openblas_core():
    """The core whose kernels OpenBLAS uses, or None where this PyTorch came without OpenBLAS (PyPI's has MKL)."""
    try:
        with open("/proc/self/maps") as text:
            path = next(line.split()[-1] for line in text if "libopenblas" in line)
        corename = ctypes.CDLL(path).openblas_get_corename
    except (OSError, StopIteration, AttributeError):
        return None
    corename.restype = ctypes.c_char_p
    return corename().decode()


def measure(arguments):
    torch.manual_seed(1234)
    torch.set_num_threads(arguments.threads)
    model = GPT2()
    optimizer = make_optimizer(model, arguments.fused)
    rows, seq = arguments.micro_batch_size, arguments.seq_length
    times, busy, losses = [], [], []
    for _ in range(arguments.warmup + arguments.steps):
        text = torch.randint(VOCABULARY, (arguments.micro_batches, rows, seq + 1))
        batches = [(one[:, :-1], one[:, 1:]) for one in text]
        begin, begin_busy = time.perf_counter(), time.process_time()
        losses.append(train_step(model, optimizer, batches, arguments.clip_grad))
        times.append(time.perf_counter() - begin)
        busy.append(time.process_time() - begin_busy)
    times, busy = times[arguments.warmup :], busy[arguments.warmup :]
    step_time = statistics.median(times)
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "processor": " ".join(cpuinfo("model name")) or platform.machine(),
        "openblas_core": openblas_core(),
        "attention": "scaled_dot_product_attention" if HAS_SDPA else "softmax of a masked matrix",
        "adamw": "fused" if arguments.fused else "default",
        "parameters": sum(p.numel() for p in model.parameters()),
        "threads": torch.get_num_threads(),
        "micro_batches": arguments.micro_batches,
        "micro_batch_size": rows,
        "seq_length": seq,
        "step_times_s": times,
        "step_time_s": step_time,
        "fastest_step_s": min(times),
        # Threads that wait also spin, so on a machine of one's own this is nearly 1.
        "processor_share": sum(busy) / (sum(times) * torch.get_num_threads()),
        "tokens_per_s": arguments.micro_batches * rows * seq / step_time,
        "peak_resident_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "first_loss": losses[0],
        "last_loss": losses[-1],
    }


def positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--micro-batches", type=positive, default=1, help="microbatches per optimizer step (1)")
    parser.add_argument("--micro-batch-size", type=positive, default=4, help="sequences in a microbatch (4)")
    parser.add_argument(
        "--seq-length", type=positive, default=256, help=f"tokens in a sequence, at most {POSITIONS} (256)"
    )
    parser.add_argument("--steps", type=positive, default=3, help="timed steps (3)")
    parser.add_argument("--warmup", type=positive, default=1, help="steps before them, not timed (1)")
    parser.add_argument("--threads", type=positive, default=2, help="threads of PyTorch (2)")
    parser.add_argument("--clip-grad", type=float, default=0.0, help="clip by this global norm (0: do not clip)")
    parser.add_argument("--fused", action="store_true", help="AdamW as one kernel, where this PyTorch has it for CPUs")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    arguments = parser.parse_args()
    if arguments.seq_length > POSITIONS:
        parser.error(f"--seq-length {arguments.seq_length} is beyond the model's {POSITIONS} positions")
    result = measure(arguments)
    if arguments.json:
        print(json.dumps(result))
        return 0
    blas = f"OpenBLAS for {result['openblas_core']}" if result["openblas_core"] else "its own BLAS"
    print(f"PyTorch {result['torch']} with {blas}, {result['threads']} threads on {result['processor']}")
    print(f"attention by {result['attention']}, AdamW {result['adamw']}")
    print(
        f"GPT-2 {result['parameters'] / 1e6:.1f} M parameters, fp32, B {result['micro_batch_size']} x "
        f"S {result['seq_length']}, {result['micro_batches']} microbatches per step"
    )
    print(
        f"median step {result['step_time_s']:.3f} s (fastest {result['fastest_step_s']:.3f}), "
        f"{result['tokens_per_s']:.1f} tokens/s, "
        f"peak resident {result['peak_resident_bytes'] / 2**30:.2f} GiB"
    )
    if result["processor_share"] < 0.9:
        share = 100.0 * result["processor_share"]
        print(f"others used the machine: the threads got {share:.0f} % of the time, and the step is too slow")
    return 0


if __name__ == "__main__":
    sys.exit(main())
