#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""cuboid submit, with programs that stand for Slurm's: the script, what it does after each exit status, refusals.

    test_submit.py CUBOID"""
import json
import os
import re
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from fixtures import write_dataset  # noqa: E402

CUBOID = os.path.abspath(sys.argv[1])
RECIPE = """\
model: {num_layers: 2, hidden_size: 16, num_attention_heads: 2, seq_length: 8}
train: {global_batch_size: 4, train_iters: 4}
optimizer: {lr: 1e-3, lr_decay_style: constant}
data: {train: text, split: "1"}
parallel: {data_parallel_size: 4}
"""
failures = []


def program(name, text):
    with open(f"bin/{name}", "w", encoding="utf-8") as file:
        file.write("#!/bin/bash\n" + text)
    os.chmod(f"bin/{name}", 0o755)


def run(*words, **more):
    environment = {**os.environ, "PATH": os.path.abspath("bin") + ":" + os.environ["PATH"], **more}
    return subprocess.run(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          check=False, timeout=60)


def submit(*words):
    return run(CUBOID, "submit", "a.yaml", *words)


def expect(what, truth, done):
    if not truth:
        failures.append(what)
        print(f"{what}: {done!r:.3000}")


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def directives(script):
    return [line[len("#SBATCH "):] for line in script.split("\n") if line.startswith("#SBATCH ")]


def test_script():
    done = submit("cluster.nodes=2", "cluster.time=1-12", "cluster.partition=long", "cluster.account=lab",
                  "cluster.threads_per_rank=3", "cluster.sbatch=[--exclusive, echo 'before it']", "name=it's",
                  "logging.run_dir=runs/a b%", "--print", "--after", "afterok:17")
    found = directives(done.stdout)
    for line in ("--nodes=2", "--ntasks-per-node=2", "--cpus-per-task=3", "--time=1-12", "--partition=long",
                 "--account=lab", "--requeue", "--open-mode=append", "--exclusive", "--dependency=afterok:17",
                 '--output="runs/a b%%/slurm-%j.log"'):
        expect(line, done.returncode == 0 and line in found, done)
    signals = [line for line in found if line.startswith("--signal=TERM@")]
    expect("a lead of 60 s, two steps and two saves", signals == ["--signal=TERM@130"], done)
    syntax = subprocess.run(["bash", "-n"], input=done.stdout, text=True, check=False)
    expect("a shell accepts it", syntax.returncode == 0, done)
    expect("a word as sbatch reads it", '--job-name="it\'s"' in found, found)
    done = submit("cluster.nodes=2", 'name="a \\"b\\\\c"', "logging.run_dir=a", "--print")
    expect("quotes", '--job-name="a \\"b\\\\c"' in directives(done.stdout), done)
    done = submit("cluster.nodes=2", "cluster.threads_per_rank=2", "--print", "--restarts", "7",
                  "resilience.elastic=true")
    expect("a supervisor", done.stdout.count(" --restarts 7 \\\n    --launch 'srun ") == 1 and "--no-kill" in
           directives(done.stdout) and "-N {nodes} -n {ranks} --cpus-per-task=2' || status=$?" in done.stdout, done)
    has_mpi = re.search(r"^mpi +yes", run(CUBOID, "version").stdout, re.MULTILINE)
    expect("the launcher of the build", ("'srun --mpi=pmix --kill" if has_mpi else "'srun --kill") in done.stdout, done)
    done = submit("cluster.nodes=2", "resilience.exit_signal=[SIGUSR2]", "--print", "--launch", "start {nodes} {ranks}")
    expect("another signal", any(line.startswith("--signal=USR2@") for line in directives(done.stdout)), done)
    expect("another launcher", "\nstart 2 4 " in done.stdout and "--after" not in done.stdout, done)
    done = submit("cluster.nodes=2", "--print", "--launch", "srun -N {nodes} -n {ranks} apptainer exec --nv cuboid.sif")
    expect("a container", f"\nsrun -N 2 -n 4 apptainer exec --nv cuboid.sif \\\n    {CUBOID} train a.yaml " in
           done.stdout, done)
    # A model of 175 B parameters on two nodes writes 2.1 TB at 0.4 GB/s, and twice that is the lead: about 3 h.
    done = submit("cluster.nodes=2", "model.num_layers=96", "model.hidden_size=12288", "model.num_attention_heads=96",
                  "model.seq_length=2048", "model.vocab_size=51200", "tokenizer.tokenizer_type=none", "--print")
    signal = next((line for line in directives(done.stdout) if line.startswith("--signal")), "--signal=TERM@0")
    expect("a large model has a long lead", abs(int(signal.split("@")[1]) / 10500 - 1) < 0.05, done)


def test_script_of_a_started_run():
    """The lead follows the measured step and save."""
    done = run(CUBOID, "train", "a.yaml", "logging.run_dir=started")
    expect("trains", done.returncode == 0, done)
    done = submit("cluster.nodes=1", "logging.run_dir=started", "--print")
    expect("measured", "--signal=TERM@70" in directives(done.stdout) and done.stdout.count("(measured)") == 2, done)


def test_submits():
    program("sbatch", 'cat >"$HERE/script"; echo "$@" >"$HERE/arguments"; echo "123;cluster"\n')
    done = run(CUBOID, "submit", "a.yaml", "cluster.nodes=1", HERE=os.getcwd())
    expect("the job's number", done.returncode == 0 and done.stdout == "123\n" and read("arguments") == "--parsable\n",
           done)
    expect("the folder of Slurm's log", os.path.isdir("runs/a"), done)
    # The script, with programs that stand for srun and scontrol.
    program("srun", 'printf "%s\\n" "$@" >"$HERE/srun"; exit "$STATUS"\n')
    program("scontrol", 'echo "$@" >>"$HERE/scontrol"; [ "$1" = requeue ] || echo "JobId=9 JobState=$STATE"\n')
    done = run("bash", "script", HERE=os.getcwd(), STATUS="0", STATE="RUNNING", SLURM_JOB_ID="9")
    expect("srun returned 0, but nothing is saved", done.returncode == 75 and "requeue 9\n" in read("scontrol"), done)
    os.makedirs("runs/a/checkpoints/step-00000004")
    with open("runs/a/checkpoints/step-00000004/manifest.json", "w", encoding="utf-8"):
        pass
    for status, state, restarts, requeued, ended in [
            (0, "RUNNING", "", False, 0), (1, "RUNNING", "", False, 1), (75, "RUNNING", "", True, 75),
            (75, "RUNNING", "99", True, 75), (75, "RUNNING", "100", False, 75), (75, "COMPLETING", "", False, 75),
            (137, "RUNNING", "2", False, 137)]:
        if os.path.exists("scontrol"):
            os.remove("scontrol")
        more = {"SLURM_RESTART_COUNT": restarts} if restarts else {}
        done = run("bash", "script", HERE=os.getcwd(), STATUS=str(status), STATE=state, SLURM_JOB_ID="9", **more)
        what = f"status {status}, {state}, {restarts or 0} requeues"
        expect(what, done.returncode == ended, done)
        expect(what, requeued == (os.path.exists("scontrol") and "requeue 9\n" in read("scontrol")), done)
        expect(what, (restarts == "100") == ("100 of 100 requeues" in done.stderr), done)
    program("scontrol", '[ "$1" != requeue ] || exit 1; echo "JobId=9 JobState=RUNNING"\n')
    done = run("bash", "script", HERE=os.getcwd(), STATUS="75", SLURM_JOB_ID="9")
    expect("no requeue", done.returncode == 75 and "not requeued: scontrol requeue failed" in done.stderr and
           "requeues" not in done.stderr, done)
    program("scontrol", 'echo "$@" >>"$HERE/scontrol"; [ "$1" = requeue ] || echo "JobId=9 JobState=$STATE"\n')
    words = read("srun").split("\n")
    expect("trains the same recipe", words[-5:-1] == [CUBOID, "train", "a.yaml", "cluster.nodes=1"], words)
    # A signal to the script: it waits for the ranks.
    program("srun", 'kill -TERM "$PPID"; sleep 0.3; exit 75\n')
    done = run("bash", "script", HERE=os.getcwd(), STATE="RUNNING", SLURM_JOB_ID="9")
    expect("a signal to the script", done.returncode == 75 and "requeue 9\n" in read("scontrol"), done)


def test_refusals():
    one = "cluster.nodes=1"
    for words, status, line in [
            (["cluster.nodes=3"], 2, "cluster.nodes 3 does not divide the layout's 4 ranks; use cluster.nodes=2 or "
             "cluster.nodes=4"),
            (["cluster.gpus_per_node=3"], 2, "cluster.gpus_per_node 3 does not divide the layout's 4 ranks; use "
             "cluster.gpus_per_node=2 or cluster.gpus_per_node=4"),
            (["cluster.nodes=2", "cluster.gpus_per_node=3", "train.global_batch_size=12"], 2,
             "use parallel.data_parallel_size=6"),
            ([], 2, "cluster.nodes is not set, and the layout has 4 ranks; use cluster.nodes=1"),
            ([one, "checkpoint.save=none"], 2, "checkpoint.save is none: a requeued job would start from step 1; use "
             "checkpoint.save=auto"),
            ([one, "resilience.exit_signal=[]"], 2, "use resilience.exit_signal=[SIGTERM]"),
            ([one, "cluster.time=2"], 2, "cluster.time 2 is not longer than the 130 s that saving takes; use "
             "cluster.time=5 or more"),
            ([one, "cluster.time=soon"], 2, "cluster.time soon is not a time limit of Slurm"),
            ([one, "cluster.device=dry"], 2, "use cluster.device=cpu"),
            ([one, "resilience.elastic=true"], 2, "use submit --restarts 100, or resilience.elastic=false"),
            ([one, 'name="a\\nb"', "logging.run_dir=a"], 2, "name has a character that cannot be printed"),
            ([one, 'cluster.account="a\\nb"'], 2, "cluster.account has a character that cannot be printed"),
            ([one, "data.train=nothing"], 2, "nothing"),
            (["cluster.gpus_per_node=4"], 2, "cluster.gpus_per_node 4: a job for GPUs, but cluster.device is cpu; use "
             "cluster.device=cuda, or remove cluster.gpus_per_node"),
            ([one, "cluster.sbatch=[--gres=gpu:4]"], 2, "cluster.sbatch [\"--gres=gpu:4\"]: a job for GPUs"),
            ([one, "cluster.profile=dgx-h100", "cluster.gpus_per_node=4"], 2, "cluster.profile dgx-h100: a job for "
             "GPUs"),
            ([one, "--after", "x"], 2, "--after x is not a job"),
            ([one, "--launch", " "], 2, "--launch is empty; use --launch 'srun "),
            ([one, "--after", "_1"], 2, "--after _1 is not a job"),
    ]:
        done = submit(*words)
        lines = done.stderr.strip().split("\n")
        expect(f"{words}", done.returncode == status and len(lines) == 1 and line in lines[0] and not done.stdout, done)
    done = run(CUBOID, "submit", "a.yaml", one, PATH="bin")
    expect("no Slurm", done.returncode == 1 and done.stderr.startswith("cuboid: sbatch cannot be started: ") and
           done.stderr.endswith("; is Slurm installed here? --print prints the script\n"), done)


def test_cpus_of_a_rank():
    """On GPUs, Slurm's default of one CPU for each rank is a warning, with the number from sinfo if it answers."""
    if not re.search(r"^cuda +yes", run(CUBOID, "version").stdout, re.MULTILINE):
        return
    gpus = ["cluster.device=cuda", "cluster.gpus_per_node=4", "--print"]
    line = "warning: cluster.threads_per_rank is not set, and Slurm may bind each rank to one CPU for its host loop, " \
           "NCCL, data and checkpoints; "
    # Of the default partition, or the one that is given; the smallest node.
    program("sinfo", '[ "$1 $2" = "--noheader --format=%P %c" ] || exit 1\n'
            'case $3 in --partition=big) printf "big 97+\\nbig 128\\n";; "") printf "big 192\\nlong* 48\\n";; esac\n')
    for words, use in [([], "use cluster.threads_per_rank=12: 48 CPUs of a node / 4 ranks\n"),
                       (["cluster.partition=big"], "use cluster.threads_per_rank=24: 97 CPUs of a node / 4 ranks\n"),
                       (["cluster.ranks_per_gpu=2", "dp=8", "train.global_batch_size=8"],
                        "use cluster.threads_per_rank=6: 48 CPUs of a node / 8 ranks\n"),
                       (["cluster.partition=other"], "set cluster.threads_per_rank to the CPUs of a node / 4 ranks\n")]:
        done = submit(*gpus, *words)
        expect(f"{words}: {use}", done.returncode == 0 and line + use in done.stderr, done)
    for words in (["cluster.threads_per_rank=3"], ["cluster.sbatch=[--cpus-per-gpu=8]"],
                  ["--launch", "srun --cpu-bind=none -n {ranks}"]):
        done = submit(*gpus, *words)
        expect(f"{words}: no warning", done.returncode == 0 and "threads_per_rank" not in done.stderr, done)
    done = submit("cluster.nodes=1", "--print")
    expect("CPUs: no warning", done.returncode == 0 and not done.stderr, done)
    os.remove("bin/sinfo")


