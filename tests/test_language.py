"""The language of the project: words that read as translated occur in no page, docstring, comment or message."""

import ast
import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from pathlib import Path

from paths import ROOT

BANNED = {
    r"lack(s|ed|ing)?": "missing, not enough",
    r"mend(s|ed|ing)?": "fix",
    r"told|tells": "reported, logged, prints, says",
    r"beside": "next to, in addition to",
    r"as good as": "almost, as well as",
    r"thereby|hereby": "so, thus",
    r"(?<!to )whom": "a sentence of its own",
    r"(?<!each )(?<!all )(?<!one )(?<!mean )of which(?! class)": "a sentence of its own",
    r"whoever|somebody|nobody": "a noun",
    r"lies?": "is, is stored",
    r"(come|comes|came) to (the|an|its|their) end": "finishes",
    r"for good": "permanently",
    r"holds? none out": "has no held-out samples",
}
"""Banned word, as a regular expression, and words to use instead."""

WORDS = {re.compile(rf"\b(?:{word})\b", re.IGNORECASE): better for word, better in BANNED.items()}

OPENING = re.compile(r"What|Who|Whom|Those|They|It")
"""Words that begin no docstring of the package: its first word is a noun or a verb."""

PACKAGE = ("algorithms/", "cluster/", "platform/", "reports/", "searchspaces/")

HERE = Path(__file__).resolve()


def tracked(*patterns: str) -> list[Path]:
    """Files of the repository."""
    done = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", *patterns],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [path for name in done.stdout.split() if (path := ROOT / name).is_file() and path != HERE]


PROSE = tracked("*.md", "*.yml", "*.yaml", "*.toml", "*.sh", "*.cff", "*.html", "*.js", "*.css", "Makefile", ".ci/run")
CODE = tracked("*.py")


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Lines of comments and strings of a Python file, with their numbers."""
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING) or tokenize.tok_name[token.type] == "FSTRING_MIDDLE":
            for number, line in enumerate(token.string.splitlines()):
                yield token.start[0] + number, line


def violations(path: Path, lines: Iterator[tuple[int, str]]) -> list[str]:
    """Banned words with their places."""
    return [
        f"{path.relative_to(ROOT)}:{number}: {found[0]!r}: {better}"
        for number, line in lines
        for word, better in WORDS.items()
        if (found := word.search(line))
    ]


def test_no_page_and_no_file_of_settings_has_a_banned_word():
    found = [one for path in PROSE for one in violations(path, enumerate(path.read_text().splitlines(), 1))]
    assert not found, "\n".join(found)


def test_no_docstring_comment_or_message_has_a_banned_word():
    found = [one for path in CODE for one in violations(path, texts(path))]
    assert not found, "\n".join(found)


def test_docstrings_begin_with_a_noun_or_a_verb():
    found = []
    for path in tracked(*(f"{folder}*.py" for folder in PACKAGE)):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            ):
                first = re.match(r"\w*", node.value.value.strip())
                if first and OPENING.fullmatch(first[0]):
                    found.append(f"{path.relative_to(ROOT)}:{node.lineno}: {first[0]}")
    assert not found, "\n".join(found)
