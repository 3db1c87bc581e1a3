#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Values that a plan chooses: the best of all plans, written recipes, refusals.

    test_choose.py CUBOID ROOT"""
import functools
import json
import os
import subprocess
import sys
import tempfile

CUBOID, ROOT = os.path.abspath(sys.argv[1]), sys.argv[2]
GPT3 = os.path.join(os.path.abspath(ROOT), "recipes", "base", "gpt3-1.3b.yaml")
QUICKSTART = os.path.join(os.path.abspath(ROOT), "recipes", "quickstart.yaml")
NODE = ["precision.params_dtype=bf16", "cluster.profile=dgx-a100-40", "cluster.nodes=1"]
SMALL = ["model.num_layers=4", "train.global_batch_size=16", *NODE]
failures = []


def expect(what, truth, seen):
    if not truth:
        failures.append(what)
        print(f"{what}: {seen!r:.1500}")


def run(*arguments):
    return subprocess.run([CUBOID, *arguments], capture_output=True, text=True, check=False)


@functools.cache
def planned(*arguments):
    """The JSON object of a plan, and what it printed; each is made once."""
    done = run("plan", *arguments, "--json", "--no-advice")
    expect(f"{arguments} is planned", done.returncode in (0, 1), done)
    return json.loads(done.stdout), done.stderr


def chosen_of(text):
    lines = [line for line in text.splitlines() if line.startswith("chosen: ")]
    expect("one choice is reported", len(lines) == 1, text)
    return lines[0].removeprefix("chosen: ").split(" (")[0].split()


def test_best_of_all():
    """As good as the best of all 15 combinations, planned one by one."""
    keys = [*SMALL, "tp=2", "pp=1", "dp=4"]
    auto, text = planned(GPT3, *keys, "train.micro_batch_size=auto", "memory.recompute_granularity=auto")
    steps = []
    for micro in (1, 2, 4):
        for recompute in ("none", "selective", "full"):
            got, _ = planned(GPT3, *keys, f"train.micro_batch_size={micro}",
                             f"memory.recompute_granularity={recompute}")
            steps += [got["step_time_s"]] if got["fits"] else []
    expect("what the step rests on", "\nprofile dgx-a100-40: data sheet and estimates, not fitted" in text, text)
    expect("the shortest step is chosen", auto["step_time_s"] == min(steps) < max(steps), (auto["step_time_s"], steps))
    again, _ = planned(GPT3, *keys, *chosen_of(text))
    expect("the choice, given, is the same plan", again == auto, (again, auto))


def test_layouts(folder):
    auto, text = planned(GPT3, *SMALL, "parallel=auto", "tp=2")
    chosen = chosen_of(text)
    expect("given keys are not chosen", auto["tp"] == 2 and not any("tensor" in key for key in chosen), chosen)
    expect("all ranks are used", auto["ranks"] == 8, auto)
    path = os.path.join(folder, "best.yaml")
    done = run("plan", GPT3, *SMALL, "--best", "-o", path)
    expect("the best layout is planned", done.returncode == 0, done)
    with open(path, encoding="utf-8") as file:
        recipe = file.read()
    for word in chosen_of(done.stderr):
        key, value = word.split("=")
        expect(f"{word} is in the recipe", f"{key.split('.')[1]}: {value} " in recipe, recipe)
    expect("the recipe is for the planned device", "  device: cuda " in recipe, recipe)
    expect("the recipe has only what was given and chosen", recipe.count("\n") < 45 and "base: " in recipe and
           "hidden_size" not in recipe, recipe)
    again = run("plan", path)
    expect("the recipe is complete", again.returncode == 0 and "chosen" not in again.stderr, again)
    best = done.stdout.splitlines()
    expect("the recipe has the same plan", again.stdout.splitlines() == best[:-1] and
           best[-1].startswith(f"{path}: "), (again, done))
    derived = os.path.join(folder, "derived.yaml")
    with open(derived, "w", encoding="utf-8") as file:
        file.write(f"base: {path}\nparallel: auto\n")
    done = run("plan", derived)
    expect("parallel: auto opens the layout of a base",
           done.returncode == 0 and len(chosen_of(done.stderr)) == 10, done)


def test_own_layout(folder):
    """The recipe's own layout is a candidate, also with values that are not searched: three stages per rank."""
    path = os.path.join(folder, "own.yaml")
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"base: {GPT3}\nmodel: {{num_layers: 12}}\ntrain: {{global_batch_size: 16, micro_batch_size: 1}}\n"
                   "parallel: {tensor_parallel_size: 2, pipeline_parallel_size: 4, data_parallel_size: auto, "
                   "sequence_parallel: true}\npipeline: {schedule: interleaved, virtual_stages: 3}\n")
    keys = [path, *NODE, "tp=2", "pp=4", "schedule=interleaved", "zero=0", "pipeline.layout=[]"]
    own, _ = planned(*keys)
    steps = [planned(*keys, f"vp={stages}")[0]["step_time_s"] for stages in (1, 2, 4) if 12 % (4 * stages) == 0]
    expect("three stages are the fastest", steps and own["step_time_s"] < min(steps), (own["step_time_s"], steps))
    best, text = planned(*keys, "--best")
    expect("the best layout is at least as fast as the recipe's own", best["step_time_s"] <= own["step_time_s"],
           (best["step_time_s"], own["step_time_s"], text))
    fixed = [*keys, "train.micro_batch_size=1", "memory.recompute_granularity=none", "sequence_parallel=true",
             "parallel.tp_comm_overlap=false", "parallel.overlap_param_gather=false", "parallel.bucket_size_mb=160"]
    own, _ = planned(*fixed)
    best, text = planned(*fixed, "--best")
    expect("nothing faster is found", best == own and "(the recipe's own layout, the fastest found; " in text and
           "pipeline.virtual_stages=3" in text, (best, own, text))


