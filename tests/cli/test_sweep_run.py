#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""cuboid sweep --run: measured layouts, sweeps that are killed and resumed, runs that fail or hang; cuboid runs.

    test_sweep_run.py CUBOID [MPIRUN ...]
    test_sweep_run.py CUBOID --long [MPIRUN ...]    only sweeps of 40 runs that are killed, for tools/soak"""
import csv
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time

from pages.html_page import data_of, rendered

CUBOID = os.path.abspath(sys.argv[1])
LONG = "--long" in sys.argv
MPIRUN = [word for word in sys.argv[2:] if word != "--long"]
PROFILE = """device: {name: CPU, is_cpu: true, cores: 2, peak_flops_fp32: 1e11, memory_bytes: 8e9,
  memory_bandwidth: 2e10}
node: {devices: 1}
"""
RECIPE = """name: tiny
model: {num_layers: 4, hidden_size: 32, num_attention_heads: 4, seq_length: 32}
train: {global_batch_size: 8, train_iters: 1000, eval_interval: 100}
optimizer: {lr: 1.0e-3, lr_warmup_iters: 100}
data: {train: not-there}
cluster: {profile: ./cpu.yaml}
"""
SWEEP = """base: tiny.yaml
axes:
  tp: [1, 2]
  pp: [1, 2]
  pipeline.schedule: [1f1b, gpipe]
  train.micro_batch_size: [1, 2]
"""
failures = []


def run(folder, *arguments, timeout=None):
    return subprocess.run([CUBOID, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False,
                          cwd=folder, timeout=timeout)


def expect(what, truth, done):
    if not truth:
        failures.append(what)
        print(f"{what}: status {done.returncode}\n  stdout {done.stdout!r:.1500}\n  stderr {done.stderr!r:.500}")


def journal(folder, sweep="sweep.yaml.runs"):
    try:
        with open(os.path.join(folder, sweep, "journal"), encoding="utf-8") as file:
            lines = file.read().split("\n")[1:-1]
    except FileNotFoundError:
        return []
    return [line.split(" ", 3) for line in lines if line]


def processes(folder):
    """Those that run in the folder."""
    found = []
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and os.readlink(f"/proc/{name}/cwd") == os.path.realpath(folder):
                found.append(name)
        except OSError:
            pass
    return found


def none_left(folder):
    for _ in range(100):
        if not processes(folder):
            return True
        time.sleep(0.1)
    return False


def kill_and_resume(folder, times, arguments, count, runs="sweep.yaml.runs", longest=0.3):
    """Kills the sweep at random moments, then lets it end; every layout is measured once."""
    draw, saved = random.Random(1), []
    for i in range(times):
        before = len(journal(folder, runs))
        sweep = subprocess.Popen([CUBOID, "sweep", *arguments], cwd=folder, stdout=subprocess.DEVNULL,
                                 stderr=subprocess.DEVNULL)
        for _ in range(1000):
            if len(journal(folder, runs)) > before or sweep.poll() is not None:
                break
            time.sleep(0.01)
        time.sleep(draw.random() * longest)
        sweep.kill()
        sweep.wait()
        if not none_left(folder):
            failures.append(f"kill {i}: processes are left")
        saved += [entry for entry in journal(folder, runs) if entry[0] == "done" and entry not in saved]
    done = run(folder, "sweep", *arguments)
    entries = journal(folder, runs)
    measured = [layout for state, _, _, layout in entries if state == "done"]
    expect(f"{count} layouts are measured once: {len(measured)}", len(measured) == len(set(measured)) == count, done)
    expect("what was measured before a kill is kept", all(entry in entries for entry in saved), saved)
    expect("all are printed", len(re.findall(r"^ +\d+ done ", done.stdout, re.M)) == count, done)
    again = run(folder, "sweep", *arguments)
    expect("nothing is measured twice", again.stdout == done.stdout and journal(folder, runs) == entries, again)
    return done


def test_csv_alone(folder, text):
    """The rows of runs are the runs, without their recipe: cuboid table plans what ran."""
    with open(os.path.join(folder, "runs.csv"), "w", encoding="utf-8") as file:
        file.write(text)
    table = run(folder, "table", "runs.csv", "--profile", "./cpu.yaml", "--json")
    errors = [row["predicted_bytes"] / row["printed_bytes"] - 1 for row in json.loads(table.stdout)["rows"]]
    parts = [row["breakdown_s"] for row in json.loads(table.stdout)["rows"]]
    expect("a part that takes no time is 0", all(part["host"] == 0 for part in parts), table)
    expect("runs --csv: memory as planned is as measured", max(map(abs, errors)) < 1e-3, table)


def test_threads(folder):
    done = kill_and_resume(folder, 5, ["sweep.yaml", "--run", "--steps", "4"], 16)
    pattern = r" 1 done +[0-9.e-]+ +[0-9.e-]+ +[-+][0-9.]+%  tp="
    expect("predicted next to measured", re.search(pattern, done.stdout), done)
    runs = os.path.join(folder, "sweep.yaml.runs", "runs")
    names = sorted(os.listdir(runs), key=int)
    compared = run(runs, "runs", *names, "nowhere")
    losses = {line.split()[9] for line in compared.stdout.splitlines()[1:-1]}
    expect("runs: all layouts have the same loss", len(names) == 16 and len(losses) == 1, compared)
    expect("runs: one that is none", compared.returncode == 0 and "nowhere/metrics.jsonl" in compared.stdout, compared)
    inside = run(folder, "runs", runs)
    expect("runs of a folder", inside.returncode == 0 and
           all(os.path.join(runs, name) in inside.stdout for name in names), inside)
    table = run(runs, "runs", "--csv", *names)
    rows = list(csv.DictReader(table.stdout.splitlines()))
    with open(os.path.join(runs, names[0], "metrics.jsonl"), encoding="utf-8") as file:
        steps = sorted(json.loads(line)["step_time_s"] for line in file.read().splitlines()[1:])
    expect("runs --csv: the median without the first step",
           len(rows) == 16 and abs(float(rows[0]["step_time_s"]) - steps[1]) < 1e-12 and len(steps) == 3, table)
    test_csv_alone(folder, table.stdout)
    os.rename(os.path.join(folder, "cpu.yaml"), os.path.join(folder, "moved.yaml"))
    moved = run(folder, "runs", *(os.path.join(runs, name) for name in names))
    expect("runs: without the profile that they had", moved.stdout.count("tp1 pp1") == 4, moved)
    os.rename(os.path.join(folder, "moved.yaml"), os.path.join(folder, "cpu.yaml"))
    expect("runs: none", run(runs, "runs").returncode == 2 and run(runs, "runs", "nowhere").returncode == 1, table)


def script(folder, name, text):
    path = os.path.join(folder, name)
    with open(path, "w", encoding="utf-8") as file:
        file.write("#!/bin/sh\n" + text)
    os.chmod(path, 0o755)
    return path


def test_bad_runs(folder):
    """A run that needs too much memory, fails, hangs, or writes garbage: the others continue."""
    bad = script(folder, "bad.sh", """case "$*" in
