"""Converts YAML text to plain values with the place of each key, and plain values to YAML text."""

import re
from collections.abc import Callable
from itertools import chain
from typing import Any

import yaml

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.validation_errors import Keys, dotted

Lines = dict[Keys, str]
"""Path of a key -> its place, "FILE:LINE" or "--set KEY=VALUE", in the order of reading."""

REPEATED = 100_000
"""Maximum number of values that the aliases (*) of one text, including merge keys, may repeat."""

_YAML = "tag:yaml.org,2002:"
# At most 100 digits: more than any setting needs, and below the limit of Python's conversion.
_INT = re.compile(r"^[-+]?(0|[1-9][0-9_]{0,99})$")
_FLOAT = re.compile(
    r"^([-+]?([0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*|[0-9][0-9_]*(?=[eE]))([eE][-+]?[0-9]+)?"
    r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))$"
)
_SYNTAX_FIXES = {
    "'\\t'": "the indentation contains a tab; use spaces",
    "mapping values are not allowed": "a `: ` where no key is allowed; fix the indentation, or quote the text",
    "could not find expected ':'": "a line before this one has no `: `; write `key: value`",
    "expected ',' or": "a bracket is not closed, or a comma is missing; fix the list or section",
    "expected the node content": "a value is missing, or a bracket is not closed; fix the list or section",
    "unexpected end of stream": "a closing quote is missing; add it",
    "another document": "a second document begins with `---`; keep one experiment per file",
    "expected <block end>": "the indentation does not fit the lines above; align the keys of a section",
    "undefined alias": "a value that begins with `*` refers to an undefined anchor; quote it",
    "cannot start any token": "a value cannot begin with this character; quote it",
    "expected a mapping or list of mappings for merging": "`<<` needs a section as its value; add one, or remove it",
}


class _Loader(yaml.SafeLoader):
    """YAML loader without YAML's surprising types.

    PyYAML itself reads 1e-3 as text, 010 as 8, 1:30 as 90 and 2024-01-01 as a date. Tags, which create other objects,
    raise an error.
    """

    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [(tag, regexp) for tag, regexp in resolvers if tag.removeprefix(_YAML) in ("bool", "null", "merge")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_node(self, parent: Any, index: Any) -> Any:
        event: Any = self.peek_event()
        tag = getattr(event, "tag", None)
        if tag is not None:
            problem = f"{tag.replace(_YAML, '!!')} is a tag that is not allowed here; write a plain value"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)
        return super().compose_node(parent, index)


class _Dumper(yaml.SafeDumper):
    """YAML dumper that quotes text that PyYAML or `_Loader` would read as a number."""


_Loader.add_implicit_resolver(f"{_YAML}int", _INT, list("-+0123456789"))
for _class in (_Loader, _Dumper):
    _class.add_implicit_resolver(f"{_YAML}float", _FLOAT, list("-+.0123456789"))


def parse_yaml(text: str, place: Callable[[int], str], keys: Keys = ()) -> tuple[Any, Lines]:
    """Returns the value of YAML text, and the place of each of its keys.

    place: function that names a line (from 1) in messages; keys: path of the value itself. Raises UserError.
    """
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None, {keys: place(1)}
        _check_aliases(node, place)
        lines: Lines = {keys: place(node.start_mark.line + 1)}
        _note_lines(node, keys, lines, place)
        return loader.construct_document(node), lines
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = error.problem or "this is not YAML"
        fix = next((fix for part, fix in _SYNTAX_FIXES.items() if part in problem), problem)
        raise UserError(f"{place(mark.line + 1 if mark else 1)}: not valid YAML: {fix}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise UserError(f"{place(line)}: not valid YAML: an unprintable character; remove it") from None
    except (ValueError, OverflowError):
        # Raised for an escape such as "\U00110000", which PyYAML does not check.
        raise UserError(f"{place(1)}: not valid YAML: an escape (\\U) that is not a character; remove it") from None
    except RecursionError:
        raise UserError(f"{place(1)}: nested too deeply, or an alias (*) inside its own anchor (&)") from None


def _check_aliases(root: yaml.Node, place: Callable[[int], str]) -> None:
    """Raises UserError if aliases of aliases repeat more than `REPEATED` values.

    Each node is visited once, so the check is fast even if the repeated values would not fit into memory.
    """
    sizes: dict[int, int] = {}

    def size(node: yaml.Node) -> int:
        if id(node) not in sizes:
            parts = chain.from_iterable(node.value) if isinstance(node, yaml.MappingNode) else node.value
            total = 1 + (0 if isinstance(node, yaml.ScalarNode) else sum(map(size, parts)))
            sizes[id(node)] = total
            if total - len(sizes) > REPEATED:
                raise UserError(
                    f"{place(node.start_mark.line + 1)}: the aliases (*) here repeat more than {REPEATED:,} values; "
                    "write the values out, or refer to fewer"
                )
        return sizes[id(node)]

    size(root)


def _note_lines(node: yaml.Node, keys: Keys, lines: Lines, place: Callable[[int], str]) -> None:
    """Record the place of every key; refuse duplicate keys, since YAML would silently keep only the last."""
    if isinstance(node, yaml.SequenceNode):
        for index, child in enumerate(node.value):
            lines[(*keys, index)] = place(child.start_mark.line + 1)
            _note_lines(child, (*keys, index), lines, place)
    if not isinstance(node, yaml.MappingNode):
        return
    for key, child in node.value:
        here = place(key.start_mark.line + 1)
        if not isinstance(key, yaml.ScalarNode):
            raise UserError(f"{here}: a list or section cannot be a key; write `key: value`")
        if key.tag.removeprefix(_YAML) not in ("str", "merge"):
            raise UserError(f"{here}: YAML does not read the key {key.value!r} as text; put it in quotes")
        inner = (*keys, key.value)
        if inner in lines:
            raise UserError(f"{here}: {dotted(inner)} is given twice; remove one of the two")
        lines[inner] = here
        _note_lines(child, inner, lines, place)


def dump_inline(values: dict[str, Any]) -> str:
    """Returns plain values as YAML on one line, without the outer braces: `hidden: [200]`."""
    text = yaml.dump(values, Dumper=_Dumper, sort_keys=False, width=10**6, allow_unicode=True, default_flow_style=True)
    return text.strip().removeprefix("{").removesuffix("}")


def dump_values(values: dict[str, Any]) -> str:
    """Returns plain values as YAML that reads back as the same values."""
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, width=100, allow_unicode=True)
