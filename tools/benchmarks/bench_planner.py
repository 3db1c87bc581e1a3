#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Time and memory of plans and sweeps, next to their limits.

    bench_planner.py CUBOID [--all]

--all: also plans every layout of the first sweep, which takes minutes, and compares the ten best. Seconds are elapsed
and processor time; all of this runs on one core. Exit status 1 if a limit is exceeded."""
import argparse
import os
import re
import subprocess
import sys
import tempfile
import time

RECIPES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "recipes")
GPT3 = ["model.num_layers=96", "model.hidden_size=12288", "model.num_attention_heads=96",
        "model.ffn_hidden_size=49152", "train.global_batch_size=1536"]
GPT_1T = ["model.num_layers=128", "model.hidden_size=25600", "model.num_attention_heads=160",
          "model.ffn_hidden_size=102400", "train.global_batch_size=3072"]
SWEEP = """base: {base}
axes:
  tp: [{tp}]
  pp: [{pp}]
  pipeline.virtual_stages: [1, 2, 4]
  pipeline.schedule: [1f1b, interleaved, zb-h1]
  train.micro_batch_size: [1, 2, 4]
  memory.recompute_granularity: [none, selective, full]
  parallel.zero_stage: [0, 1]
"""
TOP = re.compile(r"^ +\d+ .*$", re.M)


class Measured:
    """A finished command: its output, elapsed and processor time in seconds, peak resident bytes."""

    def __init__(self, *command):
        began = time.monotonic()
        with tempfile.TemporaryFile("w+") as output:
            with subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=RECIPES) as process:
                _, status, usage = os.wait4(process.pid, 0)
                process.returncode = os.waitstatus_to_exitcode(status)
            self.elapsed_s = time.monotonic() - began
            output.seek(0)
            self.output = output.read()
        self.processor_s, self.bytes = usage.ru_utime + usage.ru_stime, 1024 * usage.ru_maxrss
        if process.returncode not in (0, 1):  # 1: does not fit
            sys.exit(f"{' '.join(command)}: {self.output}")


def report(name, measured, limit_s, more=""):
    """Prints a line; whether it is within its limit."""
    print(f"{name:44s} {measured.elapsed_s:8.3f} s  processor {measured.processor_s:8.3f} s  "
          f"{measured.bytes / 2**20:6.1f} MiB  limit {limit_s:g} s{more}", flush=True)
    return measured.processor_s <= limit_s


def best_of(*command):
    return min((Measured(*command) for _ in range(5)), key=lambda one: one.processor_s)


def sweep(cuboid, folder, name, tp, pp, nodes, model, *more):
    path = os.path.join(folder, name + ".yaml")
    with open(path, "w", encoding="utf-8") as file:
        file.write(SWEEP.format(base=os.path.join(RECIPES, "base", "gpt3-1.3b.yaml"), tp=tp, pp=pp))
    return Measured(cuboid, "sweep", path, *model, "cluster.profile=selene", f"cluster.nodes={nodes}",
                    "cluster.gpus_per_node=8", "parallel.data_parallel_size=auto", "precision.params_dtype=bf16", *more)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cuboid")
    parser.add_argument("--all", action="store_true")
    arguments = parser.parse_args()
    cuboid = os.path.abspath(arguments.cuboid)
    good = report("plan: quickstart", best_of(cuboid, "plan", "quickstart.yaml", "cluster.profile=dgx-a100-80"), 0.05)
    llama = best_of(cuboid, "plan", "papers/llama3.yaml", "tp=8", "pp=16", "dp=128", "pipeline.schedule=1f1b",
                    "pipeline.layout=[7,8,8,8,8,8,8,8,8,8,8,8,8,8,8,7]")
    good = report("plan: Llama 3 405B, 16,384 GPUs", llama, 1.0, ", 100 MB") and llama.bytes <= 100e6 and good
    with tempfile.TemporaryDirectory() as folder:
        gpt3 = ("1, 2, 4, 8", "1, 2, 4, 8, 16, 32", 128, GPT3)
        found = sweep(cuboid, folder, "gpt3", *gpt3)
        layouts = int(re.search(r": (\d+) layouts", found.output).group(1))
        good = report(f"sweep: GPT-3 175B, 1,024 GPUs, {layouts} layouts", found, layouts / 1000,
                      f", {layouts / found.processor_s:.0f} layouts/s") and good
        trillion = sweep(cuboid, folder, "1t", "1, 2, 4, 8", "8, 16, 32, 64, 128", 384, GPT_1T)
        good = report("sweep: 1T, 3,072 GPUs", trillion, 10.0) and good
        if arguments.all:
            every = sweep(cuboid, folder, "every", *gpt3, "--all")
            same = TOP.findall(every.output)[:10] == TOP.findall(found.output)[:10]
            print(f"all layouts planned in {every.processor_s:.0f} s: the ten best are "
                  f"{'the same' if same else 'OTHERS'}")
            good = same and good
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
