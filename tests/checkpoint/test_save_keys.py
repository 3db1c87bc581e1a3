#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Keys of saving and loading: finetune, ckpt_step, load_optim, save_optim, save_retain_interval, save_signal and
exit_duration_in_mins, keep_best; and what a resumed run reads if its data change.

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
    assert done.stderr.endswith(", or another logging.run_dir or checkpoint.load; with checkpoint.finetune=true the "
                                "new rows of a larger vocabulary are initialized\n"), done.stderr
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


def blend(weights, count):
    """The source of each sample: the one that is furthest behind its share."""
    given, chosen = [0] * len(weights), []
    for i in range(count):
        lag = [w * max(i, 1) / sum(weights) - c for w, c in zip(weights, given)]
        chosen.append(max(range(len(lag)), key=lambda k: (round(lag[k], 9), -k)))
        given[chosen[-1]] += 1
    return chosen


def mix(*sources):
    return "data.train=[" + ", ".join(f"{{path: {path}, weight: {weight}}}" for path, weight in sources) + "]"


def losses(name, key="loss"):
    with open(f"{name}/metrics.jsonl", encoding="utf-8") as file:
        return [line[key] for line in map(json.loads, file) if key in line]


def test_data_changes():
    """The model never changes, so the loss of a step identifies its sample: each source continues after what it
    gave. The evaluation does not notice."""
    for number, name in enumerate(("first", "second", "third", "valid")):
        write_dataset(name, [(i * i + 31 * number) % 250 for i in range(129 + 8 * number)])
    still = ["optimizer.lr=1e-30", "optimizer.weight_decay=0", "model.init_method_std=0.5", "data.valid=valid",
             "train.eval_interval=6", "train.eval_iters=1", "model.position_embedding_type=rope"]
    one, strict = [*still, "train.global_batch_size=1"], "data.strict=true"
    halves = mix(("first", .5), ("second", .5))
    train("even", *one, halves, "train.train_iters=60")
    order = {name: losses("even")[k::2] for k, name in enumerate(("first", "second"))}
    train("alone", *one, mix(("second", 1), ("first", 1), ("third", 1)), "train.train_iters=60")
    order["third"] = losses("alone")[2::3]
    read, expected = {name: iter(values) for name, values in order.items()}, []
    for steps_now, *sources in [(12, ("first", .5), ("second", .5)), (12, ("first", .9), ("second", .1)),
                                (6, ("second", 1)), (12, ("first", 2), ("third", 1), ("second", 1))]:
        done = train("changes", *one, mix(*sources), strict, f"train.train_iters={len(expected) + steps_now}")
        names = [sources[k][0] for k in blend([weight for _, weight in sources], steps_now)]
        expected += [next(read[name]) for name in names]
        assert losses("changes") == expected, sources
    assert len(set(losses("changes", "valid_loss"))) == 1 and len(losses("changes", "valid_loss")) == 7
    # The epochs of the whole run, of all three lists.
    for line in ("training data: 3 sources: 3 documents, 411 tokens, 51 samples; 42 steps of 1 read 42",
                 "  50 % first: 1 document, 129 tokens, 16 samples; 1.38 epochs",
                 "  25 % third: 1 document, 145 tokens, 18 samples; 0.167 epochs",
                 "  25 % second: 1 document, 137 tokens, 17 samples; 1 epoch",
                 "validation data: valid: 1 document, 153 tokens, 19 samples; an evaluation reads 1"):
        assert f"\n{line}\n" in done.stdout, (line, done.stdout)
    for change in ("1 (first): from sample 30 on 50 % of the samples, until then 0 %; it continues after 16 samples",
                   "2 (third): from sample 30 on 25 % of the samples, until then 0 %; it continues after 0 samples"):
        assert f"data.train source {change}\n" in done.stdout, done.stdout
    # Another layout and batch size, in the background, and a copy of the checkpoint for another layout.
    last = [mix(("first", 2), ("third", 1), ("second", 1)), strict]
    subprocess.run([CUBOID, "checkpoint", "reshard", "changes/checkpoints", "-o", "copy"], check=True, timeout=100,
                   capture_output=True)
    for name, load, *keys in [("a", "changes/checkpoints"), ("b", "changes/checkpoints", "dp=2"), ("c", "copy"),
                              ("d", "copy", "dp=2", "checkpoint.async_save=true", "parallel.zero_stage=2")]:
        train(f"wide-{name}", *still, *last, f"checkpoint.load={load}", "train.train_iters=45", *keys)
        train(f"wide-{name}", *still, *last, f"checkpoint.load={load}", "train.train_iters=50", *keys)
        assert len(losses(f"wide-{name}")) == 8 and losses(f"wide-{name}") == losses("wide-a"), name
    # Samples of another length: a part of an epoch repeats, which is refused or reported.
    done = train("changes", *one, *last, "train.train_iters=44", "model.seq_length=16", status=2)
    assert "data.strict: data.train source 1 (first): another model.seq_length (8, now 16) moves its samples: it " \
        "continues after 37.5 % of epoch 2; about 2 of the 8 samples of this epoch repeat text, and as much text is " \
        "skipped; data.train source 2 (third)" in done.stderr, done.stderr
    # One of the three sources is at the end of an epoch.
    done = train("changes", *one, last[0], "train.train_iters=44", "model.seq_length=16")
    assert done.stderr.count("repeat text, and as much text is skipped (data.strict=true makes this") == 2, done.stderr


