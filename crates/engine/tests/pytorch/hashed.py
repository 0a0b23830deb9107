"""Numbers that Rust's tests make as well."""

import numpy as np


def hashed(seed, count):
    """Numbers of [-1, 1): a hash of the index, exact in single precision."""
    x = np.arange(count, dtype=np.uint64) * 0x9E3779B1 + seed
    x &= 0xFFFFFFFF
    x ^= x >> 16
    x = (x * 0x85EBCA6B) & 0xFFFFFFFF
    x ^= x >> 13
    x = (x * 0xC2B2AE35) & 0xFFFFFFFF
    x ^= x >> 16
    return ((x >> 8).astype(np.float64) / 2**23 - 1).astype(np.float32)


def name_seed(name):
    """FNV-1a of a name."""
    seed = 0x811C9DC5
    for byte in name.encode():
        seed = ((seed ^ byte) * 0x01000193) & 0xFFFFFFFF
    return seed
