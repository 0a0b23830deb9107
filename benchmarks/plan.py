"""Forecasts of `ronde plan` against real runs on this machine: python3 benchmarks/plan.py --runs 40 --seed 1 --out plan.json

Draws run files (models, sizes, batches) and layouts of one and two workers by a seed. For each, `ronde plan --json` makes the forecast,
which is appended to the output file before `ronde train` begins. No constant is fitted to the results. Prints the median and the 90th
percentile of the error of the step's time and of the memory of the largest worker, and the spread of repeated runs.

Time: the median of `duration_s` of `step_committed` after the first steps. Memory: the highest proportional set size (Pss) of any worker.
With `--rate 1gbit`, each of two workers is in a network namespace of its own, behind a link of that rate (as root, needs ip and tc); the
forecast is that of two hosts with one core and such a link. With `--choice`, all of these layouts of each drawn model are run, and the time of
the one with the shortest forecast is compared with that of the fastest.
"""

import argparse
import json
import os
import pathlib
import random
import statistics
import subprocess
import tempfile
import threading
import time

from divided_state import descendants, pss_mib
from shaped_links import Network, address

WARM_UP = 3
SECONDS = 3  # of training for each run, about

MODELS = {
    "mlp": {
        "data": 'source = "digits"',
        "model": 'kind = "mlp"\nhidden = [{width}, {width}, {width}]',
        "sizes": [{"width": 256}, {"width": 768}, {"width": 1536}],
        "batches": [64, 256],
        "layers": 4,
    },
    "digits_cnn": {
        "data": 'source = "digits"',
        "model": 'kind = "digits_cnn"',
        "sizes": [{}],
        "batches": [64, 256],
        "layers": 3,
    },
    "gpt": {
        "data": 'source = "synthetic_text"\nsamples = 4096\ntest_samples = 0\ncontext = {context}\ntokens = 1024',
        "model": 'kind = "gpt"\nlayers = {layers}\nwidth = {width}\nheads = 4',
        "sizes": [
            {"layers": 2, "width": 64, "context": 64},
            {"layers": 4, "width": 128, "context": 64},
            {"layers": 4, "width": 256, "context": 128},
        ],
        "batches": [16, 32],
        "layers": 4,
    },
    "gpt_in_parts": {
        "data": 'source = "synthetic_text"\nsamples = 4096\ntest_samples = 0\ncontext = {context}\ntokens = 1024',
        "model": 'kind = "gpt"\nlayers = {layers}\nwidth = {width}\nheads = 4\ntensor_parts = 4',
        "sizes": [
            {"layers": 2, "width": 64, "context": 64},
            {"layers": 4, "width": 128, "context": 64},
            {"layers": 4, "width": 256, "context": 128},
        ],
        "batches": [16, 32],
        "layers": 4,
        "parts": 4,
    },
    "resnet18": {
        "data": 'source = "synthetic_images"\nsamples = 1024\ntest_samples = 0\nclasses = 10\nshape = [3, 32, 32]',
        "model": 'kind = "resnet18"\nsmall_input = true',
        "sizes": [{}],
        "batches": [16],
        "layers": 8,
    },
}

RUN = """version = 1
[run]
name = "planned"
[data]
{data}
[model]
{model}
[train]
steps = {steps}
global_batch_size = {batch}
learning_rate = 0.0003
[optimizer]
kind = "adamw"
[workers]
logical_shards = {shards}
"""

ONE = {"data": 1, "zero": 0, "pipeline": 1, "tensor": 1, "schedule": "1f1b", "copies": 1}


def layouts(workers, parts, rate):
    """Returns the layouts of one and two workers, or of as many that divide the parts of layers."""
    if rate:
        divided = [{**ONE, "data": 2, "zero": zero} for zero in range(4)]
        return divided + [{**ONE, "pipeline": 2, "schedule": schedule} for schedule in ["1f1b", "gpipe", "zero_bubble"]]
    if workers > 2:
        tensors = [{**ONE, "tensor": 2, "data": 2, "zero": zero} for zero in range(4)]
        tensors += [{**ONE, "tensor": 2, "pipeline": 2}, {**ONE, "tensor": 4}]
        return [{**each, "copies": 1 if each["data"] > 1 and not each["zero"] else 2} for each in tensors]
    if parts > 1:
        return [ONE, {**ONE, "tensor": 2}, {**ONE, "tensor": 2}, {**ONE, "data": 2}, {**ONE, "pipeline": 2}]
    found = [ONE, ONE]
    found += [{**ONE, "data": 2, "zero": zero} for zero in range(4)]
    schedules = ["1f1b", "gpipe", "zero_bubble", "interleaved"]
    return found + [{**ONE, "pipeline": 2, "schedule": schedule} for schedule in schedules]