def test_degrees():
    """With all three degrees the number of ranks is known; the layers of the stages are chosen, too."""
    keys = [GPT3, "precision.params_dtype=bf16", "cluster.profile=dgx-a100-40", "train.global_batch_size=32",
            "parallel=auto", "tp=2", "pp=4", "dp=1"]
    auto, text = planned(*keys)
    expect("no nodes are needed", auto["ranks"] == 8 and auto["pp"] == 4, text)
    chosen = chosen_of(text)
    layers = [word for word in chosen if word.startswith("pipeline.layout=")]
    expect("the last stage, with the head, has fewer layers", len(layers) == 1 and
           json.loads(layers[0].split("=")[1])[-1] < max(json.loads(layers[0].split("=")[1])) and
           sum(json.loads(layers[0].split("=")[1])) == 24, chosen)
    given = [*keys[:4], *keys[5:], *(word for word in chosen if not word.startswith("pipeline.layout="))]
    even, _ = planned(*given)
    expect("which is faster than even ones", auto["step_time_s"] < even["step_time_s"], (auto["step_time_s"], chosen))
    again, _ = planned(*given, *layers)
    expect("the choice, given, is the same plan", again == auto, again)
    small, text = planned(*keys, "model.vocab_size=1000", "tokenizer.tokenizer_type=none",
                          "tokenizer.vocab_file=none", "tokenizer.merge_file=none")
    expect("without a large head they are even", not any("layout" in word for word in chosen_of(text)), (small, text))


def test_odd_nodes():
    """3 divides neither the 4 layers nor the batch of 16: it must be the pipeline."""
    auto, text = planned(GPT3, *(key for key in SMALL if not key.startswith("cluster.nodes")), "cluster.nodes=3",
                         "train.micro_batch_size=1", "parallel=auto")
    expect("the pipeline has 3 ranks", auto["ranks"] == 24 and auto["pp"] == 3, text)


