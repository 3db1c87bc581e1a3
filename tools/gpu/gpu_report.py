#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests and measurements that need a GPU, in one dated report. tools/gpu_check builds or packs, and calls this.

    gpu_report.py FOLDER REPORT      FOLDER: bin/ lib/ mpi/ reference/ recipes/ text gpu_torch.py commit
                                     REPORT: a file, or a folder for DATE.md, DATE-2.md ...
    gpu_report.py --merge REPORT...  one report of several, on stdout

A machine with a GPU may be available for a few minutes only. So a call lasts 270 s (GPU_CHECK_SECONDS), is useful
alone, and is continued by the next: it omits what an earlier one has finished, and its report contains the results of
both. The earlier report is GPU_CHECK_FIRST or, if REPORT is a folder, the newest one of the same commit there.

First each program has to start, and `cuboid doctor` has to succeed, or the call ends with status 3. Then the parts,
most informative first:

doctor     devices and libraries of the machine, and its measured rates
smoke      forward and backward passes of attention, matrix multiplication in each layout
train      one GPU, bf16, deterministic: tokens per second and model FLOPs utilization of three models
tests      the tests of attention, matrix multiplication and all other ops against double precision, several at once;
           each of attention in a process of its own; after a failure later parts use cuDNN's attention
rates      every op at the sizes of three models: its rate, as a fraction of a copy's
nccl       2 x 2 x 2, two schedules: the first loss is within the bound of one rank's
bits       bit-identical results of the same run repeated, resumed, with offloading, with autotuned algorithms that
           are timed and then loaded, and with other schedules on two ranks
waits      calls that block the host or allocate memory in each step of cuboid_counted, without and with CUDA
           graphs: of a small model, whose streams are blocked until the host has enqueued a whole step, and of
           GPT-2 124M, with the memory of its graphs
fastest    train with all choices by timing, and with CUDA graphs
torch      tokens per second of PyTorch for the same work
ncu        Nsight Compute's figures of six kernels
memcheck   compute-sanitizer over the op suite
plan       `cuboid doctor --profile` of the GPU; steps of three models, predicted by plans and measured; the largest
           microbatch that fits by its plan trains, and the next one is refused
golden     the golden figures, and 20 steps of the quickstart's model next to the CPU's
schedules  2 x 2 x 2: the other schedules, and fp32
racecheck  compute-sanitizer over kernels with shared memory
again      failed tests repeated with CUDA_LAUNCH_BLOCKING=1

