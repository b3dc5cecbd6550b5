"""Virtual environments of the peers, whose requirements contradict Hedgerow's: made once, kept in the user's cache."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

from hedgerow.platform.data.sources.cache import cache_folder

ROOT = Path(__file__).parent.parent

UV = [sys.executable, "-m", "uv", "--quiet"]


def python_of(requirements: Path) -> Path:
    """The interpreter of an environment that holds what the file asks for, and Hedgerow itself."""
    key = hashlib.sha256(f"{requirements.read_text()} {sys.version} {ROOT}".encode()).hexdigest()[:12]
    folder = cache_folder() / "peers" / f"{requirements.stem}-{key}"
    python = folder / "bin" / "python"
    done = folder / "installed"
    if not done.exists():
        print(f"installing {requirements.name} into {folder}", flush=True)
        subprocess.run([*UV, "venv", "--clear", "--python", sys.executable, str(folder)], check=True)
        # Compiled now: the first trial must not pay for it.
        options = ["--compile-bytecode", "--python", str(python), "-r", str(requirements)]
        subprocess.run([*UV, "pip", "install", *options], check=True)
        # Hedgerow's models, without what else it requires, which would not fit.
        options = ["--no-deps", "--python", str(python), "--editable", str(ROOT)]
        subprocess.run([*UV, "pip", "install", *options], check=True)
        done.touch()
    return python


def installed(python: Path, names: tuple[str, ...]) -> dict[str, str]:
    """The versions of packages in an interpreter's environment, of those that are there."""
    command = [*UV, "pip", "list", "--format", "json", "--python", str(python)]
    listed = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return {entry["name"]: entry["version"] for entry in listed if entry["name"] in names}