def test_missing_data():
    """A script can be printed where the data are not; it is submitted only where they are."""
    done = submit("cluster.nodes=1", "data.train=nothing", "--print")
    expect("--print without data", done.returncode == 0 and done.stdout.startswith("#!") and
           done.stderr.startswith("warning: ") and "nothing" in done.stderr, done)


def test_folder_in_use():
    """The job waits for the one that is writing in its folder."""
    program("sbatch", 'cat >"$HERE/script"; echo 124\n')
    done = run(CUBOID, "train", "a.yaml", "logging.run_dir=used")
    with open("used/lock", encoding="utf-8") as file:
        here = json.load(file)
    with open("/proc/self/stat", encoding="ascii") as file:
        started = int(file.read().rsplit(")", 1)[1].split()[19])
    here.update(pid=os.getpid(), started=started)
    there = {**here, "machine": "another", "host": "n7", "job": "SLURM_JOB_ID 21"}
    waits, warns = "used is in use by pid ", "the job fails if that run has not ended when it starts; --after JOB"
    for owner, age, words, after, line in [
            (there, 0, [], "afterany:21", "on n7, SLURM_JOB_ID 21: the new job starts when that one has ended"),
            (there, 50, [], "afterany:21", waits), (there, 70, [], None, None),
            (there, 0, ["--after", "afterok:9"], "afterok:9", None),
            ({**there, "job": "PBS_JOBID 7.host"}, 0, [], None, warns), ({**there, "job": ""}, 0, [], None, warns),
            ({**here, "job": "SLURM_JOB_ID 22"}, 70, [], "afterany:22", waits),
            ({**here, "job": "SLURM_JOB_ID 22", "started": started + 1}, 0, [], None, None)]:
        path = "used/checkpoints/owner.json"
        with open(path, "w", encoding="utf-8") as file:
            json.dump(owner, file)
        os.utime(path, (time.time() - age,) * 2)
        done = run(CUBOID, "submit", "a.yaml", "cluster.nodes=1", "logging.run_dir=used", *words, HERE=os.getcwd())
        found = [line[len("--dependency="):] for line in directives(read("script")) if "--dependency" in line]
        what = f"in use by {owner['job']}, renewed {age} s ago, {words}"
        expect(what, done.returncode == 0 and done.stdout == "124\n" and found == ([after] if after else []), done)
        expect(what, line in done.stderr if line else "in use" not in done.stderr, done)
    # A folder that cannot be made.
    done = submit("cluster.nodes=1", "logging.run_dir=a.yaml/run")
    expect("a run directory in a file", done.returncode == 1 and done.stderr.startswith("cuboid: logging.run_dir: ") and
           done.stderr.endswith("; set logging.run_dir to a directory that can be written\n"), done)


