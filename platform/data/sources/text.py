"""Text as next-character samples: LEAF's Shakespeare, or any text file, by role or by block."""

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.data.dataset import Dataset
from hedgerow.platform.data.sources.source import Source

LETTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""LEAF's 80 characters, in its order (models/utils/language_utils.py)."""

_SPEAKER = re.compile(r"(?:^|\n\n+)([^\n:]{1,60}):\n")

Pair = tuple[np.ndarray, np.ndarray]
"""Samples (n, length) uint8 and the characters that follow them (n,) int64."""


class CharacterSource(Source):
    """Text as samples of characters with the one that follows. `kind: natural` gives each client one role."""

    clients: int = Field(100, ge=1, description="roles (or blocks) to keep: drawn from those with enough text")
    samples: int = Field(2000, ge=1, description="training samples of a role, at most")
    test_samples: int = Field(400, ge=1, description="test samples of a role, at most")
    seed: int = Field(0, ge=0, description="draws the roles; the experiment's own seed does not change them")


# ---- LEAF ------------------------------------------------------------------------------------------------------------


class LeafShakespeare(CharacterSource):
    """Shakespeare as LEAF prepares it (Caldas et al. 2018): 80 characters, the next one of 80 is to be told.

    The FedDyn experiments keep 100 roles with up to 2000 samples each.
    """

    path: str = Field("shakespeare", min_length=1, description="LEAF's folder of train/ and test/, under the data root")

    def files(self, root: Path) -> list[Path]:
        return leaf_files(root / self.path)

    def load(self, root: Path) -> Dataset:
        """Up to `samples` and `test_samples` of each chosen role, in LEAF's order."""
        folder = root / self.path
        users: dict[str, dict[str, tuple[list[str], list[str]]]] = {"train": {}, "test": {}}
        for file in leaf_files(folder):
            try:
                content = json.loads(file.read_text(encoding="utf-8"))["user_data"]
                users[file.parent.name] |= {role: _samples(user) for role, user in content.items()}
            except (ValueError, KeyError, TypeError, AttributeError):
                raise UserError(f"task.data.path: {file} is not one of LEAF's JSON files; fetch it again") from None
        table = np.full(0x110000, len(LETTERS) - 1, np.uint8)
        # A character that is none of the 80 becomes the last one, as in LEAF's own one-hot vectors.
        table[[ord(letter) for letter in LETTERS]] = np.arange(len(LETTERS))
        roles = [role for role, (x, _) in users["train"].items() if x and users["test"].get(role, ([], []))[0]]
        sizes = np.array([len(users["train"][role][0]) for role in roles], dtype=int)
        chosen = [roles[i] for i in _chosen(sizes, self.clients, self.samples, self.seed, folder, "roles")]
        lengths = {len(x) for part in users.values() for role in chosen for x in part[role][0]}
        if len(lengths) != 1 or 0 in lengths:
            raise UserError(f"task.data.path: the samples in {folder} are not of one length; fetch it again")
        train = [_leaf_pair(users["train"][role], self.samples, table) for role in chosen]
        test = [_leaf_pair(users["test"][role], self.test_samples, table) for role in chosen]
        return _dataset("shakespeare", train, test, LETTERS)


def leaf_files(folder: Path) -> list[Path]:
    """The JSON files of LEAF's train/ and test/ folders. Raises UserError when one of them has none."""
    found = [sorted((folder / part).glob("*.json")) for part in ("train", "test")]
    if not all(found):
        raise UserError(
            f"task.data: no LEAF files in {folder.absolute()}: it should hold train/*.json and test/*.json, as LEAF's "
            "preprocess.sh writes them under data/shakespeare/data; name the right folder with --data-root and "
            "task.data.path"
        )
    return [file for files in found for file in files]


def _samples(user: dict[str, list[str]]) -> tuple[list[str], list[str]]:
    """A role's strings and the letters that follow them. Raises what a file that is not LEAF's may raise."""
    x, y = user["x"], user["y"]
    if len(x) != len(y) or not all(isinstance(text, str) for text in (*x, *y)) or any(len(text) != 1 for text in y):
        raise ValueError("not as many letters as strings")
    return x, y


def _leaf_pair(user: tuple[list[str], list[str]], limit: int, table: np.ndarray) -> Pair:
    x = np.array([[ord(letter) for letter in text] for text in user[0][:limit]])
    return table[x], table[[ord(letter) for letter in user[1][:limit]]].astype(np.int64)


# ---- any text --------------------------------------------------------------------------------------------------------


