#!/usr/bin/env python3
"""Measures stages that update with predicted gradients against a 1F1B pipeline with as many micro-batches as stages.

    cargo build --release --workspace --features ronde/full,ronde/burn --bins --example predicted_stages
    python3 benchmarks/synthetic_gradients.py [--seeds 8] [--ranks 2,4,8] [--ms 40] [--epochs 1] [--only busy|accuracy]

Utilisation: layers of a real network that also wait for a known time, `--ms` milliseconds for the forward pass of a batch and twice that for
its backward pass, so that many workers fit on a few cores. Prints the share of the time for which the layers of a worker were asked to
wait, and the time of a batch. Accuracy on the test set of digits: the mean and the range of the seeds 1 to `--seeds`, with the same batches and
updates; the bits of a 1F1B pipeline are those of training in every step, so that is what runs.
"""
import argparse
import concurrent.futures
import json
import os
import re
import subprocess
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
EXAMPLE = os.path.join(HERE, "..", "examples", "synthetic_gradients.toml")


def busy(args):
    print(f"{'workers':>8}{'1F1B busy':>11}{'ms a batch':>12}{'predicted busy':>16}{'ms a batch':>12}{'times as fast':>15}")
    for ranks in args.ranks.split(","):
        command = [args.example, f"ranks={ranks}", f"ms={args.ms}", f"epochs={args.epochs}"]
        text = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        found = re.findall(r"busy ([\d.]+) to [\d.]+ % of the time, ([\d.]+) ms", text)
        (plain, plain_ms), (predicted, predicted_ms) = [[float(number) for number in pair] for pair in found]
        print(f"{ranks:>8}{plain:>9.1f} %{plain_ms:>12.1f}{predicted:>14.1f} %{predicted_ms:>12.1f}{plain_ms / predicted_ms:>15.2f}",
              flush=True)


def run_file(folder, hidden, is_predicted):
    """Writes the run file of the example, or of a perceptron with hidden layers, with or without predictions."""
    with open(EXAMPLE, encoding="utf-8") as file:
        text = file.read()
    if hidden > 0:
        text = text.replace('kind = "digits_cnn"', f'kind = "mlp"\nhidden = {[96] * hidden}')
        text = text.replace("learning_rate = 0.004\n", "learning_rate = 0.001\n", 1).replace("epochs = 20", "epochs = 40")
        text = text.replace("stages = 3", f"stages = {hidden + 1}")
    if not is_predicted:
        text = text[:text.index("[sync]")]
    path = os.path.join(folder, "run.toml")
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return path


def accuracy_of(args, hidden, is_predicted, seed):
    with tempfile.TemporaryDirectory() as folder:
        command = [args.program, "train", run_file(folder, hidden, is_predicted), "--json", "-n", "1"]
        for value in [f"run.output={folder}/out", f"run.seed={seed}", "checkpoint.at_end=false"]:
            command += ["--set", value]
        text = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
    events = [json.loads(line) for line in text.splitlines() if "\"event\":" in line]
    return 100 * [event for event in events if event["event"] == "evaluated"][-1]["accuracy"]


def accuracy(args):
    print(f"\n{'':32}{'1F1B':>24}{'predicted':>24}{'gap, points':>14}")
    models = [("digits_cnn, 3 stages, 20 epochs", 0), ("mlp, 4 stages, 40 epochs", 3), ("mlp, 8 stages, 40 epochs", 7)]
    for name, hidden in models:
        columns, means = "", []
        for is_predicted in [False, True]:
            with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as threads:
                seeds = range(1, args.seeds + 1)
                found = list(threads.map(lambda seed: accuracy_of(args, hidden, is_predicted, seed), seeds))
            means.append(sum(found) / len(found))
            columns += f"{means[-1]:8.2f} % ({min(found):.1f} to {max(found):.1f})"
        print(f"{name:32}{columns}{means[0] - means[1]:14.2f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="target/release/ronde")
    parser.add_argument("--example", default="target/release/examples/predicted_stages")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--ranks", default="2,4,8")
    parser.add_argument("--ms", type=float, default=40)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--only", choices=["busy", "accuracy"])
    args = parser.parse_args()
    if args.only != "accuracy":
        busy(args)
    if args.only != "busy":
        accuracy(args)


if __name__ == "__main__":
    main()
