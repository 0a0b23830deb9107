#!/usr/bin/env python3
"""Measures the upper bound of TCP on loopback: the time to move the bytes of an all_reduce without reducing them.

    python3 benchmarks/loopback_bound.py [--ranks 2,4] [--sizes 1,16,64] [--turns 9]

The processes form a ring. Each sends to the next one as many bytes as a rank of an all_reduce sends, 2 (n - 1) / n of the
buffer (MiB), while it receives as many from the previous one, in pieces of 256 KiB that stay in the cache. Medians. Every byte
is only copied twice, into the kernel and out of it.
"""
import argparse
import os
import socket
import statistics
import threading
import time

PIECE = 256 << 10


def rank(listener, following, turns, lengths, gate, report):
    """Runs one process: `gate` lets all begin at once, `report` receives the seconds of each turn."""
    into = socket.create_connection(following)
    out_of, _ = listener.accept()
    for peer in (into, out_of):
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    into.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 128 << 10)
    out_of.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    chunk, room = bytes(PIECE), bytearray(PIECE)

    def send(length):
        while length:
            length -= into.send(memoryview(chunk)[:min(length, PIECE)])

    for length in lengths:
        for _ in range(turns):
            os.read(gate, 1)
            start, left = time.perf_counter(), length
            sender = threading.Thread(target=send, args=(length,))
            sender.start()
            while left:
                count = out_of.recv_into(room, min(left, PIECE))
                assert count, "the stream ended early"
                left -= count
            sender.join()
            os.write(report, f"{time.perf_counter() - start}\n".encode())


def measure(size, mebibytes, turns):
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(size)]
    (gate, opener), (results, report) = os.pipe(), os.pipe()
    lengths = [2 * (size - 1) * (length << 20) // size for length in mebibytes]
    children = []
    for number, listener in enumerate(listeners):
        child = os.fork()
        if child == 0:
            following = listeners[(number + 1) % size].getsockname()
            rank(listener, following, turns, lengths, gate, report)
            os._exit(0)
        children.append(child)
    with os.fdopen(results) as lines:
        for length in mebibytes:
            times = []
            for _ in range(turns):
                os.write(opener, b"x" * size)
                times.append(max(float(lines.readline()) for _ in range(size)))
            print(f"{size} ranks, {length:3d} MiB: {statistics.median(times) * 1e6:9.0f} us", flush=True)
    for child in children:
        os.waitpid(child, 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--sizes", default="1,16,64")
    parser.add_argument("--turns", type=int, default=9)
    args = parser.parse_args()
    for size in map(int, args.ranks.split(",")):
        measure(size, [int(length) for length in args.sizes.split(",")], args.turns)


if __name__ == "__main__":
    main()
