"""Writes gradients.json: loss and gradients of small models, computed by PyTorch.

The models are written out here a second time, in double precision, with the names and layouts that
ronde gives its tensors. Weights and inputs are hashes of names and indices, so that only checksums
of the gradients need to be kept: of each tensor the norm, and the product with fixed numbers.

Where single precision itself moves gradients far, as rectifiers open or shut by rounding in many layers, the file says
how far PyTorch's own gradients in single precision lie from those: median and greatest over the tensors, with or
without oneDNN, whichever is greater.

    python3 gradients.py > gradients.json
"""

import json
import math

import numpy as np
import torch
import torch.nn.functional as F

from hashed import hashed, name_seed

IGNORED = 2**32 - 1


class Weights:
    """Parameters by name, made when they are first asked for."""

    # Whether batch normalisation uses the statistics of the batch.
    training = True

    def __init__(self, dtype):
        self.all = {}
        self.dtype = dtype

    def __call__(self, name, *shape):
        if name not in self.all:
            self.all[name] = torch.tensor(self.initial(name, shape), dtype=self.dtype, requires_grad=True)
        return self.all[name]

    def initial(self, name, shape):
        values = hashed(name_seed(name), math.prod(shape)).astype(np.float32).reshape(shape)
        if len(shape) >= 2 and not name.startswith("embedding."):
            fan_in = shape[0] if len(shape) == 2 else math.prod(shape[1:])
            return values * np.float32(math.sqrt(3 / fan_in))
        if name.endswith("gamma"):
            return np.float32(1) + np.float32(0.125) * values
        return np.float32(0.125) * values if len(shape) == 1 else values

    def running(self, name, channels):
        """The running mean and variance of a normalisation, which a forward pass updates."""
        return None, None

    def dropped(self, x):
        """The values with dropout."""
        return x


def linear(w, name, x, outputs, bias=True):
    y = x @ w(f"{name}.weight", x.shape[-1], outputs)
    return y + w(f"{name}.bias", outputs) if bias else y


def perceptron(w, x, hidden, outputs):
    x = x.flatten(1)
    for i, width in enumerate(hidden):
        x = F.relu(linear(w, f"layer{i + 1}", x, width))
    return linear(w, "output", x, outputs)


def channel_norm(w, name, x, kind):
    c = x.shape[1]
    gamma, beta = w(f"{name}.gamma", c), w(f"{name}.beta", c)
    if kind == "group":
        return F.group_norm(x, 32, gamma, beta, 1e-5)
    return F.batch_norm(x, *w.running(name, c), gamma, beta, training=w.training, eps=1e-5)


