"""The command line, invoked in this process."""

from pathlib import Path

from click.testing import CliRunner, Result

from hedgerow.cli import main

GOOD = """\
name: good
rounds: 3
task:
  data: {name: digits}
  partition: {kind: dirichlet, clients: 100, alpha: 0.3}
  model: {name: mlp, hidden: [20]}
algorithm: {name: fedavg, lr: 0.1, batch_size: 8}
evaluation: {targets: [0.01, 0.99]}
resources: {executor: inline}
engine: {mode: vmap, chunk: 5}
tracking: {enabled: false}
"""


def refuse(text: str, folder: Path, *arguments: str) -> str:
    """Run a file that must be refused; returns the output: one line, or a heading and one line per mistake."""
    file = folder / "file.yaml"
    file.write_text(text)
    result = CliRunner().invoke(main, ["run", str(file), "--data-root", str(folder), *arguments])
    assert result.exit_code == 2, result.output
    assert isinstance(result.exception, SystemExit)
    first, *mistakes = result.output.splitlines()
    assert first.startswith("hedgerow: ")
    assert len(mistakes) != 1
    assert first.endswith(f"{len(mistakes)} mistakes") if mistakes else True
    assert list(folder.iterdir()) == [file], "work was started"
    return result.output


def hedgerow(*arguments: object, **env: str) -> Result:
    return CliRunner(env=env).invoke(main, [str(argument) for argument in arguments])
