"""Measures what a recording costs: alternates periods with and without one in a single run, and compares the times of its steps.

Usage: recording_cost.py RONDE ROUNDS [arguments of `ronde train`...]
"""

import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SECONDS = 1.2
# Workers look for a request five times a second.
NOTICE = 0.3
QUANTILES = {"lower quartile": 0.25, "median": 0.5}


def periods(ronde, run, rounds):
    """Starts and stops a recording, and returns whether there was one, with begin and end of each period."""
    found = []
    for _ in range(rounds):
        for is_recorded in (False, True):
            if is_recorded:
                subprocess.run([ronde, "trace", run, "--start"], stderr=subprocess.DEVNULL, check=True)
                time.sleep(NOTICE)
            begin = time.time()
            time.sleep(SECONDS)
            found.append((is_recorded, begin, time.time()))
        subprocess.run([ronde, "trace", run, "--stop"], stderr=subprocess.DEVNULL, check=True)
        time.sleep(NOTICE)
    return found


def main():
    ronde, rounds, words = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    with tempfile.TemporaryDirectory() as folder:
        run = str(Path(folder) / "run")
        settings = [f"run.output={run}", "checkpoint.every_steps=0", "train.steps=10000000"]
        words = [ronde, "train", *words, "-n", "2", "-q"]
        for setting in settings:
            words += ["--set", setting]
        process = subprocess.Popen(words, stderr=subprocess.DEVNULL)
        time.sleep(2)
        found = periods(ronde, run, rounds)
        process.send_signal(signal.SIGINT)
        process.wait()
        lines = (Path(run) / "events.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines if '"step_committed"' in line]
    steps = [(event["t"], event["duration_s"]) for event in events]
    times = [(kind, sorted(s for t, s in steps if begin <= t <= end)) for kind, begin, end in found]
    for name, share in QUANTILES.items():
        of = {kind: [s[int(share * len(s))] for k, s in times if k == kind] for kind in (False, True)}
        ratios = [on / off for off, on in zip(of[False], of[True])]
        off = 1e3 * statistics.median(of[False])
        print(f"{name}: {off:.3f} ms without; ratio {statistics.median(ratios):.4f}", [round(r, 3) for r in ratios])


main()
