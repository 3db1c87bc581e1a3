# SPDX-License-Identifier: Apache-2.0
"""The report of tools/gpu/gpu_report.py: Markdown for people, and the same results as JSON next to it, from which the
next call continues and `gpu_report.py --merge` joins reports. Both files are complete after every line.

Results belong to a part or, before the first part, to the call. A part that was not finished is run again by the next
call; of two results of a part the finished one counts, else the later one."""
import contextlib
import json
import os
import threading

from gpu_wanted import Wanted

LINE_CHARS, LAST_LINES = 400, 40  # of a failed command's output
FINISHED, UNFINISHED = "finished", "not finished"


def no_results():
    """Rows of the table, sections {title: text}, failures [name, output], names of missed targets, results of targets
    [target, reached, details]."""
    return {"state": UNFINISHED, "rows": [], "sections": {}, "failures": [], "missed": [], "seen": []}


class Report:
    def __init__(self, path, title, machine, commit=""):
        self.path, self.title, self.machine, self.commit = path, title, machine, commit
        self.results = no_results()
        self.calls, self.parts = [self.results], {}
        self.state = "not finished"
        self.known = {}  # of the session, for the next call
        self.lock = threading.RLock()

    def continue_from(self, earlier):
        self.calls = earlier["calls"] + self.calls
        self.parts = earlier["parts"]
        self.known = earlier["known"]

    def finished(self, part):
        return self.parts.get(part, {}).get("state") == FINISHED

    def begin(self, part):
        """The results that follow are of this part."""
        self.results = no_results()
        self.parts[part] = self.results

    def row(self, name, result):
        print(f"{name}: {result}", flush=True)
        with self.lock:
            self.results["rows"].append(f"| {name} | {result} |")
            self.save()

    def section(self, title, text):
        """A section of the same title is replaced."""
        with self.lock:
            self.results["sections"][title] = f"## {title}\n\n{text.rstrip()}\n"
            self.save()

    def failed(self, name, why, output=""):
        last = "\n".join(line[:LINE_CHARS] for line in output.splitlines()[-LAST_LINES:])
        with self.lock:
            self.results["failures"].append([name, last])
            self.row(name, f"**FAILED** ({why})")

    def target(self, name, value, least, unit="%"):
        good = value >= least
        if not good:
            self.results["missed"].append(name)
        text = f"{value:.1f} {unit}, {'reaches' if good else '**below**'} {least:g}"
        self.row(name, text)
        return good, text

    def see(self, target, good, details):
        """A result of a target of gpu_wanted.py."""
        with self.lock:
            self.results["seen"].append([target, good, details])

    def all(self, key):
        return [result for results in (*self.calls, *self.parts.values()) for result in results[key]]

    def wanted(self):
        wanted = Wanted()
        for target, good, details in self.all("seen"):
            wanted.see(target, good, details)
        return wanted

    def outcome(self):
        return f"{len(self.all('failures'))} failed, {len(set(self.all('missed')))} below their targets"

    def text(self):
        lines = [f"# {self.title}", "", self.machine, "", f"State: {self.state}.", "", *self.wanted().lines(), "",
                 "| check | result |", "|---|---|", *self.all("rows"), ""]
        for results in (*self.calls, *self.parts.values()):
            lines += results["sections"].values()
        failures = self.all("failures")
        if failures:
            lines.append("## Failures\n")
        for name, output in failures:
            lines += [f"{name}:", "", *("    " + line for line in output.splitlines()), ""]
        return "\n".join(lines)

    def save(self):
        write(self.path, self.text())
        write(json_of(self.path), json.dumps(
            {"title": self.title, "machine": self.machine, "commit": self.commit, "state": self.state,
             "calls": self.calls, "parts": self.parts, "known": self.known}, indent=1))


def write(path, text):
    with open(path + ".new", "w") as out:
        out.write(text)
    os.replace(path + ".new", path)


def json_of(path):
    return os.path.splitext(path)[0] + ".json"


def read(path):
    """The results of a report, by the path of either of its files. Raises ValueError with the reason."""
    try:
        with open(json_of(path)) as text:
            results = json.load(text)
        results["calls"], results["parts"], results["known"], results["commit"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{json_of(path)}: not the results of a report: {error}") from error
    return results


def earlier_call(folder, commit):
    """The path of the newest results of this commit in the folder; None: there are none."""
    found = []
    for name in os.listdir(folder) if os.path.isdir(folder) else []:
        with contextlib.suppress(ValueError):
            if name.endswith(".json") and read(os.path.join(folder, name))["commit"] == commit:
                found.append(os.path.join(folder, name))
    return max(found, key=os.path.getmtime, default=None)


def merge(reports, order):
    """One report of several, in the order of their calls."""
    merged = Report("", " + ".join(unique(results["title"] for results in reports)),
                    "\n\n".join(unique(results["machine"] for results in reports)))
    merged.calls = unique(call for results in reports for call in results["calls"])
    for part in order:
        found = [results["parts"][part] for results in reports if part in results["parts"]]
        best = [results for results in found if results["state"] == FINISHED] or found
        merged.parts.update({part: best[-1]} if best else {})
    merged.state = merged.outcome()
    return merged


def unique(values):
    found = []
    for value in values:
        if value not in found:
            found.append(value)
    return found
