#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Hang reports of cuboid train under mpirun: the rank that is stopped, loops, reads forever or is gone is named, with
exactly those that wait; every process exits within the timeout plus a few seconds; a slow rank ends no run.

    test_hangs.py CUBOID-FAULTY MPIRUN [--runs N] [--first N]

Without --runs: a short form. Run n is a function of n alone. Prints a line for each run; exit status 1 if one failed.
With the variable CUBOID_DEVICE=cuda, CUBOID-FAULTY is a build with emulated GPUs."""
import argparse
import glob
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

RECIPE = """\
model: {num_layers: 8, hidden_size: 32, num_attention_heads: 4, seq_length: 32}
train: {global_batch_size: 16, micro_batch_size: 1, train_iters: 1000000}
optimizer: {lr: 1e-3}
data: {train: text, split: "1"}
checkpoint: {save: none, load: none}
logging: {log_interval: 1000000}
"""
# The layouts have 8 ranks (short form: 4), and cover the schedules.
LAYOUTS = {4: ["pp=2 tp=2 dp=1", "pp=4 tp=1 dp=1 pipeline.schedule=zb-h1", "pp=2 tp=1 dp=2 pipeline.schedule=gpipe"],
           8: ["pp=2 tp=2 dp=2", "pp=4 tp=2 dp=1 pipeline.schedule=zb-h1", "pp=4 tp=1 dp=2 pipeline.schedule=gpipe",
               "pp=2 tp=2 dp=2 pipeline.schedule=interleaved pipeline.virtual_stages=2",
               "pp=4 tp=1 dp=2 pipeline.schedule=zb-v", "pp=1 tp=4 dp=2 parallel.zero_stage=1", "pp=1 tp=2 dp=4"]}
# node: all processes of one of two nodes; nodes: one process, with two nodes; short: the timeout is shorter than an
# action.
KINDS = ["stop", "loop", "read", "kill", "first", "slow", "node", "nodes", "count", "short"]
# After the first run of each kind: of 41 runs, in the same order each time.
OFTEN = [*["slow"] * 20, *["stop"] * 5, *[kind for kind in KINDS if kind not in ("slow", "stop")] * 2]
random.Random(1).shuffle(OFTEN)
INJECTED = {"loop": "loop", "read": "read", "slow": "slow", "count": "count", "short": "doze"}
IS_REPORT = re.compile(r"stalled in|was in")
TIMEOUT_S, SHORT_S, MARGIN_S = 4.0, 0.5, 6.0  # the margin includes the start and end of processes on a busy machine


def kind_of(number):
    """The disturbance of a run."""
    return KINDS[number] if number < len(KINDS) else OFTEN[(number - len(KINDS)) % len(OFTEN)]


def processes(folder, rank="OMPI_COMM_WORLD_RANK"):
    """rank -> process id, of the run in this folder; rank: the launcher's variable."""
    found = {}
    for path in glob.glob("/proc/[0-9]*/environ"):
        pid = int(path.split("/")[2])
        try:
            with open(path, "rb") as file:
                environment = dict(entry.partition(b"=")[::2] for entry in file.read().split(b"\0"))
            with open(f"/proc/{pid}/comm", encoding="ascii") as file:
                name = file.read()
        except OSError:
            continue
        if environment.get(b"HANGS_FOLDER") == folder.encode() and name.startswith("cuboid") and \
                rank.encode() in environment:
            found[int(environment[rank.encode()])] = pid
    return found


def write_inputs(cuboid):
    """The recipe and the data, in the current folder."""
    with open("a.yaml", "w", encoding="ascii") as file:
        file.write(RECIPE)
    with open("text.txt", "w", encoding="ascii") as file:
        file.write("The ocean is wide, and so is the sky. " * 100)
    subprocess.run([cuboid, "data", "prepare", "text.txt", "-o", "text"], stdout=subprocess.DEVNULL, check=True)