def draw(generator, arguments):
    """Returns a run file without its number of steps, its name, and a layout."""
    name = generator.choice(arguments.models)
    model = MODELS[name]
    size = generator.choice(model["sizes"])
    batch, shards = generator.choice(model["batches"]), generator.choice([4, 8])
    all_layouts = layouts(arguments.workers, model.get("parts", 1), arguments.rate)
    possible = [each for each in all_layouts if each["schedule"] != "interleaved" or model["layers"] >= 4]
    values = {
        "data": model["data"].format(**size),
        "model": model["model"].format(**size),
        "batch": batch,
        "shards": shards,
    }
    text = " ".join(f"{key} {value}" for key, value in {**size, "batch": batch, "shards": shards}.items())
    return values, f"{name}: {text}", generator.choice(possible)


def forecasts(arguments, run):
    """Returns the entries of all layouts."""
    command = [arguments.ronde, "plan", str(run), "--json", "--seconds", str(arguments.seconds)]
    if arguments.workers > 2:
        command += ["--cores", str(arguments.workers)]
    if arguments.rate:
        link = arguments.rate.replace("gbit", "Gbit/s").replace("mbit", "Mbit/s")
        command += ["--hosts", "2", "--cores", "1", "--link", f"{link},{arguments.latency}"]
    ended = subprocess.run(command, capture_output=True, text=True)
    if ended.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {ended.returncode}: {ended.stderr}")
    return json.loads(ended.stdout)["layouts"]


def entry_of(entries, layout):
    """Returns the entry of a layout; None if there is none."""
    found = (entry for entry in entries if all(entry["choice"][key] == value for key, value in layout.items()))
    return next(found, None)


def steps_of(entry):
    return max(8, min(2000, int(SECONDS / entry["step_s"])))


def judge(arguments, generator):
    """Runs all layouts of each drawn model, and compares the chosen one with the fastest."""
    close = 0
    for _ in range(arguments.runs):
        values, name, _ = draw(generator, arguments)
        with tempfile.TemporaryDirectory() as folder:
            run = pathlib.Path(folder, "run.toml")
            run.write_text(RUN.format(steps=20, **values))
            entries = forecasts(arguments, run)
            measured = []
            for layout in layouts(arguments.workers, 1, arguments.rate):
                entry = entry_of(entries, layout)
                run.write_text(RUN.format(steps=steps_of(entry), **values))
                times = [train(arguments, run, layout, folder)[0] for _ in range(arguments.repeats)]
                measured.append((entry["step_s"], statistics.median(times), layout))
        chosen, fastest = min(measured, key=lambda each: each[0]), min(measured, key=lambda each: each[1])
        close += chosen[1] <= 1.05 * fastest[1]
        print(f"{name}: chosen {chosen[2]}: {1e3 * chosen[1]:.2f} ms; fastest {fastest[2]}: {1e3 * fastest[1]:.2f} ms; "
              f"slowest {1e3 * max(each[1] for each in measured):.2f} ms", flush=True)
    print(f"within 5 % of the fastest: {close} of {arguments.runs}")


def train(arguments, run, layout, folder):
    """Returns the median seconds of a step and the highest Pss of a worker in MiB."""
    workers = layout["data"] * layout["pipeline"] * layout["tensor"]
    settings = {
        "run.output": f"{folder}/run",
        "checkpoint.every_minutes": 1000,
        "parallel.zero": layout["zero"],
        "parallel.pipeline": layout["pipeline"],
        "parallel.schedule": layout["schedule"],
        "parallel.tensor": layout["tensor"],
    }
    command = [arguments.ronde, "train", str(run), "--json", "--overwrite"]
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    if arguments.rate:
        return train_on_links(command, arguments.rate, workers, folder)
    command += ["-n", str(workers)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    output = {}
    reader = threading.Thread(target=lambda: output.update(zip(("out", "err"), process.communicate())))
    reader.start()
    peak = 0
    while process.poll() is None:
        sizes = sorted(pss_mib(each) for each in descendants(process.pid))
        peak = max([peak, *sizes[-1:]])
        time.sleep(0.05)
    reader.join()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}: {output['err'][-2000:]}")
    return median_step_s(output["out"]), peak


def median_step_s(output):
    """Returns the median seconds of a step without the first ones."""
    events = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    steps = [event["duration_s"] for event in events if event.get("event") == "step_committed"]
    return statistics.median(steps[WARM_UP:])


