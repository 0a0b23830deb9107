#!/usr/bin/env python3
"""Measures the cost of fault tolerance without failures, and the time to recover from failures.

    cargo build --release
    python3 benchmarks/fault_tolerance.py cost [--rounds 8] [--steps 60]
    python3 benchmarks/fault_tolerance.py cost --small --steps 1500 [--rounds 8]
    python3 benchmarks/fault_tolerance.py faults [--kills 10] [--stops 5]
    python3 benchmarks/fault_tolerance.py recovery [--kills 5] [--copies 2] [--zero 2]
    python3 benchmarks/fault_tolerance.py many [--kills 3] [--workers 8 16 32 64 128]

`cost`: the same run with `elastic.enabled` off and on, in turns, two workers; each round prints the ratio of the median step
times, without the first ten steps, and of the processor time of all processes. With `--small` the steps are short: the cost per
step does not depend on the model, so the difference of two short steps in microseconds is measurable where a ratio of long steps
is lost in the noise. `faults`: one run of three workers; a random one gets SIGKILL, or SIGSTOP and later SIGCONT. Prints the
seconds from the signal to the detection of the loss and to the first step without the worker, and from the start of the new
process to its first step. `recovery`: a gpt of 98 million parameters on four workers with a divided state, of which a random one is killed at a
random moment of a step; no new process takes its place. Prints the seconds from the kill until the remaining three begin to compute the
interrupted step again, and until this step is complete, and the rate at which missing second copies were made, as a notice of the run
reports it. `many`: a tiny model on many workers of this host; one is killed. Prints the seconds from the kill to the next
committed step, and to the first step that the replacement takes part in.
"""
import argparse
import json
import os
import queue
import random
import re
import resource
import signal
import statistics
import subprocess
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TARGET = os.environ.get("CARGO_TARGET_DIR", os.path.join(os.path.dirname(HERE), "target"))
RONDE = os.path.join(TARGET, "release", "ronde")
WAIT_S = 60


