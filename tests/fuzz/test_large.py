#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Large inputs of the readers of files: many tiny values, long lists, large numbers. They must be read or refused in
memory in proportion to their size (fuzz.h), and in time.

    test_large.py FUZZ-REPLAY SOURCE-ROOT"""
import base64
import os
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(sys.argv[2], "tools", "dev"))
import fuzz_seeds  # noqa: E402

MANY = 30000


def many(one, separator=b",", count=MANY):
    """one % i for each i, or `one`."""
    return separator.join([one % i if b"%" in one else one for i in range(count)])


def schedules():
    return [many(b"0F%d", count=1000) + b",999F0", many(b"%dF0", b"\n", 5000) + b",0F4999\n",
            many(b"%dF0", b"\n", 20000), many(b"0F0"), many(b"0F0,0B0", b"\n")]


def recipes():
    return [b"model: {" + many(b"k%d: 1", count=500) + b"}\n", b"a: [" + many(b"1", count=19000) + b"]\n",
            b"base: base.yaml\npipeline: {layout: [" + many(b"1", count=19000) + b"]}\n", b"[" * MANY,
            b'a: "' + b"x" * 900000 + b'"\n']


def hangs():
    rank = b'{"rank":1,"groups":[{}],"messages":[{}]}'
    return [b'{"format":1,"ranks":[' + values + b"]}" for values in (many(b"{}"), many(rank, count=5000), many(b"[]"))]


def manifests():
    whole = fuzz_seeds.MANIFEST.encode()
    return [b"\0" + whole.replace(b'"tensors": [', b'"tensors": [' + many(b"{}") + b","),
            b"\0" + whole.replace(b'"files": [', b'"files": [' + many(b"0") + b","),
            b"\0" + whole.replace(b'"num_layers": "1"', many(b'"%x":"1"')),
            b"\0" + whole.replace(b"[[0, 1]]", b"[" + many(b"[0,0]") + b"]")]


def safetensors(form):
    tensor = b'"%x":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}'
    return [form + b"\0\0{" + many(one, count=10000) + b"}" for one in (tensor, b'"%x":{}', b'"%x":0')]


INPUTS = {
    "schedule": schedules(), "recipe": recipes(), "hang": hangs(), "manifest": manifests(),
    "safetensors": safetensors(b"\0"), "checkpoint_file": safetensors(b"\4"),
    "costs": [many(b"0,1,1,1", b"\n"), b"\n" * MANY + b"0,1,1,1\n"],
    "published": [b"model\n" + many(b"a", b"\n"), b"model,layers\n" + many(b"a,-1", b"\n"), b"x," * 255 + b"\n" * MANY],
    "sweep": [b"base: base.yaml\naxes:\n  tp: [" + many(b"%d", count=1000) + b"]\n"],
    "profile": [b"measured:\n  matmul:\n" + many(b"    - {m: 1, n: 1, k: 1, dtype: fp32, flops: 1}", b"\n", 1900)],
    "metrics": [many(b'{"step":1,"step_time_s":1}', b"\n", 5000), b"\n" * MANY,
                b'{"step":1,"step_time_s":1,"a":[' + many(b"{}") + b"]}\n"],
    "journal": [b"sweep\n" + many(b"done 0 0 %x", b"\n")],
    "text": [b'\0{"text":"' + b"\\n" * MANY + b'"}\n', b"\0" + b"[" * MANY, b"\0" + b'{"a":' * MANY],
    "vocabulary": [b"\1{" + many(b'"%x":0') + b"}\0", b"\0" + b"\n" * MANY, b"\0" + many(b"a b", b"\n")],
    "fingerprint": [b'{"format": "cuboid data", "version": 1, "train": [' + many(b"0") + b"]}"],
    "pretrained_config": [
        b'{"model_type":"llama","num_hidden_layers":1000000000,"rope_scaling":{' + many(b'"%x":null') + b"}}",
        b'{"model_type":"gpt2","n_layer":100000,"n_embd":8,"n_head":1,"vocab_size":8,"n_positions":8,' +
        many(b'"%x":{}') + b"}", b"[" * MANY],
    "pretrained_index": [b'{"weight_map":{' + many(b'"%x":"1.safetensors"') + b"}}",
                         b"{" * MANY],
    "record": [b'\0{"unfinished":[' + many(b'""') + b"]}"],
}


def main():
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, inputs in INPUTS.items():
            path = os.path.join(folder, name + ".txt")
            with open(path, "wb") as file:
                for number, content in enumerate(inputs):
                    file.write(b"large-%d %s\n" % (number, base64.b64encode(content)))
            done = subprocess.run([os.path.abspath(sys.argv[1]), path], capture_output=True, text=True, check=False)
            failures += done.returncode != 0
            print(done.stdout.strip() if done.returncode == 0 else f"{name} FAILED\n{done.stderr[-3000:]}", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
