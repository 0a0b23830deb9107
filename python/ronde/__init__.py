"""ronde: distributed training whose result does not depend on the cluster.

`ronde.torch` trains PyTorch models with the same bits on any number of workers. This module has what it is made of, without
PyTorch: batches and logical shards, training loops that outlive their workers, process groups.
"""

from ronde._native import (
    Batches,
    ComputeStep,
    Group,
    Listener,
    StepLoop,
    StepUpdate,
    __version__,
)

__all__ = [
    "Batches",
    "ComputeStep",
    "Group",
    "Listener",
    "StepLoop",
    "StepUpdate",
    "__version__",
]
