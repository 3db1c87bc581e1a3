# SPDX-License-Identifier: Apache-2.0
"""Rules of tools/check_source.py about folders and prose: which folder may include which, how many files a folder may
hold, its README, the length of a line of Markdown, its links, the map of the source in docs/reading.md, and private
words that have a standard term."""
import fnmatch
import os
import re
import shutil
import subprocess

FOLDER_FILES, PROSE_CHARS = 25, 120

# The rules that need more than one file.
RULES = {
    "uncalled": "A function of a header is called, and not by tests only.",
    "home": "A function declared in X.h is defined in X.c, with the same names of parameters.",
    "folder-size": "A folder has at most 25 files.",
    "folder-readme": "A folder has a short README.md; \"Included by\" in it lists all that include it.",
    "reading-map": "docs/reading.md links every public header.",
}

# Inside a top-level folder: which of its folders may include which. A folder's own folders belong to it. There is no
# cycle, except that a registry names the generators in the folder below it, by one header.
GRAPH = {
    "trainer": {
        "trainer/files": [],
        "trainer/text": [],
        "trainer/trace": [],
        "trainer/progress": ["trainer/files"],
        "trainer/recipe": ["trainer/files", "trainer/tokenizer"],
        "trainer/tokenizer": ["trainer/files"],
        "trainer/data": ["trainer/files", "trainer/text", "trainer/recipe", "trainer/tokenizer"],
        "trainer/optimizer": ["trainer/recipe"],
        "trainer/engine": ["trainer/recipe", "trainer/data", "trainer/optimizer", "trainer/trace",
                           "trainer/progress"],
        "trainer/checkpoint": ["trainer/recipe", "trainer/files", "trainer/data", "trainer/engine",
                               "trainer/optimizer", "trainer/tokenizer"],
        "trainer/verify": ["trainer/recipe", "trainer/engine", "trainer/optimizer"],
        "trainer/evaluate": ["trainer/recipe", "trainer/files", "trainer/tokenizer", "trainer/data", "trainer/engine",
                             "trainer/checkpoint"],
        "trainer/generate": ["trainer/recipe", "trainer/data", "trainer/tokenizer", "trainer/engine",
                             "trainer/checkpoint"],
        "trainer/run": ["trainer/recipe", "trainer/files", "trainer/tokenizer", "trainer/data", "trainer/optimizer",
                        "trainer/engine", "trainer/checkpoint", "trainer/progress", "trainer/trace"],
    },
    "planner": {
        "planner/profile": [],
        "planner/assume": [],
        "planner/recipe": ["planner/profile", "planner/assume"],
        "planner/tape": [],
        "planner/memory": ["planner/recipe"],
        "planner/cost": ["planner/profile", "planner/assume"],
        "planner/predict": ["planner/cost", "planner/tape"],
        "planner/plan": ["planner/recipe", "planner/memory", "planner/profile", "planner/tape", "planner/predict"],
        "planner/draw": ["planner/plan"],
        "planner/schedule": ["planner/memory", "planner/profile", "planner/plan"],
        "planner/sweep": ["planner/recipe", "planner/memory", "planner/plan", "planner/schedule"],
        "planner/choose": ["planner/recipe", "planner/plan", "planner/sweep"],
        "planner/published": ["planner/recipe", "planner/plan"],
        "planner/advice": ["planner/recipe", "planner/plan", "planner/schedule", "planner/sweep", "planner/choose"],
        "planner/table": ["planner/recipe", "planner/profile", "planner/plan", "planner/schedule", "planner/published"],
        "planner/fit": ["planner/profile", "planner/plan", "planner/schedule", "planner/table"],
    },
    "parallel": {
        "parallel/transports/local": ["parallel"],
        "parallel/transports/mpi": ["parallel"],
        "parallel/transports/nccl": ["parallel"],
        "parallel/transports/dry": ["parallel", "parallel/transports/nccl/comm_nccl_scratch.h"],
        "parallel": [],
    },
    "schedules": {
        "schedules/csv": ["schedules", "schedules/families"],
        "schedules/draw": ["schedules", "schedules/families"],
        "schedules/search": ["schedules", "schedules/families"],
        "schedules/families": ["schedules"],
        "schedules": ["schedules/families/family.h"],
    },
}

