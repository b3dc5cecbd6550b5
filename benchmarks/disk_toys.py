"""Figure and numbers of DiSK's toy problems: losses of the students, their final models, and samples that the guide
excuses.

    python benchmarks/disk_toys.py FOLDER    # of a search by `hedgerow table disk/6.1/intervals` or disk/6.1/gaussians

Prints the numbers, and writes FOLDER/toys.png and toys.svg.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.patheffects import withStroke
from torch import Tensor
from torch.func import vmap

from hedgerow.algorithms.core.client_data import Batch
from hedgerow.algorithms.core.pytree import Tree, tree_map
from hedgerow.algorithms.distillation.disk import DiSK
from hedgerow.algorithms.distillation.student import Student
from hedgerow.algorithms.federated.central import Central
from hedgerow.algorithms.objectives.guide import excuses
from hedgerow.platform.config.loader import load_experiment
from hedgerow.platform.data.sources.toy_data import BLUE, CENTRES
from hedgerow.platform.runtime.factory import build_algorithms, build_data
from hedgerow.platform.storage.checkpoint import checkpoints, read_checkpoint
from hedgerow.platform.tracking.run_folder import RunFolder
from hedgerow.platform.ui.plotting import grid, save
from hedgerow.searchspaces.results.trials import expert_folder

POINTS = 64
"""Number of points along each axis of a surface."""

CENSORED = BLUE[0]
"""Interval of the one-dimensional toy in which the source's guide excuses samples."""

EDGED = [withStroke(linewidth=2, foreground="black")]
"""Outline that makes numbers readable on any colour."""

Cells = dict[str, str]
"""Text by the heading of a method."""

Plane = tuple[Tensor, Tensor, Tree, np.ndarray, tuple[str, str]]
"""Coordinates of a grid's two axes; models on the grid, (POINTS^2, ...); positions of the students, (students, 2); axis
names."""


