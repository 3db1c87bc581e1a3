#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""cuboid table: named tables, a table of one's own, refusals, JSON, and the page.

    test_table.py CUBOID"""
import json
import os
import re
import subprocess
import sys
import tempfile

from pages.html_page import Page, data_of, rendered

CUBOID = os.path.abspath(sys.argv[1])
HEADER = "model,layers,hidden,heads,vocab,seq,gpus,tp,pp,dp,micro_batch,global_batch,schedule,recompute,precision," \
         "step_time_s,notes\n"
ROW = "GPT,4,1024,16,1024,512,4,2,2,1,1,8,1F1B,none,bf16,0.05,\n"
failures = []


def run(*arguments):
    return subprocess.run([CUBOID, "table", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          check=False)


def expect(what, truth, done):
    if not truth:
        failures.append(what)
        print(f"{what}: status {done.returncode}\n  stdout {done.stdout!r:.600}\n  stderr {done.stderr!r:.600}")


def check(what, done, status, out="", err=""):
    expect(what, done.returncode == status and out in done.stdout and err in done.stderr, done)


def write(folder, text):
    path = os.path.join(folder, "runs.csv")
    with open(path, "w", encoding="utf-8", newline="") as file:
        file.write(text)
    return path


def test_named():
    listed = run("--list")
    check("--list", listed, 0, out="korthikanti2022")
    expect("the base of other tables is not listed", "default" not in listed.stdout, listed)
    done = run("llama3")
    check("a named table", done, 0, out="constant utilization, MFU")
    expect("why a row is not predicted", "context parallelism (cp 16) is not implemented" in done.stdout, done)
    done = run("llama3", "--json")
    table = json.loads(done.stdout)
    expect("each profile has its basis", [(one["name"], one["basis"][:25]) for one in table["profiles"]] ==
           [("llama3-h100", "fitted to 2 step times; m")], done)
    rows, group = table["rows"], table["groups"][0]
    expect("its rows as JSON", len(rows) == 3 and group["predicted"] == 2 and rows[2]["reason"] is not None, done)
    errors = sorted(abs(row["predicted_s"] / row["printed_s"] - 1) for row in rows[:2])
    expect("its median error", abs(sum(errors) / 2 - group["step_time"]["median"]) < 1e-6, done)
    unfitted = run("other-programs")
    bias = json.loads(run("other-programs", "--json").stdout)["groups"][0]["step_time"]["bias"]
    claim = f"are predicted {-100 * bias:.0f} % too fast in the median (cuboid table other-programs)"
    expect("what is said of data sheets is true", claim in unfitted.stdout and
           ", on dgx-a100-80, dgx-h100\n" in unfitted.stdout, unfitted)
    other = json.loads(run("llama3", "--json", "--profile", "dgx-a100-80").stdout)
    expect("another profile", other["rows"][0]["predicted_s"] > 1.5 * rows[0]["predicted_s"], done)
    check("a name with a typing mistake", run("lama3"), 2, err="did you mean llama3?")
    check("no table", run(), 2, err="no table given")
    check("two tables", run("llama3", "zero"), 2, err="zero is not key=value")


def test_file(folder):
    path = write(folder, HEADER + ROW + ROW.replace("512,4,", "512,5,"))
    check("without a profile", run(path), 1, out="no cluster profile; fill in the column gpu_type (V100, ")
    done = run(path, "--profile", "dgx-a100-80")
    check("a file", done, 0, out="tp2 pp2 dp1 b1 1f1b")
    expect("an impossible layout", "5 GPUs are not tp 2 x pp 2 x cp 1 x dp 1 = 4" in done.stdout, done)
    done = run(path, "--profile", "dgx-a100-80", "memory.recompute_granularity=full")
    check("a key for all rows", done, 0, out="1f1b full")
    check("a key that does not exist", run(path, "--profile", "dgx-a100-80", "model.depth=3"), 2,
          err="unknown key model.depth")
    check("a base that does not exist", run(path, "--recipe", os.path.join(folder, "none.yaml"), "--profile", "selene"),
          2, err="none.yaml")
    check("the base of a named table", run(path, "--recipe", "llama3"), 0, out="on llama3-h100")
    of_paper = write(folder, "paper," + HEADER + "\"Hagemann2023, main\"," + ROW)
    check("the base of the paper that is named", run(of_paper), 0, out="on hagemann2023")
    interleaved = ROW.replace("1F1B", "interleaved 1F1B")
    check("virtual stages that a row does not give", run(write(folder, HEADER + interleaved), "--profile", "selene"), 0,
          out="tp2 pp2 dp1 v2 b1 interleaved")
    of_paper = write(folder, "paper," + HEADER.replace("schedule", "vpp,schedule") + "Zero Bubble," +
                     interleaved.replace("GPT,4,", "GPT,6,").replace("interleaved", "4,interleaved"))
    check("embedding and head as layers", run(of_paper), 0, out="tp2 pp2 dp1 v4 b1 interleaved")
    readme = "Megatron-LM README H100,GPT 16B,32,6144,48,131072,4096,192,4,1,48,,192,,,bf16,0.8498,\n"
    done = run(write(folder, "paper," + HEADER + readme), "--json")
    found = json.loads(done.stdout)["rows"][0]
    expect("few samples of a replica without a pipeline are one microbatch", " b4 " in found["layout"] and
           abs(found["error"]) < 0.08, done)
    row = "MegaScale T2,175B,96,12288,128,64000,2048,256,8,8,4,,768,\"interleaved 1F1B, {}\",,,{},\n"
    rows = row.format("Megatron-LM", 40) + row.format("MegaScale", 32)
    done = run(write(folder, "paper," + HEADER + rows), "--json", "pipeline.virtual_stages=6")
    found = json.loads(done.stdout)["rows"]
    expect("programs named after the schedule", all(abs(one["error"]) < 0.06 for one in found), done)
    row = "Zero Bubble,GPT,22,2304,24,50257,1024,8,1,8,1,6,144,ZB-{}p,none,bf16,{},\n"
    of_paper = write(folder, "paper," + HEADER + row.format(1, 1.395) + row.format(2, 1.241))
    done = run(of_paper, "--json")
    one, two = [found["predicted_s"] for found in json.loads(done.stdout)["rows"]]
    expect("steps of ZB-1p and ZB-2p overlap", abs(one / 1.395 - 1) < 0.05 and abs(two / 1.241 - 1) < 0.05, done)
    of_paper = write(folder, "paper," + HEADER + "Hagemann2023," + ROW + "Zero Bubble," + ROW)
    check("two papers have no common base", run(of_paper), 1, out="no cluster profile; fill in the column gpu_type")
    path = write(folder, HEADER + ROW + ROW.replace("512,4,", "512,5,"))
    done = run(os.path.join(folder, "none.csv"))
    check("a file that does not exist", done, 2, err="none.csv: No such file")
    expect("is reported once", done.stderr.count("\n") == 1, done)
    test_own_rows(folder)
    path = write(folder, HEADER.replace("layers", "depth") + ROW)
    check("an unknown column", run(path), 2, err="runs.csv:1: unknown column 2: \"depth\"")
    path = write(folder, HEADER + ROW.replace(",4,1024", ",4.5,1024") + "GPT,4\n")
    done = run(path)
    check("an invalid value and an incomplete row", done, 2, err="runs.csv:2: column layers: \"4.5\" is not an integer")
    expect("both are reported", "runs.csv:3: 2 cells; the header has 17 columns" in done.stderr, done)
    check("--columns", run("--columns"), 0, out="paper,model,params_b,layers,hidden,")


def test_own_rows(folder):
    """What a table of one's own says about what it does not know."""
    header, ran = HEADER.replace("notes", "notes,gpu_type,zero_stage,status"), "a100-80gb,,\n"
    whole = ROW.replace("\n", "") + "," + ran
    params_only = "GPT 25B,,,,1024,512,4,2,2,1,1,8,1F1B,none,bf16,0.05,," + ran
    no_batch = "Another,9,,,,,4,2,2,1,1,,1F1B,none,bf16,0.05,," + ran
    path = write(folder, (header + whole + params_only + no_batch).strip())
    done = run(path)
    check("rows without a model or a batch", done, 0, out="line 3: no layers, hidden, heads; fill in the columns, or "
          "add for all rows model.num_layers=VALUE model.hidden_size=VALUE model.num_attention_heads=VALUE\n")
    expect("each names its columns", "line 4: no hidden, heads, vocab, seq, global_batch; fill in" in done.stdout, done)
    expect("the others are predicted", "tp2 pp2 dp1 b1 1f1b" in done.stdout and "GPT 25B " in done.stdout, done)
    expect("the titles", " published s " in done.stdout and "printed" not in done.stdout, done)
    expect("what the profile rests on", "  profile dgx-a100-80: data sheet and estimates, not fitted; " in
           done.stdout, done)
    expect("one row has no statistics", "error of" not in done.stdout and "fitted\n" not in done.stdout, done)
    two = run(write(folder, header + 2 * whole))
    expect("two have", "error of" in two.stdout and "step time x " in two.stdout, two)
    done = run(path, "--profile", "dgx-h100")
    check("a profile of another GPU", done, 1, out="line 2: gpu_type a100-80gb is not the H100-SXM5-80GB of cluster "
          "profile dgx-h100")
    sized = header.replace("model,", "model,params_b,ffn,")
    intern = "InternLM 7B,7.3,11008,32,4096,32,103168,2048,8,1,1,8,2,64,,none,bf16,4.03,," + ran
    done = run(write(folder, sized + intern + intern.replace("InternLM", "Lime")))
    check("InternLM is like Llama, with the published size; a GPT is not", done, 0, out="    line 3: this model has "
          "5.47 billion parameters, not the 7.3 of params_b: check ffn and vocab, and model.activation=swiglu")
    expect("which is right", done.stdout.count("billion") == 1, done)
    name = "gpt3_7b_tp1_pp4_memory_speed"
    slower = whole.replace("a100-80gb,,\n", "a100-80gb,,slower\n")
    done = run(write(folder, header + whole.replace("GPT", name) + 127 * slower))
    check("names are whole", done, 0, out=f"  {name}  ")
    expect("rows with the same reason are counted", done.stdout.count("slower") == 1 and
           "  127 rows (lines 3, 4, 5, ...): status is slower\n" in done.stdout, done)
    big = whole.replace(",4,1024,16,1024,512,4,2,2,1,1,8,", ",48,8192,64,1024,512,8,1,1,8,1,8,")
    done = run(write(folder, header + big))
    check("a row that ran without the memory for it", done, 0, out=" OOM   (ran)")
    expect("what may be missing", "  OOM (ran): if the program sharded its state, fill in zero_stage\n" in
           done.stdout, done)
    done = run(write(folder, header + big.replace(ran, "a100-80gb,0,ok\n")))
    expect("nothing is missing", " OOM   (ran)" in done.stdout and "fill in" not in done.stdout, done)


