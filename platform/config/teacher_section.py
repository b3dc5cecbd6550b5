"""The teacher section of an experiment file: a model that others learn from."""

from pathlib import Path
from typing import Any

import torch
from pydantic import Field, field_validator

from hedgerow.algorithms.core.pytree import Tree
from hedgerow.algorithms.core.task import trainable
from hedgerow.algorithms.optim.pretraining import TeacherTraining
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.common.section import Section
from hedgerow.platform.config.registries import ModelConfig
from hedgerow.platform.storage.checkpoint import checkpoints, read_checkpoint


class Teacher(Section, TeacherTraining):
    """A model that is asked, and learns nothing: what a run ended with, or what is trained before the first lesson."""

    alternatives = (("model", "run"),)

    model: ModelConfig | None = Field(
        None, description="trained on all training samples, as the other keys say; null where `run` is given"
    )
    run: str | None = Field(
        None,
        min_length=1,
        description="folder of a run, or such a path without date and time, which stands for the newest of its name "
        "when the file is read; null where `model` is given",
    )

    @field_validator("run")
    @classmethod
    def _newest(cls, run: str | None) -> str | None:
        if run is None:
            return None
        path = Path(run)
        for folder in (path, *sorted(path.parent.glob(f"{path.name}-[0-9]*"), reverse=True)):
            # What a table ran of one method is its only expert.
            for home in (folder, folder / "experts" / "000"):
                if (home / "experiment.yaml").exists() and (home / "checkpoints").exists():
                    return str(home.absolute())
        return run

    @property
    def teacher_training(self) -> TeacherTraining | None:
        """None: it has learnt already."""
        return (
            None
            if self.model is None
            else TeacherTraining(**{key: getattr(self, key) for key in TeacherTraining.model_fields})
        )

    @property
    def experiment(self) -> Path:
        """Its experiment file. Raises UserError where there is none."""
        file = Path(str(self.run)) / "experiment.yaml"
        if not file.exists():
            raise UserError(
                f"task.teacher.run: there is no run at {self.run}; train a teacher first, and name the folder that "
                "`hedgerow run` printed"
            )
        return file

    def parameters(self) -> Tree:
        """Those of the server's model. Raises UserError where none are saved or the last ones are damaged."""
        found = checkpoints(Path(str(self.run)) / "checkpoints")
        server: Tree = read_checkpoint(found[-1])[0] if found else {}
        if "w" not in server:
            raise UserError(f"task.teacher.run: {self.run} has saved no model; let it run to its end, or name another")
        return server["w"]


def with_parameters(module: torch.nn.Module, parameters: dict[str, Any], run: str) -> torch.nn.Module:
    """The module as it was learnt, for forward passes alone. Raises UserError where they do not fit."""
    shapes = {name: p.shape for name, p in module.named_parameters()}
    # Frozen ones are not saved: the module has them from its constructor.
    wanted = trainable(module).keys()
    if not wanted <= parameters.keys() or any(shapes.get(name) != p.shape for name, p in parameters.items()):
        raise UserError(
            f"task.teacher.run: the model of {run} is for other samples or classes than task.data's; name a run on the "
            "same data"
        )
    for name, p in module.named_parameters():
        if name in parameters:
            p.data = parameters[name].clone()
    return module.eval()
