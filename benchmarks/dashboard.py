"""Measures `ronde dashboard` with many long runs: the page in headless Chromium, and the memory of the server.

Usage: dashboard.py RONDE [--runs 50] [--steps 100000] [--folder FOLDER] [--rounds 3]

The events have the form of a real run of two workers. They are written to FOLDER (removed afterwards if it was not given).
"""

import argparse
import json
import math
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

# Marks the first list of runs and the first drawn curve on the page's own clock.
LOOK = """new Promise(done => {
  const times = {};
  const look = () => {
    if (!times.list && document.querySelectorAll('.run').length >= RUNS) times.list = performance.now();
    if (!times.curves && document.querySelectorAll('#panel canvas').length) times.curves = performance.now();
    if (times.list && times.curves) {
      const paint = performance.getEntriesByName('first-contentful-paint')[0];
      done({...times, paint: paint ? paint.startTime : null});
    } else setTimeout(look, 5);
  };
  look();
})"""
# Selects all runs, and waits until each has its evaluation, the last lines of its events.
ALL = """new Promise(done => {
  const begin = performance.now();
  document.getElementById('all').click();
  const look = () => {
    const chart = [...document.querySelectorAll('.chart')].find(card => card.querySelector('h2').innerText === 'Accuracy');
    const seen = chart ? new Set(chart.innerText.match(/run-\\d+/g)).size : 0;
    if (seen >= RUNS) done(performance.now() - begin); else setTimeout(look, 20);
  };
  look();
})"""


class Browser:
    """A page in headless Chromium, which reads messages from file descriptor 3 and writes answers to 4."""

    def __init__(self, profile):
        command = ("exec chromium --headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --window-size=1400,900 "
                   '--remote-debugging-pipe --user-data-dir="$0" 3<&0 4>&1 0</dev/null 1>/dev/null 2>&1')
        self.process = subprocess.Popen(["sh", "-c", command, profile], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.session, self.messages, self.rest = None, 0, b""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Page.enable")

    def call(self, method, **parameters):
        self.messages += 1
        message = {"id": self.messages, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        self.process.stdin.write(json.dumps(message).encode() + b"\0")
        self.process.stdin.flush()
        while True:
            while b"\0" not in self.rest:
                part = self.process.stdout.read1(1 << 20)
                if not part:
                    raise SystemExit("Chromium has ended")
                self.rest += part
            text, self.rest = self.rest.split(b"\0", 1)
            answer = json.loads(text)
            if answer.get("id") == self.messages:
                return answer.get("result", {})

    def value(self, script):
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        return answer.get("result", {}).get("value")

    def close(self):
        self.process.kill()
        self.process.wait()


def write_run(folder, number, steps):
    """Writes the events of a run of two workers."""
    folder.mkdir(parents=True)
    (folder / "run.toml").write_text(f'[run]\nname = "{folder.name}"\n\n[train]\nlearning_rate = {0.001 * (number + 1)}\n')
    t = 1_795_472_647.7606318 + 3600 * number
    with open(folder / "events.jsonl", "w", buffering=1 << 20) as out:
        out.write('{"format":"ronde.events","version":1}\n')
        for place in range(2):
            out.write(f'{{"t":{t},"event":"worker_started","place":{place},"host":"vm","pid":{446 + place}}}\n')
        out.write(f'{{"t":{t},"event":"run_started","name":"{folder.name}","plan":"2c95e5b986846c48a7758180d9229f5fcd7d6c7c4b90092504f'
                  f'639476f8b4eea","world_size":2,"logical_shards":8,"parameters":7514,"steps":{steps},"epochs":25,"samples":1437,'
                  '"unit":"image"}\n')
        out.write(f'{{"t":{t},"event":"membership_changed","generation":1,"world_size":2,"reason":"all workers have joined"}}\n')
        for step in range(steps):
            t += 0.0051
            noise = (step * 7919 + number * 104729) % 1000 / 1000
            for rank in range(2):
                out.write(f'{{"t":{t:.7f},"event":"step_times","rank":{rank},"step":{step},"compute_s":0.0017879139999999998,'
                          f'"communicate_s":{0.002 + 0.001 * noise:.9f},"wait_data_s":0.00004528,"forward_s":0.0007680650000000005,'
                          '"backward_s":0.0009524739999999983,"optimizer_s":0.000043571,"reducing_s":0.0027914080000000004,'
                          f'"waited_s":0.002789968,"arrived_s":{14005.085 + 0.0051 * step:.9f},"bytes_sent":{34111 + 33592 * step}}}\n')
            loss = 2.4 * math.exp(-step / (steps / 5)) + 0.05 + 0.05 * noise
            out.write(f'{{"t":{t:.7f},"event":"step_committed","step":{step},"epoch":{step // 4000},"generation":1,"loss":{loss:.15f},'
                      f'"samples":64,"skipped":0,"learning_rate":{0.01 * (1 - step / steps):.9f},"gradient_norm":{0.8 + noise:.15f},'
                      '"duration_s":0.005104328}\n')
        out.write(f'{{"t":{t},"event":"evaluated","step":{steps - 1},"loss":0.0547,"samples":360,"accuracy":0.98333}}\n')
        out.write(f'{{"t":{t},"event":"run_finished","steps":{steps},"samples":{64 * steps},"duration_s":510.0}}\n')


def memory_mib(pid):
    """Returns the current and the largest resident memory of a process."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return [int(fields[name].split()[0]) / 1024 for name in ("VmRSS", "VmHWM")]


def measure(ronde, runs, number, select_all):
    """Starts the server and opens the page once with nothing of the runs in the page cache."""
    for path in runs.glob("*/events.jsonl"):
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    with tempfile.TemporaryDirectory() as profile:
        browser = Browser(profile)
        begin = time.perf_counter()
        server = subprocess.Popen([ronde, "dashboard", str(runs), "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE,
                                  stderr=subprocess.DEVNULL, text=True)
        try:
            url = server.stdout.readline().strip()
            result = {"start": 1e3 * (time.perf_counter() - begin)}
            browser.call("Page.navigate", url=url)
            # The script ends without a value when the page replaces the empty one.
            while not (seen := browser.value(LOOK.replace("RUNS", str(number)))):
                pass
            result.update(seen)
            result["first MiB"] = memory_mib(server.pid)[0]
            if select_all:
                result["all"] = browser.value(ALL.replace("RUNS", str(min(number, 64))))
                result["all MiB"], result["peak MiB"] = memory_mib(server.pid)
            return result
        finally:
            browser.close()
            server.terminate()
            server.wait()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("ronde")
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder")
    options = parser.parse_args()
    folder = Path(options.folder or tempfile.mkdtemp())
    try:
        for number in range(options.runs):
            run = folder / f"run-{number:02}"
            if not run.exists():
                write_run(run, number, options.steps)
        bytes_of_events = sum(path.stat().st_size for path in folder.glob("*/events.jsonl"))
        print(f"{options.runs} runs of {options.steps} steps, {bytes_of_events / 1e9:.2f} GB of events")
        rounds = []
        for number in range(options.rounds):
            rounds.append(measure(options.ronde, folder, options.runs, number == options.rounds - 1))
            print({name: round(value, 1) for name, value in rounds[-1].items()}, flush=True)
        for name in ("start", "paint", "list", "curves", "first MiB"):
            unit = "" if name.endswith("MiB") else " ms"
            print(f"{name}: median {statistics.median(r[name] for r in rounds):.1f}{unit}")
    finally:
        if not options.folder:
            shutil.rmtree(folder)


main()
