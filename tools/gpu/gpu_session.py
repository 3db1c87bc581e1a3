# SPDX-License-Identifier: Apache-2.0
"""The base of tools/gpu/gpu_report.py: a log of bounded size, and programs that run with a time limit, several at once
where nothing is timed.

Caution: libraries packed in an archive are for Cuboid's programs only. PyTorch, nvidia-smi and the machine's compilers
would fail with an older libstdc++, so LD_LIBRARY_PATH is set for our programs only."""
import collections
import concurrent.futures
import glob
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time

ONE_RANK = ["dp=1", "tp=1", "pp=1", "parallel.sequence_parallel=false", "pipeline.schedule=1f1b"]
QUIET = ["train.eval_interval=0", "checkpoint.load=none", "checkpoint.save=none", "checkpoint.save_interval=0",
         "checkpoint.keep_last=0"]
LOG_BYTES = 12 << 20  # of all commands together
COMMAND_BYTES = 200000  # of one command, at most
OUTPUT_BYTES = 8 << 20  # of one command's output that is parsed
MOST_AT_ONCE = 8  # programs that share the GPU; each has up to two processes, with a CUDA context each
HANGS = 2  # commands of one kind that time out, before the others of the kind are omitted
TINY = ["model.hidden_size=24", "model.kv_channels=8", "model.ffn_hidden_size=32", "model.seq_length=16"]
CUDNN = "model.attention_backend=cudnn"


# ---- output ----

class Log:
    """Head and tail of every command's output. Each gets a small fraction of the remaining space, so that
    hundreds of long outputs leave some space for the last one."""

    def __init__(self, path, limit=LOG_BYTES):
        self.name, self.left = path, limit
        self.file = open(path, "wb")
        self.lock = threading.RLock()

    def add(self, title, output):
        with self.lock:
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
    """Outcome of a command. status None: timeout, of the command's own limit or, if it was cut, of the part's or the
    call's; or it was omitted."""

    def __init__(self, status, out, seconds, gone=True, cut=False, omitted=False):
        self.status, self.out, self.seconds, self.gone = status, out, seconds, gone
        self.cut, self.omitted = cut, omitted

    @property
    def good(self):
        return self.status == 0

    @property
    def known(self):
        """Whether the program was good or bad: it had the time to be."""
        return not self.cut and not self.omitted

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
        self.running = set()
        self.stopped = False
        self.out_of_time = False  # the call's time was over before the part was finished
        self.hung = collections.Counter()  # of a kind of command: timeouts
        self.broken = []  # [name, command, limit, env] of each check that failed
        self.cube = {}  # of a type: one rank's loss, its bound, the first schedule's steps
        self.figures = []  # training_figures(), with the names of model and way, and the number of layers
        self.unfit = set()  # names of models of which no number of layers is known to fit
        self.tests = {}  # of a test program: the names of its tests

    def begin_part(self, limit):
        self.part_end = time.monotonic() + limit * self.scale
        self.out_of_time = False

    def has_time(self, name):
        """False, with a row of the report, if there is no time for one more command of the part."""
        if self.left() >= 5:
            return True
        self.out_of_time = self.out_of_time or self.end <= self.part_end
        self.report.row(name, "not run: no time left")
        return False

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
        found = [shutil.which(name), *glob.glob(f"/usr/local/cuda*/bin/{name}"), *glob.glob(f"/opt/nvidia/*/{name}"),
                 *sorted(glob.glob(f"/opt/nvidia/*/*/{name}"), reverse=True)]
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
        allowed = min(limit * self.scale, self.left())
        if allowed < 1 or self.stopped:
            self.out_of_time = self.out_of_time or self.end <= self.part_end
            return Outcome(None, "", 0.0, cut=True)
        ours = self.libraries() if command[0].startswith(self.folder + os.sep) else {}
        gone = True
        with tempfile.TemporaryFile() as out:
            try:
                process = subprocess.Popen(command, cwd=self.folder, env={**os.environ, **ours, **(env or {})},
                                           stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                                           start_new_session=True)
            except OSError as error:
                return Outcome(127, str(error), 0.0)
            self.running.add(process)
            try:
                status = process.wait(allowed)
            except subprocess.TimeoutExpired:
                status = None
            if status is None or processes_of(process.pid):
                gone = end_session(process, 5.0 * min(1.0, self.scale))
            self.running.discard(process)
            text = read_ends(out)
        self.log.add(f"{' '.join(command)}: {status}", text)
        cut = status is None and allowed < limit * self.scale
        self.out_of_time = self.out_of_time or (cut and self.end <= self.part_end)
        return Outcome(status, text, time.monotonic() - begin, gone, cut)

    def stop(self):
        """Ends the running commands, and starts no more, when this program is terminated."""
        self.stopped = True
        for process in list(self.running):
            if process.poll() is None:
                end_session(process, 1.0)

    def at_once(self, tasks):
        """Calls functions that check programs of which nothing is timed, several at once -> their results."""
        workers = max(2, min(MOST_AT_ONCE, len(os.sched_getaffinity(0)) // 2))
        with concurrent.futures.ThreadPoolExecutor(workers) as pool:
            return list(pool.map(lambda task: task(), tasks))

    def check(self, name, command, limit, env=None, kind=None):
        """A row of the report. The last lines of the output are kept when it failed. After two commands of a kind that
        hang the others of it are omitted: each would cost its whole limit."""
        if kind is not None and self.hung[kind] >= HANGS:
            self.report.row(name, f"not run: {HANGS} times {kind} hung")
            return Outcome(None, "", 0.0, omitted=True)
        outcome = self.run(command, limit, env)
        if outcome.good:
            self.report.row(name, f"ok, {outcome.seconds:.0f} s")
        elif outcome.cut:
            self.report.row(name, f"not finished in {outcome.seconds:.0f} s: no time left")
        else:
            self.note_failure(name, command, limit, env, outcome)
            self.hung[kind] += outcome.status is None
        return outcome

    def note_failure(self, name, command, limit, env, outcome):
        self.broken.append([name, command, limit, env])
        self.report.failed(name, f"{outcome.why}, {outcome.seconds:.0f} s", outcome.out)

    # ---- what the next call has to know ----

    def known(self):
        """Failed test programs are repeated by part `again`; other commands use files of this call."""
        tests = [[name, [word.replace(self.folder, "{folder}") for word in command], limit, env]
                 for name, command, limit, env in self.broken if not any(self.work in word for word in command)]
        return {"attention": self.attention, "hung": {kind: n for kind, n in self.hung.items() if kind},
                "broken": tests, "figures": self.figures}

    def learn(self, known):
        self.attention, self.figures = known["attention"], known["figures"]
        self.hung.update(known["hung"])
        self.broken = [[name, [word.replace("{folder}", self.folder) for word in command], limit, env]
                       for name, command, limit, env in known["broken"]]

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