def steps_done(folder):
    try:
        with open(os.path.join(folder, "run", "metrics.jsonl"), encoding="ascii") as file:
            return sum(1 for _ in file)
    except OSError:
        return 0


def ranks_in(text):
    """ "ranks 0-2, 5" -> {0, 1, 2, 5}"""
    found = set()
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", text):
        found |= set(range(int(first), int(last or first) + 1))
    return found


def explain(line, ranks):
    """The culprit, and the ranks that are said to wait."""
    named = re.search(r"rank (\d+) \(pp \d+ dp \d+ tp \d+, node \S+\) (?:stalled in|was in) (\S+)", line)
    if not named:
        return None, set()
    waiting = set()
    for part in line.split("; ")[1:]:
        match = re.match(r"ranks? ([\d, -]+?) waits? for", part)
        waiting |= ranks_in(match.group(1)) if match else set()
    return int(named.group(1)), waiting & set(range(ranks))


def ended_with_1(status, text):
    """Open MPI 4.1's mpirun itself may crash at its end if a process ended while MPI connected it."""
    return status in (1, -signal.SIGPIPE, 128 + signal.SIGPIPE) or \
        (status in (-signal.SIGSEGV, 128 + signal.SIGSEGV) and "PMIx_server_finalize" in text)


class Run:
    """One run: starts it, disturbs it, and checks what it reports."""

    def __init__(self, options, number, folder):
        rng = random.Random(number)
        self.options, self.number, self.folder = options, number, folder
        self.kind = kind_of(number)
        self.ranks = options.ranks
        # A slow rank delays its transfers: with data ranks, so that some wait for longer than the timeout.
        layouts = [layout for layout in LAYOUTS[self.ranks] if self.kind != "slow" or "tp=1 dp=2" in layout]
        self.layout = rng.choice(layouts)
        self.victim = 0 if self.kind == "first" else rng.randrange(self.ranks)
        self.step = rng.randint(2, 6)
        self.delay = rng.random() * 0.3
        self.nodes = 2 if self.kind in ("node", "nodes") else 1
        # Ranks are assigned to nodes in order.
        share = self.ranks // self.nodes
        begin = self.victim // share * share
        self.stopped = list(range(begin, begin + share)) if self.kind == "node" else [self.victim]

    def start(self):
        environment = dict(os.environ, HANGS_FOLDER=self.folder, OMPI_MCA_orte_tmpdir_base=self.folder)
        if self.kind in INJECTED:
            environment |= {"INJECT": INJECTED[self.kind], "INJECT_RANK": str(self.victim),
                            "INJECT_STEP": str(self.step)}
        timeout_s = SHORT_S if self.kind == "short" else TIMEOUT_S
        program = [self.options.cuboid, "train", "a.yaml", f"logging.run_dir={self.folder}/run",
                   f"resilience.heartbeat_timeout_seconds={timeout_s}", *self.layout.split()]
        if self.kind == "slow":
            program.append("train.train_iters=8")
        if os.environ.get("CUBOID_DEVICE"):
            program += ["cluster.device=" + os.environ["CUBOID_DEVICE"]]
        words = [self.options.mpirun]
        for node in range(self.nodes):
            words += [*([":"] if node > 0 else []), "-n", str(self.ranks // self.nodes), "-x",
                      f"CUBOID_NODE={'xyz'[node]}", *program]
        return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)

    def disturb(self, run):
        """Returns the time from which the timeout counts."""
        complete = self.step - (self.kind in ("loop", "read", "count"))  # an injected fault occurs in step `step`
        while steps_done(self.folder) < complete and run.poll() is None:
            time.sleep(0.02)
        time.sleep(self.delay + (2 if self.nodes > 1 else 0))  # until the nodes are connected
        found = processes(self.folder)
        for rank in self.stopped if self.kind in ("stop", "first", "node", "nodes") else []:
            if rank in found:
                os.kill(found[rank], signal.SIGSTOP)
        if self.kind == "kill" and self.victim in found:
            os.kill(found[self.victim], signal.SIGKILL)
        return time.monotonic()

    def check(self):
        """A line about this run, and whether it is as expected."""
        lines, reported = [], []  # the lines; when those that are reports were printed

        def read(run):
            for one in run.stdout:
                lines.append(one)
                if IS_REPORT.search(one):
                    reported.append(time.monotonic())

        with self.start() as run:
            reader = threading.Thread(target=read, args=(run,))
            reader.start()
            begin = self.disturb(run) if self.kind not in ("slow", "short") else time.monotonic()
            run.wait()
            reader.join()
        took, text = time.monotonic() - begin, "".join(lines)
        left = processes(self.folder)
        for _ in range(20):  # mpirun does not wait for the processes that it ends
            if left:
                time.sleep(0.1)
                left = processes(self.folder)
        for pid in left.values():
            os.kill(pid, signal.SIGKILL)
        reports = [line for line in lines if IS_REPORT.search(line)]
        line = f"{self.kind} {self.layout}: rank {self.victim}, {took:.1f} s, status {run.returncode}"
        if reported:
            line += f", reported after {reported[0] - begin:.2f} s"
        if self.kind == "slow":
            good = run.returncode == 0 and not reports
        elif self.kind == "short":
            good = ended_with_1(run.returncode, text) and len(reports) == 1 and not left and \
                f"is only slow, set resilience.heartbeat_timeout_seconds above {SHORT_S}" in reports[0]
        elif self.kind == "count":  # the transport compares the sizes itself
            good = run.returncode != 0 and ("out of sync" in text or "MPI_ERR_TRUNCATE" in text) and not left
        else:
            culprit, waiting = explain(reports[0], self.ranks) if len(reports) == 1 else (None, set())
            others = set(range(self.ranks)) - set(self.stopped)
            killed = self.kind == "kill"
            # The launcher ends the other processes; those of another node may not know of the report.
            good = culprit in self.stopped and (killed or waiting == others) and not left and \
                (killed or (ended_with_1(run.returncode, text) and self.dump_agrees(culprit) and
                            (self.nodes > 1 or "finished and saved" not in text))) and \
                took < (2.0 if killed else TIMEOUT_S) + MARGIN_S
        return f"run {self.number} {'ok' if good else 'FAILED'} {line}", good, text + f"left: {left}\n"

    def dump_agrees(self, culprit):
        files = glob.glob(os.path.join(self.folder, "run", "hang-*.json"))
        if len(files) != 1:
            return False
        with open(files[0], encoding="utf-8") as file:
            ranks = [entry["rank"] for entry in json.load(file)["ranks"]]
        done = subprocess.run([self.options.cuboid, "hang", files[0], "--messages", "3"], stdout=subprocess.PIPE,
                              text=True, check=False)
        return ranks == list(range(self.ranks)) and done.returncode == 0 and \
            re.search(rf"(?m)^{culprit} .*others wait for it$", done.stdout) is not None


