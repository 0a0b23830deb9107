"""Trains with every tracker, resumes, and reads the results with TensorBoard, Python's csv and promtool.

Usage: check_trackers.py PATH_OF_RONDE
"""

import csv
import json
import math
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import plugin_data_pb2

STEPS = 60
KILLED_STEPS = 2000
SETTINGS = [
    "run.name=tracked",
    "run.output=run",
    "model.channels=1",
    "checkpoint.every_steps=20",
    "track.tensorboard=true",
    "track.histogram_every_steps=20",
    "track.csv=true",
    "track.prometheus=127.0.0.1:0",
]


def command(ronde, arguments, settings):
    """The command that trains with every tracker."""
    words = [ronde, "train", *arguments]
    for setting in SETTINGS + settings:
        words += ["--set", setting]
    return words


def served_metrics(ronde, folder):
    """Returns the metrics of a run under way, read again until they hold a loss, and then stops the run."""
    words = command(ronde, ["-n", "2"], ["run.output=watched", "train.steps=10000000"])
    process = subprocess.Popen(words, cwd=folder, stderr=subprocess.PIPE, text=True)
    try:
        url = next(line for line in process.stderr if "metrics for Prometheus: " in line)
        url = url.split("metrics for Prometheus: ")[1].split()[0].rstrip(",")
        threading.Thread(target=process.stderr.read, daemon=True).start()
        metrics = ""
        while "ronde_loss{" not in metrics and process.poll() is None:
            metrics = urllib.request.urlopen(url, timeout=10).read().decode()
            time.sleep(0.05)
    finally:
        process.terminate()
        process.wait()
    return metrics


def check_tensorboard(folder, committed, evaluated):
    """Compares the scalars with the events: each step once, in order, with the value of the last attempt."""
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    losses = events.Scalars("train/loss")
    assert [point.step for point in losses] == list(committed), [point.step for point in losses]
    for point in losses:
        assert abs(point.value - committed[point.step]["loss"]) < 1e-5, point
    assert [point.step for point in events.Scalars("time/rank_0/compute_s")] == list(committed)
    assert events.Scalars("test/accuracy")[-1].step == STEPS
    assert abs(events.Scalars("test/loss")[-1].value - evaluated["loss"]) < 1e-5
    text = events.Tensors("run_file")[0].tensor_proto.string_val[0].decode()
    assert "[model]" in text and "digits_cnn" in text, text
    data = events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    values = plugin_data_pb2.HParamsPluginData.FromString(data).session_start_info.hparams
    assert values["model.channels"].number_value == 1, values
    assert values["model.kind"].string_value == "digits_cnn", values


def check_histograms(folder, model):
    """Compares the histograms of the last step with the saved model, and those of gradients with the number of elements."""
    events = EventAccumulator(str(folder), size_guidance={"histograms": 0})
    events.Reload()
    tags = events.Tags()["histograms"]
    assert sorted(tags) == sorted(f"{kind}/{name}" for name in model for kind in ("weights", "gradients")), tags
    for name, values in model.items():
        for kind in ("weights", "gradients"):
            points = events.Histograms(f"{kind}/{name}")
            assert [point.step for point in points] == [20, 40, 60], (name, points)
            last = points[-1].histogram_value
            limits, counts = list(last.bucket_limit), list(last.bucket)
            assert limits == sorted(set(limits)) and len(limits) == len(counts), name
            assert last.num == sum(counts) == len(values), (name, last.num)
            assert limits[0] <= last.min <= last.max <= limits[-1], name
            assert last.sum_squares > 0, name
            if kind == "weights":
                assert last.min == min(values) and last.max == max(values), name
                assert math.isclose(last.sum, sum(values), rel_tol=1e-9, abs_tol=1e-9), name
                for begin, end, count in zip(limits, limits[1:], counts[1:]):
                    # A value at an end may count in either of the buckets.
                    assert sum(begin < v < end for v in values) <= count <= sum(begin <= v <= end for v in values), name


def histograms(ronde, folder, workers, settings):
    """Trains, and returns the histograms as their names, steps, numbers of values and buckets."""
    output = Path(folder) / f"divided-{workers}"
    settings = [f"run.output={output}", "train.steps=600", "track.histogram_every_steps=2", *settings]
    words = command(ronde, ["-n", str(workers)], settings)
    subprocess.run(words, cwd=folder, check=True, stderr=subprocess.DEVNULL)
    events = EventAccumulator(str(output / "tensorboard"), size_guidance={"histograms": 0})
    events.Reload()
    found = []
    for tag in sorted(events.Tags()["histograms"]):
        for point in events.Histograms(tag):
            value = point.histogram_value
            found.append((tag, point.step, value.min, value.max, list(value.bucket_limit), list(value.bucket)))
    # The ranks report their parts of a step at different times.
    return sorted(found)


