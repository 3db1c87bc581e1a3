#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Processes that are stopped while a job starts, at a random moment between their first instruction and the first
steps: before they read the recipe, while MPI or the rendezvous connects them, while they compare themselves. One is
stopped while the job ends, after the last step.

    test_early_stops.py CUBOID-FAULTY MPIRUN [--runs N] [--first N]

Without --runs: those moments that a random one rarely is, see FORCED. Each run is ended by one report that names the
stopped process, with --runs within the timeout plus two seconds, with status 1, and leaves no process. (One that is not
watched yet is named with those that have not connected, after a minute, which is two seconds here.) Run n is a function
of n alone, but for the time that the machine takes to start. With the variable CUBOID_DEVICE=cuda,
CUBOID-FAULTY is a build with emulated GPUs, and a third of the runs is started as by torchrun, without MPI. Prints a
line for each run; exit status 1 if one failed."""
import argparse
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import test_hangs  # noqa: E402

RANKS = 4
TIMEOUT_S, MARGIN_S, BUSY_S = 2.0, 2.0, 30.0  # BUSY_S: the margin without --runs, also on a machine that is busy
LAST_S = 0.8  # the latest moment after the process has been started
IS_REPORT = re.compile(r"stalled in|was in|not connected")
STALLED = re.compile(r"(?:^|: )rank (\d+) \(pp \d+ dp \d+ tp \d+, node \S+\) stalled in (\S+) for [\d.]+ s: "
                     r"its (?:process is stopped \(T\)|node is silent)(?:, like th(?:at|ose) of (ranks? [\d, -]+))?")
MISSING = re.compile(r"not connected (?:to node [xy] )?after \d+ s: (ranks? [\d, -]+);")
OPENING = re.compile(r"a process has not connected after \d+ s: \S+: another process is opening it; is it stopped")


def named_in(line):
    """The ranks that a report calls stopped or missing, and where they are."""
    stalled = STALLED.search(line)
    if stalled:
        return {int(stalled.group(1))} | test_hangs.ranks_in(stalled.group(3) or ""), stalled.group(2)
    missing = MISSING.search(line)
    return test_hangs.ranks_in(missing.group(1)) if missing else set(), "nothing"


def is_stopped(process):
    with open(f"/proc/{process}/stat", encoding="ascii") as file:
        return file.read().rpartition(")")[2].split()[0] == "T"


class EarlyRun:
    """One run: starts it, stops a process, and checks what is reported."""

    def __init__(self, options, number, folder):
        rng = random.Random(number)
        self.options, self.number, self.folder = options, number, folder
        self.launcher = rng.choice(["mpirun", "mpirun", "torchrun"] if options.device == "cuda" else ["mpirun"])
        self.shares = rng.choice([[4], [2, 2]])  # the number of ranks of each node
        self.fault = None
        self.late = rng.random() < 0.4 and self.launcher == "mpirun"  # another process never starts; mpirun ends it
        victim = rng.randrange(RANKS)
        # All processes of a node, in some runs.
        both = len(self.shares) == 2 and rng.random() < 0.3
        self.stopped = [victim // 2 * 2, victim // 2 * 2 + 1] if both else [victim]
        self.sleeper = rng.choice([rank for rank in range(RANKS) if rank not in self.stopped]) if self.late else -1
        self.delay_s = rng.random() * LAST_S

    def force(self, name):
        """Replaces the random choices by those of a row of FORCED."""
        self.fault, self.shares, self.stopped, self.sleeper = FORCED[name]
        self.number, self.launcher, self.late, self.delay_s = name, "mpirun", self.sleeper >= 0, 0.0
        return self

    def start(self):
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "PMIX"))}
        environment |= {"HANGS_FOLDER": self.folder, "INJECT_HASTE": "1",
                        "SLEEPER": str(self.sleeper), "EMULATOR_GPUS": str(RANKS),
                        "OMPI_MCA_orte_tmpdir_base": self.folder}
        if self.fault:
            environment |= {"INJECT": self.fault, "INJECT_RANK": str(self.stopped[0])}
        layout = ["pp=2", "tp=2"] if sum(self.shares) == RANKS else ["dp=6", "train.global_batch_size=6"]
        program = ["./late", self.options.cuboid, "train", "a.yaml", *layout, f"logging.run_dir={self.folder}/r",
                   f"resilience.heartbeat_timeout_seconds={TIMEOUT_S}"]
        if self.fault == "halt_ended":
            program.append("train.train_iters=1")
        if self.options.device == "cuda":
            program += ["cluster.device=cuda", "cluster.transport=nccl", f"cluster.ranks_per_gpu={RANKS}"]
        if self.launcher == "torchrun":
            return [subprocess.Popen(program, stdout=self.output[1], stderr=self.output[1],
                                     env=environment | self.torchrun(rank)) for rank in range(RANKS)]
        words = [self.options.mpirun]
        for node, share in enumerate(self.shares):
            words += [*([":"] if node else []), "-n", str(share), "-x", f"CUBOID_NODE={'xy'[node]}", *program]
        return [subprocess.Popen(words, stdout=self.output[1], stderr=self.output[1], env=environment)]

    def torchrun(self, rank):
        share = self.shares[0]
        return {"RANK": str(rank), "WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500",
                "LOCAL_RANK": str(rank % share), "LOCAL_WORLD_SIZE": str(share), "TORCHELASTIC_RUN_ID": self.folder,
                "CUBOID_NODE": "xy"[rank // share]}

    def processes(self):
        return test_hangs.processes(self.folder, "RANK" if self.launcher == "torchrun" else "OMPI_COMM_WORLD_RANK")

    def stop(self, children):
        """Returns the time at which the processes were stopped, and whether they were."""
        found, end = {}, time.monotonic() + 60
        while not set(self.stopped) <= set(found) and time.monotonic() < end and children[0].poll() is None:
            found = self.processes()
            time.sleep(0.005)
        time.sleep(self.delay_s)
        for rank in self.stopped:
            if rank in found and self.fault is None:
                os.kill(found[rank], signal.SIGSTOP)
        while self.fault is not None and self.stopped[0] in found and not is_stopped(found[self.stopped[0]]):
            time.sleep(0.005)
        return time.monotonic()

    def check(self):
        """A line about this run, whether it is as expected, and the output."""
        lines, reports = [], []  # reports: with the time

        def read():
            with open(self.output[0], encoding="utf-8", errors="replace") as file:
                for line in file:
                    lines.append(line)
                    if IS_REPORT.search(line):
                        reports.append((time.monotonic(), line))

        self.output = os.pipe()
        reader = threading.Thread(target=read)
        children = self.start()
        os.close(self.output[1])
        reader.start()
        begin = self.stop(children)
        margin_s = MARGIN_S if self.fault is None else BUSY_S
        end = time.monotonic() + 60
        while time.monotonic() < end and any(child.poll() is None for child in children):
            time.sleep(0.02)
        took = time.monotonic() - begin
        left = self.processes()
        for _ in range(20):  # mpirun does not wait for the processes that it ends
            if left:
                time.sleep(0.1)
                left = self.processes()
        for process in [*left.values(), *[child.pid for child in children if child.poll() is None]]:
            os.kill(process, signal.SIGKILL)
        statuses = [child.wait() for child in children]
        reader.join()
        crashed = len(statuses) == 1 and test_hangs.ended_with_1(statuses[0], "".join(lines))
        named, where = named_in(reports[0][1]) if reports else (set(), "-")
        after = f"{reports[0][0] - begin:.2f} s" if reports else "never"
        is_named = named == set(self.stopped) if where != "nothing" else named >= set(self.stopped) or \
            (self.fault == "halt_in" and OPENING.search(reports[0][1]) is not None)
        good = len(reports) == 1 and is_named and not left and \
            (all(status in (1, -signal.SIGKILL) for status in statuses) and 1 in statuses or crashed) and \
            reports[0][0] - begin < TIMEOUT_S + margin_s and took < TIMEOUT_S + margin_s + test_hangs.MARGIN_S
        line = f"run {self.number} {'ok' if good else 'FAILED'} {self.launcher} {self.shares}" + \
            f"{f' rank {self.sleeper} late' if self.late else ''}: ranks {self.stopped} after {self.delay_s:.2f} s, " \
            f"reported in {where} after {after}, took {took:.1f} s, statuses {statuses}"
        return line, good, "".join(lines) + f"left: {left}\n"


# name: the fault (../lost_call.c), the ranks of each node, the process that is stopped, one that is never started.
FORCED = {
    "opening": ("halt_in", [4], [2], -1),        # the others cannot open the page of their node
    "unwatched": ("halt", [4], [2], -1),         # it has opened the page, but has no rank in it
    "alone": ("halt_entered", [3, 1], [3], -1),  # no other process of its node can report it
    "ended": ("halt_ended", [2, 2], [2], -1),    # its rank has ended, and the others wait for its process
    "leaving": ("halt_entered", [3, 3], [4], 5), # ranks 0 to 2 are ended by mpirun when rank 3 has reported
}

# A process that has not been started: one that sleeps.
LATE = """#!/bin/sh
[ "${OMPI_COMM_WORLD_RANK:-$RANK}" != "$SLEEPER" ] || exec sleep 60
exec "$@"
"""


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("cuboid")
    parser.add_argument("mpirun")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--runs", type=int, default=0)
    options = parser.parse_args()
    options.device = os.environ.get("CUBOID_DEVICE", "cpu")
    options.cuboid = os.path.abspath(options.cuboid)
    options.mpirun = os.path.abspath(options.mpirun) if os.sep in options.mpirun else options.mpirun
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        test_hangs.write_inputs(options.cuboid)
        with open("late", "w", encoding="ascii") as file:
            file.write(LATE)
        os.chmod("late", 0o755)
        for number in range(options.first, options.first + options.runs) if options.runs else FORCED:
            with tempfile.TemporaryDirectory(dir=folder) as own:
                run = EarlyRun(options, number, own)
                line, good, text = (run if options.runs else run.force(number)).check()
            failures += not good
            print(line, flush=True)
            if not good:
                print(text, flush=True)
        os.chdir("/")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