def best_of(name):
    """The first step with the lowest validation loss."""
    with open(f"{name}/metrics.jsonl", encoding="utf-8") as file:
        evaluated = [(line["valid_loss"], line["step"]) for line in map(json.loads, file) if "valid_loss" in line]
    return min(evaluated)


def expect_best(name, kept):
    """On disk are the best step and the last ones that are kept; the link and the manifest name the best."""
    loss, step = best_of(name)
    assert steps(name) == sorted({step, *kept}), (steps(name), step)
    assert os.readlink(f"{name}/checkpoints/best") == f"step-{step:08}"
    with open(f"{name}/checkpoints/best/manifest.json", encoding="utf-8") as file:
        assert json.load(file)["valid_loss"] == loss
    return loss, step


def test_best():
    """The weights overfit, so the best step is one of the first."""
    write_dataset("other", [i * 7 % 251 for i in range(400)])
    keys = ["data.valid=other", "train.eval_interval=2", "train.eval_iters=1", "optimizer.lr=0.05",
            "checkpoint.save_interval=0", "checkpoint.keep_last=1", "checkpoint.keep_best=true"]
    done = train("best", *keys, "train.train_iters=20")
    loss, step = expect_best("best", [20])
    assert 0 < step < 20, step
    assert f", best validation loss {loss:.4f} at step {step} (best/checkpoints/best)\n" in done.stdout, done.stdout
    done = train("unkept", *keys[:-1], "train.train_iters=20")
    assert steps("unkept") == [20] and not os.path.lexists("unkept/checkpoints/best")
    assert f"at step {step} (checkpoint.keep_best=true keeps its weights)\n" in done.stdout, done.stdout
    # Stopped and resumed, on other layouts, in the background: the same.
    for name, *more in [("best-a", "dp=2", "checkpoint.async_save=true", "parallel.zero_stage=3"), ("best-b", "tp=2")]:
        for last in (1, step, step + 3, 20):
            train(name, *keys, f"train.train_iters={last}", *more)
            assert last in steps(name)
        expect_best(name, [20])
    # A lost link is renewed when the run resumes, and other commands follow it.
    os.remove("best/checkpoints/best")
    done = train("best", *keys, "train.train_iters=21")
    assert expect_best("best", [21]) == (loss, step)
    best = "best/checkpoints/best"
    shown = subprocess.run([CUBOID, "checkpoint", "inspect", best], capture_output=True, text=True, check=True).stdout
    assert f"{best}: step {step}, {4 * step} samples, validation loss {loss:.4f}, format version 3" in shown, shown
    for command in (["evaluate", best, "--data", "other"], ["checkpoint", "reshard", best, "-o", "best-copy"]):
        subprocess.run([CUBOID, *command], capture_output=True, check=True, timeout=100)
    done = train("from-best", *keys, f"checkpoint.load={best}", f"train.train_iters={step + 1}")
    assert f"resumes from {best}, step {step}" in done.stdout, done.stdout
    # A file that is in the way of the link remains; the best checkpoint is kept without it.
    for i, name in enumerate(["best", "best.new"]):
        os.remove(best)
        os.mkdir(f"best/checkpoints/{name}")
        done = train("best", *keys, f"train.train_iters={22 + i}")
        assert f"warning: best/checkpoints/{name} is not a link; rename it" in done.stderr, done.stderr
        assert f" at step {step} (best/checkpoints/step-{step:08})\n" in done.stdout, done.stdout
        os.rmdir(f"best/checkpoints/{name}")
        train("best", *keys, f"train.train_iters={22 + i}")
        expect_best("best", [22 + i])
    # Without the key, the best one is removed like others, and its link with it.
    train("best", *keys[:-1], "train.train_iters=24")
    assert steps("best") == [24] and not os.path.lexists(best)


def test_late_evaluation():
    """A step that was saved without its evaluation is evaluated when the run resumes."""
    keys = ["data.valid=other", "train.eval_interval=3", "train.eval_iters=1"]
    train("late", *keys, "train.train_iters=6")
    with open("late/metrics.jsonl", encoding="utf-8") as file:
        before = file.readlines()
    with open("late/metrics.jsonl", "w", encoding="utf-8") as file:
        file.writelines([*before[:5], re.sub(r', "valid_loss": [^,}]*', "", before[5])])
    assert len(losses("late", "valid_loss")) == 1
    for last, expected in ((6, 2), (7, 3), (9, 4)):
        done = train("late", *keys, "dp=2", f"train.train_iters={last}")
        assert ("step 6: valid " in done.stdout) == (last == 6), done.stdout
        assert len(losses("late", "valid_loss")) == expected, last
    with open("late/metrics.jsonl", encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert lines[5] == json.loads(before[5])


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
    test_data_changes()
    test_best()
    test_late_evaluation()
    test_signals()
    os.chdir("/")
print("save_keys: ok")
