#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""GPT-2 124M from the same weights on the same samples in PyTorch and in Cuboid: docs/measurements/convergence.md.

    python3 -m venv runs/torch && runs/torch/bin/pip install torch transformers
    runs/torch/bin/python tools/convergence/compare_torch.py [TEXT-FILE]

Makes in runs/convergence what is missing there: a BPE vocabulary of 50257 ids from the text (GCIDE, Debian's
dict-gcide, unless another is given), the dataset, the initial weights, and the runs below, an hour or two in all on two
cores. Writes docs/figures/convergence.csv, from which tools/dev/figures.py draws, and prints the table of the page."""
import csv
import gzip
import json
import os
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
CUBOID, RECIPE, FOLDER = "build/cuboid", "tools/convergence/gpt2.yaml", "runs/convergence"
GCIDE = "/usr/share/dictd/gcide.dict.dz"
TABLE = "docs/figures/convergence.csv"
DOCUMENT_LINES = 100

# Folder: label, program, arguments. The others are compared with the first.
RUNS = {
    "torch": ("PyTorch", "torch", ()),
    "torch-rows": ("PyTorch, 4 microbatches", "torch", ("--rows", "1")),
    "one": ("Cuboid, 1 rank", "cuboid", ()),
    "tp2-pp2": ("Cuboid, tp 2, pp 2, zb-v", "cuboid", ("tp=2", "pp=2", "schedule=zb-v")),
    "dp2-zero3": ("Cuboid, dp 2, ZeRO 3", "cuboid", ("dp=2", "zero=3")),
    "bf16": ("Cuboid, 1 rank, bf16", "cuboid", ("precision.params_dtype=bf16",)),
}
# The first steps only: layouts that are bit-identical to another one, and clipping with PyTorch's own norm.
FEW_STEPS = 5
BITWISE = {"tp2": ("tp2-pp2", ("tp=2",)), "dp2-zero2": ("dp2-zero3", ("dp=2", "zero=2"))}
CLIP = ("torch-clip", "torch", ("--clip-grad-norm", "--steps", str(FEW_STEPS)))


def run(*words, **options):
    env = {key: value for key, value in os.environ.items() if not key.startswith("OPENBLAS_")}
    done = subprocess.run(words, cwd=ROOT, env=env, check=False, **options)
    if done.returncode != 0:
        sys.exit(f"{' '.join(words)}: exit status {done.returncode}")
    return done.stdout


def in_folder(*names):
    return os.path.join(FOLDER, *names)


def train_tokenizer(text):
    """GPT-2's kind of vocabulary, as large as GPT-2's."""
    import tokenizers
    bpe = tokenizers.ByteLevelBPETokenizer()
    bpe.train([text], vocab_size=50257, special_tokens=["<|endoftext|>"], show_progress=False)
    if bpe.get_vocab_size() != 50257:
        sys.exit(f"{text}: too short for 50257 ids: its vocabulary has {bpe.get_vocab_size()}")
    bpe.save_model(FOLDER)


def prepare_data(source):
    if os.path.exists(in_folder("tokens.idx")):
        return
    if not os.path.exists(source):
        sys.exit(f"{source}: not found; name a text file, or install GCIDE with tools/setup --data")
    with (gzip.open if source.endswith((".dz", ".gz")) else open)(source, "rb") as file:
        text = file.read().decode(errors="replace")
    with open(in_folder("text.txt"), "w", encoding="utf-8", newline="") as file:
        file.write(text)
    train_tokenizer(in_folder("text.txt"))
    run(CUBOID, "data", "prepare", in_folder("text.txt"), "-o", in_folder("tokens"), "--tokenizer", "gpt2",
        "--vocab-file", in_folder("vocab.json"), "--merge-file", in_folder("merges.txt"),
        "--split-lines", str(DOCUMENT_LINES))


def prepare_weights():
    """The weights that every run of Cuboid begins with, as a model of transformers."""
    if os.path.exists(in_folder("gpt2")):
        return
    run(CUBOID, "train", RECIPE, "train.train_iters=0", f"checkpoint.save={in_folder('initial')}",
        f"logging.run_dir={in_folder('initial-run')}")
    run(CUBOID, "checkpoint", "export", in_folder("initial"), "-o", in_folder("gpt2"))
    for name in ("initial", "initial-run"):
        shutil.rmtree(in_folder(name))


def prepare_recipe():
    """The resolved recipe, for PyTorch -> the number of steps."""
    import yaml
    text = run(CUBOID, "recipe", RECIPE, stdout=subprocess.PIPE, text=True)
    path = in_folder("recipe.yaml")
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            if file.read() != text:
                sys.exit(f"{path}: of another recipe, and so are the runs next to it; remove {FOLDER}")
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return yaml.safe_load(text)["train"]["train_iters"]


def read_metrics(name):
    try:
        with open(in_folder(name, "metrics.jsonl"), encoding="utf-8") as file:
            return [json.loads(line) for line in file]
    except FileNotFoundError:
        return []


def make_run(name, program, arguments, steps):
    """-> the metrics of each step"""
    if len(read_metrics(name)) < steps:
        shutil.rmtree(in_folder(name), ignore_errors=True)
        print(f"{name}: {program} {' '.join(arguments)}", flush=True)
        if program == "cuboid":
            run(CUBOID, "train", RECIPE, f"logging.run_dir={in_folder(name)}", *arguments)
        else:
            os.makedirs(in_folder(name))
            run(sys.executable, os.path.join(HERE, "train_torch.py"), in_folder("gpt2"), in_folder("recipe.yaml"),
                in_folder(name, "metrics.jsonl"), *arguments)
    return read_metrics(name)


def check_bitwise(runs, steps):
    for name, (other, arguments) in BITWISE.items():
        fewer = ("train.eval_interval=0", f"train.train_iters={FEW_STEPS}", f"optimizer.lr_decay_iters={steps}")
        found = make_run(name, "cuboid", (*arguments, *fewer), FEW_STEPS)
        for ours, theirs in zip(found, runs[other]):
            for key in ("loss", "grad_norm"):
                if ours[key] != theirs[key]:
                    sys.exit(f"step {ours['step']}: {key} {ours[key]} of {name}, {theirs[key]} of {other}: "
                             "they must be bit-identical")
        print(f"{name} and {other}: losses and gradient norms of {FEW_STEPS} steps are bit-identical")


def compare_clip(reference):
    """The norm that clip_grad_norm_ computes, and what it changes."""
    found = make_run(*CLIP, FEW_STEPS)
    losses = max(abs(row["loss"] - other["loss"]) for row, other in zip(found, reference))
    norms = [row["grad_norm"] / other["grad_norm"] - 1 for row, other in zip(found, reference)]
    print(f"clip_grad_norm_: the norm of step 1 differs by {norms[0]:.1e}, of {FEW_STEPS} steps by "
          f"{max(map(abs, norms)):.1e} at most, the losses by {losses:.1e}")


def write_losses(runs):
    with open(TABLE, "w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["step", *(RUNS[name][0] for name in runs)])
        for i, row in enumerate(runs["torch"]):
            losses = (f"{rows[i]['loss']:.8f}" if i < len(rows) else "" for rows in runs.values())
            table.writerow([row["step"], *losses])


def report(runs):
    first = runs["torch"]
    print("| run | steps | largest difference of the loss | at step | mean | largest of the norm | validation loss |")
    print("|---|---|---|---|---|---|---|")
    for name, rows in runs.items():
        apart = [abs(ours["loss"] - theirs["loss"]) for ours, theirs in zip(rows, first)]
        norm = max(abs(ours["grad_norm"] / theirs["grad_norm"] - 1) for ours, theirs in zip(rows, first))
        found = f"{max(apart):.1e} | {apart.index(max(apart)) + 1} | {sum(apart) / len(apart):.1e} | {norm:.1e}"
        valid = f"{rows[-1]['valid_loss']:.6f}" if "valid_loss" in rows[-1] else ""
        print(f"| {RUNS[name][0]} | {len(rows)} | {found if rows is not first else ' | | | '} | {valid} |")


def main():
    words = sys.argv[1:]
    if len(words) > 1 or words[:1] in (["-h"], ["--help"]):
        sys.exit(__doc__)
    try:
        import numpy, tokenizers, torch, transformers, yaml  # noqa: E401, F401
    except ImportError as error:
        sys.exit(f"{error}; install torch and transformers:\n{__doc__}")
    source = os.path.abspath(words[0]) if words else GCIDE
    os.chdir(ROOT)
    if not os.access(CUBOID, os.X_OK):
        sys.exit("build first: meson setup build && ninja -C build")
    os.makedirs(FOLDER, exist_ok=True)
    prepare_data(source)
    prepare_weights()
    steps = prepare_recipe()
    runs = {name: make_run(name, program, arguments, steps) for name, (_, program, arguments) in RUNS.items()}
    check_bitwise(runs, steps)
    compare_clip(runs["torch"])
    write_losses(runs)
    report(runs)


if __name__ == "__main__":
    main()
