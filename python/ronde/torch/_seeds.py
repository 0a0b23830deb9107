"""Random numbers that depend on what they are for, and not on the worker that draws them."""

from __future__ import annotations

import contextlib
import hashlib
import random
import sys
from collections.abc import Iterator

import torch


def seed_of(seed: int, purpose: str, *place: int) -> int:
    """Returns a seed of 63 bits for a purpose and a place, such as a step and a shard."""
    key = f"{seed}/{purpose}/" + "/".join(map(str, place))
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little") >> 1


def seed_all(seed: int) -> None:
    """Seeds the generators of PyTorch, on all devices, of Python, and of numpy if it is loaded."""
    torch.manual_seed(seed)
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed & 0xFFFF_FFFF)


@contextlib.contextmanager
def kept_generators() -> Iterator[None]:
    """Restores the generators of the CPU, of Python and of numpy at the end."""
    numpy = sys.modules.get("numpy")
    of_numpy = numpy.random.get_state() if numpy is not None else None
    of_torch, of_python = torch.get_rng_state(), random.getstate()
    try:
        yield
    finally:
        torch.set_rng_state(of_torch)
        random.setstate(of_python)
        if numpy is not None:
            numpy.random.set_state(of_numpy)
