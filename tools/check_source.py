#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks conventions that a compiler does not: which folder may include which, where a vendor's header may appear,
limits on the length of files and functions, banned calls, and mutable state that ranks as threads would share.

    tools/check_source.py             the whole tree; one "file:line: sentence" each, exit status 1 if any
    tools/check_source.py --list      the rules

Comments and string literals are blanked first, column for column, so that a word in a comment is not mistaken
for code. The checker reads text, not types: every rule must be decidable from text.

A rule is one function below with @rule, and one injected fault in tests/check_source. Where a file must
break a rule, EXEMPT gives the reason; an unneeded exemption is also reported."""
import ast
import collections
import fnmatch
import os
import re
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "dev"))
import check_tree  # noqa: E402

FILE_LINES, FUNCTION_LINES, C_LINE_CHARS, SCRIPT_LINE_CHARS = 600, 60, 110, 120

# The folders that a folder may include, besides itself.
MAY_INCLUDE = {
    "base": [],
    "kernels": ["base"],
    "parallel": ["kernels", "base"],
    "layers": ["schedules", "parallel", "kernels", "base"],
    "schedules": ["base"],
    "trainer": ["schedules", "layers", "parallel", "kernels", "base"],
    "planner": ["trainer", "schedules", "layers", "parallel", "kernels", "base"],
    "tools": ["planner", "trainer", "schedules", "layers", "parallel", "kernels", "base"],
    "tests": ["tools", "planner", "trainer", "schedules", "layers", "parallel", "kernels", "base"],
}

# Headers that are private to their folder, and the other files that may include them (the registry).
PRIVATE = {
    "kernels/cpu/*": ["kernels/device*.c", "kernels/registry.c", "kernels/strict/*", "kernels/dry/*",
                      "tools/benchmarks/bench_gemm.c"],
    "kernels/strict/*": ["kernels/device*.c", "kernels/registry.c"],
    "kernels/dry/*": ["kernels/device*.c", "kernels/registry.c"],
    "kernels/cuda/*": ["kernels/device*.c", "kernels/registry.c", "parallel/transports/nccl/*"],
}

# Where each library's headers may be included.
VENDOR = {
    "mpi.h": ["parallel/transports/mpi/*"],
    "nccl.h": ["parallel/transports/nccl/*"],
    "cblas.h": ["kernels/cpu/matmul/blas_openblas.c"],
    "dnnl*.h": ["kernels/cpu/matmul/blas_onednn.c"],
    "omp.h": ["kernels/cpu/*"],
    "immintrin.h": ["kernels/cpu/*"],
    "cu*.h": ["kernels/cuda/*", "parallel/transports/nccl/*"],
    "cu*.hpp": ["kernels/cuda/*"],
    "dlfcn.h": ["kernels/cuda/*library.c", "kernels/cuda/runtime/cuda_info.c",
                "tests/checkpoint/fault_calls.c", "tests/unit/criterion_start.c",
                "parallel/transports/mpi/comm_mpi.c"],
    "mma.h": ["kernels/cuda/*"],
    "nv*.h": ["kernels/cuda/*"],
    "yaml.h": ["trainer/files/yaml.c"],
    "jansson.h": ["trainer/*.c", "planner/*.c", "tools/cli/*.c", "tests/unit/data/test_json_line.c"],
    "xxh*.h": ["trainer/files/checksum.c"],
    "cminpack.h": ["planner/fit/fit_solve.c"],
    "utf8proc.h": ["trainer/tokenizer/*.c", "trainer/evaluate/choice_text.c"],
    "cstdio": ["trainer/tokenizer/sentencepiece/sp_library.cc"],
    "exception": ["trainer/tokenizer/sentencepiece/sp_library.cc"],
    "memory": ["trainer/tokenizer/sentencepiece/sp_library.cc"],
    "string": ["trainer/tokenizer/sentencepiece/sp_library.cc"],
    "vector": ["trainer/tokenizer/sentencepiece/sp_library.cc"],
    "sentencepiece_processor.h": ["trainer/tokenizer/sentencepiece/sp_library.cc"],
    "archive*.h": ["trainer/text/unpack.c"],
    "zlib.h": ["trainer/text/unpack.c"],
    "event.pb-c.h": ["trainer/run/dashboard/tensorboard.c"],
    "pcre2.h": ["trainer/tokenizer/huggingface/regex.c"],
    "criterion/*": ["tests/unit/*"],
    "link.h": ["kernels/cuda/runtime/library.c"],
    "ucontext.h": ["tests/emulator/*"],
    "new": ["tests/emulator/*", "trainer/tokenizer/sentencepiece/sp_library.cc"],
}

# The C library, POSIX, and the Linux interfaces for timing and waiting.
SYSTEM = set("""
    complex ctype errno fenv float inttypes iso646 limits locale math signal stdalign stdarg stdatomic
    stdbool stddef stdint stdio stdlib stdnoreturn string strings tgmath threads time uchar wchar dirent
    fcntl fnmatch getopt glob libgen netdb poll pthread sched semaphore spawn syslog termios unistd
    arpa/inet linux/futex linux/magic netinet/in netinet/tcp sys/file sys/ioctl sys/mman sys/prctl sys/resource
    sys/select sys/socket sys/stat sys/statvfs sys/sysinfo sys/syscall sys/time sys/times sys/types sys/uio sys/vfs
    sys/un sys/utsname sys/wait sys/eventfd sys/inotify sys/signalfd sys/random malloc execinfo ftw""".split())

# A backend's name as a string: only where backends register, and where users name them.
BACKENDS = {"cpu", "cuda", "strict", "dry", "local", "mpi", "nccl"}
KNOWS_BACKENDS = ["kernels/cpu/*", "kernels/cuda/*", "kernels/strict/*", "kernels/dry/*", "kernels/device*.c",
                  "kernels/registry.c", "parallel/comm*.c",
                  "parallel/transports/*", "trainer/recipe/*", "planner/recipe/*", "tools/*", "tests/*"]

BANNED = {
    "strcpy": "use snprintf or text_add, which know the size", "strcat": "use text_add",
    "strncpy": "the result may not be terminated", "strncat": "use text_add",
    "sprintf": "use snprintf", "vsprintf": "use vsnprintf",
    "gets": "use fgets or file_read", "atoi": "use integer_parse, which detects errors",
    "atol": "use integer_parse, which detects errors", "atoll": "use integer_parse, which detects errors",
    "atof": "use number_parse, which detects errors",
    "strtok": "it has hidden state; use strtok_r or strcspn", "rand": "use philox, which is keyed and portable",
    "srand": "use philox, which needs no seeding", "random": "use philox, which is keyed and portable",
    "drand48": "use philox, which is keyed and portable", "asctime": "use strftime", "ctime": "use strftime",
    "localtime": "use localtime_r", "gmtime": "use gmtime_r",
    "system": "use posix_spawn, which needs no shell", "popen": "use posix_spawn, which needs no shell",
    "tmpnam": "use mkstemp", "mktemp": "use mkstemp", "alloca": "use an array of fixed size, or malloc",
    "setjmp": "return a status", "longjmp": "return a status",
}
# Calls restricted to some files: (these files, what to do elsewhere).
RESTRICTED = {
    "assert": (["tests/*"], "use CHECK, which is enabled in every build"),
    "exit": (["base/*", "tools/cli/main.c", "tests/*"], "return a status; die() in a world"),
    "_exit": (["base/*", "tests/*"], "return a status; die() in a world"),
    "abort": (["base/*", "tests/*"], "return a status; die() in a world"),
}

# (rule, path) exempt from the rule, and why.
EXEMPT = {
    ("pragma-once", "trainer/recipe/keys/keys.h"): "included for structs, tables and conditions; so are its rows",
    ("pragma-once", "trainer/recipe/keys/keys_model.h"): "a part of keys.h",
    ("pragma-once", "trainer/recipe/keys/keys_training.h"): "a part of keys.h",
    ("pragma-once", "trainer/recipe/keys/keys_run.h"): "a part of keys.h",
    ("state", "base/progress.c"): "the progress of a rank, and where it is published, are per thread",
    ("state", "base/status.c"): "the last failure and the activity of a thread are per thread, like errno",
    ("state", "kernels/cpu/matmul/blas_onednn.c"): "a signal handler has no argument for its data",
    ("state", "kernels/cuda/runtime/count_calls.c"):
        "an intercepted CUDA call has no argument for the counter; not part of the program",
    ("state", "tests/support/mirror.c"): "a GPU is opened once per process, however many tests use it",
    ("state", "tests/checkpoint/fault_calls.c"): "a preloaded library counts the calls of its process",
    ("state", "tests/cli/lost_call.c"): "an injected fault counts the calls of its rank",
    ("state", "tests/fuzz/fuzz.c"): "libFuzzer calls with bytes only",
    ("state", "tests/fuzz/readers.c"): "a hook of the allocator has no argument for its counters",
    ("state", "tests/emulator/cudnn/cudnn.c"): "the last error is per thread, as in the real library",
    ("state", "tests/emulator/gpu/emulator.c"): "threadIdx belongs to the running thread, as on a GPU",
    ("state", "tests/emulator/gpu/graph.c"): "a capture is per thread, as with cudaStreamCaptureModeThreadLocal",
    ("state", "tests/emulator/gpu/launch.c"): "CUDA's last error is per thread, like errno",
    ("state", "tests/emulator/nccl/nccl.c"):
        "the order of a GPU's messages is per thread, across all comms",
    ("state", "tests/emulator/gpu/nvtx.c"): "ranges nest per thread, as in NVTX",
    ("state", "tests/emulator/gpu/runtime.c"): "a GPU's memory is per process, however many devices are opened",
}

MACHINE_PATH = re.compile(r"(?<![\w./])/(?:home|root|work|Users)/\w|(?<![\w./])/tmp/w" + r"t\b|\.\./share" + r"d\b")
UNFINISHED = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")
C_FILES, SCRIPTS = (".c", ".h", ".cc", ".cu", ".cuh"), (".py", ".sh")
PROSE = (".md", ".yaml", ".yml", ".build", ".txt", ".in")
DATA = ["tests/*golden*", "tests/*.txt", "tests/*.json", "tests/*.csv", "LICENSE"]

RULES = {}


def rule(*suffixes):
    """Registers a rule for files with these suffixes ("script" for those that begin with #!)."""
    def register(function):
        RULES[function.__name__.replace("_", "-")] = (suffixes, function)
        return function
    return register


def matches(path, patterns):
    return any(fnmatch.fnmatch(path, pattern) for pattern in patterns)


def is_test(path):
    return path.startswith("tests/")


# ---- Reading C -----------------------------------------------------------------------------------

TOKEN = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.S)


