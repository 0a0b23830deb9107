"""Loads exported weights with PyTorch and compares them with those of ronde: check_torch.py FOLDER.

Where torchvision or transformers is installed, the weights are loaded into its modules, whose outputs are compared too.
"""

import importlib.util
import json
import pathlib
import sys

import numpy
import torch

TOLERANCE = 1e-5


def read(path):
    """Returns the tensors of a safetensors file."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header, values = json.loads(data[8 : 8 + length]), data[8 + length :]
    tensors = {}
    for name, entry in header.items():
        start, end = entry["data_offsets"]
        array = numpy.frombuffer(values[start:end], "<f4").reshape(entry["shape"])
        tensors[name] = torch.from_numpy(array.copy())
    return tensors


def module_of(config, shape, classes):
    """Returns a module of another library like a model, or None."""
    kind = config["kind"]
    if kind in ("resnet18", "resnet50", "vgg16") and importlib.util.find_spec("torchvision"):
        from torchvision import models

        is_small, norm = config.get("small_input"), config.get("normalisation")
        if kind == "vgg16":
            features = models.vgg.make_layers(models.vgg.cfgs["D"], batch_norm=norm is not None)
            module = models.VGG(features, num_classes=classes, init_weights=False)
            if is_small:
                module.avgpool = torch.nn.AdaptiveAvgPool2d(1)
                module.classifier[0] = torch.nn.Linear(512, 512)
                module.classifier[3] = torch.nn.Linear(512, 512)
                module.classifier[6] = torch.nn.Linear(512, classes)
            return module
        groups = (lambda channels: torch.nn.GroupNorm(32, channels)) if norm == "group" else None
        module = getattr(models, kind)(num_classes=classes, norm_layer=groups)
        if is_small:
            module.conv1 = torch.nn.Conv2d(3, 64, 3, 1, 1, bias=False)
            module.maxpool = torch.nn.Identity()
        return module
    if kind == "gpt" and importlib.util.find_spec("transformers"):
        from transformers import GPT2Config, GPT2LMHeadModel

        settings = GPT2Config(
            vocab_size=classes,
            n_positions=shape[0],
            n_embd=config["width"],
            n_layer=config["layers"],
            n_head=config["heads"],
            activation_function="gelu",
            tie_word_embeddings=config.get("tied", False),
        )
        return GPT2LMHeadModel(settings)
    return None


def check(folder):
    weights = torch.load(folder / "exported.pt", weights_only=True)
    mapped = torch.load(folder / "exported.pt", weights_only=True, mmap=True)
    expected = read(folder / "exported.safetensors")
    extra = set(weights) - set(expected)
    # The tied output layer has a second name, which safetensors does not repeat.
    assert extra <= {"lm_head.weight"} and set(expected) <= set(weights), extra
    for name, tensor in expected.items():
        assert torch.equal(weights[name], tensor) and torch.equal(mapped[name], tensor), name
    manifest = json.loads((folder / "model.json").read_text())
    module = module_of(manifest["model"], manifest["input_shape"], manifest["classes"])
    if module is None:
        return "weights"
    module.load_state_dict(weights)
    module.eval()
    samples = read(folder / "input.safetensors")["values"]
    outputs = read(folder / "output.safetensors")["values"]
    with torch.no_grad():
        if manifest["model"]["kind"] == "gpt":
            found = module(samples.long()).logits
        else:
            found = module(samples)
    error = ((found - outputs).abs().max() / outputs.abs().max()).item()
    if not error <= TOLERANCE:
        sys.exit(f"{folder.name}: the outputs differ by {error:.2e} of the largest one")
    return f"weights and outputs, {error:.1e}"


def main():
    torch.set_num_threads(1)
    folders = sorted(path for path in pathlib.Path(sys.argv[1]).iterdir() if path.is_dir())
    assert folders, "no models"
    for folder in folders:
        print(f"{folder.name}: {check(folder)}")


main()
