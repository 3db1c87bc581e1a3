# SPDX-License-Identifier: Apache-2.0
"""Files for TensorBoard and Prometheus have every number of metrics.jsonl, also of a run that repeats steps.

    test_dashboards.py CUBOID [--tensorboard]     --tensorboard: also reads them with the package of that name

The reader of events below knows the wire format of protocol buffers, and shares nothing with Cuboid."""
import glob
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile

CUBOID = os.path.abspath(sys.argv[1])
RECIPE = """
name: 'a "name" \\ of a run'
model: {num_layers: 1, hidden_size: 16, num_attention_heads: 2, seq_length: 16, vocab_size: 257}
data: {mock_data: true}
train: {global_batch_size: 2, micro_batch_size: 1, train_iters: 6, eval_interval: 2}
optimizer: {lr: 1.0e-3, lr_warmup_iters: 1}
checkpoint: {save_interval: 3, keep_last: 0}
logging: {run_dir: run, tensorboard_dir: run/tensorboard, prometheus_file: run.prom}
"""
KEYS = ("cluster.threads_per_rank=1",)


def train(*keys):
    return subprocess.run([CUBOID, "train", "recipe.yaml", *KEYS, *keys], capture_output=True, text=True, check=False)


def crc32c(data):
    crc = 0xffffffff
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82f63b78 if crc & 1 else 0)
    return crc ^ 0xffffffff


def masked(data):
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xa282ead8) & 0xffffffff


def records(path):
    with open(path, "rb") as file:
        data = file.read()
    while data:
        length, = struct.unpack("<Q", data[:8])
        body = data[12:12 + length]
        assert struct.unpack("<I", data[8:12]) == (masked(data[:8]),)
        assert struct.unpack("<I", data[12 + length:16 + length]) == (masked(body),) and len(body) == length
        yield body
        data = data[16 + length:]


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        value, at, shift = value | (byte & 127) << shift, at + 1, shift + 7
        if byte < 128:
            return value, at


def fields(message):
    """-> (number, value) of a message: bytes, an integer, or a float."""
    at = 0
    while at < len(message):
        key, at = varint(message, at)
        kind = key & 7
        if kind == 0:
            value, at = varint(message, at)
        elif kind == 2:
            length, at = varint(message, at)
            value, at = message[at:at + length], at + length
        else:
            size = {1: 8, 5: 4}[kind]
            value, = struct.unpack("<d" if kind == 1 else "<f", message[at:at + size])
            at += size
        yield key >> 3, value


def read_events(folder):
    """-> {tag: {step: value}}, as TensorBoard shows them: a session that starts drops later steps of earlier files."""
    shown = {}
    for path in sorted(glob.glob(f"{folder}/events.out.tfevents.*")):
        found = list(records(path))
        assert dict(fields(found[0]))[3] == b"brain.Event:2"
        session = dict(fields(found[1]))
        assert dict(fields(session[7])) == {1: 1}
        for steps in shown.values():
            for step in [step for step in steps if step >= session[2]]:
                del steps[step]
        for event in found[2:]:
            parts = dict(fields(event))
            assert parts[1] > 1.7e9
            for _, value in fields(parts[5]):
                value = dict(fields(value))
                steps = shown.setdefault(value[1].decode(), {})
                assert parts[2] not in steps, (value[1], parts[2])
                steps[parts[2]] = value[2]
    return shown


