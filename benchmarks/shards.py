#!/usr/bin/env python3
"""Measures what many logical shards cost: samples per second and peak memory with 2, 16 and 64 shards of the same batch.

    cargo build --release
    python3 benchmarks/shards.py [--models mlp,gpt,resnet18] [--shards 2,16,64] [--workers 1] [--rounds 3] [--binary PATH ...]

A mlp with two hidden layers of 1024 and batches of 512, the gpt of gpt.toml with 64 texts of 128 tokens, and the ResNet-18 of
resnet18.toml with group normalisation and 64 images. The variants take turns in each round; the first step of a run is not
measured. Prints the median over rounds of the median samples/s of a run, its ratio to that of the first number of shards, and the
peak memory of the largest process in MiB. With several binaries, each has its own rows.
"""
import argparse
import json
import os
import statistics
import subprocess
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
TARGET = os.environ.get("CARGO_TARGET_DIR", os.path.join(os.path.dirname(HERE), "target"))

MLP = """version = 1
[run]
name = "mlp"
[data]
source = "synthetic_images"
samples = 8192
shape = [1, 28, 28]
classes = 10
[model]
kind = "mlp"
hidden = [1024, 1024]
[train]
steps = 12
global_batch_size = 512
learning_rate = 0.01
[optimizer]
kind = "sgd"
momentum = 0.9
"""
SETS = {
    "mlp": [],
    "gpt": ["train.global_batch_size=64", "train.steps=5"],
    "resnet18": ["model.normalisation=group", "train.steps=4"],
}


def measure(binary, model, shards, workers):
    """Returns the median samples/s of a run without its first step, and the peak memory of its largest process in MiB."""
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(HERE, f"{model}.toml")
        if model == "mlp":
            file = os.path.join(folder, "mlp.toml")
            with open(file, "w") as out:
                out.write(MLP)
        sets = [*SETS[model], f"workers.logical_shards={shards}", f"run.output={folder}/out", "checkpoint.at_end=false"]
        command = [binary, "train", file, "-n", str(workers), "--json"]
        command += [part for each in sets for part in ("--set", each)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        events = [json.loads(line) for line in process.stdout]
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            raise SystemExit(f"{' '.join(command)} failed with exit code {process.returncode}")
    steps = [event["samples"] / event["duration_s"] for event in events if event.get("event") == "step_committed"]
    return statistics.median(steps[1:]), usage.ru_maxrss / 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", default="mlp,gpt,resnet18")
    parser.add_argument("--shards", default="2,16,64")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--binary", action="append", help="a ronde program; the release build if absent")
    options = parser.parse_args()
    binaries = options.binary or [os.path.join(TARGET, "release", "ronde")]
    shards = [int(each) for each in options.shards.split(",")]
    print("| program | model | shards | samples/s | ratio | MiB |\n|---|---|---|---|---|---|")
    for model in options.models.split(","):
        keys = [(binary, count) for count in shards for binary in binaries]
        found = {key: [] for key in keys}
        for _ in range(options.rounds):
            for key in keys:
                found[key].append(measure(key[0], model, key[1], options.workers))
        for binary in binaries:
            rates = {count: statistics.median(rate for rate, _ in found[binary, count]) for count in shards}
            for count in shards:
                memory = statistics.median(memory for _, memory in found[binary, count])
                ratio = rates[count] / rates[shards[0]]
                print(f"| {os.path.basename(binary)} | {model} | {count} | {rates[count]:.1f} | {ratio:.3f} | {memory:.0f} |", flush=True)


if __name__ == "__main__":
    main()
