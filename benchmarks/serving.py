"""Requests per second of `ronde serve`, LitServe and a plain FastAPI server, in turns: python3 benchmarks/serving.py --rounds 5

Needs `wrk`, and in this Python: torch, litserve, fastapi, uvicorn and, for gpt, transformers. Each server computes on one thread of one core and gets requests of
one sample over the same number of connections from wrk on the other core; for gpt a request continues a prompt of 16 tokens by 48 tokens, the
most probable ones, with a cache of keys and values. Prints requests per second and the 99th percentile of the
time of a request. The models have the same layers everywhere; their weights do not matter.
"""

import argparse
import json
import os
import pathlib
import random
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

try:
    import litserve
except ImportError:
    litserve = None

LAYERS, WIDTH, HEADS, CONTEXT, VOCABULARY = 6, 384, 6, 128, 2048
PROMPT, NEW_TOKENS = 16, 48
MODELS = {
    "mlp": ([1, 28, 28], ['model={kind="mlp", hidden=[1024, 1024]}']),
    "resnet18": ([3, 32, 32], ['model={kind="resnet18", small_input=true, normalisation="batch"}']),
    "gpt": ([CONTEXT], [f'model={{kind="gpt", layers={LAYERS}, width={WIDTH}, heads={HEADS}, tied=true}}']),
}
BATCH_MAX = 32
BATCH_WAIT_MS = 2


def pytorch(name):
    """Returns the model, and a function from samples to the probabilities of the classes."""
    import torch

    import pytorch_ddp

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = pytorch_ddp.build(name)[0].eval()
    shape = [784] if name == "mlp" else MODELS[name][0]

    def predict(samples):
        with torch.inference_mode():
            x = torch.tensor(samples, dtype=torch.float32).view(len(samples), *shape)
            return torch.softmax(model(x), 1).tolist()

    return predict


def hugging_face():
    """Returns a function from prompts of one length to the tokens that continue them."""
    import torch
    import transformers

    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_positions=CONTEXT, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, bos_token_id=None, eos_token_id=None
    )
    model = transformers.GPT2LMHeadModel(config).eval()

    def generate(prompts):
        with torch.inference_mode():
            x = torch.tensor(prompts)
            mask = torch.ones_like(x)
            found = model.generate(x, attention_mask=mask, max_new_tokens=NEW_TOKENS, do_sample=False, use_cache=True, pad_token_id=0)
            return found[:, x.shape[1] :].tolist()

    return generate


class BatchingApi(litserve.LitAPI if litserve else object):
    """A model behind LitServe with dynamic batches; its processes are started with this class."""

    name = None

    def setup(self, device):
        self.compute = hugging_face() if self.name == "gpt" else pytorch(self.name)

    def decode_request(self, request):
        return request["prompt"] if self.name == "gpt" else request["inputs"][0]

    def batch(self, inputs):
        return inputs

    def predict(self, inputs):
        return self.compute(inputs)

    def unbatch(self, output):
        return output

    def encode_response(self, output):
        return {"tokens" if self.name == "gpt" else "probabilities": output}


def path(name):
    return "/v1/generate" if name == "gpt" else "/v1/predict"


def serve_lit(name, port):
    """Serves a model by LitServe."""
    # Texts take so long that a longer wait for others is worth it.
    wait_ms = 20 if name == "gpt" else BATCH_WAIT_MS
    api = BatchingApi(max_batch_size=BATCH_MAX, batch_timeout=wait_ms / 1000, api_path=path(name))
    api.name = name
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=1)
    server.run(host="127.0.0.1", port=port, num_api_servers=1, log_level="error", generate_client_file=False)


def serve_fastapi(name, port):
    """Serves a model by FastAPI, one request after the other."""
    import fastapi
    import uvicorn

    app = fastapi.FastAPI()
    compute = hugging_face() if name == "gpt" else pytorch(name)

    @app.post(path(name))
    async def answer(request: fastapi.Request):
        body = await request.json()
        return {"outputs": compute([body["prompt"]] if name == "gpt" else body["inputs"])[0]}

    uvicorn.run(app, host="127.0.0.1", port=port, log_level="error")


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def command(server, name, port, arguments, folder):
    """The command of a server on its core."""
    if server == "ronde":
        words = [arguments.ronde, "serve", f"{folder}/{name}", "--listen", f"127.0.0.1:{port}", "-n", "1"]
        words += ["--batch-max", str(BATCH_MAX), "--batch-wait", str(BATCH_WAIT_MS)]
    else:
        words = [sys.executable, __file__, "--serve", server, "--model", name, "--port", str(port)]
    return ["taskset", "-c", "0", *words]