def weights(file):
    """Returns the parameters of a safetensors file as lists of numbers."""
    data = file.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header, data = json.loads(data[8 : 8 + length]), data[8 + length :]
    header.pop("__metadata__", None)
    found = {}
    for name, tensor in header.items():
        assert tensor["dtype"] == "F32", tensor
        if name.endswith(("running_mean", "running_var")):
            continue
        begin, end = tensor["data_offsets"]
        found[name] = struct.unpack(f"<{(end - begin) // 4}f", data[begin:end])
    return found


def check_csv(folder, committed, evaluated):
    """Compares the lines with the events."""
    with open(folder / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["step"]) for row in rows] == list(committed)
    for row in rows:
        event = committed[int(row["step"])]
        for column in ("loss", "learning_rate", "gradient_norm", "duration_s", "samples"):
            assert float(row[column]) == event[column], (column, row, event)
    with open(folder / "evaluations.csv", newline="") as file:
        last = {row["metric"]: float(row["value"]) for row in csv.DictReader(file)}
    assert last["accuracy"] == evaluated["accuracy"], last


def check_prometheus(metrics):
    """Checks the metrics with promtool, where it is installed."""
    assert "ronde_loss{" in metrics, metrics
    promtool = shutil.which("promtool")
    if promtool is None:
        print("promtool is not installed: the metrics are not checked by it (Debian package prometheus)")
        return
    checked = subprocess.run([promtool, "check", "metrics"], input=metrics, text=True)
    assert checked.returncode == 0, "promtool check metrics"


def killed(ronde, folder):
    """Kills a run and its workers while they write, resumes it, and returns its folder."""
    run = Path(folder) / "killed"
    settings = ["run.output=killed", "track.mlflow=http://127.0.0.1:1", f"train.steps={KILLED_STEPS}", "checkpoint.keep=20"]
    words = command(ronde, ["-n", "2", "--trace"], settings)
    process = subprocess.Popen(words, cwd=folder, stderr=subprocess.DEVNULL, start_new_session=True)
    events = run / "events.jsonl"
    while not events.exists() or events.read_text().count("step_committed") < KILLED_STEPS // 2:
        assert process.poll() is None, "the run ended before it was killed"
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    deadline = time.monotonic() + 60
    while any(in_folder(process, folder) for process in Path("/proc").glob("[0-9]*")):
        assert time.monotonic() < deadline, "the workers end after their launcher"
        time.sleep(0.02)
    subprocess.run([ronde, "trace", "killed"], cwd=folder, check=True, stderr=subprocess.DEVNULL)
    check_timeline(run / "trace" / "trace.json", 2)
    # A reader can open what was written, and a crash may cut off the last line of each file.
    EventAccumulator(str(run / "tensorboard")).Reload()
    for name in ("metrics.csv", "mlflow/spool.jsonl", "events.jsonl"):
        with open(run / name, "rb+") as file:
            size = file.seek(0, 2)
            file.truncate(size - 5)
    for name in (run / "tensorboard").iterdir():
        os.truncate(name, name.stat().st_size - 5)
    remove_later_checkpoints(run)
    resumed = command(ronde, ["--resume", "killed", "-n", "2"], settings)
    subprocess.run(resumed, cwd=folder, check=True, stderr=subprocess.DEVNULL)
    return run


def in_folder(process, folder):
    """Whether a process runs in a folder."""
    try:
        return (process / "cwd").resolve() == Path(folder).resolve()
    except OSError:
        return False


def remove_later_checkpoints(run):
    """Removes the checkpoints after the last step that is in all files. The workers outlive the launcher, which writes the
    files, for a moment, and save checkpoints."""
    rows = complete_lines(run / "metrics.csv")[1:]
    spooled = [loss_step(json.loads(line)) for line in complete_lines(run / "mlflow" / "spool.jsonl")]
    shown = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0}).Reload().Scalars("train/loss")
    last = min(int(rows[-1].split(",")[0]), max(step or 0 for step in spooled), shown[-1].step)
    kept = 0
    for checkpoint in (run / "checkpoints").glob("step-*"):
        if int(checkpoint.name.removeprefix("step-")) > last:
            shutil.rmtree(checkpoint)
        else:
            kept += 1
    assert kept, f"a checkpoint up to step {last}"


