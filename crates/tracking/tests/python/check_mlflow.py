"""Checks the tracker for MLflow with a real server: python check_mlflow.py RONDE. Needs the package mlflow.

One run of the server receives all steps of two attempts once, also those recorded while the server was away, and the model.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def run(ronde, *arguments, code=0):
    ended = subprocess.run([ronde, *arguments], capture_output=True, text=True, timeout=300)
    assert ended.returncode == code, (arguments, ended)
    return ended.stderr


def start_server(port):
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    with open("server.log", "w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    for _ in range(240):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1)
            return server
        except OSError:
            time.sleep(0.5)
    os.killpg(server.pid, 15)
    raise SystemExit("the MLflow server does not start: " + open("server.log").read())


def check(address):
    import mlflow

    mlflow.set_tracking_uri(address)
    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name("ronde")
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.info.status == "FINISHED", found.info
    assert found.data.params["train.learning_rate"] == "0.02", found.data.params
    plan = json.load(open("out/model.json"))["plan"]
    assert found.data.tags["ronde.plan"] == plan, found.data.tags
    expected = {}
    for line in open("out/events.jsonl"):
        event = json.loads(line)
        if event.get("event") == "step_committed":
            expected[event["step"] + 1] = event["loss"]
    history = client.get_metric_history(found.info.run_id, "train/loss")
    assert len(history) == len(expected) == 115, len(history)
    assert {metric.step: metric.value for metric in history} == expected
    evaluated = client.get_metric_history(found.info.run_id, "test/accuracy")
    assert [metric.step for metric in evaluated] == [69, 115], evaluated
    path = client.download_artifacts(found.info.run_id, "model/model.safetensors", ".")
    assert open(path, "rb").read() == open("out/model.safetensors", "rb").read()


def main():
    ronde = os.path.abspath(sys.argv[1])
    os.chdir(tempfile.mkdtemp())
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    sets = ["run.output=out", "train.epochs=3", f"track.mlflow={address}"]
    arguments = [part for each in sets for part in ("--set", each)]
    away = run(ronde, "train", *arguments)
    assert "the MLflow server is away" in away and "ronde track" in away, away
    assert "kept; try again later" in run(ronde, "track", "out", code=3)
    server = start_server(port)
    try:
        run(ronde, "track", "out")
        shown = run(ronde, "train", "--resume", "out", "--set", "train.epochs=5")
        assert "MLflow" not in shown, shown
        check(address)
    finally:
        os.killpg(server.pid, 15)
    print("MLflow has all numbers of the run, and its model")


main()
