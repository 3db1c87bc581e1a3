#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What only a GPU can show, in parts, into one dated report. tools/gpu_check builds or packs, and calls this.

    gpu_report.py FOLDER REPORT      FOLDER: bin/ reference/ recipes/ text gpu_torch.py commit

doctor     what the machine has, and its measured rates
golden     the golden figures, and 20 steps of the quickstart's model beside the CPU's
train      one GPU, bf16: tokens a second and model FLOPs utilisation of three models; PyTorch's beside them
rates      every op at three models' sizes: its rate, and its share of a copy's
bits       the same run again, after a resume, with what leaves the GPU meanwhile, with algorithms that are timed and
           found again, and under other schedules on two ranks: the same bits
nccl       2 x 2 x 2: each schedule's first loss within the bound of one rank's
ops        the op suite on the GPU against double precision
sanitizer  compute-sanitizer over the op suite: memcheck, racecheck

GPU_CHECK="train nccl" runs those parts only. GPU_CHECK_SECONDS (570) is the time for all: a part that has none left
says so, and each part has a limit of its own. The report is whole after every line, so a run that is cut off leaves
what it had. GPU_CHECK_TINY=1 shrinks the models, to rehearse it. Exit status 1 when a check failed; a rate
below its target is said, and is no failure.
"""
import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from gpu_figures import (copy_shares, dry_bytes, loss_bound, peak_of, read_metrics, same_steps, training_figures,
                         write_ids)

TESTS = ["ops_rows", "ops_sums", "ops_attention", "ops_narrow", "attention_narrow", "ops_bits", "ops_numbers",
         "gemm", "gemm_narrow"]
SCHEDULES = ["gpipe", "looped-bfs", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v", "v-half", "v-min", "dualpipe",
             "dualpipev"]
ONE_RANK = ["dp=1", "tp=1", "pp=1", "parallel.sequence_parallel=false", "pipeline.schedule=1f1b"]
QUIET = ["train.eval_interval=0", "checkpoint.load=none", "checkpoint.save=none", "checkpoint.save_interval=0",
         "checkpoint.keep_last=0"]
COPY_SHARE = 85.0  # per cent that a memory-bound op is to reach


class Model:
    """A model of part `train`. target: the utilisation to reach, attention counted in full."""

    def __init__(self, name, recipe, seq, batch, microbatches, target, vocabulary, overrides=()):
        self.name, self.recipe, self.seq, self.batch, self.target = name, recipe, seq, batch, target
        self.microbatches, self.vocabulary, self.overrides = microbatches, vocabulary, list(overrides)
        self.layers = None  # None: the recipe's


MODELS = [
    Model("gpt2-124m", "gpt2-124m.yaml", 1024, 32, 4, 45.0, 50257),
    Model("gpt3-1.3b", "gpt3-1.3b.yaml", 2048, 4, 8, 50.0, 50257),
    Model("llama3-8b", "llama3-8b.yaml", 4096, 1, 8, 50.0, 128256),
]
TINY = ["model.hidden_size=24", "model.kv_channels=4", "model.ffn_hidden_size=32", "model.seq_length=16"]


# ---- the report ----

class Report:
    """Rows of one table, sections behind it, and the ends of what failed. On disk it is whole at every moment."""

    def __init__(self, path, title, machine):
        self.path, self.title, self.machine = path, title, machine
        self.rows, self.sections, self.failures, self.missed = [], [], [], []
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
        self.row(name, f"{value:.1f} {unit}, {'reaches' if good else '**below**'} {least:g}")

    def text(self):
        lines = [f"# {self.title}", "", self.machine, "", f"State: {self.state}.", "", "| check | result |",
                 "|---|---|", *self.rows, ""]
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
        self.log = open(os.path.join(self.work, "all"), "w")
        self.device = os.environ.get("GPU_CHECK_DEVICE", "cuda")

    def left(self):
        return min(self.end, self.part_end) - time.monotonic()

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def run(self, command, limit, env=None):
        """Its output and status, None when it ran out of time: then its whole process group is ended."""
        begin = time.monotonic()
        limit = min(limit, self.left())
        if limit < 1:
            return Outcome(None, "", 0.0)
        with tempfile.TemporaryFile("w+", errors="replace") as out:
            process = subprocess.Popen(command, cwd=self.folder, env={**os.environ, **(env or {})}, stdout=out,
                                       stderr=subprocess.STDOUT, start_new_session=True)
            try:
                status = process.wait(limit)
            except subprocess.TimeoutExpired:
                end_group(process)
                status = None
            out.seek(0)
            text = out.read()
        self.log.write(f"=== {' '.join(command)}: {status}\n{text}\n")
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


# ---- the parts ----

def part_doctor(s):
    outcome = s.check("doctor", s.cuboid("doctor"), 60)
    s.report.section("The machine", as_code(outcome.out))


def part_golden(s):
    for what, which in (("one microbatch, planted faults", "0"), ("four microbatches", "1")):
        s.check(f"golden figures, one rank, {what}",
                [s.path("bin", "test_golden"), s.path("reference"), s.device, which], 120)
    figures = {}
    for device in (s.device, "cpu"):
        command, folder = s.train(f"quickstart-{device}", "quickstart.yaml", *s.small(*ONE_RANK, steps=20),
                                  f"cluster.device={device}")
        if s.check(f"20 steps of the quickstart's model, {device}", command, 120).good:
            figures[device] = read_metrics(folder)[-1]
    if len(figures) == 2:
        gpu, cpu = figures[s.device], figures["cpu"]
        s.report.row("loss of step 20, GPU and CPU", f"{gpu['loss']:.7g} and {cpu['loss']:.7g}")
        s.report.row("seconds a step, GPU and CPU", f"{gpu['step_time_s']:.3g} and {cpu['step_time_s']:.3g}")
    command, folder = s.train("tf32", "quickstart.yaml", *s.small(*ONE_RANK, steps=20), f"cluster.device={s.device}",
                              "precision.allow_tf32=true")
    if s.check("20 steps of the quickstart's model, TF32", command, 120).good:
        last = read_metrics(folder)[-1]
        s.report.row("loss of step 20 in TF32; seconds a step", f"{last['loss']:.7g}; {last['step_time_s']:.3g}")


def shape_overrides(s, model):
    """What makes the recipe this measurement's work."""
    overrides = [f"model.seq_length={model.seq}", *model.overrides]
    if model.layers is not None:
        overrides.append(f"model.num_layers={model.layers}")
    if s.tiny:
        overrides += TINY + ["model.num_layers=2", "model.num_attention_heads=6", "model.vocab_size=300"]
        overrides += ["model.num_query_groups=2"] if model.recipe.startswith("llama") else []
    return overrides


