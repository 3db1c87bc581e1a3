# SPDX-License-Identifier: Apache-2.0
"""Extracts figures from the output of Cuboid's programs, for tools/gpu/gpu_report.py; tested with recorded output by
tests/gpu_check."""
import array
import json
import os
import random
import re
import statistics
import struct

PEAK_FLOPS = {"H100": 989e12, "H200": 989e12, "GH200": 989e12, "A100": 312e12}  # bf16, dense, by the data sheets


def to_bytes(text):
    number, unit = text.split()
    return float(number) * 1024 ** (" KMGT".index(unit[0]) if unit[0] in "KMGT" else 0)


def peak_of(gpu_name):
    """Peak bf16 FLOP/s of a GPU by its name, from the data sheet; None if it is not in the list."""
    return next((peak for name, peak in PEAK_FLOPS.items() if re.search(rf"\b{name}\b", gpu_name)), None)


def read_metrics(folder):
    with open(os.path.join(folder, "metrics.jsonl")) as lines:
        return [json.loads(line) for line in lines]


def training_figures(records, warm=3):
    """Medians over the steps after the first `warm`, which choose kernels and allocate memory."""
    kept = records[warm:] or records[-1:]

    def middle(key):
        values = [r[key] for r in kept if r.get(key) is not None]
        return statistics.median(values) if values else None

    return {key: middle(key) for key in ("step_time_s", "tokens_per_s", "model_tflops_per_rank", "mfu", "mfu_causal",
                                         "memory_peak_bytes")}


def bytes_text(number):
    unit = next((i for i in range(4) if abs(number) < 1024 ** (i + 1)), 4)
    return f"{number / 1024 ** unit:.1f} {['B', 'KiB', 'MiB', 'GiB', 'TiB'][unit]}"


def dry_bytes(out):
    """The bytes that a rank needs at most, from the table of a dry run or the line of a training run."""
    match = re.search(r"^ +0 +0 .* ([0-9.]+ [KMGT]?i?B)$|^memory of a rank: at most ([0-9.]+ [KMGT]?i?B) ", out,
                      re.MULTILINE)
    return to_bytes(match.group(1) or match.group(2)) if match else None


def step_calls(out):
    """The output of cuboid_counted for each step: {step, text, inside, end: {call: (count, range)}, free, all}."""
    def calls(listed):
        return {name: (int(count or 1), where)
                for name, count, where in re.findall(r"(?:^|, )(.*?)(?: (\d+))? \((\w+)\)", listed)}

    lines = re.findall(r"^step (\d+) blocking calls: (inside (.*); at the end (.*)); (\d+) of (\d+) bytes free$", out,
                       re.MULTILINE)
    return [{"step": int(step), "text": text, "inside": calls(inside), "end": calls(end), "free": int(free),
             "all": int(total)} for step, text, inside, end, free, total in lines]


def waits_as_expected(step):
    """No waits inside a step; one at the end, for loss, norm and the step statistics of the ranks."""
    return not step["inside"] and set(step["end"]) == {"cudaEventSynchronize"} and \
        step["end"]["cudaEventSynchronize"][0] == 1


def copy_shares(out):
    """{op: per cent of the copy's rate} of bench_ops' lines; of an op at several widths the lowest."""
    shares = {}
    for line in out.splitlines():
        match = re.match(r"(.{32}) +[0-9.]+ ms +[0-9.]+ GB/s +([0-9.]+) % x", line)
        if match and "peak bandwidth" not in match.group(1):
            name = match.group(1).strip()
            shares[name] = min(float(match.group(2)), shares.get(name, float("inf")))
    return shares


def attention_share(line):
    """The lower share, of forward and backward, of cuDNN's rate, in per cent: 'own attention: 91.0 % of ...'."""
    return min(float(share) for share in re.findall(r"([0-9.]+) %", line.split("; target")[0]))


def loss_bound(out):
    """The bound of the first step's loss in what `cuboid verify` prints."""
    match = re.search(r"^  loss +[0-9.e+-]+ +([0-9.e+-]+) +[0-9.e+-]+  step 1\b", out, re.MULTILINE)
    return float(match.group(1)) if match else None


def same_steps(a, b, first=1):
    """Whether the steps from `first` on have the same losses and gradient norms, bitwise, and there are any."""
    keys = ("step", "loss", "grad_norm")
    x, y = ([[r[k] for k in keys] for r in records if r["step"] >= first] for records in (a, b))
    return bool(x) and x == y


def write_ids(prefix, vocabulary, documents=1000, length=1000):
    """Random ids as a Megatron dataset: the work does not depend on the ids."""
    code, size = (8, 2) if vocabulary <= 65536 else (4, 4)
    ids = array.array("H" if size == 2 else "i", random.Random(1).choices(range(vocabulary), k=10 * length))
    ids *= -(-documents // 10)
    del ids[documents * length:]
    with open(prefix + ".bin", "wb") as out:
        out.write(ids.tobytes())
    with open(prefix + ".idx", "wb") as out:
        out.write(b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, code, documents, documents + 1))
        out.write(struct.pack(f"<{documents}i", *[length] * documents))
        out.write(struct.pack(f"<{documents}q", *range(0, size * length * documents, size * length)))
        out.write(struct.pack(f"<{documents + 1}q", *range(documents + 1)))
