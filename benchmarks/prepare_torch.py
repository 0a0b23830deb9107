#!/usr/bin/env python3
"""Makes a Python environment with numpy and PyTorch for CPU use, without the gigabytes of CUDA packages.

    python3 benchmarks/prepare_torch.py DIR       then:  . DIR/activate-torch ; python3 ...

The Linux wheel of torch links against CUDA libraries that a CPU-only machine lacks, so it does not import when it is
installed without its dependencies. This installs torch alone with the few pure-Python packages it needs, reads which
symbols its libraries expect (readelf), and builds an empty stand-in for each missing library (cc; every function returns
an error code). torch.cuda.is_available() is then False, and everything on the CPU works, including Gloo. The stand-ins are in
DIR/stand-ins, for LD_LIBRARY_PATH. Needs about 1.5 GB of disk and fetches 250 MB to 1 GB.

Exit code 3: no package can be fetched. The tests of this workspace run this script themselves.
"""
import collections
import glob
import os
import re
import subprocess
import sys

UNREACHABLE = 3
# Fetched first: it is small and always available.
FIRST = "typing_extensions==4.16.0"
PACKAGES = [
    'numpy==2.4.6; python_version >= "3.11"', 'numpy==2.2.6; python_version < "3.11"', "sympy==1.14.0", "mpmath==1.3.0",
    'networkx==3.6.1; python_version >= "3.11"', 'networkx==3.4.2; python_version < "3.11"', "jinja2==3.1.6", "MarkupSafe==3.0.4",
    "fsspec==2026.9.0", "filelock==4.2.11", "setuptools>=77",
]
TORCH = "torch==2.15.0"
SYSTEM = re.compile(
    r"^(libc\.|libm\.|libdl|librt|libpthread|libstdc|libgcc|ld-linux|libutil|libz\.|libquadmath|libgomp|libgfortran)")
SYSTEM_VERSION = ("GLIBC", "CXXABI", "GCC", "GOMP", "OMP", "GFORTRAN", "QUADMATH")
CUDA_NAME = re.compile(r"(cu|nccl|nvrtc|nvml|nvshmem|nvJitLink|__cuda|__nv)")
MESSAGES = {"cudaGetErrorString", "cudaGetErrorName", "ncclGetErrorString", "ncclGetLastError", "cudnnGetErrorString"}


def readelf(*arguments):
    return subprocess.run(["readelf", "-W", *arguments], capture_output=True, text=True, check=True).stdout


def missing(torch_lib):
    """Returns the missing libraries that torch's own libraries need, and the symbols expected of them by version."""
    files = glob.glob(torch_lib + "/*.so*") + glob.glob(os.path.dirname(torch_lib) + "/_C*.so")
    present = {os.path.basename(f) for f in files}
    libraries, defined, wanted = {}, set(), collections.defaultdict(set)
    for file in files:
        for name in re.findall(r"NEEDED.*\[(.*?)\]", readelf("-d", file)):
            if not SYSTEM.match(name) and name not in present:
                libraries[name] = True
        for line in readelf("--dyn-syms", file).splitlines():
            field = line.split()
            if len(field) < 8 or not field[0].endswith(":"):
                continue
            name, _, version = field[7].partition("@")
            if field[6] != "UND":
                defined.add(name)
            elif field[4] != "WEAK":
                wanted[name].add(version.lstrip("@"))
    by_version, plain = collections.defaultdict(set), set()
    for name, versions in wanted.items():
        for version in versions:
            if version.startswith(SYSTEM_VERSION) or name in defined:
                continue
            if version:
                by_version[version].add(name)
            elif CUDA_NAME.match(name):
                plain.add(name)
    return list(libraries), by_version, plain


def build(library, by_version, plain, out):
    """Builds a stand-in for one library, with the symbols of its versions and all `plain` ones."""
    stem = library.split(".")[0]
    versions = [v for v in by_version
                if v == library or v.split(".")[0] == stem or (v == "NVSHMEM" and "nvshmem" in library)]
    symbols = set(plain).union(*[by_version[v] for v in versions])
    source, script = f"{out}/{library}.c", f"{out}/{library}.map"
    with open(source, "w", encoding="utf-8") as f:
        f.write("typedef long L;\n")
        for s in sorted(symbols):
            f.write(f'const char*{s}(){{return "no CUDA here";}}\n' if s in MESSAGES else f"L {s}(){{return 100;}}\n")
    with open(script, "w", encoding="utf-8") as f:
        for v in versions:
            f.write(v + " { global: " + " ".join(f"{s};" for s in sorted(by_version[v])) + " };\n")
    command = [os.environ.get("CC", "cc"), "-shared", "-fPIC", "-w", "-fno-builtin", "-Wl,-soname," + library]
    if versions:
        command.append(f"-Wl,--version-script,{script}")
    subprocess.check_call([*command, "-o", f"{out}/{library}", source])
    os.remove(source)
    os.remove(script)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    target = os.path.abspath(sys.argv[1])
    subprocess.check_call([sys.executable, "-m", "venv", "--clear", target])
    pip = [target + "/bin/pip", "install", "--quiet", "--disable-pip-version-check"]
    if subprocess.call([*pip, "--retries", "2", FIRST]) != 0:
        sys.exit(UNREACHABLE)
    subprocess.check_call(pip + PACKAGES)
    subprocess.check_call(pip + ["--no-deps", TORCH])
    torch_lib = glob.glob(target + "/lib/python3*/site-packages/torch/lib")[0]
    stubs = target + "/stand-ins"
    os.makedirs(stubs, exist_ok=True)
    libraries, by_version, plain = missing(torch_lib)
    for index, library in enumerate(libraries):
        build(library, by_version, plain if index == 0 else set(), stubs)
    with open(target + "/activate-torch", "w", encoding="utf-8") as f:
        f.write(f'. "{target}/bin/activate"\n')
        f.write(f'export LD_LIBRARY_PATH="{stubs}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}"\n')
    check = f'. "{target}/activate-torch" && python3 -c "import torch; print(torch.__version__, torch.ones(2).sum().item())"'
    subprocess.check_call(["bash", "-c", check])


main()
