# SPDX-License-Identifier: Apache-2.0
"""The parts of tools/gpu/gpu_report.py that run whole trainings to compare them: golden, bits,
waits, nccl, schedules."""
import copy
import json
import re

from gpu_figures import (bytes_text, dry_bytes, loss_bound, read_metrics, same_steps, step_calls, waits_as_expected)
from gpu_session import ONE_RANK, as_code, last_of_each
from gpu_training import MODELS, train_overrides, write_ids_once

SCHEDULES = ["1f1b", "zb-v", "dualpipev", "gpipe", "looped-bfs", "interleaved", "zb-h1", "zb-h2", "v-half", "v-min",
             "dualpipe"]
HOLD_S = 2  # duration of a wait inside a held step
SETTLED = 3  # the first step after all autotuning, allocation and capture


def part_golden(s):
    for what, which in (("one microbatch, injected faults", "0"), ("four microbatches", "1")):
        s.check(f"golden figures, one rank, {what}",
                [s.path("bin", "test_golden"), s.path("reference"), s.device, which], 120)
    figures = {}
    for device in (s.device, "cpu"):
        command, folder = s.train(f"quickstart-{device}", "quickstart.yaml", *s.small(*ONE_RANK, steps=20),
                                  f"cluster.device={device}")
        if s.check(f"20 steps of the quickstart's model, {device}", command, 120, kind="training").good:
            figures[device] = read_metrics(folder)[-1]
    if len(figures) == 2:
        gpu, cpu = figures[s.device], figures["cpu"]
        s.report.row("loss of step 20, GPU and CPU", f"{gpu['loss']:.7g} and {cpu['loss']:.7g}")
        s.report.row("seconds per step, GPU and CPU", f"{gpu['step_time_s']:.3g} and {cpu['step_time_s']:.3g}")
    command, folder = s.train("tf32", "quickstart.yaml", *s.small(*ONE_RANK, steps=20), f"cluster.device={s.device}",
                              "precision.allow_tf32=true")
    if s.check("20 steps of the quickstart's model, TF32", command, 120, kind="training").good:
        last = read_metrics(folder)[-1]
        s.report.row("loss of step 20 in TF32; seconds per step", f"{last['loss']:.7g}; {last['step_time_s']:.3g}")


def compare_bits(s, name, folders, first=1, wanted=None):
    a, b = (read_metrics(folder) for folder in folders)
    same = same_steps(a, b, first)
    if wanted is not None:
        s.report.see(wanted, same, f"{name}: {'bit-identical' if same else 'bits differ'}, {len(b)} steps")
    if same:
        s.report.row(name, f"bit-identical, {len(b)} steps")
    else:
        s.report.failed(name, "bits differ", "\n".join(json.dumps([r["step"], r["loss"], r["grad_norm"]])
                                                     for r in a + b))


def part_bits(s):
    bf16 = ["precision.params_dtype=bf16", f"cluster.device={s.device}", "deterministic=true"]
    runs = {}
    for name in ("once", "again"):
        command, folder = s.train(name, "quickstart.yaml", *s.small(*ONE_RANK, *bf16, steps=6))
        if s.check(f"6 steps, bf16, {name}", command, 60, kind="training").good:
            runs[name] = folder
    if len(runs) == 2:
        compare_bits(s, "rerun", runs.values(), wanted="rerun")
    rerun_aligned(s, bf16)
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
        if s.check(f"6 steps, bf16, pp 2, {schedule}", command, 60, s.mpi_environment(),
                   "pp 2").good and "once" in runs:
            compare_bits(s, f"one rank against pp 2, {schedule}", (runs["once"], folder), wanted="schedules")


def rerun_aligned(s, bf16):
    """The quickstart's heads of 32 and rows of odd length use neither wgmma nor Hopper's GEMMs; those of GPT-2 do."""
    model = copy.copy(MODELS[0])
    model.layers = 2
    write_ids_once(s, model)
    folders = []
    for name in ("once", "again"):
        command, folder = s.train(f"aligned-{name}", model.recipe, *train_overrides(s, model, *bf16,
                                                                                   "train.train_iters=6"))
        if s.check(f"6 steps, bf16, {model.name} of 2 layers, {name}", command, 60, kind="training").good:
            folders.append(folder)
    if len(folders) == 2:
        compare_bits(s, f"rerun, {model.name} of 2 layers", folders, wanted="rerun aligned")


def resume(s, bf16, runs):
    """Three steps, a checkpoint, and three more by another process."""
    keep = [f"checkpoint.save={s.work}/checkpoints", "checkpoint.load=auto"]
    whole = [*s.small(*ONE_RANK, *bf16, steps=6), *keep]
    begin, folder = s.train("resumed", "quickstart.yaml", *whole, "train.train_iters=3")
    good = s.check("3 steps and a checkpoint", begin, 60, kind="training").good
    more, _ = s.train("resumed", "quickstart.yaml", *whole, keep=True)
    if good and s.check("3 more", more, 60, kind="training").good and "once" in runs:
        compare_bits(s, "resumed", (runs["once"], folder), wanted="resume")


