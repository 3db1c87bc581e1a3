#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The recipes of published models: each names bf16, GPUs and a cluster with its nodes; it fits there with headroom,
`cuboid submit` asks for these GPUs, and docs/models.md has its plan. Its step is at most 10 % longer than that of
`--best`, by what the page says: for NAMEs only, since the search of all takes minutes (tools/soak models).

    test_model_recipes.py CUBOID SOURCE-ROOT [NAME ... | all]
    test_model_recipes.py CUBOID SOURCE-ROOT table      prints the table of docs/models.md, with all searches"""
import glob
import json
import os
import re
import subprocess
import sys

CUBOID, ROOT = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
TABLE = os.path.join(ROOT, "docs", "models.md")
SLOWER = 1.10   # than the best layout of the search
GPUS = 8        # of a node, in every profile that these recipes name
HEAD = """| recipe | parameters | nodes | layout | step | error of the step | MFU | memory | to the best |
|---|---|---|---|---|---|---|---|---|"""
failures = []


def expect(what, truth, seen):
    if not truth:
        failures.append(what)
        print(f"{what}: {seen!r:.1500}")


def run(*arguments):
    return subprocess.run([CUBOID, *arguments], capture_output=True, text=True, check=False)


def planned(path, *arguments):
    """The JSON object of a plan."""
    done = run("plan", path, *arguments, "--json", "--no-advice")
    if done.returncode not in (0, 1):
        sys.exit(f"{path} {arguments} is not planned: {done}")
    return json.loads(done.stdout)


def recipes():
    paths = [os.path.join(ROOT, "recipes", name + ".yaml") for name in ("gpt2-124m", "gpt3-1.3b", "llama3-8b")]
    paths += sorted(glob.glob(os.path.join(ROOT, "recipes", "models", "*", "*.yaml")))
    return {os.path.basename(path).removesuffix(".yaml"): path for path in paths}


def given(path):
    """The cluster that the file itself names, not its base: (profile, nodes)."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    expect(f"{path} names bf16", re.search(r"^precision: \{params_dtype: bf16\}", text, re.M), text)
    expect(f"{path} says why its layout is so", re.search(r"^# .*\nparallel: \{", text, re.M), text)
    found = re.search(r"^cluster: \{profile: (\S+), nodes: (\d+), device: cuda\}", text, re.M)
    expect(f"{path} names its cluster", found, text)
    return (found[1], int(found[2])) if found else ("", 0)


def layout_text(path):
    """The schedule and what follows from the keys of the file, as a cell of the table."""
    done = run("recipe", path, "cluster.device=dry")
    expect(f"{path} is read", done.returncode == 0, done)

    def value(key):
        found = re.search(rf"^  {key}: (\S+)", done.stdout, re.M)
        return found[1] if found else ""
    pipeline = f", {value('schedule')}" if value("pipeline_parallel_size") != "1" else ""
    if value("schedule") == "interleaved":
        pipeline += f" x {value('virtual_stages')}"
    return (f"TP {value('tensor_parallel_size')}, PP {value('pipeline_parallel_size')}{pipeline}, "
            f"microbatch {value('micro_batch_size')}")


def error_text(plan):
    """How far predictions with the profile were off, as the plan says."""
    if plan["error_fraction"] is not None:
        held_out = plan["held_out_error_fraction"]
        return (f"± {100 * plan['error_fraction']:.0f} %" +
                (f", left out ± {100 * held_out:.0f} %" if held_out is not None else ""))
    found = re.search(r"predicted (\d+ % too (?:fast|slow)) in the median", plan["profile_basis"])
    return found[1] if found else "not known"


def row(name, path, plan, cluster):
    """One line of the table in docs/models.md, without the last cell."""
    with open(path, encoding="utf-8") as file:
        count = re.search(r"([\d,]{9,})\s+parameters", file.read())
    billions = int(count[1].replace(",", "")) * 1e-9 if count else 0  # as checked by test_recipe_models.c
    link = f"[{name}]({os.path.relpath(path, os.path.dirname(TABLE))})"
    return (f"| {link} | {billions:.{0 if billions > 100 else 2}f} B | {cluster[1]} {cluster[0]} | "
            f"{layout_text(path)} | {plan['step_time_s']:.3g} s | {error_text(plan)} | {100 * plan['mfu']:.0f} % | "
            f"{100 * plan['needed_bytes'] / plan['device_memory_bytes']:.0f} % |")


def gap_text(step_s, best_s):
    """The last cell of a row: how much longer the step is than that of --best."""
    return f" {100 * (step_s / best_s - 1):+.1f} % |"


def check_submit(path, nodes):
    """The script asks for the GPUs. A build without CUDA refuses to submit a job for GPUs."""
    done = run("submit", path, "--print")
    if "cluster.device cuda is not in this build" in done.stderr:
        return
    for line in (f"#SBATCH --nodes={nodes}", f"#SBATCH --gpus-per-node={GPUS}", f"#SBATCH --ntasks-per-node={GPUS}"):
        expect(f"{path}: the script has {line}", line in done.stdout.splitlines(), done)


def check_best(name, path, step_s, best_s):
    """Also that a poor layout is detected: one sequence at a time, recomputed in full."""
    poor_s = planned(path, "train.micro_batch_size=1", "memory.recompute_granularity=full")["step_time_s"]
    print(f"{name}: step {step_s:.4g} s, best {best_s:.4g} s,{gap_text(step_s, best_s)[:-2]}", flush=True)
    expect(f"{name} is near the best", step_s <= SLOWER * best_s, (step_s, best_s))
    expect(f"{name} with a poor layout is not", poor_s > SLOWER * best_s, (poor_s, best_s))


def main():
    names, models = sys.argv[3:], recipes()
    with open(TABLE, encoding="utf-8") as file:
        lines = file.read().splitlines()
    if names == ["table"]:
        print(HEAD)
    for name, path in models.items():
        cluster, plan = given(path), planned(path)
        searched = name in names or names in (["all"], ["table"])
        best_s = planned(path, "--best")["step_time_s"] if searched else None
        line = row(name, path, plan, cluster) + (gap_text(plan["step_time_s"], best_s) if searched else "")
        if names == ["table"]:
            print(line, flush=True)
            continue
        expect(f"{name} fits with headroom", plan["memory_class"] == "fits", plan)
        expect(f"{name} uses all GPUs", plan["ranks"] == GPUS * cluster[1], plan)
        found = [other for other in lines if (other == line if searched else other.startswith(line))]
        expect(f"docs/models.md has {line}", len(found) == 1, line)
        check_submit(path, cluster[1])
        if searched:
            check_best(name, path, plan["step_time_s"], best_s)
    expect("every name is a recipe", names in (["all"], ["table"]) or set(names) <= set(models), names)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
