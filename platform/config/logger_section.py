"""Section of the experiment file for a logger."""

from typing import Any, ClassVar

from pydantic import Field, ValidationInfo, field_validator

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.common.own_code_errors import failure
from hedgerow.platform.common.registry import WITHOUT_IMPORTS, Registry, nearest
from hedgerow.platform.common.section import NamedSection
from hedgerow.platform.common.servers import with_environment
from hedgerow.platform.loggers import LOGGERS
from hedgerow.platform.loggers.run_logger import RunLogger

METHODS = [name for name in vars(RunLogger) if name.startswith("on_")]
"""Methods of a logger."""

loggers = Registry(LOGGERS, RunLogger, "tracking.also")


class Logger(NamedSection):
    """A logger in addition to MLflow, or your own callback: a subclass of RunLogger. A name alone is enough."""

    dotted_key: ClassVar[str] = "name"

    name: str = Field(description=f"{', '.join(LOGGERS)}, or the dotted path of your own subclass of RunLogger")
    args: dict[str, Any] = Field({}, description="keyword arguments of its constructor")

    @field_validator("name")
    @classmethod
    def _is_known(cls, name: str, info: ValidationInfo) -> str:
        if info.context != WITHOUT_IMPORTS:
            try:
                loggers.resolve(name, place="")
            except UserError as error:
                raise ValueError(str(error)) from None
        return name

    def build(self) -> RunLogger:
        """Create the logger. Raises UserError."""
        kind = loggers.resolve(self.name)
        if unknown := next((name for name in dir(kind) if name.startswith("on_") and name not in METHODS), None):
            raise UserError(
                f"tracking.also: {self.name} has a method {unknown}, which is never called{nearest(unknown, METHODS)} "
                f"(called: {', '.join(METHODS)})"
            )
        try:
            return kind(**_filled(self.args))
        except UserError:
            raise
        except Exception as error:
            raise UserError(
                f"tracking.also: {self.name} cannot be created from its args ({failure(error)}); see its __init__"
            ) from error


def _filled(value: Any) -> Any:
    """Arguments with the values of `${env:NAME}`, which are recorded by their names."""
    if isinstance(value, dict):
        return {key: _filled(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_filled(inner) for inner in value]
    return with_environment(value, "tracking.also") if isinstance(value, str) else value


def build_loggers(sections: list[Logger]) -> list[tuple[str, RunLogger]]:
    """Create the loggers of an experiment, with their names. Raises UserError."""
    return [(section.name, section.build()) for section in sections]
