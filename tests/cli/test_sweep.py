#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""cuboid sweep: its layouts compared with cuboid recipe and cuboid plan, one by one; refusals; the CSV.

    test_sweep.py CUBOID SOURCE_ROOT"""
import csv
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile

from pages.html_page import Page, data_of, rendered

CUBOID = os.path.abspath(sys.argv[1])
BASE = os.path.join(os.path.abspath(sys.argv[2]), "recipes", "base", "gpt3-1.3b.yaml")
ONE = ["cluster.profile=dgx-a100-40", "precision.params_dtype=bf16"]
COMMON = ["cluster.profile=dgx-a100-40", "cluster.nodes=2", "cluster.gpus_per_node=8",
          "parallel.data_parallel_size=auto", "train.global_batch_size=96", "precision.params_dtype=bf16"]
failures = []


def run(*arguments):
    return subprocess.run([CUBOID, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)


def expect(what, truth, done):
    if not truth:
        failures.append(what)
        print(f"{what}: status {done.returncode}\n  stdout {done.stdout!r:.700}\n  stderr {done.stderr!r:.300}")


def check(what, done, status, out="", err=""):
    expect(what, done.returncode == status and out in done.stdout and err in done.stderr, done)


def write(folder, axes, constraints=(), base=BASE):
    path = os.path.join(folder, "sweep.yaml")
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"base: {base}\naxes:\n")
        file.writelines(f"  {key}: [{', '.join(values)}]\n" for key, values in axes.items())
        if constraints:
            file.write("constraints:\n")
            file.writelines(f"  - {constraint}\n" for constraint in constraints)
    return path


def plan_one_by_one(axes, holds):
    """Step time and memory of each layout, "oom" or None, by its overrides."""
    plans = {}
    for values in itertools.product(*axes.values()):
        words = [f"{key}={value}" for key, value in zip(axes, values)]
        if not holds(dict(zip(axes, values))):
            plans[" ".join(words)] = None
            continue
        done = run("plan", BASE, *COMMON, *words, "--json", "--no-advice")
        plan = json.loads(done.stdout) if done.returncode < 2 else None
        plans[" ".join(words)] = plan and (plan["step_time_s"], plan["memory_peak_bytes"], plan["fits"])
    return plans


def test_every_layout(folder):
    axes = {"tp": ["1", "2", "3", "4"], "pp": ["1", "2", "4"], "pipeline.schedule": ["1f1b", "interleaved"],
            "train.micro_batch_size": ["1", "6"]}
    path, table = write(folder, axes, ["tp * pp < 16"]), os.path.join(folder, "sweep.csv")
    done = run("sweep", path, *COMMON, "--top", "3", "--all", "-o", table)
    check("a sweep", done, 0, out="tp=1 pp=1")
    expect("what its steps rest on", "\nprofile dgx-a100-40: data sheet and estimates, not fitted" in done.stdout, done)
    plans = plan_one_by_one(axes, lambda values: int(values["tp"]) * int(values["pp"]) < 16)
    with open(table, encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    found = {" ".join(row["overrides"].split(" ")[:len(axes)]): row for row in rows}
    expect("legal layouts", set(found) == {words for words, plan in plans.items() if plan is not None}, done)
    oom = 0
    for words, row in found.items():
        step, memory, fits = plans[words]
        oom += not fits
        same = row["status"] == "ok" and float(row["step_time_s"]) == step and \
            round(float(row["memory_gb"]) * 1e9) == memory if fits else row["status"] == "oom"
        expect(f"as planned alone: {words}, {plans[words]}", same, done)
    expect("some do not fit", oom > 0 and f"{oom} do not fit" in done.stdout, done)
    refused = sum(plan is None for plan in plans.values())
    expect("some are rejected", refused > 10 and f"{refused} rejected by rules" in done.stdout, done)
    counts = [int(line.split()[0]) for line in done.stdout.split("by reason:\n")[1].splitlines() if line[:10].strip()]
    expect("each layout has one reason", sum(counts) == refused + oom and counts == sorted(counts, reverse=True), done)
    expect("fastest first", [float(row["step_time_s"]) for row in rows if row["status"] == "ok"] ==
           sorted(step for step, _, fits in filter(None, plans.values()) if fits), done)
    expect("three are printed", len(re.findall(r"^ +[123] +[0-9.]+ ", done.stdout, re.M)) == 3, done)
    few = run("sweep", path, *COMMON, "--top", "3", "-o", table + ".few")
    lines = [line for line in done.stdout.splitlines() if re.match(r" +[123] +[0-9.]+ ", line)]
    expect("the same three without --all", all(line in few.stdout for line in lines), few)
    slower = re.search(r"(\d+) slower by their bound", few.stdout)
    with open(table + ".few", encoding="utf-8") as file:
        statuses = [row["status"] for row in csv.DictReader(file)]
    expect("others are slower", slower and statuses.count("slower") == int(slower.group(1)) > 3, few)
    for more in ([], ["memory.offload_activations=true", "assume.attention=unfused", "train.global_batch_size=192"]):
        run("sweep", path, *COMMON[:4], *COMMON[5:], *(more or COMMON[4:5]), "--all", "-o", table)
        back = run("table", table, "--json")
        errors = [row["predicted_s"] / row["printed_s"] - 1 for row in json.loads(back.stdout)["rows"]
                  if row["printed_s"]]
        expect("cuboid table predicts the same", len(errors) > 5 and max(map(abs, errors)) < 1e-9, back)


def test_no_layout(folder):
    path = write(folder, {"tp": ["3", "5"], "pp": ["1", "2"]})
    done = run("sweep", path, *COMMON)
    check("no legal layout", done, 1, out="no layout can be planned; most were rejected by: ")
    expect("the rule that rejected most", "model.num_attention_heads" in done.stdout.split("most were")[1], done)
    change = re.search(r"makes a layout possible: (\S+), with (.*)", done.stdout)
    expect("the smallest change", change is not None and change.group(1) in ("tp=2", "tp=4"), done)
    if change:
        check("it leaves one", run("plan", BASE, *COMMON, *change.group(2).split()), 0)
    path = write(folder, {"tp": ["1"], "train.micro_batch_size": ["32", "48"]})
    done = run("sweep", path, *ONE, "dp=2", "pp=1", "train.global_batch_size=384", "model.num_layers=48")
    check("none fits", done, 1, out="most were rejected by: memory of the device")
    expect("a change that fits", re.search(r"makes a layout possible: (tp|train.micro_batch_size)=", done.stdout), done)


def test_schedules(folder):
    """Each schedule has its own virtual stages, not those of the base's; given ones are those of all."""
    base = os.path.join(folder, "base.yaml")
    with open(base, "w", encoding="utf-8") as file:
        file.write(f"base: {BASE}\npipeline: {{schedule: interleaved, virtual_stages: 3}}\n")
    path = write(folder, {"pipeline.schedule": ["1f1b", "interleaved", "zb-h1", "zb-v"]}, base=base)
    words = [*COMMON, "tp=2", "pp=2", "--all"]
    check("all schedules are planned", run("sweep", path, *words), 0, out="4 planned, 0 do not fit, 0 rejected")
    done = run("sweep", path, *words, "pipeline.virtual_stages=3")
    check("those of 1f1b are not 3", done, 0, out="1  1f1b supports any p, any m, v = 1\n")


