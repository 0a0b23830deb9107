#!/usr/bin/env python3
"""Compares the quality of trained models with that of the same models in PyTorch.

    cargo build --release
    pip install torch blake3
    python3 benchmarks/network_quality.py inception_v3|bert [--seeds 3] [--workers 2]

Trains the run file of examples/ with ronde, and the same model with PyTorch: equal data, hidden letters, initial weights, order of
the samples, batches per logical shard for batch normalisation, optimizer and schedule; the masks of dropout are PyTorch's. The
models are those of crates/engine/tests/pytorch/gradients.py, whose gradients the tests compare with ronde's. Prints the result
on the test set of both for each seed: the accuracy of inception_v3, the loss of bert.
"""
import argparse
import gzip
import json
import math
import os
import subprocess
import sys
import tempfile
import tomllib

import blake3
import numpy as np
import torch
import torch.nn.functional as F

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
TARGET = os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))
sys.path.insert(0, os.path.join(ROOT, "crates", "engine", "tests", "pytorch"))

from gradients import Weights, gpt, inception  # noqa: E402

INITIAL_WEIGHTS, SHUFFLE, AUGMENTATION = 1, 2, 4


def key(seed, purpose, coordinates=(), name=""):
    """The key of a random stream: crates/core/src/seed.rs."""
    data = seed.to_bytes(8, "little") + purpose.to_bytes(4, "little") + len(coordinates).to_bytes(8, "little")
    data += b"".join(c.to_bytes(8, "little") for c in coordinates) + name.encode()
    digest = blake3.blake3(data, derive_key_context="ronde seed tree, version 1").digest()
    return np.frombuffer(digest[:16], dtype="<u4")


def philox(left, right, block):
    """Random blocks of four words for keys of two words and counters of four: crates/core/src/philox.rs."""
    low = np.uint64(0xFFFFFFFF)
    for _ in range(10):
        first, second = block[0] * np.uint64(0xD2511F53), block[2] * np.uint64(0xCD9E8D57)
        high = first >> np.uint64(32), second >> np.uint64(32)
        block = [high[1] ^ block[1] ^ left, second & low, high[0] ^ block[3] ^ right, first & low]
        left, right = (left + np.uint64(0x9E3779B9)) & low, (right + np.uint64(0xBB67AE85)) & low
    return block


