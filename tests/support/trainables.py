"""Trainables for Ray Tune that cost nothing, so that only the scheduler does any work."""

import json
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

from ray import tune


def loss_of(expert: int, round: int) -> float:
    """A loss in [0, 1] that depends on expert and round alone; the best expert changes as the rounds go on."""
    return ((expert * 7 + round * (expert + 3)) % 11) / 11


class Scripted(tune.Trainable):
    """Reports `loss_of`. config: {"script": expert, rounds, log: file to which it writes each round that it runs}.

    no_reset: it refuses to take over a process that has run another expert.
    """

    def setup(self, config: dict[str, Any]) -> None:
        self.script, self.round = config["script"], 0

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.setup(new_config)
        return not self.script.get("no_reset")

    def step(self) -> dict[str, Any]:
        script = self.script
        self.round += 1
        if script.get("kill_file") and self.round == script["kill_at"]:
            with suppress(FileNotFoundError):
                Path(script["kill_file"]).unlink()
                os.kill(os.getpid(), signal.SIGKILL)
        if self.round == script.get("raise_at"):
            raise RuntimeError("this expert is broken")
        with Path(script["log"]).open("a") as file:
            file.write(f"{script['expert']} {self.round}\n")
        loss: Any = script.get("loss", loss_of(script["expert"], self.round))
        if self.round == script.get("text_at"):
            loss = "high"
        return {"loss": loss, "round": self.round, "done": self.round == script["rounds"]}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        (Path(checkpoint_dir) / "round.json").write_text(json.dumps(self.round))

    def load_checkpoint(self, checkpoint_dir: Any) -> None:
        self.round = json.loads((Path(checkpoint_dir) / "round.json").read_text())
