#!/usr/bin/env python3
"""all_reduce of f32 over TCP on loopback, ronde against Gloo (through PyTorch), in turns in one run.

    cargo build --release -p ronde-comm --example tcp_speed
    python3 benchmarks/tcp_against_gloo.py [--ranks 2,4] [--sizes 8,65536,..] [--turns 5] [--json FILE]

Needs a Python with torch (given by --python if it is not this one). All ranks of both stay connected; for each size they
take turns, and those who are not measured wait for a line on their input, asleep. Prints the median time of a blocking
call in microseconds, the speed in bytes of the buffer per second, and how many times faster ronde is: the median over
turns of the ratio of their medians.
"""
import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time

SIZES = [8, 4096, 65536, 1 << 20, 16 << 20, 64 << 20]


def gloo_rank(rank: int, size: int, port: int) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(size),
                      GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group("gloo")
    print("ready", flush=True)
    for line in sys.stdin:
        length, rounds = (int(word) for word in line.split())
        ones = torch.full((max(length // 4, 1),), rank + 1.0)
        dist.all_reduce(ones)
        assert (ones == size * (size + 1) / 2).all(), "a wrong sum"
        buffers = [torch.rand(max(length // 4, 1)) / size for _ in range(2)]
        times = []
        for number in range(rounds + 2):
            dist.barrier()
            start = time.perf_counter()
            dist.all_reduce(buffers[number % 2])
            if number >= 2:
                times.append(time.perf_counter() - start)
        print(statistics.median(times), flush=True)
    dist.destroy_process_group()


class Ranks:
    """The processes of one side, and lines to and from them."""

    def __init__(self, commands):
        self.processes = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
                          for command in commands]

    def hear(self):
        lines = [process.stdout.readline().strip() for process in self.processes]
        assert all(lines), "a rank has ended"
        return lines

    def tell(self, line):
        for process in self.processes:
            process.stdin.write(line + "\n")
            process.stdin.flush()

    def measure(self, length, rounds):
        self.tell(f"{length} {rounds}")
        return float(self.hear()[0])

    def end(self):
        for process in self.processes:
            process.stdin.close()
        for process in self.processes:
            process.wait(30)


def start_ronde(program, size):
    ranks = Ranks([[program, "rank", str(rank)] for rank in range(size)])
    ranks.tell(" ".join(ranks.hear()))
    return ranks


def start_gloo(python, size):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = Ranks([[python, __file__, "gloo", str(rank), str(size), str(port)] for rank in range(size)])
    ranks.hear()
    return ranks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    target = os.environ.get("CARGO_TARGET_DIR", "target")
    parser.add_argument("--program", default=f"{target}/release/examples/tcp_speed")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--json")
    args = parser.parse_args()
    rows = []
    for size in map(int, args.ranks.split(",")):
        sides = {"ronde": start_ronde(args.program, size), "gloo": start_gloo(args.python, size)}
        print(f"{size} ranks\n    bytes    ronde us   ronde GB/s     gloo us    gloo GB/s   times faster (each turn)")
        for length in map(int, args.sizes.split(",")):
            rounds = max(3, min(100, (1 << 25) // length))
            times = {name: [] for name in sides}
            for turn in range(args.turns):
                for name in sorted(sides, reverse=turn % 2 == 0):
                    times[name].append(sides[name].measure(length, rounds))
            ratios = [g / r for g, r in zip(times["gloo"], times["ronde"])]
            ronde, gloo = statistics.median(times["ronde"]), statistics.median(times["gloo"])
            rows.append(dict(ranks=size, bytes=length, ronde_s=ronde, gloo_s=gloo, ratio=statistics.median(ratios)))
            print(f"{length:9d} {ronde * 1e6:11.1f} {length / ronde / 1e9:12.3f} {gloo * 1e6:11.1f} {length / gloo / 1e9:12.3f}"
                  f"   {statistics.median(ratios):6.2f}   ({' '.join(f'{r:.2f}' for r in ratios)})", flush=True)
        for side in sides.values():
            side.end()
    if args.json:
        with open(args.json, "w") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    if sys.argv[1:2] == ["gloo"]:
        gloo_rank(*map(int, sys.argv[2:5]))
    else:
        main()
