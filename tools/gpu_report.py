#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What only a GPU can show, in parts, into one dated report. tools/gpu_check builds or packs, and calls this.

    gpu_report.py FOLDER REPORT      FOLDER: bin/ lib/ mpi/ reference/ recipes/ text gpu_torch.py commit

doctor     what the machine has, and its measured rates
golden     the golden figures, and 20 steps of the quickstart's model beside the CPU's
ops        the op suite on the GPU against double precision
bits       the same run again, after a resume, with what leaves the GPU meanwhile, with algorithms that are timed and
           found again, and under other schedules on two ranks: the same bits
waits      calls that make the host wait, or take memory, in each step of cuboid_counted, launched and with CUDA
           graphs: of a small model, whose streams are held until the host has put a whole step there, and of
           GPT-2 124M, with the memory that its graphs take
train      one GPU, bf16: tokens a second and model FLOPs utilisation of three models, deterministic and with all
           choices by timing; then PyTorch's beside the faster
nccl       2 x 2 x 2: each schedule's first loss within the bound of one rank's
rates      every op at three models' sizes: its rate, and its share of a copy's
sanitizer  compute-sanitizer over the op suite: memcheck, racecheck

GPU_CHECK="train nccl" runs those parts only. GPU_CHECK_SECONDS (560) is the time for all: a part that has none left
says so, and each part has a limit of its own. The report begins with what is to be shown (gpu_wanted.py), is whole
after every line, so a run that is cut off leaves what it had, and has all output beside it (.log). GPU_CHECK_TINY=1
shrinks the models, to rehearse it. Exit status 1 when a check failed; a rate below its target is said, and is no
failure.
"""
import json
import os
import re
import subprocess
import sys
import time

from gpu_figures import (attention_share, bytes_text, copy_shares, dry_bytes, loss_bound, peak_of, read_metrics,
                         same_steps, step_calls, training_figures, waits_as_meant, write_ids)
from gpu_session import ONE_RANK, TINY, Report, Session, as_code, last_of_each
from gpu_wanted import FIGURES

TESTS = ["ops_rows", "ops_pairs", "ops_sums", "ops_attention", "ops_narrow", "attention_narrow", "ops_bits",
         "ops_numbers", "ops_stochastic", "ops_lists", "loss_scale", "gemm", "gemm_narrow", "gemm_epilogue"]
SCHEDULES = ["1f1b", "zb-v", "dualpipev", "gpipe", "looped-bfs", "interleaved", "zb-h1", "zb-h2", "v-half", "v-min",
             "dualpipe"]
COPY_SHARE = 85.0  # per cent that a memory-bound op is to reach
ATTENTION_SHARE = 80.0  # of cuDNN's rate
HOLD_S = 2  # a wait inside a step that is held takes so long
SETTLED = 3  # the step from which nothing is chosen, found or captured any more


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


# How a model is trained: as recipes are written, and with all choices by timing.
WAYS = [("deterministic", []),
        ("fastest", ["deterministic=false", "model.attention_backend=auto", "cluster.matmul_epilogues=auto",
                     "cluster.matmul_algorithms={work}/algorithms-train"])]
# Where launches may take longer than kernels.
GRAPHS = ("graphs", WAYS[-1][1] + ["cluster.cuda_graphs=true"])


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


def write_ids_once(s, model):
    if not os.path.exists(f"{s.work}/ids-{model.vocabulary}.bin"):
        write_ids(f"{s.work}/ids-{model.vocabulary}", 300 if s.tiny else model.vocabulary)


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
    said = [line for line in outcome.out.splitlines() if line.strip()]
    figures = [line for line in said if line.startswith("{")]
    try:
        return json.loads(figures[-1]), ""
    except (IndexError, ValueError):
        return None, said[-1] if said and outcome.status is not None else outcome.why


def our_figures(s, model, peak, ways=WAYS):
    """The better of the ways to train it, and what was said of attention; None: neither did."""
    best = None
    for way, overrides in ways:
        command, folder = s.train(f"{model.name}-{way}", model.recipe, *train_overrides(
            s, model, f"cluster.device={s.device}", "train.train_iters=8", f"logging.peak_flops={peak or 0:g}",
            *(override.format(work=s.work) for override in overrides)))
        outcome = s.check(f"training, {model.name}, bf16, {way}", command, 90)
        if not outcome.good:
            continue
        figures = training_figures(read_metrics(folder))
        s.report.row(f"{model.name}, {way}", f"{figures['tokens_per_s']:.0f} tokens/s, {figures['step_time_s']:.3g} s")
        if way == "fastest":
            told = re.findall(r"^attention: (.*)$", outcome.out, re.MULTILINE)
            s.report.wanted.see("faster", bool(told), "; ".join(told) or f"{model.name}: nothing said of attention")
        if best is None or figures["tokens_per_s"] > best["tokens_per_s"]:
            best = {**figures, "way": way}
    return best


def compare_with_torch(s, model, ours, peak):
    """-> both. Where PyTorch has no room for as many layers, both are measured with fewer."""
    theirs, why = torch_figures(s, model, model.layers)
    if theirs is None and "out of memory" in why.lower() and model.layers and model.layers > 8:
        model.layers -= 8
        s.report.row(f"PyTorch, {model.name}", f"out of memory; both again with {model.layers} layers")
        ours = our_figures(s, model, peak, [way for way in (*WAYS, GRAPHS) if way[0] == ours["way"]]) or ours
        theirs, why = torch_figures(s, model, model.layers)
    if theirs is None:
        s.report.row(f"PyTorch, {model.name}", f"not run: {why}")
        return ours, None
    s.report.wanted.see(f"{model.name} torch", *s.report.target(
        f"{model.name}, Cuboid's tokens/s over PyTorch's", 100 * ours["tokens_per_s"] / theirs["tokens_per_s"], 110.0))
    return ours, theirs


def part_train(s):
    """Cuboid's figures of all models first: PyTorch compiles for minutes."""
    peak = peak_of(s.gpu_name)
    lines = ["| model | layers | B x S x m | way | Cuboid tok/s | MFU, attention in full | MFU, its causal half "
             "| memory | PyTorch tok/s | Cuboid / PyTorch |", "|---|---|---|---|---|---|---|---|---|---|"]
    measured = []
    for model in MODELS:
        write_ids_once(s, model)
        if model.name == "llama3-8b" and not s.tiny:
            model.layers = layers_that_fit(s, model, 0.9 * s.gpu_bytes)
            if model.layers is None:
                s.report.failed("llama3-8b, layers that fit", "the dry run does not say, or not one does")
                continue
        ours = our_figures(s, model, peak, [*WAYS, GRAPHS] if model.name == "gpt2-124m" else WAYS)
        if ours is None:
            continue
        measured.append((model, ours))
        if peak:
            s.report.wanted.see(f"{model.name} mfu", *s.report.target(f"{model.name}, model FLOPs utilisation",
                                                                      100 * ours["mfu"], model.target))
    for model, ours in measured:
        lines.append(train_line(model, *compare_with_torch(s, model, ours, peak)))
    text = "\n".join(lines)
    text += "\n\nMedians of the steps behind the third. In full: 12 layers x S x A x D per token for attention"
    text += " (Narayanan et al. 2021); its causal half is what Megatron-LM counts today."
    text += f" Of {peak / 1e12:.0f} TFLOP/s." if peak else " No peak is known for this GPU."
    s.report.section("Training", text)