def blank(text, keep_strings):
    """Replaces comments (and the contents of strings) by spaces; lines and columns are unchanged."""
    def replace(match):
        token = match.group()
        if token[0] == '"':
            return token if keep_strings else '"' + " " * (len(token) - 2) + '"'
        if token[0] == "'":
            return "'" + " " * (len(token) - 2) + "'"
        return re.sub(r"[^\n]", " ", token)
    return TOKEN.sub(replace, text)


class Source:
    """One file: its text, its lines, and for C the text without comments and strings."""

    def __init__(self, root, path):
        self.root, self.path = root, path
        self.folder = path.split("/")[0]
        with open(os.path.join(root, path), "rb") as file:
            self.bytes = file.read()
        self.text = self.bytes.decode("utf-8", "replace")
        self.lines = self.text.split("\n")
        self.kind = os.path.splitext(path)[1]
        if self.kind in C_FILES:
            self.code = blank(self.text, keep_strings=False)
            self.code_with_strings = blank(self.text, keep_strings=True)
            # Statements are read without preprocessor lines (and their continuations).
            self.statements = re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", lambda m: re.sub(r"[^\n]", " ", m.group()),
                                     self.code, flags=re.M)

    def line_of(self, offset):
        return self.text.count("\n", 0, offset) + 1

    def includes(self):
        """(line, name, quoted) of each #include."""
        for match in re.finditer(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"\n]+)[>"]', self.code_with_strings, re.M):
            yield self.line_of(match.start()), match.group(2), match.group(1) == '"'


