"""The text of a first manifest, from answers and from what a folder shows. Pure: values to text."""

from __future__ import annotations

import json
import posixpath
import re
from dataclasses import dataclass

from gpuops.cli.detect import Seen, needs_shell, value_of
from gpuops.errors import UsageError

WORKDIR = "/workspace/code"
OUTPUTS = "/workspace/out"
COPIES = "gpuops-results"


@dataclass(frozen=True)
class Answers:
    """What was asked, or told by options."""

    name: str
    provider: str
    device: str
    argv: tuple[str, ...]
    checkpoints: str
    """Absolute on the machine, or relative to the folder in which training starts."""
    cap: str
    deadline: str
    source: str = "."
    """The folder of the training, relative to the folder of the manifest."""

    @property
    def copy_to(self) -> str:
        """Where verified copies go, relative to the folder of the manifest."""
        return posixpath.normpath(posixpath.join(self.source, COPIES))


def default_checkpoints(argv: tuple[str, ...], seen: Seen) -> str:
    """Where the script seems to write; empty when it does not show."""
    if given := value_of(argv):
        return given
    told = (seen.output_argument and not needs_shell(argv)) or seen.knows_contract
    return OUTPUTS if told else seen.output_folder


def on_host(checkpoints: str) -> str:
    """The folder of checkpoints as an absolute path on the machine. Raises `UsageError`."""
    if checkpoints.startswith("~") or "$" in checkpoints or "{" in checkpoints:
        raise UsageError(
            f"{checkpoints!r}: write the folder of checkpoints out, relative to where training starts or beginning with /",
            next_command="gpuops init --checkpoints FOLDER",
        )
    path = posixpath.normpath(posixpath.join(WORKDIR, checkpoints))
    if path in (WORKDIR, "/") or WORKDIR.startswith(path + "/"):
        raise UsageError(
            f"checkpoints need a folder of their own, and {checkpoints!r} holds the code as well",
            next_command="gpuops init --checkpoints FOLDER",
        )
    return path


def command(answers: Answers, seen: Seen) -> tuple[str, ...]:
    """The argument list; a script that can be told where to write is told."""
    if seen.output_argument and not value_of(answers.argv) and not needs_shell(answers.argv):
        return (*answers.argv, seen.output_argument, on_host(answers.checkpoints))
    return answers.argv


def notes(answers: Answers, seen: Seen) -> list[str]:
    """What a person should know before the first run, beside what stands in the manifest."""
    said = []
    if seen.git_ignored:
        names = ", ".join(f"{n}/" for n in seen.git_ignored[:5])
        said.append(f"git ignores {names}: what training needs of it must be sent by `git_ignored: include`")
    if seen.requirements:
        said.append(f"{seen.requirements} is not installed by gpuops: the machine's image must have what it names")
    if seen.git:
        said.append(f"add {COPIES}/ to .gitignore: verified copies go there")
    return said


def manifest_text(answers: Answers, seen: Seen) -> str:
    """A commented manifest that `gpuops check` accepts."""
    outputs = on_host(answers.checkpoints)
    inner = outputs.removeprefix(WORKDIR + "/") if outputs.startswith(WORKDIR + "/") else ""
    exclude = [f"/{COPIES}", *([f"/{inner}"] if inner else [])]
    left_out = "what git ignores, .git, keys, .env files and caches are not sent" if seen.git else (
        "everything in that folder but .git, keys, .env files and caches is sent"
    )  # fmt: skip
    argv = ", ".join(scalar(word) for word in command(answers, seen))
    resume = f"  # resume_argument: {seen.resume_argument}   # when it takes the path of a checkpoint to go on from\n"
    return f"""\
# What gpuops rents, sends, runs, keeps and spends for this training. Made by `gpuops init`: change what is wrong.
#
#   gpuops check FILE    says in plain sentences what this file means
#   gpuops plan FILE     says what would be bought, what it costs and what ends it; buys nothing
#   gpuops run FILE      the whole life: rent, check, send, train, copy, end, prove
#
# Every other key has a default; the project's manifests/reference.yaml explains them all.

name: {answers.name}

provider: {answers.provider}    # `gpuops providers` lists what is installed

resources:
  device: {scalar(answers.device)}    # must be part of the offer's device name; the cheapest offer that fits is taken
  count: 1
  # max_price_per_hour: 2.00    # refuse dearer offers

# What goes to the machine: {left_out}.
transfers:
  - source: {scalar(answers.source)}    # relative to the folder of this file
    to: {WORKDIR}
    exclude: [{", ".join(scalar(x) for x in exclude)}]    # results of earlier runs
    # git_ignored: include    # send what git ignores, too, such as data

# The program: one argument per item, no shell in between.
train:
  argv: [{argv}]
  workdir: {WORKDIR}
{resume if seen.resume_argument else ""}\
  grace: 30s    # from "please stop" (SIGTERM) to "killed"

# Checkpoints: where the program writes them on the machine ($GPUOPS_OUTPUT_DIR says the same to the program), and where
# verified copies go on this computer. What the program writes anywhere else is lost with the machine.
outputs:
  directory: {scalar(outputs)}
  copy_to: {scalar(answers.copy_to)}    # relative to the folder of this file
  keep_last: 2

# Names of secrets; their values come from environment or keyring (`gpuops auth set NAME`), never from this file.
# secrets: [WANDB_API_KEY]

budget:
  cap: {answers.cap}    # USD: the most that this run may cost, everything included

deadline: {answers.deadline}    # results are here and the machine is gone by then; it ends sooner when training ends
hold: 15m    # after the deadline, time for a copy that is late; then the machine ends, copied or not
"""


def scalar(text: str) -> str:
    """A text as YAML reads it back: plain where that is certain, else in quotes."""
    plain = re.fullmatch(r"(--?)?[A-Za-z_./][A-Za-z0-9_./=-]*", text)
    words = ("true", "false", "null", "yes", "no", "on", "off", "y", "n", "---")
    return text if plain and text.lower() not in words else json.dumps(text, ensure_ascii=False)


def slug(text: str) -> str:
    """A run's name from a folder's."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40].strip("-") or "training"
