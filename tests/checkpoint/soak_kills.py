#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Training under mpirun, of which one process is killed at random moments: after each kill the run is started again,
and it ends with the weights and moments of one that was not disturbed, bitwise.

    soak_kills.py CUBOID MPIRUN KILLS [FIRST]

4 processes on two virtual nodes, over schedules, tensor parallelism and ZeRO; saved on disk, in the background, in
memory, or both. Kill N is a function of N alone, except for the moment at which it arrives."""
import collections
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from fixtures import write_dataset  # noqa: E402

CUBOID, MPIRUN, KILLS = os.path.abspath(sys.argv[1]), sys.argv[2], int(sys.argv[3])
FIRST = int(sys.argv[4]) if len(sys.argv) > 4 else 0
RECIPE = """
model: {num_layers: 8, hidden_size: 32, num_attention_heads: 4, seq_length: 16, vocab_size: 257}
train: {global_batch_size: 8, micro_batch_size: 1, train_iters: 60}
optimizer: {lr: 1e-2, lr_decay_style: constant}
data: {train: text}
cluster: {threads_per_rank: 1}
logging: {log_interval: 100}
"""
MEMORY = f"/dev/shm/cuboid-kills-{os.getpid()}"
IN_MEMORY = [f"checkpoint.memory_dir={MEMORY}", "checkpoint.non_persistent_save_interval=3"]
LAYOUTS = [
    "pp=4", "pp=4 pipeline.schedule=zb-h1", "pp=2 tp=2 pipeline.schedule=interleaved pipeline.virtual_stages=2",
    "pp=2 dp=2 pipeline.schedule=zb-v", "pp=4 pipeline.schedule=dualpipe", "tp=2 dp=2", "tp=4",
    "dp=4 parallel.zero_stage=1", "dp=4 parallel.zero_stage=2", "pp=2 dp=2 parallel.zero_stage=3",
    "tp=2 dp=2 parallel.zero_stage=1 precision.params_dtype=bf16",
    "pp=4 pipeline.schedule=zb-h1 pipeline.optimizer_post_validation=true",
]
SAVES = {"disk": ["checkpoint.save_interval=4"], "async": ["checkpoint.save_interval=4", "checkpoint.async_save=true"],
         "memory": ["checkpoint.save_interval=20", *IN_MEMORY],
         "async and memory": ["checkpoint.save_interval=8", "checkpoint.async_save=true", *IN_MEMORY]}


def start(name, keys):
    words = [MPIRUN]
    for node in "ab":
        words += [*([":"] if node == "b" else []), "-n", "2", "env", f"CUBOID_NODE={node}", CUBOID, "train",
                  "recipe.yaml", f"logging.run_dir={name}", *keys]
    with open("output", "w", encoding="utf-8") as output:
        return subprocess.Popen(words, stdout=output, stderr=subprocess.STDOUT)


def finish(child):
    """The status of the run and its output."""
    try:
        status = child.wait(timeout=900)
    except subprocess.TimeoutExpired:
        status = f"hangs, {len(ranks_of(child))} ranks are left"
        child.terminate()
    with open("output", encoding="utf-8", errors="replace") as output:
        return status, output.read()


def ranks_of(child):
    """The processes of cuboid below a process."""
    found, below = [], [child.pid]
    while below:
        pid = below.pop()
        try:
            with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
                below += [int(word) for word in file.read().split()]
            if os.readlink(f"/proc/{pid}/exe") == CUBOID:
                found.append(pid)
        except OSError:
            continue
    return sorted(found)


def kill_one(child, chance, after_s):
    """Kills one process of a run; False if the run ended before."""
    begin = time.monotonic()
    while child.poll() is None and (time.monotonic() - begin < after_s or len(ranks_of(child)) < 4):
        time.sleep(0.002)
    ranks = ranks_of(child)
    if child.poll() is not None or not ranks:
        return False
    try:
        os.kill(chance.choice(ranks), signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def resumed(output):
    for line in output.splitlines():
        if line.startswith("resumes from"):
            return "memory" if MEMORY in line else "disk"
    return "start"


def one_run(number, counts, took):
    """A run that is killed up to four times. Returns the number of kills, and what is wrong. took: seconds of the
    undisturbed runs so far."""
    chance = random.Random(number)
    index = number // len(SAVES) % len(LAYOUTS)
    keys = [*LAYOUTS[index].split(), *SAVES[list(SAVES)[number % len(SAVES)]]]
    whole = f"whole-{index}"
    for folder in ("run", MEMORY):
        shutil.rmtree(folder, ignore_errors=True)
    if whole not in took:
        begin = time.monotonic()
        status, output = finish(start(whole, LAYOUTS[index].split()))
        took[whole] = time.monotonic() - begin
        if status != 0:
            sys.exit(f"{keys}: a run that is not disturbed ends with {status}\n{output}")
    kills = 0
    for _ in range(4):
        child = start("run", keys)
        killed = kill_one(child, chance, chance.uniform(0.4, 1.0) * took[whole])
        status, output = finish(child)
        counts[resumed(output)] += 1
        kills += killed
        if str(status).startswith("hangs") or (not killed and status != 0):
            return kills, f"{keys}: {status}\n{output}"
        if status == 0:
            break
    else:
        status, output = finish(start("run", keys))
        counts[resumed(output)] += 1
        if status != 0:
            return kills, f"{keys}: started again: {status}\n{output}"
    done = subprocess.run([CUBOID, "checkpoint", "diff", f"{whole}/checkpoints", "run/checkpoints"],
                          capture_output=True, text=True, check=False)
    return kills, f"{keys}: {done.stdout}{done.stderr}" if done.returncode != 0 else None


def main():
    counts, took, kills, runs, failures = collections.Counter(), {}, 0, 0, 0
    while kills < KILLS:
        killed, wrong = one_run(FIRST + runs, counts, took)
        kills, runs = kills + killed, runs + 1
        print(f"{runs} runs, {kills} kills", file=sys.stderr, flush=True)
        if wrong is not None:
            failures += 1
            print(f"run {FIRST + runs - 1}: {wrong}", file=sys.stderr, flush=True)
    starts = ", ".join(f"{counts[where]} from {where}" for where in ("start", "disk", "memory"))
    starts = starts.replace("from start", "from the beginning")
    print(f"{runs} runs, {kills} kills, {failures} failures; starts: {starts}", flush=True)
    return failures > 0


with tempfile.TemporaryDirectory() as scratch:
    os.chdir(scratch)
    write_dataset("text", [i * i % 250 for i in range(4000)])
    with open("recipe.yaml", "w", encoding="utf-8") as recipe:
        recipe.write(RECIPE)
    try:
        code = main()
    finally:
        shutil.rmtree(MEMORY, ignore_errors=True)
        os.chdir("/")
sys.exit(code)