TRANSPARENT = re.compile(r'(?:extern\s*"\s*"|namespace\s*\w*)\s*$')
ATTRIBUTES = re.compile(r"\b(?:__attribute__|_Alignas|alignas|__launch_bounds__|__declspec)\s*"
                        r"(\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\))")


def top_level(source):
    """(start, end, text, body) of each declaration and definition at file scope. body: offset of a function's brace.
    Braces of a declaration are shortened to {} in its text."""
    code, depth, start, pieces, brace, is_body = source.statements, 0, 0, [], 0, False
    for match in re.finditer(r"[{};]", code):
        at, char = match.start(), match.group()
        if char == "{":
            if depth == 0:
                head = "".join(pieces) + code[start if not pieces else brace + 1:at]
                if TRANSPARENT.search(head):
                    start, pieces = at + 1, []
                    continue
                pieces, brace = [head], at
                bare = ATTRIBUTES.sub(" ", head).rstrip()
                is_body = bare.endswith(")") and "=" not in re.sub(r"\([^()]*(?:\([^()]*\)[^()]*)*\)", "", bare)
            depth += 1
        elif char == "}":
            depth = max(depth - 1, 0)
            if depth == 0 and pieces and is_body:
                yield start, at + 1, pieces[0], brace
                start, pieces = at + 1, []
            elif depth == 0 and pieces:
                pieces, brace = [pieces[0] + "{}"], at
            elif depth == 0:
                start = at + 1   # the end of an extern "C" block
        elif depth == 0:
            text = (pieces[0] + code[brace + 1:at]) if pieces else code[start:at]
            yield start, at + 1, text, None
            start, pieces = at + 1, []


