#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""cuboid sweep --run --launch slurm, with programs that stand for Slurm's: arrays, runs that are killed or disappear,
a sweep that is killed, refusals. tests/slurm/long has the real ones.

    test_sweep_slurm.py CUBOID"""
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

CUBOID = os.path.abspath(sys.argv[1])
PROFILE = """device: {name: CPU, is_cpu: true, cores: 2, peak_flops_fp32: 1e11, memory_bytes: 8e9,
  memory_bandwidth: 2e10}
node: {devices: 1}
"""
RECIPE = """name: tiny
model: {num_layers: 2, hidden_size: 16, num_attention_heads: 2, seq_length: 16}
train: {global_batch_size: 8, train_iters: 1000}
optimizer: {lr: 1.0e-3}
data: {train: not-there}
cluster: {profile: cpu.yaml, partition: long, threads_per_rank: 1, sbatch: [--exclusive, export SEEN=1]}
"""
SWEEP = """base: tiny.yaml
axes:
  parallel.data_parallel_size: [1, 2]
  train.micro_batch_size: [1, 2]
"""
# An array is a folder q/JOB with its script, and a file for each element that is in the queue.
PROGRAMS = {
    "sbatch": """[ ! -e refuse ] || { echo "sbatch: error: invalid partition specified: long" >&2; exit 1; }
job=$(($(ls q | wc -l) + 1)); mkdir new; cat >new/script
elements=$(seq 0 $(sed -n 's/^#SBATCH --array=0-//p' new/script))
for i in $elements; do touch new/$i; done
mv new q/$job # all of them are in the queue at once
for i in $elements; do
    (sleep ${DELAY:-0}; [ ! -e lose.$job ] && SLURM_ARRAY_TASK_ID=$i bash q/$job/script; rm -f q/$job/$i) \\
        >q/$job/log.$i 2>&1 </dev/null &
done
echo $job
""",
    "squeue": """[ ! -e down ] || { echo "slurm_load_jobs error: Unable to contact slurm controller" >&2; exit 1; }
