#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What writing a file takes from programs that keep all cores busy: the least that a save in the background costs.

    write_cost.py [GB] [ROUNDS]      in the current folder; 2 GB and 3 rounds unless told

One process per core counts, first alone and then while a file is written past the page cache (O_DIRECT) from one
piece of memory, in requests of 1 MiB or 4 MiB from small pages, or of 4 MiB from huge pages. On a virtual machine
whose disk is served by the cores of its host, the counts fall by more than the processor time of the writer.
Prints the medians for 1 GB in seconds of all cores, and in seconds that the host stole from single cores: these vary
less."""
import ctypes
import mmap
import multiprocessing
import os
import statistics
import sys
import time

HUGE = 1 << 21
SECONDS = 10.0
KINDS = [("1 MiB from small pages", 1 << 20, mmap.MADV_NOHUGEPAGE),
         ("4 MiB from small pages", 1 << 22, mmap.MADV_NOHUGEPAGE),
         ("4 MiB from huge pages", 1 << 22, mmap.MADV_HUGEPAGE)]


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


def aligned(size, advice):
    """Memory at a multiple of the size of a huge page, filled."""
    whole = mmap.mmap(-1, size + HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # shared: small pages
    whole.madvise(advice)
    skipped = -ctypes.addressof(ctypes.c_char.from_buffer(whole)) % HUGE
    memory = memoryview(whole)[skipped:skipped + size]
    memory[:] = os.urandom(size)
    return memory


def write(path, gigabytes, request, advice, took):
    memory = aligned(request, advice)
    fd = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_DIRECT, 0o600)
    start = time.monotonic()
    for _ in range(round(gigabytes * 1e9 / request)):
        os.write(fd, memory)
    os.fsync(fd)
    took.put(time.monotonic() - start)


def stolen_s():
    with open("/proc/stat") as file:
        return int(file.readline().split()[8]) / os.sysconf("SC_CLK_TCK")


def cost(path, gigabytes, request, advice):
    """Seconds of all cores for 1 GB, seconds that writing took, and seconds stolen from the cores."""
    alone = count_on_all_cores(SECONDS) / SECONDS
    before, took = stolen_s(), multiprocessing.Queue()
    writer = multiprocessing.Process(target=write, args=(path, gigabytes, request, advice, took))
    writer.start()
    while_writing = count_on_all_cores(SECONDS)
    if writer.is_alive():
        writer.kill()
        sys.exit(f"writing took more than the {SECONDS:g} s that are counted: write fewer GB")
    if writer.exitcode != 0:
        sys.exit(1)
    return (SECONDS - while_writing / alone) / gigabytes, took.get(), stolen_s() - before


def main():
    gigabytes = float(sys.argv[1]) if len(sys.argv) > 1 else 2.0
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    path, costs = "write_cost.data", {name: [] for name, _, _ in KINDS}
    try:
        for number in range(rounds):
            for name, request, advice in KINDS:
                each, took, stolen = cost(path, gigabytes, request, advice)
                costs[name].append((each, stolen / gigabytes))
                print(f"round {number + 1}, {name}: {gigabytes / took:.2f} GB/s; {stolen:.1f} s stolen from the cores; "
                      f"{each:.2f} s of all cores for 1 GB", flush=True)
    finally:
        if os.path.exists(path):
            os.unlink(path)
    for name, values in costs.items():
        taken, stolen = (statistics.median(column) for column in zip(*values))
        print(f"median of {rounds}, {name}: {taken:.2f} s of all cores for 1 GB; {stolen:.2f} s stolen from the cores")


main()
