#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The tour of README.md, from a clean state: every command of its ```sh and ```console blocks runs in order in one
shell, ends with status 0 (or with the one that `echo $?` shows), and prints the lines that the README shows.

A directory with the recipes and pages of the source tree simulates a fresh clone. In shown lines every number
matches any number, and `...` for any lines. What differs from the README:

  - tools/quickstart prepares its dataset from another, short text, as the script does, and trains nothing;
  - tools/test, tools/setup, meson and ninja are not run: the build that runs this test takes their place;
  - 20 steps are 2, 40 are 4, verify takes 1 step, and generate 8 tokens;
  - without mpirun in this build, its lines are left out.

    test_readme.py CUBOID SOURCE-ROOT [MPIRUN]"""
import os
import re
import subprocess
import sys
import tempfile

CUBOID, ROOT = os.path.abspath(sys.argv[1]), sys.argv[2]
MPIRUN = sys.argv[3] if len(sys.argv) > 3 else None
NOT_RUN = ["tools/test", "tools/setup", "meson setup build", "ninja -C build"]
QUICKSTART = "mkdir -p runs/data && cuboid data prepare text.txt -o runs/data/quickstart --split-lines 20"
SHORTER = [("train.train_iters=20", "train.train_iters=2"), ("train.train_iters=40", "train.train_iters=4"),
           ("head -n 20", "head -n 2"), ("--tokens 64", "--tokens 8"),
           ("cuboid verify ", "cuboid verify --steps 1 ")]
MARK = "@status "
NUMBER = r"\d+(?:\.\d+)?(?:e[-+]?\d+)?(?: [KMG](?= ))?"


def blocks(text):
    """(language, lines) of each fenced block."""
    return [(language, body.splitlines()) for language, body in re.findall(r"(?ms)^```(\w+)\n(.*?)^```", text)]


def commands(text):
    """[command, shown lines] of every command of the README, in order."""
    found = []
    for language, lines in blocks(text):
        for line in lines:
            if language == "sh" and line:
                found.append([line, ["..."]])
            elif language == "console" and line.startswith("$ "):
                found.append([line[2:], []])
            elif language == "console":
                found[-1][1].append(line)
    return found


def pattern(shown):
    """A regular expression of the shown lines: any numbers, and any lines for `...`."""
    expression = ""
    for line in shown:
        if line == "...":
            expression += r"(?:.*\n)*?"
        else:
            words = [re.escape(word) for word in re.split(r"\s+", re.sub(NUMBER, "\0", line))]
            expression += r"\s+".join(words).replace(re.escape("\0"), NUMBER) + r"\n"
    return re.compile(expression)


def script(tour):
    """The tour as one bash script; after each command it prints the command's status."""
    lines = []
    for command, _ in tour:
        for long, short in SHORTER:
            command = command.replace(long, short)
        command = QUICKSTART if command == "tools/quickstart" else command
        lines += ["(exit $status)", command, f'status=$?; printf "\\n{MARK}%d\\n" $status']
    return "\n".join(["status=0", *lines, ""])


def prepare(folder):
    """The files of a clone after `tools/quickstart`: recipes, pages, the executable, a text."""
    os.mkdir("build")
    os.symlink(CUBOID, "build/cuboid")
    for name in ["recipes", "docs", "README.md"]:
        os.symlink(os.path.join(ROOT, name), name)
    if MPIRUN:
        os.symlink(MPIRUN, "build/mpirun")
    with open("text.txt", "w", encoding="ascii") as file:
        file.writelines(f"Line {n}: the ocean is wide, and so is the sky.\n" for n in range(3000))
    os.environ["OMPI_MCA_orte_tmpdir_base"] = folder  # not the folder that other tests' runs share
    os.environ["PATH"] = os.path.join(folder, "build") + ":" + os.environ["PATH"]


def outcomes(folder, tour):
    """(status, output) of each command of the tour."""
    os.chdir(folder)
    prepare(folder)
    with open("tour", "w", encoding="utf-8") as file:
        file.write(script(tour))
    done = subprocess.run(["bash", "tour"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          encoding="utf-8", errors="replace", check=False)
    os.chdir("/")
    parts = re.split(rf"\n{MARK}(\d+)\n", done.stdout)
    return list(zip(map(int, parts[1::2]), parts[::2]))


def main():
    with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as file:
        tour = [(command, shown) for command, shown in commands(file.read())
                if command not in NOT_RUN and (MPIRUN or "tour-mpi" not in command)]
    with tempfile.TemporaryDirectory() as folder:
        results = outcomes(folder, tour)
    failures = 0 if len(results) == len(tour) >= 14 else 1
    print(f"{len(results)} of {len(tour)} commands were run")
    for number, ((command, shown), (status, output)) in enumerate(zip(tour, results)):
        following = tour[number + 1] if number + 1 < len(tour) else ("", [])
        expected = int(following[1][0]) if following[0] == "echo $?" else 0
        if status != expected or not pattern(shown).fullmatch(output.rstrip("\n") + "\n"):
            failures += 1
            print(f"$ {command}\nexit status {status}, expected {expected}; the README shows\n" + "\n".join(shown) +
                  f"\nand it printed\n{output}")
    print(f"{failures} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