def first_text(source, start):
    """The line where the text after `start` begins."""
    return source.line_of(start + len(source.statements[start:]) - len(source.statements[start:].lstrip()))


def mutable_name(declaration):
    """The name of the mutable variable that this text declares, or None."""
    text = re.sub(r"\[[^\]]*\]", "[]", ATTRIBUTES.sub(" ", declaration.split("=")[0])).strip()
    if not text or re.match(r"(?:typedef|_Static_assert|static_assert|using|template|friend)\b", text):
        return None
    if re.fullmatch(r"(?:struct|union|enum)\s*\w*\s*(?:\{\})?", text):
        return None
    pointer_to_function = re.search(r"\(\s*\*\s*(const\b)?\s*(\w+)", text)
    if "(" in text and not (pointer_to_function and pointer_to_function.start() == text.index("(")):
        return None
    if pointer_to_function:
        return None if pointer_to_function.group(1) else pointer_to_function.group(2)
    if re.search(r"\bsig_atomic_t\b", text):
        return None   # a signal handler can access nothing else
    if "constexpr" in text or re.search(r"\bconst\b", text.rsplit("*", 1)[-1]):
        return None
    name = re.search(r"(\w+)\s*(?:\[\]\s*)*$", text)
    return name.group(1) if name and name.group(1) != "environ" else None


# ---- The rules: each yields (line, sentence) -----------------------------------------------------

@rule(*C_FILES)
def direction(source):
    """Folders include only the folders below them."""
    allowed = MAY_INCLUDE.get(source.folder)
    for line, name, quoted in source.includes():
        target = name.split("/")[0]
        if quoted and allowed is None:
            yield line, f"the folder {source.folder}/ is not in MAY_INCLUDE of tools/check_source.py"
        elif quoted and target in MAY_INCLUDE and target != source.folder and target not in allowed:
            may = ", ".join(allowed) or "nothing but the C library"
            yield line, f"{source.folder}/ may not include {name}; it may include {may}"


@rule(*C_FILES)
def folder_graph(source):
    """The same for the folders inside trainer/, planner/, parallel/ and schedules/ (tools/dev/check_tree.py)."""
    return check_tree.graph_complaints(source.path, source.includes())


