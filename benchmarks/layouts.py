"""Pipelines, layers in parts and ZeRO against PyTorch, in turns: python3 benchmarks/layouts.py --rounds 5

A GPT (4 layers, width 256, 4 heads, 128 tokens, vocabulary 4,096, AdamW, f32) on two processes with one thread each:

- one: one process, 8 texts; the ratio r that the others are compared with
- zero2: `parallel.zero = 2`, one copy, against FSDP2 (`fully_shard`, `reshard_after_forward=False`); 8 texts per process
- zero3: `parallel.zero = 3`, one copy, against FSDP2 with `reshard_after_forward=True`
- pipeline: two stages, 1F1B, 8 micro-batches of 2 texts, against `torch.distributed.pipelining`
- tensor: each layer in two parts, 8 texts, against `torch.distributed.tensor.parallel.parallelize_module`

Prints texts per second (medians), and the highest proportional set size (Pss) of a process while it trains, without what it had before
its model was built (PyTorch; of ronde everything counts).
"""

import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time

from divided_state import descendants, pss_mib

RUN = """
version = 1
[run]
name = "gpt"
[data]
source = "synthetic_text"
samples = 512
test_samples = 0
context = 128
tokens = 4096
[model]
kind = "gpt"
layers = 4
width = 256
heads = 4
[train]
steps = {steps}
global_batch_size = {batch}
learning_rate = 0.0003
[optimizer]
kind = "adamw"
[workers]
logical_shards = {shards}
threads = 1
"""

# The batch, the logical shards and the settings of each case, and its processes.
CASES = {
    "one": (8, 1, [], 1),
    "zero2": (16, 2, ["parallel.zero=2", "parallel.copies=1"], 2),
    "zero3": (16, 2, ["parallel.zero=3", "parallel.copies=1"], 2),
    "pipeline": (16, 8, ["parallel.pipeline=2", "parallel.copies=1"], 2),
    "tensor": (8, 1, ["model.tensor_parts=2", "parallel.tensor=2", "parallel.copies=1"], 2),
}
STEPS, WARM_UP = 12, 3


def peak_of(process, workers):
    """Waits for a process; returns the highest Pss of one of its workers in MiB."""
    peak = 0
    while process.poll() is None:
        sizes = sorted(pss_mib(each) for each in descendants(process.pid))
        peak = max([peak, *sizes[-workers:]])
        time.sleep(0.05)
    return peak


def run_ronde(arguments, case):
    batch, shards, settings, workers = CASES[case]
    with tempfile.TemporaryDirectory() as folder:
        run = pathlib.Path(folder, "gpt.toml")
        run.write_text(RUN.format(steps=STEPS, batch=batch, shards=shards))
        command = [arguments.ronde, "train", str(run), "--json", "-n", str(workers)]
        for setting in [f"run.output={folder}/run", *settings]:
            command += ["--set", setting]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        lines = []
        reader = threading.Thread(target=lambda: lines.extend(process.stdout))
        reader.start()
        peak = peak_of(process, workers)
        reader.join()
        if process.returncode:
            raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
        events = [json.loads(line) for line in lines if line.startswith("{")]
        steps = [event["duration_s"] for event in events if event.get("event") == "step_committed"]
        return batch / statistics.median(steps[WARM_UP:]), peak


def run_torch(arguments, case):
    workers = CASES[case][3]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(workers)]
    command = [arguments.python, *launcher, os.path.abspath(__file__), "--torch", case]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    output = {}
    reader = threading.Thread(target=lambda: output.update(zip(("out", "err"), process.communicate())))
    reader.start()
    peak = peak_of(process, workers)
    reader.join()
    found = re.search(r"^\{.*\}$", output["out"], re.M)
    if process.returncode or not found:
        raise SystemExit(output["err"][-3000:])
    found = json.loads(found.group(0))
    return found["rate"], peak - found["before_mib"]