# Folders that need no README.
NO_README = ["", ".ci", ".github/*", "docs/schedules", "docs/precision", "docs/gpu", "tests/emulator/include/*"]

# The map of the source, and the headers that it need not name: private to a device's folder, tools, tests.
MAP = "docs/reading.md"
NOT_ON_MAP = ["kernels/*/*", "tools/*", "tests/*"]


# Functions of the program that only tests call, and why they are not in tests/.
ONLY_TESTS = {
    "data_epoch_samples": "what an epoch is, for tests of the order of the data",
    "group_all_to_all": "the collective of experts (docs/internals/design-notes.md), tested on every transport",
    "memory_kept_of_block": "a part of the formula, compared with published tables",
    "memory_plan_record_all": "the reference for tapes whose sections are repeated",
    "message_bytes_from": "the bytes per peer that an observer sees",
    "message_bytes_to": "the bytes per peer that an observer sees",
    "number_decode": "defines the codes of a number format",
    "number_encode": "defines the codes of a number format",
    "offload_stream": "access to a private member",
    "philox_uniform": "defines the elements that dropout keeps",
    "status_name": "the table of statuses is private",
    "world_run_threads": "a world without a launcher",
}

# Headers whose functions are defined in files of other names, and why.
OF_SEVERAL = {
    "base/text.h": "reading and writing a file as a text",
    "kernels/cuda/matmul/cublaslt.h": "private to gemm_*.c",
    "kernels/cuda/runtime/cuda.h": "the parts of the device that call each other",
    "kernels/cuda/runtime/message.h": "what transports may ask of the device",
    "kernels/device_plan.h": "what a plan may ask of the devices",
    "kernels/numbers/number_round.h": "includes number_format.h, to be inlined in kernels",
    "kernels/ops.h": "an op is one row, whichever file checks, copies or sizes it",
    "parallel/comm.h": "world_run_dry() has no header of its own",
    "parallel/transports/transport_info.h": "what is known without a world",
    "parallel/transports/transports.h": "what transports may call",
    "planner/fit/fit_rows.h": "private to the fit",
    "planner/predict/lanes.h": "the parts of the simulation, which call each other",
    "planner/profile/profile_table.h": "private to profile_*.c",
    "planner/tape/tape_recorder.h": "private to the recorder",
    "schedules/csv/csv_parse.h": "private to csv_*.c",
    "schedules/draw/svg.h": "the colours are next to the drawings that have the tables",
    "schedules/families/family.h": "what generators may call",
    "tools/cli/sweep/sweep_output.h": "the forms of the output, a file each",
    "tools/cli/table/table_output.h": "the forms of the output, a file each",
}
NO_HOME_YET = ["trainer/*"]

