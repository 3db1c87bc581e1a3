#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""cuboid checkpoint inspect, diff and reshard.

    test_checkpoint_command.py CUBOID [unlimited]       unlimited: a sanitizer needs more address space

- A checkpoint rewritten for other layouts, back and forth, has equal tensors; a run resumes from it on its layout, with
  the losses of a run that resumed from the original.
- diff finds one changed element, another shape and missing tensors; inspect --verify names each corrupted file.
- All of them need less memory than twice the largest tensor and 64 MiB."""
import glob
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from fixtures import no_file_beyond, pending_signal, write_dataset  # noqa: E402

CUBOID = os.path.abspath(sys.argv[1])
MIB = 1 << 20
# The embedding has 96 MB.
RECIPE = """
model: {num_layers: 2, hidden_size: 24, num_attention_heads: 2, seq_length: 8, vocab_size: 1000000}
train: {global_batch_size: 4, micro_batch_size: 1, train_iters: 1}
optimizer: {lr: 1e-2, lr_decay_style: constant}
tokenizer: {tokenizer_type: none}
precision: {params_dtype: fp16, matmul_format: hybrid, scaling: delayed, amax_history_len: 3, initial_loss_scale: 1024}
data: {train: text}
cluster: {threads_per_rank: 1}
"""
SMALL = "model.vocab_size=900"


def limit_memory():
    resource.setrlimit(resource.RLIMIT_AS, (2 * 96_000_000 + 64 * MIB,) * 2)


def run(*words, status=0, **options):
    done = subprocess.run([CUBOID, *words], capture_output=True, text=True, check=False, timeout=100, **options)
    if done.returncode != status:
        sys.exit(f"{words}: status {done.returncode}, not {status}\n{done.stdout}{done.stderr}")
    return done


def command(*words, status=0, limited=True):
    limited = limited and "unlimited" not in sys.argv
    return run("checkpoint", *words, status=status, preexec_fn=limit_memory if limited else None)


def train(name, *keys):
    return run("train", "recipe.yaml", f"logging.run_dir={name}", *keys)


def losses(name):
    with open(f"{name}/metrics.jsonl", encoding="utf-8") as file:
        return [json.loads(line).get("loss") for line in file]


def test_large():
    train("large")
    folder = "large/checkpoints/step-00000001"
    out = command("inspect", folder, "--verify").stdout
    assert "verified" in out and "embedding.weight" in out, out
    command("reshard", folder, "-o", "large-4", "tp=2", "dp=2")
    assert json.loads(command("diff", folder, "large-4", "--json").stdout)["differences"] == []
    shutil.rmtree("large-4")
    shutil.rmtree("large")


def peak_bytes(*words):
    with subprocess.Popen([CUBOID, "checkpoint", *words], stdout=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, words
    return 1024 * usage.ru_maxrss


def test_many_ranks():
    """Of 32 files with 80 MB in all, only blocks of a few are in memory."""
    train("many", "model.vocab_size=2048", "model.hidden_size=384", "model.num_layers=3")
    peak_bytes("reshard", "many", "-o", "many-32", "dp=32", "train.global_batch_size=32")
    most = 64 * MIB + 2 * 2048 * 384 * 4
    for words in [("inspect", "--verify", "many-32"), ("diff", "many-32", "many-32"),
                  ("reshard", "many-32", "-o", "many-1", "dp=1")]:
        bytes_used = peak_bytes(*words)
        assert bytes_used < most or "unlimited" in sys.argv, f"{words}: {bytes_used} bytes, not below {most}"
    for folder in ("many", "many-32", "many-1"):
        shutil.rmtree(folder)


def data_of(folder):
    """The bytes after the header of each rank's file, but for rank 0, where the order of replicated state is free."""
    found = {}
    for name in os.listdir(folder):
        if name.startswith("rank-") and name != "rank-00000.safetensors":
            with open(f"{folder}/{name}", "rb") as file:
                raw = file.read()
            found[name] = raw[8 + int.from_bytes(raw[:8], "little"):]
    return found


def test_reshard():
    train("base", SMALL, "train.train_iters=3", "tp=2", "dp=2", "parallel.zero_stage=1")
    base = "base/checkpoints/step-00000003"
    layouts = {"a": ["tp=1", "dp=1"], "b": ["tp=1", "pp=2", "dp=2"], "c": ["tp=2", "dp=2", "pp=1"]}
    previous = base
    for name, keys in layouts.items():
        command("reshard", previous, "-o", name, *keys)
        assert "0 differ" in command("diff", base, name).stdout
        command("inspect", name, "--verify")
        found = json.loads(command("inspect", name, "--json").stdout)
        assert found["step"] == 3 and found["version"] == 3 and found["consumed_samples"] == 12, found
        assert found["layout"]["pp"] == (2 if name == "b" else 1), found["layout"]
        previous = name
    # With the layout of the run, ZeRO included, the files are those that it has written.
    assert data_of(base) == data_of("c") != data_of("b")
    for name in (base, "c"):
        train(f"from-{os.path.basename(name)}", SMALL, "train.train_iters=5", "tp=2", "dp=2", f"checkpoint.load={name}")
    assert losses("from-c") == losses("from-step-00000003") and len(losses("from-c")) == 2
    done = command("reshard", base, "-o", "a", "tp=1", status=2)
    assert "-o a: exists; use the name of a folder that does not exist" in done.stderr, done.stderr
    done = run("checkpoint", "reshard", base, "-o", "full", "tp=1", status=1, preexec_fn=no_file_beyond(20000))
    assert "full.partial/" in done.stderr and not glob.glob("full*"), done.stderr
    done = run("checkpoint", "reshard", base, "-o", "stopped", "tp=1", status=1, preexec_fn=pending_signal)
    assert "stopped by Terminated; nothing was kept" in done.stderr and not glob.glob("stopped*"), done.stderr
    done = command("reshard", base, "-o", "x", "model.num_layers=3", status=2)
    assert "trained with model.num_layers 2" in done.stderr and "set model.num_layers=2\n" in done.stderr, done.stderr


