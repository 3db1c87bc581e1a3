#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A kernel that never ends, on an emulated GPU: the hang report names the rank and the action that its GPU executes,
not the later one in which its host waits; the run ends with status 1.

    test_gpu_hang.py CUBOID     with emulated GPUs"""
import json
import os
import re
import subprocess
import sys
import tempfile

CUBOID = os.path.abspath(sys.argv[1])
RECIPE = """
model: {num_layers: 2, hidden_size: 16, num_attention_heads: 2, ffn_hidden_size: 16, seq_length: 8, vocab_size: 257}
train: {micro_batch_size: 1, train_iters: 5, global_batch_size: 4}
optimizer: {lr: 1e-3}
tokenizer: {tokenizer_type: byte}
data: {mock_data: true}
checkpoint: {save: none}
cluster: {device: cuda}
resilience: {heartbeat_timeout_seconds: 3}
"""
# Layout, rank, the action of its GPU, and the one before it.
CASES = [("dp=2", 1, "0B1", "0F1"), ("pp=2 cluster.cuda_graphs=true", 0, "0F1", "0F0")]


def test(layout, rank, action, before):
    done = subprocess.run([CUBOID, "train", "recipe.yaml", "logging.run_dir=run", *layout.split()], capture_output=True,
                          text=True, check=False, timeout=60,
                          env=os.environ | {"EMULATOR_GPUS": "2", "EMULATOR_STUCK": f"{rank} 3 {action}"})
    reports = [line for line in done.stderr.splitlines() if "stalled in" in line]
    assert done.returncode == 1 and len(reports) == 1, f"{done.returncode} {done.stdout}{done.stderr}"
    for part in (f"step 3: rank {rank} (", f"its GPU executes {action} after {before}", f"rank {1 - rank} waits for "):
        assert part in reports[0], f"no '{part}' in {reports[0]}"
    stalled = re.search(rf" stalled in {action} for ([0-9.]+) s", reports[0])
    assert stalled is not None and float(stalled.group(1)) >= 3, reports[0]
    with open("run/hang-3.json", encoding="utf-8") as file:
        gpu = {entry["rank"]: entry["gpu_current"] for entry in json.load(file)["ranks"]}
    assert gpu == {rank: action, 1 - rank: ""}, gpu


for case in CASES:
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)
        with open("recipe.yaml", "w", encoding="utf-8") as recipe:
            recipe.write(RECIPE)
        test(*case)
        os.chdir("/")
print("GPU hangs: ok")
