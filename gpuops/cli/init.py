"""`gpuops init`: a first manifest for a training that lies in a folder."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from gpuops.cli.context import App, make_app
from gpuops.cli.detect import Seen, look, script_in, split
from gpuops.cli.options import Json, command_app
from gpuops.cli.scaffold import Answers, command, default_checkpoints, manifest_text, notes, on_host, slug
from gpuops.cli.start import read_manifest
from gpuops.errors import ManifestError, UsageError
from gpuops.registry import names as installed
from gpuops.units import duration_s, money

app = command_app()

CAP, DEADLINE, DEVICE = "5.00", "2h", "A100"


@app.command()
def init(
    folder: Annotated[
        Path, typer.Argument(help="Where the training lies; default: this folder.", show_default=False)
    ] = Path("."),
    provider: Annotated[str, typer.Option(help="Which provider rents the machine.", show_default=False)] = "",
    train: Annotated[
        str, typer.Option("--command", help="The command that trains, as typed in FOLDER.", show_default=False)
    ] = "",
    checkpoints: Annotated[
        str, typer.Option(metavar="PATH", help="Where it writes checkpoints, relative to FOLDER.", show_default=False)
    ] = "",
    cap: Annotated[str, typer.Option(metavar="USD", help="The most that a run may cost.", show_default=False)] = "",
    deadline: Annotated[str, typer.Option(metavar="DURATION", help="Everything is over by then.")] = DEADLINE,
    device: Annotated[str, typer.Option(help="Part of the name of the device to rent.")] = DEVICE,
    name: Annotated[str, typer.Option(help="Name of the run; default: the folder's.", show_default=False)] = "",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Default: gpuops.yaml in FOLDER.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over a file that is there.")] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Ask nothing: take what was found and the defaults.")
    ] = False,
    json: Json = False,
) -> None:
    """Write a first manifest for a training that lies in a folder.

    Asks what matters, with what the folder shows as defaults; without a terminal every answer is an option. Runs nothing.

    Examples: gpuops init
              gpuops init ~/nanogpt --command "python train.py" --checkpoints out --cap 5
    """
    context = make_app(as_json=json)
    file = output or folder / "gpuops.yaml"
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder", next_command="gpuops init --help")
    if file.exists() and not force:
        raise UsageError(
            f"{file} is there already and is not written over without --force", next_command=f"gpuops check {file}"
        )
    if not (parent := file.parent).is_dir():
        raise UsageError(f"{parent} is not a folder", next_command="gpuops init --help")
    asks = sys.stdin.isatty() and not yes and not json
    root = folder.resolve()
    chosen = _provider(provider, asks)
    argv, seen = _command(train, root, asks)
    where = checkpoints or _checkpoints(argv, seen, asks)
    answers = Answers(
        name=slug(name or root.name),
        provider=chosen,
        device=device,
        argv=argv,
        checkpoints=where,
        cap=_cap(cap or (_ask("The most that it may cost, in USD", CAP) if asks else CAP)),
        deadline=_duration(deadline),
        source=os.path.relpath(root, file.parent.resolve()),
    )
    _write(file, manifest_text(answers, seen))
    _tell(context, file, answers, seen)


def _ask(question: str, default: str) -> str:
    return str(typer.prompt(question, default=default or None)).strip()


def _provider(given: str, asks: bool) -> str:
    """The provider; a question with one possible answer is not asked."""
    known = installed()
    if not known:
        raise UsageError("no provider is installed", next_command="script/setup, or: pip install gpuops-cli")
    default = "local" if "local" in known else known[0]
    chosen = given or (
        _ask(f"Which provider rents the machine ({', '.join(known)})", default) if asks and len(known) > 1 else default
    )
    if chosen not in known:
        raise UsageError(f"there is no provider {chosen!r}; known: {', '.join(known)}", next_command="gpuops providers")
    return chosen


def _command(given: str, root: Path, asks: bool) -> tuple[tuple[str, ...], Seen]:
    """The argument list, and what its script shows."""
    seen = look(root)
    default = f"{'bash' if seen.script.endswith('.sh') else 'python3'} {seen.script}" if seen.script else ""
    text = given or (_ask(f"Which command trains? It starts in {root}", default) if asks else default)
    try:
        argv = split(text)
    except ValueError as error:
        raise UsageError(
            f"--command {text!r}: {error}", next_command='gpuops init --command "python3 train.py"'
        ) from None
    if not argv:
        raise UsageError(
            f"no training script was found in {root}: say which command trains",
            next_command='gpuops init --command "python3 train.py"',
        )
    script = script_in(argv, root)
    return argv, seen if script == seen.script else look(root, script)


def _checkpoints(argv: tuple[str, ...], seen: Seen, asks: bool) -> str:
    """Where checkpoints appear. Never guessed without a sign: what is written elsewhere is lost with the machine."""
    found = default_checkpoints(argv, seen)
    if asks:
        return _ask("Where does it write checkpoints? (relative to where it starts)", found or "checkpoints")
    if not found:
        raise UsageError(
            f"{seen.script or 'the command'} does not show where it writes checkpoints, and what is written elsewhere "
            "would be lost with the machine",
            next_command="gpuops init --checkpoints FOLDER",
        )
    return found


def _cap(text: str) -> str:
    try:
        amount = money(text)[0]
    except ValueError as error:
        raise UsageError(f"--cap: {error}", next_command=f"gpuops init --cap {CAP}") from None
    return f"{amount:.2f}" if amount == round(amount, 2) else str(amount)


def _duration(text: str) -> str:
    try:
        duration_s(text)
    except ValueError as error:
        raise UsageError(f"--deadline: {error}", next_command=f"gpuops init --deadline {DEADLINE}") from None
    return text


def _write(file: Path, text: str) -> None:
    """Put the manifest into its place once it has been read back without a complaint."""
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        draft.write_text(text, encoding="utf-8")
        read_manifest(draft, time.time())
        os.replace(draft, file)
    except ManifestError as error:
        raise UsageError(error.message.replace(str(draft), str(file)), next_command="gpuops init --help") from None
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error.strerror}", next_command="gpuops init -o FILE") from None
    finally:
        draft.unlink(missing_ok=True)


def _tell(context: App, file: Path, answers: Answers, seen: Seen) -> None:
    argv, said = command(answers, seen), notes(answers, seen)
    if context.printer.as_json:
        context.printer.document(
            {
                "manifest": str(file), "name": answers.name, "provider": answers.provider, "argv": list(argv),
                "checkpoints": on_host(answers.checkpoints), "copy_to": answers.copy_to, "cap": answers.cap,
                "deadline": answers.deadline,
                "seen": {"script": seen.script or None, "output_argument": seen.output_argument or None, "git": seen.git},
                "notes": said, "next": f"gpuops check {file}",
            }
        )  # fmt: skip
        return
    context.printer.lines(
        [
            f"Written: {file}",
            f"  rents        from {answers.provider}, for at most {answers.cap} USD",
            f"  runs         {' '.join(argv)}",
            f"  checkpoints  {on_host(answers.checkpoints)} on the machine -> {file.parent / answers.copy_to} here",
            *(f"  note         {note}" for note in said),
            f"  next: gpuops check {file}",
        ]
    )
