# SPDX-License-Identifier: Apache-2.0
"""Valid inputs of the readers in tests/fuzz, from which libFuzzer starts: files of this repository, and small ones."""
import base64
import glob
import json
import os
import re
import struct
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "huggingface"))
import models  # noqa: E402

EMPTY_XXH3, ZEROS_XXH3 = "2d06800538d394c2", "743df94ee4c78a2a"  # of 0 and of 24 zero bytes


def content(*path):
    with open(os.path.join(ROOT, *path), "rb") as file:
        return file.read()


def lines_of(path, count):
    return b"".join(content(path).splitlines(keepends=True)[:count])


def rank_files(version):
    folder = os.path.join("tests", "checkpoint", f"version-{version}")
    return [base64.b64decode(content(folder, f"rank-0000{rank}.safetensors.base64")) for rank in range(2)]


def header_form(whole):
    """The length of the data, and the header; the reader adds the rest."""
    length, = struct.unpack("<Q", whole[:8])
    return b"\0" + struct.pack("<H", len(whole) - 8 - length) + whole[8:8 + length]


SMALL = json.dumps({"__metadata__": {"format": "pt"},
                    "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
                    "b": {"dtype": "BF16", "shape": [], "data_offsets": [24, 26]}}).encode()


def safetensors():
    return [b"\0" + struct.pack("<H", 26) + SMALL, b"\1" + struct.pack("<Q", len(SMALL)) + SMALL + bytes(26)]


