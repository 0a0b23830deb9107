"""`ExactFSDP`: a model divided by `fully_shard`, with the bits of `ExactDataParallel` on any number of workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Shard

from ronde.torch._data import ShardBatch
from ronde.torch._members import Members
from ronde.torch._module import ExactModule, OpenStep
from ronde.torch._tree import TreeSum, leaf


class _Pass:
    """A forward and backward pass of all workers, each over another shard."""

    def __init__(self, sources: list[tuple[int, int, bool]], weight: int, is_last: bool) -> None:
        #: The rank, the shard, and whether it has samples, of each worker with a shard, in the order of shards.
        self.sources = sources
        #: The factor of this worker's gradient.
        self.weight = weight
        self.is_last = is_last
        #: The number of divided modules whose gradients were summed.
        self.summed = 0


class _ExactReduceScatter:
    """Sums the gradients of a divided module along the tree over shards. Each pass sends the slices of its gradient to their owners, so a
    worker keeps partial sums of its own slice only. The result is zero until the last pass. Its methods are those of PyTorch's `ReduceScatter`."""

    def __init__(self, shards: int, current: Callable[[], _Pass]) -> None:
        self._shards = shards
        self._current = current
        self._tree = TreeSum(shards)

    def begin(self) -> None:
        """Begins the sum of a step."""
        self._tree.clear()

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Returns memory for a gradient, with any content."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: dist.ProcessGroup, op: Any, async_op: bool = False
    ) -> None:
        """Sums over shards. PyTorch calls it if there are several workers."""
        current = self._current()
        if current.weight != 1:
            input_tensor.mul_(current.weight)
        received = torch.empty_like(input_tensor)
        dist.all_to_all_single(received.view(torch.uint8), input_tensor.view(torch.uint8), group=group)
        self._add(current, received.view(dist.get_world_size(group), -1), output_tensor)

    def alone(self, gradient: torch.Tensor) -> None:
        """Sums over shards in place, for one worker."""
        current = self._current()
        if current.weight != 1:
            gradient.mul_(current.weight)
        self._add(current, gradient.view(1, -1), gradient)

    def _add(self, current: _Pass, received: torch.Tensor, result: torch.Tensor) -> None:
        """Adds the pieces of all workers."""
        for rank, shard, has_samples in current.sources:
            flat = self._tree.memory(received.shape[1], received)
            flat.copy_(received[rank]) if has_samples else flat.zero_()
            self._tree.add(leaf(shard, self._shards), flat)
        if current.is_last:
            (root,) = self._tree.take()
            result.copy_(root)
            self._tree.give_back([root])
        else:
            result.zero_()
        current.summed += 1


