#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes expected.json: losses by transformers, in double precision.

    make_expected.py         in a Python environment with torch and transformers"""
import json
import tempfile

import inputs
import models
import torch
import transformers


def negative_log_likelihood(model, ids, labels, targets):
    with torch.no_grad():
        log_p = model(torch.tensor([ids])).logits[0, -targets:].log_softmax(-1)
    return -float(log_p.gather(1, torch.tensor(labels[-targets:])[:, None]).sum())


def loss_of(model, sequences):
    """Sum over all predicted tokens, and their number."""
    total, tokens = 0.0, 0
    for sequence in sequences:
        for ids, labels, targets in inputs.windows(sequence, models.CONTEXT):
            total += negative_log_likelihood(model, ids, labels, targets)
            tokens += targets
    return {"loss": total / tokens, "tokens": tokens}


def load(folder, name, config):
    models.write_model(f"{folder}/{name}", config)
    return transformers.AutoModelForCausalLM.from_pretrained(f"{folder}/{name}", dtype=torch.float64).eval()


def main():
    torch.set_num_threads(1)
    expected = {"made by": f"transformers {transformers.__version__}, torch {torch.__version__}, float64"}
    with tempfile.TemporaryDirectory() as folder:
        for name, config in inputs.STREAM.items():
            expected[name] = loss_of(load(folder, name, config), [inputs.IDS])
        for name, config in inputs.BYTES.items():
            model = load(folder, name, config)
            # The end-of-document token begins a document, and is not predicted at its end.
            expected[name] = loss_of(model, [[inputs.END] + ids[:-1] for ids in inputs.DOCUMENTS])
    with open(f"{inputs.HERE}/expected.json", "w", encoding="utf-8") as file:
        json.dump(expected, file, indent=1)
        file.write("\n")


main()
