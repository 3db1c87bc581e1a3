#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sends the metrics of runs to Weights & Biases, while they train or later.

    pip install wandb && wandb login
    tools/wandb_sync.py RUN... [--project NAME] [--follow]

RUN        a run directory: metrics.jsonl and recipe.yaml
--project  the project; default: cuboid
--follow   looks for new lines every ten seconds, until interrupted

The same run again sends what is new, also after it has resumed: a run is known by its identity in run.json.
Offline, as with WANDB_MODE=offline, `wandb sync` sends what this wrote."""
import argparse
import json
import os
import time


def flat(value, name=""):
    """Nested fields as one level: memory_bytes/weights."""
    if isinstance(value, dict):
        return {key: number for part, inner in value.items()
                for key, number in flat(inner, f"{name}/{part}" if name else part).items()}
    if isinstance(value, list) and len(value) == 2:
        return flat({"least": value[0], "most": value[1]}, name)
    return {} if value is None or isinstance(value, str) else {name: value}


def read(path, name, parse, otherwise):
    try:
        with open(os.path.join(path, name), encoding="utf-8") as file:
            return parse(file)
    except FileNotFoundError:
        return otherwise


def recipe_of(path):
    try:
        import yaml
    except ImportError:
        return {}
    return read(path, "recipe.yaml", yaml.safe_load, {})


def complete_lines(file):
    """The last line may still be being written."""
    return [json.loads(line) for line in file if line.endswith("\n")]


class Run:
    def __init__(self, wandb, path, project):
        self.path = path
        identity = read(path, "run.json", json.load, {}).get("run")
        name = os.path.basename(os.path.abspath(path))
        self.run = wandb.init(project=project, name=name, id=identity, resume="allow", config=recipe_of(path),
                              reinit="create_new")
        self.sent = self.run.step - 1 if self.run.resumed else 0

    def send(self):
        for line in read(self.path, "metrics.jsonl", complete_lines, []):
            if line["step"] > self.sent:
                self.sent = line.pop("step")
                line.pop("activation_slots", None)
                self.run.log(flat(line), step=self.sent)


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("runs", nargs="+", metavar="RUN")
    arguments.add_argument("--project", default="cuboid")
    arguments.add_argument("--follow", action="store_true")
    given = arguments.parse_args()
    for path in given.runs:
        if not os.path.exists(os.path.join(path, "metrics.jsonl")):
            arguments.error(f"{path}: no metrics.jsonl: not a run directory")
    try:
        import wandb
    except ImportError:
        arguments.error("the package wandb is missing: pip install wandb")
    runs = [Run(wandb, path, given.project) for path in given.runs]
    try:
        for run in runs:
            run.send()
        while given.follow:
            time.sleep(10)
            for run in runs:
                run.send()
    except KeyboardInterrupt:
        pass
    for run in runs:
        run.run.finish()


if __name__ == "__main__":
    main()