def train_line(model, ours, theirs):
    def share(x):
        return f"{100 * x:.1f} %" if x is not None else "-"

    cells = [model.name, model.layers or "all", f"{model.batch} x {model.seq} x {model.microbatches}",
             ours["way"], f"{ours['tokens_per_s']:.0f}", share(ours["mfu"]), share(ours["mfu_causal"]),
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
            s.report.wanted.see("copy", not low, f"{dtype}, {model}: {said}")
            s.report.row(f"at {COPY_SHARE:.0f} % of the copy's rate or more, {dtype}, {model}",
                         f"{len(shares) - len(low)} of {len(shares)} memory-bound ops" +
                         (f"; below: {said}" if low else ""))
        for beside in re.findall(r"^own attention: (.*)$", outcome.out, re.MULTILINE)[:1 if dtype == "bf16" else 0]:
            s.report.row(f"own attention, {dtype}, {model}", beside)
            share = attention_share(beside)
            s.report.wanted.see("attention", share >= ATTENTION_SHARE, f"{model}: {share:.0f} %")
        s.report.section(f"Rates, {dtype}, {model}, batch {batch} x {seq}", as_code(outcome.out))


def compare_bits(s, name, folders, first=1, wanted=None):
    a, b = (read_metrics(folder) for folder in folders)
    same = same_steps(a, b, first)
    if wanted is not None:
        s.report.wanted.see(wanted, same, f"{name}: {'the same' if same else 'other'} bits, {len(b)} steps")
    if same:
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
        compare_bits(s, "rerun against rerun", runs.values(), wanted="rerun")
    resume(s, bf16, runs)
    variants(s, bf16, runs)
    launcher, shared = s.launch(2)
    if launcher is None:
        s.report.row("schedule against schedule", "not run: fewer than 2 GPUs, and no mpirun to share one")
        return
    for schedule in ("1f1b", "gpipe", "zb-h1"):
        command, folder = s.train("pp2-" + schedule, "quickstart.yaml", *s.small(*ONE_RANK, *bf16, steps=6), "pp=2",
                                  f"pipeline.schedule={schedule}", "cluster.transport=nccl", *shared,
                                  launcher=launcher)
        if s.check(f"6 steps, bf16, pp 2, {schedule}", command, 60, s.mpi_environment()).good and "once" in runs:
            compare_bits(s, f"one rank against pp 2, {schedule}", (runs["once"], folder), wanted="schedules")


def resume(s, bf16, runs):
    """Three steps, a checkpoint, and three more by another process."""
    keep = [f"checkpoint.save={s.work}/checkpoints", "checkpoint.load=auto"]
    whole = [*s.small(*ONE_RANK, *bf16, steps=6), *keep]
    begin, folder = s.train("resumed", "quickstart.yaml", *whole, "train.train_iters=3")
    good = s.check("3 steps and a checkpoint", begin, 60).good
    go_on, _ = s.train("resumed", "quickstart.yaml", *whole, keep=True)
    if good and s.check("3 more", go_on, 60).good and "once" in runs:
        compare_bits(s, "resumed against not stopped", (runs["once"], folder), wanted="resume")


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


def part_waits(s):
    model = MODELS[0]
    write_ids_once(s, model)
    common = [f"cluster.device={s.device}", "precision.params_dtype=bf16"]
    small = s.small(*ONE_RANK, *common, "model.num_layers=2", "train.global_batch_size=2", steps=8)
    large = train_overrides(s, model, *common, "train.train_iters=8")
    grown, lines = {}, []
    for way, graphs in (("launched", "false"), ("graphs", "true")):
        for name, recipe, overrides, hold_s in (("quickstart's model", "quickstart.yaml", small, HOLD_S),
                                                (model.name, model.recipe, large, 0)):
            out = count_calls(s, f"{name}, {way}", recipe, [*overrides, f"cluster.cuda_graphs={graphs}"], hold_s)
            steps = step_calls(out)
            lines += [f"{name}, {way}:", *(f"  step {step['step']}: {step['said']}" for step in steps)]
        if steps:
            grown[way] = steps[0]["free"] - steps[-1]["free"]
    s.report.section("Calls that make the host wait, or take memory", as_code("\n".join(lines)))
    if len(grown) == 2:
        text = f"{bytes_text(grown['graphs'] - grown['launched'])} beside the plan's {bytes_text(dry_bytes(out))}; " \
            f"in all {bytes_text(steps[-1]['all'] - steps[-1]['free'])} of the GPU are taken"
        s.report.row(f"memory of {model.name}'s CUDA graphs", text)
        s.report.wanted.see("graph memory", True, text)


def count_calls(s, name, recipe, overrides, hold_s):
    """A row and a sight of the steps that are settled -> what the run said; nothing when it failed."""
    command, _ = s.train("waits-" + re.sub(r"\W+", "-", name), recipe, *overrides)
    command[0] = s.path("bin", "cuboid_counted")
    outcome = s.check(f"calls of a step, {name}", command, 60, {"COUNT_HOLD_S": str(hold_s)})
    if not outcome.good:
        return ""
    settled = [step for step in step_calls(outcome.out) if step["step"] >= SETTLED]
    bad = [step for step in settled if not waits_as_meant(step)]
    said = f"{len(settled) - len(bad)} of {len(settled)} steps wait as is meant"
    said += f"; step {(bad or settled)[-1]['step']} {(bad or settled)[-1]['said']}" if settled else ""
    good = bool(settled) and not bad
    if good:
        s.report.row(f"waits, {name}", said + ("; its streams were held until all was there" if hold_s else ""))
    else:
        s.report.failed(f"waits, {name}", said, outcome.out)
    s.report.wanted.see("waits", good, f"{name}: {said}")
    return outcome.out


def part_nccl(s):
    launcher, shared = s.launch(8)
    if launcher is None:
        s.report.row("NCCL, 8 ranks", "not run: fewer than 8 GPUs, and no mpirun or a build without MPI to share one")
        return
    cube = ["dp=2", "tp=2", "pp=2"]
    for dtype, schedules in (("bf16", SCHEDULES[:2]), ("fp32", SCHEDULES[:2]), ("bf16", SCHEDULES[2:])):
        precision = f"precision.params_dtype={dtype}"
        if reference(s, dtype, precision, cube) is None:
            continue
        for schedule in schedules:
            name = f"2 x 2 x 2, {dtype}, {schedule}"
            extra = ["parallel.tp_comm_overlap=true"] if schedule == "zb-h2" else []
            command, folder = s.train(f"cube-{dtype}-{schedule}", "quickstart.yaml",
                                      *s.small(precision, steps=2), *cube, f"pipeline.schedule={schedule}",
                                      f"cluster.device={s.device}", "cluster.transport=nccl", *shared, *extra,
                                      launcher=launcher)
            if s.left() < 5:
                s.report.row(name, "not run: no time left")
                continue
            outcome = s.run(command, 90, s.mpi_environment())
            if outcome.good:
                compare_loss(s, name, dtype, read_metrics(folder), outcome.seconds)
            else:
                s.report.failed(name, f"{outcome.why}, {outcome.seconds:.0f} s", outcome.out)
                s.report.wanted.see("cube " + dtype, False, f"{schedule} failed")


def reference(s, dtype, precision, cube):
    """One rank's loss and its bound, kept in s.cube; None: there is none."""
    if dtype in s.cube:
        return s.cube[dtype]
    bound = loss_bound(s.run(s.cuboid("verify", s.path("recipes", "quickstart.yaml"),
                                      *last_of_each([*s.small(precision), *cube]), "--steps", "1"), 90).out)
    command, folder = s.train("one-" + dtype, "quickstart.yaml", *s.small(precision, steps=2), *ONE_RANK,
                              f"cluster.device={s.device}")
    if bound is None or not s.check(f"one rank, the reference, {dtype}", command, 60).good:
        s.report.failed(f"2 x 2 x 2, {dtype}", "no reference, or no bound from cuboid verify")
        return None
    s.cube[dtype] = {"loss": read_metrics(folder)[0]["loss"], "bound": bound}
    return s.cube[dtype]


def compare_loss(s, name, dtype, records, seconds):
    """The first step's with one rank's; and all there is with the first schedule's."""
    known = s.cube[dtype]
    apart = abs(records[0]["loss"] - known["loss"])
    same = same_steps(known.setdefault("first", records), records)
    said = f"loss {records[0]['loss']:.7g}, {apart:.2g} from one rank's, bound {known['bound']:.2g}"
    said += ", the first schedule's bits" if same else ""
    s.report.wanted.see("cube " + dtype, apart <= known["bound"], f"{name}: {said}")
    if apart <= known["bound"]:
        s.report.row(name, f"{said}; {seconds:.0f} s")
    else:
        s.report.failed(name, "outside: " + said)


def part_ops(s):
    libraries = {"CUBOID_TEST_CUDNN": "1"} if s.has_library("libcudnn.so.9") else {}
    if not libraries:
        s.report.row("cuDNN's attention", "not run: no libcudnn.so.9 here")
    for name in TESTS:
        # Which bits a matrix product has is cuBLASLt's choice, and alignment is part of it.
        which = f"{name}/!(*bits)" if name in ("gemm", "gemm_narrow") else "*/*"
        good = s.check(f"{name} on the GPU", [s.path("bin", "test_" + name), "--filter", which], 120,
                       {"CUBOID_TEST_DEVICE": s.device, **libraries}).good
        s.report.wanted.see("ops", good, f"{name} failed")


def part_sanitizer(s):
    sanitizer = s.tool("compute-sanitizer")
    if sanitizer is None:
        s.report.row("compute-sanitizer", "not installed")
        return
    plan = [("memcheck", "ops_rows", "*/norm_*ward"), ("racecheck", "ops_rows", "*/norm_*ward"),
            ("memcheck", "attention_narrow", "*/bits*"), ("racecheck", "attention_narrow", "*/bits*"),
            ("memcheck", "ops_sums", "*/*"), ("racecheck", "ops_sums", "*/*"),
            ("racecheck", "ops_attention", "*/forward_and*"), ("memcheck", "ops_narrow", "*/*"),
            ("memcheck", "ops_attention", "*/*"), ("memcheck", "ops_bits", "*/*")]
    # Our libraries are for our program, which `env` starts, and not for the sanitizer.
    ours = ["env", *(f"{key}={value}" for key, value in s.libraries().items())]
    for tool, name, which in plan:
        if s.left() < 5:
            s.report.row(f"{name}, {tool}", "not run: no time left")
            continue
        good = s.check(f"{name}, {tool}", [
            sanitizer, "--tool", tool, "--target-processes", "all", "--error-exitcode", "9", *ours,
            s.path("bin", "test_" + name), "--filter", which, "-j1"], 90, {"CUBOID_TEST_DEVICE": s.device}).good
        s.report.wanted.see(tool, good, f"{name} failed")


# In the order of what they say; with a limit in seconds.
PARTS = {"doctor": (part_doctor, 45), "golden": (part_golden, 90), "ops": (part_ops, 120), "bits": (part_bits, 120),
         "waits": (part_waits, 90), "train": (part_train, 400), "nccl": (part_nccl, 300), "rates": (part_rates, 150),
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
    session = Session(folder, report, float(os.environ.get("GPU_CHECK_SECONDS", "560")), name, size,
                      os.environ.get("GPU_CHECK_TINY") == "1")
    prepared = session.run(session.cuboid("data", "prepare", session.path("text"), "-o", f"{session.work}/text",
                                          "--overwrite"), 60)
    if not prepared.good:
        report.failed("data prepare", prepared.why, prepared.out)
    run_parts(session, chosen)
    print(f"\n{report.state}; the report is {path}, all output in {session.log.name}\n")
    for name in FIGURES:
        print(f"{FIGURES[name][0]}: {' '.join(report.wanted.state(name))}")
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
