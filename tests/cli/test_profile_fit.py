#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""cuboid profile fit: its tables, the profile it writes, refusals. cuboid profile validate: what it leaves out.

    test_profile_fit.py CUBOID"""
import os
import re
import subprocess
import sys
import tempfile

CUBOID = os.path.abspath(sys.argv[1])
ROWS = "paper,model,layers,hidden,heads,vocab,seq,tp,pp,dp,micro_batch,global_batch,schedule,recompute,precision," \
       "step_time_s\n" + "".join(f"{paper},GPT,4,{hidden},16,1024,512,{tp},1,1,4,8,,none,bf16,{seconds}\n"
                                 for paper, hidden, tp, seconds in (("one", 1024, 1, 0.03), ("one", 2048, 1, 0.06),
                                                                    ("one", 4096, 1, 0.2), ("two", 2048, 2, 0.05),
                                                                    ("two", 4096, 2, 0.12), ("two", 4096, 4, "")))
failures = []


def run(*arguments):
    return subprocess.run([CUBOID, "profile", *arguments], capture_output=True, text=True, check=False)


def expect(what, truth, done):
    if not truth:
        failures.append(what)
        print(f"{what}: status {done.returncode}\n  stdout {done.stdout!r:.900}\n  stderr {done.stderr!r:.600}")


def refuse(what, words, *arguments, status=2):
    done = run("fit", *arguments)
    expect(what, done.returncode == status and all(word in done.stderr for word in words), done)


def test_fit(rows, folder):
    fitted = os.path.join(folder, "fitted.yaml")
    done = run("fit", rows, "--base", "dgx-a100-80", "-o", fitted)
    if "cminpack" in done.stderr:
        print("skipped: built without cminpack")
        sys.exit(77)
    expect("it fits", done.returncode == 0 and "5 step times; 1 rows" in done.stdout, done)
    table = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines() if line[:1].isalpha()}
    expect("each parameter has base, value and share", len(table["matmul_efficiency"]) >= 4, done)
    expect("each source is left out", all("-" not in table[name][:7] for name in ("one", "two")),
           done)
    held_out = done.stdout.partition("% error of each row held out as every third one\n")[2].split()
    expect("the error of the row held out as a third one", len(held_out) == 1 and
           abs(abs(float(held_out[0])) - float(table["all"][7])) < 0.11, done)
    expect("the fit is better than the base", float(table["all"][3]) < float(table["all"][1]), done)
    expect("messages of one node do not tell about a network", "not determined by the rows" in
           " ".join(table["collective_network_efficiency"]), done)
    done = run("check", fitted)
    expect("the profile is complete", done.returncode == 0 and "fit.rows" in done.stdout, done)
    with open(fitted, encoding="utf-8") as file:
        text = file.read()
    expect("it has the error of the fit", "rows: 5" in text and "base:" not in text, done)
    held_out = float(re.search(r"held_out_fraction: (\S+)", text)[1])
    expect("and of the rows held out", abs(100 * held_out - float(table["all"][7])) < 0.11, (held_out, table["all"]))
    expect("which a plan tells apart", run("check", fitted).stdout.count(
        f"{100 * held_out:.1f} % for step times left out of the fit") == 1, done)
    mixed = os.path.join(folder, "mixed.csv")
    gpus = iter(("gpu_type", "H100 (DGX)", "A100", "NVIDIA A100-SXM4-80GB", "", "GB200", "A100"))
    with open(mixed, "w", encoding="utf-8") as file:
        file.writelines(f"{next(gpus)},{line}\n" for line in ROWS.splitlines())
    done = run("fit", mixed, "--base", "dgx-a100-80", "--fast")
    expect("rows of other GPUs are left out", done.returncode == 0 and "3 step times; 3 rows" in done.stdout, done)
    done = run("fit", rows, "--base", fitted, "--fast", "train.micro_batch_size=2")
    expect("overrides are of all rows", done.returncode == 0 and "5 step times" in done.stdout, done)


def test_validate(rows, folder):
    other = os.path.join(folder, "other.csv")
    with open(other, "w", encoding="utf-8") as file:
        file.write(ROWS.replace("0.2", "0.21"))
    done = run("validate", f"{rows}@selene-sheet", f"{other}@megascale-sheet")
    lines = {line.split()[0]: line.split() for line in done.stdout.splitlines() if line.strip()}
    expect("rows of both clusters", done.returncode == 0 and "10 step times of 2 clusters; 2 rows" in done.stdout, done)
    expect("the device is shared", lines.get("matmul_efficiency", ["", ""])[1] == "all" and
           done.stdout.count("matmul_efficiency") == 1 and done.stdout.count("p2p_efficiency") == 2, done)
    errors = lines.get(rows[:18], lines.get(rows, []))
    expect("each cluster is left out, no paper, and few rows are not fitted", errors[4:6] == ["-", "-"] and
           errors[8:10] == ["-", "-"] and "-" not in errors[6:8] + errors[10:14], done)
    done = run("validate", f"{rows}@selene-sheet", f"{other}@selene-sheet")
    errors = {line.split()[0]: line.split() for line in done.stdout.splitlines() if line.strip()}.get("all", [])
    expect("each paper is left out, and no cluster", "-" not in errors[4:6] and errors[6:8] == ["-", "-"], done)
    for what, words, *arguments in (("no table", ["TABLE@PROFILE"],), ("no profile", ["TABLE@PROFILE"], rows),
                                    ("an unknown profile", ["selen"], f"{rows}@selen")):
        done = run("validate", *arguments)
        expect(what, done.returncode == 2 and all(word in done.stderr for word in words), done)


def test_refusals(rows, folder):
    refuse("no table", ["TABLE"], "--base", "dgx-a100-80")
    refuse("no base", ["--base"], rows)
    refuse("an unknown base", ["dgx-a100-81", "dgx-a100-80"], rows, "--base", "dgx-a100-81")
    refuse("an unknown table", ["narayanan2020", "narayanan2021"], "narayanan2020", "--base", "selene")
    refuse("a missing file", ["none.csv"], os.path.join(folder, "none.csv"), "--base", "selene")
    with open(os.path.join(folder, "empty.csv"), "w", encoding="utf-8") as file:
        file.write(ROWS.splitlines()[0] + "\n" + ROWS.splitlines()[-1] + "\n")
    refuse("rows without a time", ["none of 1 rows"], os.path.join(folder, "empty.csv"), "--base", "selene")
    refuse("a file that cannot be written", ["-o ", "not a file"], rows, "--base", "selene", "--fast", "-o", folder)


with tempfile.TemporaryDirectory() as temporary:
    path = os.path.join(temporary, "rows.csv")
    with open(path, "w", encoding="utf-8") as out:
        out.write(ROWS)
    test_fit(path, temporary)
    test_validate(path, temporary)
    test_refusals(path, temporary)
print("\n".join(failures) if failures else "all as expected")
sys.exit(1 if failures else 0)
