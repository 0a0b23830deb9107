#!/usr/bin/env python3
"""Measures the cost of distribution on one host: 2 workers compared with 2 processes without communication.

    cargo build --release
    python3 benchmarks/overhead.py [--rounds 3] [--steps 5] [--shards 2,8,16,64] [--json FILE]

ResNet-18 on 32 x 32 images, one engine thread per process. The variants take turns in each round, so that they have the same
noise; the first step of each run is not measured. Prints the median over rounds of the median samples/s of a run. The two
independent processes have half the batch and half the shards each, so that every process computes the same micro-batches as a
worker of the pair. `share` is the pair's rate relative to theirs.
"""
import argparse
import json
import os
import statistics
import subprocess
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
TARGET = os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))


def start(folder, workers, shards, batch, steps):
    command = [
        os.path.join(TARGET, "release", "ronde"), "train", os.path.join(HERE, "resnet18.toml"), "--json", "--overwrite",
        "--workers", str(workers), "--set", f"workers.logical_shards={shards}", "--set", f"train.global_batch_size={batch}",
        "--set", f"train.steps={steps}", "--set", f"run.output={folder}",
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def rate(process):
    """Returns the median samples/s of a run without its first step, and the workers' times by phase."""
    steps, times = [], {"compute_s": 0.0, "communicate_s": 0.0, "wait_data_s": 0.0}
    out, _ = process.communicate()
    if process.returncode != 0:
        raise SystemExit(f"ronde failed with exit code {process.returncode}")
    for line in out.splitlines():
        event = json.loads(line)
        if event.get("event") == "step_committed":
            steps.append(event["samples"] / event["duration_s"])
        if event.get("event") == "step_times" and event["step"] > 0:
            for name in times:
                times[name] += event[name]
    return statistics.median(steps[1:]), times


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--shards", default="2,8,16,64")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    rows = []
    for shards in [int(s) for s in arguments.shards.split(",")]:
        alone, pair, apart, split = [], [], [], []
        for _ in range(arguments.rounds):
            with tempfile.TemporaryDirectory() as folder:
                one = start(f"{folder}/one", 1, shards, arguments.batch, arguments.steps)
                alone.append(rate(one)[0])
                two = start(f"{folder}/two", 2, shards, arguments.batch, arguments.steps)
                measured, times = rate(two)
                pair.append(measured)
                split.append(times["communicate_s"] / sum(times.values()))
                half = [start(f"{folder}/{i}", 1, shards // 2, arguments.batch // 2, arguments.steps) for i in range(2)]
                apart.append(sum(rate(process)[0] for process in half))
        row = dict(
            shards=shards, one_worker=statistics.median(alone), two_workers=statistics.median(pair),
            two_independent=statistics.median(apart), communication=statistics.median(split),
        )
        row["share"] = statistics.median(p / a for p, a in zip(pair, apart))
        rows.append(row)
        print(
            f"L={shards:3d}  1 worker {row['one_worker']:6.2f}  2 workers {row['two_workers']:6.2f}  2 independent "
            f"{row['two_independent']:6.2f} samples/s  share {100 * row['share']:5.1f} %  communication "
            f"{100 * row['communication']:.1f} %", flush=True)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)


main()