def page_of(what, done, path):
    with open(path, encoding="utf-8") as file:
        text = file.read()
    page = Page(text)
    expect(f"{what}: every element is closed", page.open == [] and not page.failures, done)
    links = [value for name, value in page.attributes if name in ("src", "href")]
    expect(f"{what}: it is self-contained", links == [] and "\x1b" not in text, done)
    expect(f"{what}: scripts are the page's", text.count("<script") == 3 and "alert(1)" not in "".join(
        re.findall(r"<script>.*?</script>", text, re.S)), done)
    return data_of(text), rendered(path)


def check_rendered(what, page, data, hostile, done):
    """What a browser shows, if there is node to run the script."""
    if page is None:
        return
    expect(f"{what}: every element is closed", page.open == [] and not page.failures, done)
    expect("names are escaped, and shown", "script" not in page.names and page.texts.count(hostile) >= 4, done)
    expect("a heat map, a front, tables", {"svg", "circle", "table"} <= page.names and
           any(name == "style" and value.startswith("background: rgb(") for name, value in page.attributes), done)
    expect("the columns", {"step, s", "MFU", "dp", "tp", "memory, GiB"} <= set(page.texts), done)
    for layout in data["layouts"][:3]:
        expect("each planned layout is a row", f"{layout['step_s']:.4g}" in page.texts, done)