def train_overrides(s, model, *more):
    batch, microbatches = (2, 2) if s.tiny else (model.batch, model.microbatches)
    return [f"data.train={s.work}/ids-{model.vocabulary}", "tokenizer.tokenizer_type=none",
            "tokenizer.vocab_file=none", "tokenizer.merge_file=none", f"model.vocab_size={model.vocabulary}",
            f"train.micro_batch_size={batch}", f"train.global_batch_size={batch * microbatches}",
            "optimizer.lr_warmup_iters=1", "optimizer.lr_decay_iters=100", "data.split=100,0,0",
            "precision.params_dtype=bf16", *ONE_RANK, *shape_overrides(s, model), *more]


def layers_that_fit(s, model, room):
    """The most layers of 4, 8, 12 ... whose allocations, as a dry run counts them, fit; None: it could not say."""
    best = None
    for layers in range(4, 33, 4):
        model.layers = layers
        command, _ = s.train("dry", model.recipe, *train_overrides(s, model, "cluster.device=dry"))
        needed = dry_bytes(s.run(command, 30).out)
        if needed is None or needed > room:
            break
        best = layers
    model.layers = None
    return best


def torch_figures(s, model, layers):
    """PyTorch's step of the same work, or why there is none."""
    batch, microbatches = (2, 2) if s.tiny else (model.batch, model.microbatches)
    command = [sys.executable, s.path("gpu_torch.py"), "--model", model.name, "--batch", str(batch),
               "--microbatches", str(microbatches), "--seq", str(model.seq)]
    command += ["--layers", str(layers)] if layers else []
    outcome = s.run(command + (["--tiny"] if s.tiny else []), 150)
    try:
        return json.loads(outcome.out.strip().splitlines()[-1]), ""
    except (IndexError, ValueError):
        return None, outcome.out.strip().splitlines()[-1] if outcome.out.strip() else outcome.why


