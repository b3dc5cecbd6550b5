"""Section of the experiment file for a logger."""

from difflib import get_close_matches
from typing import Any, ClassVar

from pydantic import Field, ValidationInfo, field_validator

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.common.own_code_errors import failure
from hedgerow.platform.common.registry import WITHOUT_IMPORTS, Registry, nearest
from hedgerow.platform.common.section import NamedSection
from hedgerow.platform.common.servers import with_environment
from hedgerow.platform.config.measures_section import METRIC
from hedgerow.platform.loggers import LOGGERS
from hedgerow.platform.loggers.logger import DECIDING, HOOKS, Logger, overrides

loggers = Registry(LOGGERS, Logger, "tracking.also")


class LoggerChoice(NamedSection):
    """A logger in addition to MLflow, or your own: a subclass of Logger. A name alone is enough."""

    dotted_key: ClassVar[str] = "name"

    name: str = Field(description=f"{', '.join(LOGGERS)}, or the dotted path of your own subclass of Logger")
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

    def has_hook(self, *hooks: str) -> bool:
        """Whether the logger has one of these hooks, see Logger. Raises UserError."""
        return overrides(loggers.resolve(self.name), hooks)

    def build(self) -> Logger:
        """Create the logger. Raises UserError."""
        kind = loggers.resolve(self.name)
        public = [name for name in dir(kind) if not name.startswith("_") and callable(getattr(kind, name))]
        others = [name for name in public if name not in HOOKS]
        if overrides(kind, HOOKS):
            # Helpers of its own may have any name but one that is meant as a hook.
            others = [name for name in others if name.startswith("on_") or get_close_matches(name, HOOKS, 1, 0.9)]
        unknown = next((name for name in others if nearest(name, HOOKS)), None)
        if unknown or not overrides(kind, HOOKS):
            what = f"a method {unknown}, which is never called{nearest(unknown, HOOKS)}" if unknown else "no hook"
            raise UserError(f"tracking.also: {self.name} has {what} (called: {', '.join(HOOKS)})")
        try:
            logger: Logger = kind(**_filled(self.args))
        except UserError:
            raise
        except Exception as error:
            raise UserError(
                f"tracking.also: {self.name} cannot be created from its args ({failure(error)}); see its __init__"
            ) from error
        if overrides(kind, ["add_metrics"]) and not (isinstance(logger.adds, tuple | list) and logger.adds):
            raise UserError(
                f"tracking.also: {self.name} has add_metrics, and its `adds` is {logger.adds!r}; set it to a tuple of "
                "their names"
            )
        if wrong := [name for name in logger.adds if not isinstance(name, str) or not METRIC.fullmatch(name)]:
            raise UserError(
                f"tracking.also: {self.name} adds the metric {wrong[0]!r}; name it by letters, digits, spaces and "
                "_ - . / alone"
            )
        return logger


def _filled(value: Any) -> Any:
    """Arguments with the values of `${env:NAME}`, which are recorded by their names."""
    if isinstance(value, dict):
        return {key: _filled(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_filled(inner) for inner in value]
    return with_environment(value, "tracking.also") if isinstance(value, str) else value


def build_loggers(choices: list[LoggerChoice], decide: bool = False) -> list[tuple[str, Logger]]:
    """Create the loggers of an experiment, with their names. decide: those that decide alone. Raises UserError."""
    return [(one.name, one.build()) for one in choices if not decide or one.has_hook(*DECIDING)]
