#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares expected.json with lm-evaluation-harness itself: its tasks hellaswag and arc_easy on items.jsonl.

    check_harness.py         in a Python environment with torch, transformers and lm-eval

The harness makes the texts, cuts them into context and choice, and scores them; the model is transformers' in double
precision, and tokens are bytes. test_evaluate.py compares `cuboid evaluate` with the same file."""
import json
import math
import os
import sys
import tempfile

import datasets
import inputs
import lm_eval
import models
import torch
import transformers
from lm_eval.api.model import TemplateLM
from lm_eval.api.task import ConfigurableTask
from lm_eval.tasks._yaml_loader import load_yaml

TASKS = {"hellaswag": "hellaswag/hellaswag.yaml", "arc_easy": "arc/arc_easy.yaml"}
METRICS = ("acc", "acc_norm", "acc_bytes")


class Bytes(TemplateLM):
    """A model whose tokens are bytes."""

    eot_token_id = inputs.END

    def __init__(self, model):
        super().__init__()
        self.model = model

    def tok_encode(self, string, add_special_tokens=None, **kwargs):
        return list(string.encode())

    def _loglikelihood_tokens(self, requests, **kwargs):
        return [self.score(context + choice, len(choice)) for _, context, choice in requests]

    def score(self, ids, count):
        with torch.no_grad():
            log_p = self.model(torch.tensor([ids[:-1]])).logits[0, -count:].log_softmax(-1)
        labels = torch.tensor(ids[-count:])
        return float(log_p.gather(1, labels[:, None]).sum()), bool((log_p.argmax(-1) == labels).all())

    def loglikelihood_rolling(self, requests, **kwargs):
        raise NotImplementedError

    def generate_until(self, requests, **kwargs):
        raise NotImplementedError


def read_items():
    """The items of each task as its dataset has them, and their lines in the file."""
    rows, lines = {name: [] for name in TASKS}, {name: [] for name in TASKS}
    with open(f"{inputs.HERE}/items.jsonl", encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            item = json.loads(line)
            name = "hellaswag" if "endings" in item else "arc_easy"
            if name == "hellaswag":
                row = {key: item[key] for key in ("activity_label", "ctx_a", "ctx_b", "endings")}
                row["label"] = str(item["label"])
            else:
                question = item["question"]
                if isinstance(question, dict):  # the form of ARC's own files
                    item["choices"] = {key: [choice[key] for choice in question["choices"]]
                                       for key in ("text", "label")}
                    question = question["stem"]
                row = {"question": question, "answerKey": item["answerKey"],
                       "choices": {key: item["choices"][key] for key in ("text", "label")}}
            rows[name].append(row)
            lines[name].append(number)
    return rows, lines


def task_of(name, rows):
    """The harness's own task, on these items."""
    config = load_yaml(os.path.join(os.path.dirname(lm_eval.__file__), "tasks", TASKS[name]), resolve_func=True)
    split = config["validation_split"]
    config.update(custom_dataset=lambda **_: {split: datasets.Dataset.from_list(rows)}, training_split=None,
                  test_split=None, metric_list=[{"metric": metric, "aggregation": "mean", "higher_is_better": True}
                                                for metric in METRICS])
    return ConfigurableTask(config=config)


def compare(where, sample, expected):
    """`sample`: what the harness computed for the item of a line."""
    scores = [response[0][0] for response in sample["resps"]]
    close = all(math.isclose(a, b, rel_tol=1e-9) for a, b in zip(scores, expected["log_likelihood"], strict=True))
    right = all((sample[metric] == 1.0) == (expected[metric] == expected["correct"]) for metric in METRICS)
    if not close or not right:
        sys.exit(f"{where}: the harness has {scores} and { {m: sample[m] for m in METRICS} }, expected {expected}")


def main():
    torch.set_num_threads(1)
    with open(f"{inputs.HERE}/expected.json", encoding="utf-8") as file:
        expected = json.load(file)
    rows, lines = read_items()
    tasks = [task_of(name, rows[name]) for name in TASKS]
    compared = 0
    with tempfile.TemporaryDirectory() as folder:
        for model, config in inputs.BYTES.items():
            models.write_model(f"{folder}/{model}", config)
            loaded = transformers.AutoModelForCausalLM.from_pretrained(f"{folder}/{model}", dtype=torch.float64).eval()
            samples = lm_eval.simple_evaluate(Bytes(loaded), tasks=tasks, bootstrap_iters=0)["samples"]
            for name in TASKS:
                for sample in samples[name]:
                    line = lines[name][sample["doc_id"]]
                    compare(f"{model}: items.jsonl:{line}", sample, expected[model]["items"][line - 1])
                    compared += 1
    if compared != 50 * len(inputs.BYTES):
        sys.exit(f"{compared} items were compared")
    print(f"lm-evaluation-harness {lm_eval.__version__} agrees on {compared} items")


main()
