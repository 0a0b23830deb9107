"""The Python programs of README.md and docs/ run as they are written, with the same output on any number of workers.

Usage: documentation.py RONDE. A program is a block of Python code whose first line names its file.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIMIT_S = 120
PROGRAM = re.compile(r"```python\n(# (\w+)\.py\n.*?)```", re.DOTALL)


def output_of(ronde, program, workers, *options):
    command = [ronde, "run", "-n", str(workers), *options, "--", sys.executable, str(program)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert ended.returncode == 0, f"{program.name} on {workers} workers: {ended.stdout}{ended.stderr}"
    assert re.search(r"[0-9a-f]{64}", ended.stdout), f"{program.name}: no hash\n{ended.stdout}{ended.stderr}"
    # The first worker prints; a prefix names its rank, which may be another one in an elastic run.
    return [line.split("] ")[-1] for line in ended.stdout.splitlines()]


def main():
    ronde = sys.argv[1]
    found = 0
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for code, name in PROGRAM.findall(page.read_text()):
            found += 1
            options = ["--elastic"] if name == "elastic" else []
            with tempfile.TemporaryDirectory() as folder:
                program = Path(folder, f"{name}.py")
                program.write_text(code)
                outputs = [output_of(ronde, program, workers, *options) for workers in (1, 3)]
            assert outputs[0] == outputs[1], f"{name}: {outputs}"
            print(f"python: {page.name}, {name}.py on 1 and 3 workers: {outputs[0][-1]}", flush=True)
    assert found >= 4, f"only {found} programs"


if __name__ == "__main__":
    main()
