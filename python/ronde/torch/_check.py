"""`check_model`: finds what in a model would give other bits on another number of workers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ronde.torch._seeds import kept_generators, seed_all, seed_of


class _Pass:
    """The hashes of a forward and backward pass: of the output of each call of a module, in order, and of each gradient."""

    def __init__(self) -> None:
        self.outputs: list[tuple[str, str]] = []
        self.gradients: dict[str, str] = {}


def _digest(values: Any, into: Any) -> None:
    """Adds all tensors in a value to a hash."""
    if isinstance(values, torch.Tensor):
        flat = values.detach().cpu().contiguous().reshape(-1)
        into.update(f"{values.dtype} {tuple(values.shape)}".encode())
        if flat.numel() > 0 and flat.layout == torch.strided:
            into.update(flat.view(torch.uint8).numpy().data)
    elif isinstance(values, dict):
        for name in values:
            _digest(values[name], into)
    elif isinstance(values, list | tuple):
        for value in values:
            _digest(value, into)


def _hash(values: Any) -> str:
    digest = hashlib.sha256()
    _digest(values, digest)
    return digest.hexdigest()


@contextmanager
def _watched(model: nn.Module, found: _Pass) -> Iterator[None]:
    """Notes the output of each module."""

    def hook(name: str) -> Callable[[nn.Module, Any, Any], None]:
        return lambda module, inputs, output: found.outputs.append((name, _hash(output)))

    handles = [module.register_forward_hook(hook(name)) for name, module in model.named_modules()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _kept_buffers(model: nn.Module) -> Iterator[None]:
    """Restores the buffers at the end."""
    before = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, values in before:
                buffer.copy_(values)


def _computed(model: nn.Module, loss_of: Callable[[nn.Module, Any], torch.Tensor], sample: Any) -> _Pass:
    found = _Pass()
    trained = [(name, value) for name, value in model.named_parameters() if value.requires_grad]
    for _, value in trained:
        value.grad = None
    seed_all(seed_of(0, "check"))
    with _watched(model, found):
        loss_of(model, sample).backward()
    for name, value in trained:
        found.gradients[name] = _hash(value.grad)
        value.grad = None
    return found


def check_model(model: nn.Module, loss_of: Callable[[nn.Module, Any], torch.Tensor], samples: Sequence[Any]) -> None:
    """Computes the gradient of a micro-batch twice, with another one in between, and compares the bits. Call it before the model is wrapped.

    `samples` are two micro-batches of different content, and `loss_of(model, sample)` returns the loss of one. Parameters, buffers and the
    generators of random numbers are as before afterwards; parameters have no gradients.

    Raises `RuntimeError` if the bits differ, with the first module whose output differs, or else the first parameter whose gradient does.
    Such a model keeps a state from one micro-batch for the next, draws from a generator of its own, or uses operations without a fixed order.
    """
    if len(samples) < 2:
        raise ValueError(f"samples has {len(samples)} micro-batches, and the check needs 2")
    with kept_generators(), _kept_buffers(model):
        first = _computed(model, loss_of, samples[0])
    with kept_generators(), _kept_buffers(model):
        _computed(model, loss_of, samples[1])
    with kept_generators(), _kept_buffers(model):
        again = _computed(model, loss_of, samples[0])
    reasons = "it keeps a state from one micro-batch for the next, draws from a generator of its own, or has no deterministic kernel"
    for (name, one), (other_name, other) in zip(first.outputs, again.outputs):
        if name != other_name:
            raise RuntimeError(f"the model computes {name or 'itself'!r} in one pass, and {other_name!r} instead in a second one over the same data")
        if one != other:
            raise RuntimeError(f"the output of {name or 'the model'!r} differs between two passes over the same data: {reasons}")
    if len(first.outputs) != len(again.outputs):
        raise RuntimeError("the model calls more modules in one pass than in another over the same data")
    # The gradients of the last layers are computed first.
    for name in reversed(first.gradients):
        if first.gradients[name] != again.gradients[name]:
            raise RuntimeError(f"the gradient of {name!r} differs between two passes over the same data, though all outputs are the same: {reasons}")
