"""Files that TensorFlow, pyarrow, webdataset and numpy write are read value for value, what `ronde data pack` writes is
read by them, text has the tokens that Hugging Face's library makes of it, and images the pixels that Pillow shows.

    check.py RONDE RECORDS IMAGES      the command, and the examples that print records and decoded images
"""

import csv
import gzip
import io
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import webdataset as wds
from PIL import Image, ImageOps, PngImagePlugin

LIMIT_S = 120
RONDE, RECORDS, IMAGES = sys.argv[1:4]
TYPES = {"bool": "?", "u8": "u1", "i8": "i1", "u16": "u2", "i16": "i2", "u32": "u4", "i32": "i4", "u64": "u8", "i64": "i8",
         "f16": "f2", "f32": "f4", "f64": "f8"}


def run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, f"{command} ended with {done.returncode}\n{done.stderr}"
    return done.stdout


def records(kind, *files):
    """All records of files as the reader tells them: bytes, lists of bytes, arrays."""
    told = []
    for line in run(RECORDS, kind, *files).splitlines():
        if line == "record":
            told.append({})
            continue
        name, what, *rest = line.split("\t")
        if what == "bytes":
            value = bytes.fromhex(rest[0])
        elif what == "list":
            value = [bytes.fromhex(one) for one in rest[1].split(",")] if rest[0] != "0" else []
        else:
            value = np.frombuffer(bytes.fromhex(rest[0]), "<" + TYPES[what])
        told[-1][name] = value
    return told


def same(told, expected, where):
    """Compares records; numbers by type and bits."""
    assert len(told) == len(expected), f"{where}: {len(told)} records, {len(expected)} were written"
    for number, (record, wanted) in enumerate(zip(told, expected)):
        assert record.keys() == wanted.keys(), f"{where}, record {number}: {record.keys()} and {wanted.keys()}"
        for name, value in wanted.items():
            there = record[name]
            if isinstance(value, np.ndarray):
                value = value.ravel()
                equal = there.dtype == value.dtype and there.tobytes() == value.tobytes()
            else:
                equal = there == value
            assert equal, f"{where}, record {number}, field {name}: {there!r} and not {value!r}"


def dice(seed):
    return random.Random(seed), np.random.default_rng(seed)


def tensorflow(folder):
    import tensorflow as tf

    chance, numbers = dice(1)
    feature, written, expected = tf.train.Feature, [], []
    for _ in range(300):
        blobs = [chance.randbytes(chance.choice([0, 3, 500, 40_000])) for _ in range(chance.choice([1, 1, 1, 0, 3]))]
        floats = numbers.standard_normal(chance.randrange(9)).astype("<f4")
        integers = numbers.integers(-2**63, 2**63 - 1, chance.randrange(9))
        features = {
            "image/encoded": feature(bytes_list=tf.train.BytesList(value=blobs)),
            "floats": feature(float_list=tf.train.FloatList(value=floats)),
            "image/class/label": feature(int64_list=tf.train.Int64List(value=integers)),
        }
        example = tf.train.Example(features=tf.train.Features(feature=features))
        written.append(example.SerializeToString())
        expected.append({"image/encoded": blobs[0] if len(blobs) == 1 else blobs, "floats": floats,
                         "image/class/label": integers.astype("<i8")})
    for compression in ["", "GZIP"]:
        path = folder / f"data{compression}.tfrecord"
        with tf.io.TFRecordWriter(str(path), options=compression) as writer:
            for one in written:
                writer.write(one)
        same(records("tfrecord", path), expected, f"TensorFlow {compression}")