@rule(*C_FILES)
def private(source):
    """A backend's private headers are included only in its folder and the registry."""
    for line, name, quoted in source.includes():
        for owner, others in PRIVATE.items():
            if quoted and matches(name, [owner]) and not matches(source.path, [owner, "tests/*", *others]):
                yield line, f"{name} is private to {owner[:-1]}; go through kernels/device.h and kernels/ops.h"


@rule(*C_FILES)
def vendor(source):
    """The headers of a library are included only in the files listed in VENDOR."""
    for line, name, quoted in source.includes():
        homes = next((homes for pattern, homes in VENDOR.items() if fnmatch.fnmatch(name, pattern)), None)
        if quoted or name.removesuffix(".h") in SYSTEM:
            continue
        if homes is None:
            yield line, f"<{name}> is unknown: add the files that may include it to VENDOR of tools/check_source.py"
        elif not matches(source.path, homes):
            yield line, f"<{name}> may be included only in {', '.join(homes)}"


@rule(*C_FILES)
def include_path(source):
    """Include paths are relative to the root of the repository."""
    for line, name, quoted in source.includes():
        if quoted and (".." in name or not os.path.exists(os.path.join(source.root, name))):
            yield line, f'"{name}" is not a path from the root of the repository'


@rule(".c", ".cc", ".cu")
def own_header(source):
    """A file includes its own header first, so that every header is self-contained."""
    own = re.sub(r"\.\w+$", ".h", source.path)
    first = next(source.includes(), None)
    if first and first[1] != own and os.path.exists(os.path.join(source.root, own)):
        yield first[0], f'include "{own}" first: a header must be self-contained'


@rule(".c", ".cu")
def header_of_c(source):
    """No file includes a .c file."""
    for line, name, _ in source.includes():
        if name.endswith((".c", ".cu")):
            yield line, f"{name} is not a header"


@rule(".h", ".cuh")
def pragma_once(source):
    """A header begins with #pragma once."""
    if not re.search(r"^#pragma once$", source.code, re.M):
        yield 1, "add #pragma once"


@rule(*C_FILES)
def backend_name(source):
    """Code outside the backends does not name them."""
    if matches(source.path, KNOWS_BACKENDS):
        return
    for match in re.finditer(r'"([^"\n]*)"', source.code_with_strings):
        if match.group(1) in BACKENDS:
            yield (source.line_of(match.start()),
                   f'"{match.group(1)}" may be named only in registries, recipes and tools; use the registry')
    asks = r"^[ \t]*#[ \t]*(?:el)?if\w*[^\n]*(?:MPI|CUDA|NCCL|DNNL|ONEDNN|OPENBLAS)"
    for match in re.finditer(asks, source.code, re.M):
        yield source.line_of(match.start()), "only backends may depend on which backends are built"


@rule(*C_FILES)
def banned_call(source):
    """No calls that cannot detect errors or sizes, or have hidden state."""
    for match in re.finditer(r"(?<![\w.>])(\w+)\s*\(", source.code):
        name = match.group(1)
        if name in BANNED:
            yield source.line_of(match.start()), f"{name}() is banned: {BANNED[name]}"
        elif name in RESTRICTED and not matches(source.path, RESTRICTED[name][0]):
            files, instead = RESTRICTED[name]
            yield source.line_of(match.start()), f"{name}() is allowed only in {', '.join(files)}: {instead}"


@rule(*C_FILES)
def escaped_warning(source):
    """A warning is printed by print_line(), which escapes control characters in the user's text."""
    for match in re.finditer(r'(?<!\w)f(?:printf|puts)\s*\([^"();]*"(?:warning|error|skipped): ',
                             source.code_with_strings):
        yield source.line_of(match.start()), "a warning is printed by print_line(), which escapes control characters"


