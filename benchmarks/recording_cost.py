"""Measures what a recording costs: alternates periods with and without one in a single run, and compares the times of its
steps and the processor time of its workers for a step. The latter depends less on other programs, above all with one worker,
which does not wait for others.

Usage: recording_cost.py RONDE ROUNDS [arguments of `ronde train`...]        # with two workers, unless the arguments have -n
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


def processor_time(run):
    """Returns the processor time of all threads of the workers so far, in seconds."""
    lines = (Path(run) / "events.jsonl").read_text().splitlines()
    workers = [json.loads(line)["pid"] for line in lines[:100] if '"worker_started"' in line]
    tasks = [path for pid in workers for path in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    return 1e-9 * sum(int(path.read_text().split()[0]) for path in tasks)


def periods(ronde, run, rounds):
    """Starts and stops a recording, and returns whether there was one, with begin, end and processor time of each period."""
    found = []
    for _ in range(rounds):
        for is_recorded in (False, True):
            if is_recorded:
                subprocess.run([ronde, "trace", run, "--start"], stderr=subprocess.DEVNULL, check=True)
                time.sleep(NOTICE)
            begin, used = time.time(), processor_time(run)
            time.sleep(SECONDS)
            found.append((is_recorded, begin, time.time(), processor_time(run) - used))
        subprocess.run([ronde, "trace", run, "--stop"], stderr=subprocess.DEVNULL, check=True)
        time.sleep(NOTICE)
    return found


def main():
    ronde, rounds, words = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    with tempfile.TemporaryDirectory() as folder:
        run = str(Path(folder) / "run")
        settings = [f"run.output={run}", "checkpoint.every_steps=0", "train.steps=10000000"]
        words = [ronde, "train", *words, "-q"] + ([] if "-n" in words else ["-n", "2"])
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
    of_period = [sorted(s for t, s in steps if begin <= t <= end) for _, begin, end, _ in found]
    # On a busy machine, a period may pass without a step.
    pairs = [(at, at + 1) for at in range(0, len(found), 2) if of_period[at] and of_period[at + 1]]
    if not pairs:
        raise SystemExit("no two neighbouring periods have a step: record for longer")

    def report(name, values):
        ratios = [values[on] / values[off] for off, on in pairs]
        without = 1e3 * statistics.median(values[off] for off, _ in pairs)
        print(f"{name}: {without:.3f} ms without; ratio {statistics.median(ratios):.4f}", [round(r, 3) for r in ratios])

    for name, share in QUANTILES.items():
        report(name, {at: s[int(share * len(s))] for at, s in enumerate(of_period) if s})
    report("processor time", {at: used / len(s) for at, (s, (*_, used)) in enumerate(zip(of_period, found)) if s})


main()
