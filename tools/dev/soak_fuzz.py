# SPDX-License-Identifier: Apache-2.0
"""The part `fuzz` of tools/soak: libFuzzer on every reader of files (tests/fuzz). What it finds stays in
BUILD/soak/fuzz/READER/ between calls; the stored inputs are those of tests/fuzz/corpus/."""
import base64
import concurrent.futures
import os
import re
import subprocess
import tempfile
import time

import fuzz_seeds

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CORPUS = os.path.join(ROOT, "tests", "fuzz", "corpus")
SETUP = ["-Dfuzz=enabled", "-Db_sanitize=address,undefined", "-Db_lundef=false", "-Doptimization=1", "-Ddebug=false",
         "-Dc_args=-g1", "-Dcuda=disabled", "-Dmpi=disabled", "-Dtests=disabled"]
STORED_BYTES, STORED_INPUT_BYTES = 12288, 512  # of a reader's file, and of an input that is chosen for it
MOST_BYTES = {"vocabulary": 8192, "tokenizer_json": 8192, "recipe": 6000}


def names():
    return sorted(name.removesuffix(".txt") for name in os.listdir(CORPUS) if name.endswith(".txt"))


# ---- stored inputs ----

def stored(name):
    """(label, bytes) of each stored input."""
    path = os.path.join(CORPUS, name + ".txt")
    if not os.path.exists(path):
        return []
    with open(path, encoding="ascii") as file:
        pairs = [line.split(" ") for line in file.read().splitlines()]
    return [(label, base64.b64decode(text)) for label, text in pairs]


def store(name, inputs):
    with open(os.path.join(CORPUS, name + ".txt"), "w", encoding="ascii") as file:
        for label, content in inputs:
            file.write(f"{label} {base64.b64encode(content).decode()}\n")


def keep(word):
    """--keep READER:FILE:LABEL"""
    name, path, label = word.split(":")
    with open(path, "rb") as file:
        store(name, [*[one for one in stored(name) if one[0] != label], (label, file.read())])
    return 0


def choose(name, folder, executable):
    """Seeds, finds, and the smallest inputs that together cover the most."""
    inputs = [one for one in stored(name) if one[0].startswith("find-")] + fuzz_seeds.seeds(name)
    with tempfile.TemporaryDirectory(dir=folder) as merged:
        subprocess.run([executable, f"--reader={name}", "-merge=1", "-close_fd_mask=1", merged,
                        os.path.join(folder, name)], env=environment(folder), check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        found = []
        for entry in os.listdir(merged):
            with open(os.path.join(merged, entry), "rb") as file:
                found.append(file.read())
    have, size = {content for _, content in inputs}, sum(len(content) for _, content in inputs)
    for number, content in enumerate(sorted(found, key=lambda one: (len(one), one))):
        if content not in have and len(content) <= STORED_INPUT_BYTES and size + len(content) <= STORED_BYTES:
            inputs.append((f"covers-{number}", content))
            size += len(content)
    store(name, inputs)


# ---- running ----

def environment(temporary):
    return dict(os.environ, TMPDIR=temporary, ASAN_OPTIONS="detect_stack_use_after_return=0",
                UBSAN_OPTIONS="halt_on_error=1:print_stacktrace=1")


def build(folder):
    """Returns the executable."""
    out = os.path.join(folder, "build")
    if not os.path.exists(os.path.join(out, "build.ninja")):
        subprocess.run(["meson", "setup", out, *SETUP], cwd=ROOT, check=True, stdout=subprocess.DEVNULL,
                       env=dict(os.environ, CC=os.environ.get("FUZZ_CC", "clang"),
                                CXX=os.environ.get("FUZZ_CXX", "clang++")))
    subprocess.run(["ninja", "-C", out, "tests/fuzz/fuzz"], check=True, stdout=subprocess.DEVNULL)
    return os.path.join(out, "tests", "fuzz", "fuzz")


def write_inputs(name, folder):
    """The stored inputs and seeds as files, and the words of the seeds as a dictionary."""
    own = os.path.join(folder, name)
    os.makedirs(own, exist_ok=True)
    words = set()
    for label, content in stored(name) + fuzz_seeds.seeds(name):
        with open(os.path.join(own, label), "wb") as file:
            file.write(content)
        words |= set(re.findall(rb'"?[A-Za-z_][A-Za-z0-9_.-]{1,24}"?', content))
    with open(os.path.join(folder, name + ".dict"), "w", encoding="ascii") as file:
        for word in sorted(words)[:2000]:
            text = word.decode().replace("\\", "\\\\").replace('"', '\\"')
            file.write(f'"{text}"\n')


def run_reader(name, folder, executable, seconds):
    """Runs one reader. Returns (inputs, seconds, output if it failed)."""
    write_inputs(name, folder)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="cuboid-fuzz-", dir="/dev/shm") as temporary:
        words = ["nice", "-n", "19", executable, f"--reader={name}", f"-max_total_time={seconds:.0f}", "-timeout=20",
                 "-rss_limit_mb=3000", f"-max_len={MOST_BYTES.get(name, 4096)}", "-print_final_stats=1",
                 "-close_fd_mask=3", f"-dict={folder}/{name}.dict", f"-artifact_prefix={folder}/{name}-",
                 "-reload=0", os.path.join(folder, name)]
        done = subprocess.run(words, env=environment(temporary), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                              check=False)
    text = done.stderr.decode("utf-8", "replace")
    count = re.search(r"stat::number_of_executed_units:\s*(\d+)", text)
    return int(count.group(1)) if count else 0, time.monotonic() - begin, text if done.returncode != 0 else ""