def part_train(s):
    peak = peak_of(s.gpu_name)
    lines = ["| model | layers | B x S x m | Cuboid tok/s | MFU, attention in full | MFU, its causal half "
             "| memory | PyTorch tok/s | Cuboid / PyTorch |", "|---|---|---|---|---|---|---|---|---|"]
    for model in MODELS:
        if not os.path.exists(f"{s.work}/ids-{model.vocabulary}.bin"):
            write_ids(f"{s.work}/ids-{model.vocabulary}", 300 if s.tiny else model.vocabulary)
        if model.name == "llama3-8b" and not s.tiny:
            model.layers = layers_that_fit(s, model, 0.9 * s.gpu_bytes)
            if model.layers is None:
                s.report.failed("llama3-8b, layers that fit", "the dry run does not say, or not one does")
                continue
        command, folder = s.train(model.name, model.recipe, *train_overrides(
            s, model, f"cluster.device={s.device}", "train.train_iters=10", f"logging.peak_flops={peak or 0:g}"))
        if not s.check(f"training, {model.name}, bf16", command, 90).good:
            continue
        ours = training_figures(read_metrics(folder))
        theirs, why = torch_figures(s, model, model.layers)
        if theirs is None:
            s.report.row(f"PyTorch, {model.name}", f"not run: {why}")
        lines.append(train_line(model, ours, theirs))
        if peak:
            s.report.target(f"{model.name}, model FLOPs utilisation", 100 * ours["mfu"], model.target)
        if theirs:
            s.report.target(f"{model.name}, Cuboid's tokens/s over PyTorch's",
                            100 * ours["tokens_per_s"] / theirs["tokens_per_s"], 110.0)
    text = "\n".join(lines)
    text += "\n\nMedians of the steps behind the third. In full: 12 layers x S x A x D per token for attention"
    text += " (Narayanan et al. 2021); its causal half is what Megatron-LM counts today."
    text += f" Of {peak / 1e12:.0f} TFLOP/s." if peak else " No peak is known for this GPU."
    s.report.section("Training", text)


def train_line(model, ours, theirs):
    def share(x):
        return f"{100 * x:.1f} %" if x is not None else "-"

    cells = [model.name, model.layers or "all", f"{model.batch} x {model.seq} x {model.microbatches}",
             f"{ours['tokens_per_s']:.0f}", share(ours["mfu"]), share(ours["mfu_causal"]),
             f"{ours['memory_peak_bytes'] / 2**30:.1f} GiB"]
    cells += [f"{theirs['tokens_per_s']:.0f}", f"{ours['tokens_per_s'] / theirs['tokens_per_s']:.2f}"] if theirs \
        else ["-", "-"]
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def part_rates(s):
    sizes = [("bf16", "gpt2", 16, 1024), ("bf16", "gpt3-1.3b", 4, 2048), ("bf16", "llama3-8b", 1, 4096),
             ("f32", "gpt2", 16, 1024)]
    for dtype, model, batch, seq in sizes:
        batch, seq = (1, 64) if s.tiny else (batch, seq)
        outcome = s.check(f"rates, {dtype}, {model}", [
            s.path("bin", "bench_ops"), f"device={s.device}", f"type={dtype}", f"model={model}", f"batch={batch}",
            f"sequence={seq}"], 60)
        shares = copy_shares(outcome.out)
        low = {name: share for name, share in shares.items() if share < COPY_SHARE}
        if shares:
            said = ", ".join(f"{name} {share:.0f}" for name, share in sorted(low.items(), key=lambda x: x[1]))
            s.report.row(f"at {COPY_SHARE:.0f} % of the copy's rate or more, {dtype}, {model}",
                         f"{len(shares) - len(low)} of {len(shares)} memory-bound ops" +
                         (f"; below: {said}" if low else ""))
        beside = re.search(r"^own attention: (.*)$", outcome.out, re.MULTILINE)
        if beside:
            s.report.row(f"own attention, {dtype}, {model}", beside.group(1))
        s.report.section(f"Rates, {dtype}, {model}, batch {batch} x {seq}", as_code(outcome.out))


