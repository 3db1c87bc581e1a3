#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests and measurements that need a GPU, in one dated report. tools/gpu_check builds or packs, and calls this.

    gpu_report.py FOLDER REPORT      FOLDER: bin/ lib/ mpi/ reference/ recipes/ text gpu_torch.py commit

The parts, most informative first:

doctor     devices and libraries of the machine, and its measured rates
attention  its tests, one process and one time limit each; after a failure later parts use cuDNN's attention
gemm       the tests of matrix multiplication
golden     the golden figures, and 20 steps of the quickstart's model next to the CPU's
first      one training run: GPT-2 124M, bf16, deterministic
ops        the op suite on the GPU against double precision
bits       bit-identical results of the same run repeated, resumed, with offloading, with autotuned algorithms that
           are timed and then loaded, and with other schedules on two ranks
waits      calls that block the host or allocate memory in each step of cuboid_counted, without and with CUDA
           graphs: of a small model, whose streams are blocked until the host has enqueued a whole step, and of
           GPT-2 124M, with the memory of its graphs
train      one GPU, bf16: tokens per second and model FLOPs utilization of three models, deterministic and
           autotuned
plan       `cuboid doctor --profile` of the GPU; steps of three models, predicted by plans and measured; the largest
           microbatch that fits by its plan trains, and the next one is refused
torch      tokens per second of PyTorch for the same work
rates      every op at the sizes of three models: its rate, as a fraction of a copy's
memcheck   compute-sanitizer over the op suite
nccl       2 x 2 x 2: the first loss of each schedule is within the bound of one rank's
again      failed checks repeated with CUDA_LAUNCH_BLOCKING=1
racecheck  compute-sanitizer over kernels with shared memory

GPU_CHECK="train nccl" runs those parts only. GPU_CHECK_SECONDS (540) is the total time limit, counted from
GPU_CHECK_BEGAN (seconds since 1970; default: now): parts without time left are named in the report. Each part and
each command also has a limit, after which all of its processes are killed; GPU_CHECK_SCALE (1) multiplies these
limits. The report begins with the required results (gpu_wanted.py) and is complete after every line, so that a killed
run leaves a valid report. All output is next to it (.log), at most 12 MiB: the beginning and the end of each command.
GPU_CHECK_TINY=1 shrinks the models, to test the script. Exit status 1 if a check failed; a rate below its target is
reported, but is not a failure.
"""
import os
import re
import signal
import subprocess
import sys
import time

from gpu_plan import part_plan
from gpu_runs import part_bits, part_golden, part_nccl, part_waits
from gpu_session import Report, Session
from gpu_tests import (part_again, part_attention, part_doctor, part_gemm, part_memcheck, part_ops, part_racecheck)
from gpu_training import part_first, part_rates, part_torch, part_train
from gpu_wanted import FIGURES

# Most informative first; with a limit in seconds.
PARTS = {"doctor": (part_doctor, 45), "attention": (part_attention, 150), "gemm": (part_gemm, 60),
         "golden": (part_golden, 60), "first": (part_first, 60), "ops": (part_ops, 90), "bits": (part_bits, 90),
         "waits": (part_waits, 60), "train": (part_train, 200), "plan": (part_plan, 240), "torch": (part_torch, 180),
         "rates": (part_rates, 120), "memcheck": (part_memcheck, 120), "nccl": (part_nccl, 240),
         "again": (part_again, 90), "racecheck": (part_racecheck, 200)}


class Stopped(BaseException):
    """SIGTERM or SIGINT was received."""


def run_parts(s, chosen):
    for name in chosen:
        part, limit = PARTS[name]
        s.begin_part(limit)
        if s.left() < 5:
            s.report.row(f"part {name}", f"not run: no time left (GPU_CHECK={name} runs it alone)")
            continue
        s.report.state = f"not finished; in part {name}"
        try:
            part(s)
        except Exception as error:  # an unexpected error in one part must not stop the others
            s.report.failed(f"part {name}", f"{type(error).__name__}: {error}")
    s.report.state = f"{len(s.report.failures)} failed, {len(s.report.missed)} below their targets"
    s.report.save()


def gpu_found():
    """'NVIDIA H200, 580.1, 143771 MiB' as nvidia-smi has it, its name, and its bytes."""
    listed = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"],
                          capture_output=True, text=True, timeout=60).stdout.strip()
    first = listed.splitlines()[0] if listed else ""
    name, _, memory = (first.split(", ") + ["", "", ""])[:3]
    mebibytes = re.match(r"(\d+) MiB", memory)
    return listed, name, int(mebibytes.group(1)) * 2**20 if mebibytes else 0


def chosen_parts(text):
    names = text.split() or list(PARTS)
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        sys.exit(f"gpu_check: GPU_CHECK has no part {', '.join(unknown)}; valid: {' '.join(PARTS)}")
    return names


def number(name, default):
    """A number from the environment."""
    text = os.environ.get(name) or default
    try:
        return float(text)
    except ValueError:
        sys.exit(f"gpu_check: {name}={text} is not a number; the default is {default}")


def open_session(folder, path):
    began, seconds = number("GPU_CHECK_BEGAN", time.time()), number("GPU_CHECK_SECONDS", 540)
    machine, name, size = gpu_found()
    with open(os.path.join(folder, "commit")) as text:
        commit = text.read().strip()
    os.makedirs(os.path.dirname(path), exist_ok=True)
    report = Report(path, f"GPU check, {time.strftime('%Y-%m-%d', time.gmtime())}, commit {commit}", machine)
    spent = max(0.0, time.time() - began)
    report.row("seconds before the first part, of all", f"{spent:.0f} of {seconds:g}")
    return Session(folder, report, seconds - spent, name, size, os.environ.get("GPU_CHECK_TINY") == "1",
                   number("GPU_CHECK_SCALE", 1))


def stop(*_):
    raise Stopped


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__.split("\n\n")[1])
    folder, path = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
    chosen = chosen_parts(os.environ.get("GPU_CHECK", ""))
    session = open_session(folder, path)
    report = session.report
    for which in (signal.SIGTERM, signal.SIGINT):
        signal.signal(which, stop)
    try:
        prepared = session.run(session.cuboid("data", "prepare", session.path("text"), "-o", f"{session.work}/text",
                                              "--overwrite"), 60)
        if not prepared.good:
            report.failed("data prepare", prepared.why, prepared.out)
        run_parts(session, chosen)
    except Stopped:
        session.stop()
        report.failed(report.state, "stopped by a signal")
        report.save()
    print(f"\n{report.state}; the report is {path}, all output in {session.log.name}\n")
    for name in FIGURES:
        print(f"{FIGURES[name][0]}: {' '.join(report.wanted.state(name))}")
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