def check_rendered(shown, page_path, done):
    """What a browser shows, if there is node to run the script."""
    if shown is None:
        return
    expect("the script closes its elements", shown.open == [] and shown.failures == [], done)
    expect("texts are shown", "script" not in shown.names and
           any("<script>alert(1)</script> & \"'\x1b[31m" in text for text in shown.texts), done)
    expect("a plot with one point", {"svg", "circle"} <= shown.names and "rect" in shown.names, done)
    done = run("llama3", "--html", page_path)
    near = rendered(page_path)
    ticks = [text for text in near.texts if text.replace(".", "").isdigit() and 6 < float(text) < 13]
    expect("axes of less than a decade have ticks", len(set(ticks)) >= 4, done)


def test_page(folder):
    hostile = '</title><script>alert(1)</script> & "\'\x1b[31m'
    cell = '"' + hostile.replace('"', '""') + '"'
    path = write(folder, HEADER + ROW.replace("GPT", cell).replace("0.05,", "0.05," + cell))
    page_path = os.path.join(folder, "page.html")
    done = run(path, "--profile", "dgx-a100-80", "--html", page_path)
    check("a page", done, 0)
    expect("no control characters on the terminal", "\x1b" not in done.stdout, done)
    with open(page_path, encoding="utf-8") as file:
        text = file.read()
    page = Page(text)
    expect("every element is closed", page.open == [] and page.failures == [], done)
    scripts = "".join(re.findall(r"<script>.*?</script>", text, re.S))
    expect("texts are escaped", text.count("<script") == 3 and "alert(1)" not in scripts and "\x1b" not in text, done)
    told = json.loads(run(path, "--profile", "dgx-a100-80", "--json").stdout)
    expect("the data is that of --json", data_of(text) == told, done)
    expect("the profile is named", told["profiles"][0]["name"] == "dgx-a100-80", done)
    check_rendered(rendered(page_path), page_path, done)
    links = [value for name, value in page.attributes if name in ("src", "href")]
    expect("the page is self-contained", links == [], done)
    for arguments, word in ((["--recipe", "none.yaml"], "--recipe none.yaml: No such file"),
                            (["--profile", "none"], "profile none"),
                            (["trian.train_iters=5"], "did you mean train.train_iters?")):
        done = run(path, *arguments)
        check(f"{arguments}: reported once", done, 2, err=word)
        expect(f"{arguments}: no row is planned", done.stdout == "", done)
    empty = write(folder, HEADER)
    check("no rows", run(empty), 2, err="no rows")
    check("a page that cannot be written", run(path, "--profile", "dgx-a100-80", "--html", folder), 2, err="--html ")


