"""Writes operations.json: outputs and gradients of single operations and losses, computed by PyTorch.

Every case computes the derivatives of `sum(output * fixed)` in double precision. Parameters and inputs are hashes, as in
gradients.py, so only checksums are kept: of each tensor the products with two rows of fixed numbers, and the norm.

    python3 operations.py > operations.json
"""

import json
import math

import numpy as np
import torch
import torch.nn.functional as F

from gradients import Weights, linear
from hashed import hashed, name_seed

PADDING = 0


class RunningWeights(Weights):
    """Parameters, and the running statistics of normalisations."""

    def __init__(self, dtype):
        super().__init__(dtype)
        self.buffers = {}

    def update_running(self, name, x):
        """The mean and the variance without correction, with a momentum of 0.1."""
        mean = x.mean((0, 2, 3))
        variance = x.var((0, 2, 3), unbiased=False)
        self.buffers[f"{name}.running_mean"] = 0.1 * mean
        self.buffers[f"{name}.running_var"] = 0.9 + 0.1 * variance


def own(name):
    """The name of a tensor of the layer under test."""
    return f"layer.{name}"


def conv(outputs, sides, stride=1, padding=0, groups=1, bias=False):
    def of(w, x):
        weight = w(own("weight"), outputs, x.shape[1] // groups, *sides)
        return F.conv2d(x, weight, w(own("bias"), outputs) if bias else None, stride, padding, groups=groups)

    return of


def norm(kind, rectified=False, adds=False, groups=32):
    def of(w, x):
        c = x.shape[1]
        gamma, beta = w("layer.norm.gamma", c), w("layer.norm.beta", c)
        if kind == "group":
            y = F.group_norm(x, groups, gamma, beta, 1e-5)
        else:
            w.update_running("layer.norm", x.detach())
            y = F.batch_norm(x, None, None, gamma, beta, training=True, eps=1e-5)
        y = y + F.gelu(x) if adds else y
        return F.relu(y) if rectified else y

    return of


def row_norm(w, x):
    e = x.shape[-1]
    return F.layer_norm(x, (e,), w(own("gamma"), e), w(own("beta"), e), 1e-5)


def attend(q, both, heads, mask=None, causal=False):
    n, t, e = q.shape
    split = lambda v: v.reshape(n, -1, heads, e // heads).transpose(1, 2)
    found = F.scaled_dot_product_attention(
        split(q), split(both[..., :e]), split(both[..., e:]), attn_mask=mask, is_causal=causal)
    return found.transpose(1, 2).reshape(n, t, e)


def sequence(e, heads, causal=False):
    return lambda w, x: attend(x[..., :e], x[..., e:], heads, causal=causal)


def cross(queries, e, heads):
    return lambda w, x: attend(x[:, :queries, :e], x[:, queries:, e:], heads)


def embed(w, x, tokens, e):
    return w("embedding.token", tokens, e)[x.long()] + w("embedding.position", x.shape[1], e)


def padded(source, tokens, e, heads):
    """Attention to the source without its padding, by all positions."""
    def of(w, x):
        lengths = [int(max((row != PADDING).nonzero().flatten() + 1, default=1)) for row in x[:, :source]]
        seen = torch.arange(source) < torch.tensor(lengths)[:, None]
        vectors = embed(w, x, tokens, e)
        both = linear(w, "embedding.key_value", vectors[:, :source], 2 * e)
        return attend(linear(w, "embedding.query", vectors, e), both, heads, seen[:, None, None, :])

    return of


def tied(w, x):
    return embed(w, x, 11, 6) @ w("embedding.token", 11, 6).T


def positions(w, x):
    return embed(w, x, 11, 6)


WIDE = 6
# name: (shape of the input, how); inputs are in [-1, 1), those of functions of elements in [-6, 6).
CASES = {
    "relu": ((3, 40), lambda w, x: F.relu(x)),
    "gelu": ((3, 40), lambda w, x: F.gelu(x)),
    "silu": ((3, 40), lambda w, x: F.silu(x)),
    "sigmoid": ((3, 40), lambda w, x: torch.sigmoid(x)),
    "tanh": ((3, 40), lambda w, x: torch.tanh(x)),
    "add": ((3, 40), lambda w, x: x + F.gelu(x)),
    "linear": ((3, 4, 70), lambda w, x: linear(w, "layer", x, 50)),
    "linear_without_bias": ((5, 33), lambda w, x: linear(w, "layer", x, 7, bias=False)),
    "convolution": ((3, 16, 13, 11), conv(24, (3, 3), padding=1, bias=True)),
    "convolution_without_bias": ((3, 3, 9, 10), conv(8, (7, 7), 2, 3)),
    "convolution_of_a_rectangle": ((2, 3, 9, 8), conv(5, (4, 2), (2, 1), (1, 0), bias=True)),
    "convolution_1x1": ((3, 64, 7, 7), conv(48, (1, 1))),
    "convolution_1x1_with_bias": ((3, 6, 5, 7), conv(10, (1, 1), bias=True)),
    "convolution_1x1_stride_2": ((3, 6, 7, 5), conv(10, (1, 1), 2)),
    "convolution_1x1_padded": ((3, 6, 5, 4), conv(10, (1, 1), 1, 1, bias=True)),
    "grouped_convolution": ((3, 12, 9, 8), conv(18, (3, 3), 2, 1, groups=3, bias=True)),
    "depthwise_convolution": ((3, 20, 9, 8), conv(20, (3, 3), 2, 1, groups=20, bias=True)),
    "depthwise_convolution_of_two": ((2, 6, 7, 7), conv(12, (5, 5), 1, 2, groups=6)),
    "batch_norm": ((4, 5, 3, 4), norm("batch")),
    "batch_norm_rectified": ((4, 5, 3, 4), norm("batch", rectified=True)),
    "batch_norm_added": ((4, 5, 3, 4), norm("batch", rectified=True, adds=True)),
    "batch_wide_norm": ((4, 5, 3, 4), norm("batch")),
    "batch_wide_norm_rectified": ((4, 5, 3, 4), norm("batch", rectified=True)),
    "batch_wide_norm_added": ((4, 5, 3, 4), norm("batch", rectified=True, adds=True)),
    "group_norm": ((3, 64, 3, 5), norm("group")),
    "group_norm_rectified": ((3, 64, 3, 5), norm("group", rectified=True)),
    "group_norm_added": ((3, 64, 3, 5), norm("group", rectified=True, adds=True)),
    "group_norm_of_3": ((3, 6, 3, 5), norm("group", groups=3)),
    "layer_norm": ((3, 4, 37), row_norm),
    "max_pool": ((3, 4, 9, 8), lambda w, x: F.max_pool2d(x, 2)),
    "max_pool_padded": ((3, 4, 9, 8), lambda w, x: F.max_pool2d(x, 3, 2, 1)),
    "max_pool_of_rectangles": ((3, 4, 9, 8), lambda w, x: F.max_pool2d(x, (2, 3), (1, 3), (1, 0))),
    "average_pool": ((3, 4, 9, 8), lambda w, x: F.avg_pool2d(x, 2)),
    "average_pool_padded": ((3, 4, 9, 8), lambda w, x: F.avg_pool2d(x, 3, 2, 1)),
    "average_to_1": ((3, 4, 5, 7), lambda w, x: F.adaptive_avg_pool2d(x, 1)),
    "average_to_3": ((3, 4, 5, 7), lambda w, x: F.adaptive_avg_pool2d(x, 3)),
    "average_to_2_rows": ((3, 4, 5, 7), lambda w, x: F.adaptive_avg_pool2d(x, (2, 3))),
    "average_to_more": ((3, 4, 2, 3), lambda w, x: F.adaptive_avg_pool2d(x, 4)),
    "upsample": ((3, 4, 3, 5), lambda w, x: F.interpolate(x, scale_factor=3, mode="nearest")),
    "concatenate_channels": ((3, 4, 3, 5), lambda w, x: torch.cat([x[:, 1:3], F.gelu(x), x], 1)),
    "concatenate_columns": ((3, 4, 6), lambda w, x: torch.cat([x[..., 4:], x[..., :3], F.gelu(x)], 2)),
    "attention": ((3, 70, 48), sequence(16, 2)),
    "causal_attention": ((3, 70, 48), sequence(16, 2, causal=True)),
    "cross_attention": ((3, 12, 72), cross(5, 24, 3)),
    "embedding": ((4, 7), positions),
    "tied_embedding": ((4, 7), tied),
    "padded_attention": ((4, 5), padded(5, 11, 8, 2)),
    "padded_cross_attention": ((4, 9), padded(5, 11, 8, 2)),
}
WIDE_CASES = {"relu", "gelu", "silu", "sigmoid", "tanh", "add"}
TOKENS = {"embedding": 11, "tied_embedding": 11, "padded_attention": 11, "padded_cross_attention": 11}


def inputs(name):
    shape = CASES[name][0]
    values = hashed(name_seed("input"), math.prod(shape)).astype(np.float64).reshape(shape)
    if name in TOKENS:
        values = np.floor((values * 0.5 + 0.5) * TOKENS[name])
    if name.startswith("padded"):
        # The source of sample s has s + 1 tokens; the padding token is also one of the targets.
        for sample, row in enumerate(values):
            row[:sample + 1] = np.maximum(row[:sample + 1], 1)
            row[sample + 1:5] = PADDING
    return torch.tensor(values * WIDE if name in WIDE_CASES else values)


def checksums(tensor):
    values = tensor.detach().numpy().ravel()
    products = [(values * hashed(name_seed(row), values.size)).sum() for row in ("first", "second")]
    return [float(f"{figure:.9e}") for figure in [*products, np.linalg.norm(values)]]


def operation(name):
    weights, x = RunningWeights(torch.float64), inputs(name)
    x.requires_grad_(name not in TOKENS)
    output = CASES[name][1](weights, x)
    fixed = torch.tensor(hashed(name_seed("loss"), output.numel()).astype(np.float64)).reshape(output.shape)
    (output * fixed).sum().backward()
    found = {"output": checksums(output)}
    if x.grad is not None:
        found["input"] = checksums(x.grad)
    tensors = {key: checksums(p.grad) for key, p in weights.all.items()}
    tensors |= {key: checksums(values) for key, values in weights.buffers.items()}
    return found | {"tensors": tensors}


def dice(outputs, targets):
    p = torch.sigmoid(outputs)
    return (1 - (2 * (p * targets).sum(1) + 1) / (p.sum(1) + targets.sum(1) + 1)).sum()


LOSSES = {
    # Sums over the samples of means over the outputs.
    "squared_error": lambda x, t: F.mse_loss(x, t, reduction="none").mean(1).sum(),
    "smooth_l1": lambda x, t: F.smooth_l1_loss(x, t, reduction="none").mean(1).sum(),
    "binary_cross_entropy": lambda x, t: F.binary_cross_entropy_with_logits(x, t, reduction="none").mean(1).sum(),
    "dice": dice,
}


def loss(name):
    outputs = torch.tensor(3 * hashed(name_seed("outputs"), 40).astype(np.float64)).reshape(4, 10)
    targets = torch.tensor(0.5 + 0.5 * hashed(name_seed("targets"), 40).astype(np.float64)).reshape(4, 10)
    outputs.requires_grad_()
    total = LOSSES[name](outputs, targets)
    total.backward()
    return {"loss": total.item(), "gradient": checksums(outputs.grad)}


def main():
    torch.set_default_dtype(torch.float64)
    found = {"operations": {name: operation(name) for name in CASES}, "losses": {name: loss(name) for name in LOSSES}}
    groups = []
    for group, cases in found.items():
        written = [f'"{name}": {json.dumps(case)}' for name, case in cases.items()]
        groups.append(f'"{group}": {{\n' + ",\n".join(written) + "\n}")
    print("{\n" + ",\n".join(groups) + "\n}")


if __name__ == "__main__":
    main()
