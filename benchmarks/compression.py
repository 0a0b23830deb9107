#!/usr/bin/env python3
"""Measures compressed gradients against plain ones, on four workers in network namespaces with shaped links. Needs root, ip and tc.

    cargo build --release --bins
    python3 benchmarks/compression.py [--rate 100mbit] [--run examples/gpt.toml] [--steps 400] [--plain-steps 40] [--loss 2.6]
                                      [--only top_k,int8_blocks] [--set KEY=VALUE ...]
    python3 benchmarks/compression.py --here        # without shaped links, on this host: bytes and results only

Prints for each codec the bytes that a worker sends per step, their share of plain training, the seconds per step, the seconds until the
mean loss of the last 20 steps is at most `--loss`, and loss and accuracy of the last evaluation. With shaped links, plain training is
measured over `--plain-steps` steps, because it is slow on them; its losses are those of a run of all steps on this host, which has the same bits.
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
# The steps whose mean loss counts.
WINDOW = 20
SENDERS = f"compression.senders={WORKERS}"
CODECS = {
    "none": [],
    "bf16": ["compression.codec=bf16", SENDERS],
    "f16": ["compression.codec=f16", SENDERS],
    "int8_blocks": ["compression.codec=int8_blocks", SENDERS],
    "top_k": ["compression.codec=top_k", SENDERS],
    "power_sgd": ["compression.codec=power_sgd", SENDERS],
}


def arguments(args, folder, sets):
    given = [f"run.output={folder}", "checkpoint.at_end=false", f"workers.count={WORKERS}", *args.set, *sets]
    command = [os.path.abspath(args.program), "train", args.run, "--json"]
    return command + [word for one in given for word in ("--set", one)]


def shaped(args, sets):
    with Network(args.rate) as network, tempfile.TemporaryDirectory() as folder:
        processes = []
        for rank in range(WORKERS):
            variables = {"RONDE_RANK": rank, "RONDE_WORLD_SIZE": WORKERS, "RONDE_ALLOW_PLAIN": 1,
                         "RONDE_RENDEZVOUS": f"{address(0)}:4711"}
            command = ["env", *(f"{key}={value}" for key, value in variables.items()),
                       *arguments(args, f"{folder}/{rank}", ["comm.algorithm=direct", *sets])]
            processes.append(network.start(rank, command))
            if rank == 0:
                time.sleep(0.5)
        text = processes[0].stdout.read()
        codes = [process.wait(60) for process in processes]
        assert codes == [0] * WORKERS, codes
    return text


def here(args, sets):
    with tempfile.TemporaryDirectory() as folder:
        command = arguments(args, folder, ["comm.transport=tcp", "comm.algorithm=direct", *sets])
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


class Figures:
    """Bytes and seconds per step, the loss of each step, and the last evaluation of a run."""

    def __init__(self, text):
        events = [json.loads(line) for line in text.splitlines() if "\"event\":" in line]
        times = [event for event in events if event["event"] == "step_times"]
        # The first step starts slowly everywhere, and the links are measured before it.
        later = [event for event in times if event["step"] > 0]
        steps = len({event["step"] for event in later})
        totals = [event["compute_s"] + event["communicate_s"] + event["wait_data_s"] for event in later]
        self.seconds = sum(totals) / WORKERS / steps
        sent = {}
        for event in times:
            sent.setdefault(event["rank"], []).append(event["bytes_sent"])
        self.bytes = sum(max(each) - min(each) for each in sent.values()) / len(sent) / steps
        self.losses = [event["loss"] for event in events if event["event"] == "step_committed"]
        evaluated = [event for event in events if event["event"] == "evaluated"]
        self.evaluation = evaluated[-1] if evaluated else {}

    def steps_to(self, loss):
        """Returns the number of steps after which the mean loss of the last steps is low enough; None if it never is."""
        for end in range(WINDOW, len(self.losses) + 1):
            if sum(self.losses[end - WINDOW:end]) / WINDOW <= loss:
                return end
        return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="target/release/ronde")
    parser.add_argument("--run", default="examples/gpt.toml")
    parser.add_argument("--rate", default="100mbit")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--plain-steps", type=int, default=40)
    parser.add_argument("--loss", type=float, default=2.6)
    parser.add_argument("--only", default=",".join(CODECS))
    parser.add_argument("--here", action="store_true")
    parser.add_argument("--set", action="append", default=[])
    args = parser.parse_args()
    all_steps = [f"train.steps={args.steps}"] if args.steps else []
    print(f"{'':14}{'bytes per step':>15}{'share':>8}{'s per step':>12}{'s to loss':>11}{'loss':>9}{'accuracy':>10}")
    plain = None
    for name in args.only.split(","):
        sets = [*all_steps, *CODECS[name]]
        whole = Figures(here(args, sets)) if args.here or name == "none" else None
        if args.here:
            measured = whole
        elif name == "none":
            measured = Figures(shaped(args, [f"train.steps={args.plain_steps}"]))
        else:
            measured = Figures(shaped(args, sets))
        whole = whole or measured
        plain = plain or measured.bytes
        steps = whole.steps_to(args.loss)
        to_loss = f"{steps * measured.seconds:.1f}" if steps else "never"
        accuracy = whole.evaluation.get("accuracy", float("nan"))
        print(f"{name:14}{measured.bytes:15.0f}{measured.bytes / plain:8.2%}{measured.seconds:12.4f}{to_loss:>11}"
              f"{whole.evaluation.get('loss', float('nan')):9.4f}{accuracy:10.2%}", flush=True)


if __name__ == "__main__":
    main()
