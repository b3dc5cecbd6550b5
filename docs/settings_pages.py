"""Tables of settings for the documentation, from the pydantic classes that check experiment files."""

import json
import re
from collections.abc import Iterator
from string import Formatter
from typing import Any

from pydantic import BaseModel

from hedgerow.algorithms.core.hyperparameters import Settings
from hedgerow.platform.common.section import section_classes
from hedgerow.platform.config.experiment import Experiment, TaskConfig
from hedgerow.platform.config.registries import algorithm_class
from hedgerow.platform.config.schedule_section import FedBuffSchedule
from hedgerow.platform.config.slots_section import AggregationConfig
from hedgerow.platform.config.system_heterogeneity import Simulation
from hedgerow.platform.runtime.task_rules import TASK_RULES
from hedgerow.searchspaces.spaces.search_section import Dimension, search_file

BOUNDS = {"exclusiveMinimum": ">", "minimum": "≥", "exclusiveMaximum": "<", "maximum": "≤"}
TYPES = {"integer": "whole number", "number": "number", "string": "text", "boolean": "true, false", "null": "null"}
HEAD = "| key | values | default | |\n|---|---|---|---|\n"

Schema = dict[str, Any]


class Described:
    """Keys of a settings class, from its JSON schema."""

    def __init__(self, settings: type[BaseModel]):
        self.schema = settings.model_json_schema()
        self.definitions: Schema = self.schema.get("$defs", {})

    def row(self, key: str, schema: Schema, required: bool) -> str:
        default = "required" if required else code(schema.get("default"))
        return f"| `{key}` | {self.values(schema)} | {default} | {cell(schema.get('description', ''))} |\n"

    def values(self, schema: Schema) -> str:
        """Allowed values, in words."""
        if "$ref" in schema:
            return "a section"
        if "const" in schema:
            return code(schema["const"])
        if "enum" in schema:
            return ", ".join(code(value) for value in schema["enum"])
        parts = schema.get("anyOf") or schema.get("oneOf")
        if parts:
            return ", ".join(dict.fromkeys(self.values(part) for part in parts))
        if schema.get("type") == "array":
            return f"list of {self.values(schema.get('items', {}))}" + limits(schema)
        if schema.get("type") == "object":
            return "a section"
        return TYPES.get(schema.get("type", ""), "anything") + limits(schema)

    def sections(self, schema: Schema) -> list[tuple[str, Schema]]:
        """Sections that a value may be, by the name that distinguishes them ("" for a single one)."""
        if "$ref" in schema:
            definition = self.definitions[schema["$ref"].rpartition("/")[2]]
            # A section for which a name alone may stand is a choice of the two.
            return [(tag(definition), definition)] if "properties" in definition else self.sections(definition)
        if "properties" in schema:
            # A user-defined class: only the key that names it is known.
            return [("", schema)]
        return [one for part in schema.get("anyOf", schema.get("oneOf", [])) for one in self.sections(part)]

    def table(self, schema: Schema, prefix: str = "", keys: set[str] | None = None) -> str:
        """Table of all keys, including nested sections. keys: only these."""
        return HEAD + "".join(self._rows(schema, prefix, keys))

    def _rows(self, schema: Schema, prefix: str, keys: set[str] | None) -> Iterator[str]:
        required = schema.get("required", [])
        for name, field in schema["properties"].items():
            if keys is not None and name not in keys:
                continue
            inner = self.sections(field)
            if len(inner) != 1 or field.get("default") is None:
                yield self.row(prefix + name, field, name in required)
            else:
                # The rows of its keys, which follow, have the defaults.
                yield f"| `{prefix}{name}` | a section | | {cell(field.get('description', ''))} |\n"
            for _, section in inner if len(inner) == 1 else []:
                yield from self._rows(section, f"{prefix}{name}.", None)
            for kind, section in inner if len(inner) > 1 else []:
                # Sections that are chosen by their `name`, such as models, have chapters of their own.
                for key, own in section["properties"].items() if "kind" in section["properties"] else ():
                    if key != "kind":
                        said = {**own, "description": f"{kind}: {own.get('description', '')}"}
                        yield self.row(f"{prefix}{name}.{key}", said, key in section.get("required", []))
            for _, section in self.sections(entries(field)):
                yield from self._rows(section, f"{prefix}{name}.NAME.", None)


def tag(section: Schema) -> str:
    """Name or kind that selects a section; "" if there is none."""
    for key in ("name", "kind"):
        field = section["properties"].get(key, {})
        if "const" in field:
            return str(field["const"])
    return ""


def entries(schema: Schema) -> Schema:
    """Schema of the values of a mapping from names; empty for anything else."""
    values = schema.get("additionalProperties")
    return values if isinstance(values, dict) else {}


def code(value: Any) -> str:
    """A value in YAML notation."""
    return f"`{json.dumps(value, ensure_ascii=False)}`".replace('"', "").replace("|", "\\|")


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def limits(schema: Schema) -> str:
    """Bounds of a number, except bounds that only keep it representable."""
    bounds = [f"{sign} {schema[bound]:g}" for bound, sign in BOUNDS.items() if abs(schema.get(bound, 1e18)) < 1e18]
    return f" {', '.join(bounds)}" if bounds else ""