def complete_lines(file):
    """The lines of a file without one that is not complete."""
    return file.read_text().split("\n")[:-1]


def check_timeline(file, ranks):
    """Reads a timeline as the description of the trace event format requires it: complete events that nest within a
    thread, counters, and names of processes and threads. Perfetto's trace_processor is not in a package of PyPI."""
    timeline = json.loads(file.read_text(), parse_constant=lambda name: 1 / 0)
    assert set(timeline) == {"displayTimeUnit", "otherData", "traceEvents"}, set(timeline)
    named, spans = set(), {}
    for event in timeline["traceEvents"]:
        kind, process = event["ph"], event["pid"]
        assert isinstance(event["name"], str) and isinstance(process, int), event
        if kind == "M":
            assert event["name"] in ("process_name", "thread_name"), event
            assert isinstance(event["args"]["name"], str), event
            named.add((process, event["tid"]))
        elif kind == "C":
            assert event["ts"] >= 0 and event["args"]["bytes"] >= 0, event
        else:
            assert kind == "X" and event["ts"] >= 0 and event["dur"] >= 0, event
            spans.setdefault((process, event["tid"]), []).append(event)
    assert {process for process, _ in spans} == set(range(ranks)), set(spans)
    assert set(spans) <= named, "every thread has a name"
    for events in spans.values():
        open_until = []
        for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
            end = event["ts"] + event["dur"]
            while open_until and open_until[-1] <= event["ts"] + 0.0005:
                open_until.pop()
            assert not open_until or end <= open_until[-1] + 0.0005, "spans of a thread overlap without nesting"
            open_until.append(end)
    names = {event["name"] for events in spans.values() for event in events}
    assert {"step", "forward", "backward", "optimizer", "collective"} <= names, names


def check_killed(run):
    """Each step is once in the files of a run that was killed."""
    steps = list(range(1, KILLED_STEPS + 1))
    with open(run / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["step"]) for row in rows] == steps
    assert all(float(row["loss"]) > 0 for row in rows)
    events = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    shown = [point.step for point in events.Scalars("train/loss")]
    # The last records before the end may be missing if no checkpoint was saved after them.
    assert shown == steps, sorted(set(steps) - set(shown))
    lines = (run / "mlflow" / "spool.jsonl").read_text().splitlines()
    spooled = [step for step in (loss_step(json.loads(line)) for line in lines) if step is not None]
    assert spooled == steps, sorted(set(steps) - set(spooled))


def loss_step(entry):
    """Returns the step of a line of the spool with a loss."""
    metrics = entry.get("metrics", {})
    names = [name for name, _ in metrics.get("values", [])]
    return metrics["step"] if "train/loss" in names else None


def main():
    ronde = sys.argv[1]
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        subprocess.run(command(ronde, ["-n", "2"], [f"train.steps={STEPS}"]), cwd=folder, check=True, stderr=subprocess.DEVNULL)
        # The model and the checkpoint of the last step are removed, so that steps are computed again.
        for name in ("model.safetensors", "model.json"):
            (run / name).unlink()
        for checkpoint in (run / "checkpoints").glob(f"*{STEPS}*"):
            shutil.rmtree(checkpoint) if checkpoint.is_dir() else checkpoint.unlink()
        resumed = command(ronde, ["--resume", "run", "-n", "3"], [f"train.steps={STEPS}"])
        subprocess.run(resumed, cwd=folder, check=True, stderr=subprocess.DEVNULL)
        committed, evaluated, commits = {}, None, 0
        for line in (run / "events.jsonl").read_text().splitlines()[1:]:
            event = json.loads(line)
            if event["event"] == "step_committed":
                committed[event["step"] + 1] = event
                commits += 1
            if event["event"] == "evaluated":
                evaluated = event
        assert len(committed) == STEPS < commits, (len(committed), commits)
        check_tensorboard(run / "tensorboard", committed, evaluated)
        check_histograms(run / "tensorboard", weights(run / "model.safetensors"))
        whole = histograms(ronde, folder, 1, [])
        assert whole and histograms(ronde, folder, 3, ["parallel.zero=2"]) == whole, "histograms of divided gradients"
        check_csv(run, committed, evaluated)
        check_killed(killed(ronde, folder))
        check_prometheus(served_metrics(ronde, folder))
    print(f"TensorBoard, csv and Prometheus read the {STEPS} steps of a resumed run")


main()
