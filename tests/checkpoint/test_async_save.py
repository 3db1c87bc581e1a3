#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Saving in the background: every checkpoint has the bytes of one that was saved without it.

    test_async_save.py CUBOID [LIBRARY]     LIBRARY: fault_calls.c; without it, under a sanitizer, no calls fail

- Over layouts, ZeRO, post-validation, offloaded moments and delayed scaling, all checkpoints of two runs are equal;
  under a sanitizer every third of them, in fewer steps. Where the device copies the state, on the strict one: its
  streams run as late as they may.
- A run that is killed while it saves resumes from a complete checkpoint, and ends with the same weights.
- A run whose loss is not finite publishes the checkpoint that is still being written.
- On a slow disk a save waits for the previous one. After one that fails the state is saved at once; only if that
  fails, too, does the run stop."""
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from fixtures import write_dataset  # noqa: E402

CUBOID, LIBRARY = os.path.abspath(sys.argv[1]), [os.path.abspath(name) for name in sys.argv[2:3]]
STEPS = [2, 4, 6, 8, 9] if LIBRARY else [2, 4, 5]
RECIPE = f"""
model: {{num_layers: 4, hidden_size: 24, num_attention_heads: 2, seq_length: 16, vocab_size: 257}}
train: {{global_batch_size: 8, micro_batch_size: 1, train_iters: {STEPS[-1]}}}
optimizer: {{lr: 1e-2, lr_decay_style: constant}}
data: {{train: text}}
cluster: {{threads_per_rank: 1}}
checkpoint: {{save_interval: 2, keep_last: 0}}
"""
LAYOUTS = [
    [],
    ["dp=4"],
    ["tp=2", "dp=2", "parallel.zero_stage=1"],
    ["pp=2", "dp=2", "parallel.zero_stage=3", "precision.params_dtype=bf16"],
    ["pp=4", "pipeline.schedule=zb-h1", "pipeline.optimizer_post_validation=true"],
    ["dp=2", "memory.offload_optimizer=true"],
    ["dp=2", "parallel.zero_stage=1", "cluster.device=strict"],
    ["pp=2", "pipeline.schedule=zb-h1", "pipeline.optimizer_post_validation=true", "cluster.device=strict"],
    ["tp=2", "memory.offload_optimizer=true", "precision.params_dtype=bf16", "cluster.device=strict",
     "checkpoint.staging_mb=1", f"model.vocab_size={20000 if LIBRARY else 8000}"],
    # The state of a rank does not fit into the staging memory.
    ["dp=2", f"model.vocab_size={20000 if LIBRARY else 8000}", "checkpoint.staging_mb=1"],
    ["tp=2", "precision.params_dtype=fp16", "precision.matmul_format=hybrid", "precision.scaling=delayed"],
    # The staging memory ends within the histories, which rank 0 writes after its parameters.
    ["precision.matmul_format=hybrid", "precision.scaling=delayed", "precision.amax_history_len=8192",
     "checkpoint.staging_mb=1"],
]
ASYNC = "checkpoint.async_save=true"


def words(name, *keys):
    return [CUBOID, "train", "recipe.yaml", f"logging.run_dir={name}", *keys]


def run(*arguments, status=0, **environment):
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=100,
                          env=os.environ | environment)
    assert done.returncode == status, f"{arguments}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done


def same(a, b, steps):
    for step in steps:
        folders = [f"{name}/checkpoints/step-{step:08d}" for name in (a, b)]
        run(CUBOID, "checkpoint", "diff", *folders)
    saved = sorted(name for name in os.listdir(f"{b}/checkpoints") if name.startswith("step-"))
    assert saved == [f"step-{step:08d}" for step in steps], saved


def test_layouts():
    for keys in LAYOUTS if LIBRARY else LAYOUTS[::3]:
        run(*words("sync", *keys))
        run(*words("async", ASYNC, *keys))
        same("sync", "async", STEPS)
        shutil.rmtree("sync")
        shutil.rmtree("async")


def test_killed():
    run(*words("sync", "dp=2"))
    for turn in range(4 if LIBRARY else 2):
        child = subprocess.Popen(words("killed", "dp=2", ASYNC), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wanted = f"killed/checkpoints/step-{2 + 2 * turn:08d}"
        while not any(os.path.exists(wanted + suffix) for suffix in ("", ".partial")) and child.poll() is None:
            time.sleep(0.001)
        time.sleep(0.003 * turn)
        child.send_signal(signal.SIGKILL)
        child.wait()
    run(*words("killed", "dp=2", ASYNC))
    run(CUBOID, "checkpoint", "diff", "sync/checkpoints", "killed/checkpoints")


def test_slow_disk():
    """The rank waits for its file for longer than the timeout: a slow disk is not a hang, nor a wait of a step."""
    slow = {"LD_PRELOAD": LIBRARY[0], "FAULT_FOLDER": "slow/checkpoints", "FAULT_NAME": "partial/rank-00000",
            "FAULT_KIND": "slow", "FAULT_CALL": "2", "FAULT_LAST": "7", "FAULT_MS": "500"}
    for keys in [], ["checkpoint.staging_mb=1"]:
        run(*words("slow", *keys, ASYNC, "pp=2", "model.vocab_size=20000", "checkpoint.save_interval=1",
                   "train.train_iters=3", "resilience.heartbeat_timeout_seconds=2"), **slow)
        with open("slow/metrics.jsonl", encoding="ascii") as file:
            waits = [json.loads(row)["ranks"]["wait_s"][1] for row in file]
        assert len(waits) == 3 and max(waits) < 1.5, waits
        shutil.rmtree("slow")


def test_failure():
    """Step 2 fails: its weights are huge. The files of step 1 are still being written then, on a slow disk."""
    slow = {"LD_PRELOAD": LIBRARY[0], "FAULT_FOLDER": "failed/checkpoints", "FAULT_NAME": "partial/rank-0000",
            "FAULT_KIND": "slow", "FAULT_CALL": "1", "FAULT_LAST": "1000"}
    huge = ["optimizer.lr=1e30", "checkpoint.save_interval=1"]
    for keys in [], ["dp=2", "parallel.zero_stage=2"], ["pp=2"]:
        run(*words("whole", *keys, *huge, "train.train_iters=1"))
        done = run(*words("failed", *keys, *huge, ASYNC), status=1, **slow)
        assert done.stderr.count("; saved step 1 in failed/checkpoints\n") == 1 and "step 2: the" in done.stderr, done
        same("whole", "failed", [1])
        shutil.rmtree("whole")
        shutil.rmtree("failed")
    # A disk that is full: the failure of the step stays the reason.
    done = run(*words("failed", *huge, ASYNC), status=1, **(slow | {"FAULT_KIND": "nospace"}))
    assert "step 2: the" in done.stderr and "; the checkpoint of step 1 is lost: checkpoint.save: " in done.stderr, done
    assert not os.path.exists("failed/checkpoints/step-00000001"), done


def test_disk():
    """Faults are in the calls on the files of rank 1, from the second save on."""
    def disturbed(kind, last, call="", status=0):
        shutil.rmtree("async", ignore_errors=True)
        faults = {"LD_PRELOAD": LIBRARY[0], "FAULT_FOLDER": "async/checkpoints", "FAULT_NAME": "partial/rank-00001",
                  "FAULT_KIND": kind, "FAULT_CALL": call, "FAULT_LAST": last}
        return run(*words("async", "dp=2", ASYNC), status=status, **faults).stderr
    run(*words("sync", "dp=2"))
    disturbed("slow", "1000", "1")
    same("sync", "async", STEPS)
    shutil.rmtree("async")
    run(*words("async", "dp=2", ASYNC, "train.train_iters=2"), LD_PRELOAD=LIBRARY[0], FAULT_COUNT="count",
        FAULT_FOLDER="async/checkpoints", FAULT_NAME="partial/rank-00001")
    with open("count", encoding="utf-8") as file:
        second = str(int(file.read()) + 1)
    once = disturbed("nospace", second, second)
    assert once.count("warning") == 1 and "of step 4 could not be written" in once and "saving step" in once, once
    run(CUBOID, "checkpoint", "diff", "sync/checkpoints", "async/checkpoints")
    lasting = disturbed("nospace", "100000", second, status=1)
    assert lasting.count("warning") == 1 and lasting.count("No space left on device") == 2, lasting
    assert "cuboid: rank 0: checkpoint.save: " in lasting, lasting


with tempfile.TemporaryDirectory() as scratch:
    os.chdir(scratch)
    write_dataset("text", [i * i % 250 for i in range(4000)])
    with open("recipe.yaml", "w", encoding="utf-8") as recipe:
        recipe.write(RECIPE)
    test_layouts()
    test_killed()
    if LIBRARY:
        test_slow_disk()
        test_failure()
        test_disk()
    os.chdir("/")
print("async_save: ok")
