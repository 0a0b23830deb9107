"""`ExactDataParallel`: a model whose gradients are summed over logical shards, with the same bits on any number of workers."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import nn

from ronde.torch._data import ShardBatch
from ronde.torch._environment import check_deterministic, environment
from ronde.torch._gradients import BatchNorms, Hooks, parameter_buckets, refuse
from ronde.torch._members import Members
from ronde.torch._seeds import seed_all, seed_of
from ronde.torch._sum import BucketSum


class _OpenStep:
    """A step whose shards are being computed."""

    def __init__(self, batch: ShardBatch, buckets: int) -> None:
        self.batch = batch
        #: The shard that is being computed; none between two of them.
        self.shard: int | None = None
        #: The last shard of this worker that has samples.
        self.last = max((shard for shard in batch.mine if batch.counts[shard] > 0), default=None)
        #: The parameters of each bucket whose gradient in this shard is complete.
        self.complete: list[set[int]] = [set() for _ in range(buckets)]
        #: The buckets that were added for this shard.
        self.added: set[int] = set()
        #: The number of buckets whose sum was started.
        self.started = 0
        self.targets: dict[int, int] = {}
        self.reports: dict[int, dict[str, torch.Tensor | float]] = {}


class ExactDataParallel(nn.Module):
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
        super().__init__()
        if shards < 1:
            raise ValueError(f"shards={shards}: a batch has at least 1 logical shard")
        if reduction not in ("mean", "sum"):
            raise ValueError(f"reduction={reduction!r}: it is 'mean' or 'sum', as that of the loss function")
        refuse(module)
        self.module = module
        self._shards = shards
        self._seed = seed
        self._is_mean = reduction == "mean"
        self._reported = tuple(reports)
        self._members = Members(group)
        trained = [value for value in module.parameters() if value.requires_grad]
        if not trained:
            raise ValueError("the model has no parameter that is trained")
        self._device = trained[0].device
        self._trained = list(map(id, trained))
        check_deterministic(self._device)
        self._members.agree(self._plan(bucket_mib))
        with torch.no_grad():
            self._members.share([*module.parameters(), *module.buffers()])
        buckets = parameter_buckets(module, int(bucket_mib * 2**20), self._members.size)
        self._sums = [BucketSum(bucket, shards, self._members) for bucket in buckets]
        self._hooks = Hooks(buckets, self._gradient_is_complete)
        self._norms = BatchNorms(module)
        self._norm_sums: tuple[list[str], list[BucketSum]] = ([], [])
        self._open: _OpenStep | None = None
        self._left: int | None = None
        self._means: dict[str, float] = {}

    def _plan(self, bucket_mib: float) -> dict[str, object]:
        """Returns what all workers must share."""
        parts = hashlib.sha256()
        for name, value in self.module.named_parameters():
            parts.update(f"{name} {value.dtype} {tuple(value.shape)} {value.requires_grad}\n".encode())
        return {
            "the number of shards": self._shards,
            "the seed": self._seed,
            "the reduction": self._is_mean,
            "the reports": self._reported,
            "the size of buckets": bucket_mib,
            "the parameters": parts.hexdigest(),
            **environment(self._device),
        }

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """Calls the model."""
        return self.module(*inputs, **options)

    def no_sync(self) -> NoReturn:
        """Raises an error: gradients are exchanged once for all shards of a batch."""
        raise RuntimeError("no_sync is not needed: the shards of a batch are its micro-batches, and gradients are exchanged after the last")

    def shards(self, batch: ShardBatch) -> Iterator[Any]:
        """Returns the data of each logical shard of this worker. The loop body computes the loss and calls `backward`; all workers run the
        loop to its end, also those without a shard. After it, the parameters have their gradients."""
        step = self._begin(batch)
        try:
            for shard, data in batch.take():
                self._begin_shard(step, shard)
                yield data
                self._end_shard(step, shard)
            self._end(step)
            self._open = None
        finally:
            if self._open is not None:
                self._open = None
                self._left = batch.step

    def report(self, **values: torch.Tensor | float) -> None:
        """Notes values of the shard that is being computed, such as `loss=loss`: means over its samples, or sums if `reduction="sum"`.
        `mean` returns their mean over the batch."""
        step = self._computing("report")
        unknown = values.keys() - set(self._reported)
        if unknown:
            raise ValueError(f"{min(unknown)!r} is not one of the reports; create the model with reports={(*self._reported, *sorted(unknown))}")
        assert step.shard is not None
        kept = {name: value.detach().clone() if isinstance(value, torch.Tensor) else float(value) for name, value in values.items()}
        step.reports.setdefault(step.shard, {}).update(kept)

    def count(self, targets: int) -> None:
        """Notes the number of targets of the shard that is being computed, such as tokens, with `reduction="sum"`: the sum of the loss is
        divided by the targets of the batch, not by its samples."""
        step = self._computing("count")
        if self._is_mean:
            raise RuntimeError('count needs reduction="sum": a mean over the targets of a shard says nothing about their number')
        assert step.shard is not None
        step.targets[step.shard] = int(targets)

    def mean(self, name: str) -> float:
        """Returns the mean of a reported value over the last batch, with the same bits on any number of workers."""
        if name not in self._means:
            raise KeyError(f"{name!r} was not reported for the last batch")
        return self._means[name]

    def _computing(self, what: str) -> _OpenStep:
        if self._open is None or self._open.shard is None:
            raise RuntimeError(f"{what} belongs into the loop over `model.shards(batch)`")
        return self._open

    def _begin(self, batch: ShardBatch) -> _OpenStep:
        if self._left is not None:
            raise RuntimeError(
                f"the loop over the shards of step {self._left} was left before its end, so the gradients of that step were never summed"
            )
        if self._open is not None:
            raise RuntimeError(f"the loop over the shards of step {self._open.batch.step} has not ended")
        if len(batch.counts) != self._shards:
            raise ValueError(f"the batch has {len(batch.counts)} shards, and the model {self._shards}: give both the same `shards`")
        trained = [value for value in self.module.parameters() if value.requires_grad]
        if list(map(id, trained)) != self._trained:
            raise RuntimeError("the trained parameters of the model have changed since it was wrapped: wrap it again")
        if any(value.grad is not None for value in trained):
            raise RuntimeError(
                "some parameters still have a gradient: call optimizer.zero_grad() after optimizer.step(). "
                "To add up more samples, use larger batches: the shards are the micro-batches"
            )
        training = self._norms.training()
        if training != self._norm_sums[0]:
            buckets = self._norms.buckets(self._members.size)
            self._norm_sums = (training, [BucketSum(bucket, self._shards, self._members) for bucket in buckets])
        self._norms.begin_step()
        step = _OpenStep(batch, len(self._sums))
        self._open = step
        for sum_ in [*self._sums, *self._norm_sums[1]]:
            sum_.begin()
            for shard in batch.mine:
                if batch.counts[shard] == 0:
                    sum_.add(shard, [None] * len(sum_.bucket.tensors), 1)
        self._present = [[0] * len(sum_.bucket.tensors) for sum_ in self._sums]
        return step

    def _begin_shard(self, step: _OpenStep, shard: int) -> None:
        step.shard = shard
        for complete in step.complete:
            complete.clear()
        step.added.clear()
        self._norms.begin_shard()
        seed_all(seed_of(self._seed, "shard", step.batch.step, shard))

    def _gradient_is_complete(self, number: int, place: int) -> None:
        """Is called when a gradient of the current shard is complete."""
        bucket = self._sums[number].bucket
        step = self._open
        if step is None or step.shard is None:
            raise RuntimeError(f"backward was called outside of the loop over `model.shards(batch)`: the gradient of {bucket.names[place]!r} would be lost")
        gradient = bucket.tensors[place].grad
        if gradient is not None and gradient.layout != torch.strided:
            raise RuntimeError(f"the gradient of {bucket.names[place]!r} is sparse: sparse gradients cannot be summed exactly")
        if number in step.added:
            raise RuntimeError(
                f"{bucket.names[place]!r} got a second gradient in shard {step.shard}: call backward once for each shard, and use "
                "activation checkpointing with use_reentrant=False"
            )
        complete = step.complete[number]
        complete.add(place)
        if len(complete) == len(bucket.tensors):
            self._add(step, number)

    def _add(self, step: _OpenStep, number: int) -> None:
        """Adds the gradients of a bucket in the current shard, and starts the sums that this completes."""
        assert step.shard is not None
        sum_ = self._sums[number]
        gradients = [tensor.grad for tensor in sum_.bucket.tensors]
        for place, gradient in enumerate(gradients):
            self._present[number][place] += gradient is not None
        sum_.add(step.shard, gradients, self._weight(step.batch, step.shard))
        for tensor in sum_.bucket.tensors:
            tensor.grad = None
        step.added.add(number)
        # In the same order on all workers.
        while step.shard == step.last and step.started in step.added:
            self._sums[step.started].start()
            step.started += 1

    def _weight(self, batch: ShardBatch, shard: int) -> int:
        """Returns the factor of a shard's gradient: 1 if all shards have as many samples, so that nothing is rounded."""
        return batch.counts[shard] // math.gcd(*batch.counts) if self._is_mean else 1

    def _end_shard(self, step: _OpenStep, shard: int) -> None:
        if not any(step.complete) and not step.added:
            raise RuntimeError(f"no parameter got a gradient in shard {shard}: call backward in the loop over `model.shards(batch)`")
        for number in range(len(self._sums)):
            if number not in step.added:
                self._add(step, number)
        self._norms.check()
        for sum_ in self._norm_sums[1]:
            sum_.add(shard, list(sum_.bucket.tensors), 1)
        step.shard = None

    def _end(self, step: _OpenStep) -> None:
        """Completes the sums of all workers."""
        batch = step.batch
        while step.started < len(self._sums):
            self._sums[step.started].start()
            step.started += 1
        norms = self._norm_sums[1]
        for sum_ in norms:
            sum_.start()
        targets, present = self._exchange_facts(step)
        divisor = targets if not self._is_mean else batch.samples // math.gcd(*batch.counts)
        for sum_ in self._sums:
            sum_.gather(max(divisor, 1))
        computed = sum(count > 0 for count in batch.counts)
        for sum_ in norms:
            sum_.gather(max(computed, 1))
        with torch.no_grad():
            for number, sum_ in enumerate(self._sums):
                values = zip(sum_.bucket.tensors, sum_.result(), present[number], strict=True)
                for tensor, value, shards in values:
                    tensor.grad = value if shards else None
            for sum_ in norms:
                for tensor, value in zip(sum_.bucket.tensors, sum_.result(), strict=True):
                    tensor.copy_(value)
        self._norms.end_step(computed)
        # The same on every worker, whichever shards it had.
        seed_all(seed_of(self._seed, "step", batch.step))

    def _exchange_facts(self, step: _OpenStep) -> tuple[int, list[list[int]]]:
        """Exchanges what the workers know of their shards. Returns the number of targets, and the number of shards with a gradient for each
        parameter. Every number but the latter has one worker that knows it and zeros on the others, so the sums are exact."""
        batch, names = step.batch, self._reported
        columns = 1 + 2 * len(names)
        rows = []
        for shard in range(self._shards):
            found = step.reports.get(shard, {})
            mine = shard in batch.mine
            row: list[Any] = [step.targets.get(shard, batch.counts[shard]) if mine else 0]
            for name in names:
                row += [found.get(name, 0.0), float(name in found)]
            rows.append(row)
        values = [value for row in rows for value in row] + [float(count) for counts in self._present for count in counts]
        tensors = [(place, value) for place, value in enumerate(values) if isinstance(value, torch.Tensor)]
        plain = [0.0 if isinstance(value, torch.Tensor) else float(value) for value in values]
        facts = torch.tensor(plain, dtype=torch.float64, device=self._device)
        for place, value in tensors:
            facts[place] = value.to(torch.float64)
        if self._members.size > 1:
            dist.all_reduce(facts, group=self._members.group)
        numbers = facts.tolist()
        table = [numbers[shard * columns : (shard + 1) * columns] for shard in range(self._shards)]
        targets = int(sum(row[0] for row in table))
        self._means = {}
        for at, name in enumerate(names):
            known = [(row[0], row[1 + 2 * at]) for row in table if row[2 + 2 * at]]
            weights = sum(weight for weight, _ in known)
            if weights:
                total = sum(value * (weight if self._is_mean else 1.0) for weight, value in known)
                self._means[name] = total / weights
        counts = iter(numbers[self._shards * columns :])
        present = [[int(next(counts)) for _ in sum_.bucket.tensors] for sum_ in self._sums]
        return targets, present
