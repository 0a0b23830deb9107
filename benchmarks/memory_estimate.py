#!/usr/bin/env python3
"""Compares the memory estimate of `ronde train` with measured memory, on a gpt of 98 million parameters with AdamW.

    cargo build --release
    python3 benchmarks/memory_estimate.py [--steps 5] [--set KEY=VALUE ...] [--layouts 2:0:1 4:2:2]

A layout is workers:zero:copies; each worker has one shard unless workers.logical_shards is set. Measured is the highest proportional set size
(Pss) of any worker at any time, with a checkpoint at the end: its private memory and its share of the memory that it shares with others. The estimate is read from a dry run.
"""
import argparse
import os
import re
import subprocess
import tempfile
import time

from divided_state import descendants, pss_mib
from fault_tolerance import LARGE, RONDE

LAYOUTS = ["2:0:1", "2:1:1", "2:2:1", "4:0:1", "4:1:1", "4:2:1", "4:1:2", "4:2:2"]
UNITS = {"KiB": 1 / 1024, "MiB": 1, "GiB": 1024}


def estimated_mib(command):
    text = subprocess.run([*command, "--dry-run"], check=True, capture_output=True, text=True)
    found = re.search(r"about ([0-9.,]+) ([KMG]iB) per worker", text.stdout + text.stderr)
    return float(found[1].replace(",", "")) * UNITS[found[2]]


def measured_mib(command):
    process = subprocess.Popen([*command, "--quiet", "--overwrite"], stdout=subprocess.DEVNULL)
    peak = 0
    while process.poll() is None:
        peak = max([peak, *(pss_mib(each) for each in descendants(process.pid))])
        time.sleep(0.05)
    assert process.returncode == 0, process.returncode
    return peak


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--layouts", nargs="+", default=LAYOUTS)
    args = parser.parse_args()
    for layout in args.layouts:
        workers, zero, copies = layout.split(":")
        with tempfile.TemporaryDirectory() as folder:
            file = os.path.join(folder, "run.toml")
            with open(file, "w") as out:
                out.write(LARGE)
            sets = [f"run.output={folder}/out", f"workers.count={workers}", f"workers.logical_shards={workers}",
                    f"parallel.zero={zero}", f"train.steps={args.steps}", "checkpoint.at_end=true", *args.set]
            if zero != "0":
                sets.append(f"parallel.copies={copies}")
            command = [RONDE, "train", file, *(word for one in sets for word in ("--set", one))]
            estimate = estimated_mib(command)
            measured = measured_mib(command)
        print(f"{workers} workers, zero {zero}, copies {copies}: estimate {estimate:.0f} MiB, measured {measured:.0f} MiB "
              f"({100 * (estimate / measured - 1):+.1f} %)", flush=True)


if __name__ == "__main__":
    main()
