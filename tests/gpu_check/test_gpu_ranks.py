#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The times of the ranks in metrics.jsonl, and stragglers, on emulated GPUs: by events, of the step before.

    test_gpu_ranks.py CUBOID CUBOID_FAULTY"""
import json
import os
import re
import subprocess
import sys
import tempfile

CUBOID, FAULTY = (os.path.abspath(path) for path in sys.argv[1:3])
RECIPE = """
model: {num_layers: 2, hidden_size: 16, num_attention_heads: 2, ffn_hidden_size: 16, seq_length: 8, vocab_size: 257}
train: {micro_batch_size: 1, global_batch_size: 8}
optimizer: {lr: 1e-3}
tokenizer: {tokenizer_type: byte}
data: {mock_data: true}
checkpoint: {save: none}
cluster: {device: cuda, transport: nccl}
resilience: {heartbeat_timeout_seconds: 60}
logging: {log_interval: 1000000}
"""
DELAY_S = 0.08  # of each call, tests/cli/lost_call.c


def train(program, steps, layout, **environment):
    """The `ranks` of each step, and the stragglers: (step, rank, percent)."""
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/recipe.yaml", "w", encoding="utf-8") as recipe:
            recipe.write(RECIPE)
        done = subprocess.run([program, "train", "recipe.yaml", f"train.train_iters={steps}", *layout.split(),
                               "logging.run_dir=run"], cwd=folder, capture_output=True, text=True, check=False,
                              env=os.environ | {"EMULATOR_GPUS": "8"} | environment)
        assert done.returncode == 0, done.stdout + done.stderr
        with open(f"{folder}/run/metrics.jsonl", encoding="utf-8") as file:
            ranks = [line.get("ranks") for line in map(json.loads, file)]
    found = re.findall(r"straggler: step (\d+): rank (\d+) .* has computed (\d+) % longer", done.stderr)
    return ranks, [tuple(map(int, words)) for words in found]


def test_slow_gpu(layout, rank):
    """A GPU whose clock is 20 % slower, by the emulator's clock, which is exact: no message takes time."""
    ranks, found = train(CUBOID, 25, layout, EMULATOR_SLOW=f"{rank} 20")
    assert ranks[0] is None and None not in ranks[1:], ranks
    for one in ranks[1:]:
        low, high = one["compute_s"]
        assert one["slowest"] == rank, (layout, one)
        assert "pp=1" not in layout or abs(high / low - 1.2) < 1e-2, (layout, one)
    assert len(found) == 1 and found[0][1:] == (rank, 20) and found[0][0] < 25, (layout, found)


def test_equal_gpus(layout):
    ranks, found = train(CUBOID, 22, layout)
    assert not found and all(one["compute_s"][0] == one["compute_s"][1] for one in ranks[1:]), (layout, found, ranks)


def test_waits(layout, rank):
    """The messages of one rank are late in step 3, which step 4 reports. Waiting for them inside actions is not
    computing. (An emulated GPU runs only in calls of its host, so messages of the late rank take long, too.)"""
    ranks, _ = train(FAULTY, 4, layout, EMULATOR_CLOCK="host", INJECT="slow", INJECT_RANK=str(rank), INJECT_STEP="3")
    compute, wait = ranks[3]["compute_s"], ranks[3]["wait_s"]
    assert wait[0] > 10 * DELAY_S and compute[1] < wait[0], ranks
    assert all(one[key][0] >= 0 for one in ranks[1:] for key in ("compute_s", "wait_s", "data_s")), ranks


test_slow_gpu("pp=1 dp=4", 2)
test_slow_gpu("pp=2 dp=2", 3)
if "CUBOID_LONG_TESTS" in os.environ:
    test_slow_gpu("pp=1 dp=2 tp=2", 3)
test_equal_gpus("pp=1 dp=4")
test_waits("pp=1 tp=2 dp=1", 1)
print("times of ranks on GPUs: ok")
