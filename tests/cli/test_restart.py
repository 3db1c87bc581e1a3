#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs that are killed, interrupted, or lose their disk, and are started again with the same command: no saved step is
lost, a run without a checkpoint restarts, and every exit has a status and a message.

    test_restart.py CUBOID"""
import contextlib
import glob
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from fixtures import no_file_beyond, write_dataset  # noqa: E402

CUBOID = os.path.abspath(sys.argv[1])
RECIPE = """\
model: {num_layers: 2, hidden_size: 16, num_attention_heads: 2, seq_length: 8}
train: {global_batch_size: 2, train_iters: 1000000}
optimizer: {lr: 1e-3, lr_decay_style: constant}
data: {train: text, split: "1"}
cluster: {threads_per_rank: 1}
logging: {log_interval: 1000000}
"""
failures = []


def arguments(name, *keys):
    return [CUBOID, "train", "a.yaml", f"logging.run_dir={name}", *keys]


def train(name, *keys, **options):
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "timeout": 60, **options}
    return subprocess.run(arguments(name, *keys), text=True, check=False, **options)


def begin(name, *keys, until=None, **options):
    """Starts a run and waits until `until` holds, by default until it has written metrics."""
    path = f"{name}/metrics.jsonl"
    before = os.stat(path).st_ino if os.path.exists(path) else None

    def writes():
        try:
            found = os.stat(path)
        except FileNotFoundError:  # the run renames the file of an earlier run
            return False
        return found.st_size > 0 and found.st_ino != before
    until = until or writes
    child = subprocess.Popen(arguments(name, *keys), stderr=subprocess.PIPE,
                             **{"stdout": subprocess.DEVNULL, "text": True, **options})
    deadline = time.monotonic() + 40
    while child.poll() is None and not until() and time.monotonic() < deadline:
        time.sleep(0.01)
    return child


def end(child, *signals):
    for number in signals:
        child.send_signal(number)
        time.sleep(0.1)
    try:
        out, err = child.communicate(timeout=40)
    except subprocess.TimeoutExpired:
        child.kill()
        out, err = child.communicate()
    return subprocess.CompletedProcess(child.args, child.returncode, out, err)


def expect(what, truth, done=None):
    if not truth:
        failures.append(what)
        print(f"{what}: {done!r:.1500}")


def check(what, done, status, out="", err=""):
    expect(what, done.returncode == status and out in (done.stdout or "") and err in done.stderr, done)


def steps(name):
    with open(f"{name}/metrics.jsonl", encoding="ascii") as lines:
        return [json.loads(line)["step"] for line in lines]


def losses(name):
    with open(f"{name}/metrics.jsonl", encoding="ascii") as lines:
        return [json.loads(line)["loss"] for line in lines]


def saved(name):
    return sorted(entry for entry in os.listdir(f"{name}/checkpoints") if entry.startswith("step-"))


def complete_checkpoints(name):
    """Complete checkpoints, except those being written or removed."""
    return sorted(os.path.basename(os.path.dirname(path)) for path in
                  glob.glob(f"{name}/checkpoints/step-????????/manifest.json"))


def has_all_steps(name):
    written = steps(name)
    return written == list(range(1, len(written) + 1))


def test_killed_before_its_first_checkpoint():
    """With all defaults; twice, so that the second start finds the files kept by the first restart."""
    for turn in range(3):
        child = begin("early")
        done = end(child, signal.SIGKILL)
        expect(f"kill {turn}", done.returncode == -signal.SIGKILL and not saved("early"), done)
    expect("both earlier metrics are kept", all(os.path.getsize(f"early/metrics-{turn}.jsonl") for turn in (1, 2)))
    done = train("early", "train.train_iters=2")
    check("the same command again", done, 0, out="early has no complete checkpoint of its own: restarting from "
         "step 1; the earlier metrics are kept as early/metrics-3.jsonl\n")
    expect("its metrics", steps("early") == [1, 2] and saved("early") == ["step-00000002"])
    done = train("early", "train.train_iters=2")
    check("and again", done, 0, out="training is complete: step 2")
    expect("no summary of 0 steps", "done: 0 steps" not in done.stdout, done)
    check("from scratch over a checkpoint", train("early", "checkpoint.load=none"), 2,
         err="early holds an earlier run, saved up to step 2, and checkpoint.load=none starts from scratch")
    check("saved elsewhere", train("early", "checkpoint.save=elsewhere"), 2, err="use checkpoint.save=auto to resume")


def test_saves_by_time():
    """All ranks save after the same step, and the newest two are kept; also when ranks run ahead of the step."""
    for name, keys in [("timed", ["dp=2"]), ("ahead", ["pp=2", "pipeline.optimizer_post_validation=true"])]:
        child = begin(name, "checkpoint.save_minutes=0.0004", *keys,
                      until=lambda n=name: len(complete_checkpoints(n)) > 1)
        done = end(child, signal.SIGKILL)
        kept = complete_checkpoints(name)
        expect(f"{name}: saved while it ran", done.returncode == -signal.SIGKILL and len(kept) >= 2, done)
        last = int(kept[-1][5:])
        done = train(name, f"train.train_iters={last + 3}", *keys)
        check(f"{name}: continues", done, 0, out=f"step {last}\n")
        expect(f"{name}: metrics", has_all_steps(name) and len(steps(name)) == last + 3)
        expect(f"{name}: two are kept", len(saved(name)) == 2, saved(name))
    done = train("untimed", "checkpoint.save_minutes=0", "train.train_iters=100")
    expect("never by time", done.returncode == 0 and saved("untimed") == ["step-00000100"], done)


def test_signals():
    for number, keys in [(signal.SIGTERM, []), (signal.SIGINT, []),
                         (signal.SIGUSR2, ["resilience.exit_signal=[SIGUSR2, SIGTERM]"]),
                         (signal.SIGUSR1, ["resilience.exit_signal=SIGUSR1"])]:
        name = number.name
        check(name, end(begin(name, *keys), number), 75, err="stop requested: saved step ")
        expect(f"{name}: saved", saved(name) and int(saved(name)[0][5:]) == len(steps(name)) and has_all_steps(name))
    done = end(begin("unlisted"), signal.SIGUSR1)
    check("a signal that is not in the list", done, -signal.SIGUSR1)
    done = end(begin("unsaved", "checkpoint.save=none"), signal.SIGINT)
    check("nothing is saved", done, 1, err="nothing is saved, since checkpoint.save is none")
    # A step that takes minutes. Two pending signals of the same number are delivered as one, so the second is sent
    # after the first has been announced.
    child = begin("twice", "train.global_batch_size=2000", "train.micro_batch_size=20", "model.hidden_size=256",
                  "model.num_layers=8", "model.seq_length=64", until=lambda: os.path.exists("twice/metrics.jsonl"))
    child.send_signal(signal.SIGINT)
    output = child.stderr.readline()
    while output.startswith("warning: train.train_iters"):  # makes many epochs of the short text
        output = child.stderr.readline()
    start = time.monotonic()
    done = end(child, signal.SIGINT)
    check("a second SIGINT", done, 1, err="a second SIGINT: ended at once")
    expect("the first one is announced", "SIGINT: the running step is finished and saved" in output, done)
    expect("at once", time.monotonic() - start < 10, done)


def is_blocked(child):
    """Waits until a thread of the process is in write(1, ...)."""
    deadline = time.monotonic() + 40
    while child.poll() is None and time.monotonic() < deadline:
        for path in glob.glob(f"/proc/{child.pid}/task/*/syscall"):
            with contextlib.suppress(OSError), open(path, encoding="ascii") as file:
                if file.read().startswith("1 0x1 "):
                    return True
        time.sleep(0.01)
    return False


def test_signal_during_start():
    """The report of the layout is written to a full pipe, so that the start is blocked."""
    train("saved", "train.train_iters=2")
    for name, status, line in [("new", 1, "nothing was trained; there is no checkpoint yet"),
                               ("saved", 75, "nothing was trained; saved step 2 in saved/checkpoints")]:
        for number in signal.SIGTERM, signal.SIGINT:
            reads, writes = os.pipe()
            os.set_blocking(writes, False)
            try:
                while os.write(writes, b"x" * 4096):
                    pass
            except BlockingIOError:
                os.set_blocking(writes, True)
            child = begin(name, stdout=writes, until=lambda: True)
            expect(f"the start of {name} is blocked", is_blocked(child), child)
            done = end(child, number)
            os.close(writes)
            os.close(reads)
            check(f"{number.name} during the start of {name}", done, status,
                 err=f"cuboid: {number.name} before the first step: {line}\n")


def test_damaged_metrics():
    keys = ["checkpoint.save_interval=2"]
    train("damaged", "train.train_iters=6", *keys)
    with open("damaged/metrics.jsonl", "rb") as file:
        lines = file.readlines()
    lines[2] = lines[2][:20] + b"\0\0\0" + lines[2][23:]
    with open("damaged/metrics.jsonl", "wb") as file:
        file.writelines([*lines, b'{"step": 7, "lo'])
    before = b"".join([*lines, b'{"step": 7, "lo'])
    done = train("damaged", "train.train_iters=8", *keys)
    check("a truncated line", done, 0, err="warning: damaged/metrics.jsonl: line 3 is incomplete or corrupt (2 such "
         "lines in total) and is dropped; the original file is kept as damaged/metrics-1.jsonl\n")
    expect("a missing line", "damaged/metrics.jsonl lacks 1 of the steps up to 6; the first is step 3" in
           done.stderr, done)
    with open("damaged/metrics-1.jsonl", "rb") as file:
        expect("as it was", file.read() == before)
    expect("the remaining checkpoints", steps("damaged") == [1, 2, 4, 5, 6, 7, 8], steps("damaged"))
    os.remove("damaged/metrics.jsonl")
    done = train("damaged", "train.train_iters=10", *keys)
    check("a removed file", done, 0, err="damaged/metrics.jsonl lacks 8 of the steps up to 8; the first is step 1")


def test_lost_record():
    """The identity of a run whose checkpoints are in its own folder."""
    keys = ["checkpoint.save_interval=2"]
    train("lost", "train.train_iters=2", *keys)
    os.remove("lost/run.json")
    check("without run.json", train("lost", "train.train_iters=4", *keys), 0, out="step-00000002, step 2\n")
    with open("lost/run.json", "wb"):
        pass
    check("with an empty one", train("lost", "train.train_iters=6", *keys), 0, out="step-00000004, step 4\n")
    done = train("thief", "train.train_iters=8", "checkpoint.save=lost/checkpoints", *keys)
    check("another run's checkpoints", done, 2, err="belongs to another run than logging.run_dir thief")


def test_full_disk():
    """Metrics lines lost to a full disk are written after the next start."""
    done = train("full", preexec_fn=no_file_beyond(300000))
    last = int(saved("full")[-1][5:])
    check("metrics on a full disk", done, 1, err=f"; saved step {last} in full/checkpoints")
    with open("full/metrics.jsonl", "rb") as file:
        expect("no truncated line", file.read().endswith(b"}\n"))
    done = train("full", f"train.train_iters={last + 2}")
    check("with free space again", done, 0, out=f"step {last}\n")
    expect("every line is written", has_all_steps("full") and len(steps("full")) == last + 2, steps("full")[-5:])
    expect("no unwritten lines remain", not os.path.exists("full/checkpoints/metrics-unwritten.jsonl"))


def test_full_disks():
    """Neither metrics.jsonl nor the folder of checkpoints has space: one error names both, their keys and the fix."""
    train("crowded", "train.train_iters=2")
    child = begin("crowded", preexec_fn=no_file_beyond(10**9))
    resource.prlimit(child.pid, resource.RLIMIT_FSIZE, (100, 100))
    done = end(child)
    check("no space at all", done, 1, err="logging.run_dir: crowded/metrics.jsonl: File too large; checkpoint.save: "
          "crowded/checkpoints/metrics-unwritten.jsonl: File too large; free space on both disks and start the run")
    done = train("crowded", "train.train_iters=4")
    check("with space again", done, 0, out="step 2\n")


def test_folder_is_removed():
    done = begin("gone", "dp=2")
    os.rename("gone", "moved")
    done = end(done)
    check("a folder that is renamed", done, 1, err="logging.run_dir: gone was removed or renamed")
    expect("it is not created again", not os.path.exists("gone"), done)
    child = begin("gone", "checkpoint.save=kept")
    shutil.rmtree("gone")
    done = end(child)
    check("checkpoints elsewhere", done, 1, err="gone was removed or renamed")
    expect("they are kept", len(saved_in("kept")) == 1 and "in kept" in done.stderr, done)


def saved_in(folder):
    return [entry for entry in os.listdir(folder) if entry.startswith("step-")]


def test_named_checkpoint():
    train("first", "train.train_iters=6", "checkpoint.save_interval=2", "checkpoint.keep_last=0")
    load = "checkpoint.load=first/checkpoints/step-00000004"
    check("from a named one", train("second", load, "train.train_iters=8"), 0,
         out="resumes from first/checkpoints/step-00000004, step 4\n")
    expect("its metrics", steps("second") == [5, 6, 7, 8])
    done = train("second", load, "train.train_iters=10")
    check("the same again", done, 0, out="resumes from second/checkpoints/step-00000008, step 8, which is newer than "
         "checkpoint.load first/checkpoints/step-00000004\n")
    expect("all its metrics", steps("second") == list(range(5, 11)))
    check("on another layout", train("third", load, "train.train_iters=5", "dp=2", "tp=1", "pp=1"), 0,
         out="resumes from first/checkpoints/step-00000004, step 4, resharded from tp 1, pp 1, dp 1\n")
    os.rename("third", "other")
    os.rename("first", "gone")
    check("the named checkpoint is removed", train("second", load, "train.train_iters=12"), 0,
         out="resumes from second/checkpoints/step-00000010")
    check("a first start without it", train("third", load), 2,
         err="checkpoint.load: first/checkpoints/step-00000004: No such file or directory")


def test_advice():
    """An older checkpoint helps if the named one is damaged, whatever its path, and not if it is of another model."""
    run = "a; set b"
    train(run, "train.train_iters=6", "checkpoint.save_interval=2", "checkpoint.keep_last=0")
    load = [f"checkpoint.load={run}/checkpoints/step-00000006", "train.train_iters=8"]
    done = train("unlike", *load, "model.ffn_hidden_size=32")
    check("another model", done, 2, err="set model.ffn_hidden_size=64, or another logging.run_dir or checkpoint.load\n")
    done = train("unlike", *load, "model.num_query_groups=1")
    check("another model", done, 2, err="set model.num_query_groups=2, or another logging.run_dir or checkpoint.load\n")
    with open(f"{run}/checkpoints/step-00000006/rank-00000.safetensors", "r+b") as file:
        file.seek(-4, os.SEEK_END)
        file.write(b"bits")
    check("a damaged one", train("unlike", *load), 2,
          err=": corrupt; to load an older one set checkpoint.load=FOLDER/step-N\n")
    check("an older one", train("unlike", load[0].replace("6", "4"), load[1]), 0, out="step-00000004, step 4\n")


def test_saved_recipe():
    """A run started from the saved recipe of another run."""
    train("base", "train.train_iters=4", "checkpoint.save_interval=1", "checkpoint.keep_last=0")
    before = saved("base")
    done = subprocess.run([CUBOID, "train", "base/recipe.yaml", "logging.run_dir=again", "checkpoint.keep_last=1"],
                          capture_output=True, text=True, timeout=60, check=False)
    check("the saved recipe", done, 0)
    expect("a folder of its own", saved("base") == before and saved("again") == ["step-00000004"], done)
    expect("the same losses", losses("again") == losses("base"), done)


def test_weights_before_step_1():
    for keys in [["dp=2"], ["dp=2"]]:
        done = train("zero", "train.train_iters=0", *keys)
        check("train_iters 0", done, 0)
        expect("its checkpoint", saved("zero") == ["step-00000000"] and steps("zero") == [], done)
    check("a warm-up is allowed", train("warm", "train.train_iters=0", "optimizer.lr_warmup_iters=5"), 0)
    check("resumes from step 0", train("zero", "train.train_iters=3", "dp=2"), 0,
         out="zero/checkpoints/step-00000000, step 0\n")
    train("never", "train.train_iters=3", "dp=2")
    expect("as in an uninterrupted run", losses("zero") == losses("never") and len(losses("zero")) == 3)


def test_masked_batch():
    """End-of-document tokens only: every label is masked."""
    write_dataset("ends", [256] * 64)
    done = train("masked", "data.train=ends", "data.eod_mask_loss=true", "train.train_iters=3")
    check("a batch that is masked entirely", done, 0, err="warning: step 1: all tokens of the batch are masked")
    expect("reported once", done.stderr.count("of the batch are masked") == 1, done)
    with open("masked/metrics.jsonl", encoding="ascii") as lines:
        rows = [json.loads(line) for line in lines]
    expect("its metrics", all((row["loss"], row["tokens"], row["loss_tokens"]) == (None, 16, 0) for row in rows), rows)
    for layout in [["dp=2"], ["pp=2"], ["tp=2"]]:
        done = subprocess.run([CUBOID, "verify", "a.yaml", "data.train=ends", "data.eod_mask_loss=true", *layout],
                              capture_output=True, text=True, timeout=60, check=False)
        check(f"verify without a loss, {layout[0]}", done, 0, out="PASS")
    done = train("unmasked", "train.train_iters=1")
    with open("unmasked/metrics.jsonl", encoding="ascii") as lines:
        row = json.loads(next(lines))
    expect("all count", row["tokens"] == row["loss_tokens"] == 16 and done.stderr == "", row)


with tempfile.TemporaryDirectory() as top:
    os.chdir(top)
    with open("a.yaml", "w", encoding="ascii") as recipe:
        recipe.write(RECIPE)
    with open("text.txt", "w", encoding="ascii") as text:
        text.write("The ocean is wide, and so is the sky. " * 100)
    subprocess.run([CUBOID, "data", "prepare", "text.txt", "-o", "text"], stdout=subprocess.DEVNULL, check=True)
    for test in [test_killed_before_its_first_checkpoint, test_saves_by_time, test_signals, test_signal_during_start,
                 test_damaged_metrics, test_lost_record, test_full_disk, test_full_disks, test_folder_is_removed,
                 test_named_checkpoint, test_advice, test_saved_recipe, test_weights_before_step_1,
                 test_masked_batch]:
        begun = time.monotonic()
        test()
        print(f"{test.__name__} {time.monotonic() - begun:.1f} s")
    os.chdir("/")
print(f"{len(failures)} failures")
sys.exit(1 if failures else 0)
