"""Causal attention of the kernels against PyTorch's scaled_dot_product_attention, forward and backward, on one thread.

    cargo build --release -p ronde-kernels --examples
    python3 benchmarks/attention.py target/release/examples/attention_rates [--tokens 512,1024,4096] [--rounds 5]

Both take turns; a turn is the median of several calls, and the table has the medians of the turns.
"""

import argparse
import statistics
import subprocess
import time

import torch
import torch.nn.functional as F

WIDTH = 64


def pytorch(tokens, heads, repeats):
    """Returns the median milliseconds of the forward and the backward pass."""
    shape = (1, heads, tokens, WIDTH)
    q, k, v = (torch.randn(shape, requires_grad=True) for _ in range(3))
    dy = torch.randn(shape)
    times = ([], [])
    for _ in range(repeats + 1):
        begin = time.perf_counter()
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        middle = time.perf_counter()
        y.backward(dy)
        times[0].append((middle - begin) * 1e3)
        times[1].append((time.perf_counter() - middle) * 1e3)
        q.grad = k.grad = v.grad = None
    return [statistics.median(each[1:]) for each in times]


def ronde(program, tokens, heads, repeats):
    given = [program, str(tokens), str(heads), str(repeats)]
    return [float(x) for x in subprocess.run(given, capture_output=True, check=True, text=True).stdout.split()]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("--tokens", default="512,1024,4096")
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print("tokens | ronde: forward, backward, ms | PyTorch | ratio of the sums")
    for tokens in map(int, args.tokens.split(",")):
        repeats = max(3, 8192 // tokens)
        rounds = ([], [])
        for number in range(args.rounds):
            turns = [lambda: ronde(args.program, tokens, args.heads, repeats),
                     lambda: pytorch(tokens, args.heads, repeats)]
            for index in (0, 1) if number % 2 == 0 else (1, 0):
                rounds[index].append(turns[index]())
        ours, theirs = ([statistics.median(turn[i] for turn in side) for i in (0, 1)] for side in rounds)
        ratio = statistics.median(sum(b) / sum(a) for a, b in zip(*rounds))
        print(f"{tokens} | {ours[0]:.2f}, {ours[1]:.2f} | {theirs[0]:.2f}, {theirs[1]:.2f} | {ratio:.2f}", flush=True)


if __name__ == "__main__":
    main()
