#!/usr/bin/env python3
"""Measures jobs: the answer of `ronde jobs` with 100 jobs, and the time from `ronde submit` to the first committed step.

    cargo build --release --workspace --features ronde/full,ronde/burn --bins --examples
    python3 benchmarks/jobs.py [--rounds 5] [--only kubernetes,local,ssh,slurm]

Everything runs on this machine: a cluster of Kubernetes for tests (its server answers at once; its jobs wait for processors), four
hosts that are addresses of one SSH server, and Slurm with four nodes. The scheduler's own time is that of a batch script
that does nothing else but note when it starts. Prints a row of a table for each. Parts whose programs are missing are left out.
Needs root, sshd, Slurm.
"""
import argparse
import os
import pathlib
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", HERE.parent / "target"))
RONDE = TARGET / "release" / "ronde"
JOBS, NODES = 100, 4


def run(words, folder, **variables):
    """Runs a command to its end and returns its seconds and output."""
    environment = {**os.environ, "XDG_STATE_HOME": str(folder / "state"), **variables}
    begun = time.monotonic()
    done = subprocess.run([str(word) for word in words], cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{words} failed:\n{done.stdout}{done.stderr}")
    return time.monotonic() - begun, done.stdout


def wait_for(what, found, limit=120):
    until = time.monotonic() + limit
    while not found():
        if time.monotonic() > until:
            sys.exit(f"timed out: {what}")
        time.sleep(0.005)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def row(what, seconds, target=""):
    median, most = statistics.median(seconds), max(seconds)
    print(f"| {what} | {median:.2f} s | {most:.2f} s | {target} |", flush=True)


def kubernetes(folder, rounds):
    server = HERE.parent / "crates/submit/tests/kubernetes_server.py"
    cluster = folder / "cluster"
    cluster.mkdir()
    process = subprocess.Popen([sys.executable, server, cluster, RONDE], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    process.stdout.readline()
    try:
        image = 'kind = "kubernetes"\nimage = "registry.example.com/ronde:1"\nclaim = "results"\ncpu = "99"\n'
        (folder / "targets.toml").write_text("[pods]\n" + image)
        variables = {"KUBECONFIG": str(cluster / "config")}
        for number in range(JOBS):
            run([RONDE, "submit", "--targets", "targets.toml", "--on", "pods", "--name", f"j{number}", "-n", "1"],
                folder, **variables)
        times = []
        for _ in range(rounds):
            seconds, listed = run([RONDE, "jobs"], folder, **variables)
            assert listed.count("queued") == JOBS, listed
            times.append(seconds)
        row(f"`ronde jobs` with {JOBS} jobs on Kubernetes", times, "0.3 s")
    finally:
        process.stdin.close()
        process.wait()


def first_step(folder, target, name, workers, events, **variables):
    """Returns the seconds from the submission to the first committed step, and ends the job."""
    words = [RONDE, "submit", "--targets", "targets.toml", "--on", target, "--name", name, "-n", workers]
    begun = time.monotonic()
    submit = subprocess.Popen(
        [str(word) for word in [*words, "--set", "train.epochs=100000", "--set", "events.every_steps=1"]], cwd=folder,
        env={**os.environ, "XDG_STATE_HOME": str(folder / "state"), **variables},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(f"a step of {name}", lambda: events.exists() and "step_committed" in events.read_text())
    seconds = time.monotonic() - begun
    if submit.wait():
        sys.exit(f"cannot submit {name}")
    run([RONDE, "cancel", name], folder, **variables)
    return seconds


def local(folder, rounds):
    (folder / "targets.toml").write_text("")
    times = []
    for number in range(rounds):
        events = folder / f"state/ronde/jobs/l{number}/results/events.jsonl"
        times.append(first_step(folder, "local", f"l{number}", 2, events))
    row("first step on this machine, 2 workers", times, "3 s")


def ssh(folder, rounds):
    if not shutil.which("sshd", path="/usr/sbin"):
        return
    port = free_port()
    for key in ("host_key", "user_key"):
        run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / key], folder)
    shutil.copy(folder / "user_key.pub", folder / "authorized_keys")
    os.makedirs("/run/sshd", exist_ok=True)
    (folder / "sshd").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nListenAddress 127.0.0.2\nListenAddress 127.0.0.3\nListenAddress 127.0.0.4\n"
        f"HostKey {folder}/host_key\nAuthorizedKeysFile {folder}/authorized_keys\nUsePAM no\nStrictModes no\nPidFile none\n"
        "PermitRootLogin yes\nMaxStartups 100\n")
    hosts = "".join(f"Host h{n}\n  HostName 127.0.0.{n}\n" for n in range(1, NODES + 1))
    (folder / "ssh_config").write_text(
        f"{hosts}Host *\n  Port {port}\n  User root\n  IdentityFile {folder}/user_key\n  IdentitiesOnly yes\n"
        "  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n")
    server = subprocess.Popen(["/usr/sbin/sshd", "-D", "-e", "-f", folder / "sshd"], stderr=subprocess.DEVNULL)
    try:
        names = ", ".join(f'"h{n}:1"' for n in range(1, NODES + 1))
        (folder / "targets.toml").write_text(
            f'[hosts]\nkind = "ssh"\nhosts = [{names}]\nfolder = "{folder}/remote"\noptions = ["-F", "{folder}/ssh_config"]\n')
        time.sleep(0.5)
        times = []
        # The first job copies the program.
        for number in range(rounds + 1):
            events = folder / f"remote/jobs/s{number}/results/events.jsonl"
            times.append(first_step(folder, "hosts", f"s{number}", NODES, events))
        row(f"first step on {NODES} hosts over SSH, without the program there", times[:1])
        row(f"first step on {NODES} hosts over SSH", times[1:], "3 s")
    finally:
        server.terminate()
        server.wait()


