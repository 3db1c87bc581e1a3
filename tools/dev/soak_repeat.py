# SPDX-License-Identifier: Apache-2.0
"""The part `repeat` of tools/soak: tests of a build, each repeated while other processes keep the cores busy. Up to
--jobs tests run concurrently."""
import concurrent.futures
import contextlib
import hashlib
import json
import os
import re
import statistics
import subprocess
import sys
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# As in tools/test.
SANITIZERS = {"ASAN_OPTIONS": "strict_string_checks=1:detect_stack_use_after_return=0",
              "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
              "TSAN_OPTIONS": "halt_on_error=1:report_thread_leaks=0:atexit_sleep_ms=100:"
                              f"suppressions={ROOT}/tests/sanitizers/thread.supp"}
ROW = "| test | build | runs | failed | median | longest | load | commit, date |"


def introspect(build, what):
    done = subprocess.run(["meson", "introspect", what, build], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@contextlib.contextmanager
def busy(processes):
    """Keeps `processes` cores busy, at the same priority as the tests."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


class Repeated:
    """A test of a build, and the log of its runs: a different executable starts a new log."""

    def __init__(self, build, test, load, threads):
        self.name, self.build, self.load = test["name"], build, load
        self.command = [*(["setarch", "-R"] if threads else []), *test["cmd"]]
        self.environment = {**SANITIZERS, **os.environ, **test["env"]}
        content = hashlib.sha256()
        for word in self.command:
            if os.path.isfile(word):
                with open(word, "rb") as file:
                    content.update(file.read())
        folder = os.path.join(build, "soak")
        os.makedirs(folder, exist_ok=True)
        name = re.sub(r"\W+", "-", self.name)
        self.log = os.path.join(folder, f"repeat-{name}-load{load}-{content.hexdigest()[:12]}.log")
        self.runs = []
        if os.path.exists(self.log):
            with open(self.log, encoding="utf-8") as file:
                found = (re.fullmatch(r"(\w+) ([\d.]+) s\n", line) for line in file)
                self.runs = [(match[1] == "ok", float(match[2])) for match in found if match]

    def run(self):
        begin = time.monotonic()
        done = subprocess.run(self.command, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              cwd=self.build, check=False)
        self.runs.append((done.returncode == 0, time.monotonic() - begin))
        word = "ok" if done.returncode == 0 else "FAILED"
        with open(self.log, "a", encoding="utf-8") as log:
            log.write(f"{word} {self.runs[-1][1]:.1f} s\n")
        if done.returncode != 0:
            with open(f"{self.log}.{len(self.runs)}", "wb") as out:
                out.write(done.stdout)
            print(f"{self.name}: run {len(self.runs)} ended with {done.returncode}: see {out.name}", flush=True)

    def run_all(self, count, stop):
        while len(self.runs) < count and not stop.is_set():
            self.run()
            if len(self.runs) % 10 == 0:
                failed = sum(not good for good, _ in self.runs)
                print(f"{self.name}: {len(self.runs)} of {count} runs, {failed} failed", flush=True)

    def row(self, kind, stamp):
        times = [seconds for _, seconds in self.runs]
        failed = sum(not good for good, _ in self.runs)
        return (f"| {self.name} | {kind} | {len(times)} | {failed} | {statistics.median(times):.1f} s | "
                f"{max(times):.1f} s | {self.load} | {stamp} |")


def repeat(options, stamp, old, write):
    """Returns whether any run failed. stamp: commit and date; old: the section's lines so far; write: takes the new."""
    build = os.path.abspath(options.build)
    kind = next(one["value"] for one in introspect(build, "--buildoptions") if one["name"] == "b_sanitize")
    kind = "no sanitizer" if kind in ("none", []) else kind if isinstance(kind, str) else ",".join(kind)
    tests = {test["name"]: test for test in introspect(build, "--tests")}
    unknown = [name for name in options.tests.split(",") if name not in tests]
    if unknown:
        sys.exit(f"tools/soak repeat: {build} has no test {', '.join(unknown)}; `meson test -C {build} --list` has all")
    repeated = [Repeated(build, tests[name], options.load, "thread" in kind) for name in options.tests.split(",")]
    count = options.runs or 200
    with busy(options.load), concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        stop = threading.Event()
        try:
            for done in [pool.submit(test.run_all, count, stop) for test in repeated]:
                done.result()
        finally:
            stop.set()  # after an interruption: the running tests end, and no more start
    rows = [test.row(kind, stamp) for test in repeated]
    keys = [row.split(" | ")[:2] for row in rows]
    kept = [line for line in old if line.startswith("| ") and line != ROW and line.split(" | ")[:2] not in keys]
    write(["Each test is run repeatedly while `load` other processes run an endless loop.", "",
           ROW, "|" + "---|" * 8, *sorted([*kept, *rows])])
    return any(not good for test in repeated for good, _ in test.runs)
