#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What writing a file takes from programs that keep all cores busy: the least that a save in the background costs.

    write_cost.py [GB] [ROUNDS]      in the current folder; 2 GB and 3 rounds unless told

One process per core counts, first alone and then while dd writes past the page cache (oflag=direct). On a virtual
machine whose disk is served by the cores of its host, the counts fall by more than dd's own processor time.
Prints the medians in seconds of all cores for 1 GB."""
import multiprocessing
import os
import statistics
import subprocess
import sys
import time


def count(seconds, queue):
    end, rounds = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        for _ in range(1000):
            pass
        rounds += 1
    queue.put(rounds)


def count_on_all_cores(seconds):
    queue = multiprocessing.Queue()
    workers = [multiprocessing.Process(target=count, args=(seconds, queue)) for _ in os.sched_getaffinity(0)]
    for worker in workers:
        worker.start()
    total = sum(queue.get() for _ in workers)
    for worker in workers:
        worker.join()
    return total


def write(path, gigabytes):
    return subprocess.Popen(["dd", "if=/dev/zero", f"of={path}", "bs=1M", f"count={round(gigabytes * 1e9 / 2**20)}",
                             "oflag=direct", "conv=fsync"], stderr=subprocess.PIPE)


def stolen_s():
    with open("/proc/stat") as file:
        return int(file.readline().split()[8]) / os.sysconf("SC_CLK_TCK")


def main():
    gigabytes = float(sys.argv[1]) if len(sys.argv) > 1 else 2.0
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    path, seconds, costs = "write_cost.data", 10.0, []
    try:
        for number in range(rounds):
            alone = count_on_all_cores(seconds) / seconds
            before = stolen_s()
            dd = write(path, gigabytes)
            while_writing = count_on_all_cores(seconds)
            if dd.poll() is None:
                dd.kill()
                sys.exit(f"dd took more than the {seconds:g} s that are counted: write fewer GB")
            said = dd.stderr.read().decode()
            if dd.returncode != 0:
                sys.exit(said)
            costs.append((seconds - while_writing / alone) / gigabytes)
            print(f"round {number + 1}: {said.splitlines()[-1]}; {stolen_s() - before:.1f} s stolen from the cores; "
                  f"{costs[-1]:.2f} s of all cores for 1 GB", flush=True)
    finally:
        if os.path.exists(path):
            os.unlink(path)
    print(f"median of {rounds}: {statistics.median(costs):.2f} s of all cores for 1 GB")


main()
