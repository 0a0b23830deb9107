"""PyTorch models with the same bits on any number of workers.

    import ronde.torch as rt

    rt.deterministic()
    torch.distributed.init_process_group("gloo")      # or "nccl"; without it: one worker
    model = rt.ExactDataParallel(model, shards=8, seed=1)
    for batch in rt.ShardLoader(dataset, batch=256, shards=8, seed=1):
        for x, y in model.shards(batch):              # this worker's logical shards, a micro-batch each
            loss_fn(model(x), y).backward()
        rt.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    print(rt.model_hash(model))

A global batch is divided into logical shards, whose number is a setting like the size of the batch. Each worker computes the
gradients of its shards one by one, and they are added along a binary tree whose order depends on the number of shards alone. So the
trained bits are the same on 1, 2, 3 or 8 workers.
"""

from ronde.torch._check import check_model
from ronde.torch._data import ShardBatch, ShardLoader
from ronde.torch._elastic import ElasticTraining
from ronde.torch._environment import deterministic
from ronde.torch._exact import ExactDataParallel
from ronde.torch._fsdp import ExactFSDP
from ronde.torch._hash import model_hash
from ronde.torch._norm import clip_grad_norm_

__all__ = [
    "ElasticTraining",
    "ExactDataParallel",
    "ExactFSDP",
    "ShardBatch",
    "ShardLoader",
    "check_model",
    "clip_grad_norm_",
    "deterministic",
    "model_hash",
]
