"""Records the search that `hedgerow demo` shows: `python docs/demo.py` runs it and writes reports/demo.zip."""

import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from hedgerow.platform.storage.sealed_json import seal

ROOT = Path(__file__).parent.parent
COMMAND = ["search", "digits_hedge.yaml", "--set", "rounds=40", "--set", "search.deploy_every=0"]
FILES = ("run.json", "experiment.yaml", "metrics.jsonl", "partition.json")


def text_of(file: Path) -> str:
    """Contents of a file, without the path of the command and the commit of the source."""
    text = file.read_text()
    if file.name != "run.json":
        return text
    record = json.loads(text)
    if "command" in record:
        record["command"] = ["hedgerow", *COMMAND]
        record["source_commit"] = None
    return seal(record)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        words = [sys.executable, "-m", "hedgerow", *COMMAND, "--set", "tracking.enabled=false"]
        (Path(scratch) / "digits_hedge.yaml").write_text((ROOT / "examples" / "digits_hedge.yaml").read_text())
        subprocess.run(words, cwd=scratch, check=True)
        (folder,) = (Path(scratch) / "runs").glob("digits-hedge-*")
        with zipfile.ZipFile(ROOT / "reports" / "demo.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
            for file in sorted(folder.rglob("*")):
                if file.name in FILES and "checkpoints" not in file.parts:
                    archive.writestr(f"digits-hedge/{file.relative_to(folder).as_posix()}", text_of(file))
