#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The commands of docs/cluster.md in order, under the Slurm that tests/slurm/cluster has started, with emulated GPUs.
Every number matches any number.

    cluster_page.py CUBOID SOURCE-ROOT FOLDER"""
import json
import os
import re
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cli"))
import page  # noqa: E402

CUBOID, ROOT, FOLDER = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2]), sys.argv[3]
PAGE = os.path.join(ROOT, "docs", "cluster.md")

NOT_RUN = {
    "module load cuda nccl openmpi": "no modules here",
    "meson setup build -Dcuda=enabled -Dtests=disabled && ninja -C build": "that with the emulator takes its place",
}
# Two nodes of two GPUs are all nodes; one node is fewer. Jobs are waited for, as the reader would.
REPLACED = [
    (" -N 8 ", " -N 2 "), ("--gpus-per-node=8", "--gpus-per-node=2"), ("--ntasks-per-node=8", "--ntasks-per-node=2"),
    ("--cpus-per-task=12", "--cpus-per-task=2"),
    ("cluster.nodes=4", "cluster.nodes=1"), ("optimizer.lr_decay_iters=476837", "optimizer.lr_decay_iters=120"),
    ("squeue --me", "wait_for_step 12; squeue --me"),
    ("srun --jobid=$JOB --overlap --nodelist=n2 --ntasks=1 pkill -KILL -x cuboid", "kill_ranks_of n2"),
    ("tail -n 40 ", "wait_for_line 'resumes from'; tail -n 40 "),
    ("cuboid runs ", "wait_for_end; cuboid runs "),
]
IN_RECIPE = [("recipes/models/qwen/qwen3-8b.yaml", "small.yaml"), ("save_interval: 200", "save_interval: 10"),
             ("nodes: 8, gpus_per_node: 8, threads_per_rank: 12", "nodes: 2, gpus_per_node: 2, threads_per_rank: 2")]
SMALL = """
base: recipes/models/qwen/qwen3-8b.yaml
model: {num_layers: 2, hidden_size: 16, num_attention_heads: 4, num_query_groups: 2, kv_channels: 4,
  ffn_hidden_size: 16, seq_length: 8, vocab_size: 462}
train: {micro_batch_size: 1, global_batch_size: 4, train_iters: 120, eval_interval: 0}
optimizer: {lr_warmup_iters: 5}
"""
FUNCTIONS = r"""
wait_until() { for _ in $(seq 1200); do "$@" && return; sleep 0.1; done; echo "waited for: $*"; return 1; }
has_step() { grep -qs "\"step\": *$1," runs/mine/metrics.jsonl; }
wait_for_step() { wait_until has_step "$1"; }
has_line() { grep -qs "$1" runs/mine/slurm-*.log; }
wait_for_line() { wait_until has_line "$1"; }
no_jobs() { [ -z "$(squeue -h)" ]; }
wait_for_end() { wait_until no_jobs; }
kill_ranks_of() {
    for process in $(pgrep -f "^$CUBOID train run.yaml.*--supervised"); do
        if tr '\0' '\n' <"/proc/$process/environ" | grep -qx "SLURMD_NODENAME=$1"; then kill -KILL "$process"; fi
    done
}
"""
NUMBER = r"\d+(?:\.\d+)?(?:e[-+]?\d+)?(?: [KMG](?= ))?"


def replaced(command):
    for old, new in REPLACED:
        command = command.replace(old, new)
    return command


def prepare():
    """The reader's files: run.yaml from the page, text, a tokenizer."""
    os.makedirs("text")
    os.mkdir("qwen3")
    os.symlink(os.path.join(ROOT, "tests", "fixtures", "tokenizers", "qwen.json"), "qwen3/tokenizer.json")
    with open("text/a.jsonl", "w", encoding="ascii") as file:
        for n in range(900):
            file.write(json.dumps({"text": f"Line {n}: the ocean is wide, and so is the sky."}) + "\n")
    with open(PAGE, encoding="utf-8") as file:
        recipe = re.search(r"(?ms)^```yaml\n(.*?)^```", file.read()).group(1)
    for old, new in IN_RECIPE:
        assert old in recipe, old
        recipe = recipe.replace(old, new)
    for name, text in (("run.yaml", recipe), ("small.yaml", SMALL)):
        with open(name, "w", encoding="utf-8") as file:
            file.write(text)


def main():
    tour = [(command, [line.replace("nodes=8", "nodes=2").replace("node=8", "node=2") for line in shown])
            for command, shown in page.commands(PAGE) if command not in NOT_RUN]
    folder = os.path.join(FOLDER, "user")
    os.mkdir(folder)
    os.chdir(folder)
    prepare()
    os.environ["CUBOID"] = CUBOID
    results = page.outcomes(folder, ROOT, {"cuboid": CUBOID}, FUNCTIONS + page.script(tour, replaced))
    return 1 if page.report(tour, results, NUMBER, 16, "the page") else 0


if __name__ == "__main__":
    sys.exit(main())
