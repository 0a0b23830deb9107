#!/usr/bin/env python3
"""Measures how good a choice of algorithms can be on this machine: runs the grid of all algorithms repeatedly and compares.

    cargo build --release -p ronde-comm --example choice_grid
    python3 benchmarks/choice_again.py [--ranks 2,3,4] [--runs 4] [--sizes 8,64,...] [--program choice_grid]

A cell is an operation, a size and a number of ranks. Prints the number of cells of all runs in which the algorithm that the
group chose after its calibration was within 10 % of the best one of that run, and the number of cells in which the best
algorithm by the medians of all *other* runs was, which is the best that a choice can be expected to reach.
"""
import argparse
import os
import re
import statistics
import subprocess


def grid(program, ranks, sizes):
    """Returns the microseconds of every algorithm and the chosen one, by operation and size."""
    command = [program, f"ranks={ranks}", f"sizes={sizes}", "operations=all_reduce,exact_sum"]
    cells = {}
    for line in subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines():
        words = [word.strip() for word in line.strip("|").split("|")]
        if len(words) == 8 and words[1].isdigit():
            times = re.findall(r"(\w+) (\d+) \(", words[7])
            cells[words[0], words[1]] = {name: float(time) for name, time in times}, words[4]
    return cells


def told(name, ratios):
    near = sum(ratio <= 1.1 for ratio in ratios)
    print(f"{name}: {near} of {len(ratios)} within 10 %, mean {statistics.geometric_mean(ratios):.3f}, most {max(ratios):.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    target = os.environ.get("CARGO_TARGET_DIR", "target")
    parser.add_argument("--program", default=f"{target}/release/examples/choice_grid")
    parser.add_argument("--ranks", default="2,3,4")
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--sizes", default="8,64,512,4096,32768,65536,262144,524288,2097152")
    args = parser.parse_args()
    chosen, known = [], []
    ranks = args.ranks.split(",")
    runs = [{count: grid(args.program, count, args.sizes) for count in ranks} for _ in range(args.runs)]
    for number, run in enumerate(runs):
        others = runs[:number] + runs[number + 1:]
        for count, cells in run.items():
            for cell, (times, choice) in cells.items():
                best = min(times.values())
                chosen.append(times[choice] / best)
                medians = {name: statistics.median(other[count][cell][0][name] for other in others) for name in times}
                known.append(times[min(medians, key=medians.get)] / best)
    told("chosen by the group", chosen)
    told("best by the other runs", known)


if __name__ == "__main__":
    main()
