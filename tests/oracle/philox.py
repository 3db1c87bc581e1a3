# SPDX-License-Identifier: Apache-2.0
"""Philox4x32-10 (Salmon et al. 2011) and normal numbers, keyed by a seed and a name, as Cuboid draws them."""

import math

import numpy as np


def philox_key(seed, name):
    """The two key words of a named generator: FNV-1a over the name, stirred with the seed by SplitMix64."""
    mask = 2**64 - 1
    z = 0xCBF29CE484222325
    for byte in name.encode():
        z = ((z ^ byte) * 0x100000001B3) & mask
    z = (z + 0x9E3779B97F4A7C15 * (seed + 1)) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    z ^= z >> 31
    return z & 0xFFFFFFFF, z >> 32


def philox_words(key, high, low):
    """Philox4x32-10 at the counters (high, low), low an array: [len(low), 4] words of 32 bits."""
    low = np.asarray(low, dtype=np.uint64)
    mask, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    c0, c1 = low & mask, low >> half
    c2 = np.full_like(low, high & 0xFFFFFFFF)
    c3 = np.full_like(low, (high >> 32) & 0xFFFFFFFF)
    k0, k1 = key
    for _ in range(10):
        p0, p1 = np.uint64(0xD2511F53) * c0, np.uint64(0xCD9E8D57) * c2
        c0, c1, c2, c3 = (
            (p1 >> half) ^ c1 ^ np.uint64(k0),
            p1 & mask,
            (p0 >> half) ^ c3 ^ np.uint64(k1),
            p0 & mask,
        )
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3], axis=1)


def philox_normal(key, high, count):
    """The first `count` standard normals of a stream, rounded to fp32. Box-Muller on the words (0,1) and
    (2,3) of each counter. Python's math uses the C library, so log and cos are the same."""
    words = philox_words(key, high, np.arange((count + 3) // 4))
    normals = []
    for first, second in words.reshape(-1, 2).tolist():
        radius = math.sqrt(-2.0 * math.log((first + 1.0) * 2.0**-32))
        angle = 2.0 * math.pi * second * 2.0**-32
        normals += [radius * math.cos(angle), radius * math.sin(angle)]
    return np.array(normals[:count], dtype=np.float32)