def start(folder, workers, *sets):
    """Starts a run of a small model whose step takes about 50 ms on two cores."""
    sets = ["model.channels=48", "train.global_batch_size=192", *sets]
    command = [RONDE, "train", "--json", "--workers", str(workers), "--set", f"run.output={folder}"]
    for item in sets:
        command += ["--set", item]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def processor_s():
    """Returns the processor time of all processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


SMALL = ["model.channels=4", "train.global_batch_size=64"]


def step_s(elastic, steps, small):
    """Returns the median seconds of a step of a run without faults, and its processor time."""
    before = processor_s()
    with tempfile.TemporaryDirectory() as folder:
        run = start(folder, 2, f"elastic.enabled={elastic}", f"train.steps={steps}", *(SMALL if small else []))
        out, _ = run.communicate()
        if run.returncode != 0:
            raise SystemExit(f"ronde failed with exit code {run.returncode}")
    events = [json.loads(line) for line in out.splitlines()]
    durations = [e["duration_s"] for e in events if e.get("event") == "step_committed"]
    return statistics.median(durations[10:]), processor_s() - before


def cost(rounds, steps, small):
    off, on = [], []
    for number in range(rounds):
        for elastic, times in [("false", off), ("true", on)][:: 1 if number % 2 else -1]:
            times.append(step_s(elastic, steps, small))
        print(f"  off {1e3 * off[-1][0]:.2f} ms  on {1e3 * on[-1][0]:.2f} ms", flush=True)
    used = statistics.median(b / a for (_, a), (_, b) in zip(off, on))
    more = [sorted(1e6 * (b[i] - a[i]) / (1, steps)[i] for a, b in zip(off, on)) for i in (0, 1)]
    for what, values in zip(["a step takes", "processor time of a step"], more):
        print(f"{what}: {statistics.median(values):.0f} us more with it, {values[0]:.0f} to {values[-1]:.0f}")
    off, on = [step for step, _ in off], [step for step, _ in on]
    ratios = sorted(b / a for a, b in zip(off, on))
    print(
        f"step: off {1e3 * statistics.median(off):.2f} ms, on {1e3 * statistics.median(on):.2f} ms; "
        f"on / off: median {statistics.median(ratios):.4f}, {ratios[0]:.4f} to {ratios[-1]:.4f}; "
        f"best against best {min(on) / min(off):.4f}; processor time {used:.4f}")


class Run:
    """A run whose events are read while it trains."""

    def __init__(self, folder, process=None):
        always = ["train.epochs=100000", "elastic.max_restarts=1000000", "elastic.restart_window_s=0.1"]
        self.process = process or start(folder, 3, *always)
        self.lines, self.pids, self.started = queue.Queue(), {}, 0.0
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            self.lines.put(json.loads(line))

    def until(self, wanted):
        """Returns the next matching event."""
        deadline = time.time() + WAIT_S
        while True:
            event = self.lines.get(timeout=max(0.0, deadline - time.time()))
            if event.get("event") == "worker_started":
                self.pids[event["place"]], self.started = event["pid"], event["t"]
            if wanted(event):
                return event

    def trained_by_all(self, generation):
        kind = lambda e: e.get("event") == "step_committed" and e["generation"] >= generation
        return self.until(kind)["t"]


def is_kind(kind, **values):
    return lambda event: event.get("event") == kind and all(event[k] == v for k, v in values.items())


def fault(run, number):
    """Signals one worker; returns the seconds to detect the loss, to continue, and of the replacement."""
    place = random.choice(sorted(run.pids))
    hit = time.time()
    os.kill(run.pids[place], number)
    recovered = run.until(lambda e: is_kind("recovered")(e) and e["t"] > hit)
    started = None
    if number == signal.SIGSTOP:
        time.sleep(0.2)
        os.kill(run.pids[place], signal.SIGCONT)
    else:
        if run.started < hit:
            run.until(is_kind("worker_started"))
        started = run.started
    resumed = run.until(lambda e: is_kind("resumed", world_size=3)(e) and e["healed"] > 0)
    first = run.trained_by_all(resumed["generation"])
    time.sleep(random.uniform(0.5, 1.0))
    return recovered["t"] - recovered["duration_s"] - hit, recovered["t"] - hit, started and first - started


def faults(kills, stops):
    random.seed(1)
    with tempfile.TemporaryDirectory() as folder:
        run = Run(folder)
        try:
            run.until(is_kind("step_committed", step=10))
            for name, number, count in [("SIGKILL", signal.SIGKILL, kills), ("SIGSTOP", signal.SIGSTOP, stops)]:
                found = [fault(run, number) for _ in range(count)]
                for what, column in zip(["noticed", "going on", "replacement"], zip(*found)):
                    column = [value for value in column if value is not None]
                    if column:
                        print(f"{name} {what}: median {statistics.median(column):.3f} s, max {max(column):.3f} s ({count} times)")
        finally:
            run.process.terminate()
            run.process.wait()


LARGE = """
version = 1
[run]
name = "gpt"
[data]
source = "synthetic_text"
samples = 4000
test_samples = 4
context = 32
tokens = 8192
[model]
kind = "gpt"
layers = 12
width = 768
heads = 12
[train]
steps = 1000
global_batch_size = 4
learning_rate = 0.0003
[optimizer]
kind = "adamw"
[workers]
logical_shards = 4
[checkpoint]
at_end = false
[elastic]
max_restarts = 0
"""


RESTORED = re.compile(r"each slice is on 2 workers again: ([0-9.]+) MiB in ([0-9.]+) s")


def recovery(kills, zero, copies):
    random.seed(1)
    found, rates = [], []
    for _ in range(kills):
        with tempfile.TemporaryDirectory() as folder:
            file = os.path.join(folder, "run.toml")
            with open(file, "w") as out:
                out.write(LARGE)
            command = [RONDE, "train", file, "--json", "--workers", "4", "--set", f"run.output={folder}/out"]
            command += ["--set", f"parallel.zero={zero}", "--set", f"parallel.copies={copies}"]
            run = Run(folder, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True))
            try:
                step_s = run.until(is_kind("step_committed", step=4))["duration_s"]
                time.sleep(random.uniform(0, step_s))
                hit = time.time()
                os.kill(run.pids[random.randrange(4)], signal.SIGKILL)
                resumed = run.until(is_kind("resumed", world_size=3))
                first = run.until(is_kind("step_committed", generation=resumed["generation"]))
                found.append((resumed["t"] - hit, first["t"] - hit, step_s))
                again = run.until(lambda e: is_kind("notice")(e) and RESTORED.search(e["message"])) if copies > 1 else None
                mib, seconds = map(float, RESTORED.search(again["message"]).groups()) if again else (0, 1)
                rates.append(mib * 2**20 / seconds / 1e9)
                times = ", ".join(f"{value:.3f} s" for value in found[-1])
                print(f"  {times}; second copies: {mib:.0f} MiB in {seconds:.2f} s, {rates[-1]:.2f} GB/s", flush=True)
            finally:
                run.process.terminate()
                run.process.wait()
    for what, column in zip(["computes again", "step complete", "a step before"], zip(*found)):
        print(f"{what}: median {statistics.median(column):.3f} s, max {max(column):.3f} s")
    print(f"second copies: median {statistics.median(rates):.2f} GB/s, {min(rates):.2f} to {max(rates):.2f}")


def kill_one(workers):
    """Kills one of many workers; returns the seconds to the next step, and to the first step with its replacement."""
    sets = [f"workers.logical_shards={workers}", f"train.global_batch_size={4 * workers}"]
    sets += ["model.channels=4", "train.epochs=100000", "checkpoint.every_steps=0"]
    pids, first, killed, after, joined = {}, 0, None, None, False
    with tempfile.TemporaryDirectory() as folder:
        process = start(os.path.join(folder, "run"), workers, *sets)
        for line in process.stdout:
            if not any(kind in line for kind in ('"worker_started"', '"step_committed"', '"resumed"')):
                continue
            event = json.loads(line)
            kind, generation = event["event"], event.get("generation", 0)
            if kind == "worker_started":
                pids.setdefault(event["place"], event["pid"])
            elif kind == "resumed":
                joined |= killed is not None and generation > first and event["world_size"] == workers
            elif killed is None and event["step"] >= 100:
                first = generation
                killed = time.time()
                os.kill(pids[random.randrange(1, workers)], signal.SIGKILL)
            elif killed is not None and generation > first:
                after = after or event["t"] - killed
                if joined:
                    process.kill()
                    process.wait()
                    return after, event["t"] - killed
    raise SystemExit(f"the run with {workers} workers ended early")


def many(sizes, kills):
    for workers in sizes:
        times = [kill_one(workers) for _ in range(kills)]
        for what, of in (("next step", 0), ("first step with the replacement", 1)):
            each = sorted(t[of] for t in times)
            print(f"{workers} workers, {what}: median {statistics.median(each):.2f} s, "
                  f"{each[0]:.2f} to {each[-1]:.2f} s", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["cost", "faults", "recovery", "many"])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--kills", type=int)
    parser.add_argument("--workers", type=int, nargs="+", default=[8, 16, 32, 64, 128])
    parser.add_argument("--stops", type=int, default=5)
    parser.add_argument("--zero", type=int, default=2)
    parser.add_argument("--copies", type=int, default=2)
    arguments = parser.parse_args()
    if arguments.what == "cost":
        cost(arguments.rounds, arguments.steps, arguments.small)
    elif arguments.what == "recovery":
        recovery(arguments.kills or 10, arguments.zero, arguments.copies)
    elif arguments.what == "many":
        many(arguments.workers, arguments.kills or 3)
    else:
        faults(arguments.kills or 10, arguments.stops)


if __name__ == "__main__":
    main()
