"""Keys of an experiment file that may name code, from the classes that check the file."""

from collections.abc import Iterator

from pydantic import BaseModel

from hedgerow.platform.common.section import section_classes
from hedgerow.platform.config.experiment import Experiment
from hedgerow.searchspaces.spaces.search_section import search_file


def importing_keys() -> list[str]:
    """Keys whose value may be a dotted path, such as `task.data.name`, in the order of the file."""
    return list(dict.fromkeys([*_keys(Experiment, ""), *_keys(search_file(), "")]))


def _keys(section: type[BaseModel], prefix: str) -> Iterator[str]:
    if selector := getattr(section, "dotted_key", None):
        yield prefix + selector
    for name, field in section.model_fields.items():
        for inner in section_classes(field.annotation):
            yield from _keys(inner, f"{prefix}{name}.")
