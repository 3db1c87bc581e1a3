#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints, read by other programs.

    test_format.py CUBOID SOURCE_ROOT

- The lines of docs/internals/checkpoint-format.md, exactly as printed there, assemble the same global tensors from a
  checkpoint of one rank and from those of other layouts; data ranks without ZeRO have files of equal size.
- Every checksum equals libxxhash's of the bytes that the page names.
- After `cuboid checkpoint reshard` to several layouts all tensors are bit-identical; a wrong byte in any of its files
  is detected when it is loaded or rewritten."""
import ctypes
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile

import numpy

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from fixtures import write_dataset  # noqa: E402

CUBOID, ROOT = os.path.abspath(sys.argv[1]), sys.argv[2]
MIB = 1 << 20

# Large enough that a file has several MiB and tensors cross their boundaries.
RECIPE = """
model: {num_layers: 2, hidden_size: 24, num_attention_heads: 2, seq_length: 8, vocab_size: 9000}
train: {global_batch_size: 4, micro_batch_size: 1, train_iters: 2}
optimizer: {lr: 1e-2, lr_decay_style: constant}
tokenizer: {tokenizer_type: none}
precision: {params_dtype: fp16, matmul_format: hybrid, scaling: delayed, amax_history_len: 3}
data: {train: text}
"""


def run(*arguments, **options):
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=100, **options)
    if done.returncode != 0:
        sys.exit(f"{arguments}: status {done.returncode}\n{done.stdout}{done.stderr}")
    return done


def documented():
    with open(os.path.join(ROOT, "docs", "internals", "checkpoint-format.md"), encoding="utf-8") as file:
        lines = re.search(r"<!-- test: assemble -->\n```python\n(.*?)```", file.read(), re.S).group(1)
    assert lines.count("\n") == 10, lines
    return compile(lines, "docs/internals/checkpoint-format.md", "exec")


LINES = documented()


def assemble(folder):
    names, arguments = {}, sys.argv
    sys.argv = ["assemble.py", folder]
    exec(LINES, names)  # the page is the test's subject
    sys.argv = arguments
    return names["tensors"]


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def expect_same(left, right):
    assert left.keys() == right.keys(), left.keys() ^ right.keys()
    different = [name for name in left if not same(left[name], right[name])]
    assert not different, different


def xxh3(data):
    library = ctypes.CDLL("libxxhash.so.0")
    library.XXH3_64bits.restype = ctypes.c_uint64
    return f"{library.XXH3_64bits(data, ctypes.c_size_t(len(data))):016x}"


def check_file(folder, entry, manifest, pieces):
    with open(os.path.join(folder, entry["name"]), "rb") as file:
        raw = file.read()
    assert len(raw) == entry["bytes"]
    data = 8 + struct.unpack("<Q", raw[:8])[0]
    assert xxh3(raw[:data]) == entry["header"] and data % 64 == 0
    header = json.loads(raw[8:data])
    metadata = header.pop("__metadata__")
    assert all(isinstance(value, str) for value in metadata.values())
    assert metadata["cuboid.version"] == "3" and metadata["cuboid.step"] == str(manifest["step"])
    assert (metadata["cuboid.run"], metadata["cuboid.save"]) == (manifest["run"], manifest["save"])
    sums = "".join(xxh3(raw[at:at + MIB]) for at in range(data, len(raw), MIB))
    assert metadata["cuboid.xxh3"] == sums
    # As Hugging Face's reader requires: no gap, no overlap, nothing after the last tensor.
    end = 0
    for tensor in sorted(header.values(), key=lambda tensor: tensor["data_offsets"]):
        assert tensor["data_offsets"][0] == end
        end = tensor["data_offsets"][1]
    assert data + end == len(raw)
    for name, tensor in header.items():
        begin, shape = ([int(number) for number in part.split(",")] for part in metadata[name].split())
        pieces.setdefault(name, []).append((entry["name"], tensor["dtype"], shape, begin, tensor["shape"]))
    return len(sums) // 16


def check_tensor(tensor, pieces):
    """Its ranks are those whose files have a piece, and the pieces hold each element once."""
    files = [f"rank-{rank:05d}.safetensors" for first, last in tensor["ranks"] for rank in range(first, last + 1)]
    assert files == sorted(piece[0] for piece in pieces), (tensor, pieces)
    held = numpy.zeros(tensor["shape"], "i4")
    for _, dtype, shape, begin, count in pieces:
        assert (dtype, shape) == (tensor["dtype"], tensor["shape"])
        held[tuple(slice(b, b + n) for b, n in zip(begin, count))] += 1
    assert (held == 1).all(), tensor


def check_checksums(folder):
    """Returns the number of blocks in the largest file."""
    with open(os.path.join(folder, "manifest.json"), "rb") as file:
        text = file.read()
    manifest, pieces = json.loads(text), {}
    assert manifest["version"] == 3 and xxh3(text[:text.rindex(b'"checksum"')]) == manifest["checksum"]
    with open(os.path.join(folder, manifest["recipe"]["name"]), "rb") as file:
        recipe = file.read()
    assert (len(recipe), xxh3(recipe)) == (manifest["recipe"]["bytes"], manifest["recipe"]["xxh3"])
    blocks = max(check_file(folder, entry, manifest, pieces) for entry in manifest["files"])
    assert sorted(pieces) == [tensor["name"] for tensor in manifest["tensors"]]
    for tensor in manifest["tensors"]:
        check_tensor(tensor, pieces[tensor["name"]])
    return blocks


def check_balance(folder, ranks):
    """Without ZeRO the data ranks of a stage write files of the same size, up to rows and headers."""
    with open(os.path.join(folder, "manifest.json"), encoding="utf-8") as file:
        sizes = [entry["bytes"] for entry in json.load(file)["files"]]
    assert len(sizes) == ranks and max(sizes) - min(sizes) < 20000, sizes


def test_layouts():
    write_dataset("text", [i * i % 9000 for i in range(400)])
    with open("recipe.yaml", "w", encoding="utf-8") as file:
        file.write(RECIPE)
    layouts = {"one": [], "many": ["pp=2", "dp=2", "parallel.zero_stage=1"], "copies": ["dp=4"]}
    for name, keys in layouts.items():
        run(CUBOID, "train", "recipe.yaml", f"logging.run_dir={name}", "cluster.threads_per_rank=1", *keys)
    folders = [f"{name}/checkpoints/step-00000002" for name in layouts]
    blocks = [check_checksums(folder) for folder in folders]
    assert blocks[0] > 2 and blocks[1] > 1, blocks
    check_balance(folders[2], 4)
    one, many, copies = (assemble(folder) for folder in folders)
    assert many.keys() == copies.keys()
    expect_same(one, many)
    assert one["embedding.weight"].shape == (9000, 24) and numpy.isfinite(one["embedding.weight"]).all()
    assert one["precision.loss_scale"].dtype == "<f8" and one["precision.amax.layers.0.mlp.fc1.weight"].shape == (3, 3)


def refused(*arguments, name):
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode != 0 and name in done.stderr, f"{arguments}: {done.stderr}"


def test_rewriting():
    """Of the checkpoint that test_layouts() left on four ranks."""
    old = "many/checkpoints/step-00000002"
    before = assemble(old)
    assert before["precision.loss_scale"].shape == (3,)
    for layout, files in (("tp=1 pp=1 dp=1", 1), ("tp=2 pp=1 dp=2", 4), ("tp=1 pp=1 dp=4 parallel.zero_stage=2", 4)):
        run(CUBOID, "checkpoint", "reshard", old, "-o", "resharded", *layout.split())
        check_checksums("resharded")
        expect_same(before, assemble("resharded"))
        with open("resharded/manifest.json", encoding="utf-8") as file:
            assert len(json.load(file)["files"]) == files, layout
        run(CUBOID, "checkpoint", "inspect", "resharded", "--verify")
        shutil.rmtree("resharded")
    # A wrong byte in each of its files is detected.
    for name in sorted(os.listdir(old)):
        if name in ("recipe.yaml", "data.json"):
            continue
        with open(os.path.join(old, name), "r+b") as file:
            raw = file.read()
            at = len(raw) - len(raw) // 4
            file.seek(at)
            file.write(bytes([raw[at] ^ 4]))
            file.flush()
            refused(CUBOID, "train", "recipe.yaml", "logging.run_dir=again", f"checkpoint.load={old}",
                    "train.train_iters=3", name=f"{old}/{name}")
            refused(CUBOID, "checkpoint", "reshard", old, "-o", "bad", name=f"{old}/{name}")
            file.seek(at)
            file.write(raw[at:at + 1])


with tempfile.TemporaryDirectory() as scratch:
    os.chdir(scratch)
    test_layouts()
    test_rewriting()
    os.chdir("/")
print("checkpoints: ok")