# The first process starts late.
LATE = """#!/bin/sh
[ $OMPI_COMM_WORLD_RANK != 0 ] || exec sleep 60
exec "$@"
"""


def check_early(options, folder):
    """A rank is stopped while MPI connects the processes; all but the first are there."""
    with open("late", "w", encoding="ascii") as file:
        file.write(LATE)
    os.chmod("late", 0o755)
    run = subprocess.Popen([options.mpirun, "-n", "4", "./late", options.cuboid, "train", "a.yaml", "pp=2", "tp=2",
                            f"logging.run_dir={folder}/run", "resilience.heartbeat_timeout_seconds=1"],
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                           env={**os.environ, "HANGS_FOLDER": folder, "OMPI_MCA_orte_tmpdir_base": folder})
    found = {}
    while run.poll() is None and not (len(found) == 3 and all(  # besides MPI's: its own, for signals, the monitor
            len(os.listdir(f"/proc/{pid}/task")) > 3 for pid in found.values())):
        time.sleep(0.02)
        found = processes(folder)
    os.kill(found[2], signal.SIGSTOP)
    text = run.communicate(timeout=60)[0]
    report = r"(?m)^rank 2 \(pp 1 dp 0 tp 0, node \S+\) stalled in connect for \d\.\d s: its process is stopped"
    good = ended_with_1(run.returncode, text) and not processes(folder) and re.search(report, text) is not None
    print(f"a rank is stopped while they connect: {'ok' if good else 'FAILED: ' + text}", flush=True)
    return good


