"""`BucketSum`: the exact sum of a bucket over all logical shards, for any backend of `torch.distributed`.

Only bytes are exchanged; every addition is one of PyTorch's, in the order of the tree:

    each worker: a tree over its own shards -> its few complete subtrees
    all_to_all: the subtrees of a slice go to the worker that owns the slice, which adds them along the tree
    all_gather: every worker gets every slice
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from ronde.torch._data import ShardBatch
from ronde.torch._gradients import Bucket
from ronde.torch._members import Members
from ronde.torch._tree import Node, TreeSum, cover, leaf


class BucketSum:
    """The sum of one bucket. Cost for `n` bytes and a number of workers that divides the shards as powers of two: as many bytes as a plain
    all-reduce, and memory for at most `log2(shards) + 3` copies of the bucket."""

    def __init__(self, bucket: Bucket, assignment: list[range], members: Members) -> None:
        self.bucket = bucket
        self._members = members
        shards = sum(map(len, assignment))
        self._shards = shards
        self._nodes: list[list[Node]] = [cover(mine, shards) for mine in assignment]
        self._tree = TreeSum(shards)
        self._finish = TreeSum(shards)
        self._sent: list[torch.Tensor] = []
        self._received: torch.Tensor | None = None
        self._whole: torch.Tensor | None = None
        self._work: Any = None

    def begin(self) -> None:
        """Begins the sum of a step. The values of the last one are overwritten from now on."""
        self._tree.clear()
        if self._members.size == 1 and self._whole is not None:
            self._tree.give_back([self._whole])
            self._whole = None

    def add(self, shard: int, values: list[torch.Tensor | None], weight: int) -> None:
        """Adds the values of a shard, times a weight."""
        flat = self._tree.memory(self.bucket.size, self.bucket.tensors[0])
        self.bucket.fill(flat, values, weight)
        self._tree.add(leaf(shard, self._shards), flat)

    def add_empty_shards(self, batch: ShardBatch) -> None:
        """Adds zeros for the shards of this worker that have no samples."""
        for shard in batch.mine:
            if batch.counts[shard] == 0:
                self.add(shard, [None] * len(self.bucket.tensors), 1)

    def start(self) -> None:
        """Sends the subtrees of this worker. All workers start the sums of their buckets in the same order."""
        mine = self._tree.take()
        if self._members.size == 1:
            (self._whole,) = mine
            return
        like = self.bucket.tensors[0]
        size, rank = self._members.size, self._members.rank
        part = self.bucket.size // size
        # By the worker that gets it, then by subtree.
        match mine:
            case []:
                send = torch.empty(0, dtype=like.dtype, device=like.device)
            case [one]:
                send = one
            case _:
                send = torch.stack([sums.view(size, part) for sums in mine], 1).flatten()
        if self._received is None:
            total = sum(map(len, self._nodes)) * part
            self._received = torch.empty(total, dtype=like.dtype, device=like.device)
        bytes_ = part * like.element_size()
        self._sent = [*mine, send]
        self._work = dist.all_to_all_single(
            self._received.view(torch.uint8),
            send.view(torch.uint8),
            [len(nodes) * bytes_ for nodes in self._nodes],
            [len(self._nodes[rank]) * bytes_] * size,
            group=self._members.group,
            async_op=True,
        )

    def gather(self, divisor: int) -> None:
        """Adds the subtrees of this worker's slice, divides the sum, and sends it to all."""
        if self._members.size == 1:
            assert self._whole is not None
            self._whole.div_(divisor)
            return
        assert self._received is not None
        self._work.wait()
        *mine, _ = self._sent
        self._tree.give_back(mine)
        self._sent = []
        part = self.bucket.size // self._members.size
        nodes = [node for each in self._nodes for node in each]
        for node, values in zip(nodes, self._received.view(-1, part), strict=True):
            self._finish.add(node, values)
        (root,) = self._finish.take()
        self._finish = TreeSum(self._shards)
        root.div_(divisor)
        if self._whole is None:
            self._whole = torch.empty(self.bucket.size, dtype=root.dtype, device=root.device)
        self._work = dist.all_gather_into_tensor(
            self._whole.view(torch.uint8), root.view(torch.uint8), group=self._members.group, async_op=True
        )

    def result(self) -> list[torch.Tensor]:
        """Returns the sum for each tensor of the bucket, as views that the next step overwrites."""
        if self._work is not None:
            self._work.wait()
            self._work = None
        assert self._whole is not None
        return self.bucket.views(self._whole)
