"""The `task.teacher` section of an experiment file: a model that others learn from."""

from pathlib import Path
from typing import Any

import torch
from pydantic import Field, field_validator

from hedgerow.algorithms.core.pytree import Tree
from hedgerow.algorithms.core.task import trainable
from hedgerow.algorithms.optim.pretraining import TeacherTraining
from hedgerow.algorithms.slots.train_mode_rounds import BUFFERS
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.common.section import Section
from hedgerow.platform.config.registries import ModelConfig
from hedgerow.platform.storage.checkpoint import checkpoints, read_checkpoint


class Teacher(Section, TeacherTraining):
    """A fixed teacher model: the final model of a run, or a model that is trained before it is first needed."""

    alternatives = (("model", "run"),)

    model: ModelConfig | None = Field(
        None, description="model that is trained on all training samples with the other keys; null if `run` is given"
    )
    run: str | None = Field(
        None,
        min_length=1,
        description="folder of a run, or its path without date and time, which stands for the newest run of this name "
        "when the file is read; null if `model` is given",
    )

    @field_validator("run")
    @classmethod
    def _newest(cls, run: str | None) -> str | None:
        if run is None:
            return None
        path = Path(run)
        for folder in (path, *sorted(path.parent.glob(f"{path.name}-[0-9]*"), reverse=True)):
            # In a published table, the run of a method is the only expert of its search.
            for home in (folder, folder / "experts" / "000"):
                if (home / "experiment.yaml").exists() and (home / "checkpoints").exists():
                    return str(home.absolute())
        return run

    @property
    def teacher_training(self) -> TeacherTraining | None:
        """Training of the teacher; None if `run` provides a trained one."""
        return (
            None
            if self.model is None
            else TeacherTraining(**{key: getattr(self, key) for key in TeacherTraining.model_fields})
        )

    @property
    def experiment(self) -> Path:
        """Experiment file of the teacher's run. Raises UserError if there is none."""
        file = Path(str(self.run)) / "experiment.yaml"
        if not file.exists():
            raise UserError(
                f"task.teacher.run: there is no run at {self.run}; train a teacher first, and name the folder that "
                "`hedgerow run` printed"
            )
        return file

    def parameters(self) -> Tree:
        """Parameters and buffers of the server's model.

        Raises UserError if none are saved or the last checkpoint is damaged.
        """
        files = checkpoints(Path(str(self.run)) / "checkpoints")
        server: Tree = read_checkpoint(files[-1])[0] if files else {}
        if "w" not in server:
            raise UserError(f"task.teacher.run: {self.run} has no saved model; let it finish, or name another run")
        return {**server["w"], **server.get(BUFFERS, {})}


def with_parameters(module: torch.nn.Module, parameters: dict[str, Any], run: str) -> torch.nn.Module:
    """Module with trained parameters, for forward passes alone. Raises UserError if the parameters do not fit."""
    tensors = dict([*module.named_parameters(), *module.named_buffers()])
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    # Frozen parameters are not saved, and the module has them from its constructor.
    names = trainable(module).keys()
    if not names <= parameters.keys() or any(shapes.get(name) != p.shape for name, p in parameters.items()):
        raise UserError(
            f"task.teacher.run: the model of {run} is for other samples or classes than task.data's; name a run on the "
            "same data"
        )
    for name, tensor in tensors.items():
        if name in parameters:
            tensor.data = parameters[name].clone()
    return module.eval()
