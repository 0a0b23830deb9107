"""Writes detection.json: boxes and predictions of some images, with their mean average precision by pycocotools, and the loss
and gradient of other outputs by PyTorch.

    python3 detection.py > detection.json
"""

import contextlib
import io
import json
import math
import random

import numpy as np
import torch
import torch.nn.functional as F
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from hashed import hashed, name_seed

IMAGES, ROWS, COLUMNS, CLASSES = 60, 6, 9, 3
CELLS = ROWS * COLUMNS


def exact(x):
    """Rounds to single precision, which Rust reads back."""
    return float(np.float32(x))


def made():
    """Images with boxes, and predictions near them and elsewhere; every logit is in its own step of 1/64."""
    draw = random.Random(7)
    logits = [-4 + (step + 0.5) / 64 for step in range(900)]
    draw.shuffle(logits)
    images = []
    for _ in range(IMAGES):
        boxes, predictions = [], {}
        for _ in range(draw.randrange(5)):
            height, width = draw.uniform(0.1, 0.5), draw.uniform(0.1, 0.4)
            top, left = draw.uniform(0, 1 - height), draw.uniform(0, 1 - width)
            label = draw.randrange(CLASSES)
            boxes.append([label] + [exact(x) for x in (top, left, top + height, left + width)])
            for _ in range(draw.randrange(3)):
                near = [x + draw.uniform(-0.06, 0.06) for x in (top + height / 2, left + width / 2)]
                row, column = int(near[0] * ROWS), int(near[1] * COLUMNS)
                if 0 <= row < ROWS and 0 <= column < COLUMNS:
                    offsets = [near[0] * ROWS - row - 0.5, near[1] * COLUMNS - column - 0.5]
                    sides = [math.log(height * ROWS), math.log(width * COLUMNS)]
                    sides = [side + draw.uniform(-0.3, 0.3) for side in sides]
                    shown = label if draw.random() < 0.8 else draw.randrange(CLASSES)
                    # Better logits for what is near a box.
                    logit = max(logits.pop(), logits.pop())
                    predictions[row * COLUMNS + column] = [shown, logit] + [exact(x) for x in offsets + sides]
        for cell in draw.sample(range(CELLS), 3):
            if cell not in predictions:
                values = [draw.uniform(-0.5, 0.5) for _ in range(2)] + [draw.uniform(-1, 1) for _ in range(2)]
                logit = min(logits.pop(), logits.pop())
                predictions[cell] = [draw.randrange(CLASSES), logit] + [exact(x) for x in values]
        images.append({
            "boxes": boxes,
            "predictions": [[cell, *rest] for cell, rest in sorted(predictions.items())],
        })
    return images


def corners(cell, values):
    """The box of a cell: top, left, bottom, right, inside the image."""
    down, across, height, width = values
    row, column = divmod(cell, COLUMNS)
    y, x = (row + 0.5 + down) / ROWS, (column + 0.5 + across) / COLUMNS
    h, w = math.exp(height) / ROWS / 2, math.exp(width) / COLUMNS / 2
    return [min(max(side, 0), 1) for side in (y - h, x - w, y + h, x + w)]


def overlap(a, b):
    height = max(0, min(a[2], b[2]) - max(a[0], b[0]))
    width = max(0, min(a[3], b[3]) - max(a[1], b[1]))
    area = lambda c: (c[2] - c[0]) * (c[3] - c[1])
    return height * width / (area(a) + area(b) - height * width)


def kept(predictions):
    """Greedy non-maximum suppression within each class."""
    found = []
    for cell, label, logit, *values in sorted(predictions, key=lambda p: -p[2]):
        box = corners(cell, values)
        if not any(other[0] == label and overlap(other[2], box) > 0.5 for other in found):
            found.append((label, logit, box))
    return found


def coco_box(box):
    top, left, bottom, right = box
    return [left, top, right - left, bottom - top]


def mean_average_precision(images):
    truth, results = [], []
    for number, image in enumerate(images):
        for label, *box in image["boxes"]:
            box = coco_box(box)
            truth.append({"id": len(truth) + 1, "image_id": number, "category_id": label, "bbox": box,
                          "area": box[2] * box[3], "iscrowd": 0})
        for label, logit, box in kept(image["predictions"]):
            score = 1 / (1 + math.exp(-logit))
            results.append({"image_id": number, "category_id": label, "bbox": coco_box(box), "score": score})
    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO()
        coco.dataset = {"info": {}, "images": [{"id": i} for i in range(len(images))], "annotations": truth,
                        "categories": [{"id": i} for i in range(CLASSES)]}
        coco.createIndex()
        evaluation = COCOeval(coco, coco.loadRes(results), "bbox")
        evaluation.params.iouThrs = np.array([0.5])
        # The areas are shares of an image; all of them count.
        evaluation.params.areaRng, evaluation.params.areaRngLbl = [[0, 1e5]], ["all"]
        evaluation.evaluate()
        evaluation.accumulate()
    precision = evaluation.eval["precision"]  # threshold, recall, class, area, number
    return float(precision[0, :, :, 0, -1].mean())


def loss(images):
    """The loss of hashed outputs for the boxes, and a checksum of the gradient."""
    outputs = hashed(name_seed("outputs"), IMAGES * (4 + CLASSES) * CELLS).astype(np.float64) * 2
    outputs = torch.tensor(outputs.reshape(IMAGES, 4 + CLASSES, CELLS), requires_grad=True)
    total = 0
    for image, output in zip(images, outputs):
        expected = torch.zeros(CLASSES, CELLS, dtype=torch.float64)
        taken, found = set(), 0
        for label, top, left, bottom, right in image["boxes"]:
            y, x = (top + bottom) / 2 * ROWS, (left + right) / 2 * COLUMNS
            cell = int(y) * COLUMNS + int(x)
            if cell in taken:
                continue
            taken.add(cell)
            expected[label, cell] = 1
            values = [y - int(y) - 0.5, x - int(x) - 0.5, math.log((bottom - top) * ROWS), math.log((right - left) * COLUMNS)]
            target = torch.tensor(values, dtype=torch.float64)
            found = found + F.smooth_l1_loss(output[:4, cell], target, reduction="sum", beta=0.1)
        found = found + F.binary_cross_entropy_with_logits(output[4:], expected, reduction="sum")
        total = total + found / max(1, len(image["boxes"]))
    total.backward()
    gradient = outputs.grad.numpy().ravel()
    product = float((gradient * hashed(name_seed("dot"), gradient.size)).sum())
    return {"loss": total.item(), "gradient": [product, float(np.linalg.norm(gradient))]}


def main():
    images = made()
    found = {"size": [ROWS * 8, COLUMNS * 8], "classes": CLASSES, "map50": mean_average_precision(images), **loss(images)}
    lines = ",\n".join(json.dumps(image) for image in images)
    print(json.dumps(found)[:-1] + ', "images": [\n' + lines + "\n]}")


main()