def compare_bits(s, name, folders, first=1):
    a, b = (read_metrics(folder) for folder in folders)
    if same_steps(a, b, first):
        s.report.row(name, f"the same bits, {len(b)} steps")
    else:
        s.report.failed(name, "other bits", "\n".join(json.dumps([r["step"], r["loss"], r["grad_norm"]])
                                                     for r in a + b))


def part_bits(s):
    bf16 = ["precision.params_dtype=bf16", f"cluster.device={s.device}", "deterministic=true"]
    runs = {}
    for name in ("once", "again"):
        command, folder = s.train(name, "quickstart.yaml", *s.small(*ONE_RANK, *bf16, steps=6))
        if s.check(f"6 steps, bf16, {name}", command, 60).good:
            runs[name] = folder
    if len(runs) == 2:
        compare_bits(s, "rerun against rerun", runs.values())
    resume(s, bf16, runs)
    variants(s, bf16, runs)
    launcher, shared = launch(s, 2)
    if launcher is None:
        s.report.row("schedule against schedule", "not run: fewer than 2 GPUs, and no mpirun to share one")
        return
    for schedule in ("1f1b", "gpipe", "zb-h1"):
        command, folder = s.train("pp2-" + schedule, "quickstart.yaml", *s.small(*ONE_RANK, *bf16, steps=6), "pp=2",
                                  f"pipeline.schedule={schedule}", "cluster.transport=nccl", *shared,
                                  launcher=launcher)
        if s.check(f"6 steps, bf16, pp 2, {schedule}", command, 60, mpi_environment()).good and "once" in runs:
            compare_bits(s, f"one rank against pp 2, {schedule}", (runs["once"], folder))


def resume(s, bf16, runs):
    """Three steps, a checkpoint, and three more by another process."""
    keep = [f"checkpoint.save={s.work}/checkpoints", "checkpoint.load=auto"]
    whole = [*s.small(*ONE_RANK, *bf16, steps=6), *keep]
    begin, folder = s.train("resumed", "quickstart.yaml", *whole, "train.train_iters=3")
    good = s.check("3 steps and a checkpoint", begin, 60).good
    go_on, _ = s.train("resumed", "quickstart.yaml", *whole, keep=True)
    if good and s.check("3 more", go_on, 60).good and "once" in runs:
        compare_bits(s, "resumed against not stopped", (runs["once"], folder))


def variants(s, bf16, runs):
    """The same 6 steps in other ways; the last two have other products than the first, and the same as each other."""
    kept = [f"cluster.matmul_algorithms={s.work}/algorithms"]
    ways = [("activations and moments away and back", "once",
             ["pipeline.schedule=gpipe", "memory.offload_activations=true", "memory.offload_optimizer=true"]),
            ("algorithms that are timed", None, kept), ("algorithms found again", "algorithms that are timed", kept)]
    for name, beside, overrides in ways:
        command, folder = s.train(name.replace(" ", "-"), "quickstart.yaml",
                                  *s.small(*ONE_RANK, *bf16, *overrides, steps=6))
        if not s.check(f"6 steps, bf16, {name}", command, 60).good:
            continue
        runs[name] = folder
        s.report.row(f"seconds a step, {name}", f"{read_metrics(folder)[-1]['step_time_s']:.3g}")
        if beside in runs:
            compare_bits(s, name, (runs[beside], folder))


