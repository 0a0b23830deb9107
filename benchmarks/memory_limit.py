"""Trains a GPT on workers whose memory a control group limits: sudo python3 benchmarks/memory_limit.py

A GPT of 185 M parameters (14 layers, width 1,024, AdamW, f32) needs about 3 GiB on each of four workers that hold all of it. Each layout
below runs with each worker in a memory control group of its own (version 1 or 2), with this limit. Prints the highest use of each
worker, with the pages of the files that it writes, and the hash of the model, which is the same for all. A worker
that needs more is killed.
"""

import argparse
import json
import pathlib
import subprocess
import tempfile
import time

RUN = """
version = 1
[run]
name = "gpt"
[data]
source = "synthetic_text"
samples = 64
test_samples = 4
context = 32
tokens = 4096
[model]
kind = "gpt"
layers = 14
width = 1024
heads = 16
tensor_parts = 4
[train]
steps = 4
global_batch_size = 4
learning_rate = 0.0003
[optimizer]
kind = "adamw"
[workers]
logical_shards = 4
[checkpoint]
at_end = false
every_minutes = 0
[elastic]
max_restarts = 0
"""
WORKERS = 4
ONE_COPY, TWO_COPIES = 1229, 1945
CASES = {
    "replicas": (0, []),
    "zero 3": (ONE_COPY, ["parallel.zero=3", "parallel.copies=1"]),
    "tensor 4": (ONE_COPY, ["parallel.tensor=4", "parallel.copies=1"]),
    "tensor 2 x pipeline 2": (ONE_COPY, ["parallel.tensor=2", "parallel.pipeline=2", "parallel.copies=1"]),
    "pipeline 4": (ONE_COPY, ["parallel.pipeline=4", "parallel.copies=1"]),
    "zero 3, two copies": (TWO_COPIES, ["parallel.zero=3", "parallel.copies=2"]),
    "tensor 4, two copies": (TWO_COPIES, ["parallel.tensor=4", "parallel.copies=2"]),
}


class ControlGroup:
    """A memory control group for one process."""

    def __init__(self, name, limit_mib):
        version_1 = pathlib.Path("/sys/fs/cgroup/memory")
        if version_1.is_dir():
            self.path, self.peak_file, limit = version_1 / name, "memory.max_usage_in_bytes", "memory.limit_in_bytes"
        else:
            root = pathlib.Path("/sys/fs/cgroup")
            (root / "cgroup.subtree_control").write_text("+memory")
            self.path, self.peak_file, limit = root / name, "memory.peak", "memory.max"
        self.path.mkdir(exist_ok=True)
        if limit_mib:
            (self.path / limit).write_text(str(limit_mib << 20))

    def add(self, pid):
        (self.path / "cgroup.procs").write_text(str(pid))

    def peak_mib(self):
        return int((self.path / self.peak_file).read_text()) >> 20

    def remove(self):
        while self.path.exists():
            try:
                self.path.rmdir()
            except OSError:
                time.sleep(0.1)


def workers_of(pid):
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True).stdout.split()
    for child in found:
        try:
            if "__worker" in pathlib.Path(f"/proc/{child}/cmdline").read_text():
                yield int(child)
        except OSError:
            pass


def run(ronde, limit_mib, settings):
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder, "gpt.toml")
        file.write_text(RUN)
        command = [ronde, "train", str(file), "--json", "-n", str(WORKERS), "--set", f"run.output={folder}/run"]
        for setting in settings:
            command += ["--set", setting]
        output = open(pathlib.Path(folder, "output"), "w+")
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.DEVNULL)
        groups = {}
        while process.poll() is None:
            # A worker is found before it allocates memory.
            for worker in workers_of(process.pid):
                if worker not in groups:
                    groups[worker] = ControlGroup(f"ronde_{worker}", limit_mib)
                    groups[worker].add(worker)
            time.sleep(0.005 if len(groups) < WORKERS else 0.3)
        peaks = [group.peak_mib() for group in groups.values()]
        for group in groups.values():
            group.remove()
        output.seek(0)
        events = [json.loads(line) for line in output if line.startswith("{")]
        hashes = [event["blake3"] for event in events if event.get("event") == "model_saved"]
        return peaks, hashes[0][:16] if hashes else f"ended with {process.returncode}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ronde", default="target/release/ronde")
    arguments = parser.parse_args()
    for case, (limit_mib, settings) in CASES.items():
        peaks, outcome = run(arguments.ronde, limit_mib, settings)
        limit = f"limit {limit_mib} MiB" if limit_mib else "no limit"
        print(f"{case:22} {limit:15} {' '.join(map(str, peaks))} MiB: {outcome}", flush=True)


if __name__ == "__main__":
    main()
