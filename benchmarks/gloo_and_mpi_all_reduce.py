#!/usr/bin/env python3
"""Measures all-reduce with Gloo (through PyTorch) and Open MPI, interleaved in the same processes: alone, or in turns with ronde.

    mpirun --allow-run-as-root --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 --mca btl self,vader \
        -n N python3 gloo_and_mpi_all_reduce.py [--sizes 4096,...] [--rounds 5] [--json FILE]

`ronde bench --against gloo,mpi` starts it with `--turns SOCKET`: every rank then connects to that socket and sleeps in a read
until it receives a command to run a backend, so that it takes no core from the program whose turn it is.

Needs: apt openmpi-bin libopenmpi-dev; pip mpi4py numpy torch (the CPU is used). One blocking f32 sum in place at a time.
Random data, different on each rank and new every few operations; the whole result of the last operation of every turn is
compared with a sum in f64. Several buffers are used in rotation, so that large sizes are read from memory as far as possible.
Times are those of rank 0. OMP_NUM_THREADS=1 is assumed.
"""
import argparse
import json
import os
import socket
import sys
import time
import traceback

import numpy as np
from mpi4py import MPI

parser = argparse.ArgumentParser()
parser.add_argument("--backends", default="gloo,mpi")
parser.add_argument("--sizes", default="8,4096,65536,1048576,16777216,67108864")
parser.add_argument("--rounds", type=int, default=5)
parser.add_argument("--budget", type=float, default=0.25, help="seconds per backend, size and round")
parser.add_argument("--buffers", type=int, default=4, help="buffers used in rotation from 1 MiB upward")
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--json")
parser.add_argument("--ranks", type=int, help="the number of ranks that mpirun starts; another number is an error")
parser.add_argument("--turns", metavar="SOCKET", help="take turns with `ronde bench` over this socket")
args = parser.parse_args()

world = MPI.COMM_WORLD
rank, world_size = world.Get_rank(), world.Get_size()
if args.ranks not in (None, world_size):
    sys.exit(
        f"mpirun has started {args.ranks} ranks, but mpi4py finds {world_size}: it was built for another MPI, "
        f"{MPI.Get_library_version().splitlines()[0]}"
    )
backends = args.backends.split(",")
REUSES = 8


def start_gloo():
    global torch, dist
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = world.bcast(s.getsockname()[1] if rank == 0 else None, 0)
    os.environ.update(
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(world_size), GLOO_SOCKET_IFNAME="lo"
    )
    dist.init_process_group("gloo")


class Data:
    """The input, the reference and the buffers of one size."""

    def __init__(self, size: int, buffers: int):
        self.key = (size, buffers)
        count = max(size // 4, 1)

        def draw(of: int) -> np.ndarray:
            return np.random.default_rng([args.seed, of]).random(count, dtype=np.float32) * 2 - 1

        self.input = draw(rank)
        self.expected = np.zeros(count, dtype=np.float64)
        for of in range(world_size):
            self.expected += draw(of)
        self.expected = self.expected.astype(np.float32)
        self.tolerance = world_size**2 * np.finfo(np.float32).eps
        # The buffers in rotation, and the one that is checked.
        self.arrays = [np.empty(count, dtype=np.float32) for _ in range(buffers + 1)]

    def check(self, backend: str, got: np.ndarray):
        wrong = ~(np.abs(got - self.expected) <= self.tolerance)
        if wrong.any():
            at = int(np.argmax(wrong))
            raise ValueError(f"{backend}, {self.key[0]} bytes, rank {rank}, element {at}: got {got[at]}, expected {self.expected[at]}")


data = None


def operation(backend: str, array: np.ndarray):
    if backend == "mpi":
        return lambda: world.Allreduce(MPI.IN_PLACE, array, MPI.SUM)
    tensor = torch.from_numpy(array)
    return lambda: dist.all_reduce(tensor)


def turn(backend: str, size: int, iterations: int, buffers: int, reuses: int):
    """Returns the seconds of each operation and of the whole turn."""
    global data
    if data is None or data.key != (size, buffers):
        data = None  # Frees the previous data first.
        data = Data(size, buffers)
    run = [operation(backend, array) for array in data.arrays]
    data.arrays[buffers][:] = data.input
    times = []
    begin = time.perf_counter()
    for i in range(iterations):
        if i % (buffers * reuses) == 0:
            for array in data.arrays[:buffers]:
                array[:] = data.input
            world.Barrier()
        one = run[buffers if i + 1 == iterations else i % buffers]
        start = time.perf_counter()
        one()
        times.append(time.perf_counter() - start)
    wall = time.perf_counter() - begin
    data.check(backend, data.arrays[buffers])
    return times, wall


def serve(path: str):
    """Executes the commands that arrive over the socket until it is closed."""
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(path)
        s.sendall(json.dumps({"who": "other", "rank": rank}).encode() + b"\n")
        for line in s.makefile("r"):
            todo = json.loads(line)
            times, wall = turn(todo["backend"], todo["bytes"], todo["iterations"], todo["buffers"], todo["reuses"])
            if rank == 0:
                s.sendall(json.dumps({"seconds": times, "wall_s": wall}).encode() + b"\n")


def alone():
    rows = []
    for size in map(int, args.sizes.split(",")):
        buffers = args.buffers if size >= 1 << 20 else 1
        iterations, times = {}, {b: [] for b in backends}
        for b in backends:
            turn(b, size, 1, buffers, REUSES)
            _, wall = turn(b, size, 3, buffers, REUSES)
            iterations[b] = world.bcast(max(3, min(2000, int(args.budget / max(wall / 3, 1e-7)))), 0)
        for round_index in range(args.rounds):
            shift = round_index % len(backends)
            for b in backends[shift:] + backends[:shift]:
                times[b] += turn(b, size, iterations[b], buffers, REUSES)[0]
        for b in backends:
            t = np.array(times[b]) * 1e6
            rows.append(
                dict(backend=b, world_size=world_size, bytes=size, median_us=float(np.median(t)),
                     p10_us=float(np.percentile(t, 10)), min_us=float(t.min()), samples=len(t))
            )
            if rank == 0:
                r = rows[-1]
                print(f"{b:5s} {size:9d} B  median {r['median_us']:10.1f} us  p10 {r['p10_us']:10.1f}  min {r['min_us']:10.1f}"
                      f"  {size / r['median_us'] / 1e3:7.3f} GB/s  n={r['samples']}", flush=True)
    if rank == 0 and args.json:
        with open(args.json, "w") as f:
            json.dump(rows, f, indent=1)


try:
    if "gloo" in backends:
        start_gloo()
    serve(args.turns) if args.turns else alone()
    if "gloo" in backends:
        dist.destroy_process_group()
except (ConnectionError, BrokenPipeError):
    world.Abort(1)
except Exception:
    traceback.print_exc()
    sys.stderr.flush()
    world.Abort(1)
