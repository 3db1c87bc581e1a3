# SPDX-License-Identifier: Apache-2.0
"""The parts `advice` and `sweep` of tools/soak: advice of random plans, applied; real sweeps that are killed."""
import concurrent.futures
import itertools
import json
import os
import random
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
GPT3 = os.path.join(ROOT, "recipes", "base", "gpt3-1.3b.yaml")
LLAMA3 = os.path.join(ROOT, "recipes", "base", "llama3-8b.yaml")
SHARE = 0.95


def random_recipe(number):
    """A model of 1 to 100 billion parameters in some layout on 4 to 64 GPUs, as arguments of cuboid plan. A function of
    the number alone."""
    draw = random.Random(number)
    pp, tp, dp = draw.choice([1, 2, 4, 8]), draw.choice([1, 2, 4, 8]), draw.choice([1, 2, 4])
    hidden, layers = draw.choice([2048, 4096, 6144, 8192]), draw.choice([16, 24, 32, 48, 64])
    llama = draw.random() < 0.4
    keys = [LLAMA3 if llama else GPT3, f"tp={tp}", f"pp={pp}", f"dp={dp}", f"model.hidden_size={hidden}",
            f"model.num_attention_heads={hidden // 128}", f"model.num_layers={layers}", "train.global_batch_size=64",
            f"model.ffn_hidden_size={7 * hidden // 2 if llama else 4 * hidden}",
            f"model.seq_length={draw.choice([1024, 2048, 4096])}",
            f"train.micro_batch_size={draw.choice([1, 2, 4])}",
            f"memory.recompute_granularity={draw.choice(['none', 'none', 'selective', 'full'])}",
            f"parallel.zero_stage={draw.choice([0, 0, 1, 2, 3]) if dp > 1 else 0}",
            f"cluster.profile={draw.choice(['dgx-a100-40', 'dgx-a100-80', 'dgx-h100'])}",
            "precision.params_dtype=bf16", f"parallel.sequence_parallel={'true' if tp > 1 else 'false'}"]
    if llama:
        keys.append(f"model.num_query_groups={draw.choice([8, hidden // 128])}")
    if pp > 1:
        schedule = draw.choice(["1f1b", "1f1b", "gpipe", "interleaved", "zb-h1", "zb-v"])
        keys.append(f"pipeline.schedule={schedule}")
        if schedule == "interleaved":
            keys.append("pipeline.virtual_stages=2")
    return keys


def plan(cuboid, keys, *more):
    done = subprocess.run([cuboid, "plan", *keys, *more, "--json"], capture_output=True, text=True, check=False)
    return json.loads(done.stdout) if done.returncode in (0, 1) and done.stdout else None


def applied(keys, change):
    """The arguments with a change: a key is given once."""
    short = {"tp": "tp", "pp": "pp", "dp": "dp"}
    changed = {word.split("=")[0] for word in change.split()}
    return [word for word in keys if short.get(word.split("=")[0], word.split("=")[0]) not in changed] + change.split()


def degrees(keys):
    """All changes of two of the degrees that keep their product."""
    now = {name: int(word.split("=")[1]) for word in keys for name in ("tp", "pp", "dp") if word.startswith(name + "=")}
    for more, less in itertools.permutations(now, 2):
        factor = 2
        while now[less] % factor == 0:
            yield f"{more}={now[more] * factor} {less}={now[less] // factor}"
            factor *= 2


def two_keys(cuboid, keys):
    """The first change of at most two keys that fits, of all values that may save memory; None: there is none."""
    values = {"memory.recompute_granularity": ["full", "selective"], "parallel.zero_stage": [3, 2, 1],
              "memory.offload_optimizer": ["true"], "memory.offload_activations": ["true"],
              "train.micro_batch_size": [1, 2], "pipeline.virtual_stages": [1, 2],
              "pipeline.schedule": ["1f1b", "v-min", "v-half", "zb-h1", "zb-v", "interleaved", "auto"],
              "parallel.bucket_size_mb": [1]}
    single = [[f"{key}={value}" for value in choices] for key, choices in values.items()]
    changes = [word for words in single for word in words] + list(degrees(keys))
    changes += [f"{a} {b}" for one, other in itertools.combinations(single, 2) for a in one for b in other]
    for change in changes:
        found = plan(cuboid, applied(keys, change))
        if found is not None and found["fits"]:
            return change
    return None


