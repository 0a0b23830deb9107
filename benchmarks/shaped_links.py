#!/usr/bin/env python3
"""Measures the share of a link's rate that all_reduce reaches over shaped links between network namespaces. Needs root, ip and tc.

    cargo build --release -p ronde-comm --example shaped_link_rank
    python3 benchmarks/shaped_links.py [--rates 100mbit,1gbit] [--sizes 16,64] [--turns 3] [--only plain4,tls2]
                                       [--connections 2] [--algorithms chosen,ring] [--congestion cubic] [--delay 10ms]

Four namespaces are connected to a bridge by links that are shaped in both directions. For each rate and size (MiB of f32), these
take turns: plain streams of as many bytes as the algorithm sends per link, from each namespace to the next one at the same time,
until the receivers have confirmed all bytes; and the all_reduce of 2 ranks, of 4, and of 2 on each of two hosts, plain and with
TLS, with each of the algorithms (`chosen` is the group's own choice). The share is the rate of the all_reduce, in bytes that a
link must carry per second, relative to that of the streams; medians over the turns.
"""
import argparse
import os
import statistics
import subprocess
import sys
import tempfile

STREAM = """
import socket, sys, time
role, host, length = sys.argv[1], sys.argv[2], int(sys.argv[3])
if role == "sink":
    listener = socket.create_server((host, 7777))
    print("ready", flush=True)
    peer, _ = listener.accept()
    buffer, left = bytearray(1 << 20), length
    while left:
        count = peer.recv_into(buffer)
        assert count, "the stream ended early"
        left -= count
    peer.sendall(b"x")
    peer.recv(1)
else:
    peer = socket.create_connection((host, 7777))
    chunk = bytes(1 << 20)
    print("connected", flush=True)
    sys.stdin.readline()
    start, left = time.perf_counter(), length
    while left:
        left -= peer.send(chunk[:min(left, len(chunk))])
    assert peer.recv(1) == b"x"
    print(time.perf_counter() - start, flush=True)
"""
# Name: the host of each rank, and whether the group uses TLS.
GROUPS = {
    "plain2": ([0, 1], False), "tls2": ([0, 1], True),
    "plain4": ([0, 1, 2, 3], False), "tls4": ([0, 1, 2, 3], True),
    "plain2x2": ([0, 0, 1, 1], False), "tls2x2": ([0, 0, 1, 1], True),
}


def run(command):
    subprocess.run(command.split(), check=True)


