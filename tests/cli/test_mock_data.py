#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""data.mock_data: training, verifying and resuming without a dataset.

    test_mock_data.py CUBOID [MPIRUN ...]"""
import json
import os
import subprocess
import sys
import tempfile

CUBOID, MPIRUN = os.path.abspath(sys.argv[1]), sys.argv[2:]
RECIPE = """name: tiny
model: {num_layers: 4, hidden_size: 32, num_attention_heads: 4, seq_length: 32}
train: {micro_batch_size: 1, global_batch_size: 8, train_iters: 6, eval_interval: 3, eval_iters: 2}
optimizer: {lr: 1.0e-3, lr_warmup_iters: 2}
data: {mock_data: true}
"""
failures = []


def run(*arguments, launcher=()):
    return subprocess.run([*launcher, CUBOID, *arguments], capture_output=True, text=True, check=False, cwd=FOLDER)


def expect(what, truth, seen):
    if not truth:
        failures.append(what)
        print(f"{what}: {seen!r:.1500}")


def losses(name):
    with open(f"{FOLDER}/{name}/metrics.jsonl", encoding="utf-8") as file:
        return [(line["step"], line["loss"], line.get("valid_loss")) for line in map(json.loads, file)]


def train(name, *arguments, launcher=()):
    done = run("train", "tiny.yaml", f"logging.run_dir={name}", *arguments, launcher=launcher)
    expect(f"{name} trains", done.returncode == 0, done)
    return losses(name) if done.returncode == 0 else []


def test_layouts():
    one = train("one")
    expect("losses of six steps, and two validations", len(one) == 6 and
           sum(line[2] is not None for line in one) == 2, one)
    expect("a pipeline has the same losses", train("pp", "pp=2", "pipeline.schedule=zb-h1") == one, one)
    spread = train("dp", "dp=2", "tp=2")
    expect("data and tensor ranks have the same tokens",
           all(abs(a[1] - b[1]) < 1e-4 for a, b in zip(one, spread, strict=True)), (one, spread))
    if MPIRUN:
        expect("processes have the same losses", train("mpi", "pp=2", launcher=[*MPIRUN, "-n", "2"]) == one, one)
    other = train("seed", "seed=5")
    expect("another seed has other tokens", all(a[1] != b[1] for a, b in zip(one, other, strict=True)), other)


def test_resume():
    """Three steps and three more are six, with another layout; a change of the tokens is reported."""
    whole = train("whole", "checkpoint.save_interval=3")
    train("half", "train.train_iters=3", "checkpoint.save_interval=3", "optimizer.lr_decay_iters=6")
    half = train("half", "pp=2")
    expect("a resumed run has the same tokens", half == whole, (half, whole))
    done = run("train", "tiny.yaml", "logging.run_dir=half", "train.train_iters=8", "seed=9")
    expect("another seed is reported", "seed" in done.stderr, done)
    # data.strict has an effect on mock data, too, and is not reported as a key without one.
    with open(f"{FOLDER}/text.txt", "w", encoding="utf-8") as out:
        out.write("The ocean is wide, and so is the sky. " * 100)
    run("data", "prepare", "text.txt", "-o", "text")
    train("half", "data.mock_data=false", "data.train=text", "data.split=1", "train.eval_interval=0",
          "train.train_iters=9")
    done = run("train", "tiny.yaml", "logging.run_dir=half", "train.train_iters=10", "data.strict=true")
    expect("data.strict refuses mock data", done.returncode == 2 and "has no effect" not in done.stderr and
           "data.strict: the data changed since half/checkpoints/step-00000009: data.train: number of sources changed "
           "from 1 to 0 (data.mock_data); restore it, or set data.strict=false" in done.stderr, done)


def test_verify():
    done = run("verify", "tiny.yaml", "pp=2", "dp=2", "pipeline.schedule=zb-h1")
    expect("verify works on mock data", done.returncode == 0, done)


def test_keys():
    done = run("train", "tiny.yaml", "data.train=nowhere", "logging.run_dir=given", "train.train_iters=1",
               "optimizer.lr_warmup_iters=0", "train.eval_interval=0")
    expect("a dataset that is not read is reported", done.returncode == 0 and
           "data.train has no effect: data.mock_data is true" in done.stderr, done)
    done = run("train", "tiny.yaml", "data.mock_data=false")
    expect("without mock data a dataset is required", done.returncode == 2 and "data.train is required" in done.stderr,
           done)
    done = run("train", f"{FOLDER}/one/recipe.yaml", "logging.run_dir=again")
    expect("a resolved recipe has it, too", done.returncode == 0 and "no effect" not in done.stderr and
           losses("again") == losses("one"), done)
    done = run("train", "tiny.yaml", "logging.run_dir=bpe", "tokenizer.tokenizer_type=GPT2BPE",
               "tokenizer.vocab_file=none.json", "tokenizer.merge_file=none.txt", "train.train_iters=1",
               "optimizer.lr_warmup_iters=0")
    expect("no tokenizer is read", done.returncode == 0, done)
    done = run("train", "tiny.yaml", "logging.run_dir=ends", "data.reset_attention_mask=true",
               "data.reset_position_ids=true")
    expect("documents end at random tokens", done.returncode == 0 and losses("ends") != losses("one"), done)


with tempfile.TemporaryDirectory() as FOLDER:
    with open(f"{FOLDER}/tiny.yaml", "w", encoding="utf-8") as out:
        out.write(RECIPE)
    test_layouts()
    test_resume()
    test_verify()
    test_keys()
print("\n".join(failures) if failures else "all as expected")
sys.exit(1 if failures else 0)
