"""One OpenSSH connection for each run, shared by everything after the first check, and the agent that answers over it.

The master process outlives the command that started it and is found again by its socket; a dead one is replaced.
Every child has a wall-clock bound and is ended together with its own children.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import json
import math
import os
import secrets
import signal
import subprocess
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from gpuops import argv, names
from gpuops.errors import GpuopsError, HostError, HostKeyMismatch, Unreachable
from gpuops.ports import Clock
from gpuops.values import Time

PYTHON_PLACES = (
    "python3", "/usr/bin/python3", "/usr/local/bin/python3", "/opt/conda/bin/python3", "/opt/*/bin/python3",
)  # fmt: skip
"""Where python3 is looked for: sshd's PATH is not the image's, and start files of the shell may change it."""
TOO_OLD = 97
AGENT_COMMAND = (
    "exec /bin/sh -c '"
    f'for p in {" ".join(PYTHON_PLACES)}; do command -v "$p" >/dev/null 2>&1 || continue; '
    f'"$p" -I -S -c "import sys; sys.version_info < (3, 8) and sys.exit({TOO_OLD}); '
    'i = sys.stdin.buffer; exec(i.read(int(i.readline())))"; '
    f"c=$?; case $c in {TOO_OLD}|126|127) ;; *) exit $c ;; esac; done; exit 127"
    "'"
)
"""The one command that runs on a host, whatever its login shell is. It reads a length, a program of that length, and leaves
the rest of stdin to the program. Isolated and without site-packages: nothing of the user's environment runs, and it starts
in half the time."""
NO_PYTHON = (
    "there is no python3 of version 3.8 or later on the host, neither on PATH nor in /usr/bin, /usr/local/bin, /opt/conda/bin or "
    "/opt/*/bin: use an image that has it"
)
MAX_ANSWER_BYTES = 256 << 20
LOGIN_S = 30.0
CONTROL_S = 5.0
TRUST_S = 5.0
"""How long an answer of the master counts; a call that finds it dead all the same replaces it and asks again."""
_MODULES = ("files", "facts", "tools", "generations", "sealing", "progress", "guest", "agent")
# What only one operation needs goes along with it alone: every other request would pay for compiling it. The last module answers.
_BEFORE_AGENT = {"inputs": ("arrivals", "download", "inputs")}
_PREPARING = ("jobs", "environments", "probing", "preparing")
_AFTER_AGENT = {"environment": _PREPARING, "probe": _PREPARING}
_KEY_WORDS = ("Host key verification failed", "REMOTE HOST IDENTIFICATION HAS CHANGED", "no matching host key type")
_BOOTSTRAP = """
import base64, json, sys, types, zlib
for name in ("gpuops", "gpuops.host"):
    module = types.ModuleType(name); module.__path__ = []; sys.modules[name] = module
bundle = json.loads(zlib.decompress(base64.b64decode("{bundle}")))
for name, source in bundle["modules"]:
    module = types.ModuleType("gpuops.host." + name); sys.modules[module.__name__] = module
    setattr(sys.modules["gpuops.host"], name, module)
    exec(compile(source, "gpuops/host/" + name + ".py", "exec"), module.__dict__)
sys.modules["gpuops.host." + bundle["modules"][-1][0]].main(bundle["request"])
"""


Feed = Callable[[IO[bytes]], None]
"""Writes what the agent reads after its program."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A child that ended: exit status, stdout, and stderr as text with its control characters escaped."""

    code: int
    out: bytes
    err: str


def run_child(command: Sequence[str], clock: Clock, until: Time, stdin: bytes | IO[bytes] | None = None) -> Finished:
    """Run a command until it ends or `until` (money time) comes; then it is ended with all its children.

    Raises `Unreachable` when time is over and `HostError` when the program is not installed here.
    """
    seconds = until - clock.now()
    if seconds <= 0:
        raise Unreachable(f"no time left for {command[0]}")
    feed = stdin if isinstance(stdin, bytes) else None
    source: Any = subprocess.PIPE if feed is not None else (stdin if stdin is not None else subprocess.DEVNULL)
    try:
        child = subprocess.Popen(
            command,
            stdin=source,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env=_environment(),
        )
    except FileNotFoundError as error:
        raise HostError(f"{command[0]} is not installed on this computer") from error
    try:
        out, err = child.communicate(feed, timeout=seconds)
    except subprocess.TimeoutExpired as error:
        raise Unreachable(f"{command[0]} did not end within {seconds:.0f} s") from error
    finally:
        end_group(child)
    return Finished(
        child.returncode, out[:MAX_ANSWER_BYTES], names.escape(err.decode("utf-8", "replace").strip(), "\n")[-2000:]
    )