def test_page(folder):
    hostile = "</title><script>alert(1)</script> & \"'"
    path = os.path.join(folder, "page.html")
    axes = {"tp": ["1", "2", "3"], "pp": ["1", "2"], "name": ["a", json.dumps(hostile)]}
    done = run("sweep", write(folder, axes), *COMMON, "--all", "--html", path)
    check("a page", done, 0)
    data, page = page_of("a page", done, path)
    expect("what its steps rest on",
           data["basis"].startswith("profile dgx-a100-40: data sheet and estimates, not fitted"), done)
    expect("the cluster", data["cluster"] == {"profile": "dgx-a100-40", "ranks": 16, "nodes": 2}, data["cluster"])
    expect("all layouts", len(data["layouts"]) == data["counts"]["planned"] == 4 and
           len(data["layouts"]) + len(data["others"]) == data["total"] == 12, done)
    steps = [layout["step_s"] for layout in data["layouts"]]
    expect("fastest first", steps == sorted(steps) and all(steps), done)
    expect("reasons", any("model.num_attention_heads 16 is not divisible" in reason["what"] + reason["example"]
                          for reason in data["reasons"]), done)
    check_rendered("a page", page, data, hostile, done)
    axes = {"seed": [str(i) for i in range(52)], "tp": ["1", "2", "3", "4"], "pp": ["1", "2", "4"],
            "pipeline.schedule": ["1f1b", "interleaved", "zb-h1", "gpipe"], "train.micro_batch_size": ["1", "6"]}
    done = run("sweep", write(folder, axes), *COMMON, "--html", path)
    check("a large page", done, 0, out="4992 layouts")
    data, _ = page_of("a large page", done, path)
    size = os.path.getsize(path)
    expect(f"below 2 MB: {size}", 100000 < size < 2000000 and data["unlisted"] == 0, done)
    check("a page that cannot be written", run("sweep", write(folder, {"tp": ["1"]}), *COMMON, "--html", folder), 2,
          err="--html ")


def test_refusals(folder):
    path = write(folder, {"tp": ["1", "x"], "depth": ["2"]})
    done = run("sweep", path)
    check("a value and a key", done, 2, err="sweep.yaml:3: axes: parallel.tensor_parallel_size \"x\" is not an integer")
    expect("both are reported", "sweep.yaml:4: axes: unknown key depth" in done.stderr, done)
    for key, meant in (("zero_stge", "parallel.zero_stage"),
                       ("parallel.tensor_paralel_size", "parallel.tensor_parallel_size"),
                       ("train.micro_batch_sise", "train.micro_batch_size"), ("qqqqqq", None)):
        check(f"axis {key}", run("sweep", write(folder, {key: ["1"]})), 2,
              err=f"did you mean {meant}?" if meant else "the keys are those of docs/recipe.md")
    for constraint, word in (("tp / 0 <= 1", "divides by 0"), ("pipeline.schedule != gpip", "can never hold or fail"),
                             ("ranks == many", "compares the number ranks with many"), ("tp == two", "not an integer")):
        check(constraint, run("sweep", write(folder, {"tp": ["1"]}, [constraint])), 2, err=word)
    done = run("sweep", write(folder, {"tp": ["1"]}, ["tp / 0 <= 1"]))
    check("one problem", done, 2, err="sweep.yaml: 1 problem\n")
    check("no sweep", run("sweep"), 2, err="no sweep given")
    check("a sweep that does not exist", run("sweep", path + ".none"), 2, err="sweep.yaml.none")
    path = write(folder, {"tp": ["1"]})
    check("no profile", run("sweep", path), 2, err="has no cluster.profile, which a sweep needs")
    check("neither a profile nor a valid layout", run("sweep", write(folder, {"tp": ["3"]})), 2,
          err="has no cluster.profile, which a sweep needs")
    path = write(folder, {"tp": ["1"]})
    check("two sweeps", run("sweep", path, path), 2, err="is not key=value")
    check("a device", run("sweep", path, "cluster.device=cuda"), 2, err="--run the device of the recipe")
    check("an unknown key", run("sweep", path, "model.depth=3"), 2, err="unknown key model.depth")
    check("a CSV that cannot be written", run("sweep", path, *COMMON, "-o", folder), 2, err="-o ")
    check("an axis and a value", run("sweep", path, *COMMON, "parallel.tensor_parallel_size=2"), 2,
          err="sweep.yaml:3: axes: parallel.tensor_parallel_size also has a value on the command line")
    for key in ("train.micro_batch_size", "memory.recompute_granularity", "parallel"):
        check(f"{key} auto", run("sweep", write(folder, {key: ["auto"]}), *COMMON), 2,
              err="auto leaves the choice to a plan; list the values to compare")
    path = write(folder, {"tp": ["1"]}, base="none.yaml")
    check("a base that does not exist", run("sweep", path), 2, err="none.yaml")
    path = write(folder, {"tp": ["1"]}, ["tp + 1 < 3"])
    check("a constraint", run("sweep", path), 2, err="\"tp + 1 < 3\" has \"+\" where")


with tempfile.TemporaryDirectory() as temporary:
    test_every_layout(temporary)
    test_no_layout(temporary)
    test_schedules(temporary)
    test_page(temporary)
    test_refusals(temporary)
print("\n".join(failures) if failures else "all as expected")
sys.exit(1 if failures else 0)
