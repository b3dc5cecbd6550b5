"""The `task.teacher` section of an experiment file: a model that others learn from."""

from glob import escape
from pathlib import Path

from pydantic import Field, field_validator

from hedgerow.algorithms.core.pytree import Tree
from hedgerow.algorithms.optim.pretraining import TeacherTraining
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
        path, digit = Path(run), "[0-9]"
        # Another run may be named teacher-50: its name continues, but not with a date.
        dated = f"{escape(path.name)}-{8 * digit}-{6 * digit}*"
        for folder in (path, *sorted(path.parent.glob(dated), reverse=True)):
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

    def server(self) -> Tree:
        """Last server state of the teacher's run. Raises UserError if none is saved or it is damaged."""
        files = checkpoints(Path(str(self.run)) / "checkpoints")
        if not files:
            raise UserError(f"task.teacher.run: {self.run} has no saved model; let it finish, or name another run")
        return read_checkpoint(files[-1])[0]
