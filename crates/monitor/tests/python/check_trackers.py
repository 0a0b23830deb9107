"""Trains with every tracker, resumes, and reads the results with TensorBoard, Python's csv and promtool.

Usage: check_trackers.py PATH_OF_RONDE
"""

import csv
import json
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import plugin_data_pb2

STEPS = 60
SETTINGS = [
    "run.name=tracked",
    "run.output=run",
    "model.channels=1",
    "checkpoint.every_steps=20",
    "track.tensorboard=true",
    "track.csv=true",
    "track.prometheus=127.0.0.1:0",
]


def train(ronde, folder, arguments, settings):
    """Runs `ronde train`, and returns the metrics that it serves while it runs."""
    command = [ronde, "train", *arguments]
    for setting in SETTINGS + settings:
        command += ["--set", setting]
    process = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True)
    metrics, url = "", None
    for line in process.stderr:
        if "metrics for Prometheus: " in line:
            url = line.split("metrics for Prometheus: ")[1].split()[0].rstrip(",")
        if url and line.startswith("step "):
            try:
                metrics = urllib.request.urlopen(url, timeout=10).read().decode() or metrics
            except OSError:
                pass  # The run has ended.
    assert process.wait() == 0, "ronde train failed"
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


def main():
    ronde = sys.argv[1]
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        train(ronde, folder, ["-n", "2"], [f"train.steps={STEPS}"])
        # The model and the checkpoint of the last step are removed, so that steps are computed again.
        for name in ("model.safetensors", "model.json"):
            (run / name).unlink()
        for checkpoint in (run / "checkpoints").glob(f"*{STEPS}*"):
            shutil.rmtree(checkpoint) if checkpoint.is_dir() else checkpoint.unlink()
        metrics = train(ronde, folder, ["--resume", "run", "-n", "3"], [f"train.steps={STEPS}"])
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
        check_csv(run, committed, evaluated)
        check_prometheus(metrics)
    print(f"TensorBoard, csv and Prometheus read the {STEPS} steps of a resumed run")


main()
