"""Writes the model of a run to a file that needs no Hedgerow: a state dict, safetensors or ONNX."""

import json
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from hedgerow.algorithms.core.task import Task
from hedgerow.platform.common.errors import UserError, first_line, optional_package, unwritable
from hedgerow.platform.common.quiet import quiet_libraries
from hedgerow.platform.runs.finished_run import FinishedRun, Round

INPUTS = {
    ".pt": "normalised samples, (x - mean) / std",
    ".safetensors": "normalised samples, (x - mean) / std",
    ".onnx": "raw samples, as they are stored",
}
"""Samples that the exported model takes, by format. Token sequences are never normalised."""


class RawModel(nn.Module):
    """Model with the normalisation before it and, say, the softmax behind it: raw samples -> predictions."""

    def __init__(self, module: nn.Module, task: Task):
        super().__init__()
        self.module, self.task = module, task

    def forward(self, samples: Tensor) -> Tensor:
        return self.task.predictions(self.module(self.task.prepare(samples)))


def check_target(file: Path) -> None:
    """Raises UserError if the file has no known ending, or the library for its format is missing."""
    if file.suffix not in INPUTS:
        raise UserError(f"{file}: the ending names the format; choose one of {', '.join(INPUTS)}")
    if file.suffix == ".onnx":
        with optional_package(f"{file}: ONNX needs a further package", "onnx"):
            import onnx  # noqa: F401
            import onnxscript  # noqa: F401


def export_model(run: FinishedRun, file: Path, round: Round = None, client: int | None = None) -> None:
    """Write the model of a run. round, client: see `FinishedRun.module`. Raises UserError, also for a common model of
    which the server does not have all parameters.

    .pt: state dict, for `torch.load(file, weights_only=True)`. .safetensors: the same tensors; mean and standard
    deviation of the normalisation are in its metadata, as JSON. .onnx: a graph from raw samples, as they are stored, to
    probabilities (samples, classes), or to what `FinishedRun.predict` returns, for any number of samples.
    """
    check_target(file)
    if client is None and (missing := run.missing_parameters):
        raise UserError(
            f"{run.folder.path}: the server does not have {missing[0]!r}, so there is no common model; if each client "
            "has it for itself, `--client` exports the model of one"
        )
    module = run.module(round, client)
    state = {name: tensor.detach().contiguous().clone() for name, tensor in module.state_dict().items()}
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix == ".pt":
            # By its path, torch raises a RuntimeError for a file that cannot be written.
            with file.open("wb") as stream:
                torch.save(state, stream)
        elif file.suffix == ".safetensors":
            save_file(state, file, {"format": "pt", **_normalisation(run)})
        else:
            _save_onnx(run, module, file, round, client)
    except (OSError, SafetensorError) as error:
        raise unwritable("export", file, error) from None


def _normalisation(run: FinishedRun) -> dict[str, str]:
    task = run.task
    parts = {"mean": task.mean, "std": task.std}
    return {name: json.dumps(tensor.tolist()) for name, tensor in parts.items() if tensor is not None}


def _save_onnx(run: FinishedRun, module: nn.Module, file: Path, round: Round, client: int | None) -> None:
    samples = run.samples[:2]
    # The same refusals as for predictions: static batch norm, tasks without predictions.
    run.predict(samples, round, client)
    quiet_libraries()
    try:
        torch.onnx.export(
            RawModel(module, run.task).eval(),
            (torch.tensor(samples),),
            str(file),
            input_names=["samples"],
            output_names=["predictions" if run.task.targets == "numbers" else "probabilities"],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            dynamo=True,
            external_data=False,
            verbose=False,
        )
    except torch.onnx.OnnxExporterError as error:
        raise UserError(f"{file}: ONNX cannot express this model ({first_line(error)}); export .safetensors") from error
