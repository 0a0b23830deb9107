#!/usr/bin/env python3
"""Measures samples per second of ronde's loader, PyTorch's DataLoader with torchvision, MosaicML Streaming and webdataset, in turns.

    python3 data_loading.py make DIR              create the same synthetic samples in each of the formats
    python3 data_loading.py measure DIR --ronde PATH [--rounds 3] [--threads 1,2] [--json FILE]

    python3 data_loading.py sequential DIR --ronde PATH [--rounds 5]
                                                  1 GiB of TFRecord files, shuffled and checked, compared with `cat` of the same files

There are two data sets: `raw`, with 3 x 32 x 32 bytes and a label per sample, is limited by reading; `jpeg`, with photographs, is
limited by decoding (RandomResizedCrop to 224, flip, normalise; the result is a float32 tensor of 3 x 224 x 224). One thread means no
thread beside the consumer (DataLoader without workers; ronde with one thread); two means two workers or threads. All loaders shuffle.
One epoch per turn; files are in the page cache. Needs torch, torchvision, pillow, numpy, webdataset, mosaicml-streaming, pyarrow,
google-crc32c.
"""
import argparse
import io
import json
import os
import random
import shutil
import statistics
import struct
import subprocess
import sys
import tarfile
import tempfile
import time

import numpy as np

RAW = 100_000
JPEG = 2_000
CLASSES = 10
SHARDS = 8
BATCH = 64
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


# ---------------------------------------------------------------- creation of the data sets

def raw_samples():
    rng = np.random.default_rng(1)
    for number in range(RAW):
        yield number, rng.integers(0, 256, (3, 32, 32), dtype=np.uint8).tobytes(), number % CLASSES


def jpeg_samples():
    """Returns an image of smooth colours and some noise: about 110 kB at 500 x 375, as in ImageNet."""
    from PIL import Image
    rng = np.random.default_rng(2)
    for number in range(JPEG):
        small = Image.fromarray(rng.integers(0, 256, (24, 32, 3), dtype=np.uint8))
        smooth = np.asarray(small.resize((500, 375), Image.BICUBIC), dtype=np.int16)
        noisy = smooth + rng.normal(0, 14, smooth.shape).astype(np.int16)
        out = io.BytesIO()
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(out, "JPEG", quality=90)
        yield number, out.getvalue(), number % CLASSES


