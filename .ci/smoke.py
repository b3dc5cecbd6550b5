"""Smoke test of the built packages: `.venv/bin/python .ci/smoke.py [--python 3.12 ...]`.

Builds the sdist, a wheel from the sdist and a wheel from the working tree, which must have the same files. Then
installs the wheel into an empty environment, by default of this version of Python, and runs an experiment in it.
Versions that are not installed are reported as not tried.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
THIS = f"{sys.version_info[0]}.{sys.version_info[1]}"
UV = str(Path(sys.executable).with_name("uv"))
EXPERIMENT = """\
name: smoke
rounds: 2
clients_per_round: 0.5
task:
  data: {name: digits}
  partition: {kind: iid, clients: 10}
  model: {name: logreg}
algorithm: {name: fedavg, lr: 0.1, batch_size: 16}
resources: {executor: inline}
tracking: {enabled: false}
"""


def call(*words: str, cwd: Path = ROOT) -> str:
    """Output of a command. Ends this process with the output if the command fails."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(words)}\n{done.stdout}{done.stderr}")
    return done.stdout


def build(folder: Path) -> Path:
    """Build both packages; returns the wheel."""
    call(UV, "build", "--quiet", "--out-dir", str(folder / "sdist"), str(ROOT))
    # setuptools keeps the files of earlier builds there.
    shutil.rmtree(ROOT / "build" / "lib", ignore_errors=True)
    call(UV, "build", "--quiet", "--wheel", "--out-dir", str(folder / "tree"), str(ROOT))
    shutil.rmtree(ROOT / "build" / "lib", ignore_errors=True)
    (from_sdist,) = (folder / "sdist").glob("*.whl")
    (from_tree,) = (folder / "tree").glob("*.whl")
    one, other = (set(zipfile.ZipFile(wheel).namelist()) for wheel in (from_sdist, from_tree))
    if one != other:
        sys.exit(f"the wheel from the sdist differs from the wheel from the tree in {sorted(one ^ other)}")
    return from_sdist


def interpreter(version: str) -> str | None:
    """An installed Python of this version. Also looks into the folder of pyenv, whose commands may be switched off."""
    home = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    for candidate in (f"python{version}", *map(str, home.glob(f"versions/{version}.*/bin/python"))):
        try:
            done = subprocess.run(
                [candidate, "-c", "import sys; print(sys.executable)"], capture_output=True, text=True
            )
        except FileNotFoundError:
            continue
        if done.returncode == 0:
            return done.stdout.strip()
    return None


def smoke(wheel: Path, python: str, folder: Path) -> None:
    """Install the wheel into an empty environment, and run it outside the repository."""
    call(UV, "venv", "--quiet", "--python", python, str(folder / "venv"))
    bin_folder = folder / "venv" / "bin"
    pinned = ("--constraint", str(ROOT / "constraints.txt"))
    call(UV, "pip", "install", "--quiet", "--python", str(bin_folder / "python"), *pinned, str(wheel))
    (folder / "smoke.yaml").write_text(EXPERIMENT)
    hedgerow = str(bin_folder / "hedgerow")
    version = wheel.name.split("-")[1]
    assert call(hedgerow, "--version", cwd=folder).strip().endswith(version)
    assert "scaffold" in call(hedgerow, "list", "algorithms", cwd=folder)
    assert "round 2/2" in call(hedgerow, "run", "smoke.yaml", cwd=folder)
    assert len(list(folder.glob("runs/smoke-*/metrics.jsonl"))) == 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", nargs="+", default=[THIS], metavar="VERSION", help="versions to try")
    with tempfile.TemporaryDirectory() as scratch:
        wheel = build(Path(scratch))
        for version in parser.parse_args().python:
            if (python := interpreter(version)) is None:
                print(f"Python {version}: not installed, not tried")
                continue
            begin = time.monotonic()
            folder = Path(scratch) / version
            folder.mkdir()
            smoke(wheel, python, folder)
            print(f"Python {version}: {wheel.name} installed and run in {time.monotonic() - begin:.0f} s", flush=True)