def conv(w, name, x, to, side, stride):
    return F.conv2d(x, w(f"{name}.weight", to, x.shape[1], side, side), None, stride, side // 2)


def block(w, name, x, width, stride, bottleneck, norm):
    to = 4 * width if bottleneck else width
    sides = [(width, 1, 1), (width, 3, stride), (to, 1, 1)] if bottleneck else [
        (width, 3, stride), (width, 3, 1)]
    y = x
    for i, (channels, side, s) in enumerate(sides):
        y = F.relu(y) if i else y
        y = conv(w, f"{name}.conv{i + 1}", y, channels, side, s)
        y = channel_norm(w, f"{name}.bn{i + 1}", y, norm)
    if stride != 1 or x.shape[1] != to:
        x = conv(w, f"{name}.downsample.conv", x, to, 1, stride)
        x = channel_norm(w, f"{name}.downsample.bn", x, norm)
    return F.relu(y + x)


def resnet(w, x, blocks, bottleneck, norm, small, outputs):
    side, stride = (3, 1) if small else (7, 2)
    x = F.relu(channel_norm(w, "bn1", conv(w, "conv1", x, 64, side, stride), norm))
    x = x if small else F.max_pool2d(x, 3, 2, 1)
    for group, count in enumerate(blocks):
        for i in range(count):
            stride = 2 if group and not i else 1
            x = block(w, f"layer{group + 1}.{i}", x, 64 << group, stride, bottleneck, norm)
    return linear(w, "fc", x.mean((2, 3)), outputs)


def vgg(w, x, norm, outputs):
    for i, (count, channels) in enumerate([(2, 64), (2, 128), (3, 256), (3, 512), (3, 512)]):
        for j in range(count):
            name = f"features{i + 1}.{j}"
            weight = w(f"{name}.conv.weight", channels, x.shape[1], 3, 3)
            x = F.conv2d(x, weight, w(f"{name}.conv.bias", channels), 1, 1)
            x = F.relu(channel_norm(w, f"{name}.norm", x, norm) if norm else x)
        x = F.max_pool2d(x, 2)
    x = F.adaptive_avg_pool2d(x, 1).flatten(1)
    x = F.relu(linear(w, "classifier1", x, 512))
    x = F.relu(linear(w, "classifier2", x, 512))
    return linear(w, "classifier3", x, outputs)


def row_norm(w, name, x):
    e = x.shape[-1]
    return F.layer_norm(x, (e,), w(f"{name}.gamma", e), w(f"{name}.beta", e), 1e-5)


def attention(w, name, x, memory, heads, causal, mask=None):
    n, t, e = x.shape
    own = row_norm(w, f"{name}.norm", x)
    seen = own if memory is None else memory
    both = linear(w, f"{name}.key_value", seen, 2 * e)
    split = lambda v: v.reshape(n, -1, heads, e // heads).transpose(1, 2)
    q = split(linear(w, f"{name}.query", own, e))
    found = F.scaled_dot_product_attention(q, split(both[..., :e]), split(both[..., e:]),
                                           attn_mask=mask, is_causal=causal)
    return x + linear(w, f"{name}.output", found.transpose(1, 2).reshape(n, t, e), e)


def feed_forward(w, name, x):
    e = x.shape[-1]
    y = F.gelu(linear(w, f"{name}.up", row_norm(w, f"{name}.norm", x), 4 * e))
    return x + linear(w, f"{name}.down", y, e)


def embed(w, x, tokens, e):
    table = w("embedding.token", tokens, e)
    return table[x.long()] + w("embedding.position", x.shape[1], e)


def scores(w, x, tokens):
    return linear(w, "head.output", row_norm(w, "head.norm", x), tokens, bias=False)


def digits_cnn(w, x, channels, outputs):
    def one(name, x, channels):
        x = conv(w, f"{name}conv", x, channels, 3, 1)
        return F.relu(channel_norm(w, f"{name}bn", x, "batch"))

    x = F.max_pool2d(one("features.1.", one("features.0.", x, channels), channels), 2)
    return linear(w, "classifier", one("top.", x, 2 * channels).mean((2, 3)), outputs)


def unet_block(w, name, x, channels):
    for i in (1, 2):
        x = conv(w, f"{name}.conv{i}", x, channels, 3, 1)
        x = F.relu(channel_norm(w, f"{name}.bn{i}", x, "batch"))
    return x


def unet(w, x, channels, levels):
    across = []
    for level in range(levels):
        across.append(unet_block(w, f"unet.down{level + 1}", x, channels << level))
        x = F.max_pool2d(across[-1], 2)
    x = unet_block(w, "unet.bottom", x, channels << levels)
    for level in reversed(range(levels)):
        x = torch.cat([across[level], F.interpolate(x, scale_factor=2, mode="nearest")], 1)
        x = unet_block(w, f"unet.up{level + 1}", x, channels << level)
    x = F.conv2d(x, w("head.weight", 1, x.shape[1], 1, 1), w("head.bias", 1))
    return x.flatten(1)


def detector(w, x, channels, levels, classes):
    def one(name, number, x, channels, stride):
        x = conv(w, f"{name}.conv{number}", x, channels, 3, stride)
        return F.relu(channel_norm(w, f"{name}.bn{number}", x, "batch"))

    for level in range(levels):
        x = one(f"level{level + 1}", 1, x, channels << level, 2)
        x = one(f"level{level + 1}", 2, x, channels << level, 1)
    x = one("head", 1, x, x.shape[1], 1)
    x = F.conv2d(x, w("head.output.weight", 4 + classes, x.shape[1], 1, 1), w("head.output.bias", 4 + classes))
    return x.flatten(1)


def inception(w, x, divisor, outputs):
    """Inception-v3 with a stem that keeps the size."""
    one, three, five, wide, tall, halve = (1, 1), (3, 3), (5, 5), (1, 7), (7, 1), None

    def several(prefix, x, *steps):
        for number, (channels, sides) in enumerate(steps):
            name, halves = f"{prefix}conv{number + 1}", sides is None
            sides = sides or three
            weight = w(f"{name}.weight", channels // divisor, x.shape[1], *sides)
            padding = 0 if halves else [side // 2 for side in sides]
            x = F.conv2d(x, weight, None, 2 if halves else 1, padding)
            x = F.relu(channel_norm(w, f"{prefix}bn{number + 1}", x, "batch"))
        return x

    def block(name, x, branches, pooled):
        found = [several(f"{name}.{i + 1}.", x, *steps) for i, steps in enumerate(branches)]
        if pooled is None:
            return torch.cat([*found, F.max_pool2d(x, 3, 2)], 1)
        return torch.cat([*found, several(f"{name}.pool.", F.avg_pool2d(x, 3, 1, 1), (pooled, one))], 1)

    x = several("stem.", x, (32, three), (32, three), (64, three), (80, one), (192, three))
    for name, pooled in [("mixed5.b", 32), ("mixed5.c", 64), ("mixed5.d", 64)]:
        x = block(name, x, [
            [(64, one)], [(48, one), (64, five)], [(64, one), (96, three), (96, three)]], pooled)
    x = block("mixed6.a", x, [[(384, halve)], [(64, one), (96, three), (96, halve)]], None)
    for name, c in [("mixed6.b", 128), ("mixed6.c", 160), ("mixed6.d", 160), ("mixed6.e", 192)]:
        x = block(name, x, [
            [(192, one)], [(c, one), (c, wide), (192, tall)],
            [(c, one), (c, tall), (c, wide), (c, tall), (192, wide)]], 192)
    x = block("mixed7.a", x, [
        [(192, one), (320, halve)], [(192, one), (192, wide), (192, tall), (192, halve)]], None)
    for name in ["mixed7.b", "mixed7.c"]:
        found = [several(f"{name}.1.", x, (320, one))]
        for branch, steps in [(2, [(384, one)]), (3, [(448, one), (384, three)])]:
            y = several(f"{name}.{branch}.", x, *steps)
            found.append(several(f"{name}.{branch}.wide.", y, (384, (1, 3))))
            found.append(several(f"{name}.{branch}.tall.", y, (384, (3, 1))))
        found.append(several(f"{name}.pool.", F.avg_pool2d(x, 3, 1, 1), (192, one)))
        x = torch.cat(found, 1)
    return linear(w, "fc", w.dropped(x.mean((2, 3))), outputs)


def gpt(w, x, layers, e, heads, tokens, tied=False, causal=True):
    x = embed(w, x, tokens, e)
    for i in range(layers):
        x = attention(w, f"block{i + 1}.attention", x, None, heads, causal)
        x = feed_forward(w, f"block{i + 1}.feed_forward", x)
    if tied:
        return row_norm(w, "head.norm", x) @ w("embedding.token", tokens, e).T
    return scores(w, x, tokens)


def not_padding(tokens):
    """Which source places are looked at: those up to the last one that is not padding, at least one."""
    lengths = [max([i + 1 for i, token in enumerate(row) if token != PADDING], default=1) for row in tokens]
    places = torch.arange(tokens.shape[1])
    return (places < torch.tensor(lengths)[:, None])[:, None, None, :]


def transformer(w, x, source, layers, e, heads, tokens, padded=False):
    mask = not_padding(x[:, :source]) if padded else None
    x = embed(w, x, tokens, e)
    memory, y = x[:, :source], x[:, source:]
    for i in range(layers):
        memory = attention(w, f"encoder{i + 1}.attention", memory, None, heads, False, mask)
        memory = feed_forward(w, f"encoder{i + 1}.feed_forward", memory)
    memory = row_norm(w, f"encoder{layers}.last_norm", memory)
    for i in range(layers):
        name = f"decoder{i + 1}"
        y = attention(w, f"{name}.attention", y, None, heads, True)
        y = attention(w, f"{name}.source_attention", y, memory, heads, False, mask)
        y = feed_forward(w, f"{name}.feed_forward", y)
    return scores(w, y, tokens)


CASES = {
    # name: (input shape, classes, targets of a sample, how)
    "linear": ((5, 2, 3), 4, 1, lambda w, x: perceptron(w, x, [], 4)),
    "regression": ((5, 6), 0, 1, lambda w, x: perceptron(w, x, [], 1)),
    "mlp": ((5, 6), 7, 1, lambda w, x: perceptron(w, x, [8, 5], 7)),
    "resnet18": ((3, 3, 16, 16), 10, 1,
                 lambda w, x: resnet(w, x, [2, 2, 2, 2], False, "batch", True, 10)),
    "resnet18_group": ((2, 3, 32, 32), 10, 1,
                       lambda w, x: resnet(w, x, [2, 2, 2, 2], False, "group", False, 10)),
    "resnet50_group": ((2, 3, 16, 16), 10, 1,
                       lambda w, x: resnet(w, x, [3, 4, 6, 3], True, "group", True, 10)),
    "resnet50": ((3, 3, 16, 16), 10, 1,
                 lambda w, x: resnet(w, x, [3, 4, 6, 3], True, "batch", True, 10)),
    "vgg16": ((2, 3, 32, 32), 10, 1, lambda w, x: vgg(w, x, None, 10)),
    "vgg16_batch": ((3, 3, 32, 32), 10, 1, lambda w, x: vgg(w, x, "batch", 10)),
    "digits_cnn": ((3, 1, 8, 8), 10, 1, lambda w, x: digits_cnn(w, x, 6, 10)),
    "inception_v3": ((3, 2, 15, 16), 10, 1, lambda w, x: inception(w, x, 16, 10)),
    "gpt": ((3, 10), 12, 10, lambda w, x: gpt(w, x, 2, 16, 2, 12)),
    "gpt_tied": ((3, 10), 12, 10, lambda w, x: gpt(w, x, 2, 16, 2, 12, tied=True)),
    "bert": ((3, 10), 12, 10, lambda w, x: gpt(w, x, 2, 16, 2, 12, causal=False)),
    "unet": ((3, 2, 8, 12), 0, 96, lambda w, x: unet(w, x, 4, 2)),
    "detector": ((3, 2, 16, 24), 0, 120, lambda w, x: detector(w, x, 4, 2, 1)),
    "transformer": ((3, 9), 12, 5, lambda w, x: transformer(w, x, 4, 2, 16, 2, 12)),
    "transformer_padded": ((3, 9), 12, 5, lambda w, x: transformer(w, x, 4, 2, 16, 2, 12, padded=True)),
}


# Fills the sources of the padded case up: of sample s from place s + 2 on.
PADDING = 0
# Fifty batch normalisations with rectifiers, and ninety.
SINGLE = {"resnet50", "inception_v3"}


# Models of texts, whose rounding no rectifier amplifies: their losses of a few steps of SGD are compared as well.
STEPS, RATE = 3, 0.01


def total_loss(name, weights, dtype):
    """The sum of the losses of all counted targets."""
    shape, classes, each, model = CASES[name]
    values = hashed(name_seed("input"), math.prod(shape)).astype(np.float64).reshape(shape)
    if each > 1 and classes:
        values = np.floor((values * 0.5 + 0.5) * classes)
    if name == "transformer_padded":
        for sample, row in enumerate(values):
            row[sample + 2:4] = PADDING
    output = model(weights, torch.tensor(values, dtype=dtype))
    samples, total = shape[0], 0
    if classes == 0 and each > 1:
        mask = torch.tensor((hashed(name_seed("target"), samples * each) > 0).astype(np.float64))
        every = F.binary_cross_entropy_with_logits(output, mask.reshape(samples, each), reduction="none")
        return every.mean(1).sum()
    if classes == 0:
        target = torch.tensor(hashed(name_seed("target"), samples).astype(np.float64))
        return ((output[:, 0] - target) ** 2).sum()
    rows = output.reshape(samples, each, classes)
    for s in range(samples):
        labels = [(s * each + t) * 3 % classes for t in range(each)]
        counted = [t for t in range(each) if t % 4 != 3]
        total = total - sum(F.log_softmax(rows[s, t], 0)[labels[t]] for t in counted)
    return total


def run(name, dtype):
    weights = Weights(dtype)
    total = total_loss(name, weights, dtype)
    total.backward()
    tensors = {}
    for key, p in weights.all.items():
        gradient = p.grad.double()
        product = (gradient.numpy().ravel() * hashed(name_seed("dot"), p.numel())).sum()
        tensors[key] = [float(f"{product:.7e}"), float(f"{gradient.norm():.7e}")]
    return {"loss": total.item(), "tensors": tensors}


def first_losses(name):
    """The losses of the first steps of SGD."""
    weights, losses = Weights(torch.float64), []
    for _ in range(STEPS):
        total = total_loss(name, weights, torch.float64)
        total.backward()
        losses.append(total.item())
        with torch.no_grad():
            for p in weights.all.values():
                p -= RATE * p.grad
                p.grad = None
    return losses


def single_errors(name, found, with_onednn):
    """Deviations of the gradients in single precision, with one of PyTorch's two implementations."""
    torch.backends.mkldnn.enabled = with_onednn
    single = run(name, torch.float32)["tensors"]
    torch.backends.mkldnn.enabled = True
    return [
        max(abs(a - b) for a, b in zip(values, single[key])) / values[1]
        for key, values in found["tensors"].items()
    ]


def case(name):
    found = run(name, torch.float64)
    if name in SINGLE:
        errors = [single_errors(name, found, with_onednn) for with_onednn in (True, False)]
        found["single"] = [max(float(f"{of(each):.2e}") for each in errors) for of in (np.median, max)]
    if CASES[name][1] and CASES[name][2] > 1:
        found["losses"] = first_losses(name)
    return found


def main():
    torch.set_default_dtype(torch.float64)
    cases = {name: case(name) for name in CASES}
    written = [f'"{name}": {json.dumps(case)}' for name, case in cases.items()]
    print("{\n" + ",\n".join(written) + "\n}")


if __name__ == "__main__":
    main()
