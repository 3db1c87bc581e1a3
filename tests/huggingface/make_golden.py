#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes golden_NAME.txt: logits of the last tokens of a prompt, and greedy tokens, by transformers.

    make_golden.py [NAME ...]         in a Python environment with torch and transformers"""
import os
import sys
import tempfile

import torch
import transformers

sys.dont_write_bytecode = True
import models  # noqa: E402

ROWS, FEWEST = 4, 1e-4  # positions whose logits are kept; least difference between the two largest logits
HERE = os.path.dirname(os.path.abspath(__file__))


def golden(folder):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids, greedy = list(models.PROMPT), []
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0, -ROWS:]
        while len(greedy) < models.GREEDY:
            best = model(torch.tensor([ids + greedy])).logits[0, -1].topk(2)
            if best.values[0] - best.values[1] < FEWEST:
                sys.exit(f"{folder}: token {len(greedy)} is too close to call; use another seed")
            greedy.append(int(best.indices[0]))
    return logits, greedy


def main():
    torch.set_num_threads(1)
    for name in sys.argv[1:] or models.CASES:
        with tempfile.TemporaryDirectory() as folder:
            models.write_model(f"{folder}/{name}", models.CASES[name])
            logits, greedy = golden(f"{folder}/{name}")
        with open(f"{HERE}/golden_{name}.txt", "w", encoding="utf-8") as file:
            file.write(f"# transformers {transformers.__version__}, torch {torch.__version__.split('+')[0]}, fp32\n")
            for row in logits:
                file.write("logits " + " ".join(f"{float(value):.8g}" for value in row) + "\n")
            file.write("greedy " + " ".join(map(str, greedy)) + "\n")
        print(f"{name}: logits up to {float(logits.abs().max()):.3f}, {len(set(greedy))} different tokens")


main()
