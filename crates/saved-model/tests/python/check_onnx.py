"""Compares exported ONNX models with the outputs of ronde: check_onnx.py FOLDER."""

import json
import os
import pathlib
import re
import sys

import numpy
import onnxruntime
from safetensors.numpy import load_file

# Relative to the largest output: f32 in another order of additions.
TOLERANCE = 1e-5


def read(path):
    """Returns the only tensor of a safetensors file."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    entry = json.loads(data[8 : 8 + length])["values"]
    return numpy.frombuffer(data[8 + length :], "<f4").reshape(entry["shape"])


def check(folder):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        folder / "model.onnx", options, providers=["CPUExecutionProvider"]
    )
    (given,) = session.get_inputs()
    samples = read(folder / "input.safetensors")
    expected = read(folder / "output.safetensors")
    assert given.name == "input", given.name
    assert given.shape == ["batch", *samples.shape[1:]], given.shape
    assert session.get_outputs()[0].shape == ["batch", *expected.shape[1:]]
    samples = samples.astype("int64" if given.type == "tensor(int64)" else "float32")
    # All samples together, and one alone: the size of a batch is free.
    for part in (slice(None), slice(1, 2)):
        (found,) = session.run(None, {"input": samples[part]})
        assert found.shape == expected[part].shape, found.shape
        error = numpy.abs(found - expected[part]).max() / numpy.abs(expected).max()
        if not error <= TOLERANCE:
            sys.exit(f"{folder.name}: the outputs differ by {error:.2e} of the largest one")
    check_card(folder, samples, expected)
    return error


def check_card(folder, samples, expected):
    """Runs the programs of the model card."""
    os.chdir(folder)
    names = {"samples": samples}
    for program in re.findall("```python\n(.*?)```", pathlib.Path("README.md").read_text(), re.DOTALL):
        exec(program, names)
    assert names["outputs"].shape == expected.shape, names["outputs"].shape
    assert set(names["weights"]) == set(load_file("model.safetensors"))


def main():
    folders = sorted(path for path in pathlib.Path(sys.argv[1]).resolve().iterdir() if path.is_dir())
    assert folders, "no models"
    for folder in folders:
        print(f"{folder.name}: {check(folder):.1e}")


main()
