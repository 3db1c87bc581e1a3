#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Predicted against measured steps and memory of layouts on this machine's CPU.

    bench_plan.py CUBOID [--profile FILE] [--layouts 60] [--sweeps 5] [--advice 10] [--rounds 3]
                         [--steps 8] [--first 0]
    bench_plan.py CUBOID --profile FILE --save MEASURED    also appends each run to the file MEASURED
    bench_plan.py CUBOID --profile FILE --replay MEASURED  predicts the runs in MEASURED, and trains nothing

Measures a profile with `cuboid doctor --profile` unless one is given, then trains each layout for a few steps, as
threads or under mpirun, on at most 8 ranks. A reference, one rank of the same model, runs before and after each
layout: load on a shared machine then affects both. An error is (predicted / measured) / (that of the reference) - 1;
`alone` is predicted / measured - 1. Memory is what the process of rank 0 had resident, against what is planned for
its ranks: `over` is beyond 3 % more than that, without the program itself. A sweep trains layouts of equally many
ranks, all of them in each round, and compares the shortest of each layout's medians: how much longer the layout
predicted best takes than the one measured best. Advice is the first piece of advice of a plan, applied: both layouts
are trained in each round, and the change of the step is compared with the predicted one. Layout, sweep and advice N
are functions of N; --first is the first N of each."""
import argparse
import array
import collections
import itertools
import json
import math
import os
import random
import re
import statistics
import struct
import subprocess
import sys
import tempfile

MODEL = ["model.num_layers=4", "model.hidden_size=256", "model.num_attention_heads=8", "model.seq_length=256",
         "model.vocab_size=4096", "tokenizer.tokenizer_type=none", "train.global_batch_size=8",
         "train.eval_interval=0", "optimizer.lr=1e-3", "optimizer.lr_warmup_iters=1", "checkpoint.save_interval=0",
         "checkpoint.save=none"]
LLAMA = ["model.normalization=RMSNorm", "model.activation=swiglu", "model.add_bias_linear=false",
         "model.position_embedding_type=rope", "model.tie_word_embeddings=false", "model.num_query_groups=4",
         "model.ffn_hidden_size=768"]
GLOBAL_BATCH, MAX_RANKS, SWEEP_LAYOUTS = 8, 8, 6
UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def degrees(draw, ranks):
    """tp, pp, dp and a micro-batch size that are possible; ranks: their product, None: up to MAX_RANKS."""
    while True:
        tp, pp, dp = draw.choice([1, 1, 2, 4]), draw.choice([1, 1, 2, 4]), draw.choice([1, 2, 4])
        micro = draw.choice([1, 2, 4])
        if tp * pp * dp <= MAX_RANKS and GLOBAL_BATCH % (micro * dp) == 0 and ranks in (None, tp * pp * dp):
            return tp, pp, dp, micro


def layout(number, ranks=None, draw=None):
    """Overrides of layout `number`, its ranks, and whether they are processes."""
    draw = draw or random.Random(number)
    tp, pp, dp, micro = degrees(draw, ranks)
    out = [f"tp={tp}", f"pp={pp}", f"dp={dp}", f"train.micro_batch_size={micro}"]
    if tp > 1:
        out.append(f"parallel.sequence_parallel={draw.choice(['true', 'false'])}")
    if dp > 1:
        out.append(f"parallel.zero_stage={draw.choice([0, 1, 2, 3])}")
        out.append(f"parallel.overlap_grad_reduce={draw.choice(['true', 'false'])}")
    if pp > 1:
        out.append("pipeline.schedule=" + draw.choice(["gpipe", "1f1b", "zb-h1"]))
    out.append(f"memory.recompute_granularity={draw.choice(['none', 'none', 'selective', 'full'])}")
    family, processes = draw.random() < 0.5, draw.random() < 0.5
    return out + (LLAMA if family else []), tp * pp * dp, tp * pp * dp > 1 and processes


def sweep_layouts(number):
    """The distinct layouts of a sweep, with one family, number of ranks and kind of ranks."""
    draw = random.Random(f"sweep {number}")
    ranks, llama, processes = draw.choice([2, 4, 4, 8]), draw.random() < 0.5, draw.random() < 0.5
    out = []
    while len(out) < SWEEP_LAYOUTS:
        words = [word for word in layout(0, ranks, draw)[0] if word not in LLAMA] + (LLAMA if llama else [])
        if words not in out:
            out.append(words)
    return out, ranks, processes


def environment():
    remove = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")
    more_ranks_than_cores = {"OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_mpi_yield_when_idle": "1"}
    return {**more_ranks_than_cores, **{key: value for key, value in os.environ.items() if key not in remove}}


def size_of(number, unit):
    return float(number) * UNITS[unit]


def planned_of(output, ranks, processes):
    """Planned bytes of the process of rank 0, from the table of memory by rank: rank, pipeline rank, parts, total."""
    rows = re.findall(r"^ *\d+ +\d+(?: +[0-9.]+ [KMG]?i?B)+ +([0-9.]+) ([KMG]?i?B)$", output, re.M)
    planned = [size_of(*row) for row in rows]
    return planned[0] if processes else sum(planned) * ranks / len(planned)


Plan = collections.namedtuple("Plan", "step_s planned advice")  # seconds; bytes of the process of rank 0


class Bench:
    """What is measured: by training, or before, in the file `replay`."""

    def __init__(self, arguments, folder):
        self.arguments, self.folder, self.plans, self.stored = arguments, folder, {}, []
        if arguments.replay:
            with open(arguments.replay) as lines:
                self.stored = [json.loads(line) for line in lines]

    def command(self, name, words, *more):
        return [self.arguments.cuboid, name, os.path.join(self.folder, "recipe.yaml"), *MODEL, *words,
                f"data.train={self.folder}/ids", f"train.train_iters={self.arguments.steps}", *more,
                f"cluster.profile={self.arguments.profile}"]

    def plan(self, words, ranks, processes):
        key = (*words, processes)
        if key not in self.plans:
            command = self.command("plan", words, *(["cluster.transport=mpi"] if processes else []))
            outputs = [subprocess.run(command + more, capture_output=True, text=True, env=environment(), check=True)
                       for more in ([], ["--json"])]
            plan = json.loads(outputs[1].stdout)
            self.plans[key] = Plan(plan["step_time_s"], planned_of(outputs[0].stdout, ranks, processes),
                                   plan["advice"])
        return self.plans[key]

    def train(self, words, ranks, processes):
        """A run: seconds of a step, and bytes that the process of rank 0 had resident."""
        run = os.path.join(self.folder, "run")
        subprocess.run(["rm", "-rf", run], check=True)
        launch = ["mpirun", "--bind-to", "none", "-n", str(ranks)] if processes else []
        command = self.command("train", words, f"logging.run_dir={run}")
        done = subprocess.run(launch + command, capture_output=True, text=True, env=environment(), timeout=300,
                              check=False)
        if done.returncode != 0:
            return {"error": f"{' '.join(words)}: {done.stderr.strip()[:300]}"}
        with open(os.path.join(run, "metrics.jsonl")) as lines:
            steps = [json.loads(line)["step_time_s"] for line in lines]
        resident = re.search(r"^peak memory: .*, ([0-9.]+) ([KMG]?i?B) resident", done.stdout, re.M)
        return {"seconds": statistics.median(steps[2:]), "resident": size_of(*resident.groups())}

    def measure(self, words, ranks, processes):
        """The same; also from the file, in which runs are in the order of their measurement."""
        if self.arguments.replay:
            at = next((at for at, run in enumerate(self.stored)
                       if (run["words"], run["processes"]) == (words, processes)), None)
            return {"error": f"{' '.join(words)}: not in the file"} if at is None else self.stored.pop(at)
        run = self.train(words, ranks, processes)
        if self.arguments.save:
            with open(self.arguments.save, "a") as out:
                out.write(json.dumps({"words": words, "processes": processes, **run}) + "\n")
        return run


def write_data(folder):
    draw = random.Random(1)
    documents, length = 100, 2000
    with open(folder + "/ids.bin", "wb") as out:
        out.write(array.array("H", (draw.randrange(4096) for _ in range(documents * length))).tobytes())
    with open(folder + "/ids.idx", "wb") as out:
        out.write(b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 8, documents, documents + 1))
        out.write(struct.pack(f"<{documents}i", *[length] * documents))
        out.write(struct.pack(f"<{documents}q", *range(0, 2 * documents * length, 2 * length)))
        out.write(struct.pack(f"<{documents + 1}q", *range(documents + 1)))
    with open(folder + "/recipe.yaml", "w") as out:
        out.write("name: bench\n")


class Row:
    """A layout and its references: seconds predicted and measured, and errors. plan, reference: from Bench.plan()."""

    def __init__(self, words, ranks, processes, plan, run, reference, around):
        self.words, self.ranks, self.processes = words, ranks, processes
        self.predicted, self.planned, self.measured, self.resident = *plan[:2], run["seconds"], run["resident"]
        self.alone = self.predicted / self.measured - 1
        self.reference = reference.step_s / statistics.mean(one["seconds"] for one in around) - 1
        self.error = (1 + self.alone) / (1 + self.reference) - 1
        self.over = self.resident - 1.03 * self.planned

    def __str__(self):
        words = " ".join(word.split(".")[-1] for word in self.words if word not in LLAMA)
        return (f"{'mpirun ' if self.processes else 'threads'} {self.ranks} ranks  predicted "
                f"{1e3 * self.predicted:7.1f} ms  measured {1e3 * self.measured:7.1f} ms  error "
                f"{100 * self.error:+6.1f} %  alone {100 * self.alone:+6.1f} %  reference "
                f"{100 * self.reference:+6.1f} %  memory {self.planned / 2**20:6.0f} MiB over "
                f"{self.over / 2**20:+5.0f} MiB  {words}{' llama' if self.words[-1] in LLAMA else ''}")


def measure(bench, name, words, ranks, processes):
    """A row of the result, or None after printing the error."""
    family = [word for word in words if word in LLAMA] + ["train.micro_batch_size=4"]
    before = bench.measure(family, 1, False)
    run = bench.measure(words, ranks, processes)
    around = [before, bench.measure(family, 1, False)]
    bad = [entry["error"] for entry in (run, *around) if "error" in entry]
    row = None if bad else Row(words, ranks, processes, bench.plan(words, ranks, processes), run,
                               bench.plan(family, 1, False), around)
    print(f"{name:>4s}  {row or 'FAILED ' + bad[0]}", flush=True)
    return row


def shortest_of(bench, name, layouts, ranks, processes):
    """The shortest step of each layout, all of which run in each round; infinity if one fails."""
    shortest = [math.inf] * len(layouts)
    for _ in range(bench.arguments.rounds):
        for at, words in enumerate(layouts):
            run = bench.measure(words, ranks, processes)
            if "error" in run:
                print(f"{name:>4s}  FAILED {run['error']}", flush=True)
            else:
                shortest[at] = min(shortest[at], run["seconds"])
    return shortest


def measure_sweep(bench, number):
    """The excess of the measured time of the layout predicted best over the shortest one, as a share of it."""
    layouts, ranks, processes = sweep_layouts(number)
    predicted = [bench.plan(words, ranks, processes).step_s for words in layouts]
    shortest = shortest_of(bench, f"s{number}", layouts, ranks, processes)
    for at in sorted(range(len(layouts)), key=lambda at: shortest[at]):
        words = " ".join(word.split(".")[-1] for word in layouts[at] if word not in LLAMA)
        print(f"  s{number}  {'mpirun ' if processes else 'threads'} {ranks} ranks  predicted "
              f"{1e3 * predicted[at]:7.1f} ms  shortest {1e3 * shortest[at]:7.1f} ms  {words}", flush=True)
    chosen = min(range(len(layouts)), key=lambda at: predicted[at])
    return shortest[chosen] / min(shortest) - 1 if min(shortest) < math.inf else None


def advised_layout(bench, number):
    """A layout whose plan has advice, its first piece, and what the rest of layout() returns."""
    for attempt in itertools.count():
        words, ranks, processes = layout(f"advice {number}.{attempt}")
        advice = bench.plan(words, ranks, processes).advice
        if advice:
            return words, advice[0]["change"], ranks, processes


def applied(words, change):
    keys = dict(word.split("=", 1) for word in [*words, *change.split()])
    return [f"{key}={value}" for key, value in keys.items()]


def measure_advice(bench, number):
    """Whether the first piece of advice of a plan, which makes its step shorter, makes the measured step shorter."""
    words, change, ranks, processes = advised_layout(bench, number)
    layouts = [words, applied(words, change)]
    before, after = shortest_of(bench, f"a{number}", layouts, ranks, processes)
    predicted = [bench.plan(one, ranks, processes).step_s for one in layouts]
    changes = [f"{100 * (pair[1] / pair[0] - 1):+6.1f} %" for pair in (predicted, (before, after))]
    was = " ".join(word.split(".")[-1] for word in words if word not in LLAMA)
    print(f"  a{number}  {'mpirun ' if processes else 'threads'} {ranks} ranks  predicted {changes[0]}  measured "
          f"{changes[1]}  {change}, from {was}", flush=True)
    return after < before


def summary(name, errors):
    if errors:
        ordered = sorted(abs(error) for error in errors)
        print(f"{name:24s} {len(ordered):3d} layouts  median {100 * statistics.median(ordered):5.1f} %  "
              f"90th percentile {100 * ordered[min(len(ordered) - 1, int(0.9 * len(ordered)))]:5.1f} %")


def summarize(rows):
    summary("error", [row.error for row in rows])
    summary("alone", [row.alone for row in rows])
    summary("threads", [row.error for row in rows if not row.processes])
    summary("processes", [row.error for row in rows if row.processes])
    summary("more ranks than cores", [row.error for row in rows if row.ranks > os.cpu_count()])
    if rows:
        print(f"memory: {max(row.over for row in rows) / 2**20:.0f} MiB beyond 1.03 x planned at most, "
              f"{min(row.over for row in rows) / 2**20:.0f} MiB at least")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cuboid")
    parser.add_argument("--profile")
    parser.add_argument("--layouts", type=int, default=60)
    parser.add_argument("--sweeps", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--advice", type=int, default=10)
    parser.add_argument("--save")
    parser.add_argument("--replay")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_data(folder)
        if arguments.profile is None:
            arguments.profile = os.path.join(folder, "profile.yaml")
            subprocess.run([arguments.cuboid, "doctor", "--profile", arguments.profile], check=True, env=environment(),
                           stdout=subprocess.DEVNULL)
        numbers, sweeps, pieces = (range(arguments.first, arguments.first + count)
                                   for count in (arguments.layouts, arguments.sweeps, arguments.advice))
        bench = Bench(arguments, folder)
        rows = [measure(bench, str(number), *layout(number)) for number in numbers]
        longer = [(number, measure_sweep(bench, number)) for number in sweeps]
        right = [measure_advice(bench, number) for number in pieces]
    summarize([row for row in rows if row])
    print("".join(f"sweep {number}: {100 * one:.1f} % longer than the best\n"
                  for number, one in longer if one is not None), end="")
    if right:
        print(f"advice: {right.count(True)} of {len(right)} changed the step in the predicted direction")


if __name__ == "__main__":
    sys.exit(main())
