#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Keys of saving and loading: finetune, ckpt_step, load_optim, save_optim, save_retain_interval, save_signal and
exit_duration_in_mins.

    test_save_keys.py CUBOID"""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from fixtures import on_small_disk, write_dataset  # noqa: E402

CUBOID = os.path.abspath(sys.argv[1])
RECIPE = """
model: {num_layers: 1, hidden_size: 8, num_attention_heads: 2, seq_length: 8, vocab_size: 257}
train: {global_batch_size: 4, micro_batch_size: 1, train_iters: 6}
optimizer: {lr: 1e-2, lr_decay_style: constant}
data: {train: text}
cluster: {threads_per_rank: 1}
checkpoint: {save_interval: 1, keep_last: 0}
"""
OTHER_MODEL = ["model.num_layers=3", "model.hidden_size=16", "model.num_attention_heads=4", "model.ffn_hidden_size=48",
               "model.vocab_size=500", "model.position_embedding_type=rope", "model.add_bias_linear=false",
               "model.norm_epsilon=1e-6", "model.normalization=RMSNorm", "model.activation=swiglu",
               "model.tie_word_embeddings=false", "model.rotary_base=500000", "model.rotary_percent=0.5",
               "model.rotary_interleaved=true", "model.use_rope_scaling=true", "model.rope_scaling_factor=4",
               "model.block_type=parallel", "model.attn_logit_softcapping=30", "model.final_logit_softcapping=20",
               "model.window_size=4"]


def words(name, *keys):
    return [CUBOID, "train", "recipe.yaml", f"logging.run_dir={name}", *keys]


def train(name, *keys, status=0, preexec_fn=None):
    # (What a program that refuses to run has allocated is no leak.)
    sanitizer = os.environ.get("ASAN_OPTIONS", "") + (":detect_leaks=0" if status != 0 else "")
    done = subprocess.run(words(name, *keys), capture_output=True, text=True, check=False, timeout=100,
                          env={**os.environ, "ASAN_OPTIONS": sanitizer}, preexec_fn=preexec_fn)
    assert done.returncode == status, f"{name} {keys}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done


def diff(a, b):
    done = subprocess.run([CUBOID, "checkpoint", "diff", a, b, "--json"], capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    return json.loads(done.stdout)["differences"]


def steps(name):
    return sorted(int(entry[5:]) for entry in os.listdir(f"{name}/checkpoints") if entry[5:].isdigit())


def metrics(name):
    with open(f"{name}/metrics.jsonl", encoding="utf-8") as file:
        return [(line["step"], line["loss"]) for line in map(json.loads, file) if "loss" in line]


def test_loading():
    train("base")
    base = "checkpoint.load=base/checkpoints"
    # From an earlier step: the same as the original from there on.
    done = train("earlier", base, "checkpoint.ckpt_step=3")
    assert "resumes from base/checkpoints, step 3" in done.stdout, done.stdout
    assert metrics("earlier") == metrics("base")[3:]
    # Weights only: no moments to load, so the run cannot resume exactly.
    train("weights", "checkpoint.save_optim=false", "train.train_iters=3")
    folder = "weights/checkpoints/step-00000003"
    names = {entry["name"] for entry in diff("base/checkpoints/step-00000003", folder)}
    assert names and all(name.startswith("optimizer.") for name in names), names
    done = train("fails", "checkpoint.load=weights/checkpoints", status=2)
    assert "contains no optimizer.m." in done.stderr and "set checkpoint.load_optim=false" in done.stderr, done.stderr
    train("fresh", "checkpoint.load=weights/checkpoints", "checkpoint.load_optim=false")
    assert [step for step, _ in metrics("fresh")] == [4, 5, 6] and metrics("fresh")[0] == metrics("base")[3]
    assert metrics("fresh")[2] != metrics("base")[5]


def test_finetune():
    for name, load in (("tuned", "base/checkpoints"), ("tuned-weights", "weights/checkpoints")):
        done = train(name, f"checkpoint.load={load}", "checkpoint.finetune=true", "train.train_iters=4")
        assert f"\nstarts at step 0 with weights of {load}\n" in done.stdout, done.stdout
        assert [step for step, _ in metrics(name)] == [1, 2, 3, 4] and metrics(name)[0] != metrics("base")[0]
        # Started again it resumes its own checkpoint, although those of the base have larger steps.
        done = train(name, f"checkpoint.load={load}", "checkpoint.finetune=true")
        assert f"resumes from {name}/checkpoints/step-00000004" in done.stdout, done.stdout
        assert steps(name)[-1] == 6
    for key in ("finetune=true", "ckpt_step=3"):
        done = train("refused", f"checkpoint.{key}", status=2)
        assert "needs a folder to load from, but checkpoint.load is auto" in done.stderr, done.stderr
    for key, error in [
            ("checkpoint.ckpt_step=7", "checkpoint.ckpt_step 7: base/checkpoints/step-00000007: No such file or "
             "directory; use the newest one, checkpoint.ckpt_step=6"),
            ("model.num_layers=3", "base/checkpoints/step-00000006: trained with model.num_layers 1, but the recipe "
             "has 3; set model.num_layers=1, or another logging.run_dir or checkpoint.load")]:
        done = train("refused", "checkpoint.load=base/checkpoints", "checkpoint.finetune=true", key, status=2)
        assert done.stderr.endswith(f"{error}\n"), done.stderr
    # All keys of another model and the fix, also from another rank than the one that prints it.
    done = train("refused", "dp=2", "checkpoint.load=base/checkpoints", *OTHER_MODEL, status=2)
    assert len(done.stderr) > 1200 and all(f"{key.split('=')[0]}=" in done.stderr for key in OTHER_MODEL), done.stderr
    assert done.stderr.endswith(", or another logging.run_dir or checkpoint.load\n"), done.stderr
    single = "base/checkpoints/step-00000006"
    for load, error in [
            ("nowhere", "nowhere: No such file or directory; use auto, none or a checkpoint directory"),
            (single, f"{single}/step-00000003: No such file or directory; {single} is a single checkpoint; remove "
             f"checkpoint.ckpt_step, or set checkpoint.load to the directory that contains {single}"),
            ("base", "base/step-00000003: No such file or directory; use checkpoint.load=base/checkpoints")]:
        done = train("refused", f"checkpoint.load={load}", "checkpoint.ckpt_step=3", status=2)
        assert done.stderr.endswith(f"{error}\n"), done.stderr


def test_retain():
    train("kept", "checkpoint.keep_last=1", "checkpoint.save_retain_interval=2", "train.train_iters=5")
    assert steps("kept") == [2, 4, 5], steps("kept")


def test_damaged():
    """Files that are missing are reported once, and the newest checkpoint without damage is loaded."""
    shutil.copytree("base/checkpoints", "broken")
    os.remove("broken/step-00000006/recipe.yaml")
    done = train("from-broken", "checkpoint.load=broken")
    assert done.stderr.count("skipped: ") == 1 and "resumes from broken, step 5" in done.stdout, done
    assert "broken/step-00000006/recipe.yaml: missing: not a complete checkpoint\n" in done.stderr, done.stderr
    done = train("broken/step-00000005", "train.train_iters=7", status=2)
    assert "logging.run_dir: broken/step-00000005 is a checkpoint" in done.stderr, done.stderr


def test_blocked():
    """A folder has the name of a file of the run directory."""
    fix = "not a regular file; remove it, or set logging.run_dir to another directory"
    for name, status, error in [("recipe.yaml", 1, fix), ("run.json", 2, "is a folder"), ("metrics.jsonl", 1, fix)]:
        os.remove(f"from-broken/{name}")
        os.mkdir(f"from-broken/{name}")
        done = train("from-broken", "train.train_iters=7", status=status)
        assert f"cuboid: logging.run_dir: from-broken/{name}: {error}" in done.stderr, done.stderr
        os.rmdir(f"from-broken/{name}")


def test_full_disk():
    """The message has the bytes of the checkpoint, and those that are free without it. Nothing is left."""
    os.mkdir("disk")
    for command, elsewhere in [(words("full", "checkpoint.save=disk/a"), "set checkpoint.save to"),
                               ([CUBOID, "checkpoint", "reshard", "base/checkpoints", "-o", "disk/a"], "use -o and")]:
        small = on_small_disk("disk", "48k", ["sh", "-c", '"$@"; status=$?; find disk -name "step-*"; exit $status',
                                              "sh", *command])
        if small is None:
            return
        done = subprocess.run(small, capture_output=True, text=True, check=False, timeout=100)
        assert done.returncode == 1 and "step-" not in done.stdout, done
        assert re.search(r"cuboid: .*: No space left on device; about 99\.\d\d KiB needed, 4[048]\.00 KiB free in "
                         rf"disk(/a)?; remove files there, or {elsewhere} a directory on another", done.stderr), done


def wait_for(condition):
    for _ in range(2000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("timed out")


def test_signals():
    keys = ["checkpoint.save_interval=0", "train.train_iters=1000000", "resilience.save_signal=SIGUSR1"]
    child = subprocess.Popen(words("signals", *keys), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: os.path.exists("signals/metrics.jsonl") and len(metrics("signals")) > 2)
    for turn in (1, 2):
        child.send_signal(signal.SIGUSR1)
        wait_for(lambda: os.path.exists("signals/checkpoints") and len(steps("signals")) == turn)
    assert child.poll() is None
    child.send_signal(signal.SIGTERM)
    assert child.wait(60) == 75, child.stderr.read()
    assert len(steps("signals")) == 3
    # While a long recipe is read, it is not known yet that the signal only requests a save.
    with open("recipe.yaml", "a", encoding="utf-8") as file:
        file.write("# a comment\n" * 80000)

    def pending():
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
        os.kill(os.getpid(), signal.SIGUSR1)
    train("early", "checkpoint.save_interval=0", "resilience.save_signal=SIGUSR1", preexec_fn=pending)
    assert steps("early")[-1] == 6, steps("early")
    done = train("ended", "resilience.exit_signal=SIGUSR1", status=1, preexec_fn=pending)
    assert "SIGUSR1 before the first step" in done.stderr, done.stderr
    done = train("doubled", "resilience.save_signal=SIGTERM", status=2)
    assert "SIGTERM is in resilience.save_signal and in resilience.exit_signal" in done.stderr, done.stderr
    done = train("timed", "checkpoint.save_interval=0", "train.train_iters=1000000",
                 "resilience.exit_duration_in_mins=0.005", status=75)
    assert "stop requested: saved step" in done.stderr and len(steps("timed")) == 1, done.stderr


with tempfile.TemporaryDirectory() as scratch:
    os.chdir(scratch)
    write_dataset("text", [i * i % 250 for i in range(400)])
    with open("recipe.yaml", "w", encoding="utf-8") as recipe:
        recipe.write(RECIPE)
    test_loading()
    test_finetune()
    test_damaged()
    test_blocked()
    test_full_disk()
    test_retain()
    test_signals()
    os.chdir("/")
print("save_keys: ok")