def checkpoint_file():
    """Headers of each version, whose checksums are not those of zeros; and a whole file."""
    first, second = header_form(rank_files(1)[0]), header_form(rank_files(2)[0])
    metadata = {"cuboid.version": "3", "cuboid.run": "0" * 32, "cuboid.save": "1" * 16, "cuboid.step": "7",
                "cuboid.xxh3": ZEROS_XXH3, "a": "0,0 4,3"}
    header = json.dumps({"__metadata__": metadata,
                         "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}).encode()
    return [first, b"\2" + second[1:], b"\4" + struct.pack("<H", 24) + header,
            b"\5" + struct.pack("<Q", len(header)) + header + bytes(24), b"\0" + struct.pack("<H", 26) + SMALL]


MANIFEST = """{"format": "cuboid checkpoint", "version": 3,
"run": "f0a11eb6f0f773ddfd8fc64eae87fa98", "save": "2c4a3e78bd966213", "step": 3,
"consumed_samples": 12, "seed": "1234", "skipped_steps": 1,
"model": {"num_layers": "1", "hidden_size": "8"},
"layout": {"tp": 2, "cp": 1, "ep": 1, "dp": 1, "pp": 1}, "rank_order": "tp-cp-ep-dp-pp",
"recipe": {"name": "recipe.yaml", "bytes": 0, "xxh3": "2d06800538d394c2"},
"files": [{"name": "rank-00000.safetensors", "bytes": 0, "header": "0123456789abcdef"},
{"name": "rank-00001.safetensors", "bytes": 0, "header": "0123456789abcdee"}],
"tensors": [{"name": "embedding.weight", "dtype": "F32", "shape": [257, 192], "ranks": [[0, 1]]},
{"name": "norm.weight", "dtype": "BF16", "shape": [192], "ranks": [[0, 0], [1, 1]]}],
"""


def manifest():
    found = [b"\0" + MANIFEST.encode(), b"\1" + MANIFEST.encode()]
    for version in (1, 2):
        text = content("tests", "checkpoint", f"version-{version}", "manifest.json").decode()
        text = re.sub(r'"bytes": \d+', '"bytes": 0', text[:text.rindex('"checksum"')])
        found.append(b"\0" + re.sub(r'("name": "recipe.yaml".*"xxh3": ")\w+', r"\g<1>" + EMPTY_XXH3, text).encode())
    return found


def record():
    return [b'\0{"format": "cuboid run", "version": 1, "run": "0123456789abcdef0123456789abcdef", '
            b'"unfinished": ["step-00000200.partial"], "replaced": "step-00000100.replaced"}\n',
            b'\1{"token": "0123456789abcdef", "host": "a", "machine": "b c", "job": "SLURM_JOB_ID 5", '
            b'"pid": 123, "started": 456}\n']


def index(lengths, boundaries, code=8, width=2):
    offsets = [sum(lengths[:i]) * width for i in range(len(lengths))]
    return struct.pack("<H", sum(lengths) * width) + b"MMIDIDX\0\0" + struct.pack(
        f"<QBQQ{len(lengths)}i{len(lengths)}q{len(boundaries)}q", 1, code, len(lengths), len(boundaries), *lengths,
        *offsets, *boundaries)


def dataset():
    return [index([3, 0, 5], [0, 1, 3]), index([4], [0, 1], 4, 4), index([2] * 40, list(range(41))),
            index([3], [0, 1]) + b"\0"]


def fingerprint():
    return [b'{"format": "cuboid data", "version": 1, "train": [{"path": "data", "dtype": "uint16", "sequences": 1, '
            b'"documents": 1, "tokens": 10, "index_bytes": 62, "index_xxh3": "0123456789abcdef", "bytes": 20, '
            b'"blocks": [{"at": 0, "bytes": 20, "xxh3": "0123456789abcdef"}]}], "valid": []}\n']


def mask():
    """Of the dataset that the reader prepares; and one that is not."""
    valid = base64.b64decode("Q1VCT0lETE0BAAAAAAAAAAoAAAAAAAAABQAAAAAAAABk"
                             "UsxfeTBbYh0VouVGeXkHw3QyHf4xui0aAw==")
    flipped = valid[:-1] + bytes([valid[-1] ^ 1])
    return [b"\0" + one for one in (valid, valid[:-1], valid + b"\0", flipped)] + [
        b"\1" + one for one in (flipped, b"CUBOIDLM" + struct.pack("<QQ", 1, 10))]


def chat():
    """After the properties of the template."""
    whole = (b'{"messages": [{"role": "system", "content": " a\\n"}, {"role": "user", "content": "b\\u00e9"}, '
             b'{"role": "assistant", "content": " c "}]}')
    return [bytes([bits]) + whole for bits in (0, 0xFF)] + [
        b'\1{"prompt": " a", "completion": "b\\n", "id": 7}', b'\2{"messages": []}',
        b'\x84{"messages": [{"role": "bot"}], "prompt": 1}']


def byte_characters():
    """GPT-2's characters of the bytes 0 to 255."""
    plain = [*range(33, 127), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    found, more = {}, 256
    for byte in range(256):
        found[byte] = chr(byte) if byte in plain else chr(more)
        more += byte not in plain
    return list(found.values())


def vocabulary():
    words = [*byte_characters(), "he", "ll", "\u0120the", "<|endoftext|>", "\u0120t"]
    text = json.dumps({word: i for i, word in enumerate(words)}, ensure_ascii=False).encode()
    merges = "#version: 0.2\nh e\nl l\n\u0120 t\n\u0120t he\n".encode()
    return [b"\1" + text + b"\0" + merges, b"\0" + merges, b"\0#version: 0.2\ni n\nt h\n"]


def tokenizer_json():
    words = [*byte_characters(), "he", "ll", "\u0120t", "<|end|>"]
    split = {"type": "Split", "pattern": {"Regex": "[^\\r\\n\\p{L}]?\\p{L}+| ?\\d"}, "behavior": "Isolated",
             "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    template = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<|end|>", "type_id": 0}},
                                                         {"Sequence": {"id": "A", "type_id": 0}}],
                "special_tokens": {"<|end|>": {"id": "<|end|>", "ids": [259], "tokens": ["<|end|>"]}}}
    whole = {"version": "1.0", "added_tokens": [{"id": 259, "content": "<|end|>", "single_word": False, "lstrip": True,
                                                 "rstrip": False, "normalized": False, "special": True}],
             "normalizer": {"type": "NFC"}, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level]},
             "post_processor": {"type": "Sequence", "processors": [level, template]}, "decoder": level,
             "model": {"type": "BPE", "dropout": None, "unk_token": None, "byte_fallback": False,
                       "ignore_merges": True, "vocab": {word: i for i, word in enumerate(words)},
                       "merges": ["h e", ["l", "l"], "\u0120 t"]}}
    plain = dict(whole, normalizer=None, post_processor=None, pre_tokenizer=dict(level, use_regex=True),
                 added_tokens=[])
    return [json.dumps(one, ensure_ascii=False).encode() for one in (whole, plain)] + [b'{"model": {"type": "BPE"}}']


def text():
    return [b'\0{"text": "one\\n\\u00e9", "id": 7}\n{"id": [1, 2.5e3], "text": ""}\n\n', b"\1one\n\n\ntwo\n\nthree",
            b"\3one\n\n\ntwo\n\nthree\n", b"\5one\ftwo\f", b"\7one\ntwo\nthree",
            b'\x08{"a": 1}\n\n{"b": "\\n"}\r\n  \n']


TINY = b"""# a comment
base: base.yaml
name: tiny
seed: 7
model: {num_layers: 8, norm_epsilon: 1e-5, activation: swiglu}
parallel:
  tensor_parallel_size: 2
  pipeline_parallel_size: 2
  sequence_parallel: true
pipeline: {schedule: interleaved, virtual_stages: 2, layout: [2, 2, 2, 2]}
train: {train_iters: 10}
memory: {recompute_modules: [mlp, "norm"]}
optimizer: {lr: 1e-3, lr_decay_style: cosine}
"""


def recipe():
    mix = b"base: base.yaml\ndata: {mock_data: false, train: [{path: a, weight: 0.5}, b], split: '9,1'}\n"
    return [TINY, b"base: base.yaml\n", mix, content("recipes", "quickstart.yaml")]