# One process reads its recipe from a pipe that nothing writes, so it starts no monitor and connects to none.
PIPE = """#!/bin/sh
[ $OMPI_COMM_WORLD_RANK != 2 ] || exec "$1" train /dev/fd/9 9<>pipe
exec "$@"
"""


def check_missing(options, folder, nodes):
    """A process is stopped before it has read its recipe; the others wait for it, on its node or another one."""
    os.mkfifo("pipe")
    with open("blocked", "w", encoding="ascii") as file:
        file.write(PIPE)
    os.chmod("blocked", 0o755)
    words = [options.mpirun]
    for node in range(nodes):
        words += [*([":"] if node else []), "-n", str(4 // nodes), "-x", f"CUBOID_NODE={'xy'[node]}", "./blocked",
                  options.cuboid, "train", "a.yaml", "pp=2", "tp=2", f"logging.run_dir={folder}/run",
                  "resilience.heartbeat_timeout_seconds=1"]
    run = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                           env={**os.environ, "HANGS_FOLDER": folder, "INJECT_HASTE": "1",
                                "OMPI_MCA_orte_tmpdir_base": folder})
    found = {}
    while run.poll() is None and len(found) < 4:
        time.sleep(0.02)
        found = processes(folder)
    os.kill(found[2], signal.SIGSTOP)
    begin = time.monotonic()
    try:
        text = run.communicate(timeout=30)[0]
    except subprocess.TimeoutExpired:
        run.kill()
        text = "not reported: " + run.communicate()[0]
    took = time.monotonic() - begin
    left = processes(folder)
    for pid in left.values():
        os.kill(pid, signal.SIGKILL)
    os.remove("pipe")
    # The ranks of a node know only each other until all have connected.
    ranks = "1 of 4 processes has not connected to node x after \\d+ s: rank 2" if nodes == 1 else \
        "(2 of 4 processes have not connected to node x after \\d+ s: ranks 2, 3|" \
        "3 of 4 processes have not connected to node y after \\d+ s: ranks 0-2)"
    report = rf"(?m)^cuboid: {ranks}; see whether they run, or are stopped \(state T of ps\); if they only start " \
        r"late, set resilience.heartbeat_timeout_seconds above \d+$"
    good = ended_with_1(run.returncode, text) and not left and len(re.findall(report, text)) == 1 and \
        text.count("not connected") == 1 and took < 1 + MARGIN_S
    print(f"a process is stopped before it connects, {nodes} nodes: " +
          ("ok" if good else f"FAILED, {took} s, status {run.returncode}, left {left}: {text}"), flush=True)
    return good


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("cuboid")
    parser.add_argument("mpirun")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--runs", type=int, default=len(KINDS))
    parser.add_argument("--ranks", type=int, default=4)
    options = parser.parse_args()
    options.cuboid = os.path.abspath(options.cuboid)
    options.mpirun = os.path.abspath(options.mpirun) if os.sep in options.mpirun else options.mpirun
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        write_inputs(options.cuboid)
        for number in range(options.first, options.first + options.runs):
            with tempfile.TemporaryDirectory(dir=folder) as own:
                line, good, text = Run(options, number, own).check()
            failures += not good
            print(line, flush=True)
            if not good:
                print(text, flush=True)
        failures += not check_early(options, folder)
        for nodes in (1, 2):
            failures += not check_missing(options, folder, nodes)
        os.chdir("/")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
