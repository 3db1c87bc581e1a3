#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A save that fails at any call on files: a complete checkpoint at most one save old is found, and the run that is
started again ends with the weights of an undisturbed one, bitwise.

    test_crash_points.py CUBOID LIBRARY [--full [RUN ...]]     LIBRARY: fault_calls.c

Each point is one call of a run that saves three times, and one of: the process is killed there, or writes half and is
killed; the power fails and what was not synced is lost; a disk is full or fails once, or from then on. Without --full a
few points of each are tried, spread over the run; with it, all of them, in more kinds of runs, or those of some RUNs
(tools/soak)."""
import os
import shutil
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from fixtures import write_dataset  # noqa: E402

CUBOID, LIBRARY, FULL = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2]), "--full" in sys.argv
RECIPE = """
model: {num_layers: 1, hidden_size: 8, num_attention_heads: 2, seq_length: 8, vocab_size: 257}
train: {global_batch_size: 4, micro_batch_size: 1, train_iters: 3}
optimizer: {lr: 1e-2, lr_decay_style: constant}
data: {train: text}
cluster: {threads_per_rank: 1}
checkpoint: {keep_last: 2, save_minutes: 0}
"""
KINDS = ["kill", "half", "power", "nospace", "error", "full"]
# Two virtual nodes; a save on disk only at the end.
MEMORY = f"/dev/shm/cuboid-crash-{os.getpid()}"
IN_MEMORY = [f"checkpoint.memory_dir={MEMORY}", "checkpoint.non_persistent_save_interval=1",
             "checkpoint.save_interval=0"]
# Files of more than a block, which are written past the page cache.
LARGE = ["model.hidden_size=64", "model.vocab_size=8200"]
DIRECT = ["checkpoint.async_save=true", *LARGE]
RUNS = {"sync": ["dp=2"], "async": ["dp=2", "checkpoint.async_save=true"], "memory": ["dp=2", *IN_MEMORY]}
if FULL:
    RUNS |= {"zero": ["dp=2", "parallel.zero_stage=1"],
             "async-zero": ["dp=2", "parallel.zero_stage=2", "checkpoint.async_save=true"],
             "memory-zero": ["dp=4", "parallel.zero_stage=1", *IN_MEMORY],
             "large": ["dp=2", *LARGE], "direct": ["dp=2", *DIRECT],
             "direct-zero": ["dp=2", "parallel.zero_stage=1", *DIRECT]}
    RUNS = {name: RUNS[name] for name in sys.argv[4:] or RUNS}
# Of each kind and run, without --full.
POINTS = int(os.environ.get("POINTS", "3" if "CUBOID_LONG_TESTS" in os.environ else "2"))


def is_in_memory(keys):
    return IN_MEMORY[0] in keys


def remove_run():
    for folder in ("run", MEMORY):
        shutil.rmtree(folder, ignore_errors=True)


def resumed(output):
    """The step that a run resumed from; -1: none."""
    lines = [line for line in output.splitlines() if line.startswith("resumes")]
    return int(lines[0].split(", step ")[1]) if lines else -1


def train(name, keys, **faults):
    """The run in the folder `name`; returns its exit status and output."""
    environment = os.environ | {key: str(value) for key, value in faults.items()} | {"CUBOID_NODE": "a,b"}
    if faults:
        environment |= {"LD_PRELOAD": LIBRARY, "FAULT_FOLDER": MEMORY if is_in_memory(keys) else f"{name}/checkpoints"}
    keys = keys if is_in_memory(keys) else [*keys, "checkpoint.save_interval=1"]
    done = subprocess.run([CUBOID, "train", "recipe.yaml", f"logging.run_dir={name}", *keys], env=environment,
                          capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, done.stdout + done.stderr


def newest(folder):
    """The step of the newest complete checkpoint, according to the program; -1 if there is none."""
    done = subprocess.run([CUBOID, "checkpoint", "inspect", folder, "--verify", "--json"], capture_output=True,
                          text=True, check=False, timeout=60)
    return int(done.stdout.split('"step": ')[1].split(",")[0]) if done.returncode == 0 else -1


def try_point(kind, keys, call):
    """Returns how the disturbed run ended."""
    remove_run()
    faults = {"FAULT_CALL": call, "FAULT_KIND": "nospace" if kind == "full" else kind}
    if kind == "full":
        faults["FAULT_LAST"] = 1000000
    status, output = train("run", keys, **faults)
    where = f"{kind} at call {call} of {' '.join(keys)}: status {status}\n{output}"
    assert status in (0, 1, 2, -9), where
    steps = sum(1 for line in open("run/metrics.jsonl", encoding="utf-8")) if os.path.exists("run/metrics.jsonl") else 0
    found = newest("run/checkpoints")
    again, text = train("run", keys)
    assert again == 0, f"{where}\nstarted again: {text}"
    if is_in_memory(keys):
        found = max(found, resumed(text))
    # Asynchronous saves are published one step later, and one in memory may fail without ending the run.
    late = "checkpoint.async_save=true" in keys or is_in_memory(keys) and "is not saved in memory" in output
    assert found >= steps - (3 if late else 2), f"found {found} of {steps}; {where}"
    done = subprocess.run([CUBOID, "checkpoint", "diff", "whole/checkpoints", "run/checkpoints"], capture_output=True,
                          text=True, check=False, timeout=60)
    assert done.returncode == 0, f"{where}\n{done.stdout}{done.stderr}"
    return status


def calls_of(keys):
    remove_run()
    status, output = train("run", keys, FAULT_COUNT="count")
    assert status == 0, output
    with open("count", encoding="utf-8") as file:
        return int(file.read())


def test_run(name, keys):
    shutil.rmtree("whole", ignore_errors=True)
    status, output = train("whole", keys)
    assert status == 0, output
    calls = calls_of(keys)
    assert calls > 60, calls
    ends = {}
    for i, kind in enumerate(KINDS):
        points = range(1, calls + 1)
        if not FULL:
            points = [1 + (calls - 1) * (len(KINDS) * turn + i) // (len(KINDS) * POINTS) for turn in range(POINTS)]
        for call in points:
            status = try_point(kind, keys, call)
            ends[status] = ends.get(status, 0) + 1
    assert ends.get(-9, 0) > 0 and ends.get(0 if is_in_memory(keys) else 1, 0) > 0, ends
    print(f"{name}: {calls} calls, {sum(ends.values())} points tried; exit status: {ends}", flush=True)


def test_reshard():
    """The last call of reshard makes the name of its output durable, in the folder that contains it."""
    os.mkdir("parent")

    def reshard(name, **faults):
        environment = {key: str(value) for key, value in faults.items()} | {"LD_PRELOAD": LIBRARY}
        return subprocess.run([CUBOID, "checkpoint", "reshard", "whole/checkpoints", "-o", f"parent/{name}", "dp=1"],
                              env=os.environ | {"FAULT_FOLDER": "/parent"} | environment, capture_output=True,
                              text=True, check=False, timeout=60)
    assert reshard("counted", FAULT_COUNT="count").returncode == 0
    with open("count", encoding="utf-8") as file:
        done = reshard("failed", FAULT_KIND="error", FAULT_CALL=int(file.read()))
    assert done.returncode != 0 and "parent/: Input/output error" in done.stderr, done.stderr


with tempfile.TemporaryDirectory() as scratch:
    os.chdir(scratch)
    write_dataset("text", [i * i % 250 for i in range(400)])
    with open("recipe.yaml", "w", encoding="utf-8") as recipe:
        recipe.write(RECIPE)
    try:
        for run_name, run_keys in RUNS.items():
            test_run(run_name, run_keys)
        test_reshard()
    finally:
        remove_run()
    os.chdir("/")
print("crash points: ok")