def words(keys, count):
    """`count` words of the stream of each key."""
    keys = np.asarray(keys, dtype=np.uint64).reshape(-1, 4)
    blocks = -(-count // 4)
    shape = (len(keys), blocks)
    counter = [np.broadcast_to(np.arange(blocks, dtype=np.uint64), shape), np.zeros(shape, np.uint64)]
    counter += [np.broadcast_to(keys[:, i:i + 1], shape) for i in (2, 3)]
    return np.stack(philox(keys[:, 0:1], keys[:, 1:2], counter), axis=2).reshape(len(keys), -1)[:, :count]


def uniform(keys, count):
    """`count` numbers of [0, 1) of the stream of each key."""
    return (words(keys, count) >> np.uint64(8)).astype(np.float32) / np.float32(1 << 24)


def permutation(key, length):
    """The order of the samples of an epoch: crates/core/src/permutation.rs."""
    half = max(1, -(-(length - 1).bit_length() // 2))
    mask, drawn = np.uint64((1 << half) - 1), words(key, 4)[0]
    values, found = np.arange(length, dtype=np.uint64), np.zeros(length, bool)
    while not found.all():
        left, right = values >> np.uint64(half), values & mask
        for number in range(4):
            zeros = np.zeros(length, np.uint64)
            counter = [right, zeros, zeros + np.uint64(number), zeros + (drawn[2] ^ drawn[3])]
            mixed = philox(drawn[0], drawn[1], counter)
            left, right = right, left ^ ((mixed[0] | (mixed[1] << np.uint64(32))) & mask)
        values = np.where(found, values, (left << np.uint64(half)) | right)
        found |= values < length
    return torch.tensor(values.astype(np.int64))


class TrainedWeights(Weights):
    """Weights that start as ronde's, with running statistics and dropout."""

    def __init__(self, seed, deviation, dropout):
        super().__init__(torch.float32)
        self.seed, self.deviation, self.dropout = seed, deviation, dropout
        self.statistics = {}

    def initial(self, name, shape):
        if len(shape) == 1:
            return np.full(shape, 1 if name.endswith("gamma") else 0, np.float32)
        fan_in = shape[0] if len(shape) == 2 else math.prod(shape[1:])
        deviation = self.deviation(name) or math.sqrt(2 / fan_in)
        values = uniform(key(self.seed, INITIAL_WEIGHTS, name=name), math.prod(shape)).reshape(shape)
        return (2 * values - 1) * np.float32(math.sqrt(3) * deviation)

    def running(self, name, channels):
        if name not in self.statistics:
            self.statistics[name] = (torch.zeros(channels), torch.ones(channels))
        return self.statistics[name]

    def dropped(self, x):
        return F.dropout(x, self.dropout, self.training)


class Digits:
    """Inception-v3 on the embedded digits: accuracy."""

    def __init__(self, run):
        with gzip.open(os.path.join(ROOT, "crates", "data", "assets", "digits.csv.gz"), "rt") as file:
            rows = np.loadtxt(file, delimiter=",", dtype=np.float32)
        self.images = torch.tensor(rows[:, :64] / 16).reshape(-1, 1, 8, 8)
        self.labels = torch.tensor(rows[:, 64]).long()
        self.train, self.test = range(1437), slice(1437, None)
        self.divisor = run["model"]["width_divisor"]

    def deviation(self, name):
        return 0.01 if name == "fc.weight" else None

    def start_epoch(self, epoch):
        pass

    def loss(self, w, samples):
        scores = inception(w, self.images[samples], self.divisor, 10)
        return F.cross_entropy(scores, self.labels[samples], reduction="sum")

    def counted(self, samples):
        return len(samples)

    def result(self, w):
        logits = inception(w, self.images[self.test], self.divisor, 10)
        return (logits.argmax(1) == self.labels[self.test]).float().mean().item()


class HiddenLetters:
    """The encoder on the embedded novel with hidden letters: mean loss of a hidden letter."""

    def __init__(self, run):
        with gzip.open(os.path.join(ROOT, "crates", "data", "assets", "pride.txt.gz")) as file:
            text = np.frombuffer(file.read(), dtype=np.uint8)
        letters, classes = np.unique(text, return_inverse=True)
        self.context, self.share, self.seed = run["data"]["context"], run["data"]["masked"], run["run"]["seed"]
        self.letters, self.form = len(letters), run["model"]
        end = len(text) - len(text) // 10
        self.train_windows, self.starts = self.windows(classes[:end], 0)
        self.train = range(len(self.train_windows))
        self.shown, self.targets = self.masked(*self.windows(classes[end:], end), 0)
        self.test = (self.shown, self.targets)

    def windows(self, classes, first):
        # As in letters.rs, a window needs a letter after it.
        count = (len(classes) - 1) // self.context
        windows = classes[: count * self.context].reshape(count, self.context)
        return windows, [first + i * self.context for i in range(count)]

    def masked(self, windows, starts, epoch):
        keys = [key(self.seed, AUGMENTATION, (epoch, start)) for start in starts]
        numbers = uniform(keys, 3 * self.context).reshape(len(starts), self.context, 3)
        predicted = numbers[:, :, 0] < np.float64(self.share)
        shown = np.where(predicted & (numbers[:, :, 1] < np.float32(0.8)), self.letters, windows)
        other = np.floor(numbers[:, :, 2] * np.float32(self.letters)).astype(windows.dtype)
        replaced = (numbers[:, :, 1] >= np.float32(0.8)) & (numbers[:, :, 1] < np.float32(0.9))
        shown = np.where(predicted & replaced, other, shown)
        return torch.tensor(shown), torch.tensor(np.where(predicted, windows, -1))

    def deviation(self, name):
        return 0.02

    def start_epoch(self, epoch):
        self.shown, self.targets = self.masked(self.train_windows, self.starts, epoch)

    def of(self, w, shown, targets):
        scores = gpt(w, shown, self.form["layers"], self.form["width"], self.form["heads"], self.letters + 1, causal=False)
        return F.cross_entropy(scores.transpose(1, 2), targets, ignore_index=-1, reduction="sum")

    def loss(self, w, samples):
        return self.of(w, self.shown[samples], self.targets[samples])

    def counted(self, samples):
        return max(1, int((self.targets[samples] >= 0).sum()))

    def result(self, w):
        return self.of(w, *self.test).item() / int((self.test[1] >= 0).sum())


TASKS = {"inception_v3": (Digits, "accuracy"), "bert": (HiddenLetters, "loss")}


def pytorch(run, task):
    """Trains with PyTorch and returns the result on the test set."""
    torch.manual_seed(run["run"]["seed"])
    train, shards = run["train"], run["workers"]["logical_shards"]
    w = TrainedWeights(run["run"]["seed"], task.deviation, run["model"].get("dropout", 0.0))
    task.start_epoch(0)
    with torch.no_grad():
        task.loss(w, torch.arange(2))  # Makes the parameters.
    w.statistics = {}
    decay = run["optimizer"].get("weight_decay", 0.01)
    kept = [p for p in w.all.values() if p.dim() < 2 and train.get("weight_decay_on") == "matrices"]
    others = [p for p in w.all.values() if not any(p is q for q in kept)]
    groups = [{"params": others, "weight_decay": decay}, {"params": kept, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW([g for g in groups if g["params"]], lr=train["learning_rate"])
    batch, count = train["global_batch_size"], len(task.train)
    steps_per_epoch = -(-count // batch)
    steps, warmup = train["epochs"] * steps_per_epoch, run["schedule"].get("warmup_steps", 0)
    step = 0
    for epoch in range(train["epochs"]):
        task.start_epoch(epoch)
        order = permutation(key(run["run"]["seed"], SHUFFLE, (epoch,)), count)
        for samples in order.split(batch):
            done = (step - warmup) / max(1, steps - warmup)
            rate = (step + 1) / warmup if step < warmup else 0.5 * (1 + math.cos(math.pi * done))
            for group in optimizer.param_groups:
                group["lr"] = train["learning_rate"] * rate
            optimizer.zero_grad()
            before, after = w.statistics, []
            for shard in samples.tensor_split(shards):
                if len(shard):
                    w.statistics = {name: tuple(x.clone() for x in both) for name, both in before.items()}
                    (task.loss(w, shard) / task.counted(samples)).backward()
                    after.append((len(shard) / len(samples), w.statistics))
            # As ronde does: the statistics of the shards, weighted by their samples.
            w.statistics = {name: tuple(sum(share * each[name][i] for share, each in after) for i in (0, 1)) for name in after[0][1]}
            if "clip_norm" in train:
                torch.nn.utils.clip_grad_norm_(list(w.all.values()), train["clip_norm"])
            optimizer.step()
            step += 1
    w.training = False
    with torch.no_grad():
        return task.result(w)


def ronde(path, seed, workers, metric):
    """Trains with ronde and returns the result on the test set."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            os.path.join(TARGET, "release", "ronde"), "train", path, "--json", "--overwrite", "--workers", str(workers),
            "--set", f"run.seed={seed}", "--set", f"run.output={os.path.join(folder, 'run')}",
        ]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        if done.returncode != 0:
            raise SystemExit(f"ronde failed with exit code {done.returncode}")
    events = [json.loads(line) for line in done.stdout.splitlines()]
    return [event for event in events if event.get("event") == "evaluated"][-1][metric]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=sorted(TASKS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    make, metric = TASKS[arguments.model]
    path = os.path.join(ROOT, "examples", f"{arguments.model}.toml")
    with open(path, "rb") as file:
        run = tomllib.load(file)
    run["workers"].setdefault("logical_shards", 8)
    results = []
    for seed in range(1, arguments.seeds + 1):
        run["run"]["seed"] = seed
        results.append((ronde(path, seed, arguments.workers, metric), pytorch(run, make(run))))
        print(f"seed {seed}: {metric} ronde {results[-1][0]:.4f}, PyTorch {results[-1][1]:.4f}", flush=True)
    ours, theirs = (sum(column) / len(results) for column in zip(*results))
    print(f"mean of {len(results)}: ronde {ours:.4f}, PyTorch {theirs:.4f}, ratio {ours / theirs:.4f}")


main()