GPU_CHECK="train nccl" runs those parts only, also finished ones. The time limit counts from GPU_CHECK_BEGAN (seconds
since 1970; default: now): parts without time left are named in the report. Each part and each command also has a limit,
after which all of its processes are killed; GPU_CHECK_SCALE (1) multiplies these limits. After two commands of a kind
that hang, the others of it are omitted. The report begins with the required results (gpu_wanted.py) and is complete
after every line, so that a killed run leaves a valid report. All output is next to it (.log), at most 12 MiB: the
beginning and the end of each command. GPU_CHECK_TINY=1 shrinks the models, to test the script. Exit status 1 if a check
failed; a rate below its target is reported, but is not a failure.
"""
import os
import re
import signal
import subprocess
import sys
import time

import gpu_results
from gpu_plan import part_plan
from gpu_profile import part_ncu
from gpu_results import FINISHED, Report
from gpu_runs import part_bits, part_golden, part_nccl, part_schedules, part_waits
from gpu_session import Session
from gpu_tests import (DoesNotStart, check_programs, part_again, part_doctor, part_memcheck, part_racecheck, part_smoke,
                       part_tests)
from gpu_training import part_fastest, part_rates, part_torch, part_train
from gpu_wanted import FIGURES

# Most informative first; with a limit in seconds.
PARTS = {"doctor": (part_doctor, 60), "smoke": (part_smoke, 60), "train": (part_train, 120), "tests": (part_tests, 120),
         "rates": (part_rates, 120), "nccl": (part_nccl, 90), "bits": (part_bits, 120), "waits": (part_waits, 60),
         "fastest": (part_fastest, 150), "torch": (part_torch, 180), "ncu": (part_ncu, 90),
         "memcheck": (part_memcheck, 120), "plan": (part_plan, 240), "golden": (part_golden, 60),
         "schedules": (part_schedules, 240), "racecheck": (part_racecheck, 200), "again": (part_again, 90)}


class Stopped(BaseException):
    """SIGTERM or SIGINT was received."""


def run_parts(s, chosen):
    for name in chosen:
        part, limit = PARTS[name]
        s.begin_part(limit)
        if s.left() < 5:
            s.report.row(f"part {name}", f"not run: no time left (the next call runs it, or GPU_CHECK={name})")
            continue
        s.report.begin(name)
        s.report.state = f"not finished; in part {name}"
        try:
            part(s)
        except Exception as error:  # an unexpected error in one part must not stop the others
            if isinstance(error, DoesNotStart):
                raise
            s.report.failed(f"part {name}", f"{type(error).__name__}: {error}")
        s.report.results["state"] = "not finished" if s.out_of_time else FINISHED
        s.report.known = s.known()
        s.report.save()
    s.report.state = s.report.outcome()
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
    names = text.split()
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        sys.exit(f"gpu_check: GPU_CHECK has no part {', '.join(unknown)}; valid: {' '.join(PARTS)}")
    return names


def unfinished_parts(report):
    """Part again repeats what has failed in any call."""
    return [name for name in PARTS if name == "again" or not report.finished(name)]


def number(name, default):
    """A number from the environment."""
    text = os.environ.get(name) or default
    try:
        return float(text)
    except ValueError:
        sys.exit(f"gpu_check: {name}={text} is not a number; the default is {default}")


def new_path(path):
    """The first of DATE.md, DATE-2.md ... that does not exist, if the path is a folder."""
    if path.endswith(".md"):
        return path
    date = time.strftime("%Y-%m-%d", time.gmtime())
    names = (f"{path}/{date}{'' if i == 1 else f'-{i}'}.md" for i in range(1, 1000))
    return next(name for name in names if not os.path.exists(name))


def earlier_results(path, commit, chosen):
    """The results to continue; None: there are none."""
    first = os.environ.get("GPU_CHECK_FIRST")
    if not first and not path.endswith(".md") and not chosen:
        first = gpu_results.earlier_call(path, commit)
    if not first:
        return None
    try:
        earlier = gpu_results.read(first)
    except ValueError as error:
        sys.exit(f"gpu_check: GPU_CHECK_FIRST={first}: {error}")
    if earlier["commit"] != commit:
        sys.exit(f"gpu_check: GPU_CHECK_FIRST={first}: commit {earlier['commit']}, this is {commit}; remove it or use "
                 "its archive")
    return earlier


def open_session(folder, path, chosen):
    began, seconds = number("GPU_CHECK_BEGAN", time.time()), number("GPU_CHECK_SECONDS", 270)
    machine, name, size = gpu_found()
    with open(os.path.join(folder, "commit")) as text:
        commit = text.read().strip()
    earlier = earlier_results(path, commit, chosen)
    path = new_path(path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    report = Report(path, f"GPU check, {time.strftime('%Y-%m-%d', time.gmtime())}, commit {commit}", machine, commit)
    spent = max(0.0, time.time() - began)
    session = Session(folder, report, seconds - spent, name, size, os.environ.get("GPU_CHECK_TINY") == "1",
                      number("GPU_CHECK_SCALE", 1))
    if earlier is not None:
        report.continue_from(earlier)
        session.learn(earlier["known"])
        report.row("continues", f"a report with {', '.join(filter(report.finished, PARTS))}")
    report.row("seconds before the first part, of all", f"{spent:.0f} of {seconds:g}")
    return session


def run_all(session, chosen):
    """Status of the call: 1 if a check failed, 3 if a program does not start."""
    report = session.report
    try:
        check_programs(session)
        prepared = session.run(session.cuboid("data", "prepare", session.path("text"), "-o", f"{session.work}/text",
                                              "--overwrite"), 60)
        if not prepared.good:
            report.failed("data prepare", prepared.why, prepared.out)
        run_parts(session, chosen or unfinished_parts(report))
    except DoesNotStart as error:
        report.failed("**stopped**", f"this archive does not run on this machine: {error}")
        report.state = f"stopped: {error}"
    except Stopped:
        report.failed(report.state, "stopped by a signal")
    report.save()
    return 3 if report.state.startswith("stopped: ") else 1 if report.all("failures") else 0


def merge(paths):
    try:
        print(gpu_results.merge([gpu_results.read(path) for path in paths], PARTS).text())
    except ValueError as error:
        sys.exit(f"gpu_check: --merge: {error}")


def main():
    if len(sys.argv) > 2 and sys.argv[1] == "--merge":
        merge(sys.argv[2:])
        return 0
    if len(sys.argv) != 3:
        sys.exit(__doc__.split("\n\n")[1])
    folder, path = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
    chosen = chosen_parts(os.environ.get("GPU_CHECK", ""))
    session = open_session(folder, path, chosen)
    report = session.report

    def stop(*_):
        session.stop()
        raise Stopped

    for which in (signal.SIGTERM, signal.SIGINT):
        signal.signal(which, stop)
    status = run_all(session, chosen)
    print(f"\n{report.state}; the report is {report.path}, all output in {session.log.name}\n")
    wanted = report.wanted()
    for name in FIGURES:
        print(f"{FIGURES[name][0]}: {' '.join(wanted.state(name))}")
    return status


if __name__ == "__main__":
    sys.exit(main())
