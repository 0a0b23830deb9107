"""The state of a training as arrays of float32 that ronde compares and copies: tensors of any type, and values such as those of a
scheduler."""

from __future__ import annotations

import json
from typing import Any, Protocol

import torch

#: The memory for values that are not tensors, in bytes.
_VALUES_MAX = 1 << 16

#: Optimizers whose state before the first step is the same as zeros.
_ZERO_STATE = (
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.Adamax,
    torch.optim.RAdam,
    torch.optim.RMSprop,
    torch.optim.Adadelta,
)


class Stateful(Protocol):
    """What has a state of plain values, such as a scheduler."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> Any: ...


def create_optimizer_state(optimizer: torch.optim.Optimizer) -> None:
    """Creates the state that an optimizer would create in its first step, so that a worker that joins has memory for it.

    Raises `ValueError` for an optimizer of which it is not known how its state begins.
    """
    parameters = [value for group in optimizer.param_groups for value in group["params"] if value.requires_grad]
    if all(value in optimizer.state for value in parameters):
        return
    if type(optimizer) not in _ZERO_STATE or any(group.get("dampening") for group in optimizer.param_groups):
        names = ", ".join(kind.__name__ for kind in _ZERO_STATE)
        raise ValueError(
            f"it is not known how the state of {type(optimizer).__name__} begins. Known are {names} (SGD without dampening); for another one, "
            "create its state for every parameter before"
        )
    before = [value.detach().clone() for value in parameters]
    for value in parameters:
        value.grad = torch.zeros_like(value)
    optimizer.step()
    with torch.no_grad():
        for value, old in zip(parameters, before, strict=True):
            value.copy_(old)
            value.grad = None
            for part in optimizer.state[value].values():
                if isinstance(part, torch.Tensor):
                    part.zero_()


class _Part:
    """A tensor of the state, and the array under which ronde sees it."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor.detach()
        self._bytes = self._tensor.nbytes
        is_plain = tensor.device.type == "cpu" and tensor.is_contiguous() and self._bytes % 4 == 0
        self._copy = None if is_plain else torch.zeros(-(-self._bytes // 4) * 4, dtype=torch.uint8)
        flat = self._tensor.reshape(-1).view(torch.uint8) if self._copy is None else self._copy
        self.array = flat.view(torch.float32).numpy()

    def put(self) -> None:
        """Writes the tensor to the array, unless both are the same memory."""
        if self._copy is not None:
            flat = self._tensor.contiguous().reshape(-1).view(torch.uint8)
            self._copy[: self._bytes].copy_(flat)

    def get(self) -> None:
        """Writes the array to the tensor."""
        if self._copy is not None:
            values = self._copy[: self._bytes].view(self._tensor.dtype).reshape(self._tensor.shape)
            self._tensor.copy_(values)


class TrainingState:
    """The parameters and buffers of a model, the state of its optimizer, and further values."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, further: list[Stateful]) -> None:
        create_optimizer_state(optimizer)
        tensors = [*model.parameters(), *model.buffers()]
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                states = optimizer.state.get(parameter, {})
                tensors += [part for _, part in sorted(states.items()) if isinstance(part, torch.Tensor)]
        self._parts = [_Part(tensor) for tensor in tensors if tensor.numel() > 0]
        self._optimizer = optimizer
        self._further = further
        self._values = torch.zeros(_VALUES_MAX, dtype=torch.uint8)
        self._text = b""

    def arrays(self) -> list[Any]:
        """Returns the arrays that ronde may overwrite."""
        for part in self._parts:
            part.put()
        self._text = self._encode()
        self._values.zero_()
        self._values[: len(self._text)] = torch.frombuffer(bytearray(self._text), dtype=torch.uint8)
        return [*(part.array for part in self._parts), self._values.view(torch.float32).numpy()]

    def loaded(self) -> None:
        """Takes over what ronde may have written to the arrays."""
        with torch.no_grad():
            for part in self._parts:
                part.get()
        text = bytes(self._values.numpy()).rstrip(b"\0")
        if text != self._text:
            self._decode(text)

    def _encode(self) -> bytes:
        groups = [
            {name: value for name, value in group.items() if isinstance(value, bool | int | float | str | list | tuple) and name != "params"}
            for group in self._optimizer.param_groups
        ]
        values = {"groups": groups, "further": [part.state_dict() for part in self._further]}
        try:
            text = json.dumps(values, sort_keys=True).encode()
        except TypeError as error:
            raise TypeError(f"the state has a value that is neither a tensor of the model nor plain: {error}") from None
        if len(text) > _VALUES_MAX:
            raise ValueError(f"the values of the state that are not tensors need {len(text)} bytes, more than {_VALUES_MAX}")
        return text

    def _decode(self, text: bytes) -> None:
        values = json.loads(text)
        for group, saved in zip(self._optimizer.param_groups, values["groups"], strict=True):
            for name, value in saved.items():
                group[name] = tuple(value) if isinstance(group.get(name), tuple) else value
        for part, saved in zip(self._further, values["further"], strict=True):
            part.load_state_dict(saved)
