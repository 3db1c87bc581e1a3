#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ranks of one job that were started with different recipes, data or programs: each rank in turn is named.

    test_compare_ranks.py CUBOID MPIRUN"""
import json
import os
import shutil
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from fixtures import write_dataset  # noqa: E402

CUBOID, MPIRUN = os.path.abspath(sys.argv[1]), sys.argv[2]
RECIPE = """\
model: {num_layers: 1, hidden_size: 16, num_attention_heads: 2, seq_length: 16}
train: {global_batch_size: 4, train_iters: 2}
optimizer: {lr: 1e-3}
data: {train: text, split: "1"}
cluster: {threads_per_rank: 1}
checkpoint: {save: none}
"""
RANKS = 4
failures = []


def start(name, odd, program=CUBOID, folder="a", keys=(), same=()):
    """Rank `odd` runs another program, in another folder or with further keys; -1: none. same: further keys of all."""
    words = [MPIRUN]
    for rank in range(RANKS):
        other = rank == odd
        words += [*([":"] if rank else []), "-n", "1", "-x", f"CUBOID_NODE=n{rank}", "-wdir",
                  os.path.abspath(folder if other else "a"), program if other else CUBOID, "train", "r.yaml", "dp=4",
                  f"logging.run_dir={os.path.abspath(name)}", *same, *(keys if other else ())]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return done.returncode, done.stdout


def expect(what, truth, done):
    if not truth:
        failures.append(what)
        print(f"{what}: {done}")


with tempfile.TemporaryDirectory() as work:
    os.chdir(work)
    for place in ("a", "b"):
        os.mkdir(place)
        with open(f"{place}/r.yaml", "w", encoding="utf-8") as file:
            file.write(RECIPE)
        write_dataset(f"{place}/text", [i * (7 if place == "b" else 1) % 50 for i in range(4000)])
    other_program = os.path.abspath("cuboid")
    shutil.copy(CUBOID, other_program)
    with open(other_program, "ab") as file:
        file.write(b"another build")
    alike = start("alike", -1)
    expect("alike", alike[0] == 0 and "differs" not in alike[1], alike)
    for turn, (which, fact, options) in enumerate([
            (0, "recipe: optimizer.weight_decay", {"keys": ["optimizer.weight_decay=0.5"]}),
            (3, "recipe: train.train_iters", {"keys": ["train.train_iters=3"]}),
            (2, "recipe: seed", {"keys": ["seed=7"]}),
            (1, "dataset", {"folder": "b"}), (2, "executable", {"program": other_program})]):
        result = start(f"run{turn}", which, **options)
        lines = [line for line in result[1].splitlines() if "differs from" in line]
        expect(fact, result[0] == 2 and len(lines) == 1 and f" {fact}: rank {which} (" in lines[0] and
               f"node n{which}) differs from {'rank 0' if which else 'the other ranks'} (" in lines[0] and
               lines[0].endswith("; start all ranks with the same one"), result)
        expect(f"{fact}: before step 1", not os.path.exists(f"run{turn}/metrics.jsonl"), result)
    # The folder of the checkpoints: a relative path, which is another folder for one rank.
    saves = ["checkpoint.save=checkpoints", "resilience.heartbeat_timeout_seconds=4"]
    done = start("shared", -1, same=saves)
    expect("a shared folder", done[0] == 0 and os.path.exists("a/checkpoints/step-00000002/manifest.json"), done)
    shutil.copytree("a", "c")
    os.remove("c/checkpoints/run.json")
    for there in ["no run.json", "run 00000000"]:
        result = start("shared", 2, folder="c", same=saves)
        lines = [line for line in result[1].splitlines() if "differs from" in line]
        expect(f"not shared: {there}", result[0] == 2 and len(lines) == 1 and
               f" checkpoint.save: rank 2 ({there}, node n2) differs from rank 0 (run " in lines[0] and
               lines[0].endswith(", node n0) in checkpoints; use a directory that all nodes share"), result)
        with open("a/checkpoints/run.json", encoding="utf-8") as file:
            record = json.load(file)
        with open("c/checkpoints/run.json", "w", encoding="utf-8") as file:
            json.dump({**record, "run": "0" * len(record["run"])}, file)
print("\n".join(failures) if failures else "ok")
sys.exit(1 if failures else 0)