*tensor_parallel_size=1*pipeline_parallel_size=1*) echo out of memory; exit 1;;
*tensor_parallel_size=1*) sleep 1000;;
*pipeline_parallel_size=1*) dir=$(echo "$*" | sed 's/.*run_dir=\\([^ ]*\\).*/\\1/')
  mkdir -p $dir; echo '{' > $dir/metrics.jsonl;;
*) exec "$@";;
esac
""")
    arguments = ["sweep", "sweep.yaml", "--run", "0", "--steps", "3", "--timeout", "6", "--run-dir", "bad",
                 "--launch", bad, "pipeline.schedule=1f1b"]
    with open(os.path.join(folder, "sweep.yaml"), "w", encoding="utf-8") as file:
        file.write("base: tiny.yaml\naxes:\n  tp: [1, 2]\n  pp: [1, 2]\n")
    done = run(folder, *arguments)
    states = {layout: state for state, layout in re.findall(r"^ +\d+ (\w+) .*(tp=\d pp=\d)$", done.stdout, re.M)}
    expect(f"their states: {states}", states == {"tp=1 pp=1": "oom", "tp=1 pp=2": "timeout", "tp=2 pp=1": "failed",
                                                 "tp=2 pp=2": "done"} and done.returncode == 0, done)
    expect("no process is left", none_left(folder), done)
    expect("the reason", "\n     bad/logs/0: out of memory\n" in done.stdout and
           "     bad/logs/1: empty\n" in done.stdout, done)
    other = run(folder, *arguments, "seed=3")
    expect("another sweep in this folder", other.returncode == 2 and "belongs to another sweep" in other.stderr, other)
    done = run(folder, "sweep", "sweep.yaml", "--run", "2", "--launch", "false", "--run-dir", "none")
    expect("no run succeeds", done.returncode == 1 and "no run succeeded" in done.stderr, done)


def test_assumptions(folder):
    """Plans of other programs are refused once, before anything is run."""
    runs = os.path.join(folder, "assumed")
    for more in (["assume.attention=unfused"], []):
        if not more:
            with open(os.path.join(folder, "assumed.yaml"), "w", encoding="utf-8") as file:
                file.write("base: tiny.yaml\naxes:\n  assume.attention: [own, unfused]\n")
        name = "sweep.yaml" if more else "assumed.yaml"
        done = run(folder, "sweep", name, "--run", "2", "--run-dir", runs, *more)
        expect("a sweep with assumptions is not run", done.returncode == 2 and not os.path.exists(runs) and
               done.stderr.count("\n") == 1 and "assume.attention=unfused" in done.stderr and
               "is for plans only" in done.stderr and "without --run" in done.stderr, done)


def test_endless_output(folder):
    """A run that never stops writing is ended, and its log is short."""
    bad = script(folder, "bad.sh", "exec yes garbage\n")
    done = run(folder, "sweep", "sweep.yaml", "--run", "1", "--launch", bad, "--run-dir", "bad")
    logs = os.path.join(folder, "bad", "logs")
    sizes = [os.path.getsize(os.path.join(logs, name)) for name in os.listdir(logs)]
    expect(f"its log is short: {sizes}", len(sizes) == 1 and sizes[0] < 2 << 20, done)
    expect("it has failed, with the reason", re.search(r"^ +1 failed ", done.stdout, re.M) and
           "its output exceeds 64 MiB" in done.stdout and done.returncode == 1, done)
    expect("no process is left", none_left(folder), done)


def test_page(folder):
    """--run without a number runs all; the page has what was measured next to what was predicted."""
    with open(os.path.join(folder, "sweep.yaml"), "w", encoding="utf-8") as file:
        file.write("base: tiny.yaml\naxes:\n  tp: [1, 2]\n  pp: [1, 2]\n")
    done = run(folder, "sweep", "--run", "sweep.yaml", "--steps", "3", "--html", "page.html", "pipeline.schedule=gpipe")
    entries = journal(folder)
    with open(os.path.join(folder, "page.html"), encoding="utf-8") as file:
        runs = [run for run in data_of(file.read())["layouts"] if run["run"] == "done"]
    measured = [float(entry[1]) for entry in entries if entry[0] == "done"]
    expect("all four are on the page", sorted(run["measured_s"] for run in runs) == sorted(measured) and len(runs) == 4,
           done)
    page = rendered(os.path.join(folder, "page.html"))
    expect("with a plot and the median error", page is None or page.texts.count("measured step, s") == 1 and
           any(text.startswith("4 runs: median error") for text in page.texts), done)
    one = run(folder, "sweep", "sweep.yaml", "--run", "1", "--steps", "3", "--html", "page.html",
              "pipeline.schedule=gpipe")
    expect("a number, and what was measured before", one.stdout.count(" done ") == 1 and journal(folder) == entries,
           one)
    bad = run(folder, "sweep", "sweep.yaml", "--run=x")
    expect("no number", bad.returncode == 2 and "--run x is invalid; use an integer from 0" in bad.stderr, bad)


def test_mpirun(folder):
    with open(os.path.join(folder, "sweep.yaml"), "w", encoding="utf-8") as file:
        file.write("base: tiny.yaml\naxes:\n  tp: [1, 2]\n  pp: [1, 2]\n")
    launch = " ".join(MPIRUN) + " -n {ranks}"
    kill_and_resume(folder, 2, ["sweep.yaml", "--run", "0", "--steps", "3", "--launch", launch], 4)


def case(test):
    with tempfile.TemporaryDirectory() as folder:
        for name, text in (("tiny.yaml", RECIPE), ("cpu.yaml", PROFILE), ("sweep.yaml", SWEEP)):
            with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                file.write(text.replace("./cpu.yaml", os.path.join(folder, "cpu.yaml")))
        test(folder)


def test_long(folder):
    with open(os.path.join(folder, "sweep.yaml"), "w", encoding="utf-8") as file:
        file.write(SWEEP.replace("[1f1b, gpipe]", "[1f1b, gpipe, zb-h1, zb-h2, auto]"))
    launch = " ".join(MPIRUN) + " -n {ranks}"
    for name, more in (("threads", []), ("mpirun", ["--launch", launch]))[:2 if MPIRUN else 1]:
        arguments = ["sweep.yaml", "--run", "--steps", "4", "--run-dir", name, *more]
        began, before = time.monotonic(), len(failures)
        kill_and_resume(folder, 5, arguments, 40, name, longest=20.0)
        print(f"soak: {name}: 40 runs, 5 kills, {len(failures) - before} failures, {time.monotonic() - began:.0f} s")


if LONG:
    case(test_long)
else:
    case(test_threads)
    case(test_bad_runs)
    case(test_assumptions)
    case(test_endless_output)
    case(test_page)
if MPIRUN and not LONG:
    case(test_mpirun)
print("\n".join(failures) if failures else "all as expected")
sys.exit(1 if failures else 0)