def measure(server, name, arguments, folder):
    """Starts a server, sends requests, and returns requests per second and the 99th percentile in ms."""
    port = free_port()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command(server, name, port, arguments, folder),
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    url = f"http://127.0.0.1:{port}{path(name)}"
    body = pathlib.Path(f"{folder}/{name}.json").read_bytes()
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
                urllib.request.urlopen(request, timeout=10).read()
                break
            except OSError:
                if time.monotonic() > deadline or process.poll() is not None:
                    raise
                time.sleep(0.1)
        wrk = ["taskset", "-c", "1", "wrk", "-t1", f"-c{arguments.connections}", "--latency", "--timeout", "60s", "-s", f"{folder}/{name}.lua", url]
        subprocess.run([*wrk, "-d1s"], check=True, capture_output=True)
        text = subprocess.run([*wrk, f"-d{arguments.seconds}s"], check=True, capture_output=True, text=True).stdout
    finally:
        os.killpg(process.pid, 9)
        process.wait()
    if "Non-2xx" in text:
        raise SystemExit(f"{server} refused requests:\n{text}")
    rate = float(re.search(r"Requests/sec:\s+([\d.]+)", text).group(1))
    late, unit = re.search(r"99%\s+([\d.]+)(us|ms|s)", text).groups()
    return rate, float(late) * {"us": 1e-3, "ms": 1, "s": 1e3}[unit]


def prepare(name, arguments, folder):
    """Trains the model for a step, and writes the request."""
    shape, settings = MODELS[name]
    data = f'data={{source="synthetic_images", samples=64, test_samples=8, shape={shape}, classes=10}}'
    if name == "gpt":
        data = f'data={{source="synthetic_text", samples=64, test_samples=8, context={CONTEXT}, tokens={VOCABULARY}}}'
    words = [arguments.ronde, "train", "-n", "1"]
    for setting in [data, *settings, "train.steps=1", "train.global_batch_size=32", f"run.output={folder}/{name}"]:
        words += ["--set", setting]
    subprocess.run(words, check=True, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    random.seed(1)
    if name == "gpt":
        body = json.dumps({"prompt": random.choices(range(VOCABULARY), k=PROMPT), "max_tokens": NEW_TOKENS})
    else:
        count = shape[0] * shape[1] * shape[2]
        body = json.dumps({"inputs": [[round(random.uniform(-1, 1), 4) for _ in range(count)]]})
    pathlib.Path(f"{folder}/{name}.json").write_text(body)
    lua = f'wrk.method = "POST"\nwrk.headers["Content-Type"] = "application/json"\nwrk.body = [==[{body}]==]\n'
    pathlib.Path(f"{folder}/{name}.lua").write_text(lua)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ronde", default="target/release/ronde")
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--serve", choices=["lit", "fastapi"], help=argparse.SUPPRESS)
    parser.add_argument("--model", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve = {"lit": serve_lit, "fastapi": serve_fastapi}[arguments.serve]
        return serve(arguments.model, arguments.port)
    arguments.ronde = str(pathlib.Path(arguments.ronde).resolve())
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.models:
            prepare(name, arguments, folder)
            # FastAPI computes one text after the other: few of 16 requests would end.
            servers = ("ronde", "lit") if name == "gpt" else ("ronde", "lit", "fastapi")
            results = {server: [] for server in servers}
            for _ in range(arguments.rounds):
                for server, found in results.items():
                    found.append(measure(server, name, arguments, folder))
            rates = {server: statistics.median(rate for rate, _ in found) for server, found in results.items()}
            for server, found in results.items():
                late = statistics.median(late for _, late in found)
                tokens = f" ({NEW_TOKENS * rates[server]:.0f} tokens/s)" if name == "gpt" else ""
                print(f"{name} {server}: {rates[server]:.1f} requests/s{tokens}, 99 % within {late:.2f} ms", flush=True)
            ratios = [f"{rates['ronde'] / rates[server]:.2f} of {server}" for server in servers[1:]]
            print(f"{name}: {', '.join(ratios)}")


if __name__ == "__main__":
    main()
