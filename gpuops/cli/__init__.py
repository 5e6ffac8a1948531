"""The command line. Each command is a module that is imported only when it is called, so that help and status start fast."""

from __future__ import annotations

import os
import sys
import textwrap

from gpuops.errors import GpuopsError

# command → (module, one line). The order is the order of a run's life.
COMMANDS: dict[str, tuple[str, str]] = {
    "init": ("init", "Write a first manifest for a training that lies in a folder."),
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
    "doctor": ("doctor", "Say what is missing on this computer and which command mends it."),
    "auth": ("auth", "Store, find and remove credentials."),
    "providers": ("providers", "The installed providers and what they can and cannot do."),
}

EPILOG = (
    "Exit codes: 0 done, nothing of ours bills beyond what is meant to; 1 a bug; 2 usage, manifest or credentials wrong, nothing "
    "was bought; 3 refused by a gate, or not proved; 4 provider or host failed, nothing bills; 5 something of ours may still be "
    "billing; 6 training did not complete, teardown is complete."
)

ABOUT = """\
Rent GPU machines for training runs: the money stops when it should, the only checkpoint is never lost.
Closing SSH, stopping Python and stopping a bill are three different events.

Start with: gpuops doctor, then gpuops init in the folder of a training; to see it work: script/demo in a checkout"""


def root_help() -> str:
    """The help of `gpuops` itself: what it is, the commands in the order of a run's life, the exit codes."""
    rows = [f"  {name:<10} {line}" for name, (_, line) in COMMANDS.items()]
    options = [
        "  --version   Print the version and exit.",
        "  -h, --help  Show this message, or that of a command, and exit.",
    ]
    codes = textwrap.fill(EPILOG, 100, initial_indent="  ", subsequent_indent="  ")
    usage = "Usage: gpuops [OPTIONS] COMMAND [ARGS]..."
    return "\n".join([usage, "", ABOUT, "", "Options:", *options, "", "Commands:", *rows, "", codes])


def main() -> None:
    """Entry point: every error leaves through here with its own exit code."""
    if sys.argv[1:] in ([], ["--help"], ["-h"]):
        try:
            print(root_help(), flush=True)
        except BrokenPipeError:  # `gpuops --help | head`: the rest goes nowhere, also what Python flushes at its end
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(0)
    import typer

    from gpuops.cli.group import app

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
    error.next_command = error.next_command or _next(command, exit_code, code or error.code)
    print_error(error, code or error.code, as_json="--json" in sys.argv)
    return exit_code


def _next(command: str, exit_code: int, code: str) -> str:
    """What to type after an error that names nothing better: it came from a host, a provider, a file or the arguments."""
    if code == "manifest":
        return f"mend the file, then again: gpuops {command}"
    if command in {*ABOUT_A_RUN, "logs", "ssh", "report", "status"}:
        return "gpuops status"
    if exit_code == 2:
        return f"gpuops {command} --help" if command in COMMANDS else "gpuops --help"
    return "gpuops doctor"


def _bug(error: Exception) -> int:
    from gpuops.cli.output import write_bug

    path = write_bug("command", error)
    said = f"This is a bug in gpuops: {type(error).__name__}. Details without values: {path}"
    return _fail(GpuopsError(said, next_command="gpuops status"), 1, "bug")
