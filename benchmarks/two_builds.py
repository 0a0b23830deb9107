"""Compares two builds of `ronde` in turns: times of training steps, of all_reduce and of a start, and the sizes of the programs.

Usage: two_builds.py OLD NEW [--rounds 15]

To compare with another commit, build it in a folder of its own:

    git worktree add /tmp/old COMMIT && (cd /tmp/old && cargo build --release)

Each round runs both programs, in changing order. A ratio is that of one round, new to old; printed are their median and an interval
that has the true median with at least 95 % (the order statistics of a binomial distribution).
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
# Steps at the beginning, in which memory is allocated and connections are made.
FIRST_STEPS = 10


def train(program, file, workers, settings):
    """Returns the median time of a step in seconds, and the time of the whole command."""
    with tempfile.TemporaryDirectory() as folder:
        words = [program, "train", *([str(file)] if file else []), "--json", "-n", str(workers)]
        for setting in [*settings, f"run.output={folder}/run"]:
            words += ["--set", setting]
        begin = time.perf_counter()
        ended = subprocess.run(words, capture_output=True, text=True, check=True)
        whole = time.perf_counter() - begin
    events = [json.loads(line) for line in ended.stdout.splitlines()]
    steps = [event["duration_s"] for event in events if event.get("event") == "step_committed"]
    return (statistics.median(steps[FIRST_STEPS:]) if len(steps) > FIRST_STEPS else None), whole


def all_reduce(program, transport):
    """Returns the median time of an exchange by size, in seconds."""
    with tempfile.TemporaryDirectory() as folder:
        words = [program, "bench", "all_reduce", "-n", "2", "--sizes", "4KiB,256KiB,16MiB", "--transports", transport]
        subprocess.run([*words, "--memory", "group", "--json", f"{folder}/x.json"], capture_output=True, check=True)
        rows = json.loads(Path(f"{folder}/x.json").read_text())["rows"]
    return {f"all_reduce {transport} {row['bytes']} bytes": row["median_us"] / 1e6 for row in rows}


def measure(program):
    """Returns all times of one round by name, in seconds."""
    times = {}
    times["step of digits, 2 workers"], _ = train(program, None, 2, ["train.steps=300"])
    times["step of gpt, 2 workers"], _ = train(program, EXAMPLES / "gpt.toml", 2, ["train.epochs=1", "checkpoint.every_steps=0"])
    _, times["start and end of a run of 1 step, 2 workers"] = train(program, None, 2, ["train.steps=1"])
    begin = time.perf_counter()
    subprocess.run([program, "--version"], capture_output=True, check=True)
    times["ronde --version"] = time.perf_counter() - begin
    times |= all_reduce(program, "shared_memory") | all_reduce(program, "tcp")
    return times


def interval(ratios):
    """Returns an interval that has the median with a probability of at least 95 %."""
    ordered, n = sorted(ratios), len(ratios)
    outside, low = 0.0, 0
    while low < n // 2:
        outside += 2 * math.comb(n, low) / 2**n
        if outside > 0.05:
            break
        low += 1
    return ordered[max(low - 1, 0)], ordered[min(n - low, n - 1)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    programs = {"old": os.path.abspath(arguments.old), "new": os.path.abspath(arguments.new)}
    found = {name: [] for name in programs}
    for number in range(arguments.rounds):
        for name in sorted(programs, reverse=number % 2 == 1):
            found[name].append(measure(programs[name]))
    print("| measured | old | new | new / old | 95 % interval |")
    print("|---|---|---|---|---|")
    for key in found["old"][0]:
        old, new = ([times[key] for times in found[name]] for name in ("old", "new"))
        ratios = [b / a for a, b in zip(old, new)]
        low, high = interval(ratios)
        of = [f"{1e3 * statistics.median(values):,.3f} ms" for values in (old, new)]
        print(f"| {key} | {of[0]} | {of[1]} | {statistics.median(ratios):.3f} | {low:.3f} to {high:.3f} |")
    sizes = [os.path.getsize(programs[name]) / 2**20 for name in ("old", "new")]
    print(f"| size of the program | {sizes[0]:.1f} MiB | {sizes[1]:.1f} MiB | {sizes[1] / sizes[0]:.3f} | |")


main()