def train_on_links(command, rate, workers, folder):
    """Returns the same as `train` for workers in namespaces, whose links have a rate."""
    with Network(rate) as network:
        processes = []
        for rank in range(workers):
            variables = {
                "RONDE_RANK": rank,
                "RONDE_WORLD_SIZE": workers,
                "RONDE_ALLOW_PLAIN": 1,
                "RONDE_RENDEZVOUS": f"{address(0)}:4711",
            }
            given = [f"workers.count={workers}", f"run.output={folder}/run-{rank}"]
            given = [word for one in given for word in ("--set", one)]
            words = ["env", *(f"{key}={value}" for key, value in variables.items()), *command, *given]
            processes.append(network.start(rank, words))
            if rank == 0:
                time.sleep(0.5)
        peak, output = 0, {}
        reader = threading.Thread(target=lambda: output.update(out=processes[0].stdout.read()))
        reader.start()
        while any(process.poll() is None for process in processes):
            peak = max([peak, *(pss_mib(each) for process in processes for each in [process.pid, *descendants(process.pid)])])
            time.sleep(0.05)
        reader.join()
        codes = [process.returncode for process in processes]
        if any(codes):
            raise SystemExit(f"{' '.join(command)} ended with {codes}")
    return median_step_s(output["out"]), peak


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, round(share * (len(values) - 1)))]


def summary(results, names):
    """Prints the errors of some results."""
    kept = [each for each in results if each["name"].split(":")[0] in names]
    if not kept:
        return
    time_errors = [abs(each["forecast_s"] / statistics.median(each["measured_s"]) - 1) for each in kept]
    memory_errors = [abs(each["forecast_mib"] / max(each["measured_mib"]) - 1) for each in kept]
    spread = [max(each["measured_s"]) / min(each["measured_s"]) - 1 for each in kept]
    print(
        f"{', '.join(names)}: {len(kept)} runs; error of the time: median {100 * statistics.median(time_errors):.1f} %, "
        f"90th percentile {100 * percentile(time_errors, 0.9):.1f} %; of the memory: median "
        f"{100 * statistics.median(memory_errors):.1f} %, 90th percentile {100 * percentile(memory_errors, 0.9):.1f} %; "
        f"spread of repeated runs: median {100 * statistics.median(spread):.1f} %, "
        f"90th percentile {100 * percentile(spread, 0.9):.1f} %"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ronde", default="target/release/ronde")
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--seconds", type=int, default=4, help="of measuring for each forecast")
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--workers", type=int, default=2, help="4: layouts of four workers, only for models in parts")
    parser.add_argument("--rate", help="the rate of links between two namespaces, such as 1gbit")
    parser.add_argument("--latency", default="50us", help="the latency that is stated for these links")
    parser.add_argument("--choice", action="store_true", help="run all layouts of each model")
    parser.add_argument("--out", default="plan.json")
    arguments = parser.parse_args()
    arguments.ronde = os.path.abspath(arguments.ronde)
    generator = random.Random(arguments.seed)
    if arguments.choice:
        return judge(arguments, generator)
    results = []
    while len(results) < arguments.runs:
        values, name, layout = draw(generator, arguments)
        with tempfile.TemporaryDirectory() as folder:
            run = pathlib.Path(folder, "run.toml")
            run.write_text(RUN.format(steps=20, **values))
            entry = entry_of(forecasts(arguments, run), layout)
            if entry is None:
                continue
            result = {
                "name": name,
                "layout": layout,
                "forecast_s": entry["step_s"],
                "forecast_mib": entry["worker_bytes"] / 2**20,
                "measured_s": [],
                "measured_mib": [],
            }
            results.append(result)
            # The forecast is written before the run begins.
            pathlib.Path(arguments.out).write_text(json.dumps(results, indent=1))
            run.write_text(RUN.format(steps=steps_of(entry), **values))
            for _ in range(arguments.repeats):
                step_s, mib = train(arguments, run, layout, folder)
                result["measured_s"].append(step_s)
                result["measured_mib"].append(mib)
        pathlib.Path(arguments.out).write_text(json.dumps(results, indent=1))
        measured = statistics.median(result["measured_s"])
        shape = f"{layout['data']} x data, zero {layout['zero']}, {layout['pipeline']} x pipeline {layout['schedule']}, {layout['tensor']} x tensor"
        print(
            f"{name}; {shape}: forecast {1e3 * result['forecast_s']:.2f} ms, measured {1e3 * measured:.2f} ms "
            f"({100 * (result['forecast_s'] / measured - 1):+.1f} %); {result['forecast_mib']:.0f} MiB, "
            f"{max(result['measured_mib']):.0f} MiB ({100 * (result['forecast_mib'] / max(result['measured_mib']) - 1):+.1f} %)",
            flush=True,
        )
    summary(results, list(MODELS))
    for name in MODELS:
        summary(results, [name])


if __name__ == "__main__":
    main()
