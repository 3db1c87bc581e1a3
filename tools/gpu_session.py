# SPDX-License-Identifier: Apache-2.0
"""What tools/gpu_report.py stands on: a report that is whole at every moment, and programs that are run with a limit.

The trap: libraries that came along are for Cuboid's programs only. A PyTorch, an nvidia-smi or a compiler of the
machine that met an older libstdc++ of ours on its way would fail, so LD_LIBRARY_PATH is set for ours alone."""
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
LOG_CHARS = 200000  # of one command
TINY = ["model.hidden_size=24", "model.kv_channels=8", "model.ffn_hidden_size=32", "model.seq_length=16"]


# ---- the report ----

class Report:
    """Rows of one table, sections behind it, and the ends of what failed. On disk it is whole at every moment."""

    def __init__(self, path, title, machine):
        self.path, self.title, self.machine = path, title, machine
        self.rows, self.sections, self.failures, self.missed = [], [], [], []
        self.wanted = Wanted()
        self.state = "not finished"

    def row(self, name, result):
        print(f"{name}: {result}", flush=True)
        self.rows.append(f"| {name} | {result} |")
        self.save()

    def section(self, title, text):
        self.sections.append(f"## {title}\n\n{text.rstrip()}\n")
        self.save()

    def failed(self, name, why, output=""):
        self.failures.append((name, output))
        self.row(name, f"**FAILED** ({why})")

    def target(self, name, value, least, unit="%"):
        good = value >= least
        if not good:
            self.missed.append(name)
        said = f"{value:.1f} {unit}, {'reaches' if good else '**below**'} {least:g}"
        self.row(name, said)
        return good, said

    def text(self):
        lines = [f"# {self.title}", "", self.machine, "", f"State: {self.state}.", "", *self.wanted.lines(), "",
                 "| check | result |", "|---|---|", *self.rows, ""]
        for section in self.sections:
            lines += [section]
        if self.failures:
            lines.append("## What failed\n")
        for name, output in self.failures:
            lines += [f"{name}:", "", *("    " + line for line in output.splitlines()[-40:]), ""]
        return "\n".join(lines)

    def save(self):
        with open(self.path + ".new", "w") as out:
            out.write(self.text())
        os.replace(self.path + ".new", self.path)


def last_of_each(overrides):
    """One override for each key, the last one said: cuboid refuses a key that is given twice."""
    return list({override.split("=")[0]: override for override in overrides}.values())


def as_code(text):
    return "\n".join("    " + line for line in text.rstrip().splitlines())


def end_group(process):
    """mpirun ends its ranks when it is asked to; what is left after that is killed."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, how)
            process.wait(5)
        except (subprocess.TimeoutExpired, ProcessLookupError):
            pass


class Outcome:
    def __init__(self, status, out, seconds):
        self.status, self.out, self.seconds = status, out, seconds

    @property
    def good(self):
        return self.status == 0

    @property
    def why(self):
        return "out of time" if self.status is None else f"status {self.status}"


class Session:
    """A folder of programs, the report, and the time that is left."""

    def __init__(self, folder, report, seconds, gpu_name="", gpu_bytes=0, tiny=False):
        self.folder, self.report, self.tiny = folder, report, tiny
        self.gpu_name, self.gpu_bytes = gpu_name, gpu_bytes
        self.end = time.monotonic() + seconds
        self.part_end = self.end
        self.work = tempfile.mkdtemp(prefix="gpu-check-")
        self.log = open(os.path.splitext(report.path)[0] + ".log", "w")
        self.device = os.environ.get("GPU_CHECK_DEVICE", "cuda")
        self.cube = {}  # of a type: one rank's loss, its bound, the first schedule's steps

    def left(self):
        return min(self.end, self.part_end) - time.monotonic()

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def libraries(self):
        """What a program that came along finds its libraries by."""
        folders = [os.environ.get(name, "") for name in ("GPU_CHECK_LIBRARIES", "LD_LIBRARY_PATH")]
        known = ":".join(folder for folder in folders if folder)
        return {"LD_LIBRARY_PATH": known} if known else {}

    def has_library(self, name):
        folders = self.libraries().get("LD_LIBRARY_PATH", "").split(":")
        return any(os.path.exists(os.path.join(folder, name)) for folder in folders)

    def tool(self, name):
        """Where a program of CUDA's is; None: nowhere."""
        found = [shutil.which(name), *glob.glob(f"/usr/local/cuda*/bin/{name}"), *glob.glob(f"/opt/nvidia/*/{name}")]
        return next((path for path in found if path and os.access(path, os.X_OK)), None)

    def mpi_environment(self):
        """For mpirun: as root, on this machine alone, and with its own parts where it came along."""
        mpi = self.path("mpi")
        here = {"OPAL_PREFIX": mpi, "OPAL_PKGLIBDIR": f"{mpi}/components", "OPAL_PKGDATADIR": f"{mpi}/share",
                "OPAL_SYSCONFDIR": f"{mpi}/etc"} if os.path.isdir(mpi) else {}
        return {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_mpi_yield_when_idle": "1", "OMPI_MCA_pml": "ob1",
                "OMPI_MCA_plm": "isolated", "OMPI_MCA_btl": "self,vader", "OMPI_MCA_oob_tcp_if_include": "lo",
                "OMPI_MCA_btl_vader_single_copy_mechanism": "none", **self.libraries(), **here}

    def launch(self, ranks):
        """The words before cuboid, and overrides: threads with a GPU each, or processes that share; None: neither."""
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
        """Its output and status, None when it ran out of time: then its whole process group is ended."""
        begin = time.monotonic()
        limit = min(limit, self.left())
        if limit < 1:
            return Outcome(None, "", 0.0)
        ours = self.libraries() if command[0].startswith(self.folder + os.sep) else {}
        with tempfile.TemporaryFile("w+", errors="replace") as out:
            try:
                process = subprocess.Popen(command, cwd=self.folder, env={**os.environ, **ours, **(env or {})},
                                           stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
            except OSError as error:
                return Outcome(127, str(error), 0.0)
            try:
                status = process.wait(limit)
            except subprocess.TimeoutExpired:
                end_group(process)
                status = None
            out.seek(0)
            text = out.read()
        self.log.write(f"=== {' '.join(command)}: {status}\n{text[-LOG_CHARS:]}\n")
        self.log.flush()
        return Outcome(status, text, time.monotonic() - begin)

    def check(self, name, command, limit, env=None):
        """A row of the report; the end of the output is kept when it failed."""
        outcome = self.run(command, limit, env)
        if outcome.good:
            self.report.row(name, f"ok, {outcome.seconds:.0f} s")
        else:
            self.report.failed(name, f"{outcome.why}, {outcome.seconds:.0f} s", outcome.out)
        return outcome

    def cuboid(self, *arguments):
        return [self.path("bin", "cuboid"), *arguments]

    def train(self, name, recipe, *overrides, launcher=(), keep=False):
        """A command that trains into a folder of that name, empty unless it is kept, and the folder."""
        folder = os.path.join(self.work, "run-" + name)
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
        overrides = last_of_each([*QUIET, f"logging.run_dir={folder}", *overrides])
        return [*launcher, *self.cuboid("train", self.path("recipes", recipe), *overrides)], folder

    def small(self, *overrides, steps=4):
        """The quickstart's model for a few steps."""
        return [f"data.train={self.work}/text", f"train.train_iters={steps}", "optimizer.lr_warmup_iters=2",
                f"optimizer.lr_decay_iters={max(steps, 3)}", "train.eval_interval=0", "data.split=100,0,0",
                *(TINY if self.tiny else []), *overrides]