@rule(*C_FILES)
def state(source):
    """No mutable variable outlives a function: ranks can be threads of one process."""
    for start, _, text, body in top_level(source):
        name = mutable_name(text) if body is None else None
        if name:
            yield first_text(source, start), f"{name} is state that ranks as threads would share"
    for match in re.finditer(r"^[ \t]+static\b([^;={]*)(?=[;={])", source.statements, re.M):
        name = mutable_name(match.group(1))
        if name:
            yield source.line_of(match.start()), f"static {name} is state that ranks as threads would share"


@rule(*C_FILES)
def function_length(source):
    """A function fits on a screen; the case labels of a switch are not counted."""
    for start, end, text, body in top_level(source):
        first = first_text(source, start)
        labels = re.findall(r"^[ \t]*case[^\n:?]*:[ \t]*$", source.code[start:end], re.M)
        lines = source.line_of(end - 1) - first + 1 - len(labels)
        if body is not None and lines > FUNCTION_LINES:
            name = re.search(r"(\w+)\s*\(", text)
            yield first, f"{name.group(1) if name else 'a function'} has {lines} lines, over {FUNCTION_LINES}"


@rule(".py", "python")
def python_function_length(source):
    """The same for Python functions."""
    try:
        tree = ast.parse(source.text)
    except (SyntaxError, ValueError) as error:
        yield getattr(error, "lineno", None) or 1, "a Python syntax error"
        return
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            lines = node.end_lineno - node.lineno + 1
            if lines > FUNCTION_LINES:
                yield node.lineno, f"{node.name} has {lines} lines, over {FUNCTION_LINES}"


@rule(*C_FILES, *SCRIPTS, "script", ".build")
def file_length(source):
    """A file has at most 600 lines."""
    count = len(source.lines) - (source.lines[-1] == "")
    if count > FILE_LINES:
        yield FILE_LINES + 1, f"{count} lines, over {FILE_LINES}"


@rule(*C_FILES, *SCRIPTS, "script")
def spdx(source):
    """The first line (the second, after #!) is the SPDX license identifier."""
    first = source.lines[1:2] if source.text.startswith("#!") else source.lines[:1]
    mark = "//" if source.kind in C_FILES else "#"
    if first != [f"{mark} SPDX-License-Identifier: Apache-2.0"]:
        yield 1, f'the first line is "{mark} SPDX-License-Identifier: Apache-2.0" (the second, after #!)'


@rule(*C_FILES)
def dead_code(source):
    """No code that is always disabled or always enabled: git keeps old versions."""
    for match in re.finditer(r"^[ \t]*#[ \t]*(?:el)?if[ \t]+[01]\b", source.code, re.M):
        yield source.line_of(match.start()), "a constant condition: remove it and the unused code"


@rule(*C_FILES, *SCRIPTS, *PROSE, "script")
def unfinished(source):
    """No notes about work to be done later; these belong in issues."""
    for number, line in enumerate(source.lines, 1):
        if UNFINISHED.search(line):
            yield number, "finish it, or describe the current state"


@rule(*C_FILES, *SCRIPTS, *PROSE, "script")
def machine_path(source):
    """No paths of a particular machine."""
    for number, line in enumerate(source.lines, 1):
        if MACHINE_PATH.search(line):
            yield number, "a path of a particular machine"


@rule(*C_FILES, *SCRIPTS, *PROSE, "script")
def whitespace(source):
    """No tabs, no spaces at the end of a line, UTF-8, one newline at the end."""
    for number, line in enumerate(source.lines, 1):
        if "\t" in line:
            yield number, "a tab"
        if line != line.rstrip():
            yield number, "spaces (or a carriage return) at the end of the line"
        if "\ufffd" in line:
            yield number, "not UTF-8"
    if source.bytes and not source.text.endswith("\n"):
        yield len(source.lines), "the last line has no newline"
    if source.text.endswith("\n\n"):
        yield len(source.lines) - 1, "empty lines at the end"


@rule(*C_FILES, *SCRIPTS, ".yaml", "script")
def line_length(source):
    """Lines are short enough for two files side by side."""
    for number, line in enumerate(source.lines, 1):
        limit = C_LINE_CHARS if source.kind in C_FILES else SCRIPT_LINE_CHARS
        if len(line) > limit:
            yield number, f"{len(line)} characters, over {limit}"


