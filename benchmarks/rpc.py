#!/usr/bin/env python3
"""Compares remote calls of ronde with torch.distributed.rpc on TensorPipe: two processes on one host.

    cargo build --release -p ronde-rpc --examples
    python3 benchmarks/rpc.py [--rounds 5] [--json FILE]

Both take turns in each round: the round trip of an empty call (of ronde's, on the thread that receives and on
one of those for functions), calls with 1 MiB of values that return nothing (take) or the
same values (echo), one after the other and 8 at a time, and 5,000 empty calls that are begun together. Prints medians over rounds.
Needs a Python with PyTorch.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import warnings

HERE = os.path.dirname(os.path.abspath(__file__))
TARGET = os.environ.get("CARGO_TARGET_DIR", os.path.join(os.path.dirname(HERE), "target"))
PROGRAM = os.path.join(TARGET, "release", "examples", "call_rates")
EMPTY_CALLS, LARGE_CALLS, CONCURRENT_CALLS = 2000, 200, 5000


def empty():
    return None


def take(values):
    return None


def echo(values):
    return values


def measure():
    """Returns the figures of one round with torch.distributed.rpc."""
    import torch
    from torch.distributed import rpc

    times = []
    for _ in range(EMPTY_CALLS):
        start = time.perf_counter()
        rpc.rpc_sync("callee", empty)
        times.append((time.perf_counter() - start) * 1e6)
    times.sort()
    found = {"empty_us": times[EMPTY_CALLS // 2], "empty_p99_us": times[EMPTY_CALLS * 99 // 100]}
    found["empty_on_thread_us"] = found["empty_us"]
    values = torch.full((1 << 18,), 0.5)
    for function in (take, echo):
        start = time.perf_counter()
        for _ in range(LARGE_CALLS):
            rpc.rpc_sync("callee", function, args=(values,))
        found[f"{function.__name__}_mib_s"] = LARGE_CALLS / (time.perf_counter() - start)
        start = time.perf_counter()
        for _ in range(LARGE_CALLS // 8):
            for call in [rpc.rpc_async("callee", function, args=(values,)) for _ in range(8)]:
                call.wait()
        found[f"{function.__name__}_8_mib_s"] = LARGE_CALLS / (time.perf_counter() - start)
    start = time.perf_counter()
    for call in [rpc.rpc_async("callee", empty) for _ in range(CONCURRENT_CALLS)]:
        call.wait()
    found["concurrent_calls_s"] = CONCURRENT_CALLS / (time.perf_counter() - start)
    return found


def torch_worker(rank, port):
    """Runs one of the two processes; rank 0 warms up and prints the figures."""
    warnings.filterwarnings("ignore")
    import torch
    from torch.distributed import rpc

    torch.set_num_threads(1)
    options = rpc.TensorPipeRpcBackendOptions(num_worker_threads=4, init_method=f"tcp://127.0.0.1:{port}")
    name = "caller" if rank == 0 else "callee"
    # Functions are found by the name of this module, also in the other process.
    rpc.init_rpc(name, rank=rank, world_size=2, rpc_backend_options=options)
    if rank == 0:
        measure()
        print(json.dumps(measure()), flush=True)
    rpc.shutdown()


def torch_round(port):
    command = [sys.executable, "-W", "ignore", "-c", f"import sys; sys.path.insert(0, {HERE!r}); import rpc; rpc.torch_worker(int(sys.argv[1]), {port})"]
    callee = subprocess.Popen(command + ["1"], stderr=subprocess.DEVNULL)
    caller = subprocess.run(command + ["0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=120, check=True)
    callee.wait(timeout=60)
    return json.loads(caller.stdout.splitlines()[-1])


def ronde_round():
    ended = subprocess.run([PROGRAM, "1"], stdout=subprocess.PIPE, text=True, timeout=120, check=True)
    return json.loads(ended.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    rounds = []
    for number in range(arguments.rounds):
        rounds.append({"ronde": ronde_round(), "torch": torch_round(29700 + number)})
    print(f"{'':20} {'ronde':>10} {'torch':>10} {'ratio':>7}")
    for key in rounds[0]["ronde"]:
        ronde, torch = (statistics.median(r[side][key] for r in rounds) for side in ("ronde", "torch"))
        print(f"{key:20} {ronde:10.1f} {torch:10.1f} {ronde / torch:7.2f}")
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(rounds, file, indent=1)


if __name__ == "__main__":
    main()
