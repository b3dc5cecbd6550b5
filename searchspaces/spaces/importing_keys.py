"""Keys of an experiment file that may name code, from the classes that check the file."""

from collections.abc import Iterator

from pydantic import BaseModel

from hedgerow.platform.common.registry import selector_of
from hedgerow.platform.common.section import section_classes
from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.config.registries import algorithms
from hedgerow.searchspaces.spaces.search_section import search_file


def importing_keys() -> list[str]:
    """Keys whose value may be a dotted path, such as `task.data.name`, in the order of the file."""
    found = [*_keys(Experiment, ""), algorithms.key, *_keys(search_file(), "")]
    found += [key for name in algorithms.names() for key in _keys(algorithms.section(name), "algorithm.")]
    return list(dict.fromkeys(found))


def _keys(section: type[BaseModel], prefix: str) -> Iterator[str]:
    if selector := selector_of(section):
        yield prefix + selector
    for name, field in section.model_fields.items():
        for inner in section_classes(field.annotation):
            yield from _keys(inner, f"{prefix}{name}.")
