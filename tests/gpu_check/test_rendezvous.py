#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Processes without MPI, on emulated GPUs: with the variables of torchrun, of a Kubernetes job, and of plain srun; as
root also with another user who takes every name on the machine that can be computed.

    test_rendezvous.py CUBOID"""
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from fixtures import write_dataset  # noqa: E402

CUBOID = os.path.abspath(sys.argv[1])
RANKS = 4
RECIPE = """\
model: {num_layers: 2, hidden_size: 16, num_attention_heads: 2, seq_length: 8}
parallel: {data_parallel_size: 2, pipeline_parallel_size: 2}
train: {global_batch_size: 4, train_iters: 3}
optimizer: {lr: 1e-3, lr_decay_style: constant}
data: {train: text, split: "1"}
cluster: {device: cuda, transport: nccl}
"""
failures = []
# The names of the jobs contain a port, which no other process gets while this socket is open.
reserved = socket.socket()
reserved.bind(("127.0.0.1", 0))
PORT = str(reserved.getsockname()[1])


def torchrun(rank):
    return {"RANK": str(rank), "WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": PORT,
            "LOCAL_RANK": str(rank % 2), "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "x",
            "CUBOID_NODE": f"n{rank // 2}"}


def kubernetes(rank):
    return {"RANK": str(rank), "WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": PORT,
            "CUBOID_NODE": f"pod-{rank}"}


def srun(rank):
    return {"SLURM_JOB_ID": PORT, "SLURM_STEP_ID": "0", "SLURM_PROCID": str(rank), "SLURM_STEP_NUM_TASKS": str(RANKS),
            "SLURM_LOCALID": str(rank), "SLURM_NODEID": "0", "SLURM_STEP_TASKS_PER_NODE": str(RANKS)}


def run(name, variables, keys=lambda rank: []):
    """Starts the ranks, the last one first; returns their exit statuses and all output."""
    # Nodes of one machine: their ranks are on one GPU.
    share = [] if variables is srun else [f"cluster.ranks_per_gpu={RANKS}"]
    base = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "OMPI", "PMIX"))}
    children = [subprocess.Popen([CUBOID, "train", "a.yaml", f"logging.run_dir={name}", *share, *keys(rank)],
                                 env={**base, "EMULATOR_GPUS": "4", **variables(rank)}, stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT, text=True) for rank in reversed(range(RANKS))]
    outputs = [child.communicate(timeout=100)[0] for child in children]
    return [child.returncode for child in children], "".join(outputs)


def name_of(kind, text):
    value = 0xcbf29ce484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001b3 % 2**64
    return f"cuboid-{kind}{os.getuid()}-{{}}{value:016x}"


class OtherUser:
    """Takes the names of a job of srun(): its page, which it keeps locked, its server and its report."""
    def __enter__(self):
        job = f"  {PORT}.0 {socket.gethostname()}"
        self.page = "/dev/shm/" + name_of("", job).format("")
        names = [name_of("store-", job).format("") + "-0", name_of("report-", f"  {PORT}.0 ").format("")]
        ends = os.pipe()
        self.process = os.fork()
        if self.process == 0:
            os.setgid(65534)
            os.setuid(65534)
            page = os.open(self.page, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
            os.fchmod(page, 0o666)
            os.ftruncate(page, 1 << 20)
            fcntl.lockf(page, fcntl.LOCK_EX)
            for name in names:
                listening = socket.socket(socket.AF_UNIX)
                listening.bind("\0" + name)
                listening.listen()
                os.set_inheritable(listening.detach(), False)
            os.write(ends[1], b"x")
            signal.pause()
        os.close(ends[1])
        assert os.read(ends[0], 1) == b"x"
        os.close(ends[0])
        return self

    def __exit__(self, *_):
        os.kill(self.process, signal.SIGKILL)
        os.waitpid(self.process, 0)
        os.remove(self.page)


def test_other_user():
    """The job runs; each process warns that the page is not its own."""
    if os.getuid() != 0:
        print("needs root, to be two users: test_other_user skipped")
        return
    os.environ.pop("XDG_RUNTIME_DIR", None)
    with OtherUser() as other:
        warning = f"warning: {other.page} is no private file of this user (owner 65534, mode 100666, 1 links)"
        result = run("attacked", srun)
        expect("another user", result[0] == [0] * RANKS and result[1].count(warning) == RANKS and
               losses("attacked") == losses("threads"), result)


def expect(what, truth, done):
    if not truth:
        failures.append(what)
        print(f"{what}: {done!r:.3000}")


def losses(name):
    with open(f"{name}/metrics.jsonl", encoding="ascii") as file:
        return [(row["loss"], row["grad_norm"]) for row in map(json.loads, file)]


with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    with open("a.yaml", "w", encoding="utf-8") as recipe:
        recipe.write(RECIPE)
    write_dataset("text", [i % 50 for i in range(4000)])
    threads = subprocess.run([CUBOID, "train", "a.yaml", "logging.run_dir=threads"], capture_output=True, text=True,
                             env={**os.environ, "EMULATOR_GPUS": "4"}, check=False)
    expect("threads", threads.returncode == 0, threads)
    for start in (torchrun, kubernetes, srun):
        result = run(start.__name__, start)
        expect(start.__name__, result[0] == [0] * RANKS, result)
        expect(f"{start.__name__}: bitwise", losses(start.__name__) == losses("threads"), result)
        expect(f"{start.__name__}: no file is left", not [name for name in os.listdir(start.__name__)
                                                           if name.startswith(".rendezvous")], result)
    test_other_user()
    # A rank of another recipe is named, and every process ends.
    result = run("odd", torchrun, lambda rank: ["optimizer.weight_decay=0.5"] if rank == 2 else [])
    expect("an odd rank", result[0] == [2] * RANKS and result[1].count(
        "recipe: optimizer.weight_decay: rank 2 (0.5, node n1) differs from rank 0 (") == 1, result)
    # A node whose two ranks share a GPU with others has one.
    script = subprocess.run([CUBOID, "submit", "a.yaml", "cluster.nodes=2", "cluster.ranks_per_gpu=4", "--print"],
                            capture_output=True, text=True, check=False)
    expect("a shared GPU", "#SBATCH --gpus-per-node=1\n" in script.stdout, script)
    # A CPU's messages need MPI.
    result = run("cpu", srun, lambda rank: ["cluster.device=cpu", "cluster.transport=auto"])
    expect("a CPU", result[0] == [2] * RANKS and "srun started 4 processes without MPI" in result[1], result)
print("\n".join(failures) if failures else "ok")
sys.exit(1 if failures else 0)