def parquet(folder):
    chance, numbers = dice(2)
    rows = 500
    maybe = [None if chance.random() < 0.3 else chance.randrange(10**6) for _ in range(rows)]
    texts = [chance.choice(["", "a", "zwölf", "x" * 300]) for _ in range(rows)]
    blobs = [chance.randbytes(chance.randrange(2000)) for _ in range(rows)]
    paths = [None if chance.random() < 0.2 else f"{n}.jpg" for n in range(rows)]
    lists = [[chance.randrange(-9, 9) for _ in range(chance.randrange(5))] for _ in range(rows)]
    tags = [[chance.choice(["p", "q"]) for _ in range(chance.randrange(4))] for _ in range(rows)]
    plain = {"i8": "i4", "i16": "i4", "i32": "i4", "i64": "i8", "u32": "u4", "u64": "u8", "f16": "f2", "f32": "f4", "f64": "f8"}
    arrays = {name: (numbers.standard_normal(rows) * 100).astype(TYPES[name]) for name in plain}
    columns = {name: pa.array(array) for name, array in arrays.items()}
    columns |= {
        "bool": pa.array([n % 3 == 0 for n in range(rows)]),
        "maybe": pa.array(maybe, pa.int64()),
        "text": pa.array(texts),
        "coded": pa.array(texts).dictionary_encode(),
        "image": pa.array([{"bytes": b, "path": p} for b, p in zip(blobs, paths)],
                          pa.struct([("bytes", pa.binary()), ("path", pa.string())])),
        "list": pa.array(lists, pa.list_(pa.int32())),
        "tags": pa.array(tags, pa.list_(pa.string())),
        "large": pa.array(texts, pa.large_string()),
    }
    expected = []
    for n in range(rows):
        record = {name: arrays[name][n:n + 1].astype("<" + plain[name]) for name in plain}
        record |= {"bool": np.array([n % 3 == 0]), "text": texts[n].encode(), "coded": texts[n].encode(),
                   "image.bytes": blobs[n], "list": np.array(lists[n], "<i4"), "tags": [t.encode() for t in tags[n]],
                   "large": texts[n].encode()}
        if maybe[n] is not None:
            record["maybe"] = np.array([maybe[n]], "<i8")
        if paths[n] is not None:
            record["image.path"] = paths[n].encode()
        expected.append(record)
    table = pa.table(columns)
    for compression in ["none", "snappy", "zstd", "gzip", "lz4"]:
        for version, dictionary, rows_of_group in [("1.0", True, 64), ("2.0", False, 1000)]:
            path = folder / f"{compression}-{version}.parquet"
            pq.write_table(table, path, compression=compression, data_page_version=version, use_dictionary=dictionary,
                           row_group_size=rows_of_group, data_page_size=4096, write_page_index=dictionary)
            same(records("parquet", path), expected, f"pyarrow {compression}, pages {version}")


def tar(folder):
    chance, _ = dice(3)
    samples = []
    for number in range(200):
        key = chance.choice(["", "a/", "deep/er/" + "long" * 40 + "/"]) + f"{number:06}"
        samples.append({"__key__": key, "jpg": chance.randbytes(chance.choice([0, 10, 512, 30_000])),
                        "cls": str(number).encode(), "seg.png": chance.randbytes(7)})
    for name in ["data.tar", "data.tar.gz"]:
        with wds.TarWriter(str(folder / name), encoder=False) as writer:
            for sample in samples:
                writer.write(sample)
        expected = [dict(sample, __key__=sample["__key__"].encode()) for sample in samples]
        same(records("webdataset", folder / name), expected, f"webdataset {name}")


def numpy_files(folder):
    _, numbers = dice(4)
    for name, dtype in TYPES.items():
        array = (numbers.standard_normal((70, 3, 5)) * 50).astype("<" + dtype)
        np.save(folder / f"{name}.npy", array)
        same(records("npy", folder / f"{name}.npy"), [{"array": row} for row in array], f"npy {name}")
    images = numbers.integers(0, 255, (300, 28, 28), "u1")
    labels = numbers.integers(0, 10, 300)
    for save in [np.savez, np.savez_compressed]:
        save(folder / "both.npz", images=images, labels=labels)
        expected = [{"images": image, "labels": labels[n:n + 1]} for n, image in enumerate(images)]
        same(records("npz", folder / "both.npz"), expected, f"{save.__name__}")
    tokens = numbers.integers(0, 50_000, 100_001, "u2")
    tokens.tofile(folder / "tokens.bin")
    # The example reads 64 and one.
    expected = [{"tokens": tokens[at:at + 65]} for at in range(0, len(tokens) - 64, 64)]
    same(records("tokens", folder / "tokens.bin"), expected, "tokens")


