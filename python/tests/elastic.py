"""PyTorch models keep their bits when workers are killed, stopped or join.

Usage: elastic.py RONDE [KILLS]. It trains on one worker undisturbed, without ronde's supervisor, and with `ExactDataParallel`; then under
`RONDE run --elastic` on several workers of which some are killed, and compares the hashes.
"""

import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LIMIT_S = 300
STEPS = 40


def model_and_data():
    """A network with batch norms, dropout, a scheduler, and data with random crops."""
    import torch
    from torch import nn

    class Images(torch.utils.data.Dataset):
        def __len__(self):
            return 90

        def __getitem__(self, at):
            generator = torch.Generator().manual_seed(at)
            image = torch.randn(3, 8, 8, generator=generator)
            return image.roll(int(torch.randint(0, 4, ())), 2), at % 10

    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.1),
        nn.Linear(512, 10),
    )
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    return model, optimizer, scheduler, Images()


def loss_of(scores, labels):
    import torch

    return torch.nn.functional.cross_entropy(scores, labels)


def elastic(folder, pause_s):
    """A worker of an elastic job."""
    import torch

    import ronde.torch as rt

    rt.deterministic()
    model, optimizer, scheduler, data = model_and_data()

    def update():
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        scheduler.step()

    loader = rt.ShardLoader(data, batch=30, shards=8, seed=5)
    training = rt.ElasticTraining(model, optimizer, loader, STEPS, seed=6, update=update, state=[scheduler])
    for batch in training:
        Path(folder, f"at-{os.getpid()}").write_text(str(batch.step))
        for images, labels in training.shards(batch):
            loss = loss_of(model(images), labels)
            training.report(loss=loss)
            loss.backward()
            time.sleep(pause_s)
    if training.is_first:
        print("result", rt.model_hash(model), training.loss.hex(), scheduler.get_last_lr()[0].hex(), flush=True)


def exact():
    """The same training without workers that join."""
    import torch

    import ronde.torch as rt

    rt.deterministic()
    model, optimizer, scheduler, data = model_and_data()
    model = rt.ExactDataParallel(model, 8, seed=6)
    loader = rt.ShardLoader(data, batch=30, shards=8, seed=5, num_workers=1)
    while loader.step < STEPS:
        for batch in loader:
            for images, labels in model.shards(batch):
                loss = loss_of(model(images), labels)
                model.report(loss=loss)
                loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            if loader.step == STEPS:
                break
    print("result", rt.model_hash(model), model.mean("loss").hex(), scheduler.get_last_lr()[0].hex(), flush=True)


def result_of(output):
    found = re.findall(r"result .*", output)
    assert len(found) == 1, output
    return found[0].strip()


def alone(*arguments):
    """Returns the result of one process."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, *[argument.format(folder=folder) for argument in arguments]]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return result_of(ended.stdout)


def disturbed(ronde, workers, seed, kills):
    """Returns the result of a job of which some workers are killed or stopped for a while, and how many were."""
    dice = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        command = [ronde, "run", "-n", str(workers), "--elastic", "--", sys.executable, __file__, "elastic", folder, "0.02"]
        with Path(folder, "output").open("w+") as output:
            job = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, text=True)
            try:
                done = disturb(job, Path(folder), dice, kills)
                job.wait(timeout=LIMIT_S)
            finally:
                job.kill()
            output.seek(0)
            text = output.read()
    assert job.returncode == 0, f"exit code {job.returncode}\n{text}"
    return result_of(text), done


def disturb(job, folder, dice, kills):
    """Waits for a worker to reach some step and kills it, or stops it for a while; returns what it did."""
    done = []
    stopped = []
    began = time.monotonic()
    while job.poll() is None and len(done) < kills and time.monotonic() - began < LIMIT_S:
        time.sleep(dice.uniform(0.05, 0.5))
        workers = [int(path.name.removeprefix("at-")) for path in folder.glob("at-*")]
        running = [worker for worker in workers if Path(f"/proc/{worker}").exists() and worker not in stopped]
        # One worker must keep the state.
        if len(running) < 2:
            continue
        worker = dice.choice(running)
        sign = dice.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP])
        try:
            os.kill(worker, sign)
        except ProcessLookupError:
            continue
        if sign == signal.SIGSTOP:
            time.sleep(dice.uniform(0.1, 2.0))
            try:
                os.kill(worker, signal.SIGCONT)
            except ProcessLookupError:
                pass
        else:
            (folder / f"at-{worker}").unlink(missing_ok=True)
        done.append(sign.name)
    return done


def main():
    if sys.argv[1] == "elastic":
        return elastic(sys.argv[2], float(sys.argv[3]))
    if sys.argv[1] == "exact":
        return exact()
    ronde, rounds = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1
    expected = alone("exact")
    assert alone("elastic", "{folder}", "0") == expected, "an elastic run and one with ExactDataParallel differ"
    signals = 0
    for seed in range(rounds):
        workers = 2 + seed % 3
        found, done = disturbed(ronde, workers, seed, 2 + seed % 3)
        assert found == expected, f"{workers} workers, {done}: {found}, not {expected}"
        signals += len(done)
        print(f"python: {workers} workers, {', '.join(done) or 'undisturbed'}: the same bits", flush=True)
    assert signals > 0, "no worker was killed"


if __name__ == "__main__":
    main()
