#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints in the memory of the nodes.

    test_memory.py CUBOID LIBRARY [MPIRUN]     LIBRARY: fault_calls.c

- A run that is killed, loses nodes and resumes from memory, also on another layout or on fewer nodes, ends with the
  bytes of one that resumes from a checkpoint on disk at the same step.
- Of 16 nodes with 2 copies, real losses of one node and of two (tests/unit/checkpoint/test_placement.c counts all).
- Damaged copies are named and not used: other nodes have intact ones.
- Bad input, a memory that is full, and a folder that is removed are reported in one line.

Nodes are virtual: CUBOID_NODE."""
import glob
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from fixtures import write_dataset  # noqa: E402

CUBOID, LIBRARY = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
MPIRUN = sys.argv[3:4]
LONG = "CUBOID_LONG_TESTS" in os.environ
RECIPE = """
model: {num_layers: 2, hidden_size: 24, num_attention_heads: 2, seq_length: 8, vocab_size: 257}
train: {global_batch_size: 12, micro_batch_size: 1, train_iters: 6}
optimizer: {lr: 1e-2, lr_decay_style: constant}
data: {train: text}
cluster: {threads_per_rank: 1}
checkpoint: {save_minutes: 0}
"""
MEMORY = f"/dev/shm/cuboid-test-{os.getpid()}"
KEYS = [f"checkpoint.memory_dir={MEMORY}", "checkpoint.non_persistent_save_interval=2"]
ENDED_IN_MEMORY = {"LD_PRELOAD": LIBRARY, "FAULT_FOLDER": "step-00000004", "FAULT_KIND": "kill", "FAULT_CALL": "1"}


def train(name, *keys, nodes="a,b", status=0, program=(), **environment):
    done = subprocess.run([*program, CUBOID, "train", "recipe.yaml", f"logging.run_dir={name}", *keys],
                          env=os.environ | {"CUBOID_NODE": nodes} | environment, capture_output=True, text=True,
                          check=False, timeout=100)
    assert done.returncode == status, f"{name} {keys}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def forget(*names):
    for name in (*names, MEMORY):
        shutil.rmtree(name, ignore_errors=True)


def same(a, b):
    done = subprocess.run([CUBOID, "checkpoint", "diff", f"{a}/checkpoints", f"{b}/checkpoints"], capture_output=True,
                          text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def expect(output, *words):
    lines = [line for line in output.splitlines() if all(word in line for word in words)]
    assert len(lines) == 1, f"{len(lines)} lines with {words}:\n{output}"


def killed(name, *keys, nodes, lost):
    """Trains until the second save in memory begins; then nodes lose their memory."""
    train(name, *KEYS, *keys, nodes=nodes, status=-9, **ENDED_IN_MEMORY)
    for node in lost:
        shutil.rmtree(f"{MEMORY}/{node}")


def flip(path, at):
    """Flips a bit of the byte `at`, from the end if negative."""
    with open(path, "r+b") as file:
        file.seek(at, os.SEEK_END if at < 0 else os.SEEK_SET)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))


# Layout, nodes, lost nodes; layout and nodes afterwards. None: as before.
CASES = [
    (["dp=4"], "a,b,c,d", ["b"], ["dp=3"], "a,c,d"),
    (["dp=4"], "a,b,c,d", ["b", "d"], None, "a,x,c,y"),
    (["tp=2", "dp=2", "parallel.zero_stage=1", "precision.params_dtype=fp16", "precision.matmul_format=hybrid",
      "precision.scaling=delayed"], "a,b", ["a"], None, "x,b"),
    (["pp=2", "dp=2", "parallel.zero_stage=3", "precision.params_dtype=bf16"], "a,b", [], ["tp=2"], "b,a"),
    (["pp=2", "dp=2", "parallel.zero_stage=2"], "a,b,c", ["c"], ["pp=2", "dp=3", "parallel.zero_stage=1"], "d,a,b"),
]


def test_resuming():
    for before, nodes, lost, after, nodes_after in CASES:
        train("disk", *before, "train.train_iters=2")
        train("disk", *(after or before))
        killed("memory", *before, nodes=nodes, lost=lost)
        output = train("memory", *KEYS, *(after or before), nodes=nodes_after)
        expect(output, "resumes from", MEMORY, "step 2")
        same("disk", "memory")
        assert not os.path.exists(MEMORY), "the memory is released when training is complete"
        forget("disk", "memory")


def test_processes():
    """Four processes on four nodes; three resume."""
    def start(nodes, *keys, **environment):
        words = [*MPIRUN]
        for i, node in enumerate(nodes):
            words += [*([":"] if i > 0 else []), "-n", "1", "env", f"CUBOID_NODE={node}",
                      *(f"{key}={value}" for key, value in environment.items()), CUBOID, "train", "recipe.yaml",
                      "logging.run_dir=processes", *KEYS, *keys]
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=100)
        assert (done.returncode != 0) == ("LD_PRELOAD" in environment), done.stdout + done.stderr
        return done.stdout + done.stderr
    train("disk", "dp=4", "train.train_iters=2")
    train("disk", "dp=3")
    output = start("abcd", **ENDED_IN_MEMORY)
    assert os.path.exists(f"{MEMORY}/a"), output
    shutil.rmtree(f"{MEMORY}/a")
    expect(start("dcb"), "resumes from", f"{MEMORY}/d/", "step 2")
    same("disk", "processes")
    forget("disk", "processes")


def test_sixteen():
    nodes = "abcdefghijklmnop"
    keys = ["dp=16", "train.global_batch_size=16", "train.train_iters=4"]
    train("disk", *keys)
    killed("start", *keys, nodes=",".join(nodes), lost=[])
    shutil.move(MEMORY, "copy")
    for lost, survives in [("a", True), ("p", True), ("bc", True), ("aj", True), ("ef", False)]:
        shutil.copytree("start", "memory")
        shutil.copytree("copy", MEMORY, ignore=lambda folder, _: lost if folder == "copy" else [])
        left = [node for node in nodes if node not in lost]
        output = train("memory", *KEYS, *keys, nodes=",".join(left + [node.upper() for node in lost]))
        if survives:
            expect(output, "resumes from", MEMORY, "step 2")
        else:
            expect(output, "skipped: the checkpoint of step 2 in memory: 2 of its 16 files are on no node")
        same("disk", "memory")
        forget("memory")
    forget("disk", "start", "copy")


def test_newest():
    """Memory and disk: the newer one is used; in memory, a damaged one is not."""
    keys = ["dp=2", "checkpoint.save_interval=3", "train.train_iters=5"]
    train("whole", *keys)
    # Killed at the save of step 4, after a save to disk in step 3.
    train("disk", *KEYS, *keys, status=-9, **ENDED_IN_MEMORY)
    expect(train("disk", *KEYS, *keys), "resumes from", "disk/checkpoints", "step 3")
    same("whole", "disk")
    # A file of step 4 is damaged on both nodes: then step 3 on disk is used.
    train("damaged", *KEYS, *keys, status=-9, **ENDED_IN_MEMORY | {"FAULT_FOLDER": "step-00000005"})
    for node in "ab":
        flip(f"{MEMORY}/{node}/step-00000004/rank-00001.safetensors", -5)
    output = train("damaged", *KEYS, *keys)
    for node in "ab":
        expect(output, "warning", f"{MEMORY}/{node}/step-00000004/rank-00001.safetensors", "checksum")
    expect(output, "skipped: the checkpoint of step 4 in memory: 1 of its 2 files are on no node")
    expect(output, "resumes from", "damaged/checkpoints", "step 3")
    same("whole", "damaged")
    # Without a disk, nothing can be loaded.
    shutil.rmtree("damaged")
    killed("damaged", "dp=2", nodes="a,b", lost=["a"])
    flip(f"{MEMORY}/b/step-00000002/rank-00000.safetensors", -5)
    expect(train("damaged", *KEYS, "dp=2", nodes="c,b", status=2), f"checkpoint.memory_dir: {MEMORY}",
           "cannot be loaded", "remove it")
    forget("whole", "disk", "damaged")


def test_damage():
    """Each file of a node in turn is damaged: the copy of the other node is used, also if both nodes have damage."""
    keys = ["dp=2", "parallel.zero_stage=1"]
    train("whole", *keys)
    killed("start", *keys, nodes="a,b", lost=[])
    shutil.move(MEMORY, "memory")
    step, ranks = "step-00000002", ["rank-00000.safetensors", "rank-00001.safetensors"]
    texts = ["manifest.json", "recipe.yaml"]
    assert sorted(os.listdir(f"memory/a/{step}")) == sorted(["data.json", *ranks, *texts])
    kinds = {
        "data": lambda path: flip(path, -5),
        "header": lambda path: flip(path, 60),
        "truncated": lambda path: os.truncate(path, os.path.getsize(path) - 1),
        "missing": os.remove,
    }
    # (Of each kind one of the two nodes, whose own file it is or the copy; on the other node with CUBOID_LONG_TESTS.)
    faults = [[("ab"[node], name, kind)] for node in (0, 1) for name in ranks for i, kind in enumerate(kinds)
              if LONG or i % 2 == node]
    faults += [[(node, name, kind)] for node in "ab" for name in texts for kind in ("data", "missing")]
    faults += [[("a", ranks[0], "data"), ("b", ranks[1], "header"), ("b", texts[0], "data")]]
    faults += [[(node, texts[0], "data") for node in "ab"]]  # then it starts from scratch
    for fault in faults:
        shutil.copytree("memory", MEMORY)
        shutil.copytree("start", "damaged")
        for node, name, kind in fault:
            kinds[kind](f"{MEMORY}/{node}/{step}/{name}")
        output = train("damaged", *KEYS, *keys)
        same("whole", "damaged")
        lost = fault == faults[-1]
        if not lost:
            expect(output, "resumes from", MEMORY, "step 2")
        for node, name, kind in fault:
            if lost:
                expect(output, f"skipped: {MEMORY}/{node}/{step}/{name}: ")
                continue
            # A copy is read by its own node and, if it is the first one, by nodes that lack the file.
            is_read = name in texts or kind == "truncated" or name == ranks["ab".index(node)]
            if is_read and (name, kind) not in [(rank, "missing") for rank in ranks]:
                expect(output, "warning", f"{MEMORY}/{node}/{step}/{name}")
        forget("damaged")
    forget("whole", "start", "memory")


def test_bad_input():
    def refused(name, *keys, **options):
        given = [key.split("=")[0] for key in keys]
        return train(name, *[key for key in KEYS if key.split("=")[0] not in given], *keys, status=2, **options)
    on_disk = f"{os.path.dirname(CUBOID)}/memory-{os.getpid()}"  # the temporary folder may be a tmpfs
    expect(refused("bad", "dp=2", f"checkpoint.memory_dir={on_disk}", "checkpoint.memory_copies=3"),
           "checkpoint.memory_copies 3: the run has 2 nodes", "; and checkpoint.memory_dir: ", "no tmpfs", "/dev/shm")
    assert not os.path.exists(on_disk) and not os.path.exists(MEMORY)
    with open(MEMORY, "w", encoding="utf-8"):
        expect(refused("bad", "dp=2"), "checkpoint.memory_dir", f"{MEMORY}/a: Not a directory; use a directory in")
    os.remove(MEMORY)
    expect(refused("bad", "dp=2", "checkpoint.memory_copies=3"), "checkpoint.memory_copies 3", "2 nodes",
           "use checkpoint.memory_copies=2")
    expect(refused("bad", "dp=2", "checkpoint.memory_dir=none"), "checkpoint.non_persistent_save_interval 2",
           "checkpoint.memory_dir is none")
    os.mkdir(MEMORY)
    small = ["unshare", "-Urm", "sh", "-c", f"mount -t tmpfs -o size=512k none {MEMORY} && mkdir {MEMORY}/a; \"$@\"; "
             f"status=$?; find {MEMORY} -mindepth 1; exit $status", "sh"]
    if subprocess.run([*small, "true"], capture_output=True, check=False).returncode == 0:
        output = refused("bad", "dp=2", program=small)
        expect(output, "checkpoint.memory_dir", "has room for 512.00 KiB", "need 5",
               "use a larger tmpfs, or fewer copies")
        assert [line for line in output.splitlines() if line.startswith(MEMORY)] == [f"{MEMORY}/a"], output
    os.rmdir(MEMORY)
    # The model of the checkpoint to load is found to be another one when the folders are there and locked.
    train("other", "dp=2", "model.num_layers=1")
    expect(refused("bad", "dp=2", "checkpoint.load=other/checkpoints"), "other/checkpoints", "model.num_layers=1")
    assert not os.path.exists(MEMORY)
    # Node b cannot be locked: node a, which is locked, is removed, too.
    output = train("bad", *KEYS, "dp=2", status=1, LD_PRELOAD=LIBRARY, FAULT_FOLDER=f"{MEMORY}/b",
                   FAULT_NAME="owner.json", FAULT_KIND="nospace", FAULT_CALL="1")
    expect(output, f"checkpoint.memory_dir: {MEMORY}/b/owner.json: No space left on device; set checkpoint.memory_dir")
    assert not os.path.exists(MEMORY)
    killed("first", "dp=2", nodes="a,b", lost=[])
    expect(refused("second", "dp=2"), f"checkpoint.memory_dir: {MEMORY}/a", "another run", "use another directory")
    os.remove(f"{MEMORY}/a/step-00000002/rank-00001.safetensors")
    done = subprocess.run([CUBOID, "checkpoint", "reshard", f"{MEMORY}/a", "-o", "out"], capture_output=True, text=True,
                          check=False, timeout=60)
    assert done.returncode == 2 and "rank-00001.safetensors: missing: a checkpoint in memory" in done.stderr, done
    assert not [name for name in os.listdir() if name.startswith("out")], os.listdir()
    forget("bad", "first", "second")


def test_other_users():
    """Weights that another user could have placed are not resumed, and none can read those of the run."""
    def refused(*words):
        expect(train("mine", *KEYS, "dp=2", status=2), "checkpoint.memory_dir: ", *words)
    killed("mine", "dp=2", nodes="a,b", lost=[])
    folder = f"{MEMORY}/a"
    assert [os.stat(path).st_mode & 0o777 for path in (MEMORY, folder, f"{MEMORY}/b")] == [0o700] * 3
    os.chmod(folder, 0o770)
    refused(f"{folder}: others may write (mode 770), and could place weights there; remove it")
    os.chmod(folder, 0o755)
    os.chmod(MEMORY, 0o777)
    refused(f"{MEMORY}: others may write (mode 777)")
    os.chmod(MEMORY, 0o1777)  # like /dev/shm
    os.rename(folder, f"{MEMORY}/placed")
    os.symlink("placed", folder)
    refused(f"{folder}: a symbolic link or a file; remove it")
    os.remove(folder)
    os.rename(f"{MEMORY}/placed", folder)
    if os.getuid() == 0:
        for path in (MEMORY, folder):
            os.chown(path, 65534, 65534)
            refused(f"{path}: belongs to another user (65534), who could place weights there; use a directory in /dev")
            os.chown(path, 0, 0)
        done = subprocess.run(["ls", f"{MEMORY}/b"], capture_output=True, text=True, check=False,
                              user=65534, group=65534, extra_groups=[])
        assert done.returncode != 0 and "Permission denied" in done.stderr, done
    else:
        print("needs root, to be two users: half of test_other_users skipped")
    killed_again = train("mine", *KEYS, "dp=2", status=-9, **ENDED_IN_MEMORY | {"FAULT_FOLDER": "step-00000006"})
    expect(killed_again, "resumes from", folder, "step 2")
    assert os.stat(folder).st_mode & 0o777 == 0o700, "it is closed to readers"
    forget("mine")


def train_in_full_memory(name):
    """The output of a run for which node b has no memory for files of that name, from the second save on."""
    faults = {"LD_PRELOAD": LIBRARY, "FAULT_FOLDER": f"{MEMORY}/b", "FAULT_NAME": name}
    train("full", "dp=2", "train.train_iters=4", *KEYS, FAULT_COUNT="count", **faults)
    with open("count", encoding="utf-8") as file:
        faults["FAULT_CALL"] = str(int(file.read()) + 1)
    forget("full")
    return train("full", "dp=2", "train.train_iters=12", *KEYS, FAULT_KIND="nospace", FAULT_LAST="1000000", **faults)


def test_full_memory():
    """Reported once, and training continues; if there is no memory for the record, its removal fails, too."""
    train("whole", "dp=2", "train.train_iters=12")
    output = train_in_full_memory("run.json")
    expect(output, "warning: checkpoint.memory_dir: step", "is not saved in memory", f"{MEMORY}/b/run.json: No space",
           "remains; training continues")
    assert output.count("warning") == 2, output
    same("whole", "full")
    forget("full")
    output = train_in_full_memory("rank-00000.safetensors.cuboid-tmp")
    expect(output, "warning")
    expect(output, "warning: checkpoint.memory_dir: step 4 is not saved in memory", f"{MEMORY}/b/step-00000004",
           "No space left on device; that of step 2 remains; training continues")
    same("whole", "full")
    forget("whole", "full")


def test_removed_folder():
    """The folder of a node that is removed during a run is created again, for the same run."""
    def wait(run):
        while run.poll() is None and not glob.glob(f"{MEMORY}/b/step-????????/manifest.json"):
            time.sleep(0.01)
    with subprocess.Popen([CUBOID, "train", "recipe.yaml", "logging.run_dir=removed", "dp=2", *KEYS,
                           "train.train_iters=1000000"], env=os.environ | {"CUBOID_NODE": "a,b"},
                          stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as run:
        stops = threading.Timer(60, run.kill)
        stops.start()
        wait(run)
        os.rename(f"{MEMORY}/b", f"{MEMORY}/gone")
        wait(run)
        stops.cancel()
        run.kill()
        output = run.stderr.read()
    # Where another rank has created the folder for its files by then, what is missing is its record.
    expect(output, "warning", f"{MEMORY}/b", "was removed; it is created again")
    records = []
    for node in "ab":
        with open(f"{MEMORY}/{node}/run.json", encoding="utf-8") as file:
            records.append(json.load(file)["run"])
    assert records[0] == records[1] != "", records
    forget("removed")


with tempfile.TemporaryDirectory() as scratch:
    os.chdir(scratch)
    write_dataset("text", [i * i % 250 for i in range(4000)])
    with open("recipe.yaml", "w", encoding="utf-8") as recipe:
        recipe.write(RECIPE)
    try:
        test_resuming()
        if MPIRUN:
            test_processes()
        test_sixteen()
        test_newest()
        test_damage()
        test_bad_input()
        test_other_users()
        test_full_memory()
        test_removed_folder()
    finally:
        forget()
    os.chdir("/")
print("memory: ok")
