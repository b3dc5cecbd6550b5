"""Messages of libraries stay away from the user, and those of the user's own code do not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from bad_files import change

NOISY = """\
import logging, warnings
import numpy as np
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, x):
        warnings.warn("said by my model")
        logging.getLogger("mine").warning("logged by my model")
        np.float64(1e308) * 10
        return self.layer(x.flatten(1))
"""


def hedgerow(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONWARNINGS"}
    command = [sys.executable, "-m", "hedgerow", *words]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done


def write(folder: Path, **sections: object) -> str:
    values = yaml.safe_load(change(("rounds: 100", "rounds: 2"), ("clients: 100", "clients: 10")))
    values |= {"tracking": {"enabled": False}, "resources": {"executor": "inline"}}
    file = folder / "file.yaml"
    file.write_text(yaml.safe_dump(values | sections))
    return str(file)


@pytest.mark.exhaustive("processes")
def test_a_run_that_diverges_shows_lines_of_its_own_only(tmp_path):
    settings = {"name": "fedavg", "lr": 1.0e30, "clip_norm": None, "batch_size": 8}
    done = hedgerow(tmp_path, "run", write(tmp_path, algorithm=settings))
    assert "Warning" not in done.stdout + done.stderr
    assert all(line.startswith(("digits-fedavg", "  warning:")) for line in done.stderr.splitlines())


@pytest.mark.exhaustive("processes")
def test_what_the_user_s_own_code_says_stays_visible(tmp_path):
    (tmp_path / "noisy.py").write_text(NOISY)
    done = hedgerow(tmp_path, "run", write(tmp_path, task={
        "data": {"name": "digits"},
        "partition": {"kind": "iid", "clients": 10},
        "model": {"name": "noisy.Net"},
    }))  # fmt: skip
    for words in ("said by my model", "logged by my model", "noisy.py:13: RuntimeWarning: overflow"):
        assert words in done.stderr


@pytest.mark.exhaustive("processes")
def test_a_search_by_optuna_shows_lines_of_its_own_only(tmp_path):
    pytest.importorskip("optuna")
    space = {"algorithm.lr": {"loguniform": [0.01, 0.1]}}
    done = hedgerow(tmp_path, "search", write(tmp_path, search={"kind": "optuna", "samples": 2, "space": space}))
    output = done.stdout + done.stderr
    for words in ("Warning", "[I 20", "study", "INFO", "Optuna"):
        assert words not in output
