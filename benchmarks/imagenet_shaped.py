#!/usr/bin/env python3
"""Makes TFRecords in the layout and shape of ImageNet: a thousand classes of JPEG images of about 500 x 375 pixels.

    cargo build --release --features full
    python3 benchmarks/imagenet_shaped.py DIR [--images 2000]
    target/release/ronde bench train --model resnet50 --records 'DIR/train-*'

The images are random: noise of several scales, with about 90 KB each, so that reading and decoding cost what they cost for
photographs. Nothing can be learned from them. Needs numpy and pillow; `ronde data pack` writes the records.
"""
import argparse
import os
import subprocess
import tempfile

import numpy as np
from PIL import Image

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RONDE = os.path.join(os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target")), "release", "ronde")
CLASSES = 1000


def image(random):
    """Returns an image with coarse and fine structure."""
    size = (500, 375) if random.random() < 0.75 else (375, 500)
    pixels = np.zeros((size[1], size[0], 3))
    for scale, weight in ((4, 90), (16, 50), (64, 30), (500, 26)):
        noise = random.integers(0, 256, (max(2, size[1] * scale // 500), max(2, size[0] * scale // 500), 3), np.uint8)
        pixels += (np.asarray(Image.fromarray(noise).resize(size, Image.BICUBIC), float) - 128) * weight / 128
    return Image.fromarray(np.clip(pixels + 128, 0, 255).astype(np.uint8))


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("folder")
    arguments.add_argument("--images", type=int, default=2000, help="at least one for each of the thousand classes")
    chosen = arguments.parse_args()
    if chosen.images < CLASSES:
        arguments.error(f"--images {chosen.images}: expected at least {CLASSES}")
    random = np.random.default_rng(1)
    with tempfile.TemporaryDirectory() as folder:
        for number in range(chosen.images):
            name = f"{folder}/n{number % CLASSES:08}"
            os.makedirs(name, exist_ok=True)
            image(random).save(f"{name}/{number}.jpg", quality=90)
        subprocess.run([RONDE, "data", "pack", folder, chosen.folder, "--first-label", "1"], check=True)


if __name__ == "__main__":
    main()
