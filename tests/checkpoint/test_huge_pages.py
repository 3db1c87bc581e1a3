#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints in memory on a tmpfs, mounted with huge pages and, since Linux 6.1, without: each whole huge page of a
file is one, and no file takes more than its size; a damaged one is found; a run whose memory fills up at any moment
reports it and continues. Both end as undisturbed runs. A checkpoint of many ranks takes no more memory to read in huge
pages than on a disk.

    test_huge_pages.py CUBOID LIBRARY     LIBRARY: fault_calls.c

Passes without a test where no such tmpfs can be mounted (in a user namespace)."""
import ctypes
import mmap
import os
import platform
import re
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from fixtures import write_dataset  # noqa: E402

CUBOID, LIBRARY = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
MEMORY = "memory"
RECIPE = """
model: {num_layers: 2, hidden_size: 192, num_attention_heads: 2, seq_length: 8, vocab_size: 2048}
train: {global_batch_size: 4, micro_batch_size: 1, train_iters: 12}
optimizer: {lr: 1e-2, lr_decay_style: constant}
data: {train: text}
cluster: {threads_per_rank: 1}
parallel: {dp: 2}
checkpoint: {save_minutes: 0}
"""
KEYS = [f"checkpoint.memory_dir={MEMORY}", "checkpoint.non_persistent_save_interval=2"]
HUGE_BYTES, MAP_FIXED = 1 << 21, 0x10
MOUNTED = "CUBOID_TEST_MOUNTED"  # the option of the tmpfs, in the process that has it


def start(name, *keys, **environment):
    return subprocess.Popen([CUBOID, "train", "recipe.yaml", f"logging.run_dir={name}", *keys],
                            env=os.environ | {"CUBOID_NODE": "a,b"} | environment, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True)


def end(run, status=0):
    output = run.communicate(timeout=100)[0]
    assert run.returncode == status, f"{run.returncode}: {output}"
    return output


def same(a, b):
    done = subprocess.run([CUBOID, "checkpoint", "diff", f"{a}/checkpoints", f"{b}/checkpoints"], capture_output=True,
                          text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def bytes_in_huge_pages(path):
    """Maps it at a multiple of their size: elsewhere only small pages can be mapped."""
    size, libc = os.path.getsize(path), ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype, libc.mmap.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3,
                                                              ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    file = os.open(path, os.O_RDONLY)
    reserved = libc.mmap(None, size + HUGE_BYTES, mmap.PROT_READ, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    address = (reserved + HUGE_BYTES - 1) // HUGE_BYTES * HUGE_BYTES
    assert libc.mmap(address, size, mmap.PROT_READ, mmap.MAP_SHARED | MAP_FIXED, file, 0) == address, ctypes.get_errno()
    sum(ctypes.string_at(address, size)[::mmap.PAGESIZE])
    with open("/proc/self/smaps", encoding="utf-8") as maps:
        of_file = maps.read().split(f"{os.path.abspath(path)}\n", 1)[1]
    libc.munmap(reserved, size + HUGE_BYTES)
    os.close(file)
    return 1024 * int(re.search(r"ShmemPmdMapped: *(\d+)", of_file).group(1))


def has_huge_pages(option):
    """Whether files on a tmpfs with this option have them."""
    with open("/sys/kernel/mm/transparent_hugepage/shmem_enabled", encoding="ascii") as file:
        denied = "[deny]" in file.read()
    release = tuple(int(number) for number in re.findall(r"\d+", platform.release())[:2])
    return not denied and (option != "never" or release >= (6, 1))


def test_files():
    """Of each node: its rank's file, and the copy of the other one's."""
    end(start("files", *KEYS, LD_PRELOAD=LIBRARY, FAULT_FOLDER="step-00000004", FAULT_KIND="kill", FAULT_CALL="1"), -9)
    for path in [f"{MEMORY}/{node}/step-00000002/rank-0000{rank}.safetensors" for node in "ab" for rank in range(2)]:
        size, huge = os.path.getsize(path), bytes_in_huge_pages(path)
        expected = size // HUGE_BYTES * HUGE_BYTES if has_huge_pages(os.environ[MOUNTED]) else 0
        assert size > HUGE_BYTES and huge == expected, f"{path}: {huge} of {size} bytes"
        assert os.stat(path).st_blocks * 512 < size + mmap.PAGESIZE, path
    damaged = f"{MEMORY}/a/step-00000002/rank-00000.safetensors"
    with open(damaged, "r+b") as file:
        file.seek(HUGE_BYTES)
        byte = file.read(1)[0]
        file.seek(HUGE_BYTES)
        file.write(bytes([byte ^ 1]))
    output = end(start("files", *KEYS))
    assert re.search(f"warning: .*{damaged}: the checksum of MiB", output), output
    assert "step 2" in output and "resumes from" in output, output
    same("whole", "files")


def test_full():
    """Something else takes what is free, again and again."""
    run = start("full", *KEYS)
    with open(f"{MEMORY}/other", "wb") as other:
        while not os.path.exists(f"{MEMORY}/a/step-00000002") and run.poll() is None:
            time.sleep(0.001)
        while run.poll() is None:
            try:
                other.write(bytes(1 << 16))
                other.flush()
            except OSError:
                time.sleep(0.001)
    os.remove(f"{MEMORY}/other")
    output = end(run)
    assert re.search("is not saved in memory: .*No space left on device.*; training continues", output), output
    same("whole", "full")


def peak_bytes(*words):
    with subprocess.Popen([CUBOID, "checkpoint", *words], stdout=subprocess.DEVNULL) as command:
        _, status, usage = os.wait4(command.pid, 0)
        command.returncode = os.waitstatus_to_exitcode(status)
    assert command.returncode == 0, words
    return 1024 * usage.ru_maxrss


def test_many_ranks():
    """Of 32 files with 80 MB in all, only a few are in memory."""
    end(start("large", "dp=1", "model.hidden_size=384", "model.num_layers=3", "train.train_iters=1"))
    os.mkdir("other")
    subprocess.run(mount("always", "other", "128m"), check=True)
    for folder in ["many", "other/many"]:
        peak_bytes("reshard", "large/checkpoints", "-o", folder, "dp=32", "train.global_batch_size=32")
    most = 64 * (1 << 20) + 2 * 2048 * 384 * 4
    for words in [("inspect", "--verify", "other/many"), ("diff", "other/many", "many"), ("diff", "many", "many"),
                  ("reshard", "other/many", "-o", "again", "dp=1")]:
        bytes_used = peak_bytes(*words)
        assert bytes_used < most, f"{words}: {bytes_used} bytes, not below {most}"


def mount(option, folder=MEMORY, size="96m"):
    return ["mount", "-t", "tmpfs", "-o", f"size={size},huge={option}", "none", folder]


def main():
    if os.environ.get(MOUNTED):
        subprocess.run(mount(os.environ[MOUNTED]), check=True)
        end(start("whole"))
        test_files()
        test_full()
        if os.environ[MOUNTED] == "advise":
            test_many_ranks()
        return
    script = os.path.abspath(sys.argv[0])
    for option in ["advise", "never"]:
        with tempfile.TemporaryDirectory() as scratch:
            os.chdir(scratch)
            os.mkdir(MEMORY)
            write_dataset("text", [i * i % 250 for i in range(4000)])
            with open("recipe.yaml", "w", encoding="utf-8") as recipe:
                recipe.write(RECIPE)
            inside = ["unshare", "-Urm"]
            if subprocess.run([*inside, *mount(option)], capture_output=True, check=False).returncode != 0:
                print(f"huge pages: no tmpfs with huge={option} can be mounted")
            else:
                subprocess.run([*inside, sys.executable, script, CUBOID, LIBRARY],
                               env=os.environ | {MOUNTED: option}, check=True)
                print(f"huge={option}: ok")
            os.chdir("/")


main()
