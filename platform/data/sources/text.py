"""Text as next-character samples: Shakespeare by role, or any text file, split by role or by block."""

import re
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field

from hedgerow.algorithms.core.measures import Targets
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.data.dataset import Dataset
from hedgerow.platform.data.sources.client_files import Fields, joined, part_files, read_clients, text_of
from hedgerow.platform.data.sources.source import Source

LETTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""LEAF's 80 characters, in LEAF's order (models/utils/language_utils.py)."""

LENGTH = 80
"""Characters per sample, as LEAF cuts the text."""

_SPEAKER = re.compile(r"(?:^|\n\n+)([^\n:]{1,60}):\n")

Pair = tuple[np.ndarray, np.ndarray]
"""Samples (n, length) uint8 and the characters that follow them, int64 (n,), or at every position (n, length)."""


class CharacterSource(Source):
    """Text as samples of characters, labelled with the next character. `kind: natural` gives each client one role."""

    clients: int = Field(100, ge=1, description="number of roles (or blocks), drawn from those with enough text")
    samples: int = Field(2000, ge=1, description="maximum number of training samples per role")
    test_samples: int = Field(400, ge=1, description="maximum number of test samples per role")
    seed: int = Field(0, ge=0, description="seed of the choice of roles; independent of the experiment's own seed")


# ---- LEAF ------------------------------------------------------------------------------------------------------------


class LeafShakespeare(CharacterSource):
    """Shakespeare as LEAF prepares it (Caldas et al. 2018), for prediction of the next of 80 characters.

    `kind: natural` gives each client one role, with the role's own test samples.

    LEAF's train/*.json and test/*.json (validation/*.json is used if it exists), or shakespeare_train.h5 and
    shakespeare_test.h5 of TensorFlow Federated, whose snippets are joined and cut in the same way. The FedDyn
    experiments use 100 roles with up to 2000 samples each.
    """

    path: str = Field("shakespeare", min_length=1, description="folder of the files, relative to the data root")

    def files(self, root: Path) -> list[Path]:
        return [file for files in part_files(root / self.path, "shakespeare").values() for file in files]

    def load(self, root: Path) -> Dataset:
        """Reads up to `samples` and `test_samples` of each selected role, in the order of the file."""
        folder = root / self.path
        files = part_files(folder, "shakespeare")
        users = {part: read_clients(of_part, _samples) for part, of_part in files.items()}
        table = np.full(0x110000, len(LETTERS) - 1, np.uint8)
        # A character outside the 80 becomes the last one, as in LEAF's own one-hot vectors.
        table[[ord(letter) for letter in LETTERS]] = np.arange(len(LETTERS))
        roles = [role for role, (x, _) in users["train"].items() if x and users["test"].get(role, ([], []))[0]]
        sizes = np.array([len(users["train"][role][0]) for role in roles], dtype=int)
        selection = [roles[i] for i in _chosen(sizes, self.clients, self.samples, self.seed, folder, "roles")]
        lengths = {len(x) for part in users.values() for role in selection for x in part.get(role, ([],))[0]}
        if len(lengths) != 1 or 0 in lengths:
            raise UserError(
                f"task.data.path: the samples in {folder} do not all have the same length; download it again"
            )
        limits = {"train": self.samples, "validation": self.test_samples, "test": self.test_samples}
        parts = {
            part: {
                role: _leaf_pair(roles[role], limits[part], table) for role in selection if roles.get(role, ([],))[0]
            }
            for part, roles in users.items()
        }
        return _of_characters("shakespeare", LETTERS, joined(parts, selection))


def _samples(fields: Fields) -> tuple[list[str], list[str]]:
    """A role's strings and the letters that follow them: x and y of LEAF, or windows of the role's text."""
    if "snippets" in fields:
        text = "\n".join(text_of(fields["snippets"]))
        ends = range(LENGTH, len(text))
        return [text[end - LENGTH : end] for end in ends], [text[end] for end in ends]
    x, y = fields["x"], fields["y"]
    if not all(isinstance(text, str) for text in (*x, *y)) or any(len(text) != 1 for text in y):
        raise ValueError("has `x` and `y` that are not strings with one letter for each")
    return x, y


def _leaf_pair(user: tuple[list[str], list[str]], limit: int, table: np.ndarray) -> Pair:
    x = np.array([[ord(letter) for letter in text] for text in user[0][:limit]])
    return table[x], table[[ord(letter) for letter in user[1][:limit]]].astype(np.int64)


# ---- any text --------------------------------------------------------------------------------------------------------


class TextFile(CharacterSource):
    """Any UTF-8 text file: a play split by its speakers (paragraphs that begin with "NAME:"), or a text split into
    blocks."""

    path: str = Field(
        min_length=1,
        description="text file, absolute or relative to the experiment file, the working directory or the data root",
    )
    by: Literal["speaker", "block"] = Field("speaker", description="roles: speakers with their words, or equal blocks")
    length: int = Field(80, ge=1, description="characters per sample")
    stride: int = Field(1, ge=1, description="characters from the start of one sample to the start of the next")
    predict: Literal["last", "all"] = Field(
        "last",
        description="last: a sample's target is the character after it; all: the next character at every position, for "
        "`task.loss: next_token`",
    )

    def files(self, root: Path) -> list[Path]:
        file = root / self.path
        if not file.is_file():
            raise UserError(f"task.data.path: there is no file {file.absolute()}; give the text, or --data-root")
        return [file]

    def load(self, root: Path) -> Dataset:
        """Windows of `length` characters and the next character; the last windows of a role are for testing.

        Windows between the two parts, which would overlap both, are left out.
        """
        file = root / self.path
        try:
            text = file.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError:
            raise UserError(f"task.data.path: {file} is not UTF-8 text; save it as UTF-8") from None
        letters = "".join(sorted(set(text)))
        if not 2 <= len(letters) <= 256:
            raise UserError(
                f"task.data.path: {file} has {len(letters)} different characters; from 2 to 256 are supported"
            )
        table = np.zeros(max(map(ord, letters)) + 1, np.uint8)
        table[[ord(letter) for letter in letters]] = np.arange(len(letters))
        parts = speakers(text) if self.by == "speaker" else _blocks(text, self.clients)
        # A role with too few windows for one in each part is left out.
        parts = {name: part for name, part in parts.items() if _windows(len(part), self) >= _gap(self) + 2}
        sizes = np.array([len(part) for part in parts.values()], dtype=int)
        needed = (self.samples + self.test_samples) * self.stride + 2 * self.length
        selection = _chosen(sizes, self.clients, needed, self.seed, file, f"{self.by}s with enough text")
        names = list(parts)
        pairs = [_split(table[[ord(letter) for letter in parts[names[i]]]], self) for i in selection]
        return _dataset(file.stem, [train for train, _ in pairs], [test for _, test in pairs], letters)


def speakers(text: str) -> dict[str, str]:
    """Words of each speaker of a play, in order: paragraphs that begin with a line "NAME:"."""
    words: dict[str, list[str]] = {}
    pieces = _SPEAKER.split(text)
    for name, speech in zip(pieces[1::2], pieces[2::2], strict=True):
        words.setdefault(name, []).append(speech.strip("\n") + "\n")
    return {name: "".join(speeches) for name, speeches in words.items()}


def _blocks(text: str, count: int) -> dict[str, str]:
    edges = np.linspace(0, len(text), count + 1).astype(int)
    return {str(i): text[start:end] for i, (start, end) in enumerate(pairwise(edges))}


def _windows(characters: int, config: TextFile) -> int:
    return max(0, -(-(characters - config.length) // config.stride))


def _gap(config: TextFile) -> int:
    """Number of windows between the two parts, which would overlap both."""
    return -(-config.length // config.stride)


def _split(tokens: np.ndarray, config: TextFile) -> tuple[Pair, Pair]:
    windows = np.lib.stride_tricks.sliding_window_view(tokens, config.length + 1)[:: config.stride]
    gap = _gap(config)
    windows = windows[: config.samples + gap + config.test_samples]
    room = len(windows) - gap
    test = min(max(1, round(config.test_samples / (config.samples + config.test_samples) * room)), room - 1)
    return _pair(windows[: room - test], config.predict), _pair(windows[len(windows) - test :], config.predict)


def _pair(windows: np.ndarray, predict: str) -> Pair:
    following = windows[:, -1] if predict == "last" else windows[:, 1:]
    return windows[:, :-1].copy(), following.astype(np.int64)


# ---- both ------------------------------------------------------------------------------------------------------------


def _chosen(sizes: np.ndarray, wanted: int, enough: int, seed: int, place: Path, what: str) -> list[int]:
    """Ascending indices of roles drawn from those with enough text; if these are too few, of the largest roles."""
    if wanted > len(sizes):
        raise UserError(f"task.data.clients: {place} has {len(sizes)} {what}, not {wanted}; lower it")
    large = np.flatnonzero(sizes >= enough)
    if len(large) >= wanted:
        return sorted(np.random.default_rng([seed, 61]).choice(large, wanted, replace=False).tolist())
    return sorted(np.argsort(-sizes, kind="stable")[:wanted].tolist())


def _dataset(name: str, train: list[Pair], test: list[Pair], letters: str) -> Dataset:
    x, y, x_test, y_test = (np.concatenate([pair[i] for pair in part]) for part in (train, test) for i in (0, 1))
    owners = np.repeat(np.arange(len(train)), [len(labels) for _, labels in train])
    arrays = {"x_train": x, "y_train": y, "x_test": x_test, "y_test": y_test, "train_clients": owners}
    return _of_characters(name, letters, arrays)


def _of_characters(name: str, letters: str, arrays: dict[str, Any]) -> Dataset:
    zero, one = np.zeros(1, np.float32), np.ones(1, np.float32)
    # An unescaped line break would break rows of tables.
    names = tuple(repr(letter)[1:-1] for letter in letters)
    targets: Targets = "classes" if arrays["y_train"].ndim == 1 else "tokens"
    return Dataset(
        name,
        classes=len(letters),
        mean=zero,
        std=one,
        class_names=names,
        is_tokens=True,
        targets=targets,
        input_names=names,
        **arrays,
    )
