"""Stack Overflow: questions and answers by user, as TensorFlow Federated has them, for next-word prediction."""

from collections import Counter
from pathlib import Path

import numpy as np
from pydantic import Field

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.data.dataset import Dataset
from hedgerow.platform.data.sources.client_files import (
    Fields,
    client_names,
    joined,
    part_files,
    read_clients,
    text_of,
)
from hedgerow.platform.data.sources.source import Seed, Source

PAD, OTHER, BEGIN = range(3)
SPECIAL = ("<pad>", "<other>", "<begin>")
"""Tokens that are not words of the vocabulary, and never labels."""


class StackOverflow(Source):
    """Posts of Stack Overflow by user, for prediction of the next word (Reddi et al. 2021).

    `kind: natural` gives each client one user, with the user's own test samples.
    stackoverflow_train.h5 and stackoverflow_test.h5 of TensorFlow Federated. Each word of the vocabulary is one sample:
    the `length` words before it in its sentence, padded on the left.
    """

    path: str = Field("stackoverflow", min_length=1, description="folder of the files, relative to the data root")
    clients: int = Field(100, ge=1, description="number of users, drawn from those with training and test sentences")
    vocabulary: int = Field(
        10000, ge=2, description="number of words: the most frequent ones of the selected users' training sentences"
    )
    length: int = Field(20, ge=1, description="words per sample")
    samples: int = Field(2000, ge=1, description="maximum number of training samples per user")
    test_samples: int = Field(400, ge=1, description="maximum number of test samples per user")
    seed: Seed = 0

    def files(self, root: Path) -> list[Path]:
        return [file for files in part_files(root / self.path, "stackoverflow").values() for file in files]

    def load(self, root: Path) -> Dataset:
        """Reads the first samples of each selected user, in the order of the file."""
        folder = root / self.path
        files = part_files(folder, "stackoverflow")
        if any(file.suffix != ".h5" for part in files.values() for file in part):
            raise UserError(
                f"task.data.path: {folder} has JSON files, and Stack Overflow is read from stackoverflow_train.h5 and "
                "stackoverflow_test.h5; set the folder of these files"
            )
        names = {part: client_names(one) for part, (one,) in files.items()}
        both = sorted(set(names["train"]) & set(names["test"]))
        if self.clients > len(both):
            raise UserError(
                f"task.data.clients: {folder} has {len(both)} users with training and test samples, not "
                f"{self.clients}; lower it"
            )
        chosen = np.random.default_rng([self.seed, 61]).choice(len(both), self.clients, replace=False)
        users = [both[i] for i in np.sort(chosen)]
        sentences = {part: read_clients(files[part], _sentences, lambda _: set(users)) for part in ("train", "test")}
        counts = Counter(word for words in sentences["train"].values() for sentence in words for word in sentence)
        if len(counts) < 2:
            raise UserError(f"task.data.path: the users of {folder} have fewer than 2 words; raise task.data.clients")
        ranked = sorted(counts, key=lambda word: (-counts[word], word))[: self.vocabulary]
        ids = {word: number for number, word in enumerate(ranked, len(SPECIAL))}
        limits = {"train": self.samples, "test": self.test_samples}
        parts = {
            part: {user: _windows(sentences[part][user], ids, self.length, limit) for user in users}
            for part, limit in limits.items()
        }
        empty = [user for user in users if not len(parts["train"][user][1])]
        if empty or not any(len(y) for _, y in parts["test"].values()):
            raise UserError(
                f"task.data.vocabulary: user {empty[0] if empty else users[0]!r} in {folder} has no sample whose word "
                f"is one of the {len(ids)} most frequent; raise it"
            )
        zero, one = np.zeros(1, np.float32), np.ones(1, np.float32)
        names_ = (*SPECIAL, *ranked)
        return Dataset(
            "stackoverflow",
            classes=len(names_),
            mean=zero,
            std=one,
            class_names=names_,
            input_names=names_,
            is_tokens=True,
            **joined(parts, users),
        )


def _sentences(fields: Fields) -> list[list[str]]:
    return [text.split() for text in text_of(fields["tokens"])]


def _windows(sentences: list[list[str]], ids: dict[str, int], length: int, limit: int) -> tuple[np.ndarray, np.ndarray]:
    """Samples (n, length) int32 and the words that follow, up to `limit`."""
    xs: list[list[int]] = []
    ys: list[int] = []
    for sentence in sentences:
        tokens = [BEGIN, *(ids.get(word, OTHER) for word in sentence)]
        for end in range(1, len(tokens)):
            if tokens[end] != OTHER and len(ys) < limit:
                before = tokens[max(0, end - length) : end]
                xs.append([PAD] * (length - len(before)) + before)
                ys.append(tokens[end])
    return np.array(xs, np.int32).reshape(-1, length), np.array(ys, np.int64)