# Private words that were replaced, and the term to use. Words with an everyday meaning are not here.
WORDS = {
    r"\bHOME_(?:INPUT|UNTIL|AGAIN|SCRATCH)\w*": "activation lifetimes are KEEP_..., RECOMPUTE and SCRATCH",
    r"\bstruct worker\b": "struct rank_state",
    r"\btwins?\b": "stage replicas; counterpart",
    r"\berrands?\b|\bagenda\b": "operation",
    r"\bremarks\b": "step statistics",
    r"\blowerings?\b": "quantization",
    r"\bquantis\w+": "quantize, quantization",
    r"\bcomputed again\b|\bdone again\b": "recomputed",
    r"\bback pass\b|\bway back\b": "backward pass",
    r"\bto the bit\b": "bitwise, bit-identical",
    r"\bheld to\b": "checked against",
    r"\bin vain\b": "time out, never completes",
    r"\bplanted": "injected fault",
    r"\bstruct player\b|\bWITH_SPARES\b": "simulation of a building block, headroom",
    r"\bmesh_place\b": "mesh_coord()",
    r"\bPRODUCT_(?:FORWARD|GRAD_INPUT|GRAD_WEIGHT)\b": "MATMUL_...",
    r"\bcheckpoint_piece\b|\bpiece_of_rank\b": "shard of a checkpoint",
    r"\basked to stop\b": "stop requested",
    r"\bexclude each other\b": "are mutually exclusive",
    r"\bcomes along\b": "is packed, is included",
    r"\bstands still\b": "is stalled, hangs",
    r"\blet go\b": "release",
    r"\bat hand\b": "available, resident",
    r"\bunder way\b": "in flight",
    r"\bsmall number formats?\b": "low-precision formats",
    r"\bspeaks\b": "is primary, reports",
    r"\bwhoever\b": "name the caller or the rank",
    r"\bsays so\b": "reports",
    r"\bgoes on\b": "continues, resumes",
    r"\bin front of\b": "before",
    r"\bsomebody\b": "name the caller or the rank",
    r"\bwent un(?:seen|noticed)\b": "was not detected",
    r"\bstruct judge\b|\bjudged?_\w+": "checker, record()",
    r"\bstruct dice\b|\bthrow_dice\b": "struct rng, rng_int()",
    r"\ba injected\b": "an injected fault",
    r"\banew\b": "again, recomputed, restarts",
    r"\bbeside\b": "concurrently, next to it; a communication stream",
    r"\bwould work\b": "is valid",
    r"\brehears\w+": "dry run, memory planning pass",
    r"\bspoil\w*": "inject, damage",
    r"\bdies\b|\bdied\b|\bdeath\b": "exits, fails; failure",
    r"\blegal values?\b": "valid value",
    r"\bnobody\b(?!')": "name who does not, or use the passive",
    r"\bin peace\b": "gracefully",
    r"\bspeakers?\b": "primary rank",
}
assert all(pattern.startswith(r"\b") for pattern in WORDS)
ANY_WORD = re.compile(r"\b(?:" + "|".join(WORDS) + ")")  # 17 times as fast as one pattern after another


def node_of(path, nodes):
    """The folder of the graph that contains a path: the longest match."""
    found = [node for node in nodes if path.startswith(node + "/")]
    return max(found, key=len, default=None)


def cycle(nodes):
    """A cycle of folders in a graph, as a list; empty if there is none."""
    done = set()

    def search(node, way):
        if node in way:
            return [*way[way.index(node):], node]
        for other in nodes.get(node, []) if node not in done else []:
            found = search(other, [*way, node])
            if found:
                return found
        done.add(node)
        return []
    return next(filter(None, (search(node, []) for node in nodes)), [])


for top, graph in GRAPH.items():
    assert not cycle(graph), f"GRAPH: {' includes '.join(cycle(graph))}"
    assert top == "schedules" or top == "parallel" or not any(
        name.endswith(".h") for allowed in graph.values() for name in allowed), f"GRAPH: {top}/: folders, not headers"


def graph_complaints(path, includes):
    """(line, sentence) of each #include that the graph of its top-level folder does not have."""
    nodes = GRAPH.get(path.split("/")[0])
    if nodes is None:
        return
    here = node_of(path, nodes)
    for line, name, quoted in includes:
        there = node_of(name, nodes)
        if not quoted or name.split("/")[0] != path.split("/")[0]:
            continue
        if here is None or there is None:
            yield line, f"the folder of {path if here is None else name} is not in GRAPH of tools/dev/check_tree.py"
        elif there != here and there not in nodes[here] and name not in nodes[here]:
            may = ", ".join(nodes[here]) or "no other folder of its own"
            yield line, f"{here}/ may not include {name}; it may include {may}"


