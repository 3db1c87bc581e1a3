#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two runs and one folder of checkpoints: the second one is rejected while the first is active, a killed run can be
restarted at once, files of others are not removed, and a run that has lost the folder leaves it as it is. So it is on
a file system without locks.

    test_two_runs.py CUBOID [LIBRARY]     LIBRARY: fault_calls.c"""
import glob
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

CUBOID = os.path.abspath(sys.argv[1])
LIBRARY = [os.path.abspath(path) for path in sys.argv[2:]]
PROCESSES = []
RECIPE = """
model: {num_layers: 1, hidden_size: 8, num_attention_heads: 2, seq_length: 8, vocab_size: 12}
train: {global_batch_size: 2, micro_batch_size: 1, train_iters: 1000000}
optimizer: {lr: 1e-3, lr_decay_style: constant}
tokenizer: {tokenizer_type: none}
data: {train: text}
cluster: {threads_per_rank: 1}
checkpoint: {save: saves, save_interval: 5, keep_last: 2}
"""


def start(run_dir, *keys, **environment):
    with open(f"{run_dir}.log", "ab") as log:
        process = subprocess.Popen([CUBOID, "train", "recipe.yaml", f"logging.run_dir={run_dir}", *keys], stdout=log,
                                   stderr=subprocess.STDOUT, env=os.environ | environment)
    PROCESSES.append(process)
    return process


def complete():
    return glob.glob("saves/step-????????/manifest.json")


def wait_for_new(before, process):
    end = time.monotonic() + 60
    while not set(complete()) - set(before):
        assert process.poll() is None and time.monotonic() < end, open("a.log", encoding="utf-8").read()
        time.sleep(0.01)


def kill(process):
    process.send_signal(signal.SIGKILL)
    process.wait()


def rejected(run_dir, *words):
    done = start(run_dir)
    status = done.wait(timeout=20)
    with open(f"{run_dir}.log", encoding="utf-8") as log:
        text = log.read()
    assert status == 2 and all(word in text for word in words), (status, text)


def main():
    with open("recipe.yaml", "w", encoding="utf-8") as file:
        file.write(RECIPE)
    write_dataset("text", [i * i % 12 for i in range(400)])
    first = start("a")
    wait_for_new([], first)
    rejected("b", f"checkpoint.save: another run is writing in saves: pid {first.pid} on ", "checkpoint.save=saves-2")
    # The user's files are kept.
    before = complete()
    mine = ["saves/step-00000003.old", "saves/step-00000004.removed", "saves/step-00000002.partial"]
    for name in mine:
        os.makedirs(name + "/folder")
    os.mkdir("precious")
    for name in ("rank-00000.safetensors", "manifest.json", "thesis"):
        open(f"precious/{name}", "w", encoding="utf-8").close()
    os.symlink("../precious", "saves/step-00000001")
    wait_for_new(before, first)
    kill(first)
    for _ in range(3):  # at once, as when a job is requeued
        before = complete()
        first = start("a")
        wait_for_new(before, first)
        wait_for_new(complete(), first)  # the previous one is removed once this one is complete
        kill(first)
    with open("a.log", encoding="utf-8") as log:
        text = log.read()
    assert text.count("resumes from saves/step-") == 3, text
    rejected("c", "checkpoint.save: saves belongs to another run than logging.run_dir c")
    assert len(complete()) <= 3 + 1 and all(os.path.isdir(name + "/folder") for name in mine), os.listdir("saves")
    assert sorted(os.listdir("precious")) == ["manifest.json", "rank-00000.safetensors", "thesis"]
    check_lost_folder()
    if LIBRARY:
        check_without_locks()


def stop_while_saving(process):
    """Stops the run in a save that has not written its manifest; returns the folder of that save."""
    end = time.monotonic() + 60
    while True:
        assert process.poll() is None and time.monotonic() < end
        if folders := set(glob.glob("saves/step-*.partial")) - {"saves/step-00000002.partial"}:
            process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED)
            folder = folders.pop()
            if os.path.isdir(folder) and not os.path.exists(f"{folder}/manifest.json"):
                return folder
            process.send_signal(signal.SIGCONT)


def check_lost_folder():
    """Another run has taken the folder while this one was stopped, and saves the same step under the same name."""
    before = complete()
    run = start("a")
    wait_for_new(before, run)  # it has the lock, and has removed the unfinished save of the previous run
    folder = stop_while_saving(run)
    with open("saves/owner.json", encoding="utf-8") as file:
        owner = json.load(file)
    owner["token"] = "0123456789abcdef"
    os.remove("saves/owner.json")
    for path, content in (("saves/owner.json", json.dumps(owner)), (f"{folder}/rank-00000.safetensors", "theirs")):
        with open(path, "w", encoding="utf-8") as file:
            file.write(content)
    with open("saves/run.json", encoding="utf-8") as file:
        record = file.read()
    run.send_signal(signal.SIGCONT)
    assert run.wait(timeout=60) == 1
    with open("a.log", encoding="utf-8") as log:
        text = log.read()
    assert "this run no longer writes there" in text, text
    with open("saves/run.json", encoding="utf-8") as file:
        assert os.path.exists(f"{folder}/rank-00000.safetensors") and file.read() == record, text


def check_without_locks():
    """The lease of checkpoint.save takes the place of locks, with one warning."""
    def begin():
        return start("d", "checkpoint.save=d/saves", LD_PRELOAD=LIBRARY[0], FAULT_FOLDER=os.getcwd(),
                     FAULT_KIND="nolocks")

    def wait(process):
        end = time.monotonic() + 60
        while not glob.glob("d/saves/step-????????/manifest.json"):
            assert process.poll() is None and time.monotonic() < end, open("d.log", encoding="utf-8").read()
            time.sleep(0.01)
    for turn in (1, 2):  # a killed run is resumed at once
        first = begin()
        wait(first)
        assert begin().wait(timeout=20) == 2
        kill(first)
        with open("d.log", encoding="utf-8") as log:
            text = log.read()
        assert text.count("checkpoint.save: another run is writing in d/saves: pid ") == turn, text
        assert text.count("warning: logging.run_dir: d/lock cannot be locked (No locks available)") == 2 * turn, text
        assert "logging.run_dir: another run" not in text, text
        for path in glob.glob("d/saves/step-*"):
            shutil.rmtree(path)


with tempfile.TemporaryDirectory() as scratch:
    os.chdir(scratch)
    try:
        main()
    finally:
        for started in PROCESSES:
            kill(started)
    os.chdir("/")
print("two runs: ok")