def variants(s, bf16, runs):
    """The same 6 steps with other options; the last two use other GEMMs than the first, and the same as each other."""
    kept = [f"cluster.matmul_algorithms={s.work}/algorithms"]
    ways = [("activations and moments offloaded", "once",
             ["pipeline.schedule=gpipe", "memory.offload_activations=true", "memory.offload_optimizer=true"]),
            ("timed algorithms", None, kept), ("loaded algorithms", "timed algorithms", kept)]
    for name, reference_run, overrides in ways:
        command, folder = s.train(name.replace(" ", "-"), "quickstart.yaml",
                                  *s.small(*ONE_RANK, *bf16, *overrides, steps=6))
        if not s.check(f"6 steps, bf16, {name}", command, 60, kind="training").good:
            continue
        runs[name] = folder
        s.report.row(f"seconds per step, {name}", f"{read_metrics(folder)[-1]['step_time_s']:.3g}")
        if reference_run in runs:
            compare_bits(s, name, (runs[reference_run], folder))


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
            lines += [f"{name}, {way}:", *(f"  step {step['step']}: {step['text']}" for step in steps)]
        if steps:
            grown[way] = steps[0]["free"] - steps[-1]["free"]
    s.report.section("Calls that block the host or allocate memory", as_code("\n".join(lines)))
    if len(grown) == 2:
        extra = bytes_text(grown["graphs"] - grown["launched"])
        text = f"{extra} in addition to {bytes_text(dry_bytes(out))} planned; " \
            f"{bytes_text(steps[-1]['all'] - steps[-1]['free'])} of GPU memory in use"
        s.report.row(f"memory of {model.name}'s CUDA graphs", text)
        s.report.see("graph memory", True, text)


def count_calls(s, name, recipe, overrides, hold_s):
    """Reports a row and a result for the settled steps -> the run's output; None if it failed."""
    command, _ = s.train("waits-" + re.sub(r"\W+", "-", name), recipe, *overrides)
    command[0] = s.path("bin", "cuboid_counted")
    outcome = s.check(f"calls of a step, {name}", command, 60, {"COUNT_HOLD_S": str(hold_s)},
                      "training")
    if not outcome.good:
        return ""
    settled = [step for step in step_calls(outcome.out) if step["step"] >= SETTLED]
    bad = [step for step in settled if not waits_as_expected(step)]
    summary = f"{len(settled) - len(bad)} of {len(settled)} steps wait as expected"
    summary += f"; step {(bad or settled)[-1]['step']} {(bad or settled)[-1]['text']}" if settled else ""
    good = bool(settled) and not bad
    if good:
        held = "; streams were blocked until the whole step was enqueued" if hold_s else ""
        s.report.row(f"waits, {name}", summary + held)
    else:
        s.report.failed(f"waits, {name}", summary, outcome.out)
    s.report.see("waits", good, f"{name}: {summary}")
    return outcome.out


def part_nccl(s):
    """The two schedules that differ most."""
    run_schedules(s, [("bf16", SCHEDULES[:2])])


def part_schedules(s):
    """The others, and the first two in fp32, which has the narrower bound."""
    run_schedules(s, [("fp32", SCHEDULES[:2]), ("bf16", SCHEDULES[2:])])


def run_schedules(s, plan):
    launcher, shared = s.launch(8)
    if launcher is None:
        s.report.row("NCCL, 8 ranks", "not run: fewer than 8 GPUs, and no mpirun or a build without MPI to share one")
        return
    cube = ["dp=2", "tp=2", "pp=2"]
    for dtype, schedules in plan:
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
            if not s.has_time(name):
                continue
            outcome = s.check(name, command, 90, s.mpi_environment(), "2 x 2 x 2")
            if outcome.good:
                compare_loss(s, name, dtype, read_metrics(folder))
            elif outcome.known:
                s.report.see("cube " + dtype, False, f"{schedule} failed")


def reference(s, dtype, precision, cube):
    """One rank's loss and its bound, kept in s.cube; None: there is none."""
    if dtype in s.cube:
        return s.cube[dtype]
    bound = loss_bound(s.run(s.cuboid("verify", s.path("recipes", "quickstart.yaml"),
                                      *last_of_each([*s.small(precision), *cube]), "--steps", "1"), 90).out)
    command, folder = s.train("one-" + dtype, "quickstart.yaml", *s.small(precision, steps=2), *ONE_RANK,
                              f"cluster.device={s.device}")
    outcome = s.check(f"one rank, the reference, {dtype}", command, 60, kind="training")
    if not outcome.known:
        return None
    if bound is None or not outcome.good:
        s.report.failed(f"2 x 2 x 2, {dtype}", "no reference, or no bound from cuboid verify")
        return None
    s.cube[dtype] = {"loss": read_metrics(folder)[0]["loss"], "bound": bound}
    return s.cube[dtype]


def compare_loss(s, name, dtype, records):
    """The first step's with one rank's; and all there is with the first schedule's."""
    known = s.cube[dtype]
    apart = abs(records[0]["loss"] - known["loss"])
    same = same_steps(known.setdefault("first", records), records)
    summary = f"loss {records[0]['loss']:.7g}, {apart:.2g} from one rank, bound {known['bound']:.2g}"
    summary += ", bit-identical to the first schedule" if same else ""
    s.report.see("cube " + dtype, apart <= known["bound"], f"{name}: {summary}")
    if apart <= known["bound"]:
        s.report.row(f"loss, {name}", summary)
    else:
        s.report.failed(f"loss, {name}", "outside: " + summary)