def lines(folder):
    chance, _ = dice(5)
    texts = ["", "a", "1.5", "two words", "a,b", 'say "so"', "two\nlines", "é"]
    rows = [[chance.choice(texts), str(n), chance.choice(texts)] for n in range(3000)]
    text = io.StringIO()
    csv.writer(text).writerows([["first", "number", "third"], *rows])
    path = folder / "data.csv"
    path.write_bytes(text.getvalue().encode())
    with gzip.open(folder / "data.csv.gz", "wb") as packed:
        packed.write(text.getvalue().encode())
    expected = [{"first": a.encode(), "number": n.encode(), "third": b.encode()} for a, n, b in rows]
    for name in ["data.csv", "data.csv.gz"]:
        same(records("csv", folder / name), expected, name)


def packed(folder):
    import tensorflow as tf

    _, numbers = dice(6)
    images = {}
    for number in range(60):
        name = ["ant", "bee", "cow"][number % 3]
        (folder / "images" / name).mkdir(parents=True, exist_ok=True)
        pixels = numbers.integers(0, 255, (20 + number, 30, 3), "u1")
        path = folder / "images" / name / f"{number}.jpg"
        Image.fromarray(pixels).save(path)
        images[path.name] = (path.read_bytes(), number % 3, name, 20 + number)
    for kind in ["tfrecord", "webdataset", "parquet"]:
        run(RONDE, "data", "pack", folder / "images", folder / kind, "--format", kind, "--shard-size", "20KiB")
    shards = sorted((folder / "tfrecord").iterdir())
    assert len(shards) > 2 and shards[0].name == f"train-00000-of-{len(shards):05}", shards
    text, number = tf.io.FixedLenFeature([], tf.string), tf.io.FixedLenFeature([], tf.int64)
    features = {"image/encoded": text, "image/format": text, "image/filename": text, "image/class/text": text,
                "image/class/label": number, "image/height": number, "image/width": number}
    seen = {}
    for raw in tf.data.TFRecordDataset([str(shard) for shard in shards]):
        one = {key: value.numpy() for key, value in tf.io.parse_single_example(raw, features).items()}
        assert one["image/format"] == b"JPEG" and one["image/width"] == 30
        assert tf.io.decode_jpeg(one["image/encoded"]).shape == (one["image/height"], 30, 3)
        seen[one["image/filename"].decode()] = (one["image/encoded"], one["image/class/label"],
                                                one["image/class/text"].decode(), one["image/height"])
    assert seen == images
    by_bytes = {contents: (label, name) for contents, label, name, _ in images.values()}
    shards = sorted(str(shard) for shard in (folder / "webdataset").iterdir())
    seen = {one["jpg"]: (int(one["cls"]), one["txt"].decode()) for one in wds.WebDataset(shards, shardshuffle=False)}
    assert seen == by_bytes
    table = pq.read_table(folder / "parquet").to_pylist()
    assert {one["image"]["bytes"]: (one["label"], one["class"]) for one in table} == by_bytes


def kept_tokens(cache):
    """The numbers in the one file of tokens that the command keeps: behind them JSON, its length, a hash, a mark."""
    [path] = (cache / "ronde/tokens").glob("*.tokens")
    contents = path.read_bytes()
    told = contents[:-48][-int.from_bytes(contents[-48:-40], "little"):]
    told = json.loads(told)
    return np.frombuffer(contents[:told["bytes"]], "<" + TYPES[told["dtype"]]).tolist()


