# SPDX-License-Identifier: Apache-2.0
"""The commands of a Markdown page, from a clean state: every command of its ```sh and ```console blocks runs in order
in one shell, exits with status 0 (or with the one that `echo $?` shows), and prints the lines that the page shows, in
which `...` matches any lines, and every number of a given form matches any number."""
import os
import re
import subprocess

MARK = "@status "


def blocks(text):
    """(language, lines) of each fenced block."""
    return [(language, body.splitlines()) for language, body in re.findall(r"(?ms)^```(\w+)\n(.*?)^```", text)]


def commands(path):
    """[command, shown lines] of every command of the page, in order."""
    found = []
    with open(path, encoding="utf-8") as file:
        text = file.read()
    for language, lines in blocks(text):
        for line in lines:
            if language == "sh" and line:
                found.append([line, ["..."]])
            elif language == "console" and line.startswith("$ "):
                found.append([line[2:], []])
            elif language == "console":
                found[-1][1].append(line)
    return found


def pattern(shown, number):
    """A regular expression of the shown lines: any numbers of the form `number`, and any lines for `...`."""
    expression = ""
    for line in shown:
        if line == "...":
            expression += r"(?:.*\n)*?"
        else:
            words = [re.escape(word) for word in re.split(r"\s+", re.sub(number, "\0", line))]
            expression += r"\s+".join(words).replace(re.escape("\0"), number) + r"\n"
    return re.compile(expression)


def script(tour, replaced):
    """The tour as one bash script; after each command it prints the command's status."""
    lines = []
    for command, _ in tour:
        lines += ["(exit $status)", replaced(command), f'status=$?; printf "\\n{MARK}%d\\n" $status']
    return "\n".join(["status=0", *lines, ""])


def prepare(folder, root, programs):
    """The files of a clone after `tools/quickstart` in the current directory: recipes, pages, executables (a
    dictionary of names and paths), a text."""
    os.mkdir("build")
    for name, path in programs.items():
        os.symlink(path, os.path.join("build", name))
    for name in ["recipes", "docs", "README.md"]:
        os.symlink(os.path.join(root, name), name)
    with open("text.txt", "w", encoding="ascii") as file:
        file.writelines(f"Line {n}: the ocean is wide, and so is the sky.\n" for n in range(9000))
    os.environ["OMPI_MCA_orte_tmpdir_base"] = folder  # not the folder that other tests' runs share
    os.environ["PATH"] = os.path.join(folder, "build") + ":" + os.environ["PATH"]


def outcomes(folder, root, programs, text):
    """(status, output) of each command of a script."""
    os.chdir(folder)
    prepare(folder, root, programs)
    with open("tour", "w", encoding="utf-8") as file:
        file.write(text)
    done = subprocess.run(["bash", "tour"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          encoding="utf-8", errors="replace", check=False)
    os.chdir("/")
    parts = re.split(rf"\n{MARK}(\d+)\n", done.stdout)
    return list(zip(map(int, parts[1::2]), parts[::2]))


def report(tour, results, number, least, page):
    """Prints the differences from the page; returns the number of failures."""
    failures = 0 if len(results) == len(tour) >= least else 1
    print(f"{len(results)} of {len(tour)} commands were run")
    for at, ((command, shown), (status, output)) in enumerate(zip(tour, results)):
        following = tour[at + 1] if at + 1 < len(tour) else ("", [])
        expected = int(following[1][0]) if following[0] == "echo $?" else 0
        if status != expected or not pattern(shown, number).fullmatch(output.rstrip("\n") + "\n" if output else ""):
            failures += 1
            print(f"$ {command}\nexit status {status}, expected {expected}; {page} shows\n" + "\n".join(shown) +
                  f"\nand it printed\n{output}")
    print(f"{failures} failures")
    return failures
