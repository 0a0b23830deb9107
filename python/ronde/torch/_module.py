"""`ExactModule`: the steps of a model that is trained by logical shards, whichever way its gradients are summed."""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import nn

from ronde.torch._data import ShardBatch
from ronde.torch._environment import check_deterministic, environment
from ronde.torch._gradients import BatchNorms, refuse
from ronde.torch._members import Members
from ronde.torch._seeds import seed_all, seed_of
from ronde.torch._sum import BucketSum


class OpenStep:
    """A step whose shards are being computed."""

    def __init__(self, batch: ShardBatch) -> None:
        self.batch = batch
        #: The shard that is being computed; none between two of them, and in a pass that only keeps other workers company.
        self.shard: int | None = None
        self.is_computing = False
        self.targets: dict[int, int] = {}
        self.reports: dict[int, dict[str, torch.Tensor | float]] = {}

    def weight(self, shard: int, is_mean: bool) -> int:
        """Returns the factor of a shard's gradient: 1 if all shards have as many samples, so that nothing is rounded."""
        return self.batch.counts[shard] // math.gcd(*self.batch.counts) if is_mean else 1


class ExactModule(nn.Module, ABC):
    """A wrapper of a model whose gradients are summed over the logical shards of a batch."""

    #: Whether a worker computes every n-th shard, instead of a range of them.
    interleaved = False

    def __init__(self, module: nn.Module, members: Members, shards: int, seed: int, reduction: str, reports: tuple[str, ...]) -> None:
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
        self._members = members
        trained = [value for value in module.parameters() if value.requires_grad]
        if not trained:
            raise ValueError("the model has no parameter that is trained")
        self._device = trained[0].device
        self._trained = list(map(id, trained))
        check_deterministic(self._device)
        self._assignment = members.assignment(shards, self.interleaved)
        self._norms = BatchNorms(module)
        self._norm_sums: tuple[list[str], list[BucketSum]] = ([], [])
        self._open: OpenStep | None = None
        self._left: int | None = None
        self._means: dict[str, float] = {}

    def _plan(self) -> dict[str, object]:
        """Returns what all workers must share."""
        parts = hashlib.sha256()
        for name, value in self.module.named_parameters():
            parts.update(f"{name} {value.dtype} {tuple(value.shape)} {value.requires_grad}\n".encode())
        return {
            "the number of shards": self._shards,
            "the seed": self._seed,
            "the reduction": self._is_mean,
            "the reports": self._reported,
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
            for shard, data in self._micro_batches(batch):
                self._begin_shard(step, shard)
                yield data
                self._end_shard(step)
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
        if step.shard is not None:
            kept = {name: value.detach().clone() if isinstance(value, torch.Tensor) else float(value) for name, value in values.items()}
            step.reports.setdefault(step.shard, {}).update(kept)

    def count(self, targets: int) -> None:
        """Notes the number of targets of the shard that is being computed, such as tokens, with `reduction="sum"`: the sum of the loss is
        divided by the targets of the batch, not by its samples."""
        step = self._computing("count")
        if self._is_mean:
            raise RuntimeError('count needs reduction="sum": a mean over the targets of a shard says nothing about their number')
        if step.shard is not None:
            step.targets[step.shard] = int(targets)

    def mean(self, name: str) -> float:
        """Returns the mean of a reported value over the last batch, with the same bits on any number of workers."""
        if name not in self._means:
            raise KeyError(f"{name!r} was not reported for the last batch")
        return self._means[name]

    @abstractmethod
    def _begin_gradients(self, step: OpenStep) -> None:
        """Begins the sums of a step."""

    @abstractmethod
    def _end_shard_gradients(self, step: OpenStep) -> None:
        """Adds what is left of the gradients of a shard."""

    @abstractmethod
    def _end_gradients(self, divisor: int, facts: list[int]) -> None:
        """Completes the sums of all workers, divides them, and gives each parameter its gradient."""

    @abstractmethod
    def _gradient_facts(self) -> list[int]:
        """Returns numbers that `_end_gradients` needs as sums over the workers."""

    def _start_sums(self, step: OpenStep) -> None:
        """Starts the sums that no shard has started."""

    def _micro_batches(self, batch: ShardBatch) -> Iterator[tuple[int | None, Any]]:
        """Returns the micro-batches of this worker: each the data of a shard, or of none, whose gradient does not count."""
        return batch.take()

    def _computing(self, what: str) -> OpenStep:
        if self._open is None or not self._open.is_computing:
            raise RuntimeError(f"{what} belongs into the loop over `model.shards(batch)`")
        return self._open

    def _begin(self, batch: ShardBatch) -> OpenStep:
        if self._left is not None:
            raise RuntimeError(
                f"the loop over the shards of step {self._left} was left before its end, so the gradients of that step were never summed"
            )
        if self._open is not None:
            raise RuntimeError(f"the loop over the shards of step {self._open.batch.step} has not ended")
        if len(batch.counts) != self._shards:
            raise ValueError(f"the batch has {len(batch.counts)} shards, and the model {self._shards}: give both the same `shards`")
        if batch.mine != self._assignment[self._members.rank]:
            raise ValueError(
                f"the loader gives this worker the shards {list(batch.mine)}, and the model needs {list(self._assignment[self._members.rank])}: "
                f"create the loader with interleaved={self.interleaved}, and with the same group"
            )
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
            self._norm_sums = (training, [BucketSum(bucket, self._assignment, self._members) for bucket in buckets])
        self._norms.begin_step()
        step = OpenStep(batch)
        self._open = step
        for sum_ in self._norm_sums[1]:
            sum_.begin()
            sum_.add_empty_shards(batch)
        self._begin_gradients(step)
        return step

    def _begin_shard(self, step: OpenStep, shard: int | None) -> None:
        step.shard = shard
        step.is_computing = True
        self._norms.begin_shard()
        seed_all(seed_of(self._seed, "shard", step.batch.step, 0 if shard is None else shard))

    def _end_shard(self, step: OpenStep) -> None:
        self._end_shard_gradients(step)
        self._norms.check()
        if step.shard is not None:
            for sum_ in self._norm_sums[1]:
                sum_.add(step.shard, list(sum_.bucket.tensors), 1)
        step.shard = None
        step.is_computing = False

    def _end(self, step: OpenStep) -> None:
        """Completes the sums of all workers."""
        batch = step.batch
        self._start_sums(step)
        norms = self._norm_sums[1]
        for sum_ in norms:
            sum_.start()
        targets, facts = self._exchange_facts(step)
        divisor = targets if not self._is_mean else batch.samples // math.gcd(*batch.counts)
        with torch.no_grad():
            self._end_gradients(max(divisor, 1), facts)
        computed = sum(count > 0 for count in batch.counts)
        for sum_ in norms:
            sum_.gather(max(computed, 1))
        with torch.no_grad():
            for sum_ in norms:
                for tensor, value in zip(sum_.bucket.tensors, sum_.result(), strict=True):
                    tensor.copy_(value)
        self._norms.end_step(computed)
        # The same on every worker, whichever shards it had.
        seed_all(seed_of(self._seed, "step", batch.step))

    def _exchange_facts(self, step: OpenStep) -> tuple[int, list[int]]:
        """Exchanges what the workers know of their shards. Returns the number of targets, and the sums of the facts about gradients. Every
        number but the latter has one worker that knows it and zeros on the others, so the sums are exact."""
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
        values = [value for row in rows for value in row] + self._gradient_facts()
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
        return targets, [int(number) for number in numbers[self._shards * columns :]]
