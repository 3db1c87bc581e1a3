#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that pictures and tables in the documentation match the program's output.

A page names a command in a comment, followed by the output of the command, or the picture that it writes:

    <!-- run: cuboid schedule compare -p 8 -m 32 -->     <!-- run: cuboid schedule 1f1b -p 4 -m 8 --svg docs/a.svg -->
    ```text                                              ![1F1B](a.svg)
    ...
    ```

    tools/dev/docs_run.py CUBOID           says which of them are not current; exit status 1 if any
    tools/dev/docs_run.py CUBOID --write   updates them"""
import glob
import os
import re
import shlex
import subprocess
import sys
import tempfile

import figures

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
COLUMN, SMALLEST = 800, 9  # pixels: the width of a README column, and of text in it
RUN = re.compile(r"^<!-- run: cuboid (.*) -->\n(```text\n(?:.*\n)*?```\n)?", re.M)


def run(cuboid, words):
    done = subprocess.run([cuboid, *words], capture_output=True, text=True, cwd=ROOT, check=False)
    if done.returncode != 0:
        sys.exit(f"cuboid {shlex.join(words)}: exit status {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def read(path):
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return None


def make(cuboid, command, old_block, files):
    """The block that follows the command; the file that it writes is added to `files`."""
    words = shlex.split(command)
    if "--svg" not in words:
        return f"```text\n{run(cuboid, words)}```\n"
    at = words.index("--svg") + 1
    path = words[at]
    with tempfile.TemporaryDirectory() as folder:
        words[at] = os.path.join(folder, "picture.svg")
        run(cuboid, words)
        files[path] = read(words[at])
    return old_block or ""


def illegible(path):
    """Why text of this SVG is illegible in a README column; None if it is legible."""
    text = read(os.path.join(ROOT, path))
    width = float(re.search(r'<svg\b[^>]*?(?:viewBox="\S+ \S+ | width=")([\d.]+)', text).group(1))
    sizes = [float(n) for n in re.findall(r"font(?:-size)?[=:]\s*\"?(\d+(?:\.\d+)?)", text)]
    shown = min(sizes, default=0.0) * min(1.0, COLUMN / width)
    return None if shown >= SMALLEST else f"{shown:.1f} px text at {COLUMN} px width, {SMALLEST} px is the least"


def main():
    cuboid, write = os.path.abspath(sys.argv[1]), "--write" in sys.argv[2:]
    files = {}
    pages = sorted(glob.glob(os.path.join(ROOT, "docs", "**", "*.md"), recursive=True))
    pages.insert(0, os.path.join(ROOT, "README.md"))
    for page in pages:
        def block(match):
            return (f"<!-- run: cuboid {match.group(1)} -->\n"
                    + make(cuboid, match.group(1), match.group(2), files))
        files[os.path.relpath(page, ROOT)] = RUN.sub(block, read(page))
    drawn = figures.all_figures(lambda words: run(cuboid, words))
    shown = "".join(files.values())
    unused = {path for path in drawn if os.path.basename(path) not in shown}
    files.update(drawn)
    stale = [path for path, text in files.items() if read(os.path.join(ROOT, path)) != text]
    for path in stale if write else []:
        with open(os.path.join(ROOT, path), "w", encoding="utf-8") as file:
            file.write(files[path])
    unused |= set(glob.glob("docs/schedules/*.svg", root_dir=ROOT)) - set(files)
    for path in stale:
        print(f"{path}: {'written' if write else 'differs from the program output; run docs_run.py CUBOID --write'}")
    for path in unused:
        print(f"{path}: not used in any page")
    small = {path: why for path in sorted(glob.glob("docs/**/*.svg", root_dir=ROOT, recursive=True))
             if (why := illegible(path)) is not None}
    for path, why in small.items():
        print(f"{path}: {why}")
    pictures = sum(path.endswith(".svg") for path in files)
    if pictures == 0:
        sys.exit("no page has a picture: the comments are no longer found")
    print(f"{len(pages)} pages, {pictures} pictures")
    sys.exit(1 if unused or small or (stale and not write) else 0)


main()
