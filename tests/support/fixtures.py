# SPDX-License-Identifier: Apache-2.0
"""Shared by several test scripts: small datasets, and a simulated full disk."""
import resource
import signal
import struct


def write_dataset(prefix, ids):
    """Megatron's indexed dataset of one document of uint16 ids."""
    with open(prefix + ".bin", "wb") as file:
        file.write(struct.pack(f"<{len(ids)}H", *ids))
    with open(prefix + ".idx", "wb") as file:
        file.write(b"MMIDIDX\0\0" + struct.pack("<QBQQiqqq", 1, 8, 1, 2, len(ids), 0, 0, 1))


def no_file_beyond(size):
    """A preexec_fn: writing past `size` bytes of a file fails, as on a full disk."""
    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    return limit
