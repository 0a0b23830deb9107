#!/usr/bin/env python3
"""Compares the step time of PyTorch models whose bits do not depend on the number of workers with that of plain PyTorch, in turns.

    python3 pytorch_exact.py RONDE [--ranks 2] [--rounds 7] [--steps 8] [--models mlp,resnet18,gpt] [--backend gloo]

Needs the installed Python package. RONDE is the command, which starts the ranks. Each rank has one shard of the batch, one thread, and the
models and batches of pytorch_ddp.py. A round trains some steps of each kind; a figure is the median over rounds of the median step.

    ddp     DistributedDataParallel                 exact   ExactDataParallel
    fsdp    fully_shard for each block and the rest exact   ExactFSDP over the same

For the exact kinds the time of loading is not part of a step: the shards of a batch are in memory, as for the plain ones.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time


class Resident:
    """A batch of one shard for each rank, in memory."""

    def __init__(self, rank, size, samples, data):
        self.step, self.counts, self.data = -1, [samples] * size, data
        self.mine, self.samples = range(rank, rank + 1), samples * size

    def next(self):
        self.step += 1
        return self

    def take(self):
        yield self.mine.start, self.data


def kinds(name, rank, size):
    """The four ways to train a model, each as a function that makes one step."""
    import pytorch_ddp
    import torch
    import torch.nn.functional as F
    from torch.distributed.fsdp import fully_shard

    import ronde.torch as rt

    def parts():
        torch.manual_seed(1)
        model, x, y, optimizer = pytorch_ddp.build(name)
        again = lambda parameters: type(optimizer)(parameters, **{key: optimizer.defaults[key] for key in ("lr", "momentum") if key in optimizer.defaults})
        return model, x, y, again

    def divided(model):
        for block in getattr(model, "blocks", model).children():
            if any(True for _ in block.parameters()):
                fully_shard(block)
        return fully_shard(model)

    def plain(wrap):
        model, x, y, optimizer_of = parts()
        model = wrap(model)
        optimizer = optimizer_of(model.parameters())

        def step():
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    def exact(wrap):
        model, x, y, optimizer_of = parts()
        model = wrap(model)
        optimizer = optimizer_of(model.parameters())
        batch = Resident(rank, size, len(x), (x, y))

        def step():
            for inputs, targets in model.shards(batch.next()):
                F.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    return {
        "ddp": plain(lambda model: torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)),
        "exact ddp": exact(lambda model: rt.ExactDataParallel(model, size, reports=())),
        "fsdp": plain(divided),
        "exact fsdp": exact(lambda model: rt.ExactFSDP(divided(model), size, reports=())),
    }


def worker(options):
    import torch
    import torch.distributed as dist

    import ronde.torch as rt

    dist.init_process_group(options.backend)
    rank, size = dist.get_rank(), dist.get_world_size()
    rt.deterministic()
    for name in options.models.split(","):
        steps = kinds(name, rank, size)
        medians = {kind: [] for kind in steps}
        for turn in range(options.rounds + 1):
            for kind, step in steps.items():
                dist.barrier()
                times = []
                for _ in range(options.steps):
                    began = time.perf_counter()
                    step()
                    times.append((time.perf_counter() - began) * 1e3)
                # The first turn warms up.
                if turn > 0:
                    medians[kind].append(statistics.median(times))
        found = {kind: round(statistics.median(values), 2) for kind, values in medians.items()}
        ratios = {kind: round(found["exact " + kind] / found[kind], 3) for kind in ("ddp", "fsdp")}
        if rank == 0:
            print(json.dumps({"model": name, "ranks": size, "step_ms": found, "exact_over_plain": ratios}), flush=True)
        del steps
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("ronde")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--models", default="mlp,resnet18,gpt")
    parser.add_argument("--backend", default="gloo")
    options = parser.parse_args()
    if "RANK" in os.environ:
        return worker(options)
    command = [options.ronde, "run", "-n", str(options.ranks), "--", sys.executable, __file__, *sys.argv[1:]]
    return sys.exit(subprocess.run(command, env=dict(os.environ, OMP_NUM_THREADS="1"), check=False).returncode)


if __name__ == "__main__":
    main()
