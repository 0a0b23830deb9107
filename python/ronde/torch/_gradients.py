"""The gradients of a model by logical shard: collected in buckets, with the running statistics of batch norms."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


class Bucket:
    """Tensors of one type on one device that are summed together, as one flat tensor."""

    def __init__(self, names: list[str], tensors: list[torch.Tensor], padded_to: int) -> None:
        self.names = names
        self.tensors = tensors
        self.elements = sum(tensor.numel() for tensor in tensors)
        self.size = -(-self.elements // padded_to) * padded_to

    def views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """Returns the place of each tensor in a flat one, with the shape of the tensor."""
        parts = flat[: self.elements].split([tensor.numel() for tensor in self.tensors])
        return [part.view(tensor.shape) for part, tensor in zip(parts, self.tensors, strict=True)]

    def fill(self, flat: torch.Tensor, values: list[torch.Tensor | None], weight: int) -> None:
        """Writes values times a weight to a flat tensor; zeros where there is none."""
        present = [(view, value) for view, value in zip(self.views(flat), values, strict=True) if value is not None]
        if len(present) < len(values) or self.size > self.elements:
            flat.zero_()
        if present:
            views, found = (list(side) for side in zip(*present, strict=True))
            torch._foreach_copy_(views, found)
        if weight != 1:
            flat.mul_(weight)


def parameter_buckets(model: nn.Module, bytes_max: int, padded_to: int) -> list[Bucket]:
    """Divides the trained parameters into buckets, the last parameter first, because its gradient is complete first."""
    found: dict[tuple[torch.dtype, torch.device], list[tuple[str, torch.Tensor]]] = {}
    buckets = []
    trained = [(name, value) for name, value in model.named_parameters() if value.requires_grad]
    for name, value in reversed(trained):
        open_ = found.setdefault((value.dtype, value.device), [])
        if open_ and sum(other.nbytes for _, other in open_) + value.nbytes > bytes_max:
            buckets.append(open_.copy())
            open_.clear()
        open_.append((name, value))
    buckets.extend(open_ for open_ in found.values() if open_)
    return [Bucket([name for name, _ in each], [value for _, value in each], padded_to) for each in buckets]


class Hooks:
    """Says when the gradient of a parameter is complete, until it is closed."""

    def __init__(self, buckets: list[Bucket], complete: Callable[[int, int], None]) -> None:
        self._handles = []
        for number, bucket in enumerate(buckets):
            for place, tensor in enumerate(bucket.tensors):

                def call(_: torch.Tensor, number: int = number, place: int = place) -> None:
                    complete(number, place)

                self._handles.append(tensor.register_post_accumulate_grad_hook(call))

    def close(self) -> None:
        """Removes the hooks."""
        for handle in self._handles:
            handle.remove()


class BatchNorms:
    """The running statistics of batch norms. Each shard has statistics of its own; those that a step leaves behind are the mean of what
    each of its shards would have left, so they do not depend on which worker had which shard."""

    def __init__(self, model: nn.Module) -> None:
        self._modules = [
            (name, module)
            for name, module in model.named_modules()
            if isinstance(module, _BatchNorm) and module.running_mean is not None
        ]
        tracked = {id(buffer) for _, module in self._modules for buffer in module.buffers(recurse=False)}
        self._others = [(name, buffer) for name, buffer in model.named_buffers() if id(buffer) not in tracked]
        self._versions: list[int] = []
        self._values: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._counts: list[tuple[torch.Tensor, torch.Tensor]] = []

    def training(self) -> list[str]:
        """Returns the names of those that are in training mode. Others keep their statistics."""
        return [name for name, module in self._modules if module.training]

    def buckets(self, padded_to: int, *, only_training: bool = True) -> list[Bucket]:
        """Returns the statistics that the next step changes, or all, by type and device."""
        found: dict[tuple[torch.dtype, torch.device], list[tuple[str, torch.Tensor]]] = {}
        for name, module in self._modules:
            for which in ("running_mean", "running_var") if module.training or not only_training else ():
                value = getattr(module, which)
                found.setdefault((value.dtype, value.device), []).append((f"{name}.{which}", value))
        groups = list(found.values())
        return [Bucket([name for name, _ in each], [value for _, value in each], padded_to) for each in groups]

    def training_statistics(self) -> set[str]:
        """Returns the names of the statistics that the next step changes."""
        return {f"{name}.{which}" for name in self.training() for which in ("running_mean", "running_var")}

    def begin_step(self) -> None:
        """Keeps the statistics with which each shard of a step begins."""
        training = [module for _, module in self._modules if module.training]
        values = [value for module in training for value in (module.running_mean, module.running_var) if value is not None]
        counts = [module.num_batches_tracked for module in training if module.num_batches_tracked is not None]
        self._values = [(value, value.clone()) for value in values]
        self._counts = [(count, count.clone()) for count in counts]
        self._versions = [buffer._version for _, buffer in self._others]

    def begin_shard(self) -> None:
        """Gives a shard the statistics from before the step."""
        with torch.no_grad():
            for value, before in self._values + self._counts:
                value.copy_(before)

    def check(self) -> None:
        """Refuses a model whose forward pass changes buffers whose value would depend on the order of shards."""
        for (name, buffer), before in zip(self._others, self._versions, strict=True):
            if buffer._version != before:
                raise RuntimeError(
                    f"the forward pass changed the buffer {name!r}: its value would depend on which worker computes which shard. "
                    "Only the running statistics of batch norms are averaged over shards"
                )

    def end_step(self, computed: int) -> None:
        """Counts one step, if any shard was computed."""
        with torch.no_grad():
            for count, before in self._counts:
                count.copy_(before + 1 if computed else before)
            for value, before in self._values if not computed else []:
                value.copy_(before)


def refuse(model: nn.Module) -> None:
    """Refuses models whose result would depend on the number of workers.

    Raises `ValueError`.
    """
    for name, module in model.named_modules():
        if isinstance(module, nn.SyncBatchNorm):
            raise ValueError(
                f"{name}: SyncBatchNorm computes statistics over workers. Use BatchNorm: its statistics are those of a logical shard, "
                "on any number of workers"
            )
        if getattr(module, "sparse", False) and isinstance(module, nn.Embedding | nn.EmbeddingBag):
            raise ValueError(f"{name}: sparse gradients cannot be summed exactly; create the embedding with sparse=False")
    for name, value in model.named_parameters():
        if value.layout != torch.strided or value.is_complex():
            raise ValueError(f"{name}: only dense tensors of real numbers can be trained, not {value.dtype}, {value.layout}")
        if isinstance(value, nn.parameter.UninitializedParameter):
            raise ValueError(f"{name} has no shape yet: call the model once before it is wrapped")
