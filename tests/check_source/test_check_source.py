#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every rule of tools/check_source.py gets a file with one injected fault and must report its line, and a file of
valid code that resembles faults, which it must accept."""
import os
import re
import subprocess
import sys
import tempfile

TOOLS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools")
sys.dont_write_bytecode = True
sys.path.insert(0, TOOLS)
import check_source  # noqa: E402

LICENCE = "// SPDX-License-Identifier: Apache-2.0\n"
SCRIPT = "#!/bin/sh\n# SPDX-License-Identifier: Apache-2.0\n"
LONG_FUNCTION = "int f(void)\n{\n" + "    g();\n" * 58 + "}\n"

# (rule, path, text after the licence line, the line it must name)
FAULTS = [
    ("direction", "kernels/a.c", '#include "layers/norm.h"\n', 2),
    ("direction", "schedules/a.c", '#include "base/text.h"\n#include "kernels/ops.h"\n', 3),
    ("direction", "base/a.c", '#include "kernels/ops.h"\n', 2),
    ("direction", "layers/a.c", '#include "trainer/recipe/recipe.h"\n', 2),
    ("direction", "parallel/a.c", '#include "layers/norm.h"\n', 2),
    ("direction", "trainer/a.c", '#include "tools/cli/options.h"\n', 2),
    ("direction", "trainer/run/a.c", '#include "planner/plan/step_plan.h"\n', 2),
    ("folder-graph", "planner/tape/a.c", '#include "planner/plan/step_plan.h"\n', 2),
    ("direction", "stray/a.c", '#include "base/text.h"\n', 2),
    ("private", "layers/a.c", '#include "kernels/cpu/gemm.h"\n', 2),
    ("private", "trainer/a.c", '#include "kernels/strict/late.h"\n', 2),
    ("private", "parallel/a.c", '#include "kernels/cuda/cuda.h"\n', 2),
    ("private", "tools/a.c", '#include "kernels/dry/cost.h"\n', 2),
    ("folder-graph", "trainer/data/a.c",
     '#include "trainer/recipe/recipe.h"\n#include "trainer/engine/rank.h"\n', 3),
    ("folder-graph", "trainer/stray/a.c", '#include "trainer/recipe/recipe.h"\n', 2),
    ("folder-graph", "schedules/csv/a.c", '#include "schedules/search/auto.h"\n', 2),
    ("vendor", "layers/a.c", "#include <cblas.h>\n", 2),
    ("vendor", "parallel/group.c", "#include <stdio.h>\n#include <mpi.h>\n", 3),
    ("vendor", "trainer/a.c", "#include <cuda_runtime.h>\n", 2),
    ("vendor", "kernels/cpu/a.c", "#include <boost.h>\n", 2),
    ("include-path", "base/a.c", '#include "text.h"\n', 2),
    ("include-path", "base/a.c", '#include "../base/text.h"\n', 2),
    ("own-header", "base/text.c", '#include <stdio.h>\n#include "base/text.h"\n', 2),
    ("header-of-c", "tests/unit/a.c", '#include "base/other.c"\n', 2),
    ("pragma-once", "base/a.h", "#ifndef A_H\n#define A_H\n#endif\n", 1),
    ("backend-name", "layers/a.c", 'int f(const char *s)\n{\n    return strcmp(s, "cuda") == 0;\n}\n', 4),
    ("backend-name", "trainer/run/train.c", "#ifdef HAVE_MPI\n#endif\n", 2),
    ("banned-call", "base/a.c", "void f(char *a, const char *b)\n{\n    strcpy(a, b);\n}\n", 4),
    ("banned-call", "base/a.c", "int f(const char *a)\n{\n    return atoi (a);\n}\n", 4),
    ("banned-call", "trainer/a.c", "void f(void)\n{\n    exit(1);\n}\n", 4),
    ("banned-call", "layers/a.c", "void f(int x)\n{\n    assert(x > 0);\n}\n", 4),
    ("escaped-warning", "trainer/a.c",
     'void f(const char *s)\n{\n    fprintf(stderr,\n            "warning: %s\\n", s);\n}\n', 4),
    ("state", "base/a.c", "int counter;\n", 2),
    ("state", "base/a.c", "static int table[4] = {1, 2};\n", 2),
    ("state", "base/a.c", "/* first */\n\nstatic const char *names[] = {\n    \"a\",\n};\n", 4),
    ("state", "base/a.c", "static int (*hook)(int);\n", 2),
    ("state", "base/a.c", "static struct {\n    int x;\n} here;\n", 2),
    ("state", "base/a.c", "static _Thread_local int depth;\n", 2),
    ("state", "base/a.c", "extern struct device *current;\n", 2),
    ("state", "base/a.c", "int f(void)\n{\n    static int calls = 0;\n    return ++calls;\n}\n", 4),
    ("state", "base/a.c", "int f(void)\n{\n    static char buffer[64];\n    return buffer[0];\n}\n", 4),
    ("state", "kernels/cuda/a.cu", 'extern "C" {\nint counter;\n}\n', 3),
    ("uncalled", "base/a.h", "#pragma once\nint f(void);\n", 3),
    ("uncalled", "layers/a.h", "#pragma once\nint *f(int (*g)(void));\nstatic inline int h(void)\n{\n    return 0;\n}\n"
     "static inline int k(void)\n{\n    return k() + f(k) + *f(k);\n}\n", 4),
    ("function-length", "base/a.c", LONG_FUNCTION, 2),
    ("function-length", "base/a.c", "static const int x = 1;\n\n" + LONG_FUNCTION, 4),
    ("function-length", "kernels/cuda/a.cu", 'extern "C" {\n' + LONG_FUNCTION + "}\n", 3),
    ("function-length", "tests/unit/a.c", LONG_FUNCTION.replace("int f(void)", "Test(a, b, .init = c)"), 2),
    ("python-function-length", "tools/a.py", "def f():\n" + "    g()\n" * 60, 2),
    ("python-function-length", "tools/a.py", "def f(:\n", 2),
    ("file-length", "base/a.c", "int f(void);\n" * 600, 601),
    ("file-length", "tools/a", SCRIPT + ":\n" * 599, 601),
    ("file-length", "base/meson.build", "# line\n" * 601, 601),
    ("spdx", "base/a.h", "#pragma once\n", 1),
    ("spdx", "tools/a", "#!/bin/sh\n", 1),
    ("spdx", "tools/a", "#!/usr/bin/env python3\n# license\n", 1),
    ("dead-code", "base/a.c", "#if 0\nint f(void);\n#endif\n", 2),
    ("unfinished", "base/a.c", "int f(void); // TO" + "DO\n", 2),
    ("unfinished", "README.md", "FIX" + "ME\n", 1),
    ("machine-path", "tools/a", SCRIPT + "cat /ho" + "me/someone/x\n", 3),
    ("machine-path", "recipes/a.yaml", "data: ../share" + "d/x\n", 1),
    ("machine-path", "docs/a.md", "Go to /tmp/w" + "t/x.\n", 1),
    ("whitespace", "base/a.c", "int\tf(void);\n", 2),
    ("whitespace", "docs/a.md", "caf\udce9\n", 1),
    ("whitespace", "base/a.c", "int f(void); \n", 2),
    ("whitespace", "base/a.c", "int f(void);\r\n", 2),
    ("whitespace", "base/a.c", "int f(void);", 2),
    ("whitespace", "base/a.c", "int f(void);\n\n", 3),
    ("line-length", "base/a.c", "// " + "x" * 108 + "\n", 2),
    ("line-length", "tools/a", SCRIPT + "# " + "x" * 119 + "\n", 3),
    ("line-length", "recipes/a.yaml", "# " + "x" * 119 + "\n", 1),
    ("private-word", "layers/a.c", "// recompute what HOME_" + "AGAIN holds\n", 2),
    ("private-word", "docs/a.md", "Equal to the" + " bit.\n", 1),
    ("private-word", "tools/a.py", '"""A' + ' plan' + 'ted overflow."""\n', 2),
    ("private-word", "parallel/a.c", "int mesh_" + "place(void);\n", 2),
    ("private-word", "layers/a.c", "// blocks start an" + "ew at each sequence\n", 2),
    ("private-word", "tools/a.py", '"""The stream be' + 'side it."""\n', 2),
    ("private-word", "kernels/a.c", "// a layout that would" + " work\n", 2),
    ("private-word", "trainer/a.c", '#define WHY "a and b exclude' + ' each other"\n', 2),
    ("private-word", "docs/a.md", "The run go" + "es on.\n", 1),
    ("private-word", "docs/a.md", "Memory in fr" + "ont of the slot.\n", 1),
    ("private-word", "docs/a.md", "When some" + "body waits.\n", 1),
    ("private-word", "tests/a.c", '#define WHY "the fault went un' + 'seen"\n', 2),
    ("private-word", "tests/a.c", "struct ju" + "dge;\n", 2),
    ("private-word", "tests/a.c", "int throw_" + "dice(void);\n", 2),
    ("private-word", "tests/a.c", "/* finds a inj" + "ected fault */\n", 2),
    ("private-word", "kernels/a.c", "// a tw" + "in of it\n", 2),
    ("prose-length", "docs/a.md", "| " + "a cell " * 20 + "|\n\n" + "word " * 24 + "end\n", 3),
    ("prose-length", "docs/a.md", "```\n" + "x" * 130 + "\n```\n" + "word " * 24 + "[end](a.md)\n", 4),
    ("broken-link", "docs/a.md", "[a](a.md), [b](../base/text.h#b)\n[c](c.md)\n", 2),
    ("broken-link", "a.md", "```\n[c](c.md)\n```\n[a](docs/a.md)\n", 4),
]

# Valid code that resembles faults, all in one tree.
VALID = {
    "base/text.h": LICENCE
    + "#pragma once\nextern const int limit;\nstruct text;\nint text_add(struct text *t, int n);\n",
    "base/text.c": LICENCE + '#include "base/text.h"\n\n#include <stdio.h>\n\n'
    + "/* strcpy(a, b) in a comment, static int x; too */\n"
    + 'static const char *const names[] = {"atoi(x)", "// no comment", "a \\" static int y;"};\n'
    + "static const struct row {\n    const char *name;\n    int (*make)(int n);\n} rows[] = {\n"
    + "    {.name = \"x\", .make = NULL},\n};\n"
    + '_Static_assert(sizeof names / sizeof *names == 3, "rows");\n'
    + "static volatile sig_atomic_t asked;\n"
    + "enum { LIMIT = 4 };\nstruct point {\n    int x, y;\n};\ntypedef int (*callback)(void);\n"
    + "static int (*const hook)(int) = NULL;\n"
    + "static int sum(int (*each)(int), int n);\nint sum_of(const int *list, int n) __attribute__((pure));\n"
    + "int text_add(struct text *t, int n)\n{\n    return n == 0 ? 0 : text_add(t, n - 1);\n}\n"
    + "void run(struct x *x, int (*body)(struct x *x, void *argument), void *argument)\n{\n"
    + "    static const int weights[] = {1, 2};\n    x->exit(1);\n    my_strcpy(x);\n}\n"
    + "#define LOOP(n) \\\n    for (int i = 0; i < (n); i++) { \\\n    }\n"
    + 'void say(const char *s)\n{\n    print_line(stderr, "warning: %s", s);\n    fprintf(stderr, "%s", s);\n}\n'
    + "int after(void)\n{\n    return '{' + '\"';\n}\n"
    + LONG_FUNCTION.replace("    g();\n", "", 1)
    + LONG_FUNCTION.replace("    g();\n", "    case A:\n", 1).replace("f(", "walk("),
    "kernels/cpu/matmul/blas_onednn.c": LICENCE + "#include <dnnl.h>\n#include <omp.h>\n",
    "parallel/comm.c": LICENCE + '#ifdef HAVE_MPI\nconst char *f(void)\n{\n    return "local";\n}\n#endif\n',
    "layers/norm.c": LICENCE + '// the "cuda" device\nconst char *f(void)\n{\n    return "the cpu is fine";\n}\n',
    "tests/unit/test_x.c": LICENCE
    + "#include <criterion/criterion.h>\nTest(x, y)\n{\n    assert(1);\n    exit(0);\n}\n",
    "tools/run": SCRIPT + "mktemp -d /tmp/XXXXXX\n",
    "docs/page.md": "See https://example.org/home/page and [a link](https://example.org/" + "word/" * 40 + "end).\n",
    "tests/oracle/golden_x.txt": "1\t2 \n",
}


def write(root, path, text):
    full = os.path.join(root, path)
    os.makedirs(os.path.dirname(full), exist_ok=True)
    with open(full, "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
        file.write(text)


def complaints(root, exempt):
    """The complaints about the tree at `root`, as (file and line, rule)."""
    return [(f"{path}:{line}", name) for path, line, name, _ in check_source.check(root, exempt)]


def check_file(name, path, text):
    """The complaints about a tree with this one file (and headers for it to include)."""
    if path.endswith((".c", ".h", ".cu")) and name != "spdx":
        text = LICENCE + text
    elif path.endswith(".py"):
        text = SCRIPT.splitlines(True)[1] + text
    with tempfile.TemporaryDirectory() as root:
        for header in ("base/text", "kernels/ops", "layers/norm", "trainer/recipe/recipe", "kernels/cpu/gemm",
                       "kernels/strict/late", "kernels/cuda/cuda", "kernels/dry/cost", "tools/cli/options",
                       "trainer/engine/rank", "schedules/search/auto", "planner/plan/step_plan"):
            write(root, header + ".h", LICENCE + "#pragma once\n")
        write(root, "base/other.c", LICENCE)
        write(root, path, text)
        return complaints(root, {})


def exemptions():
    """An exemption disables its rule in its file, and is reported when nothing needs it."""
    with tempfile.TemporaryDirectory() as root:
        write(root, "base/a.c", LICENCE + "int counter;\n")
        write(root, "base/b.c", LICENCE)
        if complaints(root, {("state", "base/a.c"): "reason"}):
            yield "an exemption did not disable its rule"
        unneeded = {("state", "base/a.c"): "reason", ("state", "base/b.c"): "none"}
        if complaints(root, unneeded) != [("base/b.c:1", "state")]:
            yield "an unneeded exemption was not reported"
        write(root, "base/b.h", LICENCE + "#pragma once\nint f(void);\n")
        found = [(path, rule) for path, _, rule, _ in
                 check_source.check(root, {("state", "base/a.c"): "reason"}, {"f": "reason", "g": "none"})
                 if rule != "own-header"]
        if found != [("tools/dev/check_tree.py", "uncalled")]:
            yield f"ONLY_TESTS: the checker reported {found}"


def homes():
    """A function of a header that is defined in a file of another name, or with other parameters, is reported."""
    files = {"base/a.h": "#pragma once\nint f(int x, const char *const names[2], void (*done)(int y));\nint g(void);\n"
                         "int h(int);\nint k(int x);\n",
             "base/a.c": '#include "base/a.h"\nint f(int x, const char *const names[2], void (*done)(int z))\n{\n'
                         "    return k(g() + h(x));\n}\nstatic int p(int y)\n{\n    return f(y, 0, 0) + p(y);\n}\n",
             "base/a_part.c": '#include "base/a.h"\nint g(void)\n{\n    return 0;\n}\n',
             "base/b.c": '#include "base/a.h"\nint h(int x)\n{\n    return x;\n}\n',
             "base/a_more.c": '#include "base/a.h"\nint k(int y)\n{\n    return y;\n}\n',
             "layers/norm/cmd_norm.h": "#pragma once\nint n(void);\n",
             "layers/norm/deep/part.c": '#include "layers/norm/cmd_norm.h"\nint n(void)\n{\n    return n() + n();\n}\n'}
    for several, lines in (((), ["base/a.h:5", "base/a.h:5", "base/a.h:6"]),
                           (("base/a.h", "base/c.h"), ["base/a.h:5", "base/a.h:6", "tools/dev/check_tree.py:1"])):
        with tempfile.TemporaryDirectory() as root:
            for path, text in files.items():
                write(root, path, LICENCE + text)
            found = [f"{path}:{line}" for path, line, rule, _ in check_source.check(root, {}, {}, several)
                     if rule == "home"]
            if found != lines:
                yield f"homes: the checker reported {found}, not {lines}"


def folders():
    """A folder with too many files, and one without a README or with a long one, are reported; the others are not."""
    with tempfile.TemporaryDirectory() as root:
        names = [f"{folder}/{i}.c" for folder, count in (("full", 26), ("fits", 25)) for i in range(count)]
        names += ["full/README.md", "fits/README.md", "fits/meson.build", "none/a.c", ".ci/run"]
        names += ["long/README.md", "short/README.md"]
        for name in names:
            text = "# Title\n\nWhat.\nWhere.\n" + ("Who.\n" * 9 if name.startswith("long") else "")
            write(root, name, "# Title\n\nWhat.\n" if name.startswith("short") else text)
        found = [(path, rule) for path, _, rule, _ in check_source.check_tree.folder_complaints(root, names)]
        if found != [("full", "folder-size"), *((path, "folder-readme") for path in ("long", "none", "short"))]:
            yield f"folders: the checker reported {found}"


def readers():
    """An #include that the README of the header's folder, or of one above it, does not list is reported."""
    with tempfile.TemporaryDirectory() as root:
        write(root, "trainer/README.md", "# trainer\n\nIncluded by: `tools/`, `base/b.c`.\n")
        write(root, "trainer/run/README.md", "# run\n\nIncluded by: `trainer/`.\n")
        write(root, "layers/README.md", "# layers\n\nIncluded by: every folder.\n")
        included = [("tools/a.c", 1, "trainer/a.h"), ("trainer/data/a.c", 2, "trainer/run/a.h"),
                    ("base/b.c", 3, "trainer/data/a.h"), ("base/a.c", 4, "layers/a.h"),
                    ("tools/a.c", 5, "trainer/run/a.h"), ("base/a.c", 6, "trainer/data/a.h")]
        found = [line for _, line, *_ in check_source.check_tree.reader_complaints(root, included)]
        if found != [5, 6]:
            yield f"readers: the checker reported lines {found}"


