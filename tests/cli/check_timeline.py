#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a tiny model for three steps and reads its timelines: every rank runs every action of its list
once, in the order of the list, none before the previous one has ended, no value is used before it is computed; the
bubble equals that of metrics.jsonl; and the predicted timeline has the same lists with the mean measured times.

    check_timeline.py CUBOID ROOT [MPIRUN]
    check_timeline.py CUBOID ROOT gpu           CUBOID with an emulated GPU"""
import collections
import glob
import json
import os
import re
import subprocess
import sys
import tempfile

TINY = """name: timeline
seed: 7
model: {num_layers: 8, hidden_size: 32, num_attention_heads: 2, ffn_hidden_size: 64, seq_length: 32}
train: {micro_batch_size: 1, train_iters: 3, global_batch_size: 12}
optimizer: {lr: 1.0e-3}
tokenizer: {tokenizer_type: byte}
checkpoint: {save_interval: 0, save: none}
profile: {timeline: true, profile_step_end: 3}
"""
LOOKS_AHEAD = "pipeline.optimizer_post_validation=true"
LATE = "cluster.device=strict"
GPU = "cluster.device=cuda"
# Schedule, p, v, tp, dp, whether under mpirun, and more of the recipe.
CASES = [
    ("1f1b", 4, 1, 1, 1, False),
    ("zb-v", 2, 2, 1, 2, False),
    ("interleaved", 2, 4, 2, 1, False),
    ("dualpipe", 2, 1, 1, 1, False),
    ("zb-h2", 2, 1, 1, 1, False, LOOKS_AHEAD),
    ("zb-h1", 2, 1, 1, 2, False, LATE),
    ("1f1b", 4, 1, 1, 1, True),
    ("zb-h1", 2, 1, 2, 1, True),
]
SMALL = ["model.num_layers=4", "model.hidden_size=16", "model.ffn_hidden_size=16", "model.seq_length=8"]
GPU_CASES = [
    ("zb-h1", 2, 1, 1, 2, False, GPU, *SMALL),
    ("interleaved", 2, 2, 1, 1, False, GPU, *SMALL, "cluster.cuda_graphs=true"),
]
COMPUTES = ("F", "B", "I", "W")
NANOSECONDS = 3e-3  # rounding error of times in microseconds


class Failed(Exception):
    pass


def expect(condition, *what):
    if not condition:
        raise Failed(" ".join(str(w) for w in what))


def run(*words):
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    expect(done.returncode == 0, *words, "ended with", done.returncode, done.stdout[-2000:], done.stderr[-2000:])
    return done.stdout


def groups_of(events):
    """title -> rank -> its slices in the order of its list."""
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    groups = collections.defaultdict(lambda: collections.defaultdict(list))
    for e in events:
        if e["ph"] == "X":
            title, rank = names[e["pid"]].rsplit(": rank ", 1)
            groups[title][int(rank)].append(e)
    for ranks in groups.values():
        for slices in ranks.values():
            slices.sort(key=lambda s: s["args"]["position"])
    return groups


def check_threads(events):
    """In whole nanoseconds, as in a viewer, which drops a slice that begins before the end of the previous one. (An
    overlapping pair is two slices with the same times.)"""
    threads = collections.defaultdict(list)
    for e in events:
        if e["ph"] == "X":
            start = round(e["ts"] * 1000)
            threads[e["tid"]].append((start, start + round(e["dur"] * 1000)))
    for times in threads.values():
        times.sort()
        for before, after in zip(times, times[1:]):
            expect(after[0] >= before[1] or after == before, "slices cross:", before, after)


def computing(slices):
    return [s for s in slices if s["cat"] in COMPUTES]


def check_lists(title, ranks, lists):
    expect(sorted(ranks) == list(range(len(lists))), title, "has the ranks", sorted(ranks))
    for rank, slices in ranks.items():
        found = [f"{s['args']['stage']}{s['cat']}{s['args']['microbatch']}" for s in slices]
        expect(found == lists[rank], title, "rank", rank, "ran", found, "instead of", lists[rank])
        expect([s["args"]["position"] for s in slices] == list(range(len(slices))), title, "is out of order")


def check_measured(title, ranks):
    """Actions do not overlap, and each follows its inputs."""
    for rank, slices in ranks.items():
        for a, b in zip(slices, slices[1:]):
            expect(a["dur"] >= 0 and b["ts"] >= a["ts"] + a["dur"] - NANOSECONDS, title, "rank", rank, "runs", b,
                   "before the end of", a)
        expect(all(s["dur"] > 0 for s in computing(slices)), title, "has an action that took no time")
    all_slices = [s for slices in ranks.values() for s in computing(slices)]
    made = {}
    for s in all_slices:
        kind = {"F": "forward", "I": "input", "B": "input", "W": "weight"}[s["cat"]]
        made[kind, s["args"]["stage"], s["args"]["microbatch"]] = s
    for (kind, stage, microbatch), s in made.items():
        before = {"forward": [("forward", stage - 1)], "input": [("forward", stage), ("input", stage + 1)],
                  "weight": [("input", stage)]}[kind]
        for key in before:
            maker = made.get((*key, microbatch))
            expect(maker is None or s["ts"] >= maker["ts"] + maker["dur"] - NANOSECONDS, title, s, "begins before",
                   maker, "has ended")


def bubble_of(slices):
    """The bubble, and its fraction of the rank's span."""
    span = slices[-1]["ts"] + slices[-1]["dur"] - slices[0]["ts"]
    bubble = span - sum(s["dur"] for s in slices)
    return bubble, bubble / span


