#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The worked examples of docs/debugging.md (page.py), with a build that omits a message (lost_call.c). Numbers
with a decimal point match any such number; all others are compared.

    test_debugging.py CUBOID SOURCE-ROOT CUBOID-FAULTY"""
import os
import sys
import tempfile

import page

CUBOID, ROOT, FAULTY = os.path.abspath(sys.argv[1]), sys.argv[2], os.path.abspath(sys.argv[3])
QUICKSTART = "mkdir -p runs/data && cuboid data prepare text.txt -o runs/data/quickstart --split-lines 20 > /dev/null"
NUMBER = r"\d+\.\d+(?:e[-+]?\d+)?"


def main():
    tour = [("tools/quickstart", [])] + page.commands(os.path.join(ROOT, "docs", "debugging.md"))
    replaced = page.script(tour, lambda command: QUICKSTART if command == "tools/quickstart" else command)
    with tempfile.TemporaryDirectory() as folder:
        results = page.outcomes(folder, ROOT, {"cuboid": CUBOID, "cuboid_faulty": FAULTY}, replaced)
    return 1 if page.report(tour, results, NUMBER, 15, "docs/debugging.md") else 0


if __name__ == "__main__":
    sys.exit(main())
