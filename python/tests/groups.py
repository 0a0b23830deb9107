"""Two Python processes all-reduce numpy arrays, and torch tensors.

Started without arguments it is the parent: it starts itself twice as a rank for each scenario, passes
the addresses on, and checks that both end in good order with nothing on stderr.
"""

import signal
import subprocess
import sys
import threading

LIMIT_S = 120


def join(rank, groups=1, **options):
    """Tells the parent where this rank listens and joins `groups` groups."""
    import ronde

    joined = []
    for _ in range(groups):
        listener = ronde.Listener()
        print(listener.address, flush=True)
        peers = sys.stdin.readline().split()
        joined.append(ronde.Group.connect(rank, peers, listener, **options))
    return joined


def values(rank):
    """Arrays of every element type and shape are reduced in place, where they lie."""
    import numpy as np

    for transport in ["auto", "tcp"]:
        (group,) = join(rank, transport=transport)
        assert (group.rank, group.size) == (rank, 2)
        assert group.shares_memory == (transport == "auto")
        for dtype in ["f8", "f4", "f2", "i8", "i4", "u4", "u1"]:
            for length in [0, 1, 7, 1001, 300_001]:
                array = (np.arange(length) % 50 + rank).astype(dtype)
                at = array.ctypes.data
                group.all_reduce(array)
                assert array.ctypes.data == at
                assert (array == (np.arange(length) % 50 * 2 + 1).astype(dtype)).all(), dtype
        # A part of a larger array, which is not aligned to anything but its elements.
        whole = np.full(1000, 5.0)
        group.all_reduce(whole[3:900])
        assert (whole[3:900] == 10).all() and (whole[:3] == 5).all() and (whole[900:] == 5).all()
        square = np.full((30, 40), float(rank), dtype="f4")
        group.all_reduce(square, "max")
        assert (square == 1).all()
        refused(group, np)
        group.close()


def refused(group, np):
    """What cannot be reduced in place is an error on this side, and the group goes on."""
    fixed = np.zeros(3)
    fixed.flags.writeable = False
    cases = [
        (np.zeros((4, 4))[:, 1], ValueError),
        (fixed, ValueError),
        (np.zeros(3, dtype="c16"), TypeError),
        (np.zeros(3, dtype=">f8"), TypeError),
        ([1.0, 2.0], TypeError),
    ]
    for array, kind in cases:
        try:
            group.all_reduce(array)
        except kind as error:
            assert str(error)
        else:
            raise AssertionError(f"{array!r} was not refused")
    one = np.ones(1)
    group.all_reduce(one)
    assert one[0] == 2


def tensors(rank):
    """Tensors are reduced through their numpy view, without a copy."""
    import torch

    (group,) = join(rank)
    for dtype in [torch.float32, torch.float64, torch.float16, torch.int64, torch.uint8]:
        tensor = torch.full((3, 1000), rank + 1, dtype=dtype)
        at = tensor.data_ptr()
        group.all_reduce(tensor)
        assert tensor.data_ptr() == at and bool((tensor == 3).all())
    model = torch.nn.Linear(10, 10, bias=False)
    model(torch.ones(2, 10)).sum().backward()
    group.all_reduce(model.weight.grad, "mean")
    assert torch.equal(model.weight.grad, torch.full((10, 10), 2.0))


def once_inside(action):
    """Runs `action` on another thread, but not before this one gives up the interpreter's lock.

    The caller goes straight into `all_reduce`; no thread gives way but by releasing the lock.
    """
    sys.setswitchinterval(1000)
    inside = threading.Event()

    def run():
        inside.wait()
        action()

    threading.Thread(target=run).start()
    inside.set()


def lock_is_free(rank):
    """Another thread counts while this one is in `all_reduce`: rank 1 comes only when rank 0's has."""
    import numpy as np

    (group,) = join(rank)
    array = np.ones(100_000, dtype="f4")
    if rank == 1:
        assert sys.stdin.readline() == "counted\n"
    else:

        def count():
            counted = 0
            while counted < 100_000:
                counted += 1
            print("counted", flush=True)

        once_inside(count)
    group.all_reduce(array)
    assert (array == 2).all()


def several_groups(rank):
    """Two groups in one process, each called from a thread of its own; one is left open at the end."""
    import numpy as np

    groups = join(rank, groups=2)
    problems = []

    def work(number, group):
        try:
            for step in range(200):
                array = np.full(1000, step + number + rank, dtype="i4")
                group.all_reduce(array)
                assert (array == 2 * (step + number) + 1).all()
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=work, args=item) for item in enumerate(groups)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems, problems
    groups[0].close()
    try:
        groups[0].all_reduce(np.ones(1))
    except RuntimeError as error:
        assert "closed" in str(error)
    else:
        raise AssertionError("a closed group was used")
    global kept
    kept = groups[1]


def interrupted(rank):
    """Ctrl-C ends a wait for a rank that does not come, here and there."""
    import numpy as np

    # Where this runs in the background Python was started with the signal ignored, and leaves it so.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    handler = signal.getsignal(signal.SIGINT)
    (group,) = join(rank)
    assert signal.getsignal(signal.SIGINT) is handler is signal.default_int_handler
    array = np.ones(1000)
    group.all_reduce(array)
    if rank == 1:
        assert sys.stdin.readline() == "interrupted\n"
    try:
        if rank == 0:
            once_inside(lambda: print("waiting", flush=True))
        group.all_reduce(array)
        # Rank 0 may have sent all of its part before the signal, so that rank 1 completes this call, not the next.
        assert rank == 1
        group.all_reduce(array)
    except KeyboardInterrupt:
        assert rank == 0
        print("interrupted", flush=True)
    except RuntimeError as error:
        assert rank == 1 and "interrupted by a signal" in str(error), error
    else:
        raise AssertionError("nobody came, and yet it ended")


SCENARIOS = {
    function.__name__: function
    for function in [values, tensors, lock_is_free, several_groups, interrupted]
}


def run(name):
    """Both ranks of a scenario, from the outside."""
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, name, str(rank)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    watchdog = threading.Timer(LIMIT_S, lambda: [rank.kill() for rank in ranks])
    watchdog.start()

    def hear(rank):
        return ranks[rank].stdout.readline()

    def tell(rank, line):
        try:
            ranks[rank].stdin.write(line)
            ranks[rank].stdin.flush()
        except BrokenPipeError:
            pass  # Its stderr says why.

    for _ in range({"values": 2, "several_groups": 2}.get(name, 1)):
        peers = " ".join(hear(rank).strip() for rank in range(2)) + "\n"
        for rank in range(2):
            tell(rank, peers)
    if name == "lock_is_free":
        tell(1, hear(0))
    if name == "interrupted" and hear(0) == "waiting\n":
        ranks[0].send_signal(signal.SIGINT)
        tell(1, hear(0))
    ends = [rank.communicate() for rank in ranks]
    watchdog.cancel()
    for rank, (process, (_, errors)) in enumerate(zip(ranks, ends)):
        if process.returncode != 0 or errors:
            sys.exit(f"{name}: rank {rank} ended with {process.returncode}\n{errors}")
    print(f"python: {name}: fine")


def main():
    if len(sys.argv) == 3:
        return SCENARIOS[sys.argv[1]](int(sys.argv[2]))
    for name in SCENARIOS:
        run(name)


if __name__ == "__main__":
    main()