def slurm(folder, rounds):
    if not all(shutil.which(name, path="/usr/sbin") for name in ("slurmctld", "slurmd", "munged")):
        return
    folder.chmod(0o755)
    key = folder / "munge.key"
    key.write_text("k" * 64)
    key.chmod(0o600)
    for name in ("slurm-state", "spool"):
        (folder / name).mkdir()
    host = socket.gethostname()
    nodes = "".join(f"NodeName=n{n} NodeHostname={host} NodeAddr=127.0.0.1 Port={free_port()} CPUs=4\n"
                    for n in range(1, NODES + 1))
    config = folder / "slurm.conf"
    config.write_text(
        f"ClusterName=test\nSlurmctldHost={host}(127.0.0.1)\nSlurmctldPort={free_port()}\nSlurmUser=root\nSlurmdUser=root\n"
        f"AuthType=auth/munge\nAuthInfo=socket={folder}/munge.socket\nCryptoType=crypto/munge\n"
        f"StateSaveLocation={folder}/slurm-state\nSlurmdSpoolDir={folder}/spool/%n\nSlurmctldPidFile={folder}/ctld.pid\n"
        f"SlurmdPidFile={folder}/%n.pid\nProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\n"
        "JobAcctGatherType=jobacct_gather/none\nSelectType=select/cons_tres\nSelectTypeParameters=CR_CPU\nReturnToService=2\n"
        "SlurmdTimeout=10\nKillWait=5\nSchedulerParameters=batch_sched_delay=0,sched_min_interval=0\n"
        f"SlurmdParameters=config_overrides\nMpiDefault=none\n{nodes}"
        "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES\n")
    variables = {"SLURM_CONF": str(config)}
    munge = [f"--{option}={folder}/munge.{end}" for option, end in
             (("key-file", "key"), ("socket", "socket"), ("pid-file", "pid"), ("log-file", "log"), ("seed-file", "seed"))]
    daemons = [["/usr/sbin/munged", "--foreground", "--force", *munge], ["/usr/sbin/slurmctld", "-D", "-f", config]]
    daemons += [["/usr/sbin/slurmd", "-D", "-N", f"n{n}", "-f", config] for n in range(1, NODES + 1)]
    running = []
    try:
        for daemon in daemons:
            running.append(subprocess.Popen(daemon, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                            stderr=subprocess.DEVNULL))
            time.sleep(0.5)

        def idle():
            listed = subprocess.run(["sinfo", "-h", "-N", "-o", "%T"], env={**os.environ, **variables}, capture_output=True,
                                    text=True)
            return listed.stdout.count("idle") == NODES

        (folder / "targets.toml").write_text(f'[cluster]\nkind = "slurm"\nnodes = {NODES}\nslots = 1\n')
        own, times = [], []
        for number in range(rounds):
            wait_for("idle nodes", idle)
            note = folder / f"started-{number}"
            (folder / "note.sh").write_text(f"#!/bin/sh\ntouch {note}\n")
            begun = time.monotonic()
            run(["sbatch", f"--nodes={NODES}", "--output=/dev/null", "note.sh"], folder, **variables)
            wait_for("the batch script", note.exists)
            own.append(time.monotonic() - begun)
            wait_for("idle nodes", idle)
            events = folder / f"state/ronde/jobs/c{number}/results/events.jsonl"
            times.append(first_step(folder, "cluster", f"c{number}", NODES, events, **variables))
        row(f"Slurm's own time for a batch script on {NODES} nodes", own)
        row(f"first step on {NODES} nodes of Slurm", times, "3 s more")
    finally:
        for process in reversed(running):
            process.terminate()
            process.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="kubernetes,local,ssh,slurm")
    arguments = parser.parse_args()
    parts = {"kubernetes": kubernetes, "local": local, "ssh": ssh, "slurm": slurm}
    print("| figure | median | most | target |\n|---|---|---|---|")
    for name in arguments.only.split(","):
        with tempfile.TemporaryDirectory() as folder:
            parts[name](pathlib.Path(folder), arguments.rounds)


if __name__ == "__main__":
    main()
