# SPDX-License-Identifier: Apache-2.0
"""The part of tools/gpu/gpu_report.py that compares plans with runs on the GPU: plan. The profile is that of
`cuboid doctor --profile` on this GPU. Steps of three models, with several microbatches, sequences and kinds of
recomputation, are predicted and measured. Then the largest microbatch that is said to fit has to train, and the next
one has to be refused before its first step."""
import copy
import json
import os
import statistics

from gpu_figures import read_metrics, training_figures
from gpu_session import as_code
from gpu_training import MODELS, WAYS, train_overrides, write_ids_once

STEP_ERROR = 5.0  # target of the median error of predicted steps, in per cent
LAYERS = {"llama3-8b": 4}  # of a model whose weights and optimizer states do not fit
VARIANTS = [(1, 1, "none"), (2, 0.5, "none"), (1, 1, "selective"), (2, 1, "full")]  # factors of batch and sequence
MOST = 1 << 14  # microbatch sizes that are searched
TINY_PROFILE = "base: dgx-h100\nname: tiny\ndevice: {memory_bytes: 4e6, reserved_bytes: 0}\n"


def measure_profile(s):
    """The profile's path, None: it cannot be measured. A tiny check does not measure: an emulator takes minutes."""
    path = os.path.join(s.work, "profile.yaml")
    if s.tiny:
        with open(path, "w", encoding="utf-8") as file:
            file.write(TINY_PROFILE)
        return path
    return path if s.check("profile of this GPU", s.cuboid("doctor", "--profile", path), 90).good else None


def command_of(s, model, what, *overrides):
    """The run of a model as its deterministic training is measured, and its folder."""
    return s.train(f"plan-{model.name}-{what}", model.recipe, *train_overrides(
        s, model, f"cluster.device={s.device}", *WAYS[0][1], *overrides))


def plan_of(s, command):
    """What `cuboid plan --json` says of the run of a command; None: the plan failed."""
    words = [word for word in command[2:] if not word.startswith("cluster.device=")]
    outcome = s.run([command[0], "plan", *words, "cluster.dry_device=cuda", "--json"], 30)
    text = outcome.out[outcome.out.find("{"):]
    try:
        return json.loads(text)
    except ValueError:
        s.report.failed("plan", f"{outcome.why}: {command[2]}", outcome.out)
        return None


def compare_step(s, model, variant, profile):
    """A line of the table, and the error of the predicted step in per cent; None: there is none."""
    batch, sequence, recompute = variant
    model = copy.copy(model)
    model.layers = LAYERS.get(model.name)
    model.seq = int(model.seq * sequence)
    batch = int((2 if s.tiny else model.batch) * batch)
    name = f"{model.name}, {batch} x {model.seq}, recomputation {recompute}"
    command, folder = command_of(
        s, model, "step", f"cluster.profile={profile}", f"memory.recompute_granularity={recompute}",
        f"train.micro_batch_size={batch}", f"train.global_batch_size={2 * batch}", "train.train_iters=8")
    plan = plan_of(s, command)
    if plan is None:
        return None
    if not plan["fits"]:
        return f"{name}: does not fit, not run", None
    if not s.check(f"steps of a plan, {name}", command, 60, kind="training").good:
        return None
    measured = training_figures(read_metrics(folder))
    error = 100 * (plan["step_time_s"] / measured["step_time_s"] - 1)
    memory = 100 * (plan["memory_peak_bytes"] / measured["memory_peak_bytes"] - 1)
    return (f"{name}: predicted {plan['step_time_s']:.4g} s, measured {measured['step_time_s']:.4g} s, "
            f"{error:+.1f} %; memory {memory:+.2f} %"), error


def compare_steps(s, profile):
    found = []
    for model in MODELS:
        write_ids_once(s, model)
        found += [compare_step(s, model, variant, profile) for variant in VARIANTS]
    found = [line for line in found if line]
    errors = [abs(error) for _, error in found if error is not None]
    s.report.section("Steps predicted by a plan, and measured", as_code("\n".join(line for line, _ in found)))
    if errors:
        median = statistics.median(errors)
        text = f"median error {median:.1f} % of {len(errors)} runs, at most {max(errors):.1f} %"
        s.report.row("steps predicted by a plan", text)
        s.report.see("plan steps", median <= STEP_ERROR, text)


def largest_that_fits(fits):
    """The largest number of 1, 2, 3 ... MOST - 1 for which fits() is true, if no larger one is; 0: none."""
    if not fits(1):
        return 0
    low, high = 1, 2
    while high < MOST and fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def run_of(s, profile, batch):
    return command_of(s, MODELS[0], "largest", f"cluster.profile={profile}", "train.train_iters=2",
                      f"train.micro_batch_size={batch}", f"train.global_batch_size={batch}")


def try_largest(s, profile):
    """Trains with the largest microbatch that a plan says to fit, and with one sample more."""
    batch = largest_that_fits(lambda size: (plan_of(s, run_of(s, profile, size)[0]) or {"fits": False})["fits"])
    name = f"largest microbatch of {MODELS[0].name} that fits by its plan, {batch}"
    if batch == 0:
        s.report.failed(name, "none fits")
        return
    command, _ = run_of(s, profile, batch)
    largest = s.check(name, command, 120, kind="training")
    command, folder = run_of(s, profile, batch + 1)
    outcome = s.run(command, 60)
    if not largest.known or not outcome.known:
        return
    stepped = os.path.exists(os.path.join(folder, "metrics.jsonl")) and len(read_metrics(folder)) > 0
    refused = outcome.status is not None and outcome.status != 0 and not stepped
    if refused:
        s.report.row(f"microbatch {batch + 1}", "refused before its first step")
    else:
        s.report.failed(f"microbatch {batch + 1}", f"not refused before its first step ({outcome.why})", outcome.out)
    s.report.see("plan memory", largest.good and refused, f"{batch} {'trains' if largest.good else 'fails'}, "
                 f"{batch + 1} is {'' if refused else 'not '}refused")


def part_plan(s):
    write_ids_once(s, MODELS[0])
    profile = measure_profile(s)
    if profile is not None:
        try_largest(s, profile)
        compare_steps(s, profile)
