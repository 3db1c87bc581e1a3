# SPDX-License-Identifier: Apache-2.0
"""Shared by several test scripts: small datasets, and a simulated full disk."""
import os
import resource
import signal
import struct
import subprocess


def write_documents(prefix, documents):
    """Megatron's indexed dataset of uint16 ids, a sequence per document."""
    count, lengths = len(documents), [len(ids) for ids in documents]
    starts = [2 * sum(lengths[:i]) for i in range(count)]
    with open(prefix + ".bin", "wb") as file:
        for ids in documents:
            file.write(struct.pack(f"<{len(ids)}H", *ids))
    with open(prefix + ".idx", "wb") as file:
        file.write(b"MMIDIDX\0\0" + struct.pack(f"<QBQQ{count}i{count}q{count + 1}q", 1, 8, count, count + 1, *lengths,
                                                *starts, *range(count + 1)))


def write_dataset(prefix, ids):
    """The same, of one document."""
    write_documents(prefix, [ids])


def pending_signal():
    """A preexec_fn: SIGTERM arrives when the command begins to write: it is blocked until then."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    os.kill(os.getpid(), signal.SIGTERM)


def no_file_beyond(size):
    """A preexec_fn: writing past `size` bytes of a file fails, as on a full disk."""
    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    return limit


def on_small_disk(folder, size, words):
    """The command `words` with a tmpfs of `size` as `folder`, which exists; None if it cannot be mounted here."""
    mount = ["unshare", "-Urm", "sh", "-c", f"mount -t tmpfs -o size={size} none {folder} && \"$@\"", "sh"]
    can = subprocess.run([*mount, "true"], capture_output=True, check=False).returncode == 0
    return [*mount, *words] if can else None
