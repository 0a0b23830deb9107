"""The workers of a run: a group of `torch.distributed`, or this process alone."""

from __future__ import annotations

import torch
import torch.distributed as dist


class Members:
    """The workers that train a model together."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.is_alone = group is None and not (dist.is_available() and dist.is_initialized())
        self.group = group
        self.rank = 0 if self.is_alone else dist.get_rank(group)
        self.size = 1 if self.is_alone else dist.get_world_size(group)
        if self.rank < 0:
            raise ValueError("this process is not a member of the group")

    def assignment(self, shards: int, interleaved: bool) -> list[range]:
        """Returns the logical shards of each worker: ranges as even as possible, the first ones longer by one; or interleaved, every n-th
        shard for n workers. Workers that exceed the number of shards have none."""
        if interleaved:
            return [range(rank, shards, self.size) for rank in range(self.size)]
        computing = min(self.size, shards)
        return [even_range(shards, computing, rank) if rank < computing else range(0) for rank in range(self.size)]

    def agree(self, what: dict[str, object]) -> None:
        """Compares facts that all workers must share.

        Raises `RuntimeError` on every worker if two differ, with the name of the fact and the values.
        """
        if self.size == 1:
            return
        everyone: list[dict[str, object]] = [{} for _ in range(self.size)]
        dist.all_gather_object(everyone, what, group=self.group)
        for name in what:
            values = [facts.get(name) for facts in everyone]
            differing = next((rank for rank, value in enumerate(values) if value != values[0]), None)
            if differing is not None:
                raise RuntimeError(
                    f"the workers differ in {name}: {_short(values[0])} on rank 0, {_short(values[differing])} on rank "
                    f"{differing}; the trained bits depend on it, so make them equal"
                )

    def share(self, tensors: list[torch.Tensor]) -> None:
        """Overwrites tensors by those of the first worker."""
        if self.size == 1:
            return
        source = dist.get_global_rank(self.group, 0) if self.group is not None else 0
        for tensor in tensors:
            dist.broadcast(tensor, src=source, group=self.group)


def even_range(length: int, parts: int, part: int) -> range:
    """Returns part `part` of `0..length`, divided into `parts` ranges whose lengths differ by at most one, longer ones first."""
    base, longer = divmod(length, parts)
    start = part * base + min(part, longer)
    return range(start, start + base + (part < longer))


def _short(value: object) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 120 else text[:117] + "..."
