#!/usr/bin/env python3
"""Measures local SGD against sums in every step, on four workers in network namespaces with shaped links. Needs root, ip and tc.

    cargo build --release --bins
    python3 benchmarks/local_sgd.py [--rate 50mbit] [--steps 400] [--every-step 40] [--inner 100] [--fragments 4]
                                    [--run examples/gpt.toml] [--set KEY=VALUE ...]
    python3 benchmarks/local_sgd.py --losses --epochs 60 --seeds 3 --inner 102 --set data.context=32     # without links

Prints for each form of synchronisation the seconds per step, the bytes that a worker sends per step, the utilisation (the share of the steps'
time in which workers compute), and the loss of the last evaluation. Runs of every step are measured over fewer steps, because
they are slow on such links; their loss is that of a run of all steps on this host without shaped links, which has the same bits.

With --losses: the lowest loss on the test set over the evaluations of a run, for several learning rates, the mean of the seeds. Both forms have the
same number of steps and samples.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(__file__))
from shaped_links import Network, address  # noqa: E402

WORKERS = 4


def events(text):
    return [json.loads(line) for line in text.splitlines() if "\"event\":" in line]


def arguments(args, folder, sets):
    given = [f"run.output={folder}", "checkpoint.at_end=false", "comm.algorithm=direct", *args.set, *sets]
    command = [os.path.abspath(args.program), "train", args.run, "--json"]
    return command + [word for one in given for word in ("--set", one)]


def figures(text):
    """Returns seconds and bytes per inner step, the utilisation, and the loss of the last evaluation."""
    all_events = events(text)
    times = [event for event in all_events if event["event"] == "step_times"]
    total = lambda event: event["compute_s"] + event["communicate_s"] + event["wait_data_s"]
    # The first step starts slowly everywhere, and the links are measured before it.
    later = [event for event in times if event["step"] > 0]
    rounds = {event["step"] for event in later}
    losses = {event["step"]: len(event["losses"]) for event in all_events if event["event"] == "inner_losses"}
    steps = sum(losses.get(step, 1) for step in rounds)
    seconds = sum(map(total, later)) / WORKERS / steps
    busy = sum(event["compute_s"] for event in later) / sum(map(total, later))
    sent = {}
    for event in times:
        sent.setdefault(event["rank"], []).append(event["bytes_sent"])
    sent_bytes = sum(max(each) - min(each) for each in sent.values()) / len(sent)
    evaluated = [event["loss"] for event in all_events if event["event"] == "evaluated"]
    return seconds, sent_bytes / steps, busy, evaluated[-1] if evaluated else float("nan")


def shaped(args, sets):
    with Network(args.rate) as network, tempfile.TemporaryDirectory() as folder:
        processes = []
        for rank in range(WORKERS):
            variables = {"RONDE_RANK": rank, "RONDE_WORLD_SIZE": WORKERS, "RONDE_ALLOW_PLAIN": 1,
                         "RONDE_RENDEZVOUS": f"{address(0)}:4711"}
            command = ["env", *(f"{key}={value}" for key, value in variables.items()),
                       *arguments(args, f"{folder}/{rank}", [f"workers.count={WORKERS}", *sets])]
            processes.append(network.start(rank, command))
            if rank == 0:
                time.sleep(0.5)
        text = processes[0].stdout.read()
        codes = [process.wait(60) for process in processes]
        assert codes == [0] * WORKERS, codes
    return text


def unshaped(args, sets):
    with tempfile.TemporaryDirectory() as folder:
        command = arguments(args, folder, ["workers.count=2", *sets])
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def losses(args):
    """Prints the lowest test loss of each form and learning rate, and the last one: means over seeds."""
    local = ["sync.kind=local_sgd", f"sync.inner_steps={args.inner}", f"sync.replicas={WORKERS}", "sync.inner_state=keep"]
    common = [f"train.epochs={args.epochs}", "train.evaluate_every_epochs=2", f"workers.logical_shards={WORKERS}"]
    print(f"{'':16}{'learning rate':>14}{'lowest loss':>12}{'last loss':>12}")
    for name, sets in (("every step", []), ("local", local)):
        for rate in args.rates.split(","):
            found = []
            for seed in range(1, args.seeds + 1):
                all_events = events(unshaped(args, [*common, f"train.learning_rate={rate}", f"run.seed={seed}", *sets]))
                evaluated = [event["loss"] for event in all_events if event["event"] == "evaluated"]
                found.append((min(evaluated), evaluated[-1]))
            lowest, last = (sum(each) / len(found) for each in zip(*found))
            print(f"{name:16}{rate:>14}{lowest:12.4f}{last:12.4f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="target/release/ronde")
    parser.add_argument("--run", default="examples/gpt.toml")
    parser.add_argument("--rate", default="50mbit")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--every-step", type=int, default=40)
    parser.add_argument("--inner", type=int, default=100)
    parser.add_argument("--fragments", type=int, default=4)
    parser.add_argument("--only", help="forms whose names contain this, after training in every step")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--losses", action="store_true")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rates", default="0.002,0.004,0.008")
    args = parser.parse_args()
    if args.losses:
        return losses(args)
    local = ["sync.kind=local_sgd", f"sync.inner_steps={args.inner}", f"sync.replicas={WORKERS}"]
    fragments = ["sync.inner_state=keep", f"sync.fragments={args.fragments}"]
    steps = f"train.steps={args.steps}"
    forms = [
        ("every step", [f"train.steps={args.every_step}"]),
        ("local, f32", [steps, *local]),
        ("local, bf16", [steps, *local, "sync.outer_format=bf16"]),
        ("local, int8_blocks", [steps, *local, "sync.outer_format=int8_blocks"]),
        ("local, averaged states", [steps, *local, "sync.inner_state=average"]),
        ("local, fragments", [steps, *local, *fragments]),
        ("fragments, int8_blocks", [steps, *local, *fragments, "sync.outer_format=int8_blocks"]),
    ]
    print(f"{'':24}{'s per step':>12}{'bytes per step':>16}{'fewer bytes':>12}{'utilisation':>12}{'loss':>9}{'gap':>8}")
    plain = None
    for name, sets in forms[:1] + [form for form in forms[1:] if not args.only or args.only in form[0]]:
        seconds, sent, busy, loss = figures(shaped(args, sets))
        if plain is None:
            loss = figures(unshaped(args, [steps]))[3]
            plain = (sent, loss)
        print(f"{name:24}{seconds:12.4f}{sent:16.0f}{plain[0] / sent:12.1f}{busy:12.1%}{loss:9.4f}"
              f"{loss / plain[1] - 1:+8.2%}", flush=True)


if __name__ == "__main__":
    main()
