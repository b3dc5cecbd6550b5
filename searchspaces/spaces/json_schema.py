"""JSON schema of experiment files, for completion and checks in editors; generated from the models that read them."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import click
from pydantic import Field, create_model

from hedgerow.algorithms import ALGORITHMS
from hedgerow.algorithms.core.algorithm import Algorithm
from hedgerow.algorithms.core.hyperparameters import HyperParameters
from hedgerow.platform.common.errors import unwritable
from hedgerow.platform.common.registry import DOTTED
from hedgerow.platform.config.choices import said, source
from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.config.registries import algorithm_class
from hedgerow.searchspaces.spaces.published_spaces import named_spaces
from hedgerow.searchspaces.spaces.search_file import SEARCHABLE
from hedgerow.searchspaces.spaces.search_section import FORMS, any_search

DIALECT = "https://json-schema.org/draft/2020-12/schema"
SchemaNode = dict[str, Any]


def experiment_schema(own: Sequence[str] = ()) -> SchemaNode:
    """JSON schema (draft 2020-12) of experiment files, including their `search` section.

    own: dotted paths of the user's own algorithms; the keys of algorithms that are not listed are not validated.
    Conditions on several keys, such as an algorithm that needs a stream, are left to the loader. Raises UserError.
    """
    sections: Any = tuple(_section(name, algorithm_class(name, "--algorithm")) for name in [*ALGORITHMS, *own])
    algorithm: Any = Annotated[_union(sections), Field(discriminator="name")]
    file = create_model(
        "ExperimentFile",
        __base__=Experiment,
        algorithm=(algorithm, Field(description=Experiment.model_fields["algorithm"].description)),
        search=(
            any_search() | None,
            Field(None, description="settings of `hedgerow search`; a plain run does not use them"),
        ),
    )
    schema = _tidy(file.model_json_schema())
    kinds, properties = schema["$defs"], schema["properties"]
    for section in kinds.values():
        # A section that is selected by its name requires it, although it is the default of each class.
        tags = [key for key in ("name", "kind") if "const" in section.get("properties", {}).get(key, {})]
        section["required"] = list(dict.fromkeys([*tags, *section.get("required", [])]))
    kinds["HedgeSearch"]["required"].remove("kind")
    kinds["CustomModel"]["properties"]["name"]["pattern"] = DOTTED
    properties["algorithm"]["oneOf"].append(_unknown(list(own)))
    _search(kinds)
    del properties["search"]["default"]
    properties["base"] = {"type": "string", "description": "another experiment file, whose values this file replaces"}
    # The keys that a file with a base leaves out are in its base.
    schema |= {"if": {"required": ["base"]}, "then": {}, "else": {"required": schema.pop("required")}}
    description = "An experiment of Hedgerow: task, algorithm, rounds, resources, tracking and search."
    return {"$schema": DIALECT, "title": "Hedgerow experiment", **schema, "description": description}


def write_schema(file: Path | None, own: Sequence[str]) -> None:
    """Write the schema to a file, or print it. Raises UserError."""
    text = json.dumps(experiment_schema(own), indent=1, ensure_ascii=False)
    if file is None:
        click.echo(text)
        return
    try:
        file.write_text(f"{text}\n", encoding="utf-8")
    except OSError as error:
        raise unwritable("--output", file, error) from None
    click.echo(f"schema: {file}")


def _section(name: str, algorithm: type[Algorithm]) -> type[HyperParameters]:
    """Model of an algorithm's hyperparameters, with the name that selects them and the description of the algorithm."""
    where = source(algorithm)
    return create_model(
        "algorithm_" + re.sub(r"\W", "_", name),
        __base__=algorithm.Hyper,
        __doc__=f"{where} {said(algorithm)}".strip(),
        name=(Literal[name], Field(description=where)),  # type: ignore[arg-type]
    )


def _union(kinds: tuple[Any, ...]) -> Any:
    union = kinds[0]
    for kind in kinds[1:]:
        union = union | kind
    return union


def _unknown(own: list[str]) -> SchemaNode:
    """Schema of the user's own algorithm, whose keys are unknown."""
    name = {"type": "string", "pattern": DOTTED, "not": {"enum": own}}
    description = "Your own algorithm: `name` is the dotted path of its class."
    return {"type": "object", "description": description, "properties": {"name": name}, "required": ["name"]}


def _search(kinds: SchemaNode) -> None:
    """Adds forms of a search that the loader accepts before validation: lists, names of spaces, and YAML's `off`."""
    entry = kinds["Dimension"]
    entry["oneOf"] = [{"required": [form], "properties": {form: {"not": {"type": "null"}}}} for form in FORMS]
    every = {"type": "array", "minItems": 1, "description": "try each of these values"}
    kinds["Dimension"] = {"anyOf": [every, entry]}
    keys = "|".join(map(re.escape, SEARCHABLE))
    for section in kinds.values():
        properties = section.get("properties", {})
        if "space" in properties:
            space = properties["space"]
            inline = {
                "type": "object",
                "minProperties": 1,
                "propertyNames": {"pattern": rf"^({keys})(\..+)?$"},
                "additionalProperties": space["additionalProperties"],
            }
            named = {"enum": sorted(named_spaces())}
            properties["space"] = {"anyOf": [inline, named], "description": space["description"]}
            properties["pack"]["anyOf"].append({"const": False})


def _tidy(node: Any, names: bool = False) -> Any:
    """Removes titles that only repeat keys, and `discriminator`, which is not part of JSON Schema.

    names: whether the keys of `node` are names that the schema defines, and not keywords of JSON Schema.
    """
    if isinstance(node, list):
        return [_tidy(part) for part in node]
    if not isinstance(node, dict):
        return node
    if names:
        return {key: _tidy(value) for key, value in node.items()}
    return {
        key: value if key in ("default", "const", "enum") else _tidy(value, key in ("properties", "$defs"))
        for key, value in node.items()
        if key not in ("title", "discriminator")
    }
