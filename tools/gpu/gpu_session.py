# SPDX-License-Identifier: Apache-2.0
"""The base of tools/gpu/gpu_report.py: a report that is complete on disk after every line, a log of bounded size, and
programs that run with a time limit.

Caution: libraries packed in an archive are for Cuboid's programs only. PyTorch, nvidia-smi and the machine's compilers
would fail with an older libstdc++, so LD_LIBRARY_PATH is set for our programs only."""
import glob
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time

from gpu_wanted import Wanted

ONE_RANK = ["dp=1", "tp=1", "pp=1", "parallel.sequence_parallel=false", "pipeline.schedule=1f1b"]
QUIET = ["train.eval_interval=0", "checkpoint.load=none", "checkpoint.save=none", "checkpoint.save_interval=0",
         "checkpoint.keep_last=0"]
LOG_BYTES = 12 << 20  # of all commands together
COMMAND_BYTES = 200000  # of one command, at most
OUTPUT_BYTES = 8 << 20  # of one command's output that is parsed
LINE_CHARS = 400  # of a line in the report
TINY = ["model.hidden_size=24", "model.kv_channels=8", "model.ffn_hidden_size=32", "model.seq_length=16"]
CUDNN = "model.attention_backend=cudnn"


# ---- the report ----

class Report:
    """Rows of one table, then sections, then the last lines of failed commands. The file is complete at all times."""

    def __init__(self, path, title, machine):
        self.path, self.title, self.machine = path, title, machine
        self.rows, self.sections, self.failures, self.missed = [], {}, [], []
        self.wanted = Wanted()
        self.state = "not finished"

    def row(self, name, result):
        print(f"{name}: {result}", flush=True)
        self.rows.append(f"| {name} | {result} |")
        self.save()

    def section(self, title, text):
        """A section of the same title is replaced."""
        self.sections[title] = f"## {title}\n\n{text.rstrip()}\n"
        self.save()

    def failed(self, name, why, output=""):
        self.failures.append((name, output))
        self.row(name, f"**FAILED** ({why})")

    def target(self, name, value, least, unit="%"):
        good = value >= least
        if not good:
            self.missed.append(name)
        text = f"{value:.1f} {unit}, {'reaches' if good else '**below**'} {least:g}"
        self.row(name, text)
        return good, text

    def text(self):
        lines = [f"# {self.title}", "", self.machine, "", f"State: {self.state}.", "", *self.wanted.lines(), "",
                 "| check | result |", "|---|---|", *self.rows, ""]
        lines += self.sections.values()
        if self.failures:
            lines.append("## Failures\n")
        for name, output in self.failures:
            lines += [f"{name}:", "",
                      *("    " + line[:LINE_CHARS] for line in output.splitlines()[-40:]), ""]
        return "\n".join(lines)

    def save(self):
        with open(self.path + ".new", "w") as out:
            out.write(self.text())
        os.replace(self.path + ".new", self.path)


