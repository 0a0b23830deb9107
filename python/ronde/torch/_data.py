"""`ShardLoader`: the batches of a data set, divided into logical shards."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

from ronde import Batches
from ronde.torch._members import Members
from ronde.torch._seeds import kept_generators, seed_all, seed_of


class ShardBatch:
    """A global batch: `ExactDataParallel.shards` gives its micro-batches."""

    def __init__(
        self, step: int, epoch: int, counts: list[int], mine: range, data: Iterator[Any], load_other: Callable[[int], Any] | None = None
    ) -> None:
        #: The number of the step, from 0 over all epochs.
        self.step = step
        #: The number of the epoch, from 0.
        self.epoch = epoch
        #: The number of samples of each logical shard, on all workers.
        self.counts = counts
        #: The logical shards of this worker.
        self.mine = mine
        self._data = data
        self._load_other = load_other
        self._taken = 0
        self._is_over = False

    @property
    def samples(self) -> int:
        """The number of samples of the batch, over all workers."""
        return sum(self.counts)

    def take(self) -> Iterator[tuple[int, Any]]:
        """Returns the number and the data of each shard of this worker that has samples. It can be called once."""
        if self._is_over:
            raise RuntimeError(f"the loader is beyond step {self.step}: use a batch before the next one is loaded")
        if self._taken:
            raise RuntimeError(f"the shards of step {self.step} were taken already")
        for shard in self.mine:
            if self.counts[shard] > 0:
                self._taken += 1
                yield shard, next(self._data)

    def other(self) -> Any:
        """Returns the data of some shard, of any worker."""
        assert self._load_other is not None
        return self._load_other(next(shard for shard, count in enumerate(self.counts) if count > 0))

    def skip(self) -> None:
        """Drops the shards that were not taken."""
        left = sum(self.counts[shard] > 0 for shard in self.mine) - self._taken
        for _ in range(left):
            next(self._data)
        self._is_over = True


class _ShardDataset(Dataset[Any]):
    """A data set whose random augmentation depends on the sample's step and shard, and not on the process that loads it."""

    def __init__(self, dataset: Dataset[Any], seed: int) -> None:
        self._dataset = dataset
        self._seed = seed

    def __getitems__(self, request: list[int]) -> list[Any]:
        step, shard, *samples = request
        with kept_generators():
            seed_all(seed_of(self._seed, "load", step, shard))
            several = getattr(self._dataset, "__getitems__", None)
            if several is not None:
                return list(several(samples))
            return [self._dataset[sample] for sample in samples]


class ShardRequests:
    """The requests for the shards of one worker, from a step to the end of its epoch: step, shard, then the samples."""

    def __init__(self, batches: Batches, steps: range, mine: range) -> None:
        self._batches = batches
        self._steps = steps
        self._mine = mine

    def __iter__(self) -> Iterator[list[int]]:
        for step in self._steps:
            counts = self._batches.counts(step)
            for shard in self._mine:
                if counts[shard] > 0:
                    yield [step, shard, *self._batches.samples(step, shard)]


class ShardLoader:
    """Loads a data set in batches that are divided into logical shards. The order depends on `seed` alone, each `for` loop runs over one
    epoch, and the next one continues with the next epoch.

    `dataset` has a length, and items by number. `batch` is the number of samples of a step over all workers. With `interleaved`, which
    `ExactFSDP` needs, one of n workers loads every n-th shard; without it, which `ExactDataParallel` needs, a range of them. Further arguments, such as
    `num_workers`, `collate_fn` or `pin_memory`, are those of `torch.utils.data.DataLoader`.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        batch: int,
        shards: int,
        *,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = True,
        interleaved: bool = False,
        group: dist.ProcessGroup | None = None,
        **options: Any,
    ) -> None:
        unusable = {"batch_size", "sampler", "batch_sampler", "worker_init_fn", "generator"} & options.keys()
        if unusable:
            raise TypeError(f"{min(unusable)}= cannot be set: ShardLoader chooses the samples of each shard")
        samples = len(dataset)  # type: ignore[arg-type]
        self.batches = Batches(samples, batch, shards, seed=seed, shuffle=shuffle, drop_last=drop_last)
        self._dataset = _ShardDataset(dataset, seed)
        members = Members(group)
        self._mine = members.assignment(shards, interleaved)[members.rank]
        self._options = options
        self._next = 0

    def __len__(self) -> int:
        """The number of batches of an epoch."""
        return self.batches.steps_per_epoch

    @property
    def step(self) -> int:
        """The number of the next step, over all epochs."""
        return self._next

    def state_dict(self) -> dict[str, int]:
        """Returns the position: the number of the next step."""
        return {"step": self._next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continues at a position that `state_dict` returned."""
        self._next = int(state["step"])

    def __iter__(self) -> Iterator[ShardBatch]:
        epoch_steps = len(self)
        end = (self._next // epoch_steps + 1) * epoch_steps
        steps = range(self._next, end)
        mine = self._mine
        requests = ShardRequests(self.batches, steps, mine)
        data = iter(self.load(requests))
        for step in steps:
            counts = self.batches.counts(step)
            batch = ShardBatch(step, self.batches.epoch(step), counts, mine, data, functools.partial(self._load_one, step))
            self._next = step + 1
            yield batch
            batch.skip()

    def _load_one(self, step: int, shard: int) -> Any:
        """Loads the data of one shard in this process."""
        request = [step, shard, *self.batches.samples(step, shard)]
        options = {name: value for name, value in self._options.items() if name in ("collate_fn", "pin_memory")}
        return next(iter(DataLoader(self._dataset, batch_sampler=[request], **options)))

    def load(self, requests: Any) -> DataLoader[Any]:
        """Returns a loader for requests: lists of a step, a shard and the samples."""
        return DataLoader(self._dataset, batch_sampler=requests, **self._options)