def reader_map():
    """A public header that docs/reading.md does not link is reported; private headers and tests are not."""
    with tempfile.TemporaryDirectory() as root:
        names = ["base/a.h", "base/b.h", "base/b.c", "kernels/cpu/c.h", "tests/d.h", "docs/reading.md"]
        write(root, "docs/reading.md", "[a.h](../base/a.h)\n")
        found = [sentence.split()[0] for *_, sentence in check_source.check_tree.map_complaints(root, names)]
        if found != ["base/b.h"] or list(check_source.check_tree.map_complaints(root, names[:-1])):
            yield f"reading-map: the checker reported {found}"


def lists():
    """Every banned call and every private word is reported."""
    for call in [*check_source.BANNED, *check_source.RESTRICTED]:
        if check_file("banned-call", "layers/a.c", f"void f(void)\n{{\n    {call}(x);\n}}\n") != [
                ("layers/a.c:4", "banned-call")]:
            yield f"banned-call: {call}() was not reported"
    for pattern in check_source.check_tree.WORDS:
        word = pattern.split("|")[0].replace(r"\b", "").replace("(?!')", "").replace(r"\w+", "s").replace(r"\w*", "")
        word = re.sub(r"\(\?:(\w+).*", r"\1", word).replace("s?", "s")
        found = [sentence for _, sentence in check_source.check_tree.word_complaints(["", f"the {word}, x"])]
        if not any(sentence.startswith(f'"{word}": ') for sentence in found):
            yield f"private-word: {word} was not reported"