@rule(".md")
def prose_length(source):
    """No line of Markdown prose over 120 characters: one sentence per line."""
    return check_tree.length_complaints(source.lines)


@rule(".md")
def broken_link(source):
    """A relative link leads to a file of the tree."""
    return check_tree.link_complaints(source.root, source.path, source.lines)


@rule(*C_FILES, *SCRIPTS, *PROSE, "script")
def private_word(source):
    """Standard terms instead of private words (list in tools/dev/check_tree.py)."""
    return [] if source.path == "tools/dev/check_tree.py" else check_tree.word_complaints(source.lines)


# ---- The files ------------------------------------------------------------------------------------

def kinds_of(source):
    """The kinds of a file for rules: its suffix, and those that follow from its first line."""
    kinds = {source.kind}
    if source.text.startswith("#!"):
        kinds.add("script")
        if "python" in source.lines[0]:
            kinds.add("python")
    return kinds


def functions_of(source):
    """(name, line, whether it is defined here, whether it is static, parameters) of each function of a file."""
    for start, _, text, body in top_level(source):
        text = ATTRIBUTES.sub(" ", text)
        match = re.search(r"(\w+)\s*\(", text)
        if match and not match.group(1).isupper() and not re.search(r"\btypedef\b|=", text):
            yield (match.group(1), first_text(source, start), body is not None, bool(re.search(r"\bstatic\b", text)),
                   check_tree.parameters_of(text, match.end()))


def check(root, exempt, only_tests=(), several=()):
    """All findings in the tree at `root`, as (path, line, rule, sentence)."""
    complaints, used, names, functions, included = [], set(), collections.Counter(), {}, []
    declared, defined = {}, {}
    for path in check_tree.tree_files(root):
        if matches(path, DATA) or os.path.getsize(os.path.join(root, path)) > 4 << 20:
            continue
        source = Source(root, path)
        if "\0" in source.text:
            continue
        if source.kind in C_FILES and not is_test(path):
            names.update(re.findall(r"\w+", source.code))
            included += [(path, line, name) for line, name, quoted in source.includes() if quoted]
            for name, where, is_body, is_static, parameters in functions_of(source):
                if source.kind in (".h", ".cuh"):
                    functions[name] = (path, where, is_body)
                if not is_static and (is_body or source.kind in (".h", ".cuh")):
                    (defined if is_body else declared).setdefault(name, (path, where, parameters))
        kinds = kinds_of(source)
        for name, (suffixes, function) in RULES.items():
            found = list(function(source)) if kinds & set(suffixes) else []
            if found and (name, path) in exempt:
                used.add((name, path))
            else:
                complaints += [(path, line, name, sentence) for line, sentence in found]
    for name, path in sorted(set(exempt) - used):
        complaints.append((path, 1, name, "the exemption in tools/check_source.py is not needed: remove it"))
    return sorted([*complaints, *check_tree.call_complaints(names, functions, only_tests),
                   *check_tree.home_complaints(declared, defined, several),
                   *check_tree.reader_complaints(root, included)])


def main(arguments):
    if arguments == ["--list"]:
        for name, (_, function) in RULES.items():
            print(f"{name:24} {function.__doc__}")
        for name, about in check_tree.RULES.items():
            print(f"{name:24} {about}")
        return 0
    if arguments and arguments[0] == "--root" and len(arguments) == 2:
        root, exempt, only_tests, several = arguments[1], {}, {}, {}
    elif not arguments:
        root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        exempt, only_tests, several = EXEMPT, check_tree.ONLY_TESTS, check_tree.OF_SEVERAL
    else:
        print("usage: tools/check_source.py [--list | --root FOLDER]", file=sys.stderr)
        return 2
    paths = check_tree.tree_files(root)
    complaints = sorted([*check(root, exempt, only_tests, several), *check_tree.folder_complaints(root, paths),
                         *check_tree.map_complaints(root, paths)])
    for path, line, name, sentence in complaints:
        print(f"{path}:{line}: {sentence} [{name}]")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