CPU = """device: {name: CPU, is_cpu: true, cores: 2, peak_flops_fp32: 1e11, memory_bytes: 8e9, memory_bandwidth: 2e10}
node: {devices: 1}
"""


def test_run(folder):
    """The rows for real: small runs of the same kind, planned and measured, once each."""
    profile, runs = os.path.join(folder, "cpu.yaml"), os.path.join(folder, "runs")
    with open(profile, "w", encoding="utf-8") as file:
        file.write(CPU)
    path = write(folder, HEADER + "".join((
        "A,24,8192,64,51200,2048,64,2,8,4,1,256,1F1B,none,bf16,0.05,\n",
        "B,24,8192,64,51200,2048,64,2,8,4,4,256,1F1B,full,bf16,0.05,\n",
        "C,24,8192,64,51200,2048,64,2,8,4,1,512,1F1B,none,bf16,0.05,\n",
        "D,24,8192,64,51200,2048,64,2,8,4,1,256,no such schedule,none,bf16,0.05,\n")))
    arguments = [path, "--run", "2", "--steps", "3", "--profile", profile, "--run-dir", runs]
    done = run(*arguments, "--json")
    check("rows are run", done, 0)
    rows = json.loads(done.stdout)["rows"]
    expect("their ranks are at most two, of the largest degree",
           all("tp1 pp2 dp1" in row["layout"] for row in rows[:3]) and "full" in rows[1]["layout"]
           and "no such schedule" in rows[3]["reason"], done)
    expect("step time and memory are measured", all(row["printed_s"] > 0 and row["predicted_s"] > 0 and
           abs(row["predicted_bytes"] / row["printed_bytes"] - 1) < 1e-3 for row in rows[:3]), done)
    with open(os.path.join(runs, "journal"), encoding="utf-8") as file:
        journal = file.read()
    expect("equal small runs are measured once", journal.count("done ") == 2 and
           rows[0]["printed_s"] == rows[2]["printed_s"] != rows[1]["printed_s"], done)
    again = run(*arguments)
    with open(os.path.join(runs, "journal"), encoding="utf-8") as file:
        expect("and not again", file.read() == journal and "measured s" in again.stdout and "published s" not in
               again.stdout, again)
    check("without a profile", run(path, "--run"), 2, err="--run needs the profile of this machine")
    check("with one of GPUs", run(path, "--run", "--profile", "dgx-h100"), 2, err="dgx-h100 describes GPUs")
    whole = run("zero", "--run", "--profile", profile, "--run-dir", os.path.join(folder, "zero"))
    expect("figures that are not of a step", "its figures are of one model states" in whole.stdout, whole)


with tempfile.TemporaryDirectory() as temporary:
    test_named()
    test_run(temporary)
    test_file(temporary)
    test_page(temporary)
print("\n".join(failures) if failures else "all as expected")
sys.exit(1 if failures else 0)
