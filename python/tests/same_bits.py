"""PyTorch models give the same bits on any number of workers, and wrong use is refused with what to do.

Started without arguments it is the parent: it runs all cases on each number of workers, as processes over Gloo, and compares
what they print.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

LIMIT_S = 300
STEPS = 5
#: The numbers of workers of each case.
WORKERS = (1, 2, 3, 5)


def images(count, classes=10):
    """A data set of random images, with a random crop that the loader draws."""
    import torch

    class Images(torch.utils.data.Dataset):
        def __init__(self):
            generator = torch.Generator().manual_seed(3)
            self.x = torch.randn(count, 3, 12, 12, generator=generator)
            self.y = torch.randint(0, classes, (count,), generator=generator)

        def __len__(self):
            return count

        def __getitem__(self, at):
            left = int(torch.randint(0, 4, ()))
            return self.x[at, :, :, left : left + 9], self.y[at]

    return Images()


def texts(count, length=17, words=50):
    """A data set of random texts, some of whose tokens are padding."""
    import torch

    generator = torch.Generator().manual_seed(4)
    tokens = torch.randint(1, words, (count, length), generator=generator)
    for at in range(count):
        tokens[at, 5 + at % (length - 5) :] = 0
    return torch.utils.data.TensorDataset(tokens)


def mlp():
    from torch import nn

    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 12 * 9, 33), nn.Dropout(0.2), nn.ReLU(), nn.Linear(33, 10))


def convolutions():
    """A residual network with batch norms, an unused and a frozen layer."""
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
            self.block = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8, momentum=None), nn.ReLU())
            self.frozen_norm = nn.BatchNorm2d(8)
            self.last = nn.Linear(8, 10)
            self.unused = nn.Linear(4, 4)
            self.frozen = nn.Linear(8, 8).requires_grad_(False)

        def train(self, mode=True):
            super().train(mode)
            self.frozen_norm.eval()
            return self

        def forward(self, x):
            x = self.first(x)
            x = self.frozen_norm(x + self.block(x))
            return self.last(self.frozen(x.mean((2, 3))))

    del torch
    return Net()


def gpt():
    """A small transformer with a tied embedding, dropout, and checkpoints of activations."""
    import torch
    from torch import nn
    from torch.utils.checkpoint import checkpoint

    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(50, 32)
            self.places = nn.Parameter(torch.randn(16, 32) * 0.02)
            block = lambda: nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True, norm_first=True)
            self.blocks = nn.ModuleList(block() for _ in range(2))
            self.norm = nn.LayerNorm(32)

        def forward(self, tokens):
            mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
            x = self.embed(tokens) + self.places
            for block in self.blocks:
                x = checkpoint(block, x, mask, use_reentrant=False)
            return self.norm(x) @ self.embed.weight.T

    return Gpt()


def train(way, build, loader, loss_of, optimizer_of, clip=None, divide=None, bucket_mib=25.0, **options):
    """Trains some steps and returns the hash of the model and the mean of the last step. `way` is the wrapper's name, `divide` applies
    `fully_shard`, and `loader` has the arguments of a ShardLoader."""
    import torch

    import ronde.torch as rt

    is_divided = way == "ExactFSDP"
    rank = torch.distributed.get_rank()
    # With replicas, only the first worker begins with the weights that the others get from it.
    torch.manual_seed(0 if is_divided else rank)
    loader = rt.ShardLoader(seed=2, interleaved=is_divided, **loader)
    model = build()
    if is_divided:
        divide(model)
        torch.manual_seed(9)
    else:
        options["bucket_mib"] = bucket_mib
    model = getattr(rt, way)(model, loader.batches.shards, seed=7, **options)
    optimizer = optimizer_of(model.parameters())
    done = 0
    while done < STEPS:
        for batch in loader:
            for data in model.shards(batch):
                loss = loss_of(model, data)
                model.report(loss=loss)
                loss.backward()
            if clip:
                rt.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()
            done += 1
            if done == STEPS:
                break
    return rt.model_hash(model), model.mean("loss").hex()


def both_ways(*arguments, are_equal=True, **options):
    """Trains with replicas and with divided parameters."""
    build, loader, *others = arguments
    found = [train(way, build, dict(loader), *others, **options) for way in ("ExactDataParallel", "ExactFSDP")]
    assert not are_equal or found[0] == found[1], f"divided parameters: {found}"
    return found[0] if are_equal else found[0] + found[1]


def layer_by_layer(*kinds, **options):
    """Divides each module of a kind by itself, with options, then the rest."""
    from torch.distributed.fsdp import fully_shard

    def divide(model):
        for module in list(model.modules()):
            if isinstance(module, kinds):
                fully_shard(module, **options)
        fully_shard(model)

    return divide


def of_images(model, data):
    import torch

    x, y = data
    return torch.nn.functional.cross_entropy(model(x), y)


def of_texts(model, data):
    """The sum over the targets that are not padding."""
    import torch

    (tokens,) = data
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    model.count(int((targets != 0).sum()))
    scores = model(inputs).flatten(0, 1)
    return torch.nn.functional.cross_entropy(scores, targets.flatten(), ignore_index=0, reduction="sum")


def an_mlp():
    import torch

    loader = {"dataset": images(150), "batch": 64, "shards": 8}
    optimizer = lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)
    return both_ways(mlp, loader, of_images, optimizer, bucket_mib=0.02, divide=layer_by_layer(torch.nn.Linear))


def uneven_shards():
    """7 shards of a batch that they do not divide, and a last batch with fewer samples than shards."""
    import torch

    loader = {"dataset": images(150), "batch": 73, "shards": 7, "drop_last": False, "num_workers": 1}
    return both_ways(mlp, loader, of_images, lambda p: torch.optim.AdamW(p, 1e-2), divide=layer_by_layer())


def batch_norms():
    """Parameters without a gradient have none with replicas, and zeros if they are divided."""
    import torch

    loader = {"dataset": images(64), "batch": 32, "shards": 7}
    optimizer = lambda p: torch.optim.AdamW(p, 1e-2, weight_decay=0.1, foreach=True)
    divide = layer_by_layer(torch.nn.Sequential)
    return both_ways(convolutions, loader, of_images, optimizer, bucket_mib=0.001, divide=divide, are_equal=False)


def a_gpt():
    import torch

    loader = {"dataset": texts(80), "batch": 40, "shards": 8}
    optimizer = lambda p: torch.optim.AdamW(p, 1e-2)
    divide = layer_by_layer(torch.nn.TransformerEncoderLayer)
    return both_ways(gpt, loader, of_texts, optimizer, clip=0.5, reduction="sum", bucket_mib=0.02, divide=divide)


def a_gpt_in_bf16():
    """Autocast and parameters of two types; divided parameters that compute in bf16."""
    import torch
    from torch.distributed.fsdp import MixedPrecisionPolicy

    def build():
        model = gpt()
        model.blocks[1].linear1.bfloat16()
        return model

    def with_autocast(model, data):
        with torch.autocast("cpu", torch.bfloat16):
            return of_texts(model, data)

    loader = {"dataset": texts(80), "batch": 40, "shards": 8}
    optimizer = lambda p: torch.optim.SGD(p, 0.1)
    short = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, output_dtype=torch.float32)
    divide = layer_by_layer(torch.nn.TransformerEncoderLayer, mp_policy=short)
    replicas = train("ExactDataParallel", build, dict(loader), with_autocast, optimizer, reduction="sum")
    return replicas + train("ExactFSDP", gpt, dict(loader), of_texts, optimizer, reduction="sum", divide=divide)


def wrong_use():
    """Each is refused with what to do. The loops of all workers are the same, so none waits for another."""
    import torch
    from torch import nn

    import ronde.torch as rt

    def refused(what, kind, call):
        try:
            call()
        except kind as error:
            assert what in str(error), error
        else:
            raise AssertionError(f"{what!r} was not refused")

    def wrap(module, **options):
        return rt.ExactDataParallel(module, 8, **options)

    class Counts(nn.Linear):
        def __init__(self):
            super().__init__(324, 10)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            self.calls += 1
            return super().forward(x.flatten(1))

    loader = rt.ShardLoader(images(64), batch=64, shards=8)
    batches = lambda: iter(loader)
    refused("SyncBatchNorm", ValueError, lambda: wrap(nn.SyncBatchNorm(3)))
    refused("sparse", ValueError, lambda: wrap(nn.Embedding(3, 4, sparse=True)))
    refused("no parameter", ValueError, lambda: wrap(nn.ReLU()))
    refused("at least 1", ValueError, lambda: rt.ExactDataParallel(mlp(), 0))
    refused("'mean' or 'sum'", ValueError, lambda: wrap(mlp(), reduction="none"))
    refused("beyond step", RuntimeError, lambda: list(wrap(mlp()).shards(*loader)))
    refused("sampler", TypeError, lambda: rt.ShardLoader(images(8), 8, 8, sampler=None))
    refused("smaller `batch`", ValueError, lambda: rt.ShardLoader(images(8), 9, 8))

    model = wrap(mlp())
    refused("shards of a batch", RuntimeError, model.no_sync)
    x, y = torch.ones(2, 3, 12, 9), torch.zeros(2, dtype=torch.int64)
    refused("outside of the loop", RuntimeError, lambda: of_images(model, (x, y)).backward())
    model.zero_grad()
    refused("belongs into the loop", RuntimeError, lambda: model.report(loss=1.0))
    other = rt.ShardLoader(images(64), batch=64, shards=4)
    refused("give both the same", ValueError, lambda: list(model.shards(next(iter(other)))))

    def without_backward():
        for _ in model.shards(next(batches())):
            pass

    refused("call backward", RuntimeError, without_backward)
    model = wrap(mlp())

    def left_early():
        for _ in model.shards(next(batches())):
            break

    left_early()
    refused("left before its end", RuntimeError, lambda: list(model.shards(next(batches()))))

    model = wrap(mlp())

    def step():
        for data in model.shards(next(batches())):
            of_images(model, data).backward()

    step()
    refused("zero_grad", RuntimeError, step)
    model.zero_grad()
    model.module[1].weight.requires_grad_(False)
    refused("wrap it again", RuntimeError, step)

    if torch.distributed.get_world_size() > 1:
        rank = torch.distributed.get_rank()
        refused("the seed: 0 on rank 0, 1 on rank 1", RuntimeError, lambda: wrap(mlp(), seed=rank))
        refused("the parameters", RuntimeError, lambda: wrap(nn.Linear(3, 3 + rank)))
    else:
        # With several workers, some would have begun to send.
        model = wrap(Counts())
        refused("the buffer 'calls'", RuntimeError, step)
    divided_wrongly(refused, loader)
    checked(refused)
    torch.use_deterministic_algorithms(False)
    refused("ronde.torch.deterministic()", RuntimeError, lambda: wrap(mlp()))
    return ("refused",)


def divided_wrongly(refused, loader):
    """Wrong use of divided parameters."""
    import torch
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    import ronde.torch as rt

    size = torch.distributed.get_world_size()
    torch.manual_seed(0)
    refused("is not divided", ValueError, lambda: rt.ExactFSDP(mlp(), 8))
    part = mlp()
    fully_shard(part[1])
    refused("4.weight is not divided", ValueError, lambda: rt.ExactFSDP(part, 8))
    replicated = fully_shard(mlp(), mesh=init_device_mesh("cpu", (size, 1), mesh_dim_names=("replicas", "parts")))
    refused("a mesh of 2 dimensions", ValueError, lambda: rt.ExactFSDP(replicated, 8))
    columns = fully_shard(nn.Linear(60, 60, bias=False), shard_placement_fn=lambda value: torch.distributed.tensor.Shard(value.dim() - 1))
    refused("along their first dimension", ValueError, lambda: rt.ExactFSDP(columns, 8))
    model = rt.ExactFSDP(fully_shard(mlp()), 8)
    x, y = torch.ones(2, 3, 12, 9), torch.zeros(2, dtype=torch.int64)
    refused("outside of the loop", RuntimeError, lambda: of_images(model, (x, y)).backward())
    if size > 1:
        refused("interleaved=True", ValueError, lambda: list(rt.ExactFSDP(fully_shard(mlp()), 8).shards(next(iter(loader)))))
        torch.manual_seed(torch.distributed.get_rank())
        refused("torch.initial_seed()", RuntimeError, lambda: rt.ExactFSDP(fully_shard(mlp()), 8))


def checked(refused):
    """`check_model` names the module that would give other bits."""
    import torch
    from torch import nn

    import ronde.torch as rt

    generator = torch.Generator().manual_seed(5)

    class Noise(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            return x.clone()

        @staticmethod
        def backward(context, gradient):
            return gradient + torch.rand(gradient.shape, generator=generator)

    class Noisy(nn.Linear):
        def forward(self, x):
            return Noise.apply(super().forward(x))

    class Remembers(nn.Module):
        calls = 0

        def forward(self, x):
            self.calls += 1
            return x + self.calls

    first, second = (torch.arange(4.0) + number for number in range(2))
    check = lambda *layers: rt.check_model(nn.Sequential(*layers), lambda model, x: model(x).sum(), [first, second])
    check(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 1))
    refused("the gradient of '1.bias'", RuntimeError, lambda: check(nn.Linear(4, 4), Noisy(4, 4)))
    refused("the output of '1' differs", RuntimeError, lambda: check(nn.Linear(4, 4), Remembers()))
    norms = nn.Sequential(nn.Unflatten(0, (4, 1)), nn.BatchNorm1d(1))
    before = {name: value.clone() for name, value in norms.state_dict().items()}
    rt.check_model(norms, lambda model, x: model(x).square().sum(), [first, second])
    assert all(torch.equal(value, before[name]) for name, value in norms.state_dict().items())
    refused("needs 2", ValueError, lambda: rt.check_model(norms, None, [first]))


def like_one_backward():
    """The gradients are those of the mean over the whole batch, but for rounding, and a group that is given is used."""
    import torch

    import ronde.torch as rt

    data = images(64)
    data.__class__.__getitem__ = lambda self, at: (self.x[at, :, :, :9], self.y[at])
    reference = mlp()
    reference[2].p = 0.0
    group = torch.distributed.new_group() if torch.distributed.is_initialized() else None
    loader = rt.ShardLoader(data, batch=61, shards=8, shuffle=False, group=group)
    model = rt.ExactDataParallel(reference, 8, group=group, reports=("loss", "right"))
    batch = next(iter(loader))
    for x, y in model.shards(batch):
        scores = model(x)
        loss = torch.nn.functional.cross_entropy(scores, y)
        model.report(loss=loss, right=float((scores.argmax(1) == y).double().mean()))
        loss.backward()
    found = [value.grad.clone() for value in model.parameters()]
    model.zero_grad()
    x, y = (torch.stack(side) for side in zip(*(data[at] for at in range(61)), strict=True))
    scores = reference(x)
    loss = torch.nn.functional.cross_entropy(scores, y)
    expected = torch.autograd.grad(loss, list(reference.parameters()))
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
    assert abs(model.mean("loss") - float(loss)) < 1e-6
    assert abs(model.mean("right") - float((scores.argmax(1) == y).double().mean())) < 1e-12
    return (rt.model_hash(model),)


CASES = {
    case.__name__: case
    for case in [an_mlp, uneven_shards, batch_norms, a_gpt, a_gpt_in_bf16, like_one_backward, wrong_use]
}


def work(rank, size, meeting, cases):
    """One worker: computes all cases."""
    import torch

    import ronde.torch as rt

    torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=size)
    for case in cases:
        rt.deterministic()
        # Only the first worker begins with the weights that the others get from it.
        torch.manual_seed(rank)
        print(case, *CASES[case](), flush=True)
    torch.distributed.destroy_process_group()


def run(size, cases):
    """Returns what each worker prints."""
    with tempfile.TemporaryDirectory() as folder:
        meeting = str(Path(folder) / "meeting")
        workers = [
            subprocess.Popen(
                [sys.executable, __file__, "work", str(rank), str(size), meeting, *cases],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(size)
        ]
        try:
            ends = [worker.communicate(timeout=LIMIT_S) for worker in workers]
        finally:
            for worker in workers:
                worker.kill()
    for rank, (worker, (output, errors)) in enumerate(zip(workers, ends, strict=True)):
        if worker.returncode != 0:
            sys.exit(f"{size} workers: rank {rank} ended with {worker.returncode}\n{output}{errors}")
    return [output.splitlines() for output, _ in ends]


def main():
    if sys.argv[1:2] == ["work"]:
        _, _, rank, size, meeting, *cases = sys.argv
        return work(int(rank), int(size), meeting, cases)
    cases = sys.argv[1:] or list(CASES)
    found = {case: {} for case in cases}
    for size in WORKERS:
        for lines in run(size, cases):
            for case, line in zip(cases, lines, strict=True):
                found[case].setdefault(line, set()).add(size)
    for case, results in found.items():
        if len(results) != 1:
            sys.exit(f"{case}: different results: {results}")
        print(f"python: the same on {', '.join(map(str, WORKERS))} workers: {next(iter(results))[:40]}")


if __name__ == "__main__":
    main()
