"""The Typer group of all commands. Imported only when a command is called: Typer takes longer to import than help to print."""

from __future__ import annotations

import importlib
from typing import Any

import typer
from typer.core import TyperGroup

from gpuops import __version__
from gpuops.cli import COMMANDS, root_help


class LazyGroup(TyperGroup):
    """A group whose commands are imported on use."""

    def list_commands(self, ctx: Any) -> list[str]:
        """All names, in the order of a run's life."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import the module of one command."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"gpuops.cli.{COMMANDS[cmd_name][0]}")
        command = typer.main.get_command(module.app)
        command.name = cmd_name
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command, and guess what was meant when there is none."""
        name = args[0] if args else ""
        if name and not name.startswith("-") and name not in COMMANDS:
            import difflib

            near = difflib.get_close_matches(name, COMMANDS, 1)
            hint = f" Did you mean '{near[0]}'?" if near else ""
            ctx.fail(f"No such command '{name}'.{hint}")
        return super().resolve_command(ctx, args)

    def get_help(self, ctx: Any) -> str:
        """The one text that `gpuops --help` prints, made without importing any command."""
        return root_help()


app = typer.Typer(
    cls=LazyGroup,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(value: bool) -> None:
    if value:
        print(f"gpuops {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    """See `root_help`."""
