#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Predicts all published tables, and prints docs/measurements/published.md.

    tools/dev/published.py CUBOID [NAME ...] > docs/measurements/published.md

Takes about a minute. With names: only these tables."""
import json
import os
import re
import statistics
import subprocess
import sys
import textwrap

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
WIDTH = 116
MIN_SWEEP = 3

HEADER = """<!-- `tools/dev/published.py build/cuboid > docs/measurements/published.md`; edit recipes/papers. -->
# Published results, predicted

Each run of these tables is planned as `cuboid plan` does it, on the cluster profile of its paper, and compared
with what was published.
`cuboid table NAME` prints the same.

- Nothing is fitted per row: a table has one base recipe, [recipes/papers](../../recipes/papers)/NAME.yaml, with its
  assumptions, and NAME.csv has the figures with their sources.
  Assumptions were chosen with these rows in view, so small errors of a fitted table are not those of a new program:
  [other-programs](#other-programs) has programs that nothing was fitted to.
  At most 18 efficiencies per cluster are fitted to all of its rows; [fits](../fits) has them, with the errors of the
  estimates that the fit began with and those of rows that it has not seen, also of whole papers and clusters.
- Error: predicted / published - 1.
  Median and 90th percentile are of absolute values; bias is the median with its sign.
- *Constant utilization*: model FLOPs at one MFU, the median of the published ones: a fit to the experiment.
  It compares with the predictions *scaled by one factor*, which are fitted in the same way.
- *FLOPs plus bytes*: FLOPs of matmuls and attention, and bytes of the other ops, at the profile's efficiencies,
  without messages and schedule.
- MFU is computed from step times with the FLOPs of Narayanan et al. 2021 without recomputation, full attention.
- Memory is the allocation on the device with the most in use, in 1e9 bytes; in the table of BLOOM, which prints
  that of nvidia-smi, it includes what the device reserves.
  *Fits* adds what the device reserves and compares with its memory.
"""


def run(cuboid, *arguments):
    return subprocess.run([cuboid, "table", *arguments], stdout=subprocess.PIPE, text=True, check=True).stdout


def percent(value, sign="+"):
    return "" if value is None else f"{100 * value:{sign}.1f} %"


def figure(value, scale=1.0):
    return "" if value is None else f"{scale * value:.4g}"


def cell(text):
    """A text as a cell of a Markdown table."""
    return re.sub(r"([|<>*_`\[\]\\])", r"\\\1", text or "")


def line(cells):
    return "| " + " | ".join(cells) + " |"


def table(titles, rows):
    return [line(titles), "|" + "---|" * len(titles), *(line(row) for row in rows), ""]


def wrapped(text):
    """One sentence per line, long ones on several."""
    out = []
    for sentence in re.split(r"(?<=[.;]) (?=[A-Z])", text):
        out += textwrap.wrap(sentence, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return out


def assumptions(name):
    """The comment at the top of the base recipe, without its first line."""
    with open(os.path.join(ROOT, "recipes", "papers", name + ".yaml"), encoding="utf-8") as file:
        text = file.read()
    comment = re.match(r"(?:#.*\n)+", text).group().split("\n")[1:-1]
    blocks = "\n".join(part[1:].strip() for part in comment).strip().split("\n\n")
    out = []
    for block in blocks:
        out += [*wrapped(" ".join(block.split())), ""]
    return out


def errors(groups):
    kinds = [("step_time", "predicted step time"), ("step_time_scaled", "scaled by one factor"),
             ("constant_utilization", "constant utilization"),
             ("flops_plus_bytes", "FLOPs plus bytes"), ("memory", "predicted memory")]
    rows = []
    for group in groups:
        for key, title in kinds:
            found = group[key]
            if found["rows"] > 0:
                rows.append([cell(group["paper"]), title, str(found["rows"]), percent(found["median"] or 0.0, ""),
                             percent(found["p90"] or 0.0, ""), percent(found["bias"] or 0.0),
                             percent(found["worst"] or 0.0)])
    return table(["experiment", "error of", "rows", "median", "90th percentile", "bias", "worst"], rows)


def notes_of(groups):
    out = []
    for group in groups:
        found = []
        if group["rank_correlation_step_time"] is not None:
            found.append(f"rank correlation of step times {group['rank_correlation_step_time']:.3f}")
        if group["rank_correlation_utilization"] is not None:
            found.append(f"of utilizations {group['rank_correlation_utilization']:.3f}")
        if group["fit_checked"] > 0:
            found.append(f"memory fits as published in {group['fit_right']} of {group['fit_checked']} rows")
        if group["fit_near_checked"] > 0:
            right, checked = (group[f"fit_{what}"] - group[f"fit_near_{what}"] for what in ("right", "checked"))
            found.append(f"in {right} of {checked} without those within 5 GB of the limit")
        if group["predicted"] < group["rows"]:
            found.append(f"{group['rows'] - group['predicted']} of {group['rows']} rows cannot be expressed")
        if found:
            out += textwrap.wrap(f"- {group['paper']}: {', '.join(found)}.", WIDTH, subsequent_indent="  ")
    return [*out, ""]


def fits(row):
    if row["fit"] is None:
        return ""
    predicted = "fits" if row["fit"] == "ok" else "OOM"
    wrong = row["printed_fit"] is not None and row["printed_fit"] != row["fit"]
    return predicted + (" (ran)" if wrong and row["fit"] == "oom" else " (was OOM)" if wrong else "")


def rows_of(found):
    rows = []
    for row in found["rows"]:
        common = [cell(row["model"]), figure(row["gpus"]) if (row["gpus"] or 0) < 1e4 else f"{row['gpus']:.0f}"]
        if row["reason"] is not None:
            rows.append([*common, cell(row["reason"]), *[""] * 8])
            continue
        error = None
        if row["printed_bytes"] and row["predicted_bytes"]:
            error = row["predicted_bytes"] / row["printed_bytes"] - 1
        rows.append([*common, cell(row["layout"]), figure(row["printed_s"]), figure(row["predicted_s"]),
                     percent(row["error"]), percent(row["printed_mfu"], ""), figure(row["printed_bytes"], 1e-9),
                     figure(row["predicted_bytes"], 1e-9), percent(error), fits(row)])
    return table(["model", "GPUs", "layout", "published, s", "predicted, s", "error", "published MFU",
                  "published, GB",
                  "predicted, GB", "error", "memory"], rows)


def ranks(values):
    """From 0; equal values share the mean of their ranks."""
    return [sum(other < value for other in values) + (values.count(value) - 1) / 2 for value in values]


def sweeps(found):
    """Rows that differ only in the layout: same model, GPUs and FLOPs of a step, with at least MIN_SWEEP times."""
    out = {}
    for row in found["rows"]:
        if row["reason"] is None and row["predicted_s"] and row["predicted_mfu"]:
            flops = row["predicted_s"] * row["predicted_mfu"] * (row["gpus"] or 0)
            out.setdefault((row["paper"], row["model"], row["gpus"], f"{flops:.1e}"), []).append(row)
    return {key: rows for key, rows in out.items() if sum(bool(row["printed_s"]) for row in rows) >= MIN_SWEEP}


def loss(rows, best):
    """By how much the published time of the row with the shortest predicted step exceeds the best; None: it was OOM."""
    chosen = min(rows, key=lambda row: row["predicted_s"])
    return chosen["printed_s"] / best - 1 if chosen["printed_s"] else None


def losses(found):
    """Of each sweep: its paper, model and GPUs, and its losses, of the rows that ran and with the memory model."""
    out = []
    for (paper, model, gpus, _), rows in sweeps(found).items():
        ran = [row for row in rows if row["printed_s"]]
        best = min(row["printed_s"] for row in ran)
        # The memory model also considers rows that were OOM, and no row that it excludes.
        known = [row for row in rows if row["fit"] == "ok" and (row["printed_s"] or row["printed_fit"] == "oom")]
        out.append(((paper, model, gpus), rows, loss(ran, best), loss(known, best) if known else None))
    return out


def choices(found):
    lines, total, with_memory = [], [], []
    for (paper, model, gpus), rows, of_ran, of_known in losses(found):
        ran = [row for row in rows if row["printed_s"]]
        total.append(of_ran)
        with_memory.append(of_known)
        a, b = ranks([row["predicted_s"] for row in ran]), ranks([row["printed_s"] for row in ran])
        correlation = statistics.correlation(a, b) if len(set(a)) > 1 and len(set(b)) > 1 else None
        lines.append([cell(paper), cell(model), f"{gpus:.0f}", f"{len(ran)} of {len(rows)}", percent(total[-1]),
                      "OOM" if with_memory[-1] is None else percent(with_memory[-1]),
                      "" if correlation is None else f"{correlation:.3f}"])
    if not lines:
        return []
    fit = [value for value in with_memory if value is not None]
    lines.append(["mean", "", "", "", percent(sum(total) / len(total)),
                  percent(sum(fit) / len(fit)) if fit else "", ""])
    return ["Choices: the published step time of the layout predicted best, relative to the best published one.",
            "OOM: the memory model lets it fit, but it did not; the mean is without these.", "",
            *table(["sweep", "model", "GPUs", "rows that ran", "of those that ran", "memory predicted too",
                    "rank correlation"], lines)]


def page(found):
    return [f"## {found['name']}", "", *wrapped(found["description"] + "."), "", *assumptions(found["name"]),
            *errors(found["groups"]), *notes_of(found["groups"]), *choices(found), *rows_of(found)]


def summary(tables):
    rows = []
    for found in tables:
        for group in found["groups"]:
            step = group["step_time"]
            if step["rows"] > 0:
                kinds = [group[key] for key in ("step_time_scaled", "constant_utilization")]
                rows.append([f"[{cell(group['paper'])}](#{found['name']})", str(step["rows"]),
                             percent(step["median"], ""), percent(step["p90"], ""), percent(step["bias"]),
                             *(f"{percent(kind['median'] or 0.0, '')}, {percent(kind['p90'] or 0.0, '')}"
                               for kind in kinds)])
    return table(["experiment", "rows", "median error", "90th percentile", "bias", "scaled by one factor",
                  "constant utilization"], rows)


ANOMALY = ("Hagemann 2023, seq 2048", "LLAMA 13B", 64)  # a series of its own: recipes/papers/hagemann2023.yaml
# Of cuboid profile validate, in the order of its columns, with the targets of median and 90th percentile in percent.
PROTOCOLS = [("one device for all clusters", 3, 10), ("a paper out, its cluster known from another", 6, 12),
             ("a cluster out, its network from its data sheet", 9, 22), ("the same, fitted to 15 of its rows", 4, 12)]
DEVICES = {"a100": None, "h100": (6, 12)}  # targets instead of those of the protocols
H100_CLUSTERS = ("eos", "llama3-h100")
APART = "other-programs"  # on data sheets, and nothing is assumed: in no target
NOT_FITTED = ("megatron-ci", APART)  # predicted with profiles of other rows, and with data sheets


def verdict(good):
    return "met" if good else "missed"


def last_line(name):
    """The numbers of the line `all` of docs/fits/NAME.txt: rows, then pairs."""
    with open(os.path.join(ROOT, "docs", "fits", name + ".txt"), encoding="utf-8") as file:
        words = re.search(r"^all +(.*)$", file.read(), re.M).group(1).split()
    return int(words[0]), list(zip(words[1::2], words[2::2]))


def third_rows(name):
    """Errors in percent of the rows of docs/fits/NAME.txt that were held out as every third one."""
    with open(os.path.join(ROOT, "docs", "fits", name + ".txt"), encoding="utf-8") as file:
        found = re.search(r"^% error of each row held out as every third one\n([-+0-9. \n]*)", file.read(), re.M)
    return [float(word) for word in found.group(1).split()] if found else []


def step_time_target(title, count, pair, wanted):
    """A row for a median and a 90th percentile in percent; none for a protocol without rows."""
    if "-" in pair:
        return []
    return [[f"step times, {title}", str(count), "{} and {} %".format(*wanted), "{} and {} %".format(*pair),
             verdict(all(float(found) <= most for found, most in zip(pair, wanted)))]]


def step_time_targets(tables):
    found = [abs(row["error"]) for one in tables if one["name"] not in NOT_FITTED for row in one["rows"]
             if row["error"] is not None]
    pair = (statistics.median(found), statistics.quantiles(found, n=10, method="inclusive")[8])
    rows = step_time_target("all rows with fitted profiles", len(found), [f"{100 * error:.1f}" for error in pair],
                            (2.5, 9))
    names = sorted(name[:-4] for name in os.listdir(os.path.join(ROOT, "docs", "fits")) if name.endswith(".txt"))
    held_out = [abs(error) for name in names for error in third_rows(name)]
    pair = (statistics.median(held_out), statistics.quantiles(held_out, n=10, method="inclusive")[8])
    rows += step_time_target("every third row of each source held out of the fit of its cluster, all clusters",
                             len(held_out), [f"{error:.1f}" for error in pair], (2.5, 9))
    for name in names:
        count, found = last_line(name)
        if name in DEVICES:
            for pair, (title, *wanted) in zip(found, PROTOCOLS):
                rows += step_time_target(f"{name.upper()}: {title}", count if title == PROTOCOLS[0][0] else "", pair,
                                         DEVICES[name] or wanted)
        else:
            wanted = DEVICES["h100"] if name in H100_CLUSTERS else (2.5, 9)
            rows += step_time_target(f"{name}: fitted", count, found[1], wanted)
            rows += step_time_target(f"{name}: every third row of each source held out", "", found[3], wanted)
    return rows


def mean_target(title, values, target):
    mean = sum(values) / len(values)
    best = sum(value <= 5e-4 for value in values)
    return [title, str(len(values)), f"{100 * target:g} %",
            f"{percent(mean)}; the best layout in {best} of {len(values)}", verdict(mean <= target)]


def choice_targets(tables):
    found = [entry for one in tables if one["name"] != APART for entry in losses(one)]
    rows = []
    for title, column, target in (("of the rows that ran", 2, 0.01), ("with the memory model", 3, 0.02)):
        values = {entry[0]: entry[column] for entry in found}
        every = [entry[column] for entry in found if entry[column] is not None]
        others = [entry[column] for entry in found if entry[column] is not None and entry[0] != ANOMALY]
        rows.append(mean_target(f"choices {title}, mean over all sweeps", every, target))
        if len(others) < len(every):
            rows.append(mean_target(f"the same without {ANOMALY[1]} on {ANOMALY[2]} GPUs, a series of its own "
                                    f"({percent(values[ANOMALY])})", others, target))
    return rows


def memory_targets(tables):
    groups = [group for one in tables if one["name"] != APART for group in one["groups"]]
    rows = []
    for title, near in (("fits or not, all rows", False), ("fits or not, without rows within 5 GB of the limit", True)):
        right, checked = (sum(group[f"fit_{what}"] - near * group[f"fit_near_{what}"] for group in groups)
                          for what in ("right", "checked"))
        rows.append([title, str(checked), "97 %", f"{right} of {checked}, {percent(right / checked, '')}",
                     verdict(right >= 0.97 * checked)])
    for name, states, target in (("allocated bytes", True, 0.02), ("peaks", False, 0.05)):
        these = [group["memory"] for group in groups if group["paper"].startswith("Megatron-LM CI") and
                 group["paper"].endswith("states") == states and group["memory"]["rows"] > 0]
        worst = max((memory["worst"] for memory in these), key=abs)
        rows.append([f"{name} of the Megatron-LM CI rows, the largest error", str(sum(m["rows"] for m in these)),
                     f"{100 * target:g} %", percent(worst), verdict(abs(worst) <= target)])
    for name in ("Zero Bubble Table 4", "BLOOM, hidden 14400", "BLOOM, batch sizes"):
        memory = next((group["memory"] for group in groups if group["paper"] == name), None)
        if memory is not None:
            rows.append([f"memory, {name}: median error", str(memory["rows"]), "8 %", percent(memory["median"], ""),
                         verdict(memory["median"] <= 0.08)])
    return rows


def targets(tables):
    return ["Targets: errors of step times are the median and the 90th percentile of absolute values; those of fits,",
            "and of rows that a fit has not seen, are from [fits](../fits), whose files begin with their command.",
            "A layout is the best if its published step is at most 0.05 % longer than the shortest one of its sweep.",
            "",
            *table(["what", "rows or sweeps", "target", "result", ""],
                   [*step_time_targets(tables), *choice_targets(tables), *memory_targets(tables)])]


def main(cuboid, *names):
    names = names or [text.split()[0] for text in run(cuboid, "--list").splitlines()]
    tables = [json.loads(run(cuboid, name, "--json")) for name in names]
    lines = [HEADER, *summary(tables), *(targets(tables) if len(sys.argv) == 2 else [])]
    for found in tables:
        lines += page(found)
    print("\n".join(lines).rstrip())


if __name__ == "__main__":
    main(*sys.argv[1:])