class ExactFSDP(ExactModule):
    """A model that `torch.distributed.fsdp.fully_shard` has divided, trained with the bits of `ExactDataParallel`.

        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
        model = rt.ExactFSDP(model, shards=8)
        optimizer = torch.optim.AdamW(model.parameters())
        for batch in rt.ShardLoader(dataset, batch=256, shards=8, interleaved=True):
            for x, y in model.shards(batch):
                loss_fn(model(x), y).backward()
            rt.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

    All arguments are those of `ExactDataParallel`. The group is that of the mesh. All workers build the same model before it is divided, for
    example after `torch.manual_seed`. A module that is divided by itself computes in every shard, or in none.

    In each pass, one of n workers computes one of n consecutive shards, which is why the loader is `interleaved`. If the workers do not divide
    the shards, some compute a micro-batch in the last pass whose gradient is dropped.

    Cost: each pass exchanges as many bytes as with `fully_shard` alone. Memory for sums: a worker's slice of the gradients times the binary
    logarithm of the shards, plus 2.
    """

    interleaved = True

    def __init__(
        self,
        module: nn.Module,
        shards: int,
        *,
        seed: int = 0,
        reduction: str = "mean",
        reports: tuple[str, ...] = ("loss",),
    ) -> None:
        divided = [each for each in module.modules() if isinstance(each, FSDPModule)]
        super().__init__(module, Members(_group_of(module)), shards, seed, reduction, reports)
        self._members.agree({**self._plan(), "torch.initial_seed()": torch.initial_seed()})
        with torch.no_grad():
            self._members.share(list(module.buffers()))
        self._pass: _Pass | None = None
        self._sums = [_ExactReduceScatter(shards, self._current_pass) for _ in divided]
        for each, sum_ in zip(divided, self._sums, strict=True):
            if self._members.size > 1:
                each.set_custom_reduce_scatter(sum_)  # type: ignore[arg-type]
            else:
                each.set_all_reduce_hook(sum_.alone)
            each.set_gradient_divide_factor(1.0)
            each.set_force_sum_reduction_for_comms(True)
            # Zeros for parameters without a gradient in some shards; newer than other parts of the interface.
            if hasattr(each, "set_reduce_scatter_unused_params"):
                each.set_reduce_scatter_unused_params(True)

    def _current_pass(self) -> _Pass:
        if self._open is None or not self._open.is_computing or self._pass is None:
            raise RuntimeError("backward was called outside of the loop over `model.shards(batch)`: its gradients would be lost")
        return self._pass

    def _micro_batches(self, batch: ShardBatch) -> Iterator[tuple[int | None, Any]]:
        size, rank, counts = self._members.size, self._members.rank, batch.counts
        taken = batch.take()
        data: Any = None
        for first in range(0, self._shards, size):
            end = min(first + size, self._shards)
            sources = [(shard - first, shard, counts[shard] > 0) for shard in range(first, end)]
            shard = first + rank
            counts_here = shard < end and counts[shard] > 0
            weight = self._open.weight(shard, self._is_mean) if self._open is not None and counts_here else 1
            self._pass = _Pass(sources, weight, end == self._shards)
            if counts_here:
                _, data = next(taken)
                yield shard, data
            else:
                # Every worker takes part in the exchanges of each pass. What it computes in this one is dropped.
                data = batch.other() if data is None else data
                yield None, data
        self._pass = None

    def _begin_gradients(self, step: OpenStep) -> None:
        for sum_ in self._sums:
            sum_.begin()

    def _end_shard_gradients(self, step: OpenStep) -> None:
        assert self._pass is not None
        if self._pass.summed == 0:
            raise RuntimeError("no parameter got a gradient: call backward in the loop over `model.shards(batch)`")
        if not self._pass.is_last:
            for value in self.module.parameters():
                value.grad = None

    def _gradient_facts(self) -> list[int]:
        return []

    def _end_gradients(self, divisor: int, facts: list[int]) -> None:
        for value in self.module.parameters():
            if value.grad is not None:
                gradient = value.grad
                assert isinstance(gradient, DTensor)
                gradient.to_local().div_(divisor)


def _group_of(module: nn.Module) -> dist.ProcessGroup:
    """Returns the group over which a model is divided.

    Raises `ValueError` if it is not divided as a whole, along the first dimension, over one group.
    """
    meshes = set()
    for name, value in module.named_parameters():
        if not isinstance(value, DTensor):
            raise ValueError(f"{name} is not divided: call torch.distributed.fsdp.fully_shard on the model, and wrap it then")
        if value.device_mesh.ndim != 1:
            raise ValueError(f"{name} is on a mesh of {value.device_mesh.ndim} dimensions: ExactFSDP needs a mesh of one, without replicas")
        if value.placements != (Shard(0),):
            raise ValueError(f"{name} is divided as {value.placements}: ExactFSDP needs parameters that are divided along their first dimension")
        meshes.add(value.device_mesh)
    if len(meshes) != 1:
        raise ValueError(f"the model is on {len(meshes)} meshes: ExactFSDP needs one")
    return meshes.pop().get_group()