def end_group(child: subprocess.Popen[bytes]) -> None:
    """End a child and everything in its session; nothing happens when it has ended."""
    if child.poll() is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    for pipe in (child.stdin, child.stdout, child.stderr):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()


def script(operation: str, request: dict[str, Any], token: str) -> bytes:
    """The program that goes over stdin: our modules and the request, packed. Nothing of it is a shell's business."""
    *helpers, agent = _MODULES
    needed = (*helpers, *_BEFORE_AGENT.get(operation, ()), agent, *_AFTER_AGENT.get(operation, ()))
    modules = [(name, _source(name)) for name in needed]
    bundle = json.dumps({"modules": modules, "request": {**request, "operation": operation, "token": token}})
    packed = base64.b64encode(zlib.compress(bundle.encode(), 3)).decode()
    program = _BOOTSTRAP.replace("{bundle}", packed).encode()
    return b"%d\n" % len(program) + program


def supervisor_source() -> str:
    """The text of the supervisor, which `start` puts on the host."""
    return _source("supervisor")


def new_token() -> str:
    """A line that the host's login shell cannot print by chance."""
    return "gpuops-answer-" + secrets.token_hex(16)


def read_answer(out: bytes, token: str, err: str) -> dict[str, Any]:
    """The agent's answer between its token lines.

    Raises `Unreachable` when it is not whole, `HostError` when the host refuses.
    """
    mark = b"\n" + token.encode() + b"\n"
    pieces = (b"\n" + out).split(mark)
    if len(pieces) < 3:
        raise Unreachable(f"the host's answer is not whole{': ' + err if err else ''}")
    try:
        answer = json.loads(pieces[1])
    except (ValueError, RecursionError) as error:
        raise HostError("the host's answer cannot be read") from error
    if not isinstance(answer, dict) or not isinstance(answer.get("ok"), dict):
        told = answer.get("refused") or answer.get("bug") if isinstance(answer, dict) else ""
        raise HostError(names.escape(str(told or "the host's answer cannot be read"), "\n"))
    result: dict[str, Any] = answer["ok"]
    return result


def judge(done: Finished) -> None:
    """Turn ssh's own failure (exit 255) into our errors; a wrong host key is never retried."""
    if any(word in done.err for word in _KEY_WORDS):
        raise HostKeyMismatch(f"the host that answered is not the one that was pinned: {done.err.splitlines()[-1]}")
    if done.code == 255:
        raise Unreachable(f"ssh: {done.err or 'the connection broke'}")
    if done.code == 127:
        raise HostError(NO_PYTHON)


