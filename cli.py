"""The `hedgerow` command: a family of commands, each defined in the layer that it is about."""

import sys
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from hedgerow.cluster.cluster_cli import jobs, logs, plan, stop, submit
from hedgerow.platform.common.quiet import quiet_libraries
from hedgerow.platform.ui.run_cli import new, partition, run, ui
from hedgerow.reports.report_cli import compare, report
from hedgerow.searchspaces.tune.search_cli import list_, push, resume, schema, search, show, table


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script by which SHELL completes commands, options, runs, tables and algorithms.

    It belongs in ~/.local/share/bash-completion/completions/hedgerow (bash), ~/.config/fish/completions/hedgerow.fish
    (fish), or, as _hedgerow, in a folder of $fpath (zsh).

    Example: hedgerow completion bash
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(main, {}, "hedgerow", "_HEDGEROW_COMPLETE").source())


FAMILY: dict[str, list[click.Command]] = {
    "Run": [run, search, table, resume],
    "Write": [new, schema, completion],
    "Look": [report, compare, show, list_, partition, ui, push],
    "Clusters": [plan, submit, jobs, logs, stop],
}
"""All commands, in the order and under the headings of the help."""


class Family(click.Group):
    """A group whose help shows its commands under headings."""

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands into the help."""
        for heading, commands in FAMILY.items():
            with formatter.section(heading):
                formatter.write_dl([(f"{command.name:<10}", command.get_short_help_str(200)) for command in commands])


EXIT_CODES = """\b
Exit codes:
  0    done
  1    something broke: a traceback tells where
  2    one sentence for each mistake in a file or on the command line, before any work; or one about
       a full disk, or a Ray that does not start or that dies, and `hedgerow resume` continues
  130  interrupted by Ctrl-C; `hedgerow resume` continues
  143  interrupted by SIGTERM; the same
Those of `submit` and `logs --follow` are the job's."""


# As wide as the terminal, up to where lines become hard to read: examples stay in one line, to be copied.
SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 120}


@click.group(cls=Family, context_settings=SETTINGS, epilog=EXIT_CODES)
@click.version_option(package_name="hedgerow")
def main() -> None:
    """Federated-learning experiments on Ray: one YAML file, one command.

    Example: hedgerow run examples/digits_fedavg.yaml
    """
    quiet_libraries()
    # The user's own algorithms and models are importable from where they stand.
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))


for _commands in FAMILY.values():
    for _command in _commands:
        main.add_command(_command)
