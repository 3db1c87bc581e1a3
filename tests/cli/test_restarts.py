#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""cuboid train --restarts: runs that are killed end like an undisturbed one, bitwise; failures that repeat end it.

    test_restarts.py CUBOID [MPIRUN ...]"""
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from fixtures import write_dataset  # noqa: E402

CUBOID = os.path.abspath(sys.argv[1])
MPIRUN = sys.argv[2:]
RECIPE = """\
model: {num_layers: 2, hidden_size: 16, num_attention_heads: 2, seq_length: 8}
train: {global_batch_size: 4, train_iters: 600}
optimizer: {lr: 1e-3, lr_decay_style: constant}
data: {train: text, split: "1"}
checkpoint: {save_interval: 40}
cluster: {threads_per_rank: 1}
"""
# Starts a run, and kills it after 100, 200 and 300 steps.
FLAKY = """#!/bin/bash
run=$1; shift
turn=$(cat $run.turn 2>/dev/null || echo 0)
echo $((turn + 1)) >$run.turn
[ $turn -lt 3 ] || exec "$@"
"$@" &
while kill -0 $! && { [ ! -e $run/metrics.jsonl ] || [ $(wc -l <$run/metrics.jsonl) -lt $((turn * 100 + 100)) ]; }; do
    sleep 0.002
done 2>/dev/null
pkill -KILL -P $! 2>/dev/null
kill -KILL $!
wait $!
"""
failures = []


def train(name, *words, **options):
    return subprocess.run([CUBOID, "train", "a.yaml", f"logging.run_dir={name}", *words], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, check=False, timeout=120, **options)


def script(name, text):
    with open(name, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(name, 0o755)


def expect(what, truth, done=None):
    if not truth:
        failures.append(what)
        print(f"{what}: {done!r:.3000}")


def lines(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def losses(name):
    return [(line["step"], line["loss"], line["grad_norm"]) for line in lines(f"{name}/metrics.jsonl")]


def check_killed(name, done):
    logged = lines(f"{name}/restarts.jsonl")
    expect(f"{name}: ends", done.returncode == 0, done)
    expect(f"{name}: bitwise", losses(name) == losses("undisturbed"), done)
    expect(f"{name}: three restarts", len(logged) == 3 and f"restarts: 3, {sum(r['lost'] for r in logged)} steps lost; "
           in done.stdout and f"; {name}/restarts.jsonl\n" in done.stdout, done)
    for turn, row in enumerate(logged):
        expect(f"{name}: what is logged", row["restart"] == turn + 1 and row["step"] >= turn * 100 + 100 and
               row["saved"] % 40 == 0 and 0 <= row["lost"] == row["step"] - row["saved"] and row["status"] != 0, logged)
        expect(f"{name}: lost no more than the steps between saves", row["lost"] <= 80, logged)
    ettr = float(done.stdout.split("ETTR ")[1].split(";")[0])
    expect(f"{name}: ETTR", 0 < ettr < 1, done)


def test_killed():
    train("undisturbed")
    check_killed("threads", train("threads", "--restarts", "5", "--launch", "./flaky threads"))
    if MPIRUN:
        launch = f"./flaky ranks {MPIRUN[0]} -n {{ranks}}"
        check_killed("ranks", train("ranks", "pp=2", "--restarts", "5", "--launch", launch))


def test_without_failure():
    done = train("good", "--restarts", "1")
    expect("no restart", done.returncode == 0 and "\nrestarts: 0, 0 steps lost; " in done.stdout and
           not os.path.exists("good/restarts.jsonl"), done)


def test_failures_that_repeat():
    script("broken", "#!/bin/sh\nmkdir -p broken.run\necho $$ >>attempts\n"
           "echo \"step 3: rank 5 (pp 1 dp 0 tp 1, node b) stalled in 1W2 for $$.0 s\" >&2\nexit 1\n")
    done = train("broken.run", "--restarts", "9", "--launch", "./broken")
    expect("twice", done.returncode == 1 and len(open("attempts", encoding="ascii").readlines()) == 2, done)
    expect("twice", "cuboid: step 0 failed twice in a row, with the same message: not restarted: step 3: rank 5 (" in
           done.stderr, done)
    logged = lines("broken.run/restarts.jsonl")
    expect("who", [row["who"] for row in logged] == ["rank 5, node b"] * 2 and "stalled in 1W2" in logged[0]["why"],
           logged)
    script("various", "#!/bin/bash\nmkdir -p various.run\necho x >>turns\n"
           "echo \"cuboid: $(tr -d '\\n' <turns)\" >&2\nkill -KILL $$\n")
    done = train("various.run", "--restarts", "2", "--launch", "./various")
    expect("as often as allowed", done.returncode == 1 and "cuboid: not restarted after --restarts 2: cuboid: xxx\n" in
           done.stderr and [row["status"] for row in lines("various.run/restarts.jsonl")] == [137] * 3, done)


def test_stopped():
    with subprocess.Popen([CUBOID, "train", "a.yaml", "logging.run_dir=stopped", "train.train_iters=1000000",
                           "--restarts", "3"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as child:
        while not os.path.exists("stopped/metrics.jsonl") or not os.path.getsize("stopped/metrics.jsonl"):
            time.sleep(0.01)
        child.send_signal(signal.SIGTERM)
        _, err = child.communicate(timeout=60)
    expect("stopped on request", child.returncode == 75 and "stop requested: saved step" in err and
           "restart 1" not in err, err)


def test_refusals():
    for words, status, line in [
            (["--restarts", "2", "checkpoint.save=none", "checkpoint.save_interval=0"], 2,
             "checkpoint.save is none: --restarts has nothing to resume from; use checkpoint.save=auto"),
            (["--restarts", "2", "cluster.device=dry"], 2, "use cluster.device=cpu"),
            (["--restarts=-1"], 2, "--restarts -1 is invalid; use an integer from 0"),
            (["--restart", "2"], 2, "did you mean --restarts?"),
            (["--restarts", "2", "dp=3"], 2, "parallel.data_parallel_size"),
            (["--restarts", "2", "dp=4", "--launch", "srun -N {nodes} -n {ranks}"], 2, "cluster.nodes is not set"),
    ]:
        done = train("refused", *words)
        expect(f"{words}", done.returncode == status and line in done.stderr and done.stderr.count("\n") == 1 and
               not os.path.exists("refused"), done)
    # A recipe that is refused by the run itself is not tried again.
    done = train("undisturbed", "--restarts", "2", "checkpoint.load=none")
    expect("an invalid start", done.returncode == 2 and "restart 1" not in done.stderr, done)


with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    with open("a.yaml", "w", encoding="utf-8") as recipe:
        recipe.write(RECIPE)
    write_dataset("text", [i % 50 for i in range(4000)])
    script("flaky", FLAKY)
    for case in (test_killed, test_without_failure, test_failures_that_repeat, test_stopped, test_refusals):
        case()
print("\n".join(failures) if failures else "ok")
sys.exit(1 if failures else 0)