def test_diff():
    shutil.copytree("a", "changed")
    done = command("diff", "a", "changed")
    assert done.stdout.startswith("121 tensors are equal, 0 differ; steps 3 and 3"), done.stdout
    train("other", SMALL, "train.train_iters=4", "tp=1", "checkpoint.load=a")
    found = json.loads(command("diff", "a", "other/checkpoints", "--json", status=1).stdout)
    assert found["steps"] == [3, 4] and len(found["differences"]) > 20, found
    names = {entry["name"]: entry for entry in found["differences"]}
    assert 0 < names["embedding.weight"]["elements"] <= 900 * 24 and 0 < names["embedding.weight"]["largest"] < 1
    train("wide", "model.vocab_size=800", "checkpoint.save_optim=false")
    found = json.loads(command("diff", "a", "wide/checkpoints", "--json", status=1).stdout)
    why = {entry["name"]: entry.get("why") for entry in found["differences"]}
    assert why["embedding.weight"] == "other shape" and why["optimizer.m.norm.weight"] == "only in A", why


def test_damage():
    name = "changed/rank-00000.safetensors"
    size = os.path.getsize(name)
    with open(name, "r+b") as file:
        for at in (12, size // 2, size - 1):
            file.seek(at)
            byte = file.read(1)
            file.seek(at)
            file.write(bytes([byte[0] ^ 4]))
            file.flush()
            done = command("inspect", "changed", "--verify", status=2)
            assert name in done.stderr and (at == 12 or "checksum" in done.stderr), done.stderr
            command("diff", "a", "changed", status=2)
            file.seek(at)
            file.write(byte)
    command("inspect", "changed", "--verify")
    damaged = ["several/rank-00001.safetensors", "several/rank-00003.safetensors"]
    shutil.copytree("c", "several")
    for name in damaged:
        with open(name, "r+b") as file:
            file.seek(-1, os.SEEK_END)
            byte = file.read(1)
            file.seek(-1, os.SEEK_END)
            file.write(bytes([byte[0] ^ 4]))
    lines = command("inspect", "several", "--verify", status=2).stderr.splitlines()
    assert len(lines) == 3 and "several: 2 problems" in lines[2], lines
    assert all(f"error: {name}: " in line and "checksum" in line for name, line in zip(damaged, lines)), lines
    assert "unknown subcommand inspct; use inspect" in command("inspct", status=2).stderr
    assert "inspect: 2 arguments given; use" in command("inspect", "a", "tp=2", status=2).stderr
    assert "cuboid: checkpoint inspect: unknown option --bogus; " in command("inspect", "--bogus", status=2).stderr
    assert "diff: 1 checkpoint given; use" in command("diff", "a", status=2).stderr
    os.rename("changed/data.json", "data.json")
    os.mkdir("changed/data.json")
    assert "cuboid: changed/data.json: is a folder" in command("reshard", "changed", "-o", "x", status=2).stderr
    assert not glob.glob("x*"), os.listdir()
    assert "/proc/x: No such file or directory; use -o and a name in a folder that can be written" in \
        command("reshard", "a", "-o", "/proc/x/y", status=2).stderr
    os.rename("changed/manifest.json", "changed/manifest")
    shutil.copytree("changed", "step-00000003")
    error = command("inspect", "step-00000003", status=2).stderr
    assert error == ("cuboid: step-00000003/manifest.json: missing: not a complete checkpoint; use the directory that "
                     "contains step-00000003 to find the newest complete one\n"), error
    assert "not a checkpoint" in command("inspect", ".", status=2).stderr


with tempfile.TemporaryDirectory() as scratch:
    os.chdir(scratch)
    write_dataset("text", [i * i % 700 for i in range(400)])
    with open("recipe.yaml", "w", encoding="utf-8") as recipe:
        recipe.write(RECIPE)
    test_reshard()
    test_diff()
    test_damage()
    if "unlimited" not in sys.argv:  # its subject is memory
        test_large()
        test_many_ranks()
    os.chdir("/")
print("checkpoint command: ok")
