"""Writes counted_targets.json: a small GPT after some steps on texts of different lengths, trained by PyTorch.

The loss is `cross_entropy` with `ignore_index` over the whole batch at once. Samples have 0 to 512 counted targets, some shards of
a batch have none, and one batch has none at all: that step makes no update. The model and its weights are those of
crates/engine/tests/pytorch/gradients.py. Of each tensor the file has the products of its change with three rows of fixed
numbers, and the norm of the change.

    python3 counted_targets.py > counted_targets.json
"""

import json
import pathlib
import sys

import numpy as np
import torch
import torch.nn.functional as F

sys.path.insert(0, str(pathlib.Path(__file__).parents[3] / "engine/tests/pytorch"))
from gradients import Weights, gpt  # noqa: E402
from hashed import hashed, name_seed  # noqa: E402

STEPS, BATCH, TOKENS, CLASSES = 20, 10, 512, 23
WITHOUT_TARGETS = 7
CLIP = 0.5


def numbers(name, count, below):
    """Whole numbers below a limit."""
    values = hashed(name_seed(name), count).astype(np.float64)
    return np.floor((values * 0.5 + 0.5) * below).astype(np.int64)


def length(sample):
    """The number of counted targets of a sample of the data set."""
    step, within = divmod(sample, BATCH)
    if step == WITHOUT_TARGETS or (step % 3 == 0 and within in (4, 5)):
        return 0
    return {0: 1, 1: TOKENS}.get(within, 1 + int(numbers(f"length{sample}", 1, TOKENS)[0]))


def batch(step):
    rows = range(step * BATCH, (step + 1) * BATCH)
    tokens = np.stack([numbers(f"tokens{row}", TOKENS, CLASSES) for row in rows])
    labels = np.stack([numbers(f"labels{row}", TOKENS, CLASSES) for row in rows])
    for at, row in enumerate(rows):
        labels[at, length(row):] = -100
    return torch.tensor(tokens), torch.tensor(labels)


def train(optimizer):
    weights = Weights(torch.float64)
    model = lambda tokens: gpt(weights, tokens, 2, 16, 2, CLASSES)
    model(batch(0)[0])
    first = {name: value.detach().clone() for name, value in weights.all.items()}
    optimizer = optimizer(list(weights.all.values()))
    losses = []
    for step in range(STEPS):
        tokens, labels = batch(step)
        if (labels >= 0).sum() == 0:
            losses.append(None)
            continue
        optimizer.zero_grad()
        loss = F.cross_entropy(model(tokens).flatten(0, 1), labels.flatten(), ignore_index=-100)
        loss.backward()
        losses.append(loss.item())
        norm = torch.sqrt(sum((value.grad ** 2).sum() for value in weights.all.values()))
        for value in weights.all.values():
            value.grad *= min(1, CLIP / norm)
        optimizer.step()
    tensors = {}
    for name, value in weights.all.items():
        change = (value.detach() - first[name]).numpy().ravel()
        rows = [hashed(name_seed(f"dot{row}"), change.size).astype(np.float64) for row in range(3)]
        tensors[name] = [float(f"{(change * row).sum():.8e}") for row in rows] + [float(f"{np.linalg.norm(change):.8e}")]
    return {"losses": losses, "tensors": tensors}


def main():
    torch.set_default_dtype(torch.float64)
    print(json.dumps({
        "sgd": train(lambda values: torch.optim.SGD(values, lr=0.2, momentum=0.9)),
        "adam": train(lambda values: torch.optim.AdamW(values, lr=0.003, eps=1e-3, weight_decay=0)),
    }))


if __name__ == "__main__":
    main()
