"""The order of the exact sum: a binary tree over logical shards, the same as that of ronde's core.

A node of level `l` and number `i` is the sum of the shards `i << l` to `(i + 1) << l`. A worker adds
the complete subtrees of its shards, and the worker that owns a slice of the gradient adds the subtrees of all.
"""

from __future__ import annotations

from typing import NamedTuple

import torch


class Node(NamedTuple):
    """A node of the tree."""

    level: int
    number: int


def _lifted(node: Node, shards: int) -> Node:
    """Lifts a node that has no right sibling: it equals its parent, since there is nothing to add."""
    top = Node((shards - 1).bit_length(), 0)
    while node != top and node.number % 2 == 0 and (node.number + 1) << node.level >= shards:
        node = Node(node.level + 1, node.number // 2)
    return node


def leaf(shard: int, shards: int) -> Node:
    """Returns the node of a shard."""
    return _lifted(Node(0, shard), shards)


def _parent(node: Node, shards: int) -> Node:
    return _lifted(Node(node.level + 1, node.number // 2), shards)


def cover(mine: range, shards: int) -> list[Node]:
    """Returns the largest subtrees that hold exactly the shards of a worker, in the order of shards."""
    stack: list[Node] = []
    for shard in mine:
        node = leaf(shard, shards)
        while node.number % 2 == 1 and stack and stack[-1] == Node(node.level, node.number - 1):
            stack.pop()
            node = _parent(node, shards)
        stack.append(node)
    return stack


class TreeSum:
    """Adds tensors along the tree as soon as two siblings are complete. It keeps the memory of those that it has added to others."""

    def __init__(self, shards: int) -> None:
        self._shards = shards
        self._sums: dict[Node, torch.Tensor] = {}
        self._free: list[torch.Tensor] = []

    def memory(self, size: int, like: torch.Tensor) -> torch.Tensor:
        """Returns memory for the next tensor, with any content."""
        if self._free:
            return self._free.pop()
        return torch.empty(size, dtype=like.dtype, device=like.device)

    def add(self, node: Node, values: torch.Tensor) -> None:
        """Adds a node; its memory belongs to the sum from now on."""
        while (sibling := Node(node.level, node.number ^ 1)) in self._sums:
            other = self._sums.pop(sibling)
            left, right = (other, values) if node.number % 2 else (values, other)
            left.add_(right)
            self._free.append(right)
            node, values = _parent(node, self._shards), left
        self._sums[node] = values

    def take(self) -> list[torch.Tensor]:
        """Returns the subtrees that could not be added further, in the order of shards, and starts anew."""
        nodes = sorted(self._sums, key=lambda node: node.number << node.level)
        sums = [self._sums[node] for node in nodes]
        self._sums = {}
        return sums

    def give_back(self, values: list[torch.Tensor]) -> None:
        """Takes memory back that [`TreeSum.take`] gave away."""
        self._free.extend(values)

    def clear(self) -> None:
        """Forgets a sum that was not completed."""
        self._free.extend(self._sums.values())
        self._sums = {}
