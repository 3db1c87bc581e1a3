#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The executable as seen from a shell: help, messages for typing mistakes, errors of standard output. There are
no time limits here: meson's limit ends a test that hangs.

    test_command_line.py CUBOID SOURCE_ROOT VERSION"""
import json
import os
import re
import shutil
import resource
import signal
import stat
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from fixtures import no_file_beyond  # noqa: E402

CUBOID, ROOT, VERSION = os.path.abspath(sys.argv[1]), sys.argv[2], sys.argv[3]
QUICKSTART = os.path.join(ROOT, "recipes", "quickstart.yaml")
COMMANDS = ["train", "verify", "generate", "checkpoint", "schedule", "data", "recipe", "profile", "table", "doctor"]
# A tiny model whose steps take almost no time, on one rank.
TINY = ["train.train_iters=2", "optimizer.lr_warmup_iters=1", "optimizer.lr_decay_iters=2", "train.eval_interval=0",
        "model.hidden_size=16", "model.kv_channels=8", "model.num_attention_heads=2", "model.num_query_groups=2",
        "model.num_layers=2", "model.ffn_hidden_size=16", "model.seq_length=8", "train.global_batch_size=2",
        "dp=1", "tp=1", "pp=1", "parallel.sequence_parallel=false", "data.split=100,0,0"]
failures = []


def tiny(folder, name, *keys):
    """The arguments that train TINY, and these keys, on folder/text in folder/name."""
    words = {word.split("=")[0]: word for word in
             [*TINY, f"data.train={folder}/text", f"logging.run_dir={folder}/{name}", *keys]}
    return ["train", QUICKSTART, *words.values()]


def run(*arguments, **options):
    # Generated text may be any bytes, and is compared as bytes.
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "errors": "surrogateescape", **options}
    return subprocess.run([CUBOID, *arguments], text=True, check=False, **options)


def expect(what, truth, done):
    if not truth:
        failures.append(what)
        print(f"{what}: status {done.returncode}\n  stdout {done.stdout!r:.400}\n  stderr {done.stderr!r:.400}")


def check(what, done, status, out="", err=""):
    expect(what, done.returncode == status and out in (done.stdout or "") and err in done.stderr, done)


def test_help():
    for command in COMMANDS:
        page = run(command, "--help")
        check(f"{command} --help", page, 0, out=f"cuboid {command}")
        for arguments in [["help", command], [command, "-h"], [command, QUICKSTART, "--help"],
                          [command, QUICKSTART, "tp=2", "-h", "pp=2"], [command, "--nonsense", "--help"]]:
            done = run(*arguments)
            expect(" ".join(arguments), (done.returncode, done.stdout) == (0, page.stdout), done)
    for arguments in [["profile", "fit", "--help"], ["help", "profile", "fit"], ["profile", "fit", "a.csv", "-h"]]:
        check(" ".join(arguments), run(*arguments), 0, out="cuboid profile fit TABLE... --base")
    overview = run("--help")
    for arguments in [["help"], ["-h"], ["help", "help"], ["help", "--help"]]:
        done = run(*arguments)
        expect(" ".join(arguments), (done.returncode, done.stdout) == (0, overview.stdout), done)
    for command in COMMANDS:
        check("the overview has " + command, overview, 0, out=f"cuboid {command}")
    done = run()
    expect("no argument", done.returncode == 2 and done.stderr == overview.stdout, done)
    # Text after an equals sign is a value, whatever it looks like.
    check("a value that is --help", run("generate", "nothing.yaml", "--prompt=--help"), 2, err="nothing.yaml")


def keys_of_row(cell):
    """The (key, value) pairs of another program in a cell: `--a-b`, `section.key`, `key: value`; a name that follows
    a key with a section is of the same section. What follows a colon are values."""
    keys = []
    for span in re.findall(r"`([^`]*)`", re.sub(r"`: .*", "`", cell)):
        name, value = re.fullmatch(r"-*([\w.-]+)(?::? (\S+))?.*", span).groups()
        if keys and keys[-1][1] != "2" and not value and not span.startswith("--"):
            continue  # another value
        section = keys[0][0].rpartition(".")[0] if keys and not span.startswith("--") else ""
        keys.append((name if "." in name or not section else f"{section}.{name}", value or "2"))
    return [(name.replace("-", "_"), value) for name, value in keys]


def test_keys_of_other_trainers():
    """Every key on the left of docs/from-other-trainers.md, given to the executable, is one of its own or an error;
    both name the key on the right, or the reason why there is none."""
    with open(os.path.join(ROOT, "docs", "from-other-trainers.md"), encoding="utf-8") as page:
        tables = page.read().split("## Weights,")[0]
    rows = [(keys_of_row(cells[0]), cells[1]) for cells in re.findall(r"^\| (.*?) \| (.*) \|$", tables, re.MULTILINE)
            if "`" in cells[0]]
    given = [f"{name}={value}" for keys, _ in rows for name, value in keys]
    done = run("recipe", QUICKSTART, *given)
    expect("more than 90 keys", len(given) > 90 and done.returncode == 2, done)
    for keys, right in rows:
        wanted = re.findall(r"`([a-z]+\.[a-z_0-9]+|tools/\S+)", right)
        for i, (name, value) in enumerate(keys):
            refused = re.search(rf"unknown key {re.escape(name)}([:;].*)|{name} is a section(: .*)", done.stderr)
            told = refused[1] or refused[2] if refused else run("help", name).stdout
            one = [wanted[i]] if len(wanted) == len(keys) else wanted
            one += [f"{section}.{name.rpartition('.')[2]}" for section in re.findall(r"the same in `(\w+)`", right)]
            truth = any(key in told for key in one) if one else refused and told.startswith(": ")
            expect(f"{name}={value}: names {one or 'a reason'}: {told}", truth, done)
    # In a section of its own, with dashes, and in a file.
    check("in a section", run("recipe", QUICKSTART, "train.use_torch_fsdp2=1"), 2,
          err="unknown key train.use_torch_fsdp2; use parallel.zero_stage=3")
    check("with dashes", run("recipe", QUICKSTART, "--use-megatron-fsdp"), 2, err="use parallel.zero_stage=3")
    # A section is not the answer to an unknown key with a value.
    for name in ["parallels", "datas", "checkpoint_every", "trainer", "tokenizers", "profile_all"]:
        done = run("recipe", QUICKSTART, f"{name}=1")
        near = re.search(r"did you mean (\S+)\?", done.stderr)
        expect(f"{name}: a section", done.returncode == 2 and (not near or "." in near[1]), done)


def test_version():
    for arguments in [["--version"], ["version"]]:
        done = run(*arguments)
        lines = done.stdout.splitlines()
        first = rf"cuboid {re.escape(VERSION)}( \(commit [0-9a-f]{{10,}}\+?\))?"
        expect(arguments[0], done.returncode == 0 and re.fullmatch(first, lines[0]) and
               [line.split()[0] for line in lines[1:]] == ["mpi", "blas", "cuda"] and
               lines[2].split()[1] in ("oneDNN", "OpenBLAS"), done)


def test_typing_mistakes():
    check("trian", run("trian"), 2, err="unknown command trian (did you mean train?)")
    for key, words in [("lr", "optimizer.lr: number above 0; required, such as 3e-4"), ("assume", "assume.attention: "),
                       ("memory.recompute_granularity", "memory.recompute_granularity: none, selective, full; "),
                       ("zero", "parallel.zero_stage: integer from 0 to 3"),
                       ("recompute", "recompute is not a key; use memory.recompute_granularity\n"),
                       ("partition", "cluster.partition: ")]:
        check(f"help {key}", run("help", key), 0, out=words)
    check("help shedule", run("help", "shedule"), 2, err="unknown command shedule (did you mean schedule?)")
    check("a dataset of a tokenizer that the recipe does not name",
          run("recipe", os.path.join(ROOT, "recipes", "base", "llama3-8b.yaml")), 0,
          err="-o data/llama3/web and the model's tokenizer (--tokenizer), since tokenizer.tokenizer_type is none\n")
    check("Train", run("Train", QUICKSTART), 2, err="(did you mean train?)")
    check("xyzzy", run("xyzzy"), 2, err="unknown command xyzzy; run cuboid --help")
    check("only a recipe", run("a.yaml"), 2, err="cuboid train a.yaml")
    check("data prepair", run("data", "prepair"), 2, err="(did you mean prepare?)")
    check("train --steps", run("train", "--steps", "3"), 2, err="unknown option --steps")
    check("verify --stepps=3", run("verify", QUICKSTART, "--stepps=3"), 2, err="did you mean --steps?")
    check("profile fit --bse", run("profile", "fit", "--bse"), 2, err="profile fit: unknown option --bse")
    check("an empty recipe", run("train", ""), 2, err="no recipe given")
    short = run("recipe", QUICKSTART, "--changed", "lr=0.5")
    check("only what is given", short, 0, out="  lr: 0.5  ")
    check("defaults", run("recipe", QUICKSTART), 0, out="# default")
    if "# default" in short.stdout or short.stdout.count("\n") > 80:
        check("only what is given", short, 0, out="no defaults")
    check("an empty override", run("recipe", QUICKSTART, ""), 2, err="an empty argument is not key=value")
    for name in "gpt2", "GPT2BPE":
        check(f"{name} without files", run("data", "prepare", "a", "-o", "b", "--tokenizer", name), 2,
             err=f"--tokenizer {name} needs two files; use --vocab-file vocab.json --merge-file merges.txt")
    check("verify on dry", run("verify", QUICKSTART, "cluster.device=dry"), 2, err="to compare; use cluster.device=cpu")
    check("verify of a format over nothing but tp",
         run("verify", QUICKSTART, "precision.matmul_format=mxfp8", "dp=1", "pp=1"), 2,
         err="cannot verify tp=2 with mxfp8: last-bit differences")
    once = run("verify", QUICKSTART, "tp=1", "parallel.sequence_parallel=false", "memory.recompute_num_layers=2",
               "data.train=nothing", "--steps=1")
    expect("verify warns once", once.stderr.count("has no effect") == 1, once)
    check("verify --steps=0", run("verify", QUICKSTART, "--steps=0"), 2, err="use an integer from 1 to 1000")


def failing_mpirun(folder):
    """The environment of an mpirun that writes the messages of its ranks into folder/messages, and fails."""
    real, path = shutil.which("mpirun"), os.path.join(folder, "mpirun")
    with open(path, "w", encoding="ascii") as file:
        file.write(f"#!/bin/sh\n{real} \"$@\" >{folder}/out && grep p2p {folder}/out >{folder}/messages\n"
                   "echo -----\necho mpirun stops at once\nexit 1\n")
    os.chmod(path, 0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}", "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def test_doctor():
    with tempfile.TemporaryDirectory() as folder:
        profile = os.path.join(folder, "profile.yaml")
        has_mpi = "mpi    yes" in run("--version").stdout
        done = run("doctor", "--profile", profile, "--quick", env={**os.environ, **failing_mpirun(folder)})
        failed = "mpirun -n 2 fails: mpirun stops at once\n" in done.stdout
        measured = os.path.exists(os.path.join(folder, "messages"))
        expect("doctor and a failing mpirun", failed == has_mpi and measured == has_mpi, done)
        reported = {line.split()[0] for line in done.stdout.splitlines() if not line.startswith(" ")}
        wanted = {"devices", "transports", "cpu", "launcher", "gpu", "measured", "gemm", "memory", "link", "profile"}
        expect("doctor", done.returncode == 0 and wanted <= reported, done)
        gpus = [line for line in done.stdout.splitlines() if line.startswith("gpu ")]
        expect("doctor's GPUs", gpus and all(line.startswith("gpu         none (") and line.endswith(")") and
                                             ";" not in line and "cluster.device" not in line
                                             for line in gpus if " none" in line), done)
        expect("doctor's types", "gemm        tf32 n/a (GPU only)" in done.stdout, done)
        done = run("profile", "check", profile)
        rows = {line.split()[0]: line.split()[1] for line in done.stdout.splitlines()}
        expect("doctor's profile", done.returncode == 0 and rows["device.is_cpu"] == "true" and
               1e8 < float(rows["device.peak_flops_fp32"]) < 1e18 and
               1e7 < float(rows["device.memory_bandwidth"]) < 1e15 and 0 < float(rows["node.link_latency_s"]) < 1, done)
        with open(profile, encoding="utf-8") as file:
            text = file.read()
        types = {dtype for dtype in ["fp32", "tf32", "bf16", "fp16"]
                 if re.search(f"k: [0-9]+, dtype: {dtype}, (threads: 1, )?flops: ", text)}
        expect("the types of its matmuls", types == {"fp32", "bf16", "fp16"}, done)
        for table in ["memory", "attention_forward", "attention_backward", "op", "all_reduce", "all_gather",
                      "reduce_scatter", "p2p"]:
            expect(f"its table {table}", int(rows[f"measured.{table}"]) >= 4, done)
        check("a recipe with it", run("recipe", QUICKSTART, f"cluster.profile={profile}"), 0,
              out=f"derived from cluster.profile {profile}")
        os.mkfifo(os.path.join(folder, "pipe"))
        for name, why in [("no/profile.yaml", "there is no such folder"), ("pipe", "not a file; use the name of")]:
            path = os.path.join(folder, name)
            done = run("doctor", "--profile", path)
            check(f"doctor into {name}", done, 2, err=f'--profile "{path}": {why}')
            expect("nothing is measured", done.stdout == "", done)
        expect("a pipe remains a pipe", stat.S_ISFIFO(os.stat(path).st_mode), done)
    check("doctor and a word", run("doctor", "gpu"), 2, err="gpu")


def test_doctor_check():
    """A line for each check; the exit status; a recipe that needs more memory than there is."""
    names = ["device", "memory", "tmpfs", "matmul", "message"]
    large = [QUICKSTART, "model.hidden_size=65536", "model.ffn_hidden_size=262144", "model.num_attention_heads=64",
             "model.num_layers=96"]
    for words, failed in [([], []), ([QUICKSTART], []), (large, ["memory"])]:
        done = run("doctor", "--check", *words, "--seconds=0", env={"CUBOID_NODE": "n7"})
        rows = [line.split() for line in done.stdout.splitlines()]
        expect("its checks", [row[2] for row in rows[:-1]] == names and
               all(row[:2] == ["check", "n7:"] for row in rows) and
               [row[2] for row in rows[:-1] if row[3].startswith("FAILED")] == failed and
               done.stdout.endswith(f"check n7: done, {len(failed)} of 5 failed\n"), done)
        expect("its status", done.returncode == len(failed), done)
        done = run("doctor", "--check", *words, "--seconds=0", "--report")
        report = json.loads(done.stdout)
        expect("its report", done.returncode == 0 and report["node"] and
               [line.split()[:2] for line in report["failed"]] == [[name, "FAILED:"] for name in failed], done)
    # Under a launcher the first process of each node checks it.
    slurm = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "8", "SLURMD_NODENAME": "n2"}
    done = run("doctor", "--check", "--seconds=0", env={**slurm, "SLURM_LOCALID": "1"})
    expect("another process of the node", done.returncode == 0 and not done.stdout and not done.stderr, done)
    done = run("doctor", "--check", "--seconds=0", env={**slurm, "SLURM_LOCALID": "0"})
    expect("the first one, in one line", done.returncode == 0 and
           re.fullmatch(r"check n2: done, 0 of 5 failed \([^\n]*; /dev/shm: [^\n]*\)\n", done.stdout), done)
    done = run("doctor", "--check", *large, "--seconds=0", env={**slurm, "SLURM_LOCALID": "0"})
    expect("and one for a failure", done.returncode == 1 and
           re.fullmatch(r"check n2: memory FAILED: [^\n]*\ncheck n2: done, 1 of 5 failed \([^\n]*\)\n", done.stdout),
           done)
    for words, line in [(["--report"], "add --check"), (["--check", "--profile", "a"], "use one of them"),
                        (["--check", "nothing.yaml"], "nothing.yaml"), (["--check", "--seconds=-1"], "--seconds")]:
        check(f"doctor {words}", run("doctor", *words), 2, err=line)


def test_profile():
    listed = run("profile", "--list")
    check("profile --list", listed, 0, out="dgx-a100-80 ")
    with tempfile.TemporaryDirectory() as folder:  # shipped profiles are found from any directory
        done = run("profile", "check", "selene", cwd=folder)
        check("a shipped profile", done, 0, out="base dgx-a100-80:")
        with open(os.path.join(folder, "mine.yaml"), "w", encoding="utf-8") as file:
            file.write("base: dgx-h100\nmodel: {launch_s: 2}\nnic: 3\n")
        done = run("profile", "check", "mine.yaml", cwd=folder)
        check("a wrong profile", done, 2, err="mine.yaml:2: model.launch_s 2 is out of range; expected a number from 0")
        check("both problems", done, 2, err="mine.yaml:3: unknown key nic")
        expect("no table of it", done.stdout == "", done)
    check("an unknown profile", run("profile", "check", "dgx-h10"), 2, err="did you mean dgx-h100?")
    for words in [], ["check"], ["--list", "--reference"], ["--list", "x"], ["chek", "selene"]:
        check(f"profile {words}", run("profile", *words), 2, err="use cuboid profile check FILE|NAME")


def test_numbers():
    """A whole number is written as one, however large."""
    done = run("schedule", "1f1b", "-p", "1", "-m", "500000")
    check("a long schedule", done, 0, out="\nstep time 1500000, bubble 0 on rank 0")
    check("--seed", run("generate", "x", "--prompt", "x", "--seed", "-1"), 2,
         err="use an integer from 0 to 1000000000000000000")


def test_output_errors():
    """A full disk, and a standard output that is closed: one line reports it, and the status is 1."""
    dry = ["train", QUICKSTART, "cluster.device=dry", "model.num_layers=2", "tp=1", "pp=1", "dp=1",
           "parallel.sequence_parallel=false"]

    def errors(done):  # a source tree without the quickstart's data gets a warning, too
        return [line for line in done.stderr.splitlines() if not line.startswith("warning: ")]

    for arguments in [["--help"], ["--version"], ["help", "data"], ["recipe", QUICKSTART], ["recipe", "--reference"],
                      ["schedule", "--list"], ["schedule", "1f1b", "-p", "4", "-m", "64"], dry]:
        with open("/dev/full", "w", encoding="ascii") as full:
            done = run(*arguments, stdout=full)
        line = errors(done)
        expect(" ".join(arguments) + " > /dev/full", done.returncode == 1 and len(line) == 1 and
               line[0].startswith("cuboid: ") and "standard output cannot be written" in line[0], done)
        done = run(*arguments, stdout=None, preexec_fn=lambda: os.close(1))
        expect(" ".join(arguments) + " >&-", done.returncode == 1 and len(errors(done)) == 1, done)
    # Other exit statuses are unchanged.
    with open("/dev/full", "w", encoding="ascii") as full:
        check("an error > /dev/full", run("recipe", "nothing.yaml", stdout=full), 2, err="nothing.yaml")


def test_closed_output_is_not_reused():
    """If standard output is closed, its descriptor is free: a dataset file that got it would contain the summary."""
    with tempfile.TemporaryDirectory() as folder:
        text, prefix = os.path.join(folder, "a.txt"), os.path.join(folder, "out")
        with open(text, "w", encoding="ascii") as file:
            file.write("abc")
        done = run("data", "prepare", text, "-o", prefix, stdout=None, preexec_fn=lambda: os.close(1))
        check("data prepare >&-", done, 1, err="standard output cannot be written")
        check("its dataset", run("data", "inspect", prefix), 0, out="tokens     4\n")


def test_model_larger_than_the_machine():
    # 25 T parameters: rejected before any allocation; a dry run does not depend on the machine's memory.
    big = ["model.hidden_size=49152", "model.num_attention_heads=384", "model.num_layers=5000"]
    with tempfile.TemporaryDirectory() as folder:
        run("data", "prepare", QUICKSTART, "-o", os.path.join(folder, "text"))
        big.append(f"data.train={folder}/text")
        done = run("train", QUICKSTART, *big, "logging.run_dir=" + os.path.join(folder, "run"))
        check("a model larger than the machine", done, 2, err="this machine has")
        expect("no files remain", not os.path.exists(os.path.join(folder, "run")), done)


def test_options_of_other_programs():
    for words, hint in [(["--lr", "3"], "--lr: keys have no dashes; use optimizer.lr=3"),
                        (["--lr=3"], "--lr=3: keys have no dashes; use optimizer.lr=3"),
                        (["--train-iters", "5"], "--train-iters: keys have no dashes; use train.train_iters=5"),
                        (["tp", "2"], "tp is not key=value; use tp=2"),
                        (["lr"], "lr is not key=value; use optimizer.lr=VALUE"),
                        (["data.train="], "data.train is required, such as data/quickstart")]:
        done = run("recipe", QUICKSTART, *words)
        expect(f"{words}", (done.returncode, done.stderr) == (2, f"error: command line: {hint}\n"), done)
    check("float16", run("recipe", QUICKSTART, "precision.params_dtype=float16"), 2, err="fp16")


def test_recipe_resolves_threads():
    def use_one_cpu():
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    line = "\n# cluster.threads_per_rank 0: 1 thread per rank if all ranks run here (CPUs: 1, ranks: 3)\n"
    layout = ["tp=1", "pp=3", "dp=1", "parallel.sequence_parallel=false"]
    check("threads of three ranks on one CPU", run("recipe", QUICKSTART, *layout, preexec_fn=use_one_cpu), 0, out=line)
    done = run("recipe", QUICKSTART, "cluster.threads_per_rank=3")
    expect("threads that are given", done.returncode == 0 and "per rank if" not in done.stdout, done)


def test_recipe_warns_of_missing_files():
    with tempfile.TemporaryDirectory() as folder:
        words = ["recipe", QUICKSTART, f"data.train={folder}/none"]
        done = run(*words)
        check("recipe without its data", done, 0, out="train_iters:",
             err=f"warning: command line: data.train: {folder}/none.idx: No such file or directory; make the dataset "
                 f"with cuboid data prepare TEXT -o {folder}/none\n")
        for ending in (".idx", ".bin"):
            with open(f"{folder}/none{ending}", "w", encoding="utf-8"):
                pass
        check("recipe with its data", run(*words), 0, out="train_iters:")
        expect("no warning", "none.idx" not in run(*words).stderr, done)


def test_verify_has_its_own_step_count():
    with tempfile.TemporaryDirectory() as folder:
        run("data", "prepare", os.path.join(ROOT, "README.md"), "-o", f"{folder}/text")
        words = tiny(folder, "run", "tp=2")[1:]
        done = run("verify", *words, "--steps", "1")
        check("verify with train.train_iters", done, 0,
              out="PASS: all differences are within rounding; an error of ",
             err="warning: command line: train.train_iters has no effect on verify; set --steps N\n")
        done = run("verify", *(word for word in words if "iters" not in word), "--steps", "1")
        expect("no warning", done.returncode == 0 and "train_iters" not in done.stderr, done)


def test_unusable_input():
    """Status 2 and one line, whether a file is missing, truncated or of another kind. A rank that fails does not free
    its memory, as the process is about to exit: leak detection is disabled."""
    environment = {**os.environ, "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0"}
    with tempfile.TemporaryDirectory() as folder:
        def train(name, data, *keys):
            return run(*tiny(folder, name, f"data.train={folder}/{data}", *keys), env=environment)

        def refused(what, done, err):
            expect(what, done.returncode == 2 and err in done.stderr and done.stderr.count("\n") == 1, done)

        run("data", "prepare", os.path.join(ROOT, "README.md"), "-o", f"{folder}/text")
        check("a run", train("run", "text"), 0)
        checkpoint = f"{folder}/run/checkpoints/step-00000002"
        os.mkdir(f"{folder}/empty")
        refused("the folder of a run", train("other", "text", f"checkpoint.load={folder}/run"),
                f"checkpoint.load: {folder}/run: not a checkpoint: contains neither manifest.json nor a complete "
                f"step-... directory; use {folder}/run/checkpoints")
        done = train("other", "text", f"checkpoint.load={folder}/empty")
        refused("a folder without a checkpoint", done, f"checkpoint.load: {folder}/empty: not a checkpoint: contains "
                "neither manifest.json nor a complete step-... directory; use auto, none or a checkpoint directory")
        expect("nothing was started", done.stdout == "" and not os.path.exists(f"{folder}/other"), done)
        done = train("other", "text", f"checkpoint.load={checkpoint}", "model.ffn_hidden_size=24")
        refused("a checkpoint of another model", done, "model.ffn_hidden_size 16, but the recipe has 24; "
                "set model.ffn_hidden_size=16, or another logging.run_dir or checkpoint.load")
        os.truncate(f"{checkpoint}/rank-00000.safetensors", 100)
        refused("a truncated checkpoint", train("another", "text", f"checkpoint.load={checkpoint}"),
                "rank-00000.safeten")
        os.truncate(f"{folder}/text.bin", 100)
        refused("a truncated dataset", train("third", "text"), "text.bin")
        refused("no dataset", train("fourth", "nothing"), "nothing.idx")
        os.mkfifo(f"{folder}/pipe.idx")
        os.link(f"{folder}/text.bin", f"{folder}/pipe.bin")
        refused("a pipe without a writer", train("fifth", "pipe"), "pipe.idx: not a regular file")


def begin(arguments, metrics, **options):
    """A run that has reached its file of metrics, or has ended."""
    child = subprocess.Popen([CUBOID, *arguments], stderr=subprocess.PIPE, text=True, **options)
    while child.poll() is None and not os.path.exists(metrics):
        time.sleep(0.02)
    return child


def end(child):
    out, err = child.communicate()
    return subprocess.CompletedProcess(child.args, child.returncode, out, err)


def saved(folder):
    return sorted(name for name in os.listdir(f"{folder}/checkpoints") if name.startswith("step-"))


def test_an_evaluation_is_interrupted():
    """It takes years, and there is no checkpoint before it ends: the folder is in use nevertheless."""
    with tempfile.TemporaryDirectory() as folder:
        run("data", "prepare", os.path.join(ROOT, "README.md"), "-o", f"{folder}/text", "--documents", "blank-line")
        for ranks in ["dp=1", "dp=2"]:
            words = tiny(folder, ranks, ranks, "data.split=80,20,0", "train.eval_interval=1",
                         "train.eval_iters=1000000000000")
            child = begin(words, f"{folder}/{ranks}/metrics.jsonl", stdout=subprocess.DEVNULL)
            check("a second run", run(*words), 2,
                  err=f"another run is writing in {folder}/{ranks}: pid {child.pid} on ")
            child.send_signal(signal.SIGTERM)
            done = end(child)
            check("SIGTERM in an evaluation", done, 75, err="stop requested: saved step 1")
            with open(f"{folder}/{ranks}/metrics.jsonl", encoding="ascii") as lines:
                expect("its loss", [("loss" in line, "valid" in line) for line in lines] == [(True, False)], done)
            expect("its step", saved(f"{folder}/{ranks}") == ["step-00000001"], done)


def test_preparing_a_pipe_is_interrupted():
    """A pipe without a writer: SIGTERM ends the wait, and nothing is left."""
    with tempfile.TemporaryDirectory() as folder:
        os.mkfifo(f"{folder}/pipe")
        child = subprocess.Popen([CUBOID, "data", "prepare", f"{folder}/pipe", "-o", f"{folder}/text"],
                                 stderr=subprocess.PIPE, text=True)
        while child.poll() is None and len(os.listdir(folder)) == 1:
            time.sleep(0.02)  # until it writes the dataset
        child.send_signal(signal.SIGTERM)
        try:
            err = child.communicate(timeout=30)[1]
        except subprocess.TimeoutExpired:
            child.kill()
            err = child.communicate()[1]
        done = subprocess.CompletedProcess(child.args, child.returncode, "", err)
        check("SIGTERM while a pipe is empty", done, 1, err="stopped by Terminated; nothing was kept")
        expect("what is left", os.listdir(folder) == ["pipe"], done)


def test_closed_pipe():
    """train | head -1: training continues to its last step, saves, and exits with 1 as with any output error."""
    with tempfile.TemporaryDirectory() as folder:
        run("data", "prepare", os.path.join(ROOT, "README.md"), "-o", f"{folder}/text")
        reads, writes = os.pipe()
        os.close(reads)
        done = run(*tiny(folder, "run"), stdout=writes)
        os.close(writes)
        check("train | true", done, 1, err="standard output cannot be written")
        expect("its last step", saved(f"{folder}/run") == ["step-00000002"], done)


def test_full_disk():
    """A file size limit simulates a full disk: of metrics, then of checkpoints."""
    with tempfile.TemporaryDirectory() as folder:
        run("data", "prepare", os.path.join(ROOT, "README.md"), "-o", f"{folder}/text")
        done = run(*tiny(folder, "run", "dp=2", "train.train_iters=1000"),
                   stdout=subprocess.DEVNULL, preexec_fn=no_file_beyond(200000))
        check("metrics on a full disk", done, 1, err=f"logging.run_dir: {folder}/run/metrics.jsonl: ")
        steps = saved(f"{folder}/run")
        expect("the step is saved", len(steps) == 1 and 10 < int(steps[0][5:]) < 1000 and
               f"; saved step {int(steps[0][5:])} in {folder}/run/checkpoints" in done.stderr, done)
        done = run(*tiny(folder, "run", "dp=2", "train.train_iters=" + str(int(steps[0][5:]) + 1)))
        check("it resumes", done, 0, out="resumes from")
        done = run(*tiny(folder, "full", "checkpoint.keep_last=3"), stdout=subprocess.DEVNULL,
                   preexec_fn=no_file_beyond(20000))
        check("checkpoints on a full disk", done, 1, err=f"checkpoint.save: {folder}/full/checkpoints/step-")
        expect("the fix", "; checkpoint.keep_last=3 needs space for one more checkpoint" in done.stderr, done)


def test_prompt():
    """--prompt - is standard input, byte for byte."""
    with tempfile.TemporaryDirectory() as folder:
        run("data", "prepare", os.path.join(ROOT, "README.md"), "-o", f"{folder}/text")
        check("a run", run(*tiny(folder, "run")), 0)
        generate = ["generate", f"{folder}/run", "--tokens", "8", "--no-stop", "--prompt"]
        for prompt in ["Ocean", "a\nb\n", "-x", ""]:
            given, read = run(*generate[:-1], "--prompt=" + prompt), run(*generate, "-", input=prompt)
            expect(f"--prompt - of {prompt!r}", (read.returncode, read.stdout) == (0, given.stdout), read)
        done = run(*generate, "-", stdin=None, preexec_fn=lambda: os.close(0))
        check("--prompt - without a standard input", done, 2, err="standard input cannot be read")


def test_memory_is_exhausted():
    """Without enough address space a run ends with a line and a status, never by a signal, at whatever point it is:
    where libraries are loaded, threads start, code is generated, or the model is trained. (A sanitizer needs more than
    any of these limits, and ends by itself.)"""
    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20, megabytes << 20))
    reported = 0
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/text.txt", "w") as file:
            file.write("one word after another, " * 40)
        run("data", "prepare", f"{folder}/text.txt", "-o", f"{folder}/text")
        for megabytes in (40, 56, 64, 72, 76, 80, 84, 86, 88, 92, 96, 100, 104, 112, 120, 136):
            done = run(*tiny(folder, f"m{megabytes}", "tp=1" if megabytes % 8 else "tp=2"), preexec_fn=limit)
            # A shell reports a signal as 128 and its number; 127 is the loader's.
            expect(f"train in {megabytes} MiB",
                   done.returncode == 0 or (0 < done.returncode < 128 and done.stderr), done)
            reported += done.returncode == 1 and ("memory" in done.stderr or "thread" in done.stderr)
            if "no thread to receive signals" in done.stderr:  # of pthread_create(); errno is another
                check(f"no thread in {megabytes} MiB", done, 1, err=": Resource temporarily unavailable\n")
            sanitizer = "Sanitizer" in done.stderr
    expect(f"{reported} limits are reported as too little memory", sanitizer or reported >= 4, done)


def test_dry_run():
    """The cost of a dry run is linear in the layers: with linear look-ups, eight times the layers took fifty
    times as long. In processor time, of which other programs take nothing."""
    def seconds(layers):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = run("train", QUICKSTART, "cluster.device=dry", f"model.num_layers={layers}", "tp=1", "pp=1", "dp=2",
                   "parallel.sequence_parallel=false")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        check(f"{layers} layers", done, 0, out="One rank of each stage is shown")
        return after.ru_utime - before.ru_utime, done

    few, _ = seconds(1000)
    many, done = seconds(8000)
    expect(f"8000 layers in {many / few:.1f} times the time of 1000", many < 24 * few, done)


for test in [test_help, test_keys_of_other_trainers, test_version, test_doctor, test_doctor_check,
             test_profile, test_typing_mistakes, test_numbers, test_output_errors,
             test_closed_output_is_not_reused, test_model_larger_than_the_machine, test_unusable_input,
             test_an_evaluation_is_interrupted, test_preparing_a_pipe_is_interrupted, test_closed_pipe,
             test_full_disk, test_prompt, test_recipe_warns_of_missing_files,
             test_recipe_resolves_threads, test_options_of_other_programs,
             test_verify_has_its_own_step_count, test_memory_is_exhausted, test_dry_run]:
    test()
print(f"{len(failures)} failures")
sys.exit(1 if failures else 0)
