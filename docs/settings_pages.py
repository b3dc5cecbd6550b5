"""Tables of settings for the documentation, from the pydantic classes that check experiment files."""

import json
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from hedgerow.platform.config.experiment import Experiment, TaskConfig
from hedgerow.platform.config.registries import algorithm_class
from hedgerow.platform.config.slots_section import AggregationConfig
from hedgerow.platform.config.system_heterogeneity import Simulation
from hedgerow.searchspaces.spaces.search_section import Dimension, search_file

BOUNDS = {"exclusiveMinimum": ">", "minimum": "≥", "exclusiveMaximum": "<", "maximum": "≤"}
TYPES = {"integer": "whole number", "number": "number", "string": "text", "boolean": "true, false", "null": "null"}
HEAD = "| key | values | default | |\n|---|---|---|---|\n"

Schema = dict[str, Any]


class Described:
    """What a settings class says of its keys, as its JSON schema has it."""

    def __init__(self, settings: type[BaseModel]):
        self.schema = settings.model_json_schema()
        self.definitions: Schema = self.schema.get("$defs", {})

    def row(self, key: str, schema: Schema, required: bool) -> str:
        default = "required" if required else code(schema.get("default"))
        return f"| `{key}` | {self.values(schema)} | {default} | {cell(schema.get('description', ''))} |\n"

    def values(self, schema: Schema) -> str:
        """What may be written, in words."""
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
        """The sections that a value may be, by the name that tells them apart ("" for a single one)."""
        if "$ref" in schema:
            found = self.definitions[schema["$ref"].rpartition("/")[2]]
            return [(tag(found), found)]
        if "properties" in schema:
            # A class of the user's own, of which only the key that names it is known.
            return [("", schema)]
        return [one for part in schema.get("anyOf", schema.get("oneOf", [])) for one in self.sections(part)]

    def table(self, schema: Schema, prefix: str = "", keys: set[str] | None = None) -> str:
        """Rows of all keys, those of nested sections too. keys: only these."""
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
                # Its defaults are those of its keys, which follow.
                yield f"| `{prefix}{name}` | a section | | {cell(field.get('description', ''))} |\n"
            for _, section in inner if len(inner) == 1 else []:
                yield from self._rows(section, f"{prefix}{name}.", None)
            for _, section in self.sections(entries(field)):
                yield from self._rows(section, f"{prefix}{name}.NAME.", None)


def tag(section: Schema) -> str:
    """By what name or kind a section is chosen."""
    for key in ("name", "kind"):
        chosen = section["properties"].get(key, {})
        if "const" in chosen:
            return str(chosen["const"])
    return ""


def entries(schema: Schema) -> Schema:
    """What a mapping from names has under each name; of anything else, nothing."""
    found = schema.get("additionalProperties")
    return found if isinstance(found, dict) else {}


def code(value: Any) -> str:
    """A value as YAML has it."""
    return f"`{json.dumps(value, ensure_ascii=False)}`".replace('"', "").replace("|", "\\|")


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def limits(schema: Schema) -> str:
    """What a number is bounded by, unless that is what a computer can count to."""
    found = [f"{sign} {schema[bound]:g}" for bound, sign in BOUNDS.items() if abs(schema.get(bound, 1e18)) < 1e18]
    return f" {', '.join(found)}" if found else ""


def hyperparameters(name: str) -> str:
    """An algorithm's own hyperparameters, and, folded away, those that it shares with others."""
    algorithm = algorithm_class(name)
    described = Described(algorithm.Hyper)
    keys = set(described.schema["properties"]) - {"name"}
    homes = {key: _home(algorithm.Hyper, key) for key in keys}
    own = {key for key, home in homes.items() if home == algorithm.__module__}
    text = described.table(described.schema, keys=own) if own else ""
    if shared := keys - own:
        folded = described.table(described.schema, keys=shared)
        title = "Hyperparameters that it shares with others" if own else "Hyperparameters, all shared with others"
        text += f'\n??? note "{title}"\n\n' + indented(folded)
    return text


def _home(settings: type[BaseModel], key: str) -> str:
    """The module of the class that says last what a key is."""
    return next(kind.__module__ for kind in settings.__mro__ if key in vars(kind).get("__annotations__", {}))


def indented(text: str) -> str:
    return "".join(f"    {line}" if line.strip() else line for line in text.splitlines(keepends=True))


def _chapter(described: Described, key: str, schema: Schema, depth: int) -> str:
    """A section of the file under its own heading; where there is a choice, one heading for each."""
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
    """The whole experiment file."""
    described = Described(Experiment)
    top = described.schema["properties"]
    plain = {name for name, field in top.items() if not described.sections(field) and name != "algorithm"}
    text = f"## The file itself\n\n{described.table(described.schema, keys=plain)}\n"
    task = Described(TaskConfig)
    text += "## `task`\n\n" + cell(task.schema["description"]) + "\n\n"
    for name, field in task.schema["properties"].items():
        text += _chapter(task, f"task.{name}", field, 3)
    text += "## `algorithm`\n\n`name`, and [that algorithm's](../algorithms/index.md) hyperparameters.\n\n"
    text += _chapter(described, "aggregation", top["aggregation"], 2)
    aggregation = Described(AggregationConfig)
    text += _chapter(aggregation, "aggregation.rule", aggregation.schema["properties"]["rule"], 3)
    text += _chapter(described, "transforms", {**top["transforms"], **top["transforms"]["items"]}, 2)
    text += _chapter(described, "objective", top["objective"], 2)
    text += _chapter(described, "simulation", top["simulation"], 2)
    simulation = Described(Simulation)
    for name in ("speed", "availability"):
        text += _chapter(simulation, f"simulation.{name}", simulation.schema["properties"][name], 3)
    for name in ("evaluation", "resources", "engine", "checkpoints", "tracking"):
        text += _chapter(described, name, top[name], 2)
    search = Described(search_file())
    text += _chapter(search, "search", search.schema["properties"]["search"], 2)
    values = Described(Dimension)
    text += "### A key of `search.space`\n\n" + paragraphs(values.schema["description"]) + "\n\n"
    return text + values.table(values.schema)


def paragraphs(docstring: str) -> str:
    """A docstring as Markdown: what is no Markdown in it stays as it is written."""
    return docstring.replace("*", "\\*").replace("<", "&lt;")