class Connection:
    """The shared connection of one run."""

    def __init__(self, login: argv.Login, clock: Clock) -> None:
        if len(os.fsencode(login.control)) > argv.MAX_CONTROL_PATH:
            raise HostError(f"the path of the control socket is too long: {login.control}")
        self.login = login
        self.clock = clock
        self._guard = threading.Lock()
        self._known_good_until = 0.0

    def ensure(self, until: Time) -> None:
        """Find the master or start one; one login, also when several processes ask at once."""
        with self._guard, self._locked(until):
            if os.path.exists(self.login.control) and time.monotonic() < self._known_good_until:
                return
            self._known_good_until = time.monotonic() + TRUST_S
            if self._answers(until):
                return
            self._remove()
            limit = min(until, self.clock.now() + LOGIN_S)
            # in the background the master keeps its stderr: a file, because a pipe would never end
            errors = Path(self.login.control + ".err")
            with open(os.open(errors, os.O_CREAT | os.O_RDWR | os.O_TRUNC, 0o600), "r+b") as err:
                code = self._start_master(limit, err)
                err.seek(0)
                text = names.escape(err.read(4096).decode("utf-8", "replace").strip(), "\n")
            if code:
                self._known_good_until = 0.0
                judge(Finished(255 if code != 127 else 1, b"", text))
                raise Unreachable(f"ssh: {text or 'no login'}")

    def call(self, operation: str, request: dict[str, Any], until: Time, feed: Feed | None = None) -> dict[str, Any]:
        """Ask the agent; over a new master when the old one turns out to be dead (every operation may be repeated).

        `feed` writes what the operation reads beside its request, each time from the start.
        """
        token = new_token()
        program = script(operation, request, token)
        for attempt in (1, 2):
            self.ensure(until)
            try:
                with _input(program, feed) as source:
                    done = run_child(argv.execute(self.login, AGENT_COMMAND), self.clock, until, source)
                judge(done)
                return read_answer(done.out, token, done.err)
            except Unreachable:
                self.drop()
                if attempt == 2 or self.clock.now() >= until:
                    raise
        raise AssertionError("unreachable")

    def drop(self) -> None:
        """End the master and forget its socket; the next call logs in anew."""
        with self._guard, contextlib.suppress(HostError):
            self._known_good_until = 0.0
            self._remove()

    def _start_master(self, until: Time, err: IO[bytes]) -> int:
        command = argv.master(self.login, math.ceil(until - self.clock.now()))
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=err,
            start_new_session=True,
            env=_environment(),
        )
        try:
            return child.wait(timeout=max(0.1, until - self.clock.now()))
        except subprocess.TimeoutExpired as error:
            raise Unreachable("ssh: no login in time") from error
        finally:
            if child.poll() is None:
                end_group(child)

    def _answers(self, until: Time) -> bool:
        if not os.path.exists(self.login.control):
            return False
        limit = min(until, self.clock.now() + CONTROL_S)
        try:
            return run_child(argv.control(self.login, "check"), self.clock, limit).code == 0
        except Unreachable:
            return False

    def _remove(self) -> None:
        if os.path.exists(self.login.control):
            with contextlib.suppress(Unreachable):
                run_child(argv.control(self.login, "exit"), self.clock, self.clock.now() + CONTROL_S)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.login.control)

    @contextlib.contextmanager
    def _locked(self, until: Time) -> Iterator[None]:
        with open(os.open(self.login.control + ".lock", os.O_CREAT | os.O_RDWR, 0o600), "r+b") as lock:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except OSError as error:
                    if self.clock.now() >= until:
                        raise Unreachable("another process is still connecting") from error
                    threading.Event().wait(0.02)
            yield


@contextlib.contextmanager
def _input(program: bytes, feed: Feed | None) -> Iterator[bytes | IO[bytes]]:
    """What the agent reads: its program, then what `feed` writes. A thread writes, since a pipe holds only a little."""
    if feed is None:
        yield program
        return
    reader, writer = os.pipe()
    problems: list[GpuopsError] = []

    def write() -> None:
        try:
            with open(writer, "wb") as out:
                out.write(program)
                feed(out)
        except BrokenPipeError:
            pass  # the agent ended before it had read everything, and its answer says why
        except GpuopsError as error:
            problems.append(error)

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    try:
        with open(reader, "rb") as source:
            yield source
    finally:
        thread.join()
        if problems:
            raise problems[0]


def control_path(runtime_dir: Path, login_name: str) -> str:
    """A short socket path that is another one for another run, address or pinned key."""
    return str(runtime_dir / (hashlib.sha256(login_name.encode()).hexdigest()[:16] + ".s"))


def _environment() -> dict[str, str]:
    """The caller's environment without what would change what ssh and rsync do."""
    drop = (
        "SSH_AUTH_SOCK",
        "SSH_ASKPASS",
        "RSYNC_RSH",
        "RSYNC_PROXY",
        "RSYNC_CONNECT_PROG",
        "RSYNC_PARTIAL_DIR",
        "DISPLAY",
    )
    kept = {k: v for k, v in os.environ.items() if k not in drop}
    return {**kept, "LC_ALL": "C"}


def _source(name: str) -> str:
    return (Path(__file__).parent / "host" / f"{name}.py").read_text()
