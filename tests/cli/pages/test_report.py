# SPDX-License-Identifier: Apache-2.0
"""cuboid report: the page has the metrics and recipes of runs, also of long ones and of damaged ones.

    test_report.py CUBOID"""
import json
import os
import subprocess
import sys
import tempfile

from html_page import Page, data_of, rendered

CUBOID = os.path.abspath(sys.argv[1])
RECIPE = """
model: {num_layers: 1, hidden_size: 16, num_attention_heads: 2, seq_length: 16}
data: {mock_data: true}
train: {global_batch_size: 2, micro_batch_size: 1, train_iters: 6, eval_interval: 2}
optimizer: {lr_warmup_iters: 1}
cluster: {threads_per_rank: 1}
"""
HOSTILE = "<img src=x onerror=alert(1)>"


def run(*arguments, status=0, words=()):
    done = subprocess.run([CUBOID, *arguments], capture_output=True, text=True, check=False)
    missing = [word for word in words if word not in done.stdout + done.stderr]
    assert done.returncode == status and not missing, (arguments, done.returncode, missing, done.stdout, done.stderr)
    return done


def page_of(*runs):
    run("report", *runs, "-o", "page.html")
    with open("page.html", encoding="utf-8") as file:
        text = file.read()
    page = Page(text)
    links = [value for name, value in page.attributes if name in ("src", "href")]
    assert page.open == [] and not page.failures and links == [] and "<img" not in text, (page.failures, links)
    return data_of(text)["runs"], len(text)


def metrics(folder):
    with open(os.path.join(folder, "metrics.jsonl"), encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def test_runs():
    for name, lr in (("a", "1e-3"), ("b", "2e-3")):
        run("train", "recipe.yaml", f"optimizer.lr={lr}", f"name={HOSTILE}", f"logging.run_dir=runs/{name}")
    found, _ = page_of("runs")
    assert [one["name"] for one in found] == ["runs/a", "runs/b"]
    for one in found:
        lines = metrics(one["name"])
        for key in ("step", "loss", "grad_norm", "lr", "tokens_per_s", "consumed_tokens", "valid_loss", "mfu"):
            for told, line in zip(one["metrics"][key], lines, strict=True):
                value = line.get(key)
                assert (told is None) == (value is None), (key, told, value)
                assert value is None or abs(told - value) <= 1e-6 * abs(value), (key, told, value)
        assert one["metrics"]["memory_bytes"] == lines[-1]["memory_bytes"] and one["metrics"]["every"] == 1
        assert one["metrics"]["time"][0] > 1.7e9
    shown = rendered("page.html")
    if shown is not None:
        assert shown.open == [] and not shown.failures and "img" not in shown.names, shown.failures
        wanted = {"Training loss", "Validation loss", "Memory by part", "optimizer.lr", "0.002", f'"{HOSTILE}"'}
        assert wanted <= set(shown.texts), wanted - set(shown.texts)
        assert shown.texts.count("train.train_iters") == 1  # equal in both: only in the recipe


def test_long_run():
    """Every seventh step, all evaluations, the last step; below 1 MB."""
    os.mkdir("long")
    line = metrics("runs/a")[0]
    with open("long/metrics.jsonl", "w", encoding="utf-8") as file:
        for step in range(1, 10001):
            more = {"valid_loss": 2.5} if step % 1000 == 0 else {}
            peak = {"memory_peak_bytes": 9e12} if step == 5001 else {}
            file.write(json.dumps(line | {"step": step, "loss": 1 / step} | more | peak) + "\n")
        file.write('{"step": 10001, "lo')
    os.link("runs/a/recipe.yaml", "long/recipe.yaml")
    found, size = page_of("long", "runs/a")
    steps = found[0]["metrics"]["step"]
    assert found[0]["metrics"]["every"] == 7 and found[0]["metrics"]["steps"] == 10000 and size < 1000000, size
    assert found[0]["metrics"]["peak_bytes"] == 9e12
    assert steps == sorted(step for step in range(1, 10001) if step % 7 == 0 or step % 1000 == 0)


def test_bad_input():
    run("report", "-o", "page.html", status=2, words=["no run given; use cuboid report"])
    run("report", "runs", status=2, words=["no page given; use -o FILE.html"])
    run("report", "nowhere", "-o", "page.html", status=1, words=["nowhere/metrics.jsonl"])
    run("report", "runs", "-o", "none/page.html", status=2, words=["-o none/page.html"])
    run("report", "runs", "-o", "runs", status=2, words=["-o runs"])
    for name, content in (("empty", b""), ("words", b"no JSON\n"), ("bytes", b"\xff\n{}\n"),
                          ("zero", b'{"step": 1}\n\0\n{"step": 2}\n'),
                          ("other", b'{"step": "x"}\n')):
        os.mkdir(name)
        with open(f"{name}/metrics.jsonl", "wb") as file:
            file.write(content)
        run("report", name, "-o", "page.html", status=1, words=[f"{name}/metrics.jsonl"])
        run("report", name, "runs", "-o", "page.html", words=[f"{name}/metrics.jsonl"])
    for name in ("metrics.jsonl", "recipe.yaml"):
        run("report", "runs/a", "-o", f"runs/a/{name}", status=2, words=[f"-o runs/a/{name}"])
    os.unlink("runs/b/recipe.yaml")
    run("report", "runs/b", "-o", "page.html", status=1, words=["runs/b/recipe.yaml"])


with tempfile.TemporaryDirectory() as scratch:
    os.chdir(scratch)
    with open("recipe.yaml", "w", encoding="utf-8") as recipe:
        recipe.write(RECIPE)
    test_runs()
    test_long_run()
    test_bad_input()
    os.chdir("/")
print("report: ok")
