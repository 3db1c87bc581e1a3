#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""cuboid under mpirun, as seen from a shell: common errors are printed once, an error of one rank is printed and
no rank hangs, and a signal that mpirun forwards ends the job with a checkpoint and status 75.

There are no time limits here: meson's limit ends a test that hangs.

    test_mpirun.py CUBOID MPIRUN"""
import glob
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

CUBOID, MPIRUN = os.path.abspath(sys.argv[1]), sys.argv[2]
RECIPE = """\
model: {num_layers: 1, hidden_size: 16, num_attention_heads: 2, seq_length: 16}
train: {global_batch_size: 4, train_iters: 1000000}
optimizer: {lr: 1e-3}
data: {train: text, split: "1"}
parallel: {tp: 2, dp: 2}
logging: {log_interval: 1000}
"""
PARTS = ["weights", "masters", "gradients", "moments", "activations", "buckets", "communication", "workspace", "data",
         "snapshot", "host"]
SLOTS = ["input", "until_input", "until_weight", "input_to_weight", "gradient"]
failures = []


def expect(what, truth, status, text):
    if not truth:
        failures.append(what)
        print(f"{what}: status {status}\n{text}")


def mpirun(*programs):
    """Each of `programs` is (processes, arguments of cuboid train). Returns the status and the output."""
    words = [MPIRUN]
    for count, arguments in programs:
        words += [*([":"] if len(words) > 1 else []), "-n", str(count), CUBOID, "train", *arguments]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return done.returncode, done.stdout


def count(text, *beginnings):
    return sum(line.startswith(beginnings) for line in text.splitlines())


def test_errors_are_printed_once():
    status, text = mpirun((4, ["a.yaml", "tp=3", "dp=1"]))
    expect("a bad recipe", status == 2 and text.count("num_attention_heads 2 is not divisible") == 1, status, text)
    status, text = mpirun((4, ["nothing.yaml"]))
    # (On a busy machine another rank can fail before rank 0 does, which then reports mpirun's signal.)
    expect("no recipe", status == 2 and count(text, "error: ") == 1 and count(text, "cuboid: SIGTERM") <= 1, status,
           text)
    status, text = mpirun((4, ["a.yaml", "data.train=nothing"]))
    expect("no data", status == 2 and count(text, "error: ") == 1 and "nothing.idx" in text, status, text)
    status, text = mpirun((4, ["a.yaml", "cluster.device=dry"]))
    expect("a dry run", status == 0 and text.count("Nothing was computed") == 1, status, text)


def test_one_rank_reports_its_error():
    """A file that is missing on one node: its rank reports it, and the others, which wait for it, exit."""
    status, text = mpirun((3, ["a.yaml"]), (1, ["nothing.yaml"]))
    expect("one without its recipe", status == 2 and "rank 3: nothing.yaml: No such file" in text, status, text)
    status, text = mpirun((1, ["a.yaml", "tp=3", "dp=1"]), (3, ["a.yaml"]))
    expect("one with a bad recipe", status == 2 and "rank 0: command line: model.num_attention_heads" in text, status,
           text)
    status, text = mpirun((3, ["a.yaml", "logging.run_dir=runs/b"]), (1, ["a.yaml", "data.train=nothing"]))
    expect("one without its data", status == 2 and "rank 3: command line: data.train: nothing.idx: No" in text, status,
           text)
    status, text = mpirun((4, ["a.yaml", "logging.run_dir=/proc/run"]))
    expect("a folder that cannot be written", status == 2 and "cuboid: rank 0: logging.run_dir: /proc/run: No such "
           "file or directory; set logging.run_dir to a directory that can be written (the other" in text, status, text)
    # mpirun ends the other ranks; however long it waits, only one of them reports the signal.
    os.environ["OMPI_MCA_odls_base_sigkill_timeout"] = "4"
    status, text = mpirun((3, ["a.yaml"]), (1, ["nothing.yaml"]))
    del os.environ["OMPI_MCA_odls_base_sigkill_timeout"]
    expect("the signal of mpirun", status == 2 and count(text, "cuboid: SIGTERM") <= 1, status, text)


def test_forwarded_signal():
    words = [MPIRUN, "-n", "4", CUBOID, "train", "a.yaml", "logging.run_dir=runs/c", "resilience.exit_signal=SIGUSR1"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as run:
        while not (os.path.exists("runs/c/metrics.jsonl") and os.path.getsize("runs/c/metrics.jsonl") > 0):
            if run.poll() is not None:
                break
            time.sleep(0.05)
        run.send_signal(signal.SIGUSR1)
        text = run.communicate()[0]
    expect("SIGUSR1", run.returncode == 75 and count(text, "cuboid: ") == 1 and "stop requested: saved step" in text and
           len(glob.glob("runs/c/checkpoints/step-????????/manifest.json")) == 1, run.returncode, text)
    with open("runs/c/metrics.jsonl", encoding="ascii") as lines:
        step = json.loads(next(lines))
    parts, slots = step["memory_bytes"], step["activation_slots"]
    # All ranks are alike here, so the maximum over ranks is the value of each.
    kept = sum(kind["bytes"] for kind in slots.values())
    on_device = sum(parts.values()) - parts["host"] - parts["snapshot"]
    expect("memory by part and by slot", list(parts) == PARTS and list(slots) == SLOTS and
           step["memory_peak_bytes"] == on_device and parts["activations"] == kept > 0 and
           parts["gradients"] > parts["weights"] > 0 == parts["masters"], step, text)


with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    os.environ["OMPI_MCA_orte_tmpdir_base"] = folder  # not the folder that other tests' runs share
    with open("a.yaml", "w", encoding="ascii") as file:
        file.write(RECIPE)
    with open("text.txt", "w", encoding="ascii") as file:
        file.write("The ocean is wide, and so is the sky. " * 100)
    subprocess.run([CUBOID, "data", "prepare", "text.txt", "-o", "text"], stdout=subprocess.DEVNULL, check=True)
    for test in [test_errors_are_printed_once, test_one_rank_reports_its_error, test_forwarded_signal]:
        test()
    os.chdir("/")
print(f"{len(failures)} failures")
sys.exit(1 if failures else 0)
