"""`ElasticTraining`: training that continues with the same bits when workers die or join."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from ronde import ComputeStep, StepLoop, StepUpdate
from ronde.torch._data import ShardBatch, ShardLoader, ShardRequests
from ronde.torch._environment import check_deterministic
from ronde.torch._gradients import BatchNorms, Bucket, refuse
from ronde.torch._seeds import seed_all, seed_of
from ronde.torch._state import Stateful, TrainingState


class ElasticTraining:
    """Trains a model on workers that may die and join, with the bits of an undisturbed run on one worker. Start the program by
    `ronde run -n 4 --elastic -- python train.py`.

        training = rt.ElasticTraining(model, optimizer, loader, steps=1000)
        for batch in training:
            for x, y in training.shards(batch):        # this worker's logical shards, a micro-batch each
                loss_fn(model(x), y).backward()

    Each step is a transaction of all workers: when one dies, the others compute its shards and go on, and a new one gets the state from them.
    The state is all parameters and buffers of the model, the state of the optimizer, and what `state` names, such as a scheduler. `update`
    is called when the gradients of a step are final; by default it is `optimizer.step`. Nothing else may change the state. All workers build
    the same model, for example after `torch.manual_seed`.

    `reduction` is that of the loss function, as for `ExactDataParallel`, whose bits this has. Parameters are float32. Cost: a worker's gradients
    are copied for each shard, and summed after the last one; the state is hashed once for each step.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loader: ShardLoader,
        steps: int,
        *,
        seed: int = 0,
        reduction: str = "mean",
        update: Callable[[], Any] | None = None,
        state: Sequence[Stateful] = (),
        name: str = "torch",
    ) -> None:
        if reduction not in ("mean", "sum"):
            raise ValueError(f"reduction={reduction!r}: it is 'mean' or 'sum', as that of the loss function")
        refuse(model)
        trained = [(name, value) for name, value in model.named_parameters() if value.requires_grad]
        if not trained:
            raise ValueError("the model has no parameter that is trained")
        for name_, value in trained:
            if value.dtype != torch.float32:
                raise ValueError(f"{name_} is {value.dtype}: elastic training needs parameters of float32")
        check_deterministic(trained[0][1].device)
        self._parameters = Bucket([name for name, _ in trained], [value for _, value in trained], 1)
        self._norms = BatchNorms(model)
        statistics = self._norms.buckets(1, only_training=False)
        if any(bucket.tensors[0].dtype != torch.float32 for bucket in statistics):
            raise ValueError("elastic training needs batch norms with statistics of float32")
        names = [name for bucket in statistics for name in bucket.names]
        self._statistics = Bucket(names, [value for bucket in statistics for value in bucket.tensors], 1)
        count = len(trained)
        # The gradients, the statistics of batch norms, and for each parameter whether it has a gradient.
        self._flat = torch.zeros(self._parameters.elements + self._statistics.elements + count)
        self._loader = loader
        self._seed = seed
        self._is_mean = reduction == "mean"
        self._update = update or optimizer.step
        self._state = TrainingState(model, optimizer, list(state))
        self._loop = StepLoop(name, loader.batches, steps)
        self._data: tuple[list[int], Iterator[Any]] = ([], iter(()))
        self._step: ComputeStep | None = None
        self._shard: int | None = None
        self._targets: int | None = None
        self._loss: torch.Tensor | float = 0.0
        self._mean_loss = math.nan

    @property
    def is_first(self) -> bool:
        """Whether this worker is the one that reports for all."""
        return self._loop.is_first

    @property
    def loss(self) -> float:
        """The mean of the reported loss over the last batch; not a number if none was reported."""
        return self._mean_loss

    def __iter__(self) -> Iterator[ShardBatch]:
        while True:
            action = self._loop.next(self._state.arrays())
            self._state.loaded()
            match action:
                case None:
                    return
                case StepUpdate():
                    self._apply(action)
                case _:
                    batch = self._batch(action)
                    self._step = action
                    yield batch
                    if self._step is not None:
                        raise RuntimeError(f"the shards of step {batch.step} were not computed: loop over `training.shards(batch)` to its end")

    def shards(self, batch: ShardBatch) -> Iterator[Any]:
        """Returns the data of each logical shard of this worker. The loop body computes the loss and calls `backward`."""
        step = self._step
        if step is None or step.step != batch.step:
            raise RuntimeError(f"step {batch.step} is not the one that is being computed")
        self._norms.begin_step()
        taken = batch.take()
        for shard in batch.mine:
            if batch.counts[shard] == 0:
                self._flat.zero_()
                step.add(shard, self._flat.numpy(), 0.0, 0)
                continue
            number, values = next(taken)
            assert number == shard
            self._shard, self._targets, self._loss = shard, None, 0.0
            self._norms.begin_shard()
            seed_all(seed_of(self._seed, "shard", batch.step, shard))
            yield values
            self._add(step, batch, shard)
        self._shard = None
        self._norms.begin_shard()
        self._loop.reduce_and_vote(step)
        self._step = None

    def report(self, *, loss: torch.Tensor | float) -> None:
        """Notes the loss of the shard that is being computed: the mean over its samples, or the sum if `reduction="sum"`."""
        self._check_computing("report")
        self._loss = loss.detach() if isinstance(loss, torch.Tensor) else loss

    def count(self, targets: int) -> None:
        """Notes the number of targets of the shard that is being computed, with `reduction="sum"`, as `ExactDataParallel.count`."""
        self._check_computing("count")
        if self._is_mean:
            raise RuntimeError('count needs reduction="sum": a mean over the targets of a shard says nothing about their number')
        self._targets = int(targets)

    def _check_computing(self, what: str) -> None:
        if self._shard is None:
            raise RuntimeError(f"{what} belongs into the loop over `training.shards(batch)`")

    def _add(self, step: ComputeStep, batch: ShardBatch, shard: int) -> None:
        gradients = [value.grad for value in self._parameters.tensors]
        if all(gradient is None for gradient in gradients):
            raise RuntimeError(f"no parameter got a gradient in shard {shard}: call backward in the loop over `training.shards(batch)`")
        self._norms.check()
        ends = (self._parameters.elements, self._parameters.elements + self._statistics.elements)
        weight = batch.counts[shard] // math.gcd(*batch.counts) if self._is_mean else 1
        with torch.no_grad():
            self._parameters.fill(self._flat[: ends[0]], gradients, weight)
            self._statistics.fill(self._flat[ends[0] : ends[1]], list(self._statistics.tensors), 1)
            self._flat[ends[1] :] = torch.tensor([float(gradient is not None) for gradient in gradients])
        for value in self._parameters.tensors:
            value.grad = None
        samples = batch.counts[shard]
        targets = samples if self._targets is None else self._targets
        loss = float(self._loss) * (samples if self._is_mean else 1)
        step.add(shard, self._flat.numpy(), loss, targets)

    def _apply(self, update: StepUpdate) -> None:
        """Changes the state by a gradient that is final on all workers."""
        update.copy_gradient(self._flat.numpy())
        counts = self._loader.batches.counts(update.step)
        divisor = sum(counts) // math.gcd(*counts) if self._is_mean else update.targets
        computed = sum(count > 0 for count in counts)
        ends = (self._parameters.elements, self._parameters.elements + self._statistics.elements)
        gradients, statistics, present = self._flat[: ends[0]], self._flat[ends[0] : ends[1]], self._flat[ends[1] :].tolist()
        training = self._norms.training_statistics()
        self._norms.begin_step()
        with torch.no_grad():
            gradients.div_(max(divisor, 1))
            statistics.div_(max(computed, 1))
            for value, view, found in zip(self._parameters.tensors, self._parameters.views(gradients), present, strict=True):
                value.grad = view.to(value.device) if found else None
            if computed:
                for name, value, view in zip(
                    self._statistics.names, self._statistics.tensors, self._statistics.views(statistics), strict=True
                ):
                    if name in training:
                        value.copy_(view)
        self._norms.end_step(computed)
        seed_all(seed_of(self._seed, "step", update.step))
        self._update()
        for value in self._parameters.tensors:
            value.grad = None
        self._mean_loss = update.loss

    def _batch(self, action: ComputeStep) -> ShardBatch:
        """Returns the batch of a step. Data are loaded ahead as long as this worker keeps its shards."""
        batches, step = self._loader.batches, action.step
        shards = [shard for shard, _ in action.shards]
        mine = range(shards[0], shards[-1] + 1) if shards else range(0)
        counts = batches.counts(step)
        expected = [step, mine.start, mine.stop]
        if self._data[0] != expected:
            epoch_steps = batches.steps_per_epoch
            steps = range(step, (step // epoch_steps + 1) * epoch_steps)
            self._data = (expected, iter(self._loader.load(ShardRequests(batches, steps, mine))))
        data = self._data[1]
        is_last = (step + 1) % batches.steps_per_epoch == 0
        self._data = ([] if is_last else [step + 1, mine.start, mine.stop], data)
        used = sum(counts[shard] > 0 for shard in mine)
        return ShardBatch(step, batches.epoch(step), counts, mine, itertools.islice(data, used))
