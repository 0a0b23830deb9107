"""The part of the package that is written in Rust."""

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias, final

from typing_extensions import Buffer

__version__: str

class _NumpyArray(Protocol):
    @property
    def __array_interface__(self) -> dict[str, Any]: ...

class _HasNumpy(Protocol):
    def numpy(self) -> _NumpyArray: ...

_Array: TypeAlias = Buffer | _NumpyArray

@final
class Batches:
    """The samples of each step. They follow the shuffled order of an epoch, which depends on the seed and on nothing else."""

    def __new__(
        cls, samples: int, batch: int, shards: int, *, seed: int = 0, shuffle: bool = True, drop_last: bool = True
    ) -> Batches:
        """Divides each epoch of `samples` samples into batches of `batch`, and each batch into `shards` logical shards.

        Raises `ValueError` if an epoch has no batch.
        """
    @property
    def shards(self) -> int:
        """The number of logical shards of a batch."""
    @property
    def steps_per_epoch(self) -> int:
        """The number of steps of an epoch."""
    def epoch(self, step: int) -> int:
        """Returns the epoch of a step."""
    def counts(self, step: int) -> list[int]:
        """Returns the number of samples of each shard of a step. They differ by at most one."""
    def samples(self, step: int, shard: int) -> list[int]:
        """Returns the numbers of the samples of a shard of a step.

        Raises `IndexError` if there is no such shard.
        """

@final
class Listener:
    """A listening port; `address` is sent to the other ranks."""

    def __new__(cls, host: str = "127.0.0.1") -> Listener:
        """Listens on a free port of an address of this host."""
    @property
    def address(self) -> str:
        """`host:port`."""

@final
class Group:
    """Connected ranks."""

    @staticmethod
    def connect(
        rank: int, peers: Sequence[str], listener: Listener, transport: str = "auto", timeout_s: float = 60.0
    ) -> Group:
        """Joins the group whose ranks listen at `peers`, this one at `listener`. `transport` is `auto`, `shared_memory` or `tcp`.

        Raises `RuntimeError` if a rank does not come.
        """
    @property
    def rank(self) -> int:
        """This process's rank."""
    @property
    def size(self) -> int:
        """The number of ranks."""
    @property
    def shares_memory(self) -> bool:
        """Whether the ranks share memory."""
    def all_reduce(self, array: _Array | _HasNumpy, op: str = "sum") -> None:
        """Reduces a writable contiguous array, or a tensor that has a `numpy()` view, over all ranks in place. `op` is a name such as
        `sum`, `mean`, `min`, `max`. A KeyboardInterrupt aborts the operation on all ranks.

        Raises `RuntimeError` if a rank is lost, `ValueError` or `TypeError` if the array cannot be reduced in place.
        """
    def abort(self, reason: str) -> None:
        """Ends every wait on all ranks."""
    def close(self) -> None:
        """Leaves the group. Operations of other threads end first."""

@final
class StepLoop:
    """A training loop as a sequence of actions. Each step is a transaction of all workers, so the result has the same bits on any
    number of workers, also when workers are lost or join under `ronde run --elastic`."""

    def __new__(cls, name: str, batches: Batches, steps: int) -> StepLoop:
        """Joins the job that started this process, or begins one of a single worker. All workers pass the same batches and steps."""
    @property
    def is_first(self) -> bool:
        """Whether this is rank 0 of the current generation, which reports for all."""
    def next(self, state: Sequence[_Array]) -> ComputeStep | StepUpdate | None:
        """Returns the next action; `None` after the last step. `state` is everything that an update changes, as writable arrays of
        float32, always with the same lengths: it is compared across the workers, and overwritten on one that joins."""
    def reduce_and_vote(self, step: ComputeStep) -> None:
        """Sums the gradients of a step over all workers and votes on it. An error is returned, or recovered from, by the next call of
        `next`."""

@final
class ComputeStep:
    """A step whose gradients this worker computes."""

    @property
    def step(self) -> int:
        """The number of the step."""
    @property
    def shards(self) -> list[tuple[int, list[int]]]:
        """The shards of this worker, in order: the number of each, and the numbers of its samples."""
    def add(self, shard: int, gradient: _Array, loss: float, targets: int) -> None:
        """Adds the result of the next shard: gradient and loss, as sums over the `targets` targets that count."""

@final
class StepUpdate:
    """A gradient to apply: its step is final on all workers."""

    @property
    def step(self) -> int:
        """The number of the step."""
    @property
    def loss(self) -> float:
        """The mean loss over the targets of all workers."""
    @property
    def targets(self) -> int:
        """The number of targets of all workers."""
    def copy_gradient(self, to: _Array) -> None:
        """Copies the gradient, summed over the targets of all workers, to an array of float32 with as many elements."""
