#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's training step on one GPU: the baseline of Cuboid's step in tools/gpu_check.

As PyTorch users write it to be fast: torch.compile, F.scaled_dot_product_attention (flash), bf16 by autocast over fp32
weights, AdamW as one fused kernel, gradients clipped, microbatches accumulated; random ids, no dropout.

    gpu_torch.py --model gpt3-1.3b --batch 4 --microbatches 8 --seq 2048

The last line is one JSON object. Blocks are compiled one by one, for they share what is compiled (--compile whole:
the model at once, which takes minutes for deep ones). Caution: the first steps compile, and the loss must not be
read before the last of them, or the host waits in every microbatch.
"""
import argparse
import json
import math
import statistics
import sys
import time

try:
    import torch
    import torch.nn as nn
    import torch.nn.functional as F
except ImportError:
    sys.exit("this Python has no PyTorch")

MODELS = {
    "gpt2-124m": dict(layers=12, hidden=768, heads=12, groups=12, ffn=3072, vocabulary=50257, llama=False),
    "gpt3-1.3b": dict(layers=24, hidden=2048, heads=16, groups=16, ffn=8192, vocabulary=50257, llama=False),
    "llama3-8b": dict(layers=32, hidden=4096, heads=32, groups=8, ffn=14336, vocabulary=128256, llama=True),
}
TINY = dict(layers=2, hidden=64, heads=4, ffn=128)


class RMSNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return self.weight * (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-5)).type_as(x)


def rotate(x, turn):
    """Halves of each head rotated by the angles of their positions: turn [S, D / 2] of (cos, sin)."""
    cos, sin = turn
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def attend(q, k, v):
    if k.size(1) != q.size(1):
        k, v = (y.repeat_interleave(q.size(1) // y.size(1), dim=1) for y in (k, v))
    if hasattr(F, "scaled_dot_product_attention"):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))  # PyTorch 1: correct, but slow
    hidden = torch.ones(q.size(2), q.size(2), dtype=torch.bool, device=q.device).triu(1)
    return F.softmax(scores.masked_fill(hidden, float("-inf")), dim=-1) @ v


class Block(nn.Module):
    def __init__(self, hidden, heads, groups, ffn, llama, **_):
        super().__init__()
        self.heads, self.groups, self.width, self.llama = heads, groups, hidden // heads, llama
        bias = not llama
        self.norm1 = RMSNorm(hidden) if llama else nn.LayerNorm(hidden)
        self.qkv = nn.Linear(hidden, (heads + 2 * groups) * self.width, bias=bias)
        self.proj = nn.Linear(hidden, hidden, bias=bias)
        self.norm2 = RMSNorm(hidden) if llama else nn.LayerNorm(hidden)
        self.fc1 = nn.Linear(hidden, 2 * ffn if llama else ffn, bias=bias)
        self.fc2 = nn.Linear(ffn, hidden, bias=bias)

    def attention(self, x, turn):
        rows, seq, hidden = x.shape
        q, k, v = self.qkv(x).split([n * self.width for n in (self.heads, self.groups, self.groups)], dim=-1)
        q = q.view(rows, seq, self.heads, self.width).transpose(1, 2)
        k, v = (y.view(rows, seq, self.groups, self.width).transpose(1, 2) for y in (k, v))
        if self.llama:
            q, k = rotate(q, turn).type_as(v), rotate(k, turn).type_as(v)
        return self.proj(attend(q, k, v).transpose(1, 2).reshape(rows, seq, hidden))

    def forward(self, x, turn):
        x = x + self.attention(self.norm1(x), turn)
        y = self.fc1(self.norm2(x))
        if self.llama:
            gate, up = y.chunk(2, dim=-1)
            return x + self.fc2(F.silu(gate) * up)
        return x + self.fc2(F.gelu(y, approximate="tanh"))


class GPT(nn.Module):
    def __init__(self, shape, seq):
        super().__init__()
        hidden, llama, vocabulary = shape["hidden"], shape["llama"], shape["vocabulary"]
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.position = None if llama else nn.Embedding(seq, hidden)
        self.blocks = nn.ModuleList([Block(**shape) for _ in range(shape["layers"])])
        self.norm = RMSNorm(hidden) if llama else nn.LayerNorm(hidden)
        self.head = nn.Linear(hidden, vocabulary, bias=False)
        if not llama:
            self.head.weight = self.embedding.weight
        width = hidden // shape["heads"]
        angle = torch.arange(seq)[:, None] * 500000.0 ** (-torch.arange(0, width, 2) / width)
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens, labels):
        x = self.embedding(tokens)
        if self.position is not None:
            x = x + self.position.weight
        for block in self.blocks:
            x = block(x, (self.cos, self.sin))
        return self.loss(self.norm(x), labels)

    def loss(self, x, labels):
        return F.cross_entropy(self.head(x).flatten(0, 1).float(), labels.flatten())


def compile_parts(model, how):
    """-> the model, compiled"""
    if how == "none" or not hasattr(torch, "compile"):
        return model
    if how == "whole":
        return torch.compile(model)
    for block in model.blocks:
        block.compile()
    model.loss = torch.compile(model.loss)
    return model


def make_optimizer(model, device):
    matrices = [p for p in model.parameters() if p.dim() == 2]
    others = [p for p in model.parameters() if p.dim() != 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=3e-4, betas=(0.9, 0.95), eps=1e-8,
                             **({"fused": True} if device == "cuda" else {}))


def train_step(model, optimizer, parameters, batches, device):
    optimizer.zero_grad(set_to_none=True)
    total = torch.zeros((), device=device)
    for tokens, labels in batches:
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = model(tokens, labels) / len(batches)
        loss.backward()
        total += loss.detach()
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    optimizer.step()
    return total


def measure(arguments, shape):
    device = arguments.device
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    with torch.device(device) if hasattr(torch.device, "__enter__") else memory_of_nothing():
        model = GPT(shape, arguments.seq)
    model.to(device)
    parameters = list(model.parameters())
    optimizer = make_optimizer(model, device)
    runs = compile_parts(model, arguments.compile)
    times, losses = [], []
    for _ in range(arguments.warmup + arguments.steps):
        text = torch.randint(shape["vocabulary"], (arguments.microbatches, arguments.batch, arguments.seq + 1),
                             device=device)
        batches = [(one[:, :-1], one[:, 1:]) for one in text]
        synchronize(device)
        begin = time.perf_counter()
        loss = train_step(runs, optimizer, parameters, batches, device)
        synchronize(device)
        times.append(time.perf_counter() - begin)
        losses.append(loss.item())
    step = statistics.median(times[arguments.warmup:])
    return {"torch": torch.__version__, "model": arguments.model, "layers": shape["layers"],
            "compile": arguments.compile,
            "attention": "sdpa" if hasattr(F, "scaled_dot_product_attention") else "softmax",
            "parameters": sum(p.numel() for p in parameters), "step_time_s": step,
            "tokens_per_s": arguments.microbatches * arguments.batch * arguments.seq / step,
            "memory_peak_bytes": torch.cuda.max_memory_allocated() if device == "cuda" else None,
            "first_loss": losses[0], "last_loss": losses[-1]}


class memory_of_nothing:
    def __enter__(self):
        return None

    def __exit__(self, *_):
        return None


def synchronize(device):
    if device == "cuda":
        torch.cuda.synchronize()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=sorted(MODELS), required=True)
    for name, default, what in (("batch", 1, "sequences in a microbatch"), ("microbatches", 1, "per step"),
                                ("seq", 1024, "tokens in a sequence"), ("layers", 0, "0: the model's"),
                                ("steps", 5, "timed"), ("warmup", 3, "steps before them, not timed")):
        parser.add_argument("--" + name, type=int, default=default, help=f"{what} ({default})")
    parser.add_argument("--compile", choices=["blocks", "whole", "none"], default="blocks")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tiny", action="store_true", help="a tiny model, for a dry run")
    arguments = parser.parse_args()
    shape = dict(MODELS[arguments.model])
    if arguments.tiny:
        shape.update(TINY, groups=2 if shape["llama"] else 4)
        arguments.seq = min(arguments.seq, 32)
    if arguments.layers > 0 and not arguments.tiny:
        shape["layers"] = arguments.layers
    print(json.dumps(measure(arguments, shape)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
