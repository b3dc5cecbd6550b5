"""The teacher's outputs on the training samples, computed once for all rounds."""

import torch
from torch import Tensor

from hedgerow.algorithms.core.client_data import Batch, ClientData, UnknownStreamError
from hedgerow.algorithms.core.task import Params, Task
from hedgerow.algorithms.nn.features import Features, extract_features

STREAM = "teacher"
"""Stream of all samples in a fixed order, declared by every exchange whose step calls `TeacherOutputs.prepare`."""

MOST = 2**27
"""Maximum number of bytes of the outputs that are kept."""


class TeacherOutputs:
    """Outputs of a fixed teacher, in evaluation mode, on the training samples.

    They are kept if samples are not augmented, if a step reads each sample at least once on average, and if they have
    at most `MOST` bytes. Otherwise, and for batched clients, those of each mini-batch are computed when it is read.
    Kept outputs are computed in batches of fixed members, so that their bits do not depend on the round.

    with_maps: whether the teacher's feature maps are read, too. The methods receive the task with the teacher as its
    model, on the device of the samples.
    """

    def __init__(self, with_maps: bool):
        self._with_maps = with_maps
        self._teacher: Params = {}
        self._x: Tensor | None = None
        self._kept: list[Tensor] = []
        self._positions = torch.zeros(0, dtype=torch.long)

    def prepare(self, task: Task, teacher: Params, data: ClientData) -> None:
        """Compute the outputs on the samples of a step, unless they are known or not to be kept."""
        if data.batched:
            return
        if STREAM not in data.streams:
            raise UnknownStreamError(STREAM)
        rows, *read = (indices[mask] for indices, mask in (data.streams[STREAM], *data.streams.values()))
        is_known = data.x is self._x and bool((self._positions[rows] >= 0).all())
        if not is_known or not all(torch.equal(p, self._teacher[name]) for name, p in teacher.items()):
            self._positions = torch.full((len(data.x),), -1, device=rows.device)
            self._positions[rows] = torch.arange(len(rows), device=rows.device)
            is_complete = all((self._positions[some] >= 0).all() for some in read)
            # The stream of all samples is one of them.
            is_worth_it = sum(map(len, read)) >= 2 * len(rows)
            self._kept = self._of_all(task, teacher, data) if is_complete and is_worth_it and not data.keys else []
        self._teacher, self._x = teacher, data.x

    def _of_all(self, task: Task, teacher: Params, data: ClientData) -> list[Tensor]:
        samples = int(data.streams[STREAM][1].sum())
        parts: list[list[Tensor]] = []
        for batch in data.batches(STREAM):
            parts.append(self._computed(task, teacher, batch))
            if samples * sum(part[0].nbytes for part in parts[0]) > MOST:
                return []
        return [torch.cat(part) for part in zip(*parts, strict=True)]

    def on(self, task: Task, teacher: Params, batch: Batch) -> Features:
        """Outputs on a mini-batch; of the step that called `prepare`, if it did with this teacher."""
        if self._kept and teacher is self._teacher:
            assert batch.rows is not None
            places = self._positions[batch.rows]
            outputs = [kept.index_select(0, places) for kept in self._kept]
        else:
            outputs = self._computed(task, teacher, batch)
        *maps, features, logits = outputs
        return Features(maps, features, logits)

    def _computed(self, task: Task, teacher: Params, batch: Batch) -> list[Tensor]:
        with torch.no_grad():
            outputs = extract_features(task, teacher, batch.x)
        return [*(outputs.maps if self._with_maps else ()), outputs.features, outputs.logits]