def test_schedule(folder):
    """pipeline.schedule: auto has the times of the plan, and fits where it can."""
    keys = [GPT3, "precision.params_dtype=bf16", "cluster.profile=dgx-a100-40", "tp=1", "pp=4", "dp=1",
            "train.global_batch_size=20", "train.micro_batch_size=2", "model.num_layers=32", "model.vocab_size=5000",
            "tokenizer.tokenizer_type=none", "tokenizer.vocab_file=none", "tokenizer.merge_file=none"]
    auto = [*keys, "pipeline.schedule=auto"]
    for reserved, fits in ((0, True), (24e9, True), (28e9, True), (36e9, False)):
        less = f"assume.reserved_bytes={int(reserved)}"
        got, _ = planned(*keys, less, "pipeline.schedule=auto")
        expect(f"with {reserved:.0f} bytes less it fits, or not", got["fits"] == fits, got)
        expect_not_slower([*keys, less], ("1f1b", "zb-h1"))
    again, _ = planned.__wrapped__(*keys, less, "pipeline.schedule=auto")
    expect("the same again", again == got, again)
    limited, _ = planned(*auto, "pipeline.auto_memory_limit=4")
    plain, _ = planned(*auto, "pipeline.auto_times=plan")
    expect("a limit is kept", limited["step_time_s"] != plain["step_time_s"], limited)
    path = os.path.join(folder, "auto.yaml")
    done = run("plan", *auto, "-o", path)
    with open(path, encoding="utf-8") as file:
        recipe = file.read()
    again, _ = planned(path)
    expect("the written recipe has the same schedule", done.returncode == 0 and
           again["step_time_s"] == plain["step_time_s"], recipe)
    refuse("times of a plan need a profile", ["pipeline.auto_times", "cluster.profile"], "plan", GPT3,
           "pipeline.schedule=auto", "pipeline.auto_times=plan", "pp=2")


def test_post_validation():
    """Steps overlap, so the last stage, which has the head and is the slowest, does not hide what memory gains."""
    keys = [os.path.join(os.path.abspath(ROOT), "recipes", "papers", "zero-bubble.yaml"), "pp=8", "dp=1",
            "train.micro_batch_size=6", "train.global_batch_size=144", "pipeline.layout=[2,3,3,3,3,3,3,2]",
            "memory.recompute_granularity=none", "pipeline.schedule=auto", "pipeline.optimizer_post_validation=true"]
    one, _ = planned(*keys, "pipeline.auto_memory_limit=8")
    two, _ = planned(*keys, "pipeline.auto_memory_limit=16")
    expect("twice the activations make the step shorter", two["step_time_s"] < 0.95 * one["step_time_s"] and
           two["memory_peak_bytes"] > 1.5 * one["memory_peak_bytes"], two)
    same, _ = planned(*keys, "pipeline.auto_memory_limit=16", "pipeline.auto_times=plan")
    other, _ = planned(*keys, "pipeline.auto_memory_limit=16", "pipeline.auto_times=given")
    expect("a limit does not replace the times of the plan", same["step_time_s"] == two["step_time_s"] and
           other["step_time_s"] != two["step_time_s"], other)


def expect_not_slower(keys, names, more=()):
    """The plan of auto fits if that of a named schedule does, and is not slower."""
    keys = [*keys, "cluster.memory_headroom=0"]  # a given schedule may use all
    auto, _ = planned(*keys, *more, "pipeline.schedule=auto")
    for name in names:
        other, _ = planned(*keys, *more, f"pipeline.schedule={name}")
        expect(f"{keys} {more}: auto is not slower than {name}", not other["fits"] or
               (auto["fits"] and auto["step_time_s"] <= other["step_time_s"]),
               (auto["fits"], auto["step_time_s"], other["step_time_s"]))