def log_path(folder):
    return os.path.join(folder, "log")


def report(folder, stamp, write):
    """All runs of the log, by reader."""
    rows, finds = {}, 0
    with open(log_path(folder), encoding="ascii") as file:
        for line in file:
            name, count, seconds, result = line.split()
            row = rows.setdefault(name, [0, 0.0, 0])
            row[0] += int(count)
            row[1] += float(seconds)
            row[2] += result != "ok"
            finds += result != "ok"
    lines = [stamp + ".",
             f"**{sum(row[0] for row in rows.values())} inputs in {sum(row[1] for row in rows.values()) / 60:.0f} "
             "minutes.**", "",
             "libFuzzer with AddressSanitizer and UBSan (`tests/fuzz`), two readers at a time with the lowest priority",
             "on a machine of two cores that was busy with other work.",
             "Besides crashes, leaks and hangs (20 s), an input fails that makes a reader allocate more than 64 times",
             "its size plus 16 MiB. The inputs that failed so far are in `tests/fuzz/corpus` (`find-...`).", "",
             "| reader | inputs | minutes | stored finds |", "|---|---|---|---|"]
    lines += [f"| {name} | {row[0]} | {row[1] / 60:.0f} | "
              f"{sum(label.startswith('find-') for label, _ in stored(name))} |" for name, row in sorted(rows.items())]
    write(lines)


def fuzz(options, stamp, write):
    if options.keep:
        return keep(options.keep)
    folder = os.path.join(os.path.abspath(options.build), "soak", "fuzz")
    os.makedirs(folder, exist_ok=True)
    executable, failed = build(folder), False
    readers = options.readers.split(",") if options.readers else names()
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        started = {pool.submit(run_reader, name, folder, executable, 60 * options.minutes): name for name in readers}
        for done in concurrent.futures.as_completed(started):
            name, (count, seconds, text) = started[done], done.result()
            with open(log_path(folder), "a", encoding="ascii") as file:
                file.write(f"{name} {count} {seconds:.0f} {'find' if text else 'ok'}\n")
            print(f"{name}: {count} inputs in {seconds / 60:.1f} minutes{', a find' if text else ''}", flush=True)
            if text:
                failed = True
                print(text[-6000:], flush=True)
            elif options.choose:
                choose(name, folder, executable)
    report(folder, stamp, write)
    return failed
