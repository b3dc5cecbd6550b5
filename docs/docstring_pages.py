"""Reference pages of Python modules and of commands, from their docstrings."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click

from hedgerow.cli import main

ROOT = Path(__file__).parent.parent

Definition = ast.ClassDef | ast.FunctionDef
Documented = Definition | ast.Assign | ast.AnnAssign

KEY = re.compile(r"[\w\\, ]+: ")
WIDTH = 90


def module(path: str, *names: str) -> str:
    """Reference of a module: its docstring, and those of the named classes and functions, or of all without names."""
    tree = ast.parse((ROOT / path).read_text())
    text = f"## `hedgerow.{path.removesuffix('.py').replace('/', '.')}`\n\n{prose(ast.get_docstring(tree))}\n\n"
    for node, doc in _documented(tree):
        if not names or _name(node) in names:
            text += f"### `{_name(node)}`\n\n```python\n{_signature(node)}\n```\n\n{prose(doc)}\n\n"
            if isinstance(node, ast.ClassDef):
                text += "".join(_members(node))
    return text


def _documented(body: ast.Module | ast.ClassDef) -> Iterator[tuple[Documented, str]]:
    """Public definitions, and assignments that are followed by a string."""
    for node, after in zip(body.body, [*body.body[1:], None], strict=True):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            doc = ast.get_docstring(node)
            if doc and not node.name.startswith("_"):
                yield node, doc
        elif isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(after, ast.Expr):
            value = after.value
            if isinstance(value, ast.Constant) and isinstance(value.value, str) and not _name(node).startswith("_"):
                yield node, value.value


def _members(kind: ast.ClassDef) -> Iterator[str]:
    for node, doc in _documented(kind):
        yield f"`{_signature(node)}`\n:   {' '.join(prose(doc).split())}\n\n"


def _name(node: Documented) -> str:
    if isinstance(node, Definition):
        return node.name
    return ast.unparse(node.target if isinstance(node, ast.AnnAssign) else node.targets[0])


def _signature(node: Documented) -> str:
    if isinstance(node, ast.ClassDef):
        bases = ", ".join(ast.unparse(base) for base in node.bases)
        # Fields without a docstring.
        members = [member for member, _ in _documented(node)]
        fields = [one for one in node.body if isinstance(one, ast.AnnAssign) and one not in members]
        lines = [f"class {node.name}({bases})" if bases else f"class {node.name}", *map(ast.unparse, fields)]
        return "\n    ".join(lines)
    if isinstance(node, ast.FunctionDef):
        result = f" -> {ast.unparse(node.returns)}" if node.returns else ""
        if "property" in (ast.unparse(one) for one in node.decorator_list):
            return f"{node.name}{result}"
        line = f"{node.name}({ast.unparse(node.args)}){result}"
        if len(line) <= WIDTH or ast.unparse(node.args).startswith("self"):
            return line
        arguments = re.sub(r", (?=\w+: )", ",\n    ", ast.unparse(node.args))
        return f"{node.name}(\n    {arguments},\n){result}"
    return ast.unparse(node)


def prose(docstring: str | None) -> str:
    """A docstring as Markdown. Lines of the form `key: ...` start on a new line."""
    lines = (docstring or "").replace("*", "\\*").replace("<", "&lt;").replace("_", "\\_").splitlines()
    return "\n".join(
        f"{line}  " if line and KEY.match(after) else line for line, after in zip(lines, [*lines[1:], ""], strict=False)
    )


def _every(group: click.Group, before: str = "") -> Iterator[tuple[str, click.Command]]:
    """All commands; commands of groups are named by two words."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from _every(command, f"{before}{name} ")
        else:
            yield f"{before}{name}", command


def commands() -> str:
    """Every command with its options."""
    text = ""
    for name, command in _every(main):
        context = click.Context(command, info_name=f"hedgerow {name}")
        about, _, example = (command.help or "").partition("Example: ")
        usage = " ".join(command.collect_usage_pieces(context))
        text += f"## `hedgerow {name}`\n\n```text\nhedgerow {name} {usage}\n```\n\n{prose(about.strip())}\n\n"
        if example:
            text += f"```bash\n{' '.join(example.split())}\n```\n\n"
        rows = [
            record for p in command.params if isinstance(p, click.Option) and (record := p.get_help_record(context))
        ]
        if rows:
            text += "| option | |\n|---|---|\n"
            text += "".join(f"| `{one}` | {prose(what).strip()} |\n".replace("\n ", " ") for one, what in rows) + "\n"
    return text