def check_advice(cuboid, number):
    """One recipe: (kind, problems, pieces of advice). kind: invalid, fits, helped, not helped, more than two keys (only
    such changes make it fit), or hopeless."""
    keys, problems = random_recipe(number), []
    before = plan(cuboid, keys)
    if before is None:
        return "invalid", [], 0
    for advice in before["advice"]:
        after = plan(cuboid, applied(keys, advice["change"]))
        if after is None or not (after["fits"] and after["step_time_s"] == advice["step_time_s"] and
                                 after["needed_bytes"] == advice["needed_bytes"]):
            problems.append(f"run {number}: {' '.join(keys)}: {advice} plans to "
                            f"{after and {k: after[k] for k in ('fits', 'step_time_s', 'needed_bytes')}}")
        elif before["fits"] and not after["step_time_s"] < before["step_time_s"]:
            problems.append(f"run {number}: {' '.join(keys)}: {advice} does not help")
        if len(advice["change"].split()) > 2:
            problems.append(f"run {number}: {advice} has more than two keys")
    if before["fits"]:
        return "fits", problems, len(before["advice"])
    if before["advice"]:
        return "helped", problems, len(before["advice"])
    # Whether any layout of these ranks fits, with any number of keys changed.
    nodes = max(before["ranks"] // 8, 1)
    free = [word for word in keys if word.split("=")[0] not in ("tp", "pp", "dp") and not word.startswith(
        ("parallel.", "pipeline.", "memory.", "train.micro"))]
    best = plan(cuboid, free, "--best", f"cluster.nodes={nodes}", f"cluster.gpus_per_node={min(before['ranks'], 8)}")
    if best is None or not best["fits"]:
        return "hopeless", problems, 0
    change = two_keys(cuboid, keys)
    if change is not None:
        print(f"run {number}: {' '.join(keys)}: not told that {change} fits", flush=True)
    return ("not helped" if change is not None else "more than two keys"), problems, 0


def advice(options, stamp, write):
    """Plans --runs random recipes, and every change that they are advised to make."""
    cuboid = os.path.join(options.build, "cuboid")
    numbers = range(options.first, options.first + (options.runs or 200))
    kinds, problems, pieces = {}, [], 0
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for done, (number, (kind, wrong, count)) in enumerate(
                zip(numbers, pool.map(lambda n: check_advice(cuboid, n), numbers)), 1):
            kinds.setdefault(kind, []).append(number)
            problems += wrong
            pieces += count
            for line in wrong:
                print(line, flush=True)
            if done % 20 == 0:
                counts = ", ".join(f"{len(found)} {kind}" for kind, found in kinds.items())
                print(f"{done} of {len(numbers)}: {counts}", flush=True)
    helped, missed = len(kinds.get("helped", [])), kinds.get("not helped", [])
    could, more = helped + len(missed), len(kinds.get("more than two keys", []))
    write([f"{stamp}: random recipes {numbers[0]} to {numbers[-1]}; {len(kinds.get('invalid', []))} are not valid.",
           f"**{pieces} pieces of advice, applied: {len(problems)} plan to something else.**",
           f"{could + more + len(kinds.get('hopeless', []))} do not fit; {could} do with a change of at most two keys, "
           f"and {helped} of these are told one ({100 * helped / max(could, 1):.1f} %).",
           f"For {more} others only changes of more keys on the same GPUs fit.",
           *([f"Not told: {', '.join(map(str, missed))}."] if missed else [])])
    return bool(problems) or helped < SHARE * could


def sweep(options, stamp, write):
    """40 real runs, killed five times, as threads and under mpirun."""
    script = os.path.join(ROOT, "tests", "cli", "test_sweep_run.py")
    mpirun = ["mpirun", "--oversubscribe"]
    done = subprocess.run([sys.executable, script, os.path.join(options.build, "cuboid"), "--long", *mpirun],
                          capture_output=True, text=True, check=False)
    print(done.stdout + done.stderr)
    lines = [line.removeprefix("soak: ") for line in done.stdout.splitlines() if line.startswith("soak: ")]
    write([f"{stamp}: a sweep of 40 layouts is killed at five random moments, and started again until it ends.", "",
           *[f"- {line}" for line in lines]])
    return done.returncode != 0