def test_named_schedules():
    """auto where a fused B saves memory or time: the search alone did not fit, or was up to 37 % slower."""
    keys = ["precision.params_dtype=bf16", "model.num_query_groups=8", "train.micro_batch_size=1",
            "model.ffn_hidden_size=7168", "cluster.profile=dgx-a100-40"]
    llama = os.path.join(os.path.dirname(GPT3), "llama3-8b.yaml")
    one = [llama, *keys, "tp=2", "pp=3", "dp=2", "model.hidden_size=2048", "model.num_attention_heads=16",
           "model.num_layers=6", "train.global_batch_size=16", "model.seq_length=512"]
    least, _ = planned(*one, "pipeline.schedule=1f1b", "assume.reserved_bytes=0")
    for more in ((), (f"assume.reserved_bytes={40 * 2**30 - least['needed_bytes']}",)):
        expect_not_slower(one, ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2"), more)
    three = [llama, *keys, "tp=1", "pp=2", "dp=1", "model.hidden_size=1024", "model.num_attention_heads=8",
             "model.num_layers=12", "train.global_batch_size=12", "model.seq_length=512", "model.vocab_size=5000",
             "tokenizer.tokenizer_type=none", "tokenizer.vocab_file=none", "tokenizer.merge_file=none",
             "memory.recompute_granularity=selective", "pipeline.virtual_stages=3"]
    least, _ = planned(*three, "pipeline.schedule=interleaved", "assume.reserved_bytes=0")
    expect_not_slower(three, ("interleaved", "looped-bfs", "zb-h1"),
                      (f"assume.reserved_bytes={40 * 2**30 - least['needed_bytes']}",))


def test_cpu(folder):
    """A recipe with a layout of its own, on a CPU: its layout is replaced, and the written recipe trains."""
    profile, path = os.path.join(folder, "cpu.yaml"), os.path.join(folder, "cpu-best.yaml")
    with open(profile, "w", encoding="utf-8") as file:
        file.write("device: {name: CPU, is_cpu: true, cores: 2, peak_flops_fp32: 1e11, memory_bytes: 16e9,\n"
                   "         memory_bandwidth: 1e10}\nnode: {devices: 1, link_latency_s: 1e-6, link_bandwidth: 1e9}\n")
    keys = [QUICKSTART, f"cluster.profile={profile}", "cluster.nodes=1"]
    refuse("the ranks of a CPU", ["cluster.gpus_per_node"], "plan", *keys, "--best")
    done = run("plan", *keys, "cluster.gpus_per_node=4", "--best", "-o", path)
    expect("degrees of the recipe are open", done.returncode == 0 and "\n4 ranks: " in done.stdout and
           any(word.startswith("parallel.data_parallel_size=") for word in chosen_of(done.stderr)), done)
    done = run("recipe", path)
    expect("the recipe is for a CPU", "  device: cpu " in done.stdout and "no effect" not in done.stderr, done)
    layout = ["parallel=auto", "tp=2", "pp=1", "parallel.sequence_parallel=true", "parallel.zero_stage=1",
              "pipeline.schedule=1f1b", "pipeline.virtual_stages=1"]
    done = run("plan", *keys, "cluster.gpus_per_node=4", *layout)
    expect("only data parallelism is open", done.returncode == 0 and "4 ranks: dp 2 x tp 2" in done.stdout, done)


def refuse(what, words, *arguments):
    done = run(*arguments)
    expect(what, done.returncode == 2 and all(word in done.stderr for word in words), done)


def test_refusals(folder):
    micro = "train.micro_batch_size=auto"
    refuse("no profile", ["train.micro_batch_size", "cluster.profile"], "plan", GPT3, micro)
    refuse("no ranks", ["parallel", "cluster.nodes"], "plan", GPT3, "parallel=auto", "cluster.profile=selene")
    refuse("no peak", ["no layout can be planned", "peak_flops_bf16"], "plan", GPT3, *SMALL[:2], "--best",
           "precision.params_dtype=bf16", "cluster.profile=dgx-v100-32", "cluster.nodes=1", "tp=2", "pp=1")
    huge = ["model.num_layers=512", "model.hidden_size=16384", "model.num_attention_heads=128"]
    refuse("no peak, before any bound of time or memory", ["no layout can be planned", "peak_flops_bf16"], "plan", GPT3,
           "--best", "precision.params_dtype=bf16", "cluster.profile=dgx-v100-32", "cluster.nodes=1", *huge)
    refuse("fits nowhere", ["no layout fits", "lacks", "GiB of 40.00 GiB"], "plan", GPT3, *NODE, "parallel=auto", *huge)
    refuse("no layout is legal", ["none of"], "plan", GPT3, *NODE, micro, "tp=1", "pp=1", "dp=8",
           "train.global_batch_size=15")
    refuse("a wrong recipe", ["model.hiden_size"], "plan", GPT3, *SMALL, micro, "model.hiden_size=5")
    refuse("an odd value", ["parallel.search", "maybe"], "plan", GPT3, *SMALL, "parallel=maybe")
    sweep = os.path.join(folder, "sweep.yaml")
    with open(sweep, "w", encoding="utf-8") as file:
        file.write(f"base: {GPT3}\naxes: {{tp: [1, 2]}}\n")
    done = run("sweep", sweep, *SMALL, micro)
    expect("a sweep does not choose", done.returncode == 2 and "axes" in done.stderr, done)


with tempfile.TemporaryDirectory() as temporary:
    test_best_of_all()
    test_layouts(temporary)
    test_own_layout(temporary)
    test_degrees()
    test_odd_nodes()
    test_post_validation()
    test_schedule(temporary)
    test_named_schedules()
    test_cpu(temporary)
    test_refusals(temporary)
print("\n".join(failures) if failures else "all as expected")
sys.exit(1 if failures else 0)
