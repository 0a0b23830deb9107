"""A hash of a model, to compare the results of runs."""

from __future__ import annotations

import hashlib

import torch
from torch.distributed.tensor import DTensor


def model_hash(model: torch.nn.Module) -> str:
    """Returns the SHA-256 of all parameters and persistent buffers: names, types, shapes and bits. A wrapper such as
    `ExactDataParallel` does not change it. All workers call it if the model is divided among them."""
    digest = hashlib.sha256()
    state = model.state_dict()
    is_wrapped = bool(state) and all(name.startswith("module.") for name in state)
    for name in sorted(state):
        value = state[name]
        if not isinstance(value, torch.Tensor):
            continue
        bare = name.removeprefix("module.") if is_wrapped else name
        digest.update(f"{bare} {value.dtype} {tuple(value.shape)}\n".encode())
        whole = value.full_tensor() if isinstance(value, DTensor) else value
        values = whole.detach().cpu().contiguous().reshape(-1)
        if values.numel() > 0:
            digest.update(values.view(torch.uint8).numpy().data)
    return digest.hexdigest()
