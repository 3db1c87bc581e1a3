#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the golden values that Cuboid is compared with, from the reference in reference_gpt.py, in 1.3 s.

    make_golden.py FOLDER     writes golden_*.txt into this folder
    make_golden.py --names    prints their names

A golden file is words separated by white space, so that `fscanf("%s")` and `strtod` can read it.
It begins with its recipe (`model`, `optimizer` and `data` lines, each a
recipe key and its value), and then has

    init NAME i VALUE          element i (row-major) of an initial weight, exact (hexadecimal fp32)
    loss STEP VALUE            mean loss in nats before the update of STEP = 1..STEPS (hexadecimal fp64)
    norm STEP VALUE            global gradient norm before clipping (hexadecimal fp64)
    grad NAME d0 d1            gradient of step 1, unclipped: d0 lines of d1 values follow
    weight NAME d0 d1          weight after the last step, likewise; a vector of n has d0 = n, d1 = 1

The batches are formulas, with integer arithmetic, step counted from 0 and s from 0 to S:

    token(step, b, s) = (step*7919 + b*104729 + s*1299709 + ((s*s) % 31)*17) % V
    inputs are s = 0..S-1, labels are s = 1..S

    documents: document id 0 for s < 5 and 1 from there, positions 0..4 and then 0..S-6
    mask:      the loss of input s of row b counts where (s + step) % (b + 2) is not 0, so that every
               row, and every microbatch, contributes another number of tokens to the mean

A key bias's gradient is zero in exact arithmetic without RoPE (it adds one number to all scores of a row).
It is written as 0. In single precision it is rounding noise, which Adam scales up to lr: bound
the weight accordingly.
"""

import argparse
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np

from reference_adamw import Adam, AdamW, global_norm
from reference_gpt import (
    ALIBI,
    GPT2,
    LLAMA,
    NEOX,
    PARALLEL,
    QWEN,
    SOFTCAP,
    WINDOW,
    YARN,
    Batch,
    Model,
    initial_weights,
    loss_and_grads,
)

SEED, ROWS, SECOND_DOCUMENT = 1234, 4, 5
NOISE = 1e-15  # values smaller than this are rounding errors of zero in fp64; real gradients are 5e-8 or more


@dataclass(frozen=True)
class Case:
    name: str
    model: Model
    documents: bool = False
    mask: bool = False
    steps: int = 5
    adam: Adam = Adam()
    gradients: bool = True
    weights: bool = True  # the variants omit the final weights: five losses and norms depend on them


CASES = [
    Case("gpt2", GPT2),
    Case("llama", LLAMA),
    Case("gpt2_documents", GPT2, documents=True, weights=False),
    Case("gpt2_mask", GPT2, mask=True, weights=False),
    Case("llama_documents", LLAMA, documents=True, mask=True, weights=False),
    Case("qwen", QWEN, weights=False),
    Case("yarn", YARN, mask=True, weights=False),
    Case("parallel", PARALLEL, weights=False),
    Case("neox", replace(NEOX, activation="squared_relu"), mask=True, weights=False),
    Case("window", WINDOW, weights=False),
    Case("alibi", ALIBI, documents=True, weights=False),
    Case("softcap", SOFTCAP, mask=True, weights=False),
    Case("gpt2_betas", GPT2, steps=20, adam=Adam(adam_beta2=0.999), gradients=False),  # a recipe's default betas
]


def batch_of(case, step):
    seq, vocab = case.model.seq_length, case.model.vocab_size
    b, s = np.indices((ROWS, seq + 1))
    text = (step * 7919 + b * 104729 + s * 1299709 + ((s * s) % 31) * 17) % vocab
    b, s = b[:, :seq], s[:, :seq]
    second = s >= SECOND_DOCUMENT
    return Batch(
        tokens=text[:, :-1],
        labels=text[:, 1:],
        positions=np.where(second, s - SECOND_DOCUMENT, s) if case.documents else s,
        documents=second.astype(np.int64) if case.documents else np.zeros_like(s),
        loss_mask=((s + step) % (b + 2) != 0).astype(np.float64) if case.mask else np.ones(s.shape),
    )


def train(case):
    """-> (initial weights, losses, norms, gradients of step 1, final weights)"""
    weights = initial_weights(case.model, SEED)
    initial = {name: w.copy() for name, w in weights.items()}
    optimizer = AdamW(case.adam, weights)
    losses, norms, first_grads = [], [], None
    for step in range(case.steps):
        loss, grads = loss_and_grads(case.model, weights, batch_of(case, step))
        first_grads = first_grads or grads
        losses.append(loss)
        norms.append(global_norm(grads))
        optimizer.step(weights, grads)
    return initial, losses, norms, first_grads, weights


def table(kind, name, values):
    """One tensor. Twelve digits: ten thousand times finer than the single-precision values compared with it."""
    rows = values.reshape(values.shape[0], -1)
    rows = np.where(np.abs(rows) < NOISE, 0.0, rows)
    lines = [f"{kind} {name} {rows.shape[0]} {rows.shape[1]}"]
    return lines + [" ".join(f"{v:.12g}" for v in row) for row in rows]


def word(value):
    """As in a recipe."""
    return str(value).lower() if isinstance(value, bool) else str(value)


NEWER_KEYS = [f.name for f in fields(Model)][[f.name for f in fields(Model)].index("add_qkv_bias") :]


def is_listed(thing, field):
    """The newer keys of a model are listed only where they are not the default: older files have none of them."""
    return field.name not in NEWER_KEYS or getattr(thing, field.name) != field.default


def golden_lines(case):
    initial, losses, norms, grads, weights = train(case)
    lines = []
    for kind, thing in (("model", case.model), ("optimizer", case.adam)):
        lines += [f"{kind} {f.name} {word(getattr(thing, f.name))}" for f in fields(thing) if is_listed(thing, f)]
    data = {"seed": SEED, "steps": case.steps, "rows": ROWS, "documents": case.documents, "mask": case.mask}
    lines += [f"data {key} {word(value)}" for key, value in data.items()]
    for name, w in initial.items():
        lines += [f"init {name} {i} {float(w.flat[i]).hex()}" for i in (0, 1, 6, w.size - 1) if i < w.size]
    lines += [f"loss {i} {loss.hex()}" for i, loss in enumerate(map(float, losses), 1)]
    lines += [f"norm {i} {norm.hex()}" for i, norm in enumerate(norms, 1)]
    for name, g in grads.items() if case.gradients else ():
        lines += table("grad", name, g)
    if case.weights:
        for name, w in weights.items():
            lines += table("weight", name, w)
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--names", action="store_true", help="print the names of the files")
    arguments = parser.parse_args()
    for case in CASES:
        name = f"golden_{case.name}.txt"
        if arguments.names:
            print(name)
        else:
            (arguments.folder / name).write_text("\n".join(golden_lines(case)) + "\n")


if __name__ == "__main__":
    main()