class TextFile(CharacterSource):
    """Any text file in UTF-8: a play cut by its speakers (paragraphs that begin with "NAME:"), or a text in blocks."""

    path: str = Field(min_length=1, description="the file, absolute or under the data root")
    by: Literal["speaker", "block"] = Field(
        "speaker", description="who has what: speakers their words, or equal blocks"
    )
    length: int = Field(80, ge=1, description="characters of a sample")
    stride: int = Field(1, ge=1, description="characters from one sample to the next")

    def files(self, root: Path) -> list[Path]:
        file = root / self.path
        if not file.is_file():
            raise UserError(f"task.data.path: there is no file {file.absolute()}; give the text, or --data-root")
        return [file]

    def load(self, root: Path) -> Dataset:
        """Windows of `length` characters and what follows them; a role's last ones are for testing.

        Between the two parts, windows that would overlap both are left out.
        """
        file = root / self.path
        try:
            text = file.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise UserError(f"task.data.path: {file} is not a text in UTF-8") from None
        letters = "".join(sorted(set(text)))
        if not 2 <= len(letters) <= 256:
            raise UserError(
                f"task.data.path: {file} has {len(letters)} different characters; from 2 to 256 can be learnt"
            )
        table = np.zeros(max(map(ord, letters)) + 1, np.uint8)
        table[[ord(letter) for letter in letters]] = np.arange(len(letters))
        parts = speakers(text) if self.by == "speaker" else _blocks(text, self.clients)
        # A role whose windows do not reach for one in each part is no client.
        parts = {name: part for name, part in parts.items() if _windows(len(part), self) >= _gap(self) + 2}
        sizes = np.array([len(part) for part in parts.values()], dtype=int)
        needed = (self.samples + self.test_samples) * self.stride + 2 * self.length
        chosen = _chosen(sizes, self.clients, needed, self.seed, file, f"{self.by}s with enough text")
        names = list(parts)
        pairs = [_split(table[[ord(letter) for letter in parts[names[i]]]], self) for i in chosen]
        return _dataset(file.stem, [train for train, _ in pairs], [test for _, test in pairs], letters)


def speakers(text: str) -> dict[str, str]:
    """What each speaker of a play says, in order: paragraphs that begin with a line "NAME:"."""
    said: dict[str, list[str]] = {}
    pieces = _SPEAKER.split(text)
    for name, speech in zip(pieces[1::2], pieces[2::2], strict=True):
        said.setdefault(name, []).append(speech.strip("\n") + "\n")
    return {name: "".join(speeches) for name, speeches in said.items()}


def _blocks(text: str, count: int) -> dict[str, str]:
    edges = np.linspace(0, len(text), count + 1).astype(int)
    return {str(i): text[start:end] for i, (start, end) in enumerate(pairwise(edges))}


def _windows(characters: int, config: TextFile) -> int:
    return max(0, -(-(characters - config.length) // config.stride))


def _gap(config: TextFile) -> int:
    """Windows between the two parts, which would overlap both."""
    return -(-config.length // config.stride)


def _split(tokens: np.ndarray, config: TextFile) -> tuple[Pair, Pair]:
    windows = np.lib.stride_tricks.sliding_window_view(tokens, config.length + 1)[:: config.stride]
    gap = _gap(config)
    windows = windows[: config.samples + gap + config.test_samples]
    room = len(windows) - gap
    test = min(max(1, round(config.test_samples / (config.samples + config.test_samples) * room)), room - 1)
    return _pair(windows[: room - test]), _pair(windows[len(windows) - test :])


def _pair(windows: np.ndarray) -> Pair:
    return windows[:, :-1].copy(), windows[:, -1].astype(np.int64)


# ---- both ------------------------------------------------------------------------------------------------------------


def _chosen(sizes: np.ndarray, wanted: int, enough: int, seed: int, place: Path, what: str) -> list[int]:
    """Roles drawn from those that have enough; where these are too few, the largest. Ascending."""
    if wanted > len(sizes):
        raise UserError(f"task.data.clients: {place} has {len(sizes)} {what}, not {wanted}; lower it")
    large = np.flatnonzero(sizes >= enough)
    if len(large) >= wanted:
        return sorted(np.random.default_rng([seed, 61]).choice(large, wanted, replace=False).tolist())
    return sorted(np.argsort(-sizes, kind="stable")[:wanted].tolist())


def _dataset(name: str, train: list[Pair], test: list[Pair], letters: str) -> Dataset:
    x, y, x_test, y_test = (np.concatenate([pair[i] for pair in part]) for part in (train, test) for i in (0, 1))
    owners = np.repeat(np.arange(len(train)), [len(labels) for _, labels in train])
    zero, one = np.zeros(1, np.float32), np.ones(1, np.float32)
    # A line break would break the lines of tables.
    names = tuple(repr(letter)[1:-1] for letter in letters)
    return Dataset(name, x, y, x_test, y_test, len(letters), zero, one, names, owners, is_tokens=True)
