"""Writes optimizers.json: PyTorch's parameters after a few updates of a fixed problem.

LARS and LAMB, which PyTorch lacks, come from the plain double-precision references below.

    python3 optimizers.py > optimizers.json
"""

import json
import math

import numpy as np
import torch

STEPS = 12
SHAPES = {"weight": (9, 15), "bias": (15,)}


def hashed(seed, count):
    """Numbers of [-1, 1): a hash of the index, exact in single precision."""
    x = np.arange(count, dtype=np.uint64) * 0x9E3779B1 + seed
    x &= 0xFFFFFFFF
    x ^= x >> 16
    x = (x * 0x85EBCA6B) & 0xFFFFFFFF
    x ^= x >> 13
    x = (x * 0xC2B2AE35) & 0xFFFFFFFF
    x ^= x >> 16
    return ((x >> 8).astype(np.float64) / 2**23 - 1).astype(np.float32)


def starts():
    return [hashed(i + 1, math.prod(s)).reshape(s) for i, s in enumerate(SHAPES.values())]


def gradient(step, index, parameter):
    noise = hashed(1000 * step + index, parameter.size).reshape(parameter.shape)
    return noise + parameter.dtype.type(0.25) * parameter


def pytorch(make):
    parameters = [torch.nn.Parameter(torch.tensor(p)) for p in starts()]
    optimizer = make(parameters)
    for step in range(1, STEPS + 1):
        for index, parameter in enumerate(parameters):
            g = gradient(step, index, parameter.detach().numpy())
            parameter.grad = torch.tensor(g)
        optimizer.step()
    return [p.detach().numpy() for p in parameters]


def reference(update):
    parameters = [p.astype(np.float64) for p in starts()]
    states = [{} for _ in parameters]
    for step in range(1, STEPS + 1):
        for index, parameter in enumerate(parameters):
            g = gradient(step, index, parameter.astype(np.float32)).astype(np.float64)
            parameters[index] = update(step, parameter, g, states[index])
    return parameters


def lars(rate, momentum, decay, trust, epsilon):
    def update(step, w, g, state):
        norm_w, norm_g = np.linalg.norm(w), np.linalg.norm(g)
        local = trust * norm_w / (norm_g + decay * norm_w + epsilon)
        v = momentum * state.get("v", 0.0) + rate * local * (g + decay * w)
        state["v"] = v
        return w - v

    return update


def lamb(rate, beta1, beta2, epsilon, decay):
    def update(step, w, g, state):
        m = beta1 * state.get("m", 0.0) + (1 - beta1) * g
        v = beta2 * state.get("v", 0.0) + (1 - beta2) * g * g
        state["m"], state["v"] = m, v
        r = (m / (1 - beta1**step)) / (np.sqrt(v / (1 - beta2**step)) + epsilon) + decay * w
        return w - rate * np.linalg.norm(w) / np.linalg.norm(r) * r

    return update


def no_decay_on_biases(optimizer, rate, decay, **others):
    def make(parameters):
        groups = [
            {"params": parameters[:1], "weight_decay": decay},
            {"params": parameters[1:], "weight_decay": 0.0},
        ]
        return optimizer(groups, lr=rate, **others)

    return make


SGD, ADAM, ADAMW = torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW
CASES = [
    ({"kind": "sgd"}, 0.05, "all", lambda p: SGD(p, 0.05)),
    ({"kind": "sgd", "momentum": 0.9, "weight_decay": 0.01}, 0.05, "all",
     lambda p: SGD(p, 0.05, momentum=0.9, weight_decay=0.01)),
    ({"kind": "sgd", "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}, 0.05, "all",
     lambda p: SGD(p, 0.05, momentum=0.9, nesterov=True, weight_decay=0.01)),
    ({"kind": "adam", "weight_decay": 0.1}, 0.02, "all",
     lambda p: ADAM(p, 0.02, weight_decay=0.1)),
    ({"kind": "adamw"}, 0.02, "all", lambda p: ADAMW(p, 0.02)),
    ({"kind": "adamw", "beta1": 0.8, "beta2": 0.95, "epsilon": 1e-6, "weight_decay": 0.3}, 0.02,
     "all", lambda p: ADAMW(p, 0.02, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.3)),
    ({"kind": "adamw", "weight_decay": 0.3}, 0.02, "matrices",
     no_decay_on_biases(ADAMW, 0.02, 0.3)),
    ({"kind": "sgd", "momentum": 0.9, "weight_decay": 0.1}, 0.05, "matrices",
     no_decay_on_biases(SGD, 0.05, 0.1, momentum=0.9)),
]
REFERENCES = [
    ({"kind": "lars", "weight_decay": 0.01, "trust": 0.02}, 0.5,
     lars(0.5, 0.9, 0.01, 0.02, 1e-8)),
    ({"kind": "lamb", "weight_decay": 0.1}, 0.02, lamb(0.02, 0.9, 0.999, 1e-6, 0.1)),
]


def main():
    cases = [(config, rate, on, pytorch(make)) for config, rate, on, make in CASES]
    cases += [(config, rate, "all", reference(update)) for config, rate, update in REFERENCES]
    written = [
        {
            "optimizer": config,
            "learning_rate": rate,
            "weight_decay_on": on,
            "weight": [float(x) for x in values[0].ravel()[:8]],
            "weight_sum": float(values[0].astype(np.float64).sum()),
            "bias": [float(x) for x in values[1]],
        }
        for config, rate, on, values in cases
    ]
    print(json.dumps({"torch": torch.__version__, "steps": STEPS, "cases": written}, indent=1))


main()