def mean_times(ranks):
    times = collections.defaultdict(list)
    for slices in ranks.values():
        for s in computing(slices):
            times[s["cat"], s["args"]["stage"]].append(s["dur"])
    return {key: sum(all_) / len(all_) for key, all_ in times.items()}


def check_predicted(predicted, measured):
    mine, theirs = mean_times(predicted), mean_times(measured)
    expect(mine.keys() == theirs.keys(), "other actions were predicted")
    for key, time in theirs.items():
        expect(abs(mine[key] - time) <= 1e-6 * time + NANOSECONDS, "the mean of", key, "is", time, "instead of",
               mine[key])
    work = [sum(s["dur"] for slices in group.values() for s in computing(slices)) for group in (predicted, measured)]
    expect(abs(work[0] - work[1]) <= 1e-6 * work[1] + 1, "the predicted work is", work)


def check_costs(title, measured, p):
    """The costs in the title, in the form of --cost: of all stages of a rank, in milliseconds."""
    costs = {k: float(x) for k, x in re.findall(r"([fiwb]|comm)=([-+.e0-9]+)", title)}
    whole = collections.defaultdict(float)
    for (kind, _), time in mean_times(measured).items():
        whole[kind.lower()] += time
    expect(costs.keys() == whole.keys() | {"comm"}, "the title has", title, "but measured were", sorted(whole))
    for kind, time in whole.items():
        mine = time / p / 1000
        expect(abs(costs[kind] - mine) <= 1e-3 * mine + 1e-5, "the title has", title, "but the mean is", mine)
    expect(costs["comm"] >= 0, title)


def check_step(folder, step, case, lists, bubble):
    schedule, _, _, tp, dp = case[:5]
    with open(os.path.join(folder, f"timeline-step-{step}.json"), encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    check_threads(events)
    groups = groups_of(events)
    predicted = [t for t in groups if "simulated" in t]
    measured = [t for t in groups if t.startswith(f"step {step}, measured")]
    expect(len(predicted) == 1 and len(measured) == tp * dp == len(groups) - 1, "the groups are", sorted(groups))
    expect(all(f"step {step}," in title for title in groups), "the groups are", sorted(groups))
    for title in measured:
        check_lists(title, groups[title], lists)
        check_measured(title, groups[title])
    check_lists(predicted[0], groups[predicted[0]], lists)
    check_costs(predicted[0], groups[measured[0]], case[1])
    if schedule != "dualpipe":  # in which the simulator runs a pair as one action
        check_predicted(groups[predicted[0]], groups[measured[0]])
    _, worst = max(bubble_of(computing(slices)) for title in measured for slices in groups[title].values())
    # Forwards that ran ahead and were dropped are lost time too, and not part of the timeline.
    more = 1 if LOOKS_AHEAD in case else 1e-4
    expect(bubble is None or worst - 1e-4 < bubble < worst + more, "the longest bubble is", worst,
           "but in metrics.jsonl", bubble)


def check(cuboid, mpirun, case, text):
    schedule, p, v, tp, dp, launched = case[:6]
    m = 12 // dp
    result = json.loads(run(cuboid, "schedule", schedule, "-p", str(p), "-m", str(m), "-v", str(v), "--json"))
    lists = [[f"{a['stage']}{a['kind']}{a['microbatch']}" for a in rank["actions"]] for rank in result["ranks"]]
    with tempfile.TemporaryDirectory() as folder:
        recipe, runs = os.path.join(folder, "tiny.yaml"), os.path.join(folder, "run")
        with open(recipe, "w", encoding="utf-8") as file:
            file.write(TINY)
        start = [mpirun, "-n", str(p * tp * dp)] if launched else []
        run(*start, cuboid, "train", recipe, f"data.train={text}", f"logging.run_dir={runs}", f"pp={p}", f"tp={tp}",
            f"dp={dp}", f"pipeline.schedule={schedule}", f"pipeline.virtual_stages={v}", *case[6:])
        with open(os.path.join(runs, "metrics.jsonl"), encoding="utf-8") as file:
            bubbles = {line["step"]: line["bubble_fraction"] for line in map(json.loads, file)}
        written = sorted(os.path.basename(path) for path in glob.glob(os.path.join(runs, "timeline*")))
        expect(written == [f"timeline-step-{n}.{kind}" for n in (2, 3) for kind in ("json", "svg")], "wrote", written)
        if LATE in case or GPU in case:  # each is that of the step before
            expect(bubbles[1] is None and None not in (bubbles[2], bubbles[3]), "the bubbles are", bubbles)
            bubbles = {2: bubbles[3], 3: None}
        else:
            expect(None not in bubbles.values(), "the bubbles are", bubbles)
        for step in (2, 3):
            check_step(runs, step, case, lists, bubbles[step])


def main():
    cuboid, root = (os.path.abspath(path) for path in sys.argv[1:3])
    mpirun = sys.argv[3] if len(sys.argv) > 3 else None
    cases = GPU_CASES if mpirun == "gpu" else [case for case in CASES if mpirun or not case[5]]
    with tempfile.TemporaryDirectory() as folder:
        text = os.path.join(folder, "text")
        pages = [os.path.join(root, page) for page in ("CONTRIBUTING.md", "README.md")]
        run(cuboid, "data", "prepare", *pages, "-o", text)
        for case in cases:
            try:
                check(cuboid, mpirun, case, text)
            except Failed as failed:
                sys.exit(f"{case}: {failed}")
    print(f"{len(cases)} runs")


main()