for element in q/*/[0-9]*; do
    [ ! -e "$element" ] || echo "${element##*/}|$(sed -n 's/^#SBATCH --comment="\\(.*\\)"/\\1/p' ${element%/*}/script)"
done
""",
    "srun": """echo "$*" >>srun.log
while [ "${1##*/}" != cuboid ]; do shift; done
case " $* " in *" train.micro_batch_size=2 "*) [ ! -e kill ] || { rm kill; kill -KILL $$; } ;; esac
[ "$SEEN" = 1 ] && exec "$@"
""",
    "scancel": "echo \"$*\" >>scancel.log\n",
}
failures = []


def expect(what, truth, done):
    if not truth:
        failures.append(what)
        print(f"{what}: {done!r:.2500}")


def environment(**more):
    return {**os.environ, "PATH": os.path.abspath("../bin") + ":" + os.environ["PATH"], **more}


def sweep(*words, **more):
    return subprocess.run([CUBOID, "sweep", "sweep.yaml", "--run", "--launch", "slurm", "--steps", "3", *words],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False, timeout=100,
                          env=environment(**more))


def journal():
    with open("sweep.yaml.runs/journal", encoding="utf-8") as file:
        return [line.split(" ", 3) for line in file.read().split("\n")[1:-1]]


def states():
    return sorted(line[0] for line in journal())


def test_arrays():
    done = sweep()
    expect("all are measured", done.returncode == 0 and states() == ["done"] * 4, (done, states()))
    with open("q/1/script", encoding="utf-8") as file, open("q/2/script", encoding="utf-8") as other:
        scripts = [file.read(), other.read()]
    for words in ("#SBATCH --partition=long\n", "#SBATCH --array=0-1\n", "#SBATCH --exclusive\n", "\nexport SEEN=1\n",
                  "#SBATCH --time=12\n"):
        expect(words, all(words in script for script in scripts), scripts)
    expect("an array for each number of ranks", [f"#SBATCH --ntasks-per-node={n}\n" in s for n, s in
                                                 zip((1, 2), sorted(scripts))] == [True, True], scripts)
    expect("remaining jobs are canceled", "--name=cuboid-sweep-" in open("scancel.log", encoding="utf-8").read(), done)
    done = sweep()
    expect("nothing is run twice", done.returncode == 0 and len(os.listdir("q")) == 2 and len(journal()) == 4, done)


def test_cpus_of_gpus():
    """On GPUs a sweep asks for the CPUs of cluster.threads_per_rank, and not for one where it is not set."""
    if not re.search(r"^cuda +yes", subprocess.run([CUBOID, "version"], capture_output=True, text=True,
                                                   check=False).stdout, re.MULTILINE):
        return
    for threads, asked in ((0, False), (3, True)):
        shutil.rmtree("sweep.yaml.runs", ignore_errors=True)
        jobs = len(os.listdir("q"))
        with open("tiny.yaml", "w", encoding="utf-8") as file:
            file.write(RECIPE.replace("profile: cpu.yaml", "profile: dgx-h100, device: cuda").replace(
                "threads_per_rank: 1", f"threads_per_rank: {threads}"))
        done = sweep("--top", "1")
        expect("an array", len(os.listdir("q")) > jobs, done)
        with open(f"q/{jobs + 1}/script", encoding="utf-8") as file, open("srun.log", encoding="utf-8") as log:
            found = (file.read(), log.read().splitlines()[-1])
        expect(f"{threads} threads", ["--cpus-per-task" in text for text in found] == [asked] * 2 and
               (not asked or all("--cpus-per-task=3" in text for text in found)), found)
        expect(f"{threads} threads, the warning", ("cluster.threads_per_rank is not set" in done.stderr) == (not asked),
               done)


def test_killed_run():
    """A run that is killed, perhaps with its node, is submitted again."""
    open("kill", "w", encoding="utf-8").close()
    done = sweep()
    expect("measured the second time", done.returncode == 0 and states() == ["done"] * 4 and len(os.listdir("q")) == 3,
           (done, os.listdir("q")))


def test_lost_run():
    """Elements that leave the queue without a result; squeue that does not answer for a while."""
    open("lose.1", "w", encoding="utf-8").close()
    done = sweep()
    expect("submitted again", done.returncode == 0 and states() == ["done"] * 4 and len(os.listdir("q")) == 3, done)


def test_killed_sweep():
    child = subprocess.Popen([CUBOID, "sweep", "sweep.yaml", "--run", "--launch", "slurm", "--steps", "3"],
                             env=environment(DELAY="2"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not os.path.exists("q/2/script"):
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    child.wait()
    done = sweep()
    expect("its arrays are found", done.returncode == 0 and states() == ["done"] * 4 and len(os.listdir("q")) == 2,
           done)


def test_refusals():
    open("refuse", "w", encoding="utf-8").close()
    done = sweep()
    expect("sbatch", done.returncode == 1 and "cuboid: sbatch rejected the job: invalid partition specified: long; see "
           "cluster.partition" in done.stderr, done)
    os.remove("refuse")
    open("down", "w", encoding="utf-8").close()
    done = sweep()
    expect("squeue", done.returncode == 1 and "cuboid: squeue failed with status 1: slurm_load_jobs error: " in
           done.stderr and not os.listdir("q"), done)


with tempfile.TemporaryDirectory() as work:
    os.chdir(work)
    os.mkdir("bin")
    for name, text in PROGRAMS.items():
        with open(f"bin/{name}", "w", encoding="utf-8") as file:
            file.write("#!/bin/bash\n" + text)
        os.chmod(f"bin/{name}", 0o755)
    for case in (test_arrays, test_cpus_of_gpus, test_killed_run, test_lost_run, test_killed_sweep, test_refusals):
        os.mkdir(f"{work}/{case.__name__}")
        os.chdir(f"{work}/{case.__name__}")
        os.mkdir("q")
        for name, text in (("cpu.yaml", PROFILE), ("tiny.yaml", RECIPE), ("sweep.yaml", SWEEP)):
            with open(name, "w", encoding="utf-8") as file:
                file.write(text)
        case()
    os.chdir("/")
print("\n".join(failures) if failures else "ok")
sys.exit(1 if failures else 0)