def mpi_environment():
    return {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_mpi_yield_when_idle": "1",
            "OMPI_MCA_btl": "self,vader", "OMPI_MCA_oob_tcp_if_include": "lo"}


def gpu_count(s):
    return len(re.findall(r"^GPU \d+:", s.run(["nvidia-smi", "-L"], 20).out, re.MULTILINE))


def launch(s, ranks):
    """The words before cuboid, and overrides: threads with a GPU each, or processes that share; None: neither."""
    gpus = gpu_count(s)
    if gpus >= ranks:
        return [], []
    has_mpi = re.search(r"^mpi *yes", s.run(s.cuboid("--version"), 20).out, re.MULTILINE)
    if shutil.which("mpirun") is None or not has_mpi or gpus < 1:
        return None, []
    return ["mpirun", "--bind-to", "none", "-n", str(ranks)], [f"cluster.ranks_per_gpu={-(-ranks // gpus)}"]


def part_nccl(s):
    launcher, shared = launch(s, 8)
    if launcher is None:
        s.report.row("NCCL, 8 ranks", "not run: fewer than 8 GPUs, and no mpirun or a build without MPI to share one")
        return
    cube = ["model.num_layers=8", "dp=2", "tp=2", "pp=2"]
    for dtype, schedules in (("bf16", SCHEDULES), ("fp32", ["1f1b", "zb-v"])):
        precision = f"precision.params_dtype={dtype}"
        overrides = last_of_each([*s.small(precision), *cube])
        bound = loss_bound(s.run(s.cuboid("verify", s.path("recipes", "quickstart.yaml"), *overrides, "--steps", "1"),
                                 90).out)
        command, folder = s.train("one-" + dtype, "quickstart.yaml", *s.small(precision, "model.num_layers=8"),
                                  *ONE_RANK, f"cluster.device={s.device}")
        if bound is None or not s.check(f"one rank, the reference, {dtype}", command, 60).good:
            s.report.failed(f"2 x 2 x 2, {dtype}", "no reference, or no bound from cuboid verify")
            continue
        one, first = read_metrics(folder)[0]["loss"], None
        for schedule in schedules:
            name = f"2 x 2 x 2, {dtype}, {schedule}"
            extra = ["parallel.tp_comm_overlap=true"] if schedule == "zb-h2" else []
            command, folder = s.train(f"cube-{dtype}-{schedule}", "quickstart.yaml", *s.small(precision), *cube,
                                      f"pipeline.schedule={schedule}", f"cluster.device={s.device}",
                                      "cluster.transport=nccl", *shared, *extra, launcher=launcher)
            outcome = s.run(command, 60, mpi_environment())
            if not outcome.good:
                s.report.failed(name, outcome.why, outcome.out)
                continue
            records = read_metrics(folder)
            first = first or records
            apart = abs(records[0]["loss"] - one)
            said = f"loss {records[0]['loss']:.7g}, {apart:.2g} from one rank's, bound {bound:.2g}"
            said += ", the first schedule's bits" if same_steps(first, records) else ""
            if apart <= bound:
                s.report.row(name, said)
            else:
                s.report.failed(name, "outside: " + said)


def has_cudnn():
    try:
        ctypes.CDLL("libcudnn.so.9")
    except OSError:
        return False
    return True


def part_ops(s):
    libraries = {"CUBOID_TEST_CUDNN": "1"} if has_cudnn() else {}
    if not libraries:
        s.report.row("cuDNN's attention", "not run: no libcudnn.so.9 here")
    for name in TESTS:
        # Which bits a matrix product has is cuBLASLt's choice, and alignment is part of it.
        which = f"{name}/!(*bits)" if name in ("gemm", "gemm_narrow") else "*/*"
        s.check(f"{name} on the GPU", [s.path("bin", "test_" + name), "--filter", which], 120,
                {"CUBOID_TEST_DEVICE": s.device, **libraries})


