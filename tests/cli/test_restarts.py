#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""cuboid train --restarts: runs that are killed end like an undisturbed one, bitwise; failures that repeat end it.

    test_restarts.py CUBOID [MPIRUN ...]"""
import json
import os
import re
import shutil
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
# Waits and counts lines without starting a process for each: that would take more time than the runs.
POLLING = """#!/bin/bash
exec {never}<> <(:)
nap() { read -rt 0.004 -u $never; }
lines_of() {
    steps=()
    [ ! -e $1 ] || mapfile -t steps <$1
}
"""
# Starts a run, and kills it after 100, 200 and 300 steps.
FLAKY = POLLING + """
run=$1; shift
[[ " $* " != *" doctor "* ]] || exec "$@"
turn=$(cat $run.turn 2>/dev/null || echo 0)
echo $((turn + 1)) >$run.turn
[ $turn -lt 3 ] || exec "$@"
"$@" &
while kill -0 $! && lines_of $run/metrics.jsonl && [ ${#steps[@]} -lt $((turn * 100 + 100)) ]; do
    nap
done 2>/dev/null
pkill -KILL -P $! 2>/dev/null
kill -KILL $!
wait $!
"""
# Fails before the first step, is killed between two saves, fails again, and trains. The run is stopped while its steps
# are counted: a kill right after a save would lose none.
LATE = POLLING + """
echo x >>late.turns
case $(wc -l <late.turns) in
1) echo 'cuboid: no such host' >&2; exit 1 ;;
2) "$@" &
    lines_of late.run/metrics.jsonl
    until [ ${#steps[@]} -ge 60 ] && [ $((${#steps[@]} % 40)) -ne 0 ]; do
        kill -CONT $!
        nap
        kill -STOP $!
        until read -r stat </proc/$!/stat && [[ ${stat##*) } == [TZ]* ]]; do :; done
        [[ ${stat##*) } != Z* ]] || break
        lines_of late.run/metrics.jsonl
    done
    kill -KILL $!
    wait $!
    exit 137 ;;
3) echo 'srun: error: no nodes' >&2; exit 137 ;;
*) exec "$@" ;;
esac
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
        expect(f"{name}: the log", row["restart"] == turn + 1 and row["step"] >= turn * 100 + 100 and
               row["saved"] % 40 == 0 and 0 <= row["lost"] == row["step"] - row["saved"] and row["status"] != 0, logged)
        expect(f"{name}: lost no more than the steps between saves", row["lost"] <= 80, logged)
    ettr = float(done.stdout.split("ETTR ")[1].split(";")[0])
    expect(f"{name}: ETTR", 0 < ettr < 1, done)


def test_killed():
    train("undisturbed")
    check_killed("threads", train("threads", "--no-check", "--restarts", "5", "--launch", "./flaky threads"))
    if MPIRUN:
        launch = f"./flaky ranks {MPIRUN[0]} -n {{ranks}}"
        check_killed("ranks", train("ranks", "pp=2", "--no-check", "--restarts", "5", "--launch", launch))


def test_without_failure():
    done = train("good", "--restarts", "1")
    expect("no restart", done.returncode == 0 and "\nrestarts: 0, 0 steps lost; " in done.stdout and
           not os.path.exists("good/restarts.jsonl"), done)
    done = train("good", "--restarts", "1", "checkpoint.load=none")
    expect("refused", done.returncode == 2 and "use checkpoint.load=auto" in done.stderr and "ETTR" not in done.stdout,
           done)


def test_failures_that_repeat():
    script("broken", "#!/bin/sh\necho $$ >>attempts\n"
           "printf '\\0361 5 b\\037%s\\n' \"step 3: rank 5 (pp 1 dp 0 tp 1, node b) stalled in 1W2 for $$.0 s\" >&2\n"
           "echo ended by rank 5 >&2\nexit 1\n")
    done = train("broken.run", "--no-check", "--restarts", "9", "--launch", "./broken")
    expect("twice", done.returncode == 1 and len(open("attempts", encoding="ascii").readlines()) == 2, done)
    expect("twice", "cuboid: failed twice in a row, with the same message, after step 0: not restarted: step 3: rank "
           "5 (" in done.stderr, done)
    logged = lines("broken.run/restarts.jsonl")
    expect("who", [row["who"] for row in logged] == ["rank 5, node b"] * 2 and "stalled in 1W2" in logged[0]["why"],
           logged)
    for launch, why in [("true", "--launch returned 0, but step 600 is not saved"),
                        ("false", "exit status 1, without a message")]:
        done = train(launch, "--no-check", "--restarts", "3", "--launch", launch)
        expect(launch, done.returncode == 1 and f"failed after step 0, resuming from step 0: {why}\n" in done.stderr,
               done)
    script("tasks", "#!/bin/sh\n"
           "printf 'srun: error: n2: tasks 2-3: Killed\\nsrun: Force Terminated\\n' >&2\nexit 137\n")
    train("tasks.run", "--no-check", "--restarts", "0", "--launch", "./tasks")
    logged = lines("tasks.run/restarts.jsonl")
    expect("tasks of srun", [(row["who"], row["why"]) for row in logged] ==
           [("rank 2-3, node n2", "srun: error: n2: tasks 2-3: Killed")], logged)
    # The launcher writes the last line, and the marked error of the program is the cause.
    script("full", '#!/bin/sh\nulimit -f 1\n"$@"\nstatus=$?\necho "task 3: exited" >&2\nexit $status\n')
    done = train("full.run", "--no-check", "--restarts", "0", "--launch", "./full")
    logged = lines("full.run/restarts.jsonl")
    expect("an error of the program", len(logged) == 1 and logged[0]["why"].startswith("cuboid: ") and
           "File too large" in logged[0]["why"] and "task 3: exited\n" in done.stderr and
           not set(done.stderr) & set("\x1e\x1f"), (logged, done))
    script("various", "#!/bin/bash\necho x >>turns\n"
           "printf '\\0360 -1 \\037cuboid: %s\\n' $(tr -d '\\n' <turns) >&2\nkill -KILL $$\n")
    done = train("various.run", "--no-check", "--restarts", "2", "--launch", "./various")
    expect("as often as allowed", done.returncode == 1 and "cuboid: not restarted after --restarts 2: cuboid: xxx\n" in
           done.stderr and [row["status"] for row in lines("various.run/restarts.jsonl")] == [137] * 3, done)


def test_in_memory():
    """The step from which the run resumes is that of a checkpoint in memory."""
    memory = f"/dev/shm/cuboid-restarts-{os.getpid()}"
    script("once", POLLING + '[ ! -e once.turn ] || exec "$@"\ntouch once.turn\n"$@" &\n'
           "while kill -0 $! && lines_of once.run/metrics.jsonl && [ ${#steps[@]} -lt 25 ]; do\n"
           "nap\ndone 2>/dev/null\nkill -KILL $!\nwait $!\n")
    done = train("once.run", f"checkpoint.memory_dir={memory}", "checkpoint.memory_copies=1",
                 "checkpoint.non_persistent_save_interval=3", "checkpoint.save_interval=0", "--no-check", "--restarts",
                 "1", "--launch", "./once")
    resumed = re.search(rf"resumes from {memory}/\S*, step (\d+)\n", done.stdout)
    logged = lines("once.run/restarts.jsonl")[0]
    expect("in memory", done.returncode == 0 and resumed and logged["saved"] == int(resumed[1]) and
           f"resuming from step {resumed[1]}: " in done.stderr, (logged, done))


def test_failure_while_starting():
    """Steps are lost once: an attempt that completes none loses none. Its folder may not exist yet."""
    script("late", LATE)
    done = train("late.run", "--no-check", "--restarts", "3", "--launch", "./late")
    logged = lines("late.run/restarts.jsonl")
    expect("ends", done.returncode == 0 and losses("late.run") == losses("undisturbed"), done)
    expect("steps lost", [row["lost"] > 0 for row in logged] == [False, True, False] and
           logged[2]["step"] == logged[2]["saved"] == logged[1]["saved"] and
           f"restarts: 3, {logged[1]['lost']} steps lost; " in done.stdout, (logged, done))
    expect("why", [row["why"] for row in logged][::2] == ["cuboid: no such host", "srun: error: no nodes"], logged)


def test_remains():
    """A process in another group that keeps standard error open does not stop the supervisor."""
    script("leaves", "#!/bin/bash\nsetsid sleep 60 >/dev/null &\necho $! >remains\n"
           "exec \"$@\"\n")
    done = train("left", "--no-check", "--restarts", "0", "--launch", "./leaves")
    with open("remains", encoding="ascii") as file:
        os.kill(int(file.read()), signal.SIGKILL)
    expect("ends", done.returncode == 0 and losses("left") == losses("undisturbed"), done)


def start_stuck():
    """Its launcher does not end after a hang report."""
    script("stuck", "#!/bin/sh\n[ ! -e stuck.turn ] || exec \"$@\"\ntouch stuck.turn\n"
           "printf '\\0361 1 b\\037it hangs\\n' >&2\nexec sleep 60\n")
    return subprocess.Popen([CUBOID, "train", "a.yaml", "logging.run_dir=stuck.run", "train.train_iters=2",
                             "--no-check", "--restarts", "1", "--launch", "./stuck"], stdout=subprocess.DEVNULL,
                            stderr=subprocess.PIPE, text=True)


def check_stuck(child):
    begin = time.monotonic()
    _, err = child.communicate(timeout=60)
    expect("a launcher that hangs is ended", child.returncode == 0 and time.monotonic() - begin < 50 and
           lines("stuck.run/restarts.jsonl")[0]["status"] == 143 and "restart 1 of 1: failed after step 0" in err, err)


# Stands for srun on the nodes n1, n2, ...: each checks itself, and one process trains for all ranks.
SRUN = """#!/bin/bash
printf '%s\n' "$*" >>srun.log
without=,$(expr "$1" : '--exclude=\\(.*\\)'),
nodes=$(expr "$*" : '.*-N \\([0-9]*\\) ')
while [ "${1##*/}" != cuboid ]; do shift; done
if [ "$2" != doctor ]; then
    case $(wc -l <srun.log) in 2) echo "step 3: rank 1 (pp 0 dp 1 tp 0, node n2) stalled" >&2; exit 1 ;; esac
    exec "$@"
fi
[ "$BAD" != refused ] || { echo "srun: error: Unable to create step" >&2; exit 1; }
for n in n1 n2 n3 n4; do
    [ $nodes -gt 0 ] || break
    [[ $without == *,$n,* ]] && continue
    nodes=$((nodes - 1))
    case "$n $BAD" in
    *" $n=silent" | *" silent") ;;
    *" $n=memory")
        echo "{\\"node\\": \\"$n\\", \\"failed\\": [\\"memory FAILED: 1 GiB free, and 2 GiB needed\\"]}" >&2 ;;
    *) [ -n "$REAL" ] && CUBOID_NODE=$n "$@" || echo "{\\"node\\": \\"$n\\", \\"failed\\": []}" >&2 ;;
    esac
done
"""


def supervise(name, bad, *words, job="4"):
    """A job of two nodes, of which `bad` fail."""
    if os.path.exists("srun.log"):
        os.remove("srun.log")
    environment = {**os.environ, "PATH": os.path.abspath("bin") + ":" + os.environ["PATH"], "BAD": bad,
                   "NODES": "n1 n2"}
    if job:
        environment["SLURM_JOB_ID"] = job
    done = train(name, *(["dp=4", "cluster.nodes=2"] if job else []), "train.train_iters=20", "--launch",
                 "srun -N {nodes} -n {ranks}", *words, env=environment)
    with open("srun.log", encoding="utf-8") as file:
        return done, file.read().splitlines()


def test_nodes():
    os.makedirs("bin", exist_ok=True)
    script("bin/srun", SRUN)
    script("bin/squeue", "#!/bin/sh\necho 'n[1-2]'\n")
    script("bin/scontrol", "#!/bin/sh\nfor n in $NODES; do echo $n; done\n")
    os.environ["REAL"] = "1"
    done, calls = supervise("all", "", "--restarts", "2")
    os.environ["REAL"] = ""
    expect("all pass", done.returncode == 0 and [call.split()[5] for call in calls] == ["doctor", "train"] * 2 and
           all(call.startswith("-N 2 -n 4 ") for call in calls), (done, calls))
    for bad, why in [("n2=memory", "n2: memory FAILED: 1 GiB free"), ("n2=silent", "n2: no answer")]:
        done, calls = supervise("none", bad, "--restarts", "2")
        expect("too few", done.returncode == 1 and f"check: 1 node is left out: {why}" in done.stderr and
               f"cuboid: 1 node is left of the 2 that the layout needs: {why}" in done.stderr and
               "set resilience.elastic=true" in done.stderr and len(calls) == 1, (done, calls))
        name = "elastic-" + bad[3:]
        memory = [f"checkpoint.memory_dir=/dev/shm/cuboid-elastic-{os.getpid()}",
                  "checkpoint.non_persistent_save_interval=7"] if name == "elastic-silent" else []
        done, calls = supervise(name, bad, "--restarts", "2", "resilience.elastic=true", *memory)
        expect("elastic", done.returncode == 0 and calls[1].startswith("--exclude=n2 -N 1 -n 2 ") and
               "elastic: 1 of 2 nodes: parallel.data_parallel_size 2 instead of 4, 2 ranks on 1 node, 2 microbatches "
               "instead of 1; train.global_batch_size is 4 as before" in done.stderr and
               "parallel.data_parallel_size=2" in calls[1] and
               ("checkpoint.memory_copies=1" in calls[1]) == bool(memory), (done, calls))
        expect("its steps", [row["step"] for row in lines(f"{name}/metrics.jsonl")] == list(range(1, 21)), done)
        expect("it has a supervisor", "resilience.elastic" not in done.stderr, done)
    # If none answers, it is not the nodes.
    done, calls = supervise("silent", "silent", "--restarts", "2", "resilience.elastic=true")
    expect("no node answers", done.returncode == 75 and len(calls) == 1 and ": no answer" not in done.stderr and
           "cuboid: no node of the job has answered the check within " in done.stderr, (done, calls))
    done, calls = supervise("no-step", "refused", "--restarts", "2", "resilience.elastic=true")
    expect("srun fails", done.returncode == 1 and len(calls) == 2 and ": no answer" not in done.stderr and
           "same message, after step 0: not restarted: srun: error: Unable to create step\n" in done.stderr, done)
    # Outside of a job the names are those of the answers, and srun takes other nodes.
    done, calls = supervise("outside", "n2=memory", "--restarts", "2", "pp=2", "dp=2", "cluster.nodes=4",
                            "resilience.elastic=true", job="")
    expect("outside of a job", done.returncode == 0 and calls[0].startswith("-N 4 -n 4 ") and
           [call[:24] for call in calls[1:]] == ["--exclude=n2 -N 4 -n 4 /"] * 2 and "elastic: " not in done.stderr,
           (done, calls))
    # A launcher that cannot leave out a node.
    script("other", SRUN)
    done = train("other.run", "dp=4", "--restarts", "2", "--launch", "./other -N {nodes} -n {ranks} ",
                 "cluster.nodes=2", env={**os.environ, "BAD": "n2=memory"})
    expect("another launcher", done.returncode == 1 and "n2: memory FAILED: 1 GiB free, and 2 GiB needed; only srun "
           "can leave a node out: remove it from the hosts of --launch" in done.stderr, done)


def test_without_supervisor():
    done = train("alone", "resilience.elastic=true")
    expect("elastic without a supervisor", done.returncode == 0 and
           done.stderr == "warning: command line: resilience.elastic has no effect without a supervisor; add "
           "--restarts N --launch 'srun -N {nodes} -n {ranks}', or set resilience.elastic=false\n", done)
    done = train("alone", "resilience.elastic=false")
    expect("not elastic", done.returncode == 0 and done.stderr == "", done)


def test_stopped():
    # The launcher is ended by the signal; the run, which gets it late, takes longer than what a launcher leaves may
    # otherwise take.
    script("wrapper", '#!/bin/sh\n"$@"\n')
    script("slowly", '#!/bin/bash\nset -m\ntrap "sleep 4; kill -TERM \\$!" TERM\n"$@" &\nwait\nwait\n')
    for name, launch in [("stopped", []), ("wrapped", ["--no-check", "--launch", "./wrapper ./slowly"])]:
        with subprocess.Popen([CUBOID, "train", "a.yaml", f"logging.run_dir={name}", "train.train_iters=100000",
                               "--restarts", "3", *launch], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                              text=True) as child:
            while not os.path.exists(f"{name}/metrics.jsonl") or not os.path.getsize(f"{name}/metrics.jsonl"):
                time.sleep(0.01)
            child.send_signal(signal.SIGTERM)
            _, err = child.communicate(timeout=60)
        expect(f"{name} on request", child.returncode == 75 and "stop requested: saved step" in err and
               "restart 1" not in err, (child.returncode, err))


def test_late_save():
    """A run that saves only at its end warns once that a failure loses everything."""
    never, warning = "checkpoint.save_minutes=0", "nothing is saved before the end of the run"
    for words, line in [
            ([never, "checkpoint.save_interval=0"], "warning: checkpoint.save_interval 0, checkpoint.save_minutes 0: "),
            ([never, "checkpoint.save_interval=3"],
             "set checkpoint.save_minutes=30, or a checkpoint.save_interval below train.train_iters 3\n"),
            ([never, "checkpoint.save_interval=2"], None),
            (["checkpoint.save_interval=0", "checkpoint.save_minutes=1"], None),
            ([never, "checkpoint.save_interval=0", "--restarts=0"], None)]:
        restarts = [] if "--restarts=0" in words else ["--restarts=2"]
        done = train("late-save", *restarts, "train.train_iters=3", *words)
        expect(f"{words}", done.returncode == 0 and done.stderr.count(warning) == (line is not None) and
               (line or "") in done.stderr, done)
        shutil.rmtree("late-save")


def test_refusals():
    for words, status, line in [
            (["--restarts", "2", "checkpoint.save=none", "checkpoint.save_interval=0"], 2,
             "checkpoint.save is none: --restarts has nothing to resume from; use checkpoint.save=auto"),
            (["--restarts", "2", "cluster.device=dry"], 2, "use cluster.device=cpu"),
            (["--restarts=-1"], 2, "--restarts -1 is invalid; use an integer from 0"),
            (["--restart", "2"], 2, "did you mean --restarts?"),
            (["--restarts", "2", "--launch", ""], 2, "--launch is empty; use --launch 'srun"),
            (["--restarts", "2", "dp=3"], 2, "parallel.data_parallel_size"),
            (["--restarts", "2", "dp=4", "--launch", "srun -N {nodes} -n {ranks}"], 2, "cluster.nodes is not set"),
            (["--restarts", "2", "dp=4", "cluster.nodes=3", "--launch", "srun -N {nodes} -n {ranks}"], 2,
             "cluster.nodes 3 does not divide the layout's 4 ranks; use cluster.nodes=2 or cluster.nodes=4"),
            (["--restarts", "2", "resilience.elastic=true"], 2,
             "resilience.elastic: there are no nodes without --launch"),
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
    write_dataset("text", [i % 50 for i in range(8000)])
    script("flaky", FLAKY)
    stuck = start_stuck()  # ends meanwhile
    for case in (test_killed, test_without_failure, test_failures_that_repeat, test_failure_while_starting,
                 test_in_memory, test_remains, test_nodes, test_without_supervisor, test_stopped,
                 test_late_save, test_refusals):
        case()
    check_stuck(stuck)
print("\n".join(failures) if failures else "ok")
sys.exit(1 if failures else 0)
