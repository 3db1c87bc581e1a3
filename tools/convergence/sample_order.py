# SPDX-License-Identifier: Apache-2.0
"""The samples of a run of Cuboid, from its documentation (trainer/data/data.h, data_part.h) and not from its code:
one Megatron dataset of 16-bit ids, the default order, the first epoch.

    data = Samples("runs/data/text", seq_length=64, seed=1234, split=(99, 1, 0))
    rows = data.batch("train", step=0, size=8)      ids [8, 65]: inputs [:, :-1], labels [:, 1:]"""
import os
import struct
import sys

import numpy

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tests", "oracle"))
from philox import philox_key, philox_words  # noqa: E402

SPLITS, ROUNDS = ("train", "valid", "test"), 6


def permutation(key, epoch, count):
    """Of range(count): a Feistel network over the next power of four, whose values from `count` on walk on."""
    half = 1
    while 4 ** half < count:
        half += 1
    shift, mask = numpy.uint64(half), numpy.uint64(2 ** half - 1)
    result = numpy.arange(count, dtype=numpy.uint64)
    walking = numpy.arange(count)
    while len(walking):
        left, right = result[walking] >> shift, result[walking] & mask
        for i in range(ROUNDS):
            words = philox_words(key, epoch, right << numpy.uint64(3) | numpy.uint64(i))
            left, right = right, left ^ ((words[:, 0] | words[:, 1] << numpy.uint64(32)) & mask)
        result[walking] = left << shift | right
        walking = walking[result[walking] >= count]
    return result.astype(numpy.int64)


def read_documents(prefix):
    """Views of the documents of PREFIX.bin."""
    with open(prefix + ".idx", "rb") as file:
        index = file.read()
    version, code, count, _ = struct.unpack_from("<QBQQ", index, 9)
    if index[:9] != b"MMIDIDX\0\0" or version != 1 or code != 8:
        sys.exit(f"{prefix}.idx: not an indexed dataset of 16-bit ids")
    lengths = numpy.frombuffer(index, "<i4", count, offset=34)
    starts = numpy.frombuffer(index, "<i8", count, offset=34 + 4 * count) // 2
    ids = numpy.fromfile(prefix + ".bin", dtype="<u2")
    return [ids[start:start + length] for start, length in zip(starts, lengths)]


class Samples:
    def __init__(self, prefix, seq_length, seed, split):
        self.seq_length = seq_length
        self.streams, self.orders = {}, {}
        documents = read_documents(prefix)
        for i, name in enumerate(SPLITS[:2]):
            begin, end = (round(sum(split[:k]) / sum(split) * len(documents)) for k in (i, i + 1))
            seed_of_split = seed if name == "train" else 0  # validation does not depend on the seed
            order = permutation(philox_key(seed_of_split, f"data.{name}[0].documents"), 0, end - begin)
            self.streams[name] = numpy.concatenate([documents[begin + k] for k in order])
            count = (len(self.streams[name]) - 1) // seq_length
            self.orders[name] = permutation(philox_key(seed_of_split, f"data.{name}[0].samples"), 0, count)

    def batch(self, split, step, size):
        """Samples step * size ... of the first epoch: ids [size, S + 1]; step counts from 0."""
        chosen = self.orders[split][step * size:(step + 1) * size]
        if len(chosen) < size:
            sys.exit(f"step {step} of {split} is not in the first epoch")
        starts = chosen * self.seq_length
        return numpy.stack([self.streams[split][k:k + self.seq_length + 1] for k in starts]).astype(numpy.int64)