def numbers(value, name=""):
    """The numbers of a line of metrics.jsonl as docs/runs.md says that they are named."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key not in ("step", "activation_slots"):
                yield from numbers(inner, f"{name}/{key}" if name else key)
    elif isinstance(value, list):
        yield from ((f"{name}/least", value[0]), (f"{name}/most", value[1]))
    elif isinstance(value, (int, float)):
        yield name, float(value)


def read_metrics():
    with open("run/metrics.jsonl", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def expected():
    found = {}
    for line in read_metrics():
        for name, value in numbers(line):
            tag = name if "/" in name else f"train/{name}"
            found.setdefault(tag, {})[line["step"]] = struct.unpack("<f", struct.pack("<f", value))[0]
    return found


def test_every_number():
    done = train()
    assert done.returncode == 0, done.stderr
    assert read_events("run/tensorboard") == expected()
    for tag, steps in (("train/loss", 6), ("train/valid_loss", 3), ("memory_bytes/weights", 6)):
        assert len(expected()[tag]) == steps, tag


def test_repeated_steps():
    """A run that resumes at step 3 writes steps 4 to 6 again."""
    shutil.rmtree("run/checkpoints/step-00000006")
    done = train("optimizer.lr=2.0e-3", "checkpoint.save_interval=6")
    assert done.returncode == 0, done.stderr
    assert len(glob.glob("run/tensorboard/*")) == 2
    shown = read_events("run/tensorboard")
    assert shown == expected() and sorted(shown["train/loss"]) == [1, 2, 3, 4, 5, 6]
    if "--tensorboard" in sys.argv:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        board = EventAccumulator("run/tensorboard")
        board.Reload()
        theirs = {tag: {event.step: event.value for event in board.Scalars(tag)} for tag in board.Tags()["scalars"]}
        assert theirs == shown


def test_prometheus():
    with open("run.prom", encoding="utf-8") as file:
        lines = file.read().splitlines()
    last, found = read_metrics()[-1], {}
    for kind, line in zip(lines[::2], lines[1::2]):
        name, value = line.split('{run="a \\"name\\" \\\\ of a run"} ')
        assert kind == f"# TYPE {name} gauge", (kind, line)
        found[name.removeprefix("cuboid_")] = float(value)
    assert found.pop("step") == 6 and found.pop("steps") == 6 and found.pop("last_step_timestamp_seconds") > 1.7e9
    assert found == {name.replace("/", "_"): value for name, value in numbers(last)}
    assert not os.path.exists("run.prom.tmp")


def test_bad_paths():
    with open("file", "w", encoding="utf-8"):
        pass
    os.mkfifo("pipe")
    os.symlink("file", "link")
    os.mkfifo("made.prom.tmp")  # opening it would block
    done = train("logging.prometheus_file=made.prom", "logging.run_dir=made", "logging.tensorboard_dir=none")
    assert done.returncode == 0, done.stderr
    for path in ("pipe", "link"):  # a rename would turn it into a file
        before = os.lstat(path)
        done = train(f"logging.prometheus_file={path}", "logging.run_dir=bad")
        assert done.returncode == 1 and f"logging.prometheus_file: {path}: " in done.stderr, done.stderr
        assert os.lstat(path)[:4] == before[:4], path
    done = train("logging.run_dir=own", "logging.prometheus_file=own/metrics.jsonl")
    assert done.returncode == 2 and "would replace the metrics of the run" in done.stderr, done.stderr
    for key, value, words in (("tensorboard_dir", "file", "file"),
                              ("prometheus_file", "no/where.prom", "no such folder"),
                              ("prometheus_file", "run", "not a file")):
        done = train(f"logging.{key}={value}", "logging.run_dir=bad")
        assert done.returncode == 1 and f"logging.{key}: " in done.stderr and words in done.stderr, done.stderr
        assert not os.path.exists("run.tmp")


def test_lost_folder():
    """Training continues without the file, after one warning, and metrics.jsonl is complete."""
    os.mkdir("gone")
    shutil.rmtree("run")
    command = [CUBOID, "train", "recipe.yaml", *KEYS, "logging.prometheus_file=gone/a.prom", "train.train_iters=2000",
               "train.eval_interval=0", "checkpoint.save=none", "checkpoint.save_interval=0", "checkpoint.keep_last=2"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as run:
        while run.poll() is None and not os.path.exists("gone/a.prom"):
            pass
        os.rename("gone", "moved")
        errors = run.communicate()[1]
    assert run.returncode == 0 and errors.count("warning: logging.prometheus_file: ") == 1, errors
    assert len(read_metrics()) == 2000


assert crc32c(b"123456789") == 0xe3069283
with tempfile.TemporaryDirectory() as scratch:
    os.chdir(scratch)
    with open("recipe.yaml", "w", encoding="utf-8") as recipe:
        recipe.write(RECIPE)
    test_every_number()
    test_repeated_steps()
    test_prometheus()
    test_bad_paths()
    test_lost_folder()
    os.chdir("/")
print("dashboards: ok")
