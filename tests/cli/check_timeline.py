#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a tiny model for three steps and reads its timelines: every rank runs every action of its list
once, in the order of the list, none before the previous one has ended, no value is used before it is computed; the
bubble equals that of metrics.jsonl; and the predicted timeline has the same lists with the mean measured times.
The rows of messages, copies and the optimizer are there, lie in the step, and do not overlap in a stream; no message is
complete before all of its ranks have begun it. The picture has a line for each kind of row of the first pipeline.

    check_timeline.py CUBOID ROOT [MPIRUN]
    check_timeline.py CUBOID ROOT gpu           CUBOID with an emulated GPU
    check_timeline.py CUBOID_FAULTY ROOT faulty      injected faults (lost_call.c) must be found"""
import collections
import glob
import json
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

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
OFFLOADS = "memory.offload_activations=true"
OFFLOADS_MOMENTS = "memory.offload_optimizer=true"
ZERO = [f"parallel.zero_stage={stage}" for stage in range(4)]
GPU = "cluster.device=cuda"
# Schedule, p, v, tp, dp, whether under mpirun, and more of the recipe.
CASES = [
    ("1f1b", 4, 1, 1, 1, False, OFFLOADS),
    ("zb-v", 2, 2, 1, 2, False),
    ("1f1b", 2, 1, 2, 2, False, ZERO[1], OFFLOADS_MOMENTS),
    ("1f1b", 1, 1, 1, 2, False, ZERO[3]),
    ("interleaved", 2, 4, 2, 1, False),
    ("dualpipe", 2, 1, 1, 1, False),
    ("zb-h2", 2, 1, 1, 1, False, LOOKS_AHEAD),
    ("zb-h1", 2, 1, 1, 2, False, LATE, ZERO[2]),
    ("1f1b", 4, 1, 1, 1, True),
    ("zb-h1", 2, 1, 2, 1, True),
]
SMALL = ["model.num_layers=4", "model.hidden_size=16", "model.ffn_hidden_size=16", "model.seq_length=8"]
GPU_CASES = [
    ("zb-h1", 2, 1, 1, 2, False, GPU, *SMALL),
    ("interleaved", 2, 2, 1, 1, False, GPU, *SMALL, "cluster.cuda_graphs=true"),
    ("1f1b", 2, 1, 1, 2, False, GPU, *SMALL, ZERO[1], OFFLOADS, OFFLOADS_MOMENTS),
]
FAULTY_CASE = ("1f1b", 2, 1, 1, 2, False)
COMPUTES = ("F", "B", "I", "W")
NANOSECONDS = 3e-3  # rounding error of times in microseconds
MICROSECOND = 1 + NANOSECONDS
CLOCKS = 20  # difference of the clocks of host and device, in microseconds


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
    """title -> rank -> the slices of its actions in the order of its list."""
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    groups = collections.defaultdict(lambda: collections.defaultdict(list))
    for e in events:
        if e["ph"] == "X" and "position" in e["args"]:
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


# ---- rows besides those of actions ----

def rows_of(events, title, rank):
    """name -> slices in the order of their starts, of one rank; several rows with one name: of several streams."""
    pid = next(e["pid"] for e in events if e["name"] == "process_name" and e["args"]["name"] == f"{title}: rank {rank}")
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name" and e["pid"] == pid}
    rows = collections.defaultdict(list)
    for e in events:
        if e["ph"] == "X" and e["pid"] == pid and "position" not in e["args"]:
            rows[names[e["tid"]]].append(e)
    for slices in rows.values():
        slices.sort(key=lambda s: s["ts"])
    return rows


def end_of(a):
    return a["ts"] + a["dur"]


def check_in_step(rows, case, what):
    """(With post-validation the report is still on its way when the next step begins, and the strict device runs
    streams as late as possible.)"""
    expect(len(rows["step"]) == 1, what, "has the steps", rows["step"])
    whole = rows["step"][0]
    for name, slices in rows.items():
        for s in slices:
            expect(s["dur"] >= 0, what, name, "ends before it begins:", s)
            late = LATE in case or LOOKS_AHEAD in case and name == "transfers (report)"
            last = s["ts"] if late else end_of(s)
            expect(s["ts"] >= whole["ts"] - NANOSECONDS and last <= end_of(whole) + NANOSECONDS, what, name,
                   "is outside of the step:", s, whole)


def check_streams(rows, what):
    """The rows of one stream together: one after the other. (Each stage has two streams of transfers.)"""
    streams = collections.defaultdict(list)
    for name, slices in rows.items():
        if "(" in name and not name.startswith("transfers"):
            streams[name[name.index("("):]] += slices
    for stream, slices in streams.items():
        slices.sort(key=lambda s: (s["ts"], end_of(s)))
        for a, b in zip(slices, slices[1:]):
            expect(b["ts"] >= end_of(a) - NANOSECONDS, what, "stream", stream, "runs", b, "before the end of", a)


def check_optimizer(rows, actions, what):
    names = [s["name"] for s in rows["optimizer"]]
    expect(names == ["reduce", "update"] or set(names) == {"reduce", "update"}, what, "has the optimizer", names)
    last = max(end_of(s) for s in computing(actions))
    expect(rows["optimizer"][0]["ts"] >= last - CLOCKS, what, "the optimizer begins before the last action ends")
    expect(all(s["dur"] > 0 for s in rows["optimizer"]), what, "the optimizer takes no time")


def count(rows, kind, *words):
    return sum(s["name"].startswith(words) for name, slices in rows.items() if name.startswith(kind) for s in slices)


def check_kinds(rows, case, actions, what):
    """Each kind of row is there if and only if the layout has its messages or copies."""
    schedule, _, _, tp, dp = case[:5]
    sharded = bool(set(ZERO[1:]) & set(case))
    reduced = "reduce_scatter" if sharded else "all_reduce"
    apart = [name for name in rows if name.startswith("reductions") and name != "reductions (compute)"]
    expect(bool(apart) == (dp > 1 or schedule == "dualpipe"), what, "reduces gradients in", apart)
    expect(all(s["name"].startswith(reduced) and s["args"]["bytes"] > 0 for name in apart for s in rows[name]), what,
           "reduces gradients by", [s["name"] for name in apart for s in rows[name]])
    expect((count(rows, "reductions (compute)", "all_reduce tp") > 0) == (tp > 1), what, "reductions over tp")
    expect((count(rows, "gathers", "all_gather dp") > 0) == (sharded and dp > 1), what, "gathers", sorted(rows))
    transfers = sum(s["cat"] not in COMPUTES for s in actions)
    found = count(rows, "transfers", "send pp", "receive pp")
    expect(found == transfers or LOOKS_AHEAD in case and found >= transfers, what, "has", found, "transfers, not",
           transfers)
    moments, offload = count(rows, "copies (moments)", "copy"), count(rows, "copies (offload)", "copy")
    expect((moments > 0) == (OFFLOADS_MOMENTS in case), what, "copies moments", moments, "times")
    expect(offload % 2 == 0 and (offload == 0 or OFFLOADS in case), what, "offloads in", offload, "copies")
    return offload


def check_collectives(all_rows, what):
    """A collective is complete only when all ranks of its group have begun it. all_rows: (pp, tp, dp) -> rows."""
    calls = collections.defaultdict(list)
    for (pp, tp, dp), rows in all_rows.items():
        for name, slices in rows.items():
            seen = collections.Counter()
            for s in slices:
                group = s["name"].split(" ", 1)[-1]
                key = {"tp": (pp, dp), "dp": (pp, tp), "world": ()}.get(group)
                if key is not None:
                    calls[name, s["name"], key, seen[s["name"]]].append(s)
                    seen[s["name"]] += 1
    for key, slices in calls.items():
        expect(len(slices) > 1, what, key, "has one rank")
        last = max(s["ts"] for s in slices)
        for s in slices:
            expect(end_of(s) >= last - CLOCKS, what, key, "is complete on a rank before it began on another:", slices)
    return len(calls)


LINES = {"optimizer": "optimizer", "reductions": "collective", "gathers": "collective", "transfers": "transfer",
         "copies": "copy"}


def check_picture(path, all_rows):
    """The kinds of lines are those of the rows; a line has at most a rectangle for each slice, inside the picture."""
    root = xml.etree.ElementTree.parse(path).getroot()
    drawn, slices = collections.Counter(), collections.Counter()
    for rectangle in root.iter("{http://www.w3.org/2000/svg}rect"):
        drawn[rectangle.get("class")] += 1
        right = float(rectangle.get("x")) + float(rectangle.get("width"))
        expect(right <= float(root.get("width")), path, "has a rectangle that ends at", right)
    for rows in all_rows:
        for name, row in rows.items():
            if name != "step":
                slices[LINES[name.split(" ")[0]]] += len(row)
    for line in set(LINES.values()):
        drawn[line] -= 1  # the legend
        expect((drawn[line] > 0) == (slices[line] > 0) and drawn[line] <= slices[line], path, "has", drawn[line],
               "rectangles of the class", line, "for", slices[line], "slices")


def check_rows(events, groups, measured, case):
    all_rows, offloads = {}, 0
    for title in measured:
        place = re.search(r"tp (\d+) cp \d+ dp (\d+)", title)
        tp, dp = (int(place.group(1)), int(place.group(2))) if place else (0, 0)
        for rank, actions in groups[title].items():
            what, rows = f"{title}, rank {rank}:", rows_of(events, title, rank)
            check_in_step(rows, case, what)
            check_streams(rows, what)
            check_optimizer(rows, actions, what)
            offloads += check_kinds(rows, case, actions, what)
            all_rows[rank, tp, dp] = rows
    expect((offloads > 0) == (OFFLOADS in case), "activations are offloaded in", offloads, "copies")
    if LOOKS_AHEAD not in case:  # whose dropped forwards may differ between ranks
        expect((check_collectives(all_rows, "messages:") > 0) == (len(all_rows) > 1), "no collective was compared")
    return [rows for (_, tp, dp), rows in all_rows.items() if tp == dp == 0]


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
    first = check_rows(events, groups, measured, case)
    check_picture(os.path.join(folder, f"timeline-step-{step}.svg"), first)
    if schedule != "dualpipe":  # in which the simulator runs a pair as one action
        check_predicted(groups[predicted[0]], groups[measured[0]])
    bubbles = [bubble_of(computing(slices)) for title in measured for slices in groups[title].values()]
    # Times in the file are rounded.
    worst = [fraction for time, fraction in bubbles if time > max(bubbles)[0] - MICROSECOND]
    # Forwards that ran ahead and were dropped are lost time too, and not part of the timeline.
    more = 1 if LOOKS_AHEAD in case else 1e-4
    expect(bubble is None or any(one - 1e-4 < bubble < one + more for one in worst), "the longest bubble is", worst,
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


def check_faults(cuboid, text):
    check(cuboid, None, FAULTY_CASE, text)
    for fault, words in (("unmarked", "transfers, not"), ("early", "is complete on a rank before it began")):
        os.environ["INJECT"] = fault
        try:
            check(cuboid, None, FAULTY_CASE, text)
        except Failed as failed:
            expect(words in str(failed), fault, "was reported as", failed)
            continue
        raise Failed(f"{fault} was not found")


def main():
    cuboid, root = (os.path.abspath(path) for path in sys.argv[1:3])
    mpirun = sys.argv[3] if len(sys.argv) > 3 else None
    cases = GPU_CASES if mpirun == "gpu" else [case for case in CASES if mpirun or not case[5]]
    cases = [] if mpirun == "faulty" else cases
    with tempfile.TemporaryDirectory() as folder:
        text = os.path.join(folder, "text")
        pages = [os.path.join(root, page) for page in ("CONTRIBUTING.md", "README.md")]
        run(cuboid, "data", "prepare", *pages, "-o", text)
        if mpirun == "faulty":
            check_faults(cuboid, text)
        for case in cases:
            try:
                check(cuboid, mpirun, case, text)
            except Failed as failed:
                sys.exit(f"{case}: {failed}")
    print("2 faults" if mpirun == "faulty" else f"{len(cases)} runs")


main()
