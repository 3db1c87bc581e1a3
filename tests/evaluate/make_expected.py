#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes expected.json: losses by transformers, in double precision.

    make_expected.py         in a Python environment with torch and transformers"""
import json
import re
import sys
import tempfile

import inputs
import models
import numpy as np
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


# The rules of lm-evaluation-harness 0.4.13: tasks/hellaswag, tasks/arc, api/task.py and api/model.py.
def preprocess(text):
    return re.sub("\\[.*?\\]", "", text.strip().replace(" [title]", ". ")).replace("  ", " ")


def texts_of(item):
    """Context, choices and the index of the answer."""
    if "endings" in item:
        context = item["ctx_a"] + " " + item["ctx_b"].capitalize()
        return (preprocess(item["activity_label"] + ": " + context), [preprocess(end) for end in item["endings"]],
                int(item["label"]))
    question, choices = item["question"], item.get("choices")
    if isinstance(question, dict):
        choices = {key: [choice[key] for choice in question["choices"]] for key in ("text", "label")}
        question = question["stem"]
    return f"Question: {question}\nAnswer:", choices["text"], choices["label"].index(item["answerKey"])


def score(model, context, choice):
    """Log-likelihood of " " + choice after the context; tokens are bytes."""
    whole, kept = list((context + " " + choice).encode()), len(context.rstrip().encode())
    return -negative_log_likelihood(model, whole[:-1], whole[1:], len(whole) - kept)


def choose(scores, lengths):
    """The first of the largest, by enough to be certain in fp32."""
    scores = np.array(scores) / np.array(lengths, dtype=float)
    chosen = int(np.argmax(scores))
    margin = min((scores[chosen] - other for other in scores if other != scores[chosen]), default=1.0)
    return chosen if margin > 1e-4 else sys.exit(f"{scores}: too close to call")


def answers_of(model):
    items = []
    with open(f"{inputs.HERE}/items.jsonl", encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            context, choices, correct = texts_of(json.loads(line))
            scores = [score(model, context, choice) for choice in choices]
            items.append({"line": number, "correct": correct, "acc": choose(scores, [1] * len(scores)),
                          "acc_norm": choose(scores, [max(len(choice), 1e-300) for choice in choices]),
                          "acc_bytes": choose(scores, [max(len(choice.encode()), 1e-300) for choice in choices]),
                          "log_likelihood": scores})
    return items


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
            expected[name]["items"] = answers_of(model)
    with open(f"{inputs.HERE}/expected.json", "w", encoding="utf-8") as file:
        file.write(re.sub(r"\[\s+([^\[\]{}]*?)\s+\]", lambda found: "[" + re.sub(r"\s+", " ", found.group(1)) + "]",
                          json.dumps(expected, indent=1)) + "\n")


main()