class Network:
    """Namespaces connected to a bridge in a separate namespace; removed at the end of the block."""

    def __init__(self, rate, congestion=None, delay=None):
        self.rate, self.congestion, self.delay, self.name = rate, congestion, delay, f"shaped-{os.getpid()}"
        self.hosts = [f"{self.name}-{host}" for host in range(4)]

    def __enter__(self):
        hub = f"{self.name}-hub"
        try:
            run(f"ip netns add {hub}")
            run(f"ip -n {hub} link add bridge type bridge")
            run(f"ip -n {hub} link set bridge up")
            for number, host in enumerate(self.hosts):
                run(f"ip netns add {host}")
                run(f"ip -n {hub} link add port{number} type veth peer name net netns {host}")
                run(f"ip -n {hub} link set port{number} master bridge up")
                run(f"ip -n {host} addr add {address(number)}/24 dev net")
                run(f"ip -n {host} link set net up")
                run(f"ip -n {host} link set lo up")
                if self.congestion:
                    run(f"ip -n {host} route change 10.78.0.0/24 dev net src {address(number)} congctl {self.congestion}")
                for place, device in ((host, "net"), (hub, f"port{number}")):
                    at = "root"
                    if self.delay:
                        run(f"tc -n {place} qdisc add dev {device} root handle 1: netem delay {self.delay} limit 100000")
                        at = "parent 1:"
                    run(f"tc -n {place} qdisc add dev {device} {at} tbf rate {self.rate} burst 128kb latency 50ms")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for name in [*self.hosts, f"{self.name}-hub"]:
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL)

    def start(self, host, command):
        return subprocess.Popen(["ip", "netns", "exec", self.hosts[host], *command],
                                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def stream(self, hosts, length):
        """Returns the seconds of plain streams of `length` bytes from each host to the next one, all at once."""
        sinks = [self.start(host, [sys.executable, "-c", STREAM, "sink", address(host), str(length)]) for host in hosts]
        for sink in sinks:
            sink.stdout.readline()
        following = hosts[1:] + hosts[:1]
        sources = [self.start(host, [sys.executable, "-c", STREAM, "source", address(to), str(length)])
                   for host, to in zip(hosts, following)]
        for source in sources:
            assert source.stdout.readline() == "connected\n"
        for source in sources:
            source.stdin.write("go\n")
            source.stdin.flush()
        seconds = max(float(source.stdout.readline()) for source in sources)
        for process in sources + sinks:
            process.wait(30)
        return seconds


def address(host):
    return f"10.78.0.{host + 1}"


class Group:
    """A group of ranks on hosts."""

    def __init__(self, network, args, hosts, algorithm, identities):
        self.hosts, self.reason = hosts, ""
        self.ranks = []
        for rank, host in enumerate(hosts):
            command = [args.program, str(rank), address(host)]
            if args.connections:
                command += ["--connections", str(args.connections)]
            if algorithm != "chosen":
                command += ["--algorithm", algorithm]
            if identities:
                command += ["--identity", f"{identities}/{rank}.pem"]
            self.ranks.append(network.start(host, command))
        self.tell(" ".join(self.hear()))
        # The groups measure their links one after another.
        assert set(self.hear()) == {"joined"}

    def tell(self, line):
        for rank in self.ranks:
            rank.stdin.write(line + "\n")
            rank.stdin.flush()

    def hear(self):
        lines = [rank.stdout.readline().strip() for rank in self.ranks]
        assert all(lines), "a rank has ended"
        return lines

    def link_bytes(self, length):
        """Returns the bytes that each host's link must carry in each direction."""
        count = len(set(self.hosts))
        return 2 * length * (count - 1) // count

    def seconds(self, length):
        self.tell(f"{length} 1")
        seconds, self.reason = self.hear()[0].split(" ", 1)
        return float(seconds)

    def end(self):
        for rank in self.ranks:
            rank.stdin.close()
        for rank in self.ranks:
            rank.wait(30)


def measure(network, args, names, mebibytes, identities):
    length = mebibytes << 20
    groups = {f"{name} {algorithm}": Group(network, args, hosts, algorithm, identities if tls else None)
              for name, (hosts, tls) in GROUPS.items() if name in names
              for algorithm in args.algorithms.split(",")}
    shares, rates, streams = {name: [] for name in groups}, {name: [] for name in groups}, []
    for _ in range(args.turns):
        for name, group in groups.items():
            carried = group.link_bytes(length)
            stream = carried / network.stream(sorted(set(group.hosts)), carried)
            rate = carried / group.seconds(length)
            streams.append(stream)
            rates[name].append(rate)
            shares[name].append(rate / stream)
    print(f"{network.rate}, {mebibytes} MiB; plain streams {statistics.median(streams) * 8 / 1e6:.1f} Mbit/s")
    for name, found in shares.items():
        rate, share = statistics.median(rates[name]) * 8 / 1e6, statistics.median(found)
        turns = " ".join(f"{s * 100:.1f}" for s in found)
        print(f"    {name:26s}{rate:8.1f} Mbit/s per link and direction, {share * 100:5.1f} %   ({turns})  {groups[name].reason}",
              flush=True)
    for group in groups.values():
        group.end()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    target = os.environ.get("CARGO_TARGET_DIR", "target")
    parser.add_argument("--program", default=f"{target}/release/examples/shaped_link_rank")
    parser.add_argument("--rates", default="100mbit,1gbit")
    parser.add_argument("--sizes", default="16,64")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--only", default=",".join(GROUPS))
    parser.add_argument("--connections", type=int)
    parser.add_argument("--algorithms", default="chosen")
    parser.add_argument("--delay", help="delay per shaped device and direction (a path has two devices), such as 10ms")
    parser.add_argument("--congestion", help="congestion control of TCP [default: the system's]: cubic, bbr, reno")
    args = parser.parse_args()
    for rate in args.rates.split(","):
        with Network(rate, args.congestion, args.delay) as network, tempfile.TemporaryDirectory() as identities:
            subprocess.run([args.program, "identities", "4", identities], check=True)
            for mebibytes in map(int, args.sizes.split(",")):
                measure(network, args, args.only.split(","), mebibytes, identities)


if __name__ == "__main__":
    main()