def tree_files(root):
    """Tracked files and new ones that git does not ignore; without git, everything but build folders."""
    listed = b""
    if shutil.which("git"):
        listed = subprocess.run(["git", "-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                                capture_output=True, check=False).stdout
    names = [os.fsdecode(name) for name in listed.split(b"\0") if name]
    if not names:
        for folder, folders, files in os.walk(root):
            folders[:] = [f for f in folders if f not in (".git", "runs", "__pycache__") and not f.startswith("build")]
            names += [os.path.relpath(os.path.join(folder, name), root) for name in files]
    return sorted({name for name in names if os.path.isfile(os.path.join(root, name))})


def folder_complaints(root, paths):
    """(path, line, rule, sentence) of folders with too many files, or without a README."""
    folders = {}
    for path in paths:
        folders.setdefault(os.path.dirname(path), []).append(os.path.basename(path))
    for folder, names in sorted(folders.items()):
        count = len([name for name in names if name not in ("README.md", "meson.build")])
        if count > FOLDER_FILES and folder:
            yield folder, 1, "folder-size", f"{count} files, over {FOLDER_FILES}: divide it by subject"
        if any(fnmatch.fnmatch(folder, pattern) for pattern in NO_README):
            continue
        lines = []
        if "README.md" in names:
            with open(os.path.join(root, folder, "README.md"), encoding="utf-8") as file:
                lines = [line for line in file.read().split("\n") if line.strip()]
        if not 3 <= len(lines) <= 11:
            yield (folder, 1, "folder-readme",
                   "a folder has a README.md of three to ten lines: what it holds, where to start, who may include it")


def included_by(file):
    """The folders and files that a README lists."""
    if not os.path.exists(file):
        return []
    with open(file, encoding="utf-8") as readme:
        lists = re.findall(r"Included by:(.*)", readme.read())
    return [name.rstrip("/") for names in lists for name in re.findall("`([^`]+)`", names)]


def reader_complaints(root, included):
    """(path, line, rule, sentence) of each #include that the README of the header's folder, or of one above, does not
    permit: "Included by: `trainer/run`, `tools/`." included: (path, line, header) of each #include outside tests/."""
    permitted = {}
    for path, line, header in included:
        folder = os.path.dirname(header)
        while folder:
            if folder not in permitted:
                permitted[folder] = included_by(os.path.join(root, folder, "README.md"))
            allowed = [folder, *permitted[folder]]
            if permitted[folder] and not any(path == name or path.startswith(name + "/") for name in allowed):
                yield (path, line, "folder-readme", f"{folder}/README.md does not list this folder in \"Included by\": "
                       f"add it, or do not include {header}")
            folder = os.path.dirname(folder)


def prose_lines(lines):
    """(number, line) of the prose of a Markdown file: not its code, tables, comments and HTML."""
    code = comment = False
    for number, line in enumerate(lines, 1):
        fence = line.lstrip().startswith("```")
        comment = comment or "<!--" in line
        if not code and not fence and not comment and not line.lstrip().startswith(("|", "<", "#")):
            yield number, line
        code ^= fence
        comment = comment and "-->" not in line


def length_complaints(lines):
    """(line, sentence) of prose that is too long; the target of a link does not count."""
    for number, line in prose_lines(lines):
        shown = re.sub(r"\]\([^)]*\)", "]", line)
        if len(shown) > PROSE_CHARS:
            yield number, f"{len(shown)} characters, over {PROSE_CHARS}: one sentence per line"


def link_complaints(root, path, lines):
    """(line, sentence) of broken relative links; code is skipped."""
    code = False
    for number, line in enumerate(lines, 1):
        code ^= line.lstrip().startswith("```")
        for target in re.findall(r"\]\(([^)\s]+)\)", "" if code else line):
            file = target.split("#")[0]
            if file and "://" not in target and not os.path.exists(os.path.join(root, os.path.dirname(path), file)):
                yield number, f"{target}: no such file"


def map_complaints(root, paths):
    """(path, line, rule, sentence) of each public header that the map of the source does not link."""
    if MAP not in paths:
        return
    with open(os.path.join(root, MAP), encoding="utf-8") as file:
        text = file.read()
    for path in paths:
        on_map = path.endswith(".h") and not any(fnmatch.fnmatch(path, pattern) for pattern in NOT_ON_MAP)
        if on_map and f"(../{path})" not in text:
            yield MAP, 1, "reading-map", f"{path} is missing: add it to the table of its folder"


def call_complaints(names, functions, only_tests):
    """(path, line, rule, sentence) of each function of a header that only tests call. names: how often each word occurs
    in the code; functions: name to (path, line, whether it is defined in the header)."""
    uncalled = {name for name, (_, _, defined) in functions.items() if names[name] <= (1 if defined else 2)}
    for name in sorted(uncalled - set(only_tests)):
        path, line, _ = functions[name]
        yield path, line, "uncalled", (f"only tests call {name}(), if any: remove it, or give the reason in "
                                       "ONLY_TESTS of tools/dev/check_tree.py")
    for name in sorted(set(only_tests) - uncalled):
        yield ("tools/dev/check_tree.py", 1, "uncalled",
               f"{name}() is called, or does not exist: remove it from ONLY_TESTS")


def parameters_of(text, begin):
    """The names of the parameters in text[begin:], which begins after the parenthesis; of one without a name, its
    type."""
    names, depth, parameter = [], 1, ""
    for char in text[begin:]:
        depth += (char in "([") - (char in ")]")
        if depth == 0 or (depth == 1 and char == ","):
            name = re.search(r"\(\s*\*(?:\s*const)?\s*(\w+)|(\w+)(?:\s*\[[^\]]*\])*\s*$", parameter)
            names.append(name.group(1) or name.group(2) if name else parameter.strip())
            parameter = ""
        else:
            parameter += char
        if depth == 0:
            break
    return names


def is_home(header, file):
    """Whether X.h may declare what a file defines: X.c, X_part.c next to it; or, of a header with the name of its
    folder (schedules/schedule.h, runs/cmd_runs.h), any file below the folder."""
    folder, name = os.path.split(os.path.splitext(header)[0])
    base = os.path.basename(os.path.splitext(file)[0])
    if os.path.basename(folder) in (name, name + "s", name.removeprefix("cmd_")):
        return file.startswith(folder + "/")
    return os.path.dirname(file) == folder and (base == name or base.startswith(name + "_"))


def home_complaints(declared, defined, several):
    """(path, line, rule, sentence) of each function of a header that is defined in a file of another name, or with
    other names of its parameters. declared, defined: name to (path, line, names of the parameters)."""
    used = set()
    for name, (path, line, parameters) in sorted(declared.items()):
        if name not in defined or any(fnmatch.fnmatch(path, pattern) for pattern in NO_HOME_YET):
            continue
        file, _, others = defined[name]
        if not is_home(path, file) and path not in several:
            yield path, line, "home", f"{name}() is defined in {file}: declare it in the header of that file"
        elif not is_home(path, file):
            used.add(path)
        if parameters != others:
            yield (path, line, "home", f"{name}() is defined with ({', '.join(others)}): use the same names of "
                   "parameters")
    for path in sorted(set(several) - used):
        yield "tools/dev/check_tree.py", 1, "home", f"{path} needs no exception: remove it from OF_SEVERAL"


def word_complaints(lines):
    """(line, sentence) of each private word."""
    if not any(map(ANY_WORD.search, lines)):
        return
    for number, line in enumerate(lines, 1):
        for pattern, instead in WORDS.items():
            match = re.search(pattern, line)
            if match:
                yield number, f'"{match.group()}": {instead}'
