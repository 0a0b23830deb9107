"""Rate and memory of `parallel.zero` 0 to 3, and of 2 and 3 with `parallel.order = "by_layer"`, in turns: python3 benchmarks/divided_state.py RUN_FILE --workers 2 --rounds 5

Prints the median time of a step of each level (without the first two steps), its rate compared with level 0, and the highest mean
of the workers' proportional set sizes (Pss), which counts memory that workers share once.
"""

import argparse
import json
import pathlib
import re
import statistics
import subprocess
import tempfile
import threading
import time


def pss_mib(process):
    """Returns the proportional set size of a process; 0 if it has ended."""
    try:
        text = pathlib.Path(f"/proc/{process}/smaps_rollup").read_text()
        return int(re.search(r"^Pss:\s+(\d+)", text, re.M).group(1)) / 1024
    except (OSError, AttributeError):
        return 0


def descendants(process):
    """Returns the processes that a process has started, directly or not."""
    parents = {}
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        parents.setdefault(int(fields[1]), []).append(int(folder.name))
    found, new = [], [process]
    while new:
        new = [child for parent in new for child in parents.get(parent, [])]
        found += new
    return found


def run(arguments, level, order):
    """Runs one training; returns the median time of its steps and its memory."""
    with tempfile.TemporaryDirectory() as folder:
        command = [arguments.ronde, "train", arguments.run, "--json", "-n", str(arguments.workers)]
        settings = [f"parallel.zero={level}", f"parallel.order={order}", f"run.output={folder}/run", *arguments.set]
        for setting in settings:
            command += ["--set", setting]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        lines = []
        reader = threading.Thread(target=lambda: lines.extend(process.stdout))
        reader.start()
        memory = 0
        while process.poll() is None:
            if arguments.memory:
                sizes = sorted(pss_mib(each) for each in descendants(process.pid))
                memory = max(memory, sum(sizes[-arguments.workers :]) / arguments.workers)
            time.sleep(0.05)
        reader.join()
        if process.returncode:
            raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
        events = [json.loads(line) for line in lines if line.startswith("{")]
        steps = [event["duration_s"] for event in events if event.get("event") == "step_committed"]
        return statistics.median(steps[2:]), memory


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run")
    parser.add_argument("--ronde", default="target/release/ronde")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--memory", action="store_true", help="measure memory, which takes some of the time")
    parser.add_argument("--set", action="append", default=[])
    arguments = parser.parse_args()
    cases = [(level, "by_shard") for level in range(4)] + [(2, "by_layer"), (3, "by_layer")]
    results = {case: [] for case in cases}
    for _ in range(arguments.rounds):
        for case, found in results.items():
            found.append(run(arguments, *case))
    plain = statistics.median(step for step, _ in results[cases[0]])
    for (level, order), found in results.items():
        step = statistics.median(step for step, _ in found)
        memory = max(memory for _, memory in found)
        print(f"zero = {level}, {order}: {1e3 * step:7.1f} ms, {plain / step:.3f} of the rate, {memory:5.0f} MiB")


if __name__ == "__main__":
    main()
