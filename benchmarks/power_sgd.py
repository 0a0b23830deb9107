#!/usr/bin/env python3
"""Compares PowerSGD of ronde with the communication hook of PyTorch's DistributedDataParallel on Gloo, and both with plain gradients.

    cargo build --release --bins
    python3 benchmarks/power_sgd.py [--workers 2] [--rank 4] [--rounds 5] [--steps 20] [--models resnet18,gpt]

Both train the same shapes with the same batch per worker, one thread each, on this host, in turns. ronde sends over TCP as Gloo does.
Prints the median over rounds of each run's median step. Needs a Python with PyTorch.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
WARM_UP = 3
MODELS = {
    "resnet18": (32, """[data]
source = "synthetic_images"
samples = 8192
shape = [3, 32, 32]
classes = 10
[model]
kind = "resnet18"
small_input = true
[optimizer]
kind = "sgd"
momentum = 0.9
"""),
    "gpt": (8, """[data]
source = "synthetic_text"
samples = 4096
context = 128
tokens = 4096
[model]
kind = "gpt"
layers = 4
width = 256
heads = 4
[optimizer]
kind = "adamw"
"""),
}


def ronde(args, model, rank):
    """Returns the median step of ronde in milliseconds, with PowerSGD if `rank` is not 0."""
    batch, sections = MODELS[model]
    compression = f'[compression]\ncodec = "power_sgd"\nsenders = {args.workers}\nrank = {rank}\n' if rank else ""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "run.toml")
        with open(path, "w", encoding="utf-8") as file:
            file.write(f"""version = 1
[run]
name = "power_sgd"
output = "{folder}/out"
[workers]
count = {args.workers}
logical_shards = {args.workers}
[train]
steps = {args.steps + WARM_UP}
global_batch_size = {batch * args.workers}
learning_rate = 0.001
[schedule]
kind = "constant"
[checkpoint]
at_end = false
[comm]
transport = "tcp"
{sections}{compression}""")
        text = subprocess.run([os.path.abspath(args.program), "train", path, "--json"], check=True, stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, text=True).stdout
    events = [json.loads(line) for line in text.splitlines() if '"event":"step_committed"' in line]
    return statistics.median(1e3 * event["duration_s"] for event in events[WARM_UP:])


def pytorch(args, model, rank):
    """Returns the same of PyTorch."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(args.workers),
               os.path.join(HERE, "pytorch_ddp.py"), model, "--steps", str(args.steps), "--warm-up", str(WARM_UP)]
    if rank:
        command += ["--power-sgd", str(rank)]
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    ended = subprocess.run(command, capture_output=True, text=True, env=environment)
    if ended.returncode:
        sys.exit(ended.stderr)
    return json.loads(ended.stdout.splitlines()[-1])["step_ms"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=os.path.join(HERE, "..", "target", "release", "ronde"))
    parser.add_argument("--models", default="resnet18,gpt")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rank", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    print(f"{'model':10}{'':10}{'ronde ms':>10}{'PyTorch ms':>12}{'times as fast':>15}")
    for model in args.models.split(","):
        forms = [("plain", 0), ("PowerSGD", args.rank)]
        times = {name: ([], []) for name, _ in forms}
        for turn in range(args.rounds):
            for name, rank in forms if turn % 2 else forms[::-1]:
                times[name][0].append(ronde(args, model, rank))
                times[name][1].append(pytorch(args, model, rank))
        for name, _ in forms:
            ours, theirs = (statistics.median(each) for each in times[name])
            print(f"{model:10}{name:10}{ours:10.1f}{theirs:12.1f}{theirs / ours:15.2f}", flush=True)


if __name__ == "__main__":
    main()