def command_line():
    """The exit status: 0 for a clean tree, 1 with a complaint, 2 for a wrong call."""
    with tempfile.TemporaryDirectory() as root:
        for expected, text in ((0, LICENCE), (1, LICENCE + "int counter;\n")):
            write(root, "base/a.c", text)
            write(root, "base/README.md", "# base\n\nWhat.\nWhere.\n")
            ran = subprocess.run([sys.executable, check_source.__file__, "--root", root], capture_output=True,
                                 text=True, check=False)
            line = "base/a.c:2: counter is state that ranks as threads would share [state]\n"
            if ran.returncode != expected or ran.stdout != line * expected:
                yield f"exit status {ran.returncode} for {expected}: {ran.stdout}{ran.stderr}"
    ran = subprocess.run([sys.executable, check_source.__file__, "--what"], capture_output=True, check=False)
    if ran.returncode != 2:
        yield f"exit status {ran.returncode} for a wrong call"


def main():
    failures = [*exemptions(), *homes(), *folders(), *readers(), *reader_map(), *lists(), *command_line()]
    for name, path, text, line in FAULTS:
        found = check_file(name, path, text)
        if found != [(f"{path}:{line}", name)]:
            failures.append(f"{name} in {path}, line {line}: the checker reported {found}")

    with tempfile.TemporaryDirectory() as root:
        for path, text in VALID.items():
            write(root, path, text)
        for where, name in complaints(root, {}):
            failures.append(f"valid code: the checker reported {where} {name}")

    for name in sorted(set(check_source.RULES) - {fault[0] for fault in FAULTS}):
        failures.append(f"{name}: a rule without an injected fault")

    for failure in failures:
        print(failure)
    print(f"{len(FAULTS)} injected faults, {len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
