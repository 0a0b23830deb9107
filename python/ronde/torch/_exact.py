"""`ExactDataParallel`: a model whose gradients are summed over logical shards, with the same bits on any number of workers."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from ronde.torch._gradients import Hooks, parameter_buckets
from ronde.torch._members import Members
from ronde.torch._module import ExactModule, OpenStep
from ronde.torch._sum import BucketSum


class ExactDataParallel(ExactModule):
    """Data parallelism whose result does not depend on the number of workers.

        for batch in loader:                       # a ShardLoader with as many shards
            for x, y in model.shards(batch):       # this worker's logical shards, a micro-batch each
                loss_fn(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()

    After the loop over the shards, every parameter has the gradient of the mean loss over the samples of the batch, with the same bits on
    every worker and on any number of workers. Generators of random numbers are seeded for each shard, and the running statistics of batch
    norms are the mean over shards.

    `shards` is the number of logical shards of a batch; at most as many workers compute, and further ones only follow. `reduction` says
    what the loss of a shard is: its `"mean"` over the samples of the shard, or the `"sum"`, which is divided by the number of samples of the
    batch, or by the targets that `count` names. `reports` are the names of values that `report` takes and `mean` averages. `group` is a
    group of `torch.distributed`, with any backend; by default that of all workers, or this process alone if there is none.

    Cost: the gradients of a batch are exchanged once, bucket by bucket, while the last shard is computed; with workers and shards that are
    powers of two, as many bytes as in `DistributedDataParallel`. Memory: the gradients times the binary logarithm of the shards of a worker,
    plus 3.
    """

    def __init__(
        self,
        module: nn.Module,
        shards: int,
        *,
        seed: int = 0,
        reduction: str = "mean",
        reports: tuple[str, ...] = ("loss",),
        bucket_mib: float = 25.0,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__(module, Members(group), shards, seed, reduction, reports)
        self._members.agree({**self._plan(), "the size of buckets": bucket_mib})
        with torch.no_grad():
            self._members.share([*module.parameters(), *module.buffers()])
        buckets = parameter_buckets(module, int(bucket_mib * 2**20), self._members.size)
        self._sums = [BucketSum(bucket, self._assignment, self._members) for bucket in buckets]
        self._hooks = Hooks(buckets, self._gradient_is_complete)
        #: The number of shards with a gradient, for each parameter of each bucket.
        self._present: list[list[int]] = []
        #: The last shard of this worker that has samples in this step.
        self._last: int | None = None
        #: The number of buckets whose sum was started in this step.
        self._started = 0
        #: The parameters of each bucket whose gradient in the current shard is complete.
        self._complete: list[set[int]] = [set() for _ in buckets]
        #: The buckets that were added for the current shard.
        self._added: set[int] = set()

    def _begin_gradients(self, step: OpenStep) -> None:
        batch = step.batch
        self._last = max((shard for shard in batch.mine if batch.counts[shard] > 0), default=None)
        self._started = 0
        self._begin_shard_gradients()
        for sum_ in self._sums:
            sum_.begin()
            sum_.add_empty_shards(batch)
        self._present = [[0] * len(sum_.bucket.tensors) for sum_ in self._sums]

    def _begin_shard_gradients(self) -> None:
        for complete in self._complete:
            complete.clear()
        self._added.clear()

    def _gradient_is_complete(self, number: int, place: int) -> None:
        """Is called when a gradient of the current shard is complete."""
        bucket = self._sums[number].bucket
        step = self._open
        if step is None or step.shard is None:
            raise RuntimeError(f"backward was called outside of the loop over `model.shards(batch)`: the gradient of {bucket.names[place]!r} would be lost")
        gradient = bucket.tensors[place].grad
        if gradient is not None and gradient.layout != torch.strided:
            raise RuntimeError(f"the gradient of {bucket.names[place]!r} is sparse: sparse gradients cannot be summed exactly")
        if number in self._added:
            raise RuntimeError(
                f"{bucket.names[place]!r} got a second gradient in shard {step.shard}: call backward once for each shard, and use "
                "activation checkpointing with use_reentrant=False"
            )
        complete = self._complete[number]
        complete.add(place)
        if len(complete) == len(bucket.tensors):
            self._add(step, number)

    def _add(self, step: OpenStep, number: int) -> None:
        """Adds the gradients of a bucket in the current shard, and starts the sums that this completes."""
        assert step.shard is not None
        sum_ = self._sums[number]
        gradients = [tensor.grad for tensor in sum_.bucket.tensors]
        for place, gradient in enumerate(gradients):
            self._present[number][place] += gradient is not None
        sum_.add(step.shard, gradients, step.weight(step.shard, self._is_mean))
        for tensor in sum_.bucket.tensors:
            tensor.grad = None
        self._added.add(number)
        # In the same order on all workers.
        while step.shard == self._last and self._started in self._added:
            self._sums[self._started].start()
            self._started += 1

    def _end_shard_gradients(self, step: OpenStep) -> None:
        if not any(self._complete) and not self._added:
            raise RuntimeError(f"no parameter got a gradient in shard {step.shard}: call backward in the loop over `model.shards(batch)`")
        for number in range(len(self._sums)):
            if number not in self._added:
                self._add(step, number)
        self._begin_shard_gradients()

    def _start_sums(self, step: OpenStep) -> None:
        while self._started < len(self._sums):
            self._sums[self._started].start()
            self._started += 1

    def _gradient_facts(self) -> list[int]:
        return [count for counts in self._present for count in counts]

    def _end_gradients(self, divisor: int, facts: list[int]) -> None:
        for sum_ in self._sums:
            sum_.gather(divisor)
        present = iter(facts)
        for sum_ in self._sums:
            for tensor, value in zip(sum_.bucket.tensors, sum_.result(), strict=True):
                tensor.grad = value if next(present) else None
