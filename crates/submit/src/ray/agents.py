# Starts an agent of a job of ronde on each other node, as tasks of Ray. The order is on standard input.
import json
import sys

import ray

order = json.load(sys.stdin)
ray.init(address="auto", log_to_driver=False, logging_level="ERROR")


def run(order):
    import ctypes
    import signal
    import subprocess
    import time

    def end_with_parent():
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)

    node = ray.get_runtime_context().get_node_id()
    words = [order["program"], "join", order["address"], "--token-file", "/dev/stdin", "-n", str(order["slots"])]
    words += ["--host", "ray-" + node[:12], "--logs", order["logs"], *order["more"]]
    until = time.monotonic() + 30
    while True:
        try:
            agent = subprocess.Popen(words, stdin=subprocess.PIPE, preexec_fn=end_with_parent)
            break
        except FileNotFoundError:
            # Another node with the same folder of the session unpacks the package again.
            if time.monotonic() > until:
                raise
            time.sleep(0.1)
    agent.communicate(order["token"].encode())
    return agent.returncode


# A task whose node is lost is started on another one; an agent that has left does not join again.
needs = {"num_cpus": order["cpus"], "num_gpus": order["gpus"], "memory": order["memory"] or None}
agent = ray.remote(**needs, max_retries=20, scheduling_strategy="SPREAD")(run)
agents = [agent.remote(order) for _ in range(order["nodes"])]
waiting, needed, reported = agents, order["nodes"] + 1, None
while waiting:
    ended, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=30)
    alive = sum(node["Alive"] for node in ray.nodes())
    if waiting and alive < needed and alive != reported:
        text = f"note: the cluster of Ray has {alive} nodes; the job continues on {needed} as soon as they are there"
        print(text, file=sys.stderr, flush=True)
    reported = alive
codes = ray.get(agents)
print("agents ended with exit codes", codes, file=sys.stderr)
