#!/usr/bin/env python3
"""Compares the quality of k-means and matrix factorisation with scikit-learn and PyTorch, on the same data.

    cargo build --release
    python3 benchmarks/model_quality.py kmeans [--seeds 5]
    python3 benchmarks/model_quality.py factorisation [--seeds 5]

`kmeans`: inertia after Lloyd's algorithm from the same initial centres, which ronde chooses, and of mini-batches. `factorisation`:
the mean squared error of held-out values of the same model, optimizer and schedule in PyTorch. Needs numpy, and scikit-learn or
torch.
"""
import argparse
import gzip
import json
import os
import statistics
import struct
import subprocess
import tempfile

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
RONDE = os.path.join(os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target")), "release", "ronde")


def train(run_file, folder, **sets):
    """Runs ronde and returns its last evaluation and the tensors of the model."""
    command = [RONDE, "train", run_file, "--json", "--overwrite", "--set", f"run.output={folder}/out"]
    for key, value in sets.items():
        command += ["--set", f"{key.replace('__', '.')}={value}"]
    out = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout
    events = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    evaluated = [event for event in events if event.get("event") == "evaluated"][-1]
    with open(f"{folder}/out/model.safetensors", "rb") as file:
        content = file.read()
    length = struct.unpack("<Q", content[:8])[0]
    header, data = json.loads(content[8:8 + length]), content[8 + length:]
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            start, end = entry["data_offsets"]
            tensors[name] = np.frombuffer(data[start:end], np.float32).reshape(entry["shape"])
    return evaluated, tensors


def write_lines(path, columns):
    np.savetxt(path, columns, delimiter=",", fmt="%.9g")


def clusters_of(points, clusters, seed):
    """Prints the inertia of one data set."""
    from sklearn.cluster import KMeans

    with tempfile.TemporaryDirectory() as folder:
        write_lines(f"{folder}/points.csv", np.column_stack([points, np.zeros(len(points))]))
        run_file = f"{folder}/run.toml"
        with open(run_file, "w") as file:
            file.write(
                f"[run]\nseed = {seed}\n[workers]\ncount = 2\n[data]\nsource = 'csv_values'\ntrain = 'points.csv'\n"
                f"test = 'points.csv'\nshape = [{points.shape[1]}]\n[model]\nkind = 'kmeans'\nclusters = {clusters}\n"
                f"[train]\nepochs = 100\nglobal_batch_size = {len(points)}\nlearning_rate = 1.0\n[optimizer]\nkind = 'sgd'\n"
            )
        # A learning rate of zero keeps the initial centres.
        _, initial = train(run_file, folder, train__epochs=1, train__learning_rate=0)
        lloyd, _ = train(run_file, folder)
        small, _ = train(run_file, folder, train__global_batch_size=256, train__epochs=10,
                         train__learning_rate=0.5, schedule__kind="cosine")
    initial = initial["kmeans.centres"].astype(np.float64)
    reference = KMeans(clusters, init=initial, n_init=1, max_iter=100, tol=0, algorithm="lloyd").fit(points)
    print(f"  seed {seed}: ronde {lloyd['inertia']:.4f}, scikit-learn {reference.inertia_:.4f}, "
          f"difference {100 * (lloyd['inertia'] / reference.inertia_ - 1):+.5f} %; "
          f"mini-batches {100 * (small['inertia'] / reference.inertia_ - 1):+.2f} %")
    return lloyd["inertia"] / reference.inertia_ - 1


def kmeans(seeds):
    with gzip.open(os.path.join(ROOT, "crates/data/assets/digits.csv.gz")) as file:
        digits = np.loadtxt(file, delimiter=",")[:, :64] / 16
    random = np.random.default_rng(1)
    groups = random.normal(size=(30, 8)) * 2
    points = (groups[random.integers(30, size=20_000)] + random.normal(size=(20_000, 8))).astype(np.float32)
    for name, data, clusters in [("digits, 10 clusters", digits.astype(np.float32), 10), ("20,000 points, 30 clusters", points, 30)]:
        print(name)
        worst = max(abs(clusters_of(data, clusters, seed)) for seed in range(1, seeds + 1))
        print(f"  greatest difference: {100 * worst:.5f} %")


USERS, ITEMS, FACTORS, NOISE = 300, 200, 4, 0.3
EPOCHS, BATCH, RATE = 10, 256, 0.02


def ratings(seed):
    """Returns training and held-out lines of user, item and value, from a matrix of low rank with noise."""
    random = np.random.default_rng(seed)
    users, items = random.normal(size=(USERS, FACTORS)), random.normal(size=(ITEMS, FACTORS))
    values = users @ items.T / np.sqrt(FACTORS)
    values += 0.5 * (random.normal(size=(USERS, 1)) + random.normal(size=(1, ITEMS))) + NOISE * random.normal(size=values.shape)
    cells = random.permutation(USERS * ITEMS)[:48_000]
    lines = np.column_stack([cells // ITEMS, cells % ITEMS, values.ravel()[cells]])
    return lines[:40_000], lines[40_000:]


def torch_error(training, held_out, seed):
    """Returns the held-out error of the same model in PyTorch."""
    import torch

    torch.manual_seed(seed)
    deviation = 0.1 * np.sqrt(3)
    tables = [torch.empty(rows, FACTORS).uniform_(-deviation, deviation) for rows in (USERS, ITEMS)]
    tables += [torch.zeros(USERS), torch.zeros(ITEMS), torch.zeros(1)]
    for table in tables:
        table.requires_grad_()

    def score(user, item):
        users, items, user_bias, item_bias, bias = tables
        return (users[user] * items[item]).sum(1) + user_bias[user] + item_bias[item] + bias

    def split(lines):
        return torch.tensor(lines[:, 0]).long(), torch.tensor(lines[:, 1]).long(), torch.tensor(lines[:, 2]).float()

    user, item, value = split(training)
    optimizer = torch.optim.Adam(tables, lr=RATE)
    steps = EPOCHS * -(-len(value) // BATCH)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(value)).split(BATCH):
            optimizer.zero_grad()
            (score(user[batch], item[batch]) - value[batch]).square().mean().backward()
            optimizer.step()
            schedule.step()
    user, item, value = split(held_out)
    with torch.no_grad():
        return (score(user, item) - value).square().mean().item()


def factorisation(seeds):
    ratios = []
    for seed in range(1, seeds + 1):
        training, held_out = ratings(seed)
        with tempfile.TemporaryDirectory() as folder:
            write_lines(f"{folder}/train.csv", training)
            write_lines(f"{folder}/test.csv", held_out)
            run_file = f"{folder}/run.toml"
            with open(run_file, "w") as file:
                file.write(
                    f"[run]\nseed = {seed}\n[workers]\ncount = 2\n[data]\nsource = 'csv_values'\ntrain = 'train.csv'\n"
                    f"test = 'test.csv'\nshape = [2]\n[model]\nkind = 'matrix_factorisation'\nusers = {USERS}\nitems = {ITEMS}\n"
                    f"factors = {FACTORS}\n[train]\nepochs = {EPOCHS}\nglobal_batch_size = {BATCH}\nlearning_rate = {RATE}\n"
                    f"[optimizer]\nkind = 'adam'\n[schedule]\nkind = 'cosine'\n"
                )
            error = train(run_file, folder)[0]["loss"]
        reference = torch_error(training, held_out, seed)
        ratios.append(error / reference - 1)
        print(f"seed {seed}: ronde {error:.5f}, PyTorch {reference:.5f}, difference {100 * ratios[-1]:+.2f} %")
    print(f"mean difference {100 * statistics.mean(ratios):+.2f} %, greatest {100 * max(ratios, key=abs):+.2f} %; noise {NOISE ** 2:.3f}")


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("what", choices=["kmeans", "factorisation"])
    arguments.add_argument("--seeds", type=int, default=5)
    chosen = arguments.parse_args()
    {"kmeans": kmeans, "factorisation": factorisation}[chosen.what](chosen.seeds)
