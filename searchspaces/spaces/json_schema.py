"""The JSON schema of experiment files, so that editors complete and check them: made of the models that read them."""

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
from hedgerow.platform.common.errors import UserError
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
    """The JSON schema (draft 2020-12) of experiment files, with their `search` section.

    own: dotted paths of algorithms of one's own; the keys of those that are not named are taken as they come. What only
    shows from several keys together, such as an algorithm that needs a stream, is left to the loader. Raises UserError.
    """
    sections: Any = tuple(_section(name, algorithm_class(name, "--algorithm")) for name in [*ALGORITHMS, *own])
    algorithm: Any = Annotated[
        _union(sections), Field(discriminator="name", description="how it is learnt: the method and its settings")
    ]
    file = create_model(
        "ExperimentFile",
        __base__=Experiment[algorithm],
        search=(
            any_search() | None,
            Field(None, description="what `hedgerow search` tries; a plain run leaves it out"),
        ),
    )
    schema = _tidy(file.model_json_schema())
    kinds, properties = schema["$defs"], schema["properties"]
    for section in kinds.values():
        # A section that is chosen by its name is nothing without it, though each class knows its own by heart.
        tags = [key for key in ("name", "kind") if "const" in section.get("properties", {}).get(key, {})]
        section["required"] = list(dict.fromkeys([*tags, *section.get("required", [])]))
    kinds["HedgeSearch"]["required"].remove("kind")
    kinds["CustomModel"]["properties"]["name"]["pattern"] = DOTTED
    properties["algorithm"]["oneOf"].append(_unknown(list(own)))
    _search(kinds)
    del properties["search"]["default"]
    told = "An experiment of Hedgerow: task, algorithm, rounds, resources, tracking; and what a search tries."
    return {"$schema": DIALECT, "title": "Hedgerow experiment", **schema, "description": told}


def write_schema(file: Path | None, own: Sequence[str]) -> None:
    """Write the schema into a file, or print it. Raises UserError."""
    text = json.dumps(experiment_schema(own), indent=1, ensure_ascii=False)
    if file is None:
        click.echo(text)
        return
    try:
        file.write_text(f"{text}\n", encoding="utf-8")
    except OSError as error:
        raise UserError(f"--output: {file} cannot be written ({error.strerror}); name another file") from None
    click.echo(f"schema: {file}")


def _section(name: str, algorithm: type[Algorithm]) -> type[HyperParameters]:
    """An algorithm's hyperparameters under the name that selects them, and with what the algorithm is."""
    where = source(algorithm)
    return create_model(
        "algorithm_" + re.sub(r"\W", "_", name),
        __base__=algorithm.Hyper,
        __doc__=f"{where} {said(algorithm)}".strip(),
        name=(Literal[name], Field(description=where)),  # type: ignore[arg-type]
    )


def _union(kinds: tuple[Any, ...]) -> Any:
    found = kinds[0]
    for kind in kinds[1:]:
        found = found | kind
    return found


def _unknown(own: list[str]) -> SchemaNode:
    """An algorithm of the user's own, of which nothing is known."""
    name = {"type": "string", "pattern": DOTTED, "not": {"enum": own}}
    told = "An algorithm of your own: `name` is the dotted path of its class."
    return {"type": "object", "description": told, "properties": {"name": name}, "required": ["name"]}


def _search(kinds: SchemaNode) -> None:
    """What the loader takes of a search before pydantic sees it: lists, names of spaces, and YAML's `off`."""
    entry = kinds["Dimension"]
    entry["oneOf"] = [{"required": [form], "properties": {form: {"not": {"type": "null"}}}} for form in FORMS]
    every = {"type": "array", "minItems": 1, "description": "every one of these values"}
    kinds["Dimension"] = {"anyOf": [every, entry]}
    keys = "|".join(map(re.escape, SEARCHABLE))
    for section in kinds.values():
        properties = section.get("properties", {})
        if "space" in properties:
            space = properties["space"]
            given = {
                "type": "object",
                "minProperties": 1,
                "propertyNames": {"pattern": rf"^({keys})(\..+)?$"},
                "additionalProperties": space["additionalProperties"],
            }
            named = {"enum": sorted(named_spaces())}
            properties["space"] = {"anyOf": [given, named], "description": space["description"]}
            properties["pack"]["anyOf"].append({"const": False})


def _tidy(node: Any, names: bool = False) -> Any:
    """Without the titles that only repeat keys, and without `discriminator`, which JSON Schema does not have.

    names: the keys of `node` are the user's, and none of the schema's own.
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
