"""The command line. Each command is a module that is imported only when it is called, so that help and status start fast."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from gpuops import __version__
from gpuops.errors import GpuopsError

# command → (module, one line). The order is the order of a run's life.
COMMANDS: dict[str, tuple[str, str]] = {
    "check": ("check", "Check a manifest and say what it means; buys nothing."),
    "plan": ("plan", "Show what would be bought, what it costs and what ends it; buys nothing."),
    "up": ("up", "Rent the machine and check it; stops when it is ready."),
    "launch": ("launch", "Send code and data to a ready machine and start training."),
    "watch": ("watch", "Follow training until the run is closed; leaving it stops nothing."),
    "status": ("status", "Show runs and what may bill, from the journal alone."),
    "logs": ("logs", "Print the log of training."),
    "ssh": ("ssh", "Open a shell on the rental, with the pinned host key."),
    "down": ("down", "Seal, copy, terminate and prove that it is gone."),
    "run": ("run", "The whole life: up, launch, watch, down."),
    "extend": ("extend", "Move the deadline; counts only when every layer has moved."),
    "guard": ("guard", "Keep runs going down in time without a terminal; --once needs marks alone."),
    "reconcile": ("reconcile", "List what bills on the accounts and whose it is; --apply ends orphans."),
    "adopt": ("adopt", "Take on rentals that carry our mark and that this journal does not know."),
    "retain": ("retain", "Keep a rental on purpose, with a reason and an expiry."),
    "release": ("release", "End a retention: the rental goes down."),
    "report": ("report", "The report of a run: time, cost, layers, audit trail."),
    "auth": ("auth", "Store, find and remove credentials."),
    "providers": ("providers", "The installed providers and what they can and cannot do."),
}

EPILOG = (
    "Exit codes: 0 done, nothing of ours bills beyond what is meant to; 1 a bug; 2 usage, manifest or credentials wrong, nothing "
    "was bought; 3 refused by a gate, or not proved; 4 provider or host failed, nothing bills; 5 something of ours may still be "
    "billing; 6 training did not complete, teardown is complete."
)


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

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The table of commands, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


app = typer.Typer(
    cls=LazyGroup,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    epilog=EPILOG,
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
    """Rent GPU machines for training runs: the money stops when it should, the only checkpoint is never lost.

    Closing SSH, stopping Python and stopping a bill are three different events.

    Start with: gpuops run manifests/local-demo.yaml
    """


def main() -> None:
    """Entry point: every error leaves through here with its own exit code."""
    usage_error = typer.BadParameter.__mro__[1]
    try:
        code = app(standalone_mode=False)
    except typer.Exit as done:
        code = done.exit_code
    except typer.Abort:
        code = _fail(GpuopsError("Interrupted."), 2)
    except GpuopsError as error:
        code = _fail(error, error.exit_code)
    except KeyboardInterrupt:
        code = _fail(GpuopsError("Interrupted.", next_command="gpuops status"), 2)
    except BrokenPipeError:
        code = 0
    except Exception as error:
        if isinstance(error, usage_error):
            code = _fail(GpuopsError(error.format_message(), next_command="gpuops --help"), 2, "usage")  # type: ignore[attr-defined]
        else:
            code = _bug(error)
    sys.exit(code if isinstance(code, int) else 0)


# Commands about a run that exists: what went wrong with them is outranked by what goes on billing.
ABOUT_A_RUN = frozenset({"launch", "watch", "down", "extend", "retain", "release"})


def _fail(error: GpuopsError, exit_code: int, code: str = "") -> int:
    from gpuops.cli.output import print_error

    command = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
    if (exit_code == 1 and command in {*ABOUT_A_RUN, "up", "run"}) or (exit_code == 4 and command in ABOUT_A_RUN):
        from gpuops.cli.leaving import whatever_bills

        error.may_bill = error.may_bill or whatever_bills()
        exit_code, code = (5, "may_bill") if error.may_bill else (exit_code, code)
        error.next_command = error.next_command or "gpuops status"
    print_error(error, code or error.code, as_json="--json" in sys.argv)
    return exit_code


def _bug(error: Exception) -> int:
    from gpuops.cli.output import write_bug

    path = write_bug("command", error)
    said = f"This is a bug in gpuops: {type(error).__name__}. Details without values: {path}"
    return _fail(GpuopsError(said, next_command="gpuops status"), 1, "bug")