def test_refused_by_sbatch():
    """sbatch's words, the key, and what works; the first line of several."""
    program("sinfo", 'echo "debug (2 nodes, up to 1:00:00)"; echo "long (9 nodes, up to infinite)"\n')
    for words, key in [("invalid partition specified: debgu", "cluster.partition"),
                       ("Invalid account or account/partition combination specified", "cluster.account"),
                       ("Requested time limit is invalid (missing or exceeds some limit)", "cluster.time"),
                       ("Batch job submission failed: Node count specification invalid", "cluster.nodes"),
                       ("Invalid qos specification", "cluster.sbatch")]:
        program("sbatch", f'cat >/dev/null; for w in "{words}" more; do echo "sbatch: error: $w" >&2; done; exit 1\n')
        done = submit("cluster.nodes=1")
        expect(words, done.returncode == 1 and done.stderr == f"cuboid: sbatch rejected the job: {words}; see {key}; "
               "partitions: debug (2 nodes, up to 1:00:00), long (9 nodes, up to infinite)\n", done)
    # A job that sbatch accepts, and that no partition can run.
    program("sbatch", "cat >/dev/null; echo 125\n")
    for reason, warned in [("PartitionNodeLimit", True), ("AssocMaxNodePerJobLimit", True), ("Priority", False),
                           ("Resources", False), ("None", False), ("QOSMaxNodePerUserLimit", False)]:
        program("squeue", f'[ "$*" = "--noheader --format=%r --jobs=125" ] && echo "{reason}"\n')
        done = submit("cluster.nodes=1")
        line = f"warning: job 125 does not start: {reason}; see cluster.partition, nodes, gpus_per_node and time; " \
               "partitions: debug (2 nodes, up to 1:00:00), long ("
        expect(reason, done.returncode == 0 and done.stdout == "125\n" and (line in done.stderr) == warned and
               ("does not start" in done.stderr) == warned, done)
    os.remove("bin/squeue")
    # A warning or an empty line before the error; an sbatch that cannot ask Slurm; a job without a number.
    program("sbatch", "cat >/dev/null; eval \"$SAYS\"\n")
    for says, status, line in [
            ("printf '\\nsbatch: Warning: tasks per node\\nsbatch: error: Invalid account\\n' >&2; exit 1", 1,
             "cuboid: sbatch rejected the job: Invalid account; see cluster.account; "),
            ("echo 'sbatch: error: CPU count per node can not be satisfied' >&2; exit 1", 1,
             "; see cluster.nodes and cluster.threads_per_rank; "),
            ("echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv operation' >&2; exit 1",
             1, "cuboid: sbatch cannot reach Slurm: Batch job submission failed: Socket timed out on send/recv "
             "operation; see whether sinfo works, or use --print\n"),
            ("true", 1, 'cuboid: sbatch returned no number of a job, but ""; see squeue\n'),
            ("echo Submitted batch job 12", 1, 'but "Submitted batch job 12"; see squeue\n'),
            ("echo 12; echo 'sbatch: warning: 3 nodes' >&2", 0, "sbatch: warning: 3 nodes\n")]:
        done = run(CUBOID, "submit", "a.yaml", "cluster.nodes=1", SAYS=says)
        expect(says, done.returncode == status and line in done.stderr and
               done.stderr.count("\n") == (2 if status == 0 else 1) and
               done.stdout == ("12\n" if status == 0 else ""), done)
    expect("how to follow it", done.stderr.endswith("\njob 12: follow it with tail -F runs/a/slurm-12.log; scancel 12 "
                                                    "saves, and stops it\n"), done)


with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    os.mkdir("bin")
    with open("a.yaml", "w", encoding="utf-8") as recipe:
        recipe.write(RECIPE)
    write_dataset("text", [i % 50 for i in range(4000)])
    for case in (test_script, test_script_of_a_started_run, test_refusals, test_cpus_of_a_rank, test_missing_data,
                 test_submits, test_folder_in_use, test_refused_by_sbatch):
        case()
print("\n".join(failures) if failures else "ok")
sys.exit(1 if failures else 0)