def masked(data):
    import google_crc32c
    crc = google_crc32c.value(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def varint(number):
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def message(tag, data):
    return bytes([tag << 3 | 2]) + varint(len(data)) + data


def example(data, label):
    """Returns a tf.train.Example with image/encoded and image/class/label."""
    image = message(1, b"image/encoded") + message(2, message(1, message(1, data)))
    number = message(1, b"image/class/label") + message(2, message(3, message(1, varint(label + 1))))
    return message(1, message(1, image) + message(1, number))


class Shards:
    """Opens one file per shard, one after another."""

    def __init__(self, folder, name, count):
        self.folder, self.name, self.each = folder, name, -(-count // SHARDS)
        os.makedirs(folder)

    def of(self, number):
        return os.path.join(self.folder, self.name.format(number // self.each))


def make_set(folder, samples, count, ending):
    import pyarrow
    import pyarrow.parquet
    from streaming import MDSWriter
    tfrecord = Shards(os.path.join(folder, "tfrecord"), "train-{:05d}-of-%05d" % SHARDS, count)
    tar = Shards(os.path.join(folder, "webdataset"), "train-{:05d}.tar", count)
    parquet = Shards(os.path.join(folder, "parquet"), "train-{:05d}.parquet", count)
    rows, path = [], None
    tars = {}

    def flush():
        if rows:
            table = pyarrow.table({"image": [row[0] for row in rows], "label": [row[1] for row in rows]})
            pyarrow.parquet.write_table(table, path, compression="none", row_group_size=max(1, (1 << 20) // len(rows[0][0])))
            rows.clear()

    with MDSWriter(out=os.path.join(folder, "mds"), columns={"image": "bytes", "label": "int"}, size_limit=1 << 26) as mds:
        for number, data, label in samples:
            record = example(data, label)
            length = struct.pack("<Q", len(record))
            with open(tfrecord.of(number), "ab") as file:
                file.write(length + masked(length) + record + masked(record))
            where = tar.of(number)
            if where not in tars:
                for open_tar in tars.values():
                    open_tar.close()
                tars = {where: tarfile.open(where, "w")}
            for suffix, content in ((ending, data), ("cls", str(label).encode())):
                info = tarfile.TarInfo(f"{number:08d}.{suffix}")
                info.size = len(content)
                tars[where].addfile(info, io.BytesIO(content))
            if path != parquet.of(number):
                flush()
                path = parquet.of(number)
            rows.append((data, label))
            mds.write({"image": data, "label": label})
            if ending == "jpg":
                place = os.path.join(folder, "folder", f"class{label:02d}")
                os.makedirs(place, exist_ok=True)
                with open(os.path.join(place, f"{number:08d}.jpg"), "wb") as file:
                    file.write(data)
    flush()
    for open_tar in tars.values():
        open_tar.close()


def make(folder):
    make_set(os.path.join(folder, "raw"), raw_samples(), RAW, "bin")
    make_set(os.path.join(folder, "jpeg"), jpeg_samples(), JPEG, "jpg")


# ---------------------------------------------------------------- other loaders

def transform():
    from torchvision import transforms
    return transforms.Compose([
        transforms.RandomResizedCrop(224),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize(MEAN, STD),
    ])


def decoder(kind):
    """Converts bytes to a float32 tensor, as ronde's run files below do."""
    import torch
    if kind == "raw":
        return lambda data: torch.frombuffer(bytearray(data), dtype=torch.uint8).reshape(3, 32, 32).float().div_(255)
    from PIL import Image
    change = transform()
    return lambda data: change(Image.open(io.BytesIO(data)).convert("RGB"))


def loader_of(name, folder, kind, threads):
    import torch
    workers = 0 if threads == 1 else threads
    common = dict(batch_size=BATCH, num_workers=workers)
    if name == "torchvision":
        from torchvision.datasets import ImageFolder
        return torch.utils.data.DataLoader(ImageFolder(os.path.join(folder, "folder"), transform()), shuffle=True, **common)
    decode = decoder(kind)
    if name == "webdataset":
        import webdataset
        ending = "bin" if kind == "raw" else "jpg"
        urls = os.path.join(folder, "webdataset", "train-{00000..%05d}.tar" % (SHARDS - 1))
        stages = webdataset.WebDataset(urls, shardshuffle=SHARDS, empty_check=False).shuffle(1000)
        return torch.utils.data.DataLoader(stages.to_tuple(ending, "cls").map_tuple(decode, int), **common)
    if name == "streaming":
        from streaming import StreamingDataset

        class Decoded(StreamingDataset):
            def __getitem__(self, index):
                sample = super().__getitem__(index)
                return decode(sample["image"]), sample["label"]

        set_ = Decoded(local=os.path.join(folder, "mds"), shuffle=True, batch_size=BATCH, num_canonical_nodes=1)
        return torch.utils.data.DataLoader(set_, **common)
    raise SystemExit(f"no loader {name}")


def other(name, folder, kind, threads):
    """Runs a turn of another loader and prints the seconds of an epoch."""
    import torch
    torch.set_num_threads(1)
    loader = loader_of(name, folder, kind, threads)
    begun = time.perf_counter()
    samples = sum(len(batch[1]) for batch in loader)
    print(json.dumps({"samples": samples, "seconds": time.perf_counter() - begun}))


# ---------------------------------------------------------------- ronde

FEATURES = {
    "raw": 'features = {{ decode = "raw", field = "{field}", dtype = "u8", shape = [3, 32, 32], scale = 255.0 }}',
    "jpeg": 'features = {{ decode = "image", field = "{field}", shape = [3, 224, 224], crop = "random_resized", flip = true, '
            "mean = [0.485, 0.456, 0.406], std = [0.229, 0.224, 0.225] }}",
}
FIELDS = {
    "tfrecord": ("image/encoded", "image/class/label", 1),
    "webdataset": (None, "cls", 0),
    "parquet": ("image", "label", 0),
    "folder": ("image", "class", 0),
}


def run_file(folder, kind, form):
    field, label, first = FIELDS[form]
    field = field or ("bin" if kind == "raw" else "jpg")
    lines = [
        "version = 1", "[run]", 'name = "loading"', "[workers]", "logical_shards = 4", "[data]", 'source = "records"',
        f'train = "{os.path.join(os.path.abspath(folder), form)}"', f'format = "{form}"', FEATURES[kind].format(field=field),
        f'label = {{ field = "{label}", classes = {CLASSES}, first = {first} }}', "[train]", "epochs = 1",
        f"global_batch_size = {BATCH}", "[model]", 'kind = "mlp"', "hidden = [8]",
    ]
    return "\n".join(lines) + "\n"


def ours(ronde, folder, kind, form, threads):
    with tempfile.TemporaryDirectory() as place:
        path = os.path.join(place, "run.toml")
        with open(path, "w") as file:
            file.write(run_file(folder, kind, form))
        command = [ronde, "bench", "data", path, "--threads", str(threads), "--rounds", "1", "--json"]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout)


def theirs(name, folder, kind, threads):
    shutil.rmtree("/tmp/streaming", ignore_errors=True)
    command = [sys.executable, os.path.abspath(__file__), "other", name, folder, kind, str(threads)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.strip().splitlines()[-1])


def measure(arguments):
    threads = [int(count) for count in arguments.threads.split(",")]
    turns = {}
    for round_ in range(arguments.rounds):
        for kind in arguments.sets.split(","):
            folder = os.path.join(arguments.folder, kind)
            forms = [form for form in FIELDS if os.path.isdir(os.path.join(folder, form))]
            others = ["webdataset", "streaming"] + (["torchvision"] if kind == "jpeg" else [])
            cases = [("ronde " + form, form, True) for form in forms] + [(name, name, False) for name in others]
            random.Random(round_).shuffle(cases)
            for title, name, is_ours in cases:
                for count in threads:
                    if is_ours:
                        turn = ours(arguments.ronde, folder, kind, name, count)
                    else:
                        turn = theirs(name, folder, kind, count)
                    rate = turn["samples"] / turn["seconds"]
                    turns.setdefault((kind, count, title), []).append(rate)
                    print(f"round {round_ + 1}: {kind}, {count} thread(s), {title}: {rate:,.0f} samples/s", file=sys.stderr)
    rows = [{"set": k, "threads": t, "loader": n, "samples_per_s": statistics.median(r), "turns": r}
            for (k, t, n), r in sorted(turns.items())]
    print(f"{'set':6} {'threads':>7}  {'loader':18} {'samples/s':>10}")
    for row in rows:
        print(f"{row['set']:6} {row['threads']:>7}  {row['loader']:18} {row['samples_per_s']:>10,.0f}")
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(rows, file, indent=1)


# ---------------------------------------------------------------- comparison with cat

LARGE = 10_000
LARGE_BYTES = 107_000


def large(folder):
    """Creates 1 GiB of records of the size of photographs, once."""
    place = os.path.join(folder, "large", "tfrecord")
    if os.path.isdir(place):
        return place
    shards = Shards(place, "train-{:05d}-of-%05d" % SHARDS, LARGE)
    rng = np.random.default_rng(3)
    for number in range(LARGE):
        record = example(rng.bytes(LARGE_BYTES), number % CLASSES)
        length = struct.pack("<Q", len(record))
        with open(shards.of(number), "ab") as file:
            file.write(length + masked(length) + record + masked(record))
    return place


def sequential(arguments):
    place = large(arguments.folder)
    files = [os.path.join(place, name) for name in sorted(os.listdir(place))]
    size = sum(os.path.getsize(file) for file in files)
    field = 'features = { decode = "numbers", field = "image/class/label", shape = [1] }'
    lines = ["version = 1", "[workers]", "logical_shards = 4", "[data]", 'source = "records"', 'format = "tfrecord"',
             f'train = "{os.path.abspath(place)}"', field,
             f'label = {{ field = "image/class/label", classes = {CLASSES}, first = 1 }}', "[train]", "epochs = 1",
             f"global_batch_size = {BATCH}", "[model]", 'kind = "linear"']
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "run.toml")
        with open(path, "w") as file:
            file.write("\n".join(lines) + "\n")
        rates = {}
        for round_ in range(arguments.rounds + 1):
            begun = time.perf_counter()
            subprocess.run(["cat", *files], stdout=subprocess.DEVNULL, check=True)
            turn = {"cat": size / (time.perf_counter() - begun)}
            for threads in (1, 2):
                command = [arguments.ronde, "bench", "data", path, "--threads", str(threads), "--rounds", "1", "--json"]
                done = subprocess.run(command, capture_output=True, text=True)
                if done.returncode:
                    raise SystemExit(done.stderr)
                result = json.loads(done.stdout)
                turn[f"ronde, {threads} thread(s)"] = size / result["seconds"]
                turn[f"ronde, {threads} thread(s), peak MiB"] = result["peak_bytes"] / 2**20
            # The first round fills the page cache.
            if round_:
                for name, rate in turn.items():
                    rates.setdefault(name, []).append(rate)
        for name, values in rates.items():
            value = statistics.median(values)
            print(f"{name:32} {value:8.0f}" if "peak" in name else
                  f"{name:32} {value / 1e6:8.0f} MB/s  {100 * value / statistics.median(rates['cat']):4.0f} %")


def main():
    if len(sys.argv) > 1 and sys.argv[1] == "other":
        return other(sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5]))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    making = commands.add_parser("make")
    making.add_argument("folder")
    making.set_defaults(run=lambda arguments: make(arguments.folder))
    measuring = commands.add_parser("measure")
    measuring.add_argument("folder")
    measuring.add_argument("--ronde", default="target/release/ronde")
    measuring.add_argument("--rounds", type=int, default=3)
    measuring.add_argument("--threads", default="1,2")
    measuring.add_argument("--sets", default="raw,jpeg")
    measuring.add_argument("--json")
    measuring.set_defaults(run=measure)
    reading = commands.add_parser("sequential")
    reading.add_argument("folder")
    reading.add_argument("--ronde", default="target/release/ronde")
    reading.add_argument("--rounds", type=int, default=5)
    reading.set_defaults(run=sequential)
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