def in_parts(model, workers):
    """Divides the layers of a model among workers."""
    import types

    import torch.nn.functional as F
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    def forward(self, x):
        b, t, _ = x.shape
        # Each worker has some of the heads.
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, -1))
        return x + self.down(F.gelu(self.up(self.norm2(x))))

    mesh = init_device_mesh("cpu", (workers,))
    of_block = {name: ColwiseParallel() for name in ("qkv", "up")} | {name: RowwiseParallel() for name in ("out", "down")}
    for block in model.blocks:
        parallelize_module(block, mesh, of_block)
        block.heads //= workers
        block.forward = types.MethodType(forward, block)
    ends = {
        "token": RowwiseParallel(input_layouts=Replicate()),
        "head": ColwiseParallel(output_layouts=Replicate()),
    }
    parallelize_module(model, mesh, ends)


def train_torch(case):
    """Runs in a process of torchrun."""
    import torch
    import torch.distributed as dist
    import torch.nn as nn
    import torch.nn.functional as F
    from pytorch_ddp import Gpt

    torch.set_num_threads(1)
    torch.manual_seed(0)
    batch, shards, _, workers = CASES[case]
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo")
    if case == "pipeline":
        import torch.distributed.pipelining as pipelining
    elif case == "tensor":
        from torch.distributed.tensor import parallel  # noqa: F401, counted as what the process has before
    elif workers > 1:
        from torch.distributed.fsdp import fully_shard
    before = pss_mib("self")
    model = Gpt()
    loss_of = lambda scores, targets: F.cross_entropy(scores, targets.flatten())
    own = batch if case == "tensor" else batch // workers
    x, y = torch.randint(0, 4096, (own, 128)), torch.randint(0, 4096, (own, 128))
    if case == "pipeline":

        class First(nn.Module):
            def __init__(self, whole):
                super().__init__()
                self.token, self.position, self.blocks = whole.token, whole.position, whole.blocks[:3]

            def forward(self, ids):
                return self.blocks(self.token(ids) + self.position(torch.arange(ids.shape[1])))

        class Last(nn.Module):
            def __init__(self, whole):
                super().__init__()
                self.blocks, self.norm, self.head = whole.blocks[3:], whole.norm, whole.head

            def forward(self, x):
                return self.head(self.norm(self.blocks(x))).flatten(0, 1)

        # The division with the least work of the busiest process: three blocks, and one block with the head.
        model = [First, Last][rank](model)
        stage = pipelining.PipelineStage(model, rank, 2, torch.device("cpu"))
        schedule = pipelining.Schedule1F1B(stage, shards, loss_fn=loss_of)
        x, y = torch.randint(0, 4096, (batch, 128)), torch.randint(0, 4096, (batch, 128))
    elif case == "tensor":
        in_parts(model, workers)
    elif workers > 1:
        mesh = dist.device_mesh.init_device_mesh("cpu", (workers,))
        for block in model.blocks:
            fully_shard(block, mesh=mesh, reshard_after_forward=case == "zero3")
        fully_shard(model, mesh=mesh, reshard_after_forward=case == "zero3")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    times = []
    for _ in range(STEPS):
        dist.barrier()
        begun = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        if case == "pipeline":
            schedule.step(x) if rank == 0 else schedule.step(target=y)
        else:
            loss_of(model(x), y).backward()
        optimizer.step()
        dist.barrier()
        times.append(time.perf_counter() - begun)
    if rank == workers - 1:
        print(json.dumps(dict(rate=batch / statistics.median(times[WARM_UP:]), before_mib=before)))
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ronde", default="target/release/ronde")
    parser.add_argument("--python", default=sys.executable, help="a Python with torch")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--torch", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.torch:
        return train_torch(arguments.torch)
    found = {}
    for _ in range(arguments.rounds):
        for case in arguments.cases.split(","):
            for system, run in (("ronde", run_ronde), ("PyTorch", run_torch)):
                found.setdefault((case, system), []).append(run(arguments, case))
    for case in arguments.cases.split(","):
        (rate, peak), (other, other_peak) = (
            [statistics.median(column) for column in zip(*found[case, system])] for system in ("ronde", "PyTorch")
        )
        print(
            f"{case:9} ronde {rate:6.1f} texts/s {peak:4.0f} MiB, PyTorch {other:6.1f} texts/s {other_peak:4.0f} MiB: "
            f"rate {rate / other:.2f}, memory {peak / other_peak:.2f}"
        )


if __name__ == "__main__":
    main()