def tokenizer(folder):
    import tokenizers
    from tokenizers import models, normalizers, pre_tokenizers, trainers

    chance, _ = dice(7)
    words = ["the", "novel", "Zwölf", "naïve", "42", "don't", "it's", "¿qué?", "日本語", "a", "I", "-", "end.", "\u00a0", "😀"]
    text = lambda count: "".join(chance.choice(words) + chance.choice([" ", " ", " ", "\n", "  ", "\n\n", "\t"])
                                 for _ in range(count))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    rest = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    start = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"

    def byte_pairs(expression):
        one = tokenizers.Tokenizer(models.BPE())
        split = pre_tokenizers.Split(tokenizers.Regex(expression), "isolated")
        one.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
        return one

    gpt2 = tokenizers.Tokenizer(models.BPE())
    gpt2.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    llama3 = byte_pairs(start + r"\p{N}{1,3}|" + rest)
    qwen = byte_pairs(start + r"\p{N}|" + rest)
    qwen.normalizer = normalizers.NFC()
    llama2 = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    llama2.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    pieces = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    pieces.normalizer = normalizers.BertNormalizer()
    pieces.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    unigram = tokenizers.Tokenizer(models.Unigram())
    unigram.normalizer = normalizers.NFKC()
    unigram.pre_tokenizer = pre_tokenizers.Metaspace()
    marks = ["<unk>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    of_bytes = lambda: trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    of_pieces = trainers.WordPieceTrainer(vocab_size=100, special_tokens=["[UNK]"], show_progress=False)
    of_unigram = trainers.UnigramTrainer(vocab_size=60, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False)
    of_letters = trainers.BpeTrainer(vocab_size=500, special_tokens=marks, show_progress=False)
    kinds = [("GPT-2", gpt2, of_bytes()), ("Llama 3", llama3, of_bytes()), ("Qwen", qwen, of_bytes()),
             ("word pieces", pieces, of_pieces), ("unigram", unigram, of_unigram), ("Llama 2", llama2, of_letters)]
    for name, one, trainer in kinds:
        one.train_from_iterator([text(50) for _ in range(100)] if name == "Llama 2" else [text(5000)], trainer)
        one.add_tokens([tokenizers.AddedToken("42 the", lstrip=True, rstrip=True), tokenizers.AddedToken("<|end|>\n")])
        for number in range(3):
            place = folder / name / str(number)
            place.mkdir(parents=True)
            one.save(str(place / "tokenizer.json"))
            document = text(60_000 + 1000 * number) + "<|end|>\n" + text(60_000)
            (place / "text.txt").write_text(document, newline="")
            os.environ["XDG_CACHE_HOME"] = str(place / "cache")
            run(RONDE, "data", "inspect", place / "text.txt", "--tokenizer", place / "tokenizer.json")
            assert kept_tokens(place / "cache") == one.encode(document, add_special_tokens=False).ids, (name, number)


def adobe(path, transform, names=None):
    """Changes how a JPEG says its components are meant: Adobe's transformation, and the names of the components."""
    contents = bytearray(path.read_bytes())
    at = contents.find(b"\xff\xee\x00\x0eAdobe")
    if at < 0:
        contents[2:2] = bytes.fromhex("ffee000e41646f626500640000000001")
        at = 2
    contents[at + 15] = transform
    frame, scan = (contents.find(mark) for mark in (b"\xff\xc0", b"\xff\xda"))
    for number, name in enumerate(names or b""):
        contents[frame + 10 + 3 * number] = contents[scan + 5 + 2 * number] = name
    path.write_bytes(contents)


def images(folder):
    _, numbers = dice(8)
    rows, columns = np.mgrid[0:24, 0:40]
    smooth = np.stack([columns * 6, rows * 10, (rows + columns) * 4], -1).clip(0, 255).astype(np.uint8)
    rgb, noise = Image.fromarray(smooth), Image.fromarray(numbers.integers(0, 256, (24, 40, 3), dtype=np.uint8))
    black = np.array(rgb.convert("CMYK"))
    black[..., 3] = rows * 6
    cmyk = Image.frombytes("CMYK", rgb.size, black.tobytes())

    def oriented(number):
        exif = Image.Exif()
        exif[0x112] = number
        return exif

    best = {"quality": 100, "subsampling": 0}
    for number in range(0, 10):
        noise.save(folder / f"turned{number}.png", exif=oriented(number))
        noise.save(folder / f"turned{number}.webp", exif=oriented(number), lossless=True)
        noise.convert("L").save(folder / f"grey{number}.png", exif=oriented(number))
        rgb.save(folder / f"turned{number}.jpg", exif=oriented(number), **best)
        xmp = f'<x xmlns:tiff="http://ns.adobe.com/tiff/1.0/" tiff:Orientation="{number}"/>'
        rgb.save(folder / f"xmp{number}.jpg", xmp=xmp.encode(), **best)
        noise.save(folder / f"xmp{number}.webp", xmp=xmp.encode(), lossless=True)
        text = PngImagePlugin.PngInfo()
        text.add_itxt("XML:com.adobe.xmp", xmp, zip=number % 2 == 0)
        noise.save(folder / f"xmp{number}.png", pnginfo=text)
        profile = oriented(number).tobytes()
        text = PngImagePlugin.PngInfo()
        text.add_text("Raw profile type exif", f"\nexif\n{len(profile):8}\n{profile.hex()}\n", zip=True)
        noise.save(folder / f"raw{number}.png", pnginfo=text)
    noise.quantize(16).save(folder / "palette.png", exif=oriented(6))
    noise.convert("RGBA").save(folder / "alpha.webp", exif=oriented(5), lossless=True)
    frames = [Image.fromarray(np.roll(np.array(noise), count, 1)) for count in (0, 5)]
    frames[0].save(folder / "frames.webp", save_all=True, append_images=frames[1:], lossless=True, exif=oriented(8))
    for name, image, options in [("cmyk", cmyk, best), ("progressive", cmyk, {"quality": 100, "progressive": True}),
                                 ("ycck", cmyk, best), ("plain", rgb, best), ("other", rgb, best), ("named", rgb, best),
                                 ("rgb", rgb, {"quality": 100, "keep_rgb": True}),
                                 ("numbered", rgb, {"quality": 100, "keep_rgb": True})]:
        image.save(folder / f"{name}.jpg", exif=oriented(6), **options)
    adobe(folder / "ycck.jpg", 2)
    adobe(folder / "plain.jpg", 1)
    adobe(folder / "other.jpg", 2)
    adobe(folder / "named.jpg", 1, b"RGB")
    adobe(folder / "numbered.jpg", 0, bytes([1, 2, 3]))
    paths = sorted(folder.iterdir())
    for kind, mode in [("rgb", "RGB"), ("grey", "L")]:
        for path, line in zip(paths, run(IMAGES, kind, *paths).splitlines(), strict=True):
            shown = ImageOps.exif_transpose(Image.open(path)).convert(mode)
            width, height, levels = line.split()
            assert (int(width), int(height)) == shown.size, f"{path.name}: {width} x {height} and not {shown.size}"
            levels = np.frombuffer(bytes.fromhex(levels), "u1").reshape(-1, shown.height, shown.width)
            expected = np.atleast_3d(np.array(shown)).transpose(2, 0, 1).astype(int)
            # Inverse transformations may round differently: by a level, and the colours of YCbCr by two more.
            bound = 3 if path.suffix == ".jpg" else 0
            difference = np.abs(levels - expected).max()
            assert difference <= bound, f"{path.name} as {kind}: levels differ by {difference}"


def main():
    for check in [tensorflow, parquet, tar, numpy_files, lines, packed, tokenizer, images]:
        folder = pathlib.Path(tempfile.mkdtemp(prefix="ronde-formats-"))
        try:
            check(folder)
        finally:
            shutil.rmtree(folder)
        print(f"formats: {check.__name__}: ok")


main()