def part_sanitizer(s):
    if shutil.which("compute-sanitizer") is None:
        s.report.row("compute-sanitizer", "not installed")
        return
    plan = [("memcheck", "ops_rows", "*/norm_*ward"), ("racecheck", "ops_rows", "*/norm_*ward"),
            ("memcheck", "attention_narrow", "*/bits*"), ("racecheck", "attention_narrow", "*/bits*"),
            ("memcheck", "ops_sums", "*/*"), ("racecheck", "ops_sums", "*/*"),
            ("racecheck", "ops_attention", "*/forward_and*"), ("memcheck", "ops_narrow", "*/*"),
            ("memcheck", "ops_attention", "*/*"), ("memcheck", "ops_bits", "*/*")]
    for tool, name, which in plan:
        if s.left() < 5:
            s.report.row(f"{name}, {tool}", "not run: no time left")
            continue
        s.check(f"{name}, {tool}", ["compute-sanitizer", "--tool", tool, "--target-processes", "all",
                                    "--error-exitcode", "9", s.path("bin", "test_" + name), "--filter", which, "-j1"],
                90, {"CUBOID_TEST_DEVICE": s.device})


# In the order of what they say; with a limit in seconds.
PARTS = {"doctor": (part_doctor, 60), "golden": (part_golden, 90), "train": (part_train, 330),
         "rates": (part_rates, 90), "bits": (part_bits, 120), "nccl": (part_nccl, 300), "ops": (part_ops, 240),
         "sanitizer": (part_sanitizer, 300)}


def run_parts(s, chosen):
    for name in chosen:
        part, limit = PARTS[name]
        s.part_end = time.monotonic() + limit
        if s.left() < 5:
            s.report.row(f"part {name}", f"not run: no time left (GPU_CHECK={name} runs it alone)")
            continue
        s.report.state = f"not finished; in part {name}"
        try:
            part(s)
        except Exception as error:  # one part's surprise must not cost the others
            s.report.failed(f"part {name}", f"{type(error).__name__}: {error}")
    s.report.state = f"{len(s.report.failures)} failed, {len(s.report.missed)} below their targets"
    s.report.save()


def gpu_found():
    """'NVIDIA H200, 580.1, 143771 MiB' as nvidia-smi has it, its name, and its bytes."""
    said = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"],
                          capture_output=True, text=True, timeout=60).stdout.strip()
    first = said.splitlines()[0] if said else ""
    name, _, memory = (first.split(", ") + ["", "", ""])[:3]
    mebibytes = re.match(r"(\d+) MiB", memory)
    return said, name, int(mebibytes.group(1)) * 2**20 if mebibytes else 0


def chosen_parts(text):
    names = text.split() or list(PARTS)
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        sys.exit(f"gpu_check: GPU_CHECK has no part {', '.join(unknown)}; there are: {' '.join(PARTS)}")
    return names


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__.split("\n\n")[1])
    folder, path = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
    chosen = chosen_parts(os.environ.get("GPU_CHECK", ""))
    machine, name, size = gpu_found()
    with open(os.path.join(folder, "commit")) as text:
        commit = text.read().strip()
    os.makedirs(os.path.dirname(path), exist_ok=True)
    report = Report(path, f"GPU check, {time.strftime('%Y-%m-%d', time.gmtime())}, commit {commit}", machine)
    session = Session(folder, report, float(os.environ.get("GPU_CHECK_SECONDS", "570")), name, size,
                      os.environ.get("GPU_CHECK_TINY") == "1")
    prepared = session.run(session.cuboid("data", "prepare", session.path("text"), "-o", f"{session.work}/text",
                                          "--overwrite"), 60)
    if not prepared.good:
        report.failed("data prepare", prepared.why, prepared.out)
    run_parts(session, chosen)
    print(f"{report.state}; the report is {path}, all output in {session.log.name}")
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
