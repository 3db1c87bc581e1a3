#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""cuboid plan: its parts add up, what it refuses, and its exit status.

    test_plan.py CUBOID SOURCE_ROOT [PLANS]

PLANS: number of random recipes whose advice is applied, 2 by default."""
import functools
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

CUBOID, ROOT = os.path.abspath(sys.argv[1]), sys.argv[2]
PLANS = int(sys.argv[3]) if len(sys.argv) > 3 else 2
GPT3 = os.path.join(ROOT, "recipes", "base", "gpt3-1.3b.yaml")
ON_A100 = ["cluster.profile=dgx-a100-80", "precision.params_dtype=bf16", "tp=2", "pp=2", "dp=4",
           "train.global_batch_size=64"]
SVG = "{http://www.w3.org/2000/svg}"
# A GPU without a network and without fp16.
ALONE = """name: alone
device: {name: small, cores: 10, peak_flops_fp32: 1e13, peak_flops_bf16: 1e14, memory_bytes: 5e9,
         memory_bandwidth: 1e12}
node: {devices: 4, link_latency_s: 1e-6, link_bandwidth: 1e11}
"""
failures = []


def expect(what, truth, seen):
    if not truth:
        failures.append(what)
        print(f"{what}: {seen!r:.1500}")


def plan(*arguments):
    return subprocess.run([CUBOID, "plan", *arguments], capture_output=True, text=True, check=False)


@functools.cache
def planned(*arguments, advised=False):
    """The JSON object of a plan on GPUs; each is made once."""
    given = {word.split("=")[0]: word for word in [*ON_A100, *arguments]}  # the later one of two
    done = plan(GPT3, "--json", *([] if advised else ["--no-advice"]), *given.values())
    expect(f"{arguments} is planned", done.returncode in (0, 1), done.stderr)
    found = json.loads(done.stdout)
    expect(f"{arguments}: HFU is at least MFU", found["hfu"] >= found["mfu"] > found["mfu_causal"] > 0, found)
    return found


def test_sums():
    for keys in ([], ["memory.offload_activations=true"], ["parallel.zero_stage=3"], ["assume.attention=unfused"]):
        got = planned(*keys)
        parts = sum(got["breakdown_s"].values())
        expect(f"the parts of {keys} add up", abs(parts - got["step_time_s"]) < 1e-6 * parts, got)
        ranks = got["pipeline_ranks"]
        largest = max(ranks, key=lambda one: one["memory_peak_bytes"])
        expect(f"each pipeline rank of {keys} has its memory and messages", len(ranks) == got["pp"] and
               largest["memory_bytes"] == got["memory_bytes"] and largest["rank"] == got["memory_peak_rank"] and
               all(one["messages"]["pp"]["calls"] > 0 for one in ranks if got["pp"] > 1), got)
        expect("memory parts add up", sum(got["memory_bytes"].values()) - got["memory_bytes"]["host"] -
               got["memory_bytes"]["snapshot"] >= got["memory_peak_bytes"] > 0, got)
        expect("assumptions are listed", (got["assumed"] == "") == ("assume.attention=unfused" not in keys), got)


def days_and_hours(seconds):
    hours = int(seconds / 3600)
    return f"{hours} h" if hours < 48 else f"{hours // 24} days {hours % 24:02d} h"


def test_text():
    """What a newcomer looks for: the peak, how long all steps take, and what the profile rests on."""
    run = plan(GPT3, *ON_A100)
    got = planned()
    words = [f"\nMFU {100 * got['mfu']:.1f} %, with causal attention {100 * got['mfu_causal']:.1f} %; HFU",
             "; peak 312 TFLOP/s (bf16)", f"training: 286102 steps in {days_and_hours(got['train_time_s'])}",
             f", {got['gpu_hours']:.0f} GPU hours", "profile: data sheet and estimates, not fitted; "]
    expect("utilization and training time", all(word in run.stdout for word in words), (words, run))
    basis = got["profile_basis"]
    expect("an estimate has no error", got["error_fraction"] is got["held_out_error_fraction"] is None and
           f"profile: {basis}\n" in run.stdout, basis)
    fitted = planned("cluster.profile=selene")
    expect("a fit has two", fitted["error_fraction"] == 0.015 and fitted["held_out_error_fraction"] == 0.023 and
           fitted["profile_basis"] == "fitted to 31 step times; median error 1.5 %, 2.3 % for step times left out of "
           "the fit", fitted["profile_basis"])
    done = plan(GPT3, *ON_A100, "train.train_iters=1000000000000")
    expect("many days", re.search(r"steps in [0-9.]+e[+]06 days, ", done.stdout), done)


def test_effects():
    own = planned()
    copies = planned("memory.offload_activations=true")
    expect("copies to the host are exposed", own["breakdown_s"]["host"] < 1e-3 < copies["breakdown_s"]["host"], copies)
    unfused = planned("assume.attention=unfused")
    expect("unfused attention is slower", unfused["breakdown_s"]["attention"] > 1.5 * own["breakdown_s"]["attention"],
           unfused)
    expect("and stores its scores", unfused["memory_peak_bytes"] > own["memory_peak_bytes"], unfused)
    norm, activation = planned("assume.norm=unfused"), planned("assume.activation=unfused")
    norm, activation, stored = (one["memory_bytes"]["activations"] for one in (norm, activation, own))
    expect("unfused norms store their input in fp32; gelu stores nothing more", norm > stored == activation,
           (norm, activation, stored))
    late = planned("assume.overlap=none", "parallel.zero_stage=0")
    early = planned("assume.overlap=grad", "parallel.zero_stage=0")
    expect("messages after the backward pass are exposed", late["breakdown_s"]["dp"] > 1.2 * early["breakdown_s"]["dp"],
           (late, early))
    norm = planned("assume.norm=unfused")
    expect("unfused norms are slower", norm["breakdown_s"]["memory_bound"] > own["breakdown_s"]["memory_bound"], norm)
    full, whole = (planned("memory.recompute_granularity=full", f"assume.recompute={extent}", "model.num_layers=4")
                   for extent in ("needed", "whole"))
    # Of the 2 layers of a rank also the matmul 8192 x 2048, of which it has half, for the 16 samples of a replica.
    seconds = whole["hfu"] * whole["step_time_s"] - full["hfu"] * full["step_time_s"]
    expected = 2 * (2 * 8192 * 2048 / 2) * (16 * 2048) / 312e12
    # Narayanan et al. 2021 (eq. 3): 6 FLOPs per weight and token, 12 s h per layer for attention; a forward pass again.
    layers, head = 4 * (6 * 12 * 2048 ** 2 + 12 * 2048 * 2048), 6 * 50257 * 2048
    expect("HFU counts it", abs(whole["hfu"] / whole["mfu"] - (layers * 4 / 3 + head) / (layers + head)) < 1e-9, whole)
    selective = planned("memory.recompute_granularity=selective", "model.num_layers=4")
    attention = 4 * 12 * 2048 * 2048 / 3
    expect("and attention alone", abs(selective["hfu"] / selective["mfu"] - 1 - attention / (layers + head)) < 1e-9,
           selective)
    expect("HFU is MFU without recomputation", all(abs(one["hfu"] / one["mfu"] - 1) < 1e-9 for one in (
        own, planned("parallel.zero_stage=3"), planned("pipeline.schedule=zb-h1"), planned("tp=1", "dp=8"))), own)
    expect("the whole forward pass is repeated", abs(seconds - expected) < 1e-6 * expected, (seconds, expected))
    expect("with its reduction", whole["breakdown_s"]["tp"] > full["breakdown_s"]["tp"], whole)
    expect("and no more memory", whole["memory_peak_bytes"] == full["memory_peak_bytes"], whole)
    hidden = planned("assume.tp_overlap=1")
    expect("hidden messages take no time", hidden["breakdown_s"]["tp"] == 0 < own["breakdown_s"]["tp"], hidden)
    split, whole = (planned("assume.logits_bytes_per_element=64", f"assume.logits={each}")["memory_peak_bytes"]
                    for each in ("split", "whole"))
    logits = 64 * 2048 * 51200
    expect("each tp rank has the logits of the other one", 0.45 * logits < whole - split <= 0.5 * logits,
           (whole, split, logits))
    sharded = ("parallel.zero_stage=1", "assume.overlap=none")
    scattered, reduced = (planned(*sharded, f"assume.gradient_reduction={each}") for each in ("own", "all_reduce"))
    expect("an all-reduce takes longer than a reduce-scatter",
           reduced["breakdown_s"]["zero"] > 1.2 * scattered["breakdown_s"]["zero"] > 0, (scattered, reduced))
    none, grad, both = (planned("parallel.zero_stage=1", f"assume.overlap={each}")
                        for each in ("none", "grad", "grad_and_param"))
    times = [plan["breakdown_s"]["zero"] for plan in (both, grad, none)]
    expect("gathers of weights overlap with the next step", 0 < times[0] < times[1] < times[2] and
           both["step_time_s"] < grad["step_time_s"] and both["memory_peak_bytes"] == grad["memory_peak_bytes"], times)
    nodes = planned("dp=auto", "cluster.nodes=4")
    expect("nodes of the profile are counted", nodes["ranks"] == 32 and nodes["dp"] == 8, nodes)
    full = planned("assume.reserved_bytes=80000000000")
    expect("reserved memory is not available", not full["fits"] and own["fits"], full)


def test_refusals(folder):
    with open(f"{folder}/alone.yaml", "w") as out:
        out.write(ALONE)
    alone = [GPT3, f"cluster.profile={folder}/alone.yaml", "train.global_batch_size=64"]
    for words, keys in ((("no network", "16 ranks", "4 nodes"), ["tp=2", "dp=4", "precision.params_dtype=bf16"]),
                        (("peak_flops_fp16",), ["tp=2", "precision.params_dtype=fp16"]),
                        (("peak_flops_fp16", "no network"), ["tp=2", "dp=4", "precision.params_dtype=fp16"])):
        done = plan(*alone, *keys)
        expect(f"{keys} is refused", done.returncode == 2 and all(w in done.stderr for w in words) and
               "cluster.profile" in done.stderr, done)
    done = plan(*alone, "tp=2", "precision.params_dtype=bf16")
    expect("what does not fit exits with 1", done.returncode == 1 and "NOT fit" in done.stdout, done)
    with open(f"{folder}/fast.yaml", "w") as out:
        out.write("base: dgx-a100-80\nmodel: {attention_forward: 0.9, attention_backward: 0.9}\n")
    long = ["--no-advice", "precision.params_dtype=bf16", "model.seq_length=131072", "tp=1", "pp=1", "dp=1",
            "train.global_batch_size=1", f"cluster.profile={folder}/fast.yaml"]
    done = plan(GPT3, *long)
    found = re.search(r"MFU ([0-9.]+) %, with causal attention ([0-9.]+) %", done.stdout)
    expect("an MFU above 100 % is explained", found and float(found[1]) > 100 > float(found[2]) and
           "above 100 %: MFU and HFU count all of attention" in done.stdout, done)
    flash3 = [GPT3, "--no-advice", "tp=2", "dp=8", "precision.params_dtype=bf16", "assume.attention=flash3"]
    done = plan(*flash3, "cluster.profile=selene")
    expect("FlashAttention-3 is for Hopper", done.returncode == 2 and "assume.attention flash3 is for GPUs of compute "
           "capability 9.0 (H100, H200), not for the A100-SXM4-80GB of cluster.profile selene" in done.stderr, done)
    expect("where it is the profile's own", plan(*flash3, "cluster.profile=dgx-h200").returncode == 0, done)
    done = plan(GPT3, "cluster.profile=dgx-h10")
    expect("an unknown profile is reported once", done.returncode == 2 and done.stderr.count("dgx-h10") == 1 +
           done.stderr.count("dgx-h100") and "cuboid profile --list" in done.stderr, done)
    done = subprocess.run([CUBOID, "train", GPT3, "assume.norm=unfused"], capture_output=True, text=True, check=False)
    expect("training refuses assumptions", done.returncode == 2 and "assume.norm" in done.stderr, done)


def listed_ops(*arguments):
    """The groups of --ops: name, milliseconds, and the lines of ops of each."""
    done = plan(GPT3, "--ops", *{word.split("=")[0]: word for word in [*ON_A100, *arguments]}.values())
    lines = done.stdout[done.stdout.index("ops of a step by layer"):].split("\n")[2:]
    groups = []
    for line in lines:
        words = line.split()
        if line.startswith("  "):
            groups[-1][2].append((words[0], int(words[-5]), float(words[-4]), float(words[-2])))
        elif line.endswith("%"):
            groups.append((" ".join(words[:-2]), float(words[-2]), []))
    return groups


def test_ops():
    """Ops by layer add up to the plan, and equal layers are listed once."""
    weights, tokens = 2048 * (3 * 2048 + 2048 + 2 * 8192) / 2, 16 * 2048  # of a layer and a tensor rank; of a replica
    for keys, names in (([], ["layers 0-23"]), (["pp=1", "dp=8"], ["layers 0-23"]),
                        (["memory.recompute_granularity=full", "memory.recompute_method=block",
                          "memory.recompute_num_layers=4"],
                         ["layers 0-3", "layers 4-11", "layers 12-15", "layers 16-23"]),
                        (["model.num_layers=2"], ["layers 0-1"]), (["model.num_layers=1", "pp=1"], ["layer 0"])):
        groups, got = listed_ops(*keys), planned(*keys)
        expect(f"the groups of {keys}", [group[0] for group in groups] ==
               ["embedding", *names, "head", "outside of layers"], groups)
        parts = sum(got["breakdown_s"][part] for part in ("matmul", "attention", "memory_bound", "launch"))
        total = sum(group[1] for group in groups)
        expect(f"the ops of {keys} are those of the plan", abs(total - 1e3 * got["pp"] * parts) < 1e-5 * total + 0.01,
               (total, parts))
        for name, seconds, ops in groups:
            expect(f"the ops of {name} add up", abs(sum(op[3] for op in ops) - seconds) < 1e-3 * len(ops), ops)
        if not keys or "dp=8" in keys:
            flops = sum(op[1] * op[2] for op in groups[1][2] if op[0] == "gemm")
            replica = tokens if not keys else tokens // 2
            expect(f"matmuls of the layers of {keys}", abs(flops - 6 * 24 * weights * replica) < 1e-3 * flops,
                   (flops, groups[1]))
            expect("the first op takes the longest time", groups[1][2][0][3] == max(op[3] for op in groups[1][2]),
                   groups[1])


def test_limits():
    own = planned()
    for keys in ([], ["parallel.zero_stage=3"], ["pp=4", "train.global_batch_size=8"]):
        got = planned(*keys)
        times = [limit for limit in got["limits"] if limit["limit"] != "memory"]
        parts = {**got["breakdown_s"]}
        parts["compute"] = parts.pop("matmul") + parts.pop("attention")
        large = sorted((value / got["step_time_s"], name) for name, value in parts.items())
        large = [(share, name) for share, name in large[::-1] if share >= 0.05]
        expect(f"the limits of {keys} are the large parts", [name for _, name in large] == [t["limit"] for t in times]
               and all(abs(share - t["fraction"]) < 1e-5 for (share, _), t in zip(large, times)), got)
    full = planned("assume.reserved_bytes=80000000000")
    expect("memory is the first limit where it does not fit", full["limits"][0]["limit"] == "memory" and
           full["limits"][0]["fraction"] > 1 and not full["fits"], full)
    expect("a plan that does not fit is of its own class", full["memory_class"] == "does not fit", full)
    for share, headroom, kind in ((0.985, 0.05, "tight"), (0.985, 0.01, "fits"), (0.94, 0.05, "fits")):
        used = planned(f"assume.reserved_bytes={int(share * own['device_memory_bytes'] - own['needed_bytes'])}",
                       f"cluster.memory_headroom={headroom}")
        expect("and the last where it nearly does", used["fits"] and used["limits"][-1]["limit"] == "memory", used)
        expect("little headroom is a class of its own", used["memory_class"] == kind, used)
    for zero in (0, 1, 3):
        got = planned(f"parallel.zero_stage={zero}", "parallel.bucket_size_mb=25")["exposed_communication_s"]
        expect("gathers and reductions of ZeRO are apart", (got["zero"] > got["dp"]) == (zero > 0), got)
    expect("nothing is in host memory", own["host_memory_bytes"] == 0, own)
    host = planned("memory.offload_optimizer=true")
    moved = own["memory_bytes"]["moments"] - host["memory_bytes"]["moments"]
    expect("an offloaded optimizer is", host["host_memory_bytes"] >= moved > 0, (host, moved))


def test_needed_memory():
    """The printed sum of what the largest rank needs is that of its terms, and its first term that of the table."""
    units = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
    for keys, terms in (([], ["allocated", "fragmentation", "reserved"]),
                        (["assume.fragmentation=0"], ["allocated", "reserved"]),
                        (["assume.fragmentation=0", "assume.reserved_bytes=0"], ["allocated"])):
        got, done = planned(*keys), plan(GPT3, "--no-advice", *ON_A100, *keys)
        line = re.search(r"needs the most: (.*) of \S+ \S+: it fits", done.stdout)[1]
        numbers = [float(number) * units[unit] for number, unit in re.findall(r"([\d.]+) (\w*B)\b", line)]
        total = numbers.pop() if len(terms) > 1 else numbers[0]
        expect(f"{keys}: the terms", re.findall(r"B (\w+)", line) == terms, line)
        expect(f"{keys}: their sum", abs(sum(numbers) - total) <= 0.005 * 2**30 * (len(terms) + 1) and
               abs(total - got["needed_bytes"]) < 0.005 * 2**30 and
               abs(numbers[0] - got["memory_peak_bytes"]) < 0.005 * 2**30, (line, got))


def test_nondeterministic():
    """A plan on GPUs prints the step that deterministic: false would have, however little it saves."""
    fixed = [word for word in ON_A100 if not re.match("[tpd]p=", word)]
    for keys in (["tp=2", "pp=2", "dp=4"], ["tp=1", "pp=8", "dp=1"]):
        done, other = plan(GPT3, *fixed, *keys), planned(*keys, "deterministic=false")
        line = re.search(r"^deterministic=false would take ([\d.]+) s \([-.\d]+ %\); ", done.stdout, re.MULTILINE)
        expect(f"{keys}: the step without it", line and abs(float(line[1]) / other["step_time_s"] - 1) < 5e-4, done)
    for keys in (["tp=1", "pp=1", "dp=1"], ["tp=1", "pp=8", "dp=1", "deterministic=false"]):
        done = plan(GPT3, *fixed, *keys)
        expect(f"{keys}: nothing saved", done.returncode == 0 and "deterministic=false would" not in done.stdout, done)


def test_critical_path():
    """Its parts add up to the step, on random plans; and it is printed."""
    draw = random.Random(4)
    for _ in range(3 * PLANS):
        keys = [*random_keys(draw), f"memory.offload_activations={draw.choice(['true', 'false'])}"]
        got = planned(*keys)
        if "step_time_s" not in got:
            continue
        parts, step_s = got["critical_path_s"], got["step_time_s"]
        ranks = sum(got["critical_path_ranks_s"]) + parts["step_overhead"]
        expect(f"the critical path of {keys} is the step", abs(sum(parts.values()) - step_s) < 1e-7 * step_s and
               abs(ranks - step_s) < 1e-7 * step_s and min(parts.values()) >= 0, got)
        expect("all ranks are listed", len(got["critical_path_ranks_s"]) == got["pp"], got)
        least = max(got["breakdown_s"][part] for part in ("matmul", "attention", "memory_bound"))
        expect("it is no shorter than what a rank computes", step_s > least, got)
    alone = planned("tp=1", "pp=1", "dp=1")
    expect("on one rank it is the breakdown", all(abs(alone["breakdown_s"][part] - value) < 1e-6 for part, value in
                                                  alone["critical_path_s"].items()), alone)
    done = plan(GPT3, *ON_A100)
    expect("the critical path is printed", "critical path: " in done.stdout and "limited by compute" in done.stdout
           and "(null)" not in done.stdout and "pp 1 " in done.stdout, done.stdout)


def random_keys(draw):
    """A layout of a model of 1 to 30 billion parameters on 8 to 64 GPUs."""
    pp = draw.choice([1, 2, 4, 8])
    tp, dp, hidden = draw.choice([1, 2, 4, 8]), draw.choice([1, 2, 4]), draw.choice([2048, 4096, 6144])
    keys = [f"tp={tp}", f"pp={pp}", f"dp={dp}", f"model.hidden_size={hidden}",
            f"model.num_attention_heads={hidden // 128}", f"model.num_layers={draw.choice([16, 24, 32, 48])}",
            "train.global_batch_size=64", f"train.micro_batch_size={draw.choice([1, 2, 4])}",
            f"memory.recompute_granularity={draw.choice(['none', 'selective', 'full'])}",
            f"parallel.zero_stage={draw.choice([0, 1])}", f"cluster.profile={draw.choice(['dgx-a100-40', 'dgx-h100'])}"]
    return keys + ([f"pipeline.schedule={draw.choice(['1f1b', 'gpipe', 'zb-h1'])}"] if pp > 1 else [])


def test_advice():
    draw = random.Random(15)
    too_large, helped, advised = 0, 0, 0
    for _ in range(PLANS):
        keys = random_keys(draw)
        before = planned(*keys, advised=True)
        if "step_time_s" not in before:
            continue
        if not before["fits"]:
            too_large += 1
            helped += bool(before["advice"])
        for advice in before["advice"]:
            advised += 1
            after = planned(*keys, *advice["change"].split())
            expect(f"{keys}: {advice} is what happens", after["fits"] and after["step_time_s"] == advice["step_time_s"]
                   and after["needed_bytes"] == advice["needed_bytes"], after)
            expect("at most two keys change where it fits", not before["fits"] or len(advice["change"].split()) <= 2,
                   advice)
            expect("and it helps", not before["fits"] or after["step_time_s"] < before["step_time_s"], advice)
    # What limits the plan is tried first, and all of a small plan.
    keys = ["tp=8", "pp=1", "dp=2", "cluster.profile=dgx-h100"]
    before = planned(*keys, advised=True)
    expect("messages of tensor parallelism limit it", "tp" in [limit["limit"] for limit in before["limits"]], before)
    expect("all changes are tried", before["advice_tried"] == before["advice_candidates"] > 10, before)
    expect("less tensor parallelism is advised, or overlap", all(
        "tp=" in advice["change"] or "tp_comm_overlap" in advice["change"] for advice in before["advice"]), before)
    got = plan(GPT3, *ON_A100[1:2], *ON_A100[5:], *keys).stdout
    expect("the number is printed", f"({before['advice_tried']} of {before['advice_tried']} tried):" in got and
           got.endswith("cuboid plan --best searches all layout keys together\n"), got)
    piped = [GPT3, *ON_A100[:2], *ON_A100[5:], "tp=1", "pp=8", "dp=2", "--no-advice"]
    many, all_rows = plan(*piped).stdout, plan(*piped, "--terms").stdout
    beginnings = ["gpt3-1.3b: ", "16 ranks: ", "on dgx-a100-80, ", "profile: ", "MFU ", "memory: rank ",
                  "limited by ", "training: "]
    expect("results come first", all(line.startswith(beginning) for line, beginning in
                                     zip(many.splitlines(), beginnings)), many)
    expect("equal stages and ranks are one row", "  stage 1-6  layers 3-20, 3 each" in many and
           re.search(r"^ +2 +1-6 .* GiB", many, re.M) and "1-6" not in all_rows and "  stage 3 " in all_rows and
           "slots x bytes" in all_rows and "slots x bytes" not in many, (many, all_rows))
    without = [done.stdout for done in (plan(GPT3, *ON_A100), plan(GPT3, *ON_A100, "--no-advice"))]
    expect("no advice is wanted", without[0].startswith(without[1]) and "changes" in without[0] and
           "changes" not in without[1], without)
    print(f"{PLANS} plans, {advised} pieces of advice; {too_large} did not fit, {helped} of them with a change")
    expect("some advice is given", advised > 0, advised)
    # gpipe holds all microbatches: no single key helps, and 1f1b only with another one.
    got = planned("tp=1", "pp=2", "dp=1", "pipeline.schedule=gpipe", "train.micro_batch_size=4", "model.num_layers=64",
                  "memory.recompute_granularity=selective", "cluster.profile=dgx-a100-40", advised=True)
    expect("1f1b instead of gpipe, with another key", not got["fits"] and any(
        "pipeline.schedule=1f1b" in advice["change"].split() for advice in got["advice"]), got)


CPU = """name: host
device: {{name: cpu, is_cpu: true, cores: 2, peak_flops_fp32: 1e11, memory_bytes: {}, memory_bandwidth: 1e10}}
node: {{devices: 1}}
"""


def test_advice_on_cpu(folder):
    """A change of a CPU run that promises less than 5 %, which its prediction can be off by, is not advised."""
    with open(f"{folder}/cpu.yaml", "w") as out:
        out.write(CPU.format("16e9").replace("devices: 1", "devices: 1, link_latency_s: 1e-6, link_bandwidth: 5e8"))
    keys = [f"{ROOT}/recipes/quickstart.yaml", f"cluster.profile={folder}/cpu.yaml", "tp=1",
            "parallel.sequence_parallel=false", "train.micro_batch_size=2", "parallel.zero_stage=2", "--json"]
    before, after = (json.loads(plan(*keys, *degrees).stdout) for degrees in (["pp=1", "dp=4"], ["pp=2", "dp=2"]))
    gain = 1 - after["step_time_s"] / before["step_time_s"]
    expect("another layout is 2 to 5 % faster", 0.02 < gain < 0.05, gain)
    gains = [1 - advice["step_time_s"] / before["step_time_s"] for advice in before["advice"]]
    expect("it is not advised, others are", gains and min(gains) > 0.05, before["advice"])


def test_long():
    """A step that is too long for a tape is refused before anything is recorded; one with many layers is planned."""
    for degrees in (["pp=1"], ["pp=8", "pipeline.schedule=zb-v"]):
        words = [CUBOID, "plan", GPT3, *ON_A100[:2], "tp=1", "dp=1", *degrees, "train.global_batch_size=131072"]
        with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as child:
            errors = child.stderr.read()
            _, status, used = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
        expect("too many microbatches", child.returncode == 2 and "131072 microbatches has more than 64 million ops" in
               errors and "train.micro_batch_size" in errors, errors)
        expect("refused at once", used.ru_maxrss < 100000 and used.ru_utime + used.ru_stime < 1, used)
    done = plan(GPT3, *ON_A100[:2], "tp=1", "pp=1", "dp=1", "train.global_batch_size=2", "model.num_layers=5000")
    expect("many layers", done.returncode == 1 and "it does NOT fit" in done.stdout, done)


def test_training(folder):
    with open(f"{folder}/text", "w") as out:
        out.write("predicted and measured " * 400)
    for name, memory in (("fits", "1e11"), ("small", "2e6"), ("near", "30e6")):
        with open(f"{folder}/{name}.yaml", "w") as out:
            out.write(CPU.format(memory))
    prepared = subprocess.run([CUBOID, "data", "prepare", f"{folder}/text", "-o", f"{folder}/ids"], check=False,
                              capture_output=True, text=True)
    expect("data is prepared", prepared.returncode == 0, prepared)
    train = [CUBOID, "train", f"{ROOT}/recipes/quickstart.yaml", "tp=1", "pp=2", "dp=1", "train.eval_interval=0",
             "parallel.sequence_parallel=false", "train.train_iters=2", "optimizer.lr_warmup_iters=1",
             "model.num_layers=2", f"data.train={folder}/ids", "data.split=1,0,0"]
    done = subprocess.run([*train, f"logging.run_dir={folder}/run", f"cluster.profile={folder}/fits.yaml"],
                          capture_output=True, text=True, check=False)
    expect("predicted and measured are printed", done.returncode == 0 and "predicted" in done.stdout and
           "memory of a rank" in done.stdout, done)
    parts = {line[:22].strip(): line[22:].split() for line in done.stdout.partition("difference\n")[2].splitlines()}
    expect("busy and waiting time of ranks", all(name in parts and "s" in parts[name] for name in
                                                 ("step", "busiest rank, busy", "idlest rank, waiting")), done)
    expect("memory part by part", all(parts[name][:2] == parts[name][2:4] and parts[name][4:] == ["0.0", "%"]
                                      for name in ("weights", "gradients", "moments", "activations")), done)
    with open(f"{folder}/run/plan.json") as file:
        predicted = json.load(file)
    step_s = predicted["step_time_s"]
    with open(f"{folder}/run/metrics.jsonl") as file:
        lines = [json.loads(line) for line in file]
    expect("each line has the prediction", [line["predicted_step_time_s"] for line in lines] == [step_s] * 2, lines)
    expect("a plan and a run count the same FLOPs", all(
        abs(line[key] * line["step_time_s"] / (predicted[key] * step_s) - 1) < 1e-3 for line in lines
        for key in ("mfu", "mfu_causal", "model_tflops_per_rank")), (predicted, lines))
    done = subprocess.run([*train, f"logging.run_dir={folder}/none", f"cluster.profile={folder}/small.yaml"],
                          capture_output=True, text=True, check=False)
    expect("a run that cannot fit is refused", done.returncode == 2 and "cluster.profile" in done.stderr and
           "no change of one or two layout keys makes it fit" in done.stderr, done)
    near = [*train, f"logging.run_dir={folder}/near", f"cluster.profile={folder}/near.yaml"]
    done = subprocess.run(near, capture_output=True, text=True, check=False)
    change = re.search(r"it fits with (.*?) \(", done.stderr)
    expect("the changes that make it fit are listed", done.returncode == 2 and change, done)
    words = change.group(1).split()
    kept = [word for word in near if word.split("=")[0] not in [key.split("=")[0] for key in words]]
    done = subprocess.run([*kept, *words], capture_output=True, text=True, check=False)
    expect(f"with {change.group(1)} it trains", done.returncode == 0, done)
    expect("before any step", not os.path.exists(f"{folder}/none"), done)
    done = subprocess.run([*train, f"logging.run_dir={folder}/gpu", "cluster.profile=dgx-h100"], capture_output=True,
                          text=True, check=False)
    expect("a profile of GPUs predicts nothing on a CPU", done.returncode == 0 and "describes GPUs" in done.stderr and
           "predicted" not in done.stdout, done)


def check_slices(events, step_us):
    """Slices of one thread nest or are disjoint, and each has a named thread. Returns those of each thread."""
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    threads = {}
    for e in events:
        if e["ph"] == "X":
            threads.setdefault(e["tid"], []).append(e)
    for thread, slices in threads.items():
        expect("threads have names", thread in names, thread)
        open_until = []
        for e in slices:
            while open_until and open_until[-1] <= e["ts"] + 1e-6:
                open_until.pop()
            end = e["ts"] + e["dur"]
            expect("slices nest", not open_until or end <= open_until[-1] + 1e-6, (names[thread], e))
            expect("slices are in the step", e["ts"] >= 0 and end <= step_us + 0.001, e)
            open_until.append(end)
    return names, threads


def test_trace(folder):
    recipe = f"{folder}/<&]]>\"\033\u00e9.yaml"
    with open(recipe, "w") as out:
        out.write(f"base: {os.path.abspath(GPT3)}\n")
    keys = [*ON_A100[:-1], "parallel.zero_stage=1", "train.global_batch_size=16"]
    step_us = 1e6 * (planned(*keys)["step_time_s"] - planned(*keys)["breakdown_s"]["step_overhead"])
    done = plan(recipe, *keys, "--trace", f"{folder}/trace.json")
    expect("a trace is written", done.returncode == 0 and f"{folder}/trace.json: " in done.stdout, done)
    with open(f"{folder}/trace.json") as file:
        written = file.read()
    events = json.loads(written)["traceEvents"]
    names, threads = check_slices(events, step_us)
    last = max(e["ts"] + e["dur"] for slices in threads.values() for e in slices)
    expect("the last slice ends with the step", abs(last - step_us) < 0.01, (last, step_us))
    expect("ranks are processes", {e["pid"] for e in events} == {1, 2}, len(events))
    expect("the title is the recipe", any(recipe.split("/")[-1][:6] in e["args"]["name"] for e in events
                                          if e["name"] == "process_name"), events[:2])
    for pid in (1, 2):
        mine = [e for thread, slices in threads.items() if thread // 100 == pid for e in slices]
        actions = {e["name"] for e in mine if e["cat"] == "action" and names[e["tid"]] == "compute"}
        expect("each microbatch has its actions", {f"{pid - 1}{kind}{m}" for kind in "FB" for m in range(4)} <= actions,
               actions)
        for message in ("all_gather tp", "reduce_scatter dp"):
            expect(f"{message} is drawn", any(e["name"] == message and e["args"]["bytes"] > 0 for e in mine), message)
    ends = {kind: {e["id"]: e for e in events if e["ph"] == kind} for kind in "sf"}
    expect("each arrow has two ends", ends["s"].keys() == ends["f"].keys() and len(ends["s"]) == 8, ends)
    for name, tail in ends["f"].items():
        expect("arrows go from rank to rank", ends["s"][name]["pid"] != tail["pid"] and
               ends["s"][name]["ts"] < tail["ts"], tail)
    done = plan(recipe, *keys, "--trace", "-")
    expect("--trace - prints only the trace", done.stdout == written, done.stdout)


def test_svg(folder):
    """A row per busy stream, cells inside of the step, and the critical path without gaps."""
    recipe = f"{folder}/<&]]>\"\033\u00e9.yaml"
    keys = [*ON_A100[:-1], "train.global_batch_size=16"]
    done = plan(recipe, *keys, "--svg", f"{folder}/step.svg", "--trace", f"{folder}/trace.json")
    expect("a picture is written", done.returncode == 0 and f"{folder}/step.svg: " in done.stdout, done)
    root = xml.etree.ElementTree.parse(f"{folder}/step.svg").getroot()
    rects = [(r.get("class"), *(float(r.get(k)) for k in ("x", "y", "width"))) for r in root.iter(SVG + "rect")]
    texts = [t.text for t in root.iter(SVG + "text")]
    expect("the title is the recipe", texts[0].startswith(folder) and "<&]]>" in texts[0], texts[0])
    with open(f"{folder}/trace.json") as file:
        events = json.load(file)["traceEvents"]
    slices = [e for e in events if e["ph"] == "X"]
    rows = [r for r in rects if r[0] == "idle"][:-1]
    expect("a row per busy stream", len(rows) == len({e["tid"] for e in slices}), rows)
    left, width = rows[0][1], rows[0][3]
    expect("cells are in the step", all(left - 0.01 <= r[1] and r[1] + r[3] <= left + width + 1 for r in rects
                                        if r[0] in ("F", "B", "p2p", "coll", "other") and r[2] <= rows[-1][2]), left)
    for kind in "FB":
        drawn = sum(r[3] for r in rects if r[0] == kind and r[2] == rows[0][2])
        mine = [e for e in slices if e["tid"] == 100]
        took = sum(e["dur"] for e in mine if e["name"].startswith(f"0{kind}"))
        inside = sum(m["dur"] for a in mine if a["name"].startswith(f"0{kind}") for m in mine if m["cat"] == "message"
                     and a["ts"] <= m["ts"] < a["ts"] + a["dur"])
        whole = max(e["ts"] + e["dur"] for e in slices)
        expect(f"{kind} is drawn to scale, with or without its messages",
               (took - inside) / whole - 0.01 < drawn / width < took / whole + 0.01, (drawn, took, inside))
    path = sorted((r[1], r[1] + r[3]) for r in rects if r[0] == "path" and r[1] >= left)
    reached = left
    for begin, end in path:
        expect("the critical path has no gap", begin <= reached + 1.5, (begin, reached))
        reached = max(reached, end)
    expect("the critical path ends with the step", abs(reached - left - width) < 1.5, (reached, left + width))
    both = plan(recipe, *keys, "--svg", "-", "--trace", "-")
    expect("two files cannot be standard output", both.returncode == 2 and "--svg -" in both.stderr, both)


def test_output_refusals(folder):
    for words, arguments in ((("--json and --trace -", "FILE"), ["--json", "--trace", "-"]),
                             (("--trace", "empty name"), ["--trace", ""]),
                             (("would overwrite the recipe",), ["--trace", GPT3]),
                             ((f"{folder}/none/a",), ["--trace", f"{folder}/none/a"])):
        done = plan(GPT3, *ON_A100, *arguments)
        expect(f"{arguments} is refused", done.returncode == 2 and all(w in done.stderr for w in words), done)
    done = plan(GPT3, "--trace", f"{folder}/a")
    expect("a timeline needs a profile", done.returncode == 2 and "cluster.profile" in done.stderr and
           not os.path.exists(f"{folder}/a"), done)


with tempfile.TemporaryDirectory() as scratch:
    test_trace(scratch)
    test_svg(scratch)
    test_output_refusals(scratch)
    test_training(scratch)
    test_advice()
    test_advice_on_cpu(scratch)
    test_long()
    test_critical_path()
    test_limits()
    test_needed_memory()
    test_nondeterministic()
    test_ops()
    test_sums()
    test_text()
    test_effects()
    test_refusals(scratch)
print(f"{len(failures)} failures")
sys.exit(1 if failures else 0)