def hyperparameters(name: str) -> str:
    """An algorithm's own hyperparameters and, in a collapsed block, those that it shares with others."""
    algorithm = algorithm_class(name)
    described = Described(algorithm.Hyper)
    keys = set(described.schema["properties"]) - {"name"}
    homes = {key: _home(algorithm.Hyper, key) for key in keys}
    own = {key for key, home in homes.items() if home == algorithm.__module__}
    text = described.table(described.schema, keys=own) if own else ""
    if shared := keys - own:
        shared_table = described.table(described.schema, keys=shared)
        title = "Hyperparameters shared with others" if own else "Hyperparameters, all shared with others"
        text += f'\n??? note "{title}"\n\n' + indented(shared_table)
    return text


def _home(settings: type[BaseModel], key: str) -> str:
    """Module of the most derived class that defines a key."""
    return next(kind.__module__ for kind in settings.__mro__ if key in vars(kind).get("__annotations__", {}))


def indented(text: str) -> str:
    return "".join(f"    {line}" if line.strip() else line for line in text.splitlines(keepends=True))


def _chapter(described: Described, key: str, schema: Schema, depth: int) -> str:
    """A section of the file under its own heading; if there is a choice, one heading per option."""
    text, choices = "", described.sections(schema)
    if len(choices) > 1:
        text += f"{'#' * depth} `{key}`\n\n{cell(schema.get('description', ''))}\n\nOne of:\n\n"
        depth += 1
    for name, section in choices:
        title = f"{key}: {name or section['title']}" if len(choices) > 1 else key
        text += (
            f"{'#' * depth} `{title}`\n\n{paragraphs(section.get('description', ''))}\n\n{described.table(section)}\n"
        )
    return text


def experiment_file() -> str:
    """Reference of the whole experiment file."""
    described = Described(Experiment)
    top = described.schema["properties"]
    plain = {name for name, field in top.items() if not described.sections(field) and name != "algorithm"}
    text = f"## The file itself\n\n{described.table(described.schema, keys=plain)}\n"
    task = Described(TaskConfig)
    text += "## `task`\n\n" + cell(task.schema["description"]) + "\n\n"
    for name, field in task.schema["properties"].items():
        text += _chapter(task, f"task.{name}", field, 3)
    text += "## `algorithm`\n\n`name` and the hyperparameters of [that algorithm](../algorithms/index.md).\n\n"
    text += _chapter(described, "aggregation", top["aggregation"], 2)
    aggregation = Described(AggregationConfig)
    text += _chapter(aggregation, "aggregation.rule", aggregation.schema["properties"]["rule"], 3)
    text += _chapter(described, "transforms", {**top["transforms"], **top["transforms"]["items"]}, 2)
    text += _chapter(described, "objective", top["objective"], 2)
    text += _chapter(described, "fedex", top["fedex"], 2)
    text += _chapter(described, "simulation", top["simulation"], 2)
    simulation = Described(Simulation)
    for name in ("speed", "availability", "attack"):
        text += _chapter(simulation, f"simulation.{name}", simulation.schema["properties"][name], 3)
    text += _chapter(described, "schedule", top["schedule"], 2)
    schedule = Described(FedBuffSchedule)
    text += _chapter(schedule, "schedule.staleness", schedule.schema["properties"]["staleness"], 3)
    for name in ("privacy", "evaluation", "resources", "engine", "checkpoints", "tracking"):
        text += _chapter(described, name, top[name], 2)
    search = Described(search_file())
    text += _chapter(search, "search", search.schema["properties"]["search"], 2)
    values = Described(Dimension)
    text += "### A key of `search.space`\n\n" + paragraphs(values.schema["description"]) + "\n\n"
    return text + values.table(values.schema)


def rules() -> str:
    """Everything that sections refuse although each key is valid alone, by the place of the section."""
    places: dict[str, str] = {}
    for place, section in [*_places(Experiment, ""), *_places(search_file(), "")]:
        for rule in section.all_rules() if issubclass(section, Settings) else ():
            places.setdefault(rule.says, f"`{place}`" if place else "Between sections")
    places |= {
        rule.says: "With the data, the model and the algorithm"
        for rule in TASK_RULES
        # Sentences that other functions compose.
        if not re.fullmatch(r"[\w.]*\{found\}", rule.says)
    }
    text = ""
    for place in dict.fromkeys(places.values()):
        text += f"## {place}\n\n" + "".join(f"- {_general(says)}\n" for says in places if places[says] == place) + "\n"
    return text


def _places(section: type[BaseModel], path: str) -> Iterator[tuple[str, type[BaseModel]]]:
    """A section and those inside it, with their places."""
    yield path, section
    for name, field in section.model_fields.items():
        for inner in section_classes(field.annotation):
            yield from _places(inner, f"{path}.{name}".lstrip("."))


def _general(text: str) -> str:
    """Sentence of a rule with … for each value of a file."""
    return "".join(literal + "…" * (field is not None) for literal, field, *_ in Formatter().parse(text))


def paragraphs(docstring: str) -> str:
    """A docstring as Markdown, with the characters `*` and `<` escaped."""
    return docstring.replace("*", "\\*").replace("<", "&lt;")
