"""What a folder shows about the training in it: the script, where it writes checkpoints, what git leaves out.

Guesses are defaults of questions and stand in the manifest as text, so that a wrong one is seen before it costs anything.
Nothing in the folder is run; scripts are parsed, never imported.
"""

from __future__ import annotations

import ast
import contextlib
import os
import re
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path

SCRIPTS = ("train.py", "training.py", "finetune.py", "fine_tune.py", "pretrain.py", "main.py", "run.py", "train.sh")
"""By rank; what begins with `train` or `finetune` comes next, and folders of scripts after the folder itself."""
FOLDERS = ("", "scripts", "src", "examples")
SOURCE_BYTES = 400_000
GIT_S = 5.0
OUTPUT_ARGUMENT = re.compile(
    r"--(output|out|outputs|save|results)[-_]?(dir|directory|path|folder)|--(checkpoints?|ckpts?)[-_]?(dir|directory|folder)"
)
"""A `--model-path` or `--checkpoint-path` is as likely what training starts from: such names are no sign."""
OUTPUT_FOLDER = re.compile(r"(\./)?(out|outputs?|checkpoints?|ckpts?|results|runs|models?|weights|saved_models?)(/.*)?")
RESUME_ARGUMENT = re.compile(r"--(resume|resume[-_]from([-_]checkpoint)?|init[-_]from|load[-_]checkpoint)")
SHELL_TOKENS = frozenset({"&&", "||", "|", ";", ">", ">>", "<", "&", "(", ")"})


@dataclass(frozen=True)
class Seen:
    """What one folder shows. Empty texts and lists: nothing was found."""

    script: str = ""
    output_argument: str = ""
    """The option by which the script is told where to write, such as --output-dir."""
    output_folder: str = ""
    """A folder that the script names by itself, relative to where it starts."""
    knows_contract: bool = False
    """The script reads $GPUOPS_OUTPUT_DIR."""
    resume_argument: str = ""
    git: bool = False
    git_ignored: tuple[str, ...] = ()
    requirements: str = ""


def look(folder: Path, script: str = "") -> Seen:
    """Look at `folder`; `script` (relative) is looked into, without it the likeliest one that lies there."""
    script = script or find_script(folder)
    texts = _texts(folder / script) if script.endswith(".py") else ()
    arguments = [t for t in texts if OUTPUT_ARGUMENT.fullmatch(t)]
    folders = [t for t in texts if OUTPUT_FOLDER.fullmatch(t)]
    needs = (n for n in ("requirements.txt", "environment.yml", "pyproject.toml") if (folder / n).is_file())
    return Seen(
        script=script,
        # "output" before "checkpoint": where both are, checkpoints usually go below it
        output_argument=min(arguments, key=lambda a: not a.startswith("--out"), default=""),
        output_folder=_folder_of(folders[0]) if folders else "",
        knows_contract="GPUOPS_OUTPUT_DIR" in texts,
        resume_argument=next((t for t in texts if RESUME_ARGUMENT.fullmatch(t)), ""),
        git=any((parent / ".git").exists() for parent in (folder, *folder.parents)),
        git_ignored=_git_ignored(folder),
        requirements=next(needs, ""),
    )


def find_script(folder: Path) -> str:
    """The likeliest training script, relative to `folder`; empty when none looks like one."""
    for inner in FOLDERS:
        try:
            names = sorted(e.name for e in os.scandir(folder / inner) if e.is_file())
        except OSError:
            continue
        likely = [n for n in SCRIPTS if n in names]
        likely += [n for n in names if re.fullmatch(r"(train|finetune|pretrain).*\.py", n)]
        programs = [n for n in names if n.endswith(".py")]
        likely += programs if len(programs) == 1 else []
        if likely:
            return os.path.join(inner, likely[0])
    return ""


def script_in(argv: tuple[str, ...], folder: Path) -> str:
    """The script that a command names, relative to `folder`; empty when it names none that lies there."""
    for word in words(argv):
        if word.endswith((".py", ".sh")) and not os.path.isabs(word) and (folder / word).is_file():
            return os.path.normpath(word)
    return ""


def words(argv: tuple[str, ...]) -> tuple[str, ...]:
    """The words of a command, those of its shell line included."""
    if not needs_shell(argv):
        return argv
    lexer = shlex.shlex(argv[2], posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    return tuple(lexer)


def needs_shell(argv: tuple[str, ...]) -> bool:
    """Whether `split` put the command into a shell line, to which nothing can be added."""
    return argv[:2] == ("bash", "-c") and len(argv) == 3


def split(command: str) -> tuple[str, ...]:
    """The argument list of a command as typed. What needs a shell gets one, visibly. Raises `ValueError`."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    if SHELL_TOKENS & set(lexer) or re.search(r"[$`*?]", command):
        return ("bash", "-c", command)
    argv = shlex.split(command)
    # machines of many vendors have python3 and no python
    return ("python3", *argv[1:]) if argv[:1] == ["python"] else tuple(argv)


def value_of(argv: tuple[str, ...]) -> str:
    """The folder that the command itself gives to an output argument: `--out-dir X` or `--out-dir=X`."""
    typed = words(argv)
    for word, following in zip(typed, (*typed[1:], ""), strict=True):
        name, is_joined, value = word.partition("=")
        if OUTPUT_ARGUMENT.fullmatch(name):
            return value if is_joined else following
    return ""


def _folder_of(text: str) -> str:
    """The folder in front: of `checkpoints/last.pt` it is `checkpoints`."""
    path = os.path.normpath(text)
    return os.path.dirname(path) or path if os.path.splitext(path)[1] or "{" in path else path


def _texts(script: Path) -> tuple[str, ...]:
    """All string constants of a Python file, in its order; nothing for a file that is none."""
    try:
        with script.open(encoding="utf-8", errors="replace") as file:
            tree = ast.parse(file.read(SOURCE_BYTES))
    except (OSError, SyntaxError, ValueError, RecursionError):
        return ()
    nodes = [n for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    return tuple(str(n.value) for n in sorted(nodes, key=lambda n: (n.lineno, n.col_offset)))


def _git_ignored(folder: Path) -> tuple[str, ...]:
    """Folders directly in `folder` that git ignores, so that they are not sent; caches are nobody's loss."""
    from gpuops.argv import DEFAULT_EXCLUDES

    command = ["git", "-C", str(folder), "ls-files", "--others", "--ignored", "--exclude-standard", "--directory", "-z"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(command, capture_output=True, timeout=GIT_S, check=False, stdin=subprocess.DEVNULL)
        names = done.stdout.decode("utf-8", "replace").split("\0") if done.returncode == 0 else []
        tops = [n.rstrip("/") for n in names if n.count("/") == 1 and n.endswith("/")]
        return tuple(n for n in tops if n not in DEFAULT_EXCLUDES and n.isprintable())
    return ()