def profile():
    return [content("recipes", "clusters", name) for name in ("dgx-a100-80.yaml", "jean-zay-sheet.yaml")] + [
        b"device: {name: a, cores: 2, peak_flops: {fp32: 1e12}, memory: 16 GiB, memory_bandwidth: 1e10}\n"
        b"measured:\n  matmul:\n    - {m: 64, n: 64, k: 64, dtype: fp32, flops: 1e11}\n"]


def sweep():
    return [b"base: base.yaml\naxes:\n  tp: [1, 2, 4]\n  pp: [2, 4]\n  pipeline.schedule: [1f1b, interleaved]\n"
            b"constraints:\n  - tp * pp <= 8\n  - microbatches >= 2 * pp\n  - pipeline.schedule != gpipe\n"]


def published():
    return [lines_of(os.path.relpath(path, ROOT), 4)
            for path in sorted(glob.glob(os.path.join(ROOT, "recipes", "papers", "*.csv")))[:3]]


def schedule():
    return [content("tests", "fixtures", "zb_v_p2_m4.csv"), b"0F0,0F1,0B0,0B1\n,1F0,1B0,1F1,1B1\n",
            b"0F0,0SEND_F0,,0RECV_B0,0B0\n,1RECV_F0,1F0,1B0,1SEND_B0\n",
            b"0F0,1F0,(0F1;1B0)OVERLAP_F_B,1F1,0B0,1B1,0B1\n", b"0F0,0I0,0W0\n"]


def costs():
    return [b"stage,f,i,w\n0,1.5,1.4,1.1\n1,1,1,1\n", b"1,1,1,1\r\n0, 2 ,1e-3,1\n"]


def hang():
    group = {"index": 0, "name": "tp", "id": "00000000000000aa", "calls": 3, "first": 0, "stride": 1, "size": 2}
    ranks = []
    for rank, calls in enumerate((3, 2)):
        message = {"message": 1, "group": 0, "number": calls, "bytes": 64, "call": "all_reduce", "dtype": "f32",
                   "action": "1F2", "peer": -1, "step": 3, "queued_ns": 5, "started_ns": 6, "done_ns": rank}
        ranks.append({"rank": rank, "pp": 0, "dp": 0, "tp": rank, "step": 3, "node": "b", "action": "1F2",
                      "waits": "" if rank else "all_reduce tp", "needs": "", "process": "stopped" if rank else "sleeps",
                      "still_s": 41.0, "ended": False, "pid": 5, "count": 9, "since_ns": 4, "recorded": 1,
                      "awaited": 1 - rank, "groups": [dict(group, calls=calls)], "messages": [message]})
    whole = {"format": 1, "report": "", "limit_s": 40, "at_ns": 9, "ranks": ranks}
    other = json.loads(json.dumps(whole))
    for entry in other["ranks"]:
        entry.update(process="sleeps", waits="all_reduce tp", awaited=1)
    other["ranks"][1]["messages"][0].update(call="all_gather", number=3)
    other["ranks"][1]["groups"][0].update(calls=3)
    return [json.dumps(one).encode() for one in (whole, other)]


def metrics():
    return [b'{"step": 1, "loss": 5.5, "step_time_s": 0.5, "tokens_per_s": 100, "memory_peak_bytes": 1000}\n'
            b'{"step": 2, "loss": null, "step_time_s": 0.4, "bubble_fraction": 0.1, "model_tflops_per_rank": 1}\n']


def journal():
    return [b"sweep\nrunning 0 0 tp=1 pp=2\ndone 0.1234 29926635584 tp=1 pp=2\noom 0 5 tp=2\nfail"]


def pretrained_config():
    llama = models.CASES["llama"]
    yarn = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e6, "attention_factor": 1.138629436111989,
            "truncate": True, "original_max_position_embeddings": 32.0}
    by_type = {"model_type": "gpt2", "n_embd": 8, "n_layer": 1, "n_head": 1, "vocab_size": 8, "n_positions": 8,
               "n_inner": 3, "resid_pdrop": 0.25, "embd_pdrop": 0.25}
    return [json.dumps(one).encode() for one in (
        *models.CASES.values(), {**llama, "rope_parameters": yarn}, by_type, {key: [llama[key]] for key in llama},
        {**llama, **{key: -1e300 for key in llama if isinstance(llama[key], int)}})]


def pretrained_index():
    maps = ({"a": "1.safetensors"}, {"a": "../1.safetensors"}, {"a": "/1.safetensors"}, {"a": ""}, {"a": 1},
            {"b": "1.safetensors"}, {"a": "1.safetensors", "b": "1.safetensors"}, {})
    return [json.dumps({"metadata": {}, "weight_map": one}).encode() for one in maps]


def seeds(name):
    """(label, bytes) of each."""
    return [(f"seed-{i}", one) for i, one in enumerate(globals()[name]())]