class Log:
    """Head and tail of every command's output. Each gets a small fraction of the remaining space, so that
    hundreds of long outputs leave some space for the last one."""

    def __init__(self, path, limit=LOG_BYTES):
        self.name, self.left = path, limit
        self.file = open(path, "wb")

    def add(self, title, output):
        limit = min(COMMAND_BYTES, self.left // 32)
        if limit < 200:
            return
        entry = b"%s\n%s\n" % (cut(f"=== {title}".encode(), limit // 4),
                               cut(output.encode(errors="replace"), limit // 2))
        self.left -= len(entry)
        self.file.write(entry)
        self.file.flush()


def cut(output, limit):
    """Truncates `output` (bytes) to its two ends with a note in between if it is longer than `limit`."""
    if len(output) <= limit:
        return output
    note = f"\n... {len(output) - limit} bytes of {len(output)} left out ...\n".encode()
    half = limit // 2
    return output[:half] + note + output[len(output) - half:]


def read_ends(file):
    """Returns the output of a command as text; only the two ends if it is very long."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    if size <= OUTPUT_BYTES:
        return file.read().decode(errors="replace")
    head = file.read(OUTPUT_BYTES // 2)
    file.seek(size - OUTPUT_BYTES // 2)
    note = f"\n... {size - OUTPUT_BYTES} bytes of {size} left out ...\n"
    return head.decode(errors="replace") + note + file.read().decode(errors="replace")


def last_of_each(overrides):
    """One override for each key, the last one given: cuboid rejects duplicate keys."""
    return list({override.split("=")[0]: override for override in overrides}.values())


def as_code(text):
    return "\n".join("    " + line for line in text.rstrip().splitlines())


# ---- processes ----

def processes_of(session):
    """Process ids of a session. Children stay in it even if they form their own process groups, as the ranks of mpirun
    do."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat") as stat:
                fields = stat.read().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(name))
    return found


def end_session(process, patience=5.0):
    """Ends all processes of the session led by `process`. mpirun ends its ranks on SIGTERM; the rest is killed then.
    Returns whether all have exited: one inside a driver call may not."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        for pid in processes_of(process.pid):
            try:
                os.kill(pid, how)
            except ProcessLookupError:
                pass
        end = time.monotonic() + patience
        while process.poll() is None or processes_of(process.pid):
            if time.monotonic() > end:
                break
            time.sleep(0.05)
        else:
            return True
    return False


def mpi_environment(mpi):
    """Environment of mpirun: as root, on this machine alone, and with its own plugins if it was packed to `mpi`."""
    here = {"OPAL_PREFIX": mpi, "OPAL_PKGLIBDIR": f"{mpi}/components", "OPAL_PKGDATADIR": f"{mpi}/share",
            "OPAL_SYSCONFDIR": f"{mpi}/etc"} if mpi else {}
    return {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_mpi_yield_when_idle": "1", "OMPI_MCA_pml": "ob1",
            "OMPI_MCA_plm": "isolated", "OMPI_MCA_btl": "self,vader", "OMPI_MCA_oob_tcp_if_include": "lo",
            "OMPI_MCA_btl_vader_single_copy_mechanism": "none", **here}


class Outcome:
    """Outcome of a command. status None: timeout."""

    def __init__(self, status, out, seconds, gone=True):
        self.status, self.out, self.seconds, self.gone = status, out, seconds, gone

    @property
    def good(self):
        return self.status == 0

    @property
    def why(self):
        if self.status is not None:
            return f"status {self.status}"
        return "timeout" if self.gone else "timeout, and it cannot be killed"


class Session:
    """A folder of programs, the report, and the remaining time. `scale` multiplies every time limit."""

    def __init__(self, folder, report, seconds, gpu_name="", gpu_bytes=0, tiny=False, scale=1.0):
        self.folder, self.report, self.tiny, self.scale = folder, report, tiny, scale
        self.gpu_name, self.gpu_bytes = gpu_name, gpu_bytes
        self.end = time.monotonic() + seconds
        self.part_end = self.end
        self.work = tempfile.mkdtemp(prefix="gpu-check-")
        self.log = Log(os.path.splitext(report.path)[0] + ".log")
        self.device = os.environ.get("GPU_CHECK_DEVICE", "cuda")
        self.attention = []  # an override for all training on the GPU in two-byte types
        self.running = None
        self.broken = []  # (name, command, limit, env) of each check that failed
        self.cube = {}  # of a type: one rank's loss, its bound, the first schedule's steps
        self.figures = {}  # of a model's name and a way: training_figures()
        self.measured = []  # (model, figures) of part train, for part torch

    def begin_part(self, limit):
        self.part_end = time.monotonic() + limit * self.scale

    def left(self):
        return min(self.end, self.part_end) - time.monotonic()

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def libraries(self):
        """The library path of a packed program."""
        folders = [os.environ.get(name, "") for name in ("GPU_CHECK_LIBRARIES", "LD_LIBRARY_PATH")]
        known = ":".join(folder for folder in folders if folder)
        return {"LD_LIBRARY_PATH": known} if known else {}

    def has_library(self, name):
        folders = self.libraries().get("LD_LIBRARY_PATH", "").split(":")
        return any(os.path.exists(os.path.join(folder, name)) for folder in folders)

    def tool(self, name):
        """The path of one of CUDA's programs, or None."""
        found = [shutil.which(name), *glob.glob(f"/usr/local/cuda*/bin/{name}"), *glob.glob(f"/opt/nvidia/*/{name}")]
        return next((path for path in found if path and os.access(path, os.X_OK)), None)

    def mpi_environment(self):
        packed = self.path("mpi")
        return {**mpi_environment(packed if os.path.isdir(packed) else None), **self.libraries()}

    def launch(self, ranks):
        """The command prefix and overrides: threads with a GPU each, or processes that share one; None: neither."""
        gpus = len(re.findall(r"^GPU \d+:", self.run(["nvidia-smi", "-L"], 20).out, re.MULTILINE))
        if gpus >= ranks:
            return [], []
        packed = self.path("mpi", "bin", "mpirun")
        mpirun = packed if os.path.exists(packed) else shutil.which("mpirun")
        has_mpi = re.search(r"^mpi *yes", self.run(self.cuboid("--version"), 20).out, re.MULTILINE)
        if mpirun is None or not has_mpi or gpus < 1:
            return None, []
        return [mpirun, "--bind-to", "none", "-n", str(ranks)], [f"cluster.ranks_per_gpu={-(-ranks // gpus)}"]

    def run(self, command, limit, env=None):
        """Its output and status. When it runs out of time, its whole session of processes is ended."""
        begin = time.monotonic()
        limit = min(limit * self.scale, self.left())
        if limit < 1:
            return Outcome(None, "", 0.0)
        ours = self.libraries() if command[0].startswith(self.folder + os.sep) else {}
        gone = True
        with tempfile.TemporaryFile() as out:
            try:
                self.running = subprocess.Popen(command, cwd=self.folder, env={**os.environ, **ours, **(env or {})},
                                                stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                                                start_new_session=True)
            except OSError as error:
                return Outcome(127, str(error), 0.0)
            try:
                status = self.running.wait(limit)
            except subprocess.TimeoutExpired:
                status = None
            if status is None or processes_of(self.running.pid):
                gone = end_session(self.running, 5.0 * min(1.0, self.scale))
            text = read_ends(out)
        self.log.add(f"{' '.join(command)}: {status}", text)
        return Outcome(status, text, time.monotonic() - begin, gone)

    def stop(self):
        """Ends the running command when this program is terminated."""
        if self.running is not None and self.running.poll() is None:
            end_session(self.running, 1.0)

    def check(self, name, command, limit, env=None):
        """A row of the report. The last lines of the output are kept when it failed."""
        outcome = self.run(command, limit, env)
        if outcome.good:
            self.report.row(name, f"ok, {outcome.seconds:.0f} s")
        else:
            self.note_failure(name, command, limit, env, outcome)
        return outcome

    def note_failure(self, name, command, limit, env, outcome):
        self.broken.append((name, command, limit, env))
        self.report.failed(name, f"{outcome.why}, {outcome.seconds:.0f} s", outcome.out)

    def cuboid(self, *arguments):
        return [self.path("bin", "cuboid"), *arguments]

    def train(self, name, recipe, *overrides, launcher=(), keep=False):
        """A command that trains into a folder of that name, empty unless it is kept, and the folder."""
        folder = os.path.join(self.work, "run-" + name)
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
        narrow = {"precision.params_dtype=bf16", "precision.params_dtype=fp16"} & set(overrides)
        attention = self.attention if narrow and f"cluster.device={self.device}" in overrides else []
        overrides = last_of_each([*QUIET, f"logging.run_dir={folder}", *overrides, *attention])
        return [*launcher, *self.cuboid("train", self.path("recipes", recipe), *overrides)], folder

    def small(self, *overrides, steps=4):
        """The quickstart's model for a few steps."""
        return [f"data.train={self.work}/text", f"train.train_iters={steps}", "optimizer.lr_warmup_iters=2",
                f"optimizer.lr_decay_iters={max(steps, 3)}", "train.eval_interval=0", "data.split=100,0,0",
                *(TINY if self.tiny else []), *overrides]
