"""Virtual environments of the peers, whose requirements conflict with Hedgerow's; created once in the user's cache."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

from hedgerow.platform.common.user_cache import cache_folder

ROOT = Path(__file__).parent.parent

UV = [sys.executable, "-m", "uv", "--quiet"]


def python_of(requirements: Path) -> Path:
    """Interpreter of an environment with the requirements of the file and Hedgerow itself."""
    key = hashlib.sha256(f"{requirements.read_text()} {sys.version} {ROOT}".encode()).hexdigest()[:12]
    folder = cache_folder() / "peers" / f"{requirements.stem}-{key}"
    python = folder / "bin" / "python"
    marker = folder / "installed"
    if not marker.exists():
        print(f"installing {requirements.name} into {folder}", flush=True)
        subprocess.run([*UV, "venv", "--clear", "--python", sys.executable, str(folder)], check=True)
        # Compiled now, so that the first trial does not pay for it.
        options = ["--compile-bytecode", "--python", str(python), "-r", str(requirements)]
        subprocess.run([*UV, "pip", "install", *options], check=True)
        # For Hedgerow's models; without its requirements, which would conflict.
        options = ["--no-deps", "--python", str(python), "--editable", str(ROOT)]
        subprocess.run([*UV, "pip", "install", *options], check=True)
        marker.touch()
    return python


def installed(python: Path, names: tuple[str, ...]) -> dict[str, str]:
    """Versions of the given packages that are installed in an interpreter's environment."""
    command = [*UV, "pip", "list", "--format", "json", "--python", str(python)]
    packages = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return {entry["name"]: entry["version"] for entry in packages if entry["name"] in names}
