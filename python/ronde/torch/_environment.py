"""What the bits of a result depend on besides the program: versions, processors and settings."""

from __future__ import annotations

import os
import platform

import torch

#: Settings of libraries, in environment variables, that choose how they compute.
_VARIABLES = ("MKL_CBWR", "ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS")


def deterministic(threads: int = 1) -> None:
    """Sets PyTorch up so that it computes the same bits each time: deterministic algorithms, a fixed number of threads for each
    worker, no choice of algorithms by measurement, and no TF32. Call it before the model is built.

    `threads` must be the same for all workers and all runs that are compared.
    """
    if threads < 1:
        raise ValueError(f"threads={threads}: a worker needs at least 1")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.set_float32_matmul_precision("highest")


def _keeps_denormals() -> bool:
    smallest = torch.full((1,), 1e-38, dtype=torch.float32)
    return bool((smallest / 16 != 0).item())


def _processor() -> str:
    """Returns the instructions by which libraries choose their kernels."""
    wanted = ("avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16")
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            flags = next((line.split(":", 1)[1].split() for line in lines if line.startswith("flags")), [])
    except OSError:
        flags = []
    return " ".join(flag for flag in wanted if flag in flags)


def environment(device: torch.device) -> dict[str, object]:
    """Returns the facts that all workers must share, each under a name that a user can act on."""
    facts: dict[str, object] = {
        "the version of PyTorch": torch.__version__,
        "the build of PyTorch": torch.__config__.show(),
        "the machine": platform.machine(),
        "the instructions of the processor": _processor(),
        "torch.backends.cpu.get_cpu_capability()": torch.backends.cpu.get_cpu_capability(),
        "torch.get_num_threads()": torch.get_num_threads(),
        "torch.are_deterministic_algorithms_enabled()": torch.are_deterministic_algorithms_enabled(),
        "torch.get_float32_matmul_precision()": torch.get_float32_matmul_precision(),
        "torch.backends.mkldnn.enabled": torch.backends.mkldnn.enabled,
        "whether denormals are kept": _keeps_denormals(),
    }
    for name in _VARIABLES:
        facts[f"the environment variable {name}"] = os.environ.get(name)
    if device.type == "cuda":
        facts |= {
            "the model of the GPU": torch.cuda.get_device_name(device),
            "the capability of the GPU": torch.cuda.get_device_capability(device),
            "the version of CUDA": torch.version.cuda,
            "the version of cuDNN": torch.backends.cudnn.version(),
            "torch.backends.cudnn.benchmark": torch.backends.cudnn.benchmark,
            "torch.backends.cudnn.allow_tf32": torch.backends.cudnn.allow_tf32,
            "torch.backends.cuda.matmul.allow_tf32": torch.backends.cuda.matmul.allow_tf32,
            "the flash kernel of attention": torch.backends.cuda.flash_sdp_enabled(),
            "the memory-efficient kernel of attention": torch.backends.cuda.mem_efficient_sdp_enabled(),
            "the environment variable CUBLAS_WORKSPACE_CONFIG": os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
        }
    return facts


def check_deterministic(device: torch.device) -> None:
    """Refuses settings with which the same program gives other bits each time."""
    if not torch.are_deterministic_algorithms_enabled():
        raise RuntimeError(
            "PyTorch may compute other bits each time: call ronde.torch.deterministic() before the model is built"
        )
    if device.type == "cuda" and torch.backends.cudnn.benchmark:
        raise RuntimeError(
            "torch.backends.cudnn.benchmark chooses algorithms by measurement, which gives other bits each time: "
            "set it to False, or call ronde.torch.deterministic()"
        )
