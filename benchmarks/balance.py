"""Equal and measured shares with one slow worker, in turns: python3 benchmarks/balance.py RUN_FILE --rounds 5 (as root)

Starts two workers, limits one of them to a part of a core by a quota of the cpu control group, and prints the median time of a
step with `workers.balance` equal and measured: of the steps after the shares have moved, or after --warm-up seconds.
"""

import argparse
import json
import pathlib
import signal
import statistics
import subprocess
import tempfile
import time

GROUP = pathlib.Path("/sys/fs/cgroup/cpu/ronde_balance")


def limit(process, cores):
    """Limits a process to a part of a core."""
    GROUP.mkdir(exist_ok=True)
    (GROUP / "cpu.cfs_period_us").write_text("20000")
    (GROUP / "cpu.cfs_quota_us").write_text(str(int(cores * 20000)))
    (GROUP / "cgroup.procs").write_text(str(process))


def run(arguments, balance):
    """Runs one training; returns the median time of its last steps and the shares."""
    with tempfile.TemporaryDirectory() as folder:
        command = [arguments.ronde, "train", arguments.run, "--json", "-n", "2"]
        for setting in [f"workers.balance={balance}", f"run.output={folder}/run", "train.steps=1000000", *arguments.set]:
            command += ["--set", setting]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        begun, steps, shares = None, [], None
        for line in process.stdout:
            event = json.loads(line)
            if event.get("event") == "worker_started" and event["place"] == 1:
                limit(event["pid"], arguments.cores)
            if event.get("event") == "shares_changed":
                shares = event["shares"]
            if event.get("event") == "step_committed":
                begun = begun or time.monotonic()
                passed = time.monotonic() - begun
                if passed > arguments.warm_up:
                    steps.append(event["duration_s"])
                if passed > arguments.warm_up + arguments.seconds:
                    break
        process.send_signal(signal.SIGKILL)
        process.wait()
        time.sleep(1)
        return sum(steps) / len(steps), shares


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run")
    parser.add_argument("--ronde", default="target/release/ronde")
    parser.add_argument("--cores", type=float, default=1 / 3)
    parser.add_argument("--warm-up", type=float, default=10)
    parser.add_argument("--seconds", type=float, default=6)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--set", action="append", default=[])
    arguments = parser.parse_args()
    results = {"equal": [], "measured": []}
    for _ in range(arguments.rounds):
        for balance, found in results.items():
            found.append(run(arguments, balance))
            print(balance, *found[-1], flush=True)
    times = {balance: statistics.median(time for time, _ in found) for balance, found in results.items()}
    for balance, seconds in times.items():
        print(f"{balance}: {1e3 * seconds:.1f} ms per step")
    print(f"rate with measured shares: {times['equal'] / times['measured']:.2f} times that with equal shares")


main()