class FinishedToy:
    """Final state of a run that trains models in parallel on a toy problem."""

    def __init__(self, folder: RunFolder):
        experiment = load_experiment(folder.experiment)
        data, partition = build_data(experiment, None)
        learner = build_algorithms([experiment], data, partition)[0].inner
        assert isinstance(learner, Central)
        self.learner = learner
        self.server = read_checkpoint(checkpoints(folder.checkpoints)[-1])[0]
        self.x, self.y = torch.from_numpy(data.x_train), torch.from_numpy(data.y_train)
        self.batch = Batch(self.learner.task.prepare(self.x), self.y)

    def losses(self, models: Tree, whose: int) -> Tensor:
        """Losses of models on all training samples, (models,), with the guide of student `whose`."""
        learner, hyper = self.learner, self.learner.hyper
        if not isinstance(learner, Student):
            return vmap(lambda w: learner.task.loss(w, self.batch))(models)
        aids: Tree = {}
        if isinstance(learner, DiSK):
            own = tree_map(lambda p: p[whose], self.server["guide"])
            softness = learner.softness(hyper, self.server, [self.batch])
            aids = {"guide": own, "student_tau": softness[whose] if softness.dim() else softness}
        lesson = learner.lesson(hyper, self.server, self.batch)
        return vmap(lambda w: lesson({"w": w}, aids))(models)

    def excused(self) -> Tensor | None:
        """Mean of g over the students' guides for every training sample; None without a guide."""
        if not isinstance(self.learner, DiSK):
            return None
        features, guide = self.learner.says(self.server, self.batch), self.learner.guide
        return self.learner.each(lambda w: excuses(guide, w, features), self.server["guide"]).mean(0)

    def plane(self) -> Plane:
        """Plane of models: for the model of one interval, all intervals by their ends; for other models, the plane
        through the best, the median and the worst student.
        """
        w = self.server["w"]
        if set(w) == {"ends"}:
            at = torch.linspace(0.05, 8.95, POINTS)
            ends = torch.stack(torch.meshgrid(at, at, indexing="ij"), -1).reshape(-1, 2)
            return at, at, {"ends": ends}, w["ends"].numpy(), ("a", "b")
        flat = torch.cat([p.flatten(1) for p in w.values()], 1)
        order = self.losses_of_students().argsort()
        origin, one, other = (flat[order[place]] for place in (0, len(order) // 2, -1))
        basis = torch.linalg.qr(torch.stack([one - origin, other - origin], 1))[0]
        coordinates = (flat - origin) @ basis
        axes = [torch.linspace(float(c.min()) - 1, float(c.max()) + 1, POINTS) for c in coordinates.unbind(1)]
        where = torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).reshape(-1, 2) @ basis.T + origin
        sizes = [p[0].numel() for p in w.values()]
        parts = zip(w.items(), where.split(sizes, 1), strict=True)
        models = {name: part.reshape(-1, *p.shape[1:]) for (name, p), part in parts}
        return axes[0], axes[1], models, coordinates.numpy(), ("through the middle student", "and the worst")

    def surface(self) -> np.ndarray:
        """Losses on the plane, (POINTS, POINTS), with the best student's guide; NaN where there is no model."""
        first, second, models, _, names = self.plane()
        whose = int(self.losses_of_students().argmin())
        losses = self.losses(models, whose).reshape(POINTS, POINTS).numpy()
        # An interval must end after it begins.
        return np.where(first[:, None] < second[None, :], losses, np.nan) if names == ("a", "b") else losses

    def losses_of_students(self) -> Tensor:
        """Loss of each student with its own guide, (students,)."""
        students = range(self.learner.hyper.starts)
        return torch.cat([self.losses(tree_map(lambda p, i=i: p[i : i + 1], self.server["w"]), i) for i in students])


def local_minima(surface: np.ndarray) -> int:
    """Number of interior points of a grid that are lower than their eight neighbours; NaN counts as infinite."""
    surface = np.nan_to_num(surface, nan=np.inf)
    rows, columns = surface.shape
    around = [
        surface[1 + i : rows - 1 + i, 1 + j : columns - 1 + j]
        for i in (-1, 0, 1)
        for j in (-1, 0, 1)
        if (i, j) != (0, 0)
    ]
    return int((surface[1:-1, 1:-1] < np.min(around, axis=0)).sum())


def excused_within(x: np.ndarray, g: np.ndarray) -> tuple[float, float]:
    """Mean of g inside the interval that the best student leaves out, and outside it."""
    within = (x >= CENSORED[0]) & (x <= CENSORED[1])
    return float(g[within].mean()), float(g[~within].mean())


def excused_around(x: np.ndarray, g: np.ndarray) -> np.ndarray:
    """Mean of g around each of the plane's centres, in their order, (6,)."""
    nearest = np.linalg.norm(x[:, None] - CENTRES.reshape(-1, 2), axis=-1).argmin(1)
    return np.array([g[nearest == centre].mean() for centre in range(CENTRES.size // 2)])


def study_toys(runs: dict[str, RunFolder]) -> dict[str, Cells]:
    """Numbers of the figure: local minima of the surfaces, and the mean of g inside and outside the interval on the
    line, or around the centres in the plane.
    """
    with torch.no_grad():
        toys = {heading: FinishedToy(folder) for heading, folder in runs.items()}
        minima = {heading: str(local_minima(run.surface())) for heading, run in toys.items()}
        rows: dict[str, Cells] = {"local minima of the loss, on the figure's grid": minima}
        for heading, run in toys.items():
            if (g := run.excused()) is not None:
                for where, mean in _excused(run.x.numpy(), g.numpy()).items():
                    rows.setdefault(f"excused {where}", {})[heading] = f"{mean:.2f}"
    return rows


def _excused(x: np.ndarray, g: np.ndarray) -> dict[str, float]:
    """Mean of g by region."""
    if x.shape[1] == 1:
        inside, outside = excused_within(x[:, 0], g)
        return {f"in [{CENSORED[0]:g}, {CENSORED[1]:g}]": inside, "elsewhere": outside}
    means = excused_around(x, g)
    return {f"around ({a:g}, {b:g})": mean for (a, b), mean in zip(CENTRES.reshape(-1, 2), means, strict=True)}


def draw_toys(runs: dict[str, RunFolder], path: Path) -> list[Path]:
    """Draws a surface for each method and, for guides, a panel of the samples that they excuse. PNG and SVG."""
    toys = {heading: FinishedToy(folder) for heading, folder in runs.items()}
    guides = {heading: g for heading, run in toys.items() if (g := run.excused()) is not None}
    figure, panels = grid(len(toys) + len(guides), 4.6, 3.8, columns=4)
    with torch.no_grad():
        for axes, (heading, run) in zip(panels, toys.items(), strict=False):
            _surface(figure, axes, heading, run)
    for axes, (heading, g) in zip(panels[len(toys) :], guides.items(), strict=True):
        _guide(figure, axes, heading, toys[heading], g.detach().numpy())
    return save(figure, path)


def _surface(figure: Any, axes: Any, heading: str, run: FinishedToy) -> None:
    first, second, _, students, names = run.plane()
    surface = run.surface()
    contours = axes.contourf(first, second, surface.T, levels=24, cmap="viridis")
    figure.colorbar(contours, ax=axes, label="loss")
    axes.scatter(*students.T, s=9, color="#D55E00", linewidths=0)
    axes.set(title=f"{heading}: {local_minima(surface)} local minima on the grid", xlabel=names[0], ylabel=names[1])


def _guide(figure: Any, axes: Any, heading: str, run: FinishedToy, g: np.ndarray) -> None:
    x, y = run.x.numpy(), run.y.numpy()
    title, means = f"{heading}: the guide", _excused(x, g)
    if x.shape[1] == 1:
        for label, (name, colour) in enumerate((("red", "#D55E00"), ("blue", "#0072B2"))):
            axes.scatter(x[y == label, 0], g[y == label], s=5, color=colour, label=name)
        axes.legend(frameon=False, fontsize="small")
        axes.set(xlabel="x", ylabel="excused, mean over the students", ylim=(-0.02, 1.02))
        title += "\n" + ", ".join(f"{mean:.2f} {where}" for where, mean in means.items())
    else:
        points = axes.scatter(*x.T, c=g, s=5, vmin=0, vmax=1, cmap="viridis")
        figure.colorbar(points, ax=axes, label="excused, mean over the students")
        for place, mean in zip(CENTRES.reshape(-1, 2), means.values(), strict=True):
            axes.text(
                *place, f"{mean:.2f}", ha="center", va="center", color="white", fontweight="bold", path_effects=EDGED
            )
    axes.set(title=title)


if __name__ == "__main__":
    search = RunFolder(Path(sys.argv[1]))
    headings = search.record()["table"]["headings"]
    runs = {heading: expert_folder(search.path, number) for number, heading in enumerate(headings)}
    for what, cells in study_toys(runs).items():
        print(f"{what}: {', '.join(f'{heading} {cell}' for heading, cell in cells.items())}")
    print(*draw_toys(runs, search.path / "toys"))
