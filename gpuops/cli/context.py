"""Assembles the ports of one process. With `registry` the only place of lazy imports: `status` loads no ssh and no provider."""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuops.cli.home import Home, find_home
from gpuops.cli.interrupts import Interrupts
from gpuops.cli.output import Printer, write_bug
from gpuops.errors import GpuopsError, JournalError, UsageError
from gpuops.journal import SqliteJournal

if TYPE_CHECKING:
    from gpuops.credentials import Credentials, Redactor
    from gpuops.hostkeys import Jump
    from gpuops.locks import FileLocks
    from gpuops.ports import Clock, Ports
    from gpuops.provider import Provider
    from gpuops.records import RunId
    from gpuops.state import RunState


SENSELESS = (GpuopsError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError)
"""What the fold of damaged records may raise."""


class LazyKeyring:
    """The keyring library, imported at the first use: most commands find what they need in the environment."""

    @cached_property
    def _library(self) -> Any:
        import keyring

        return keyring

    def get_password(self, service_name: str, username: str) -> str | None:
        """See `keyring`."""
        found: str | None = self._library.get_password(service_name, username)
        return found

    def set_password(self, service_name: str, username: str, password: str) -> None:
        """See `keyring`."""
        self._library.set_password(service_name, username, password)

    def delete_password(self, service_name: str, username: str) -> None:
        """See `keyring`."""
        self._library.delete_password(service_name, username)


@dataclass
class App:
    """What a command works with; the expensive parts are made when first asked for."""

    home: Home
    printer: Printer
    interrupts: Interrupts = field(default_factory=Interrupts)
    _providers: dict[str, Provider] = field(default_factory=dict)

    @cached_property
    def journal(self) -> SqliteJournal:
        """The user's journal."""
        return SqliteJournal(self.home.journal)

    @cached_property
    def redactor(self) -> Redactor:
        """Keeps secrets out of what is printed and written."""
        from gpuops.credentials import PROCESS

        return PROCESS

    @cached_property
    def credentials(self) -> Credentials:
        """Environment, then keyring."""
        from gpuops.credentials import Credentials

        return Credentials(os.environ, LazyKeyring(), self.redactor)

    @cached_property
    def locks(self) -> FileLocks:
        """Advisory locks."""
        from gpuops.locks import FileLocks

        return FileLocks(self.home.runs)

    @cached_property
    def clock(self) -> Clock:
        """Money time of this process."""
        from gpuops.clock import MoneyClock

        return MoneyClock(self.journal.clock_offset() if self.home.journal.exists() else 0.0)

    def provider(self, name: str) -> Provider:
        """The adapter `name`, made once. Raises `UsageError` or `CredentialsError`."""
        if name not in self._providers:
            from gpuops.registry import factory

            settings = {k: str(v) for k, v in self.home.providers.get(name, {}).items()}
            self._providers[name] = factory(name)(settings, self.credentials.secret, self.clock.now)
        return self._providers[name]

    def _jump(self) -> Jump | None:
        """The jump host of `config.toml`."""
        from gpuops.hostkeys import Jump
        from gpuops.values import Endpoint

        given = self.home.jump
        if not given:
            return None
        if not given["port"].isdigit():
            config = self.home.path / "config.toml"
            problem = f"{config}: [ssh.jump] port {given['port']!r} is no number"
            raise UsageError(problem, next_command=f"mend {config}")
        endpoint = Endpoint(given["host"], int(given["port"]), given["user"])
        return Jump(endpoint, given["host_key"], os.path.expanduser(given["identity_file"]))

    @cached_property
    def ports(self) -> Ports:
        """The real ports."""
        from gpuops.notify import FileLog
        from gpuops.ports import Ports
        from gpuops.ssh import SshHost
        from gpuops.store import LocalStore

        for folder in (self.home.runs, self.home.runtime):
            # what needs it says so itself; asking a provider and ending a rental do not
            with contextlib.suppress(OSError):
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return Ports(
            clock=self.clock,
            journal=self.journal,
            providers=self.provider,
            host=SshHost(self.home.runs, self.home.runtime, self.clock, self._jump()),
            store=LocalStore(),
            notify=FileLog(self.home.path / "gpuops.log", self.clock.wall, self.redactor),
            locks=self.locks,
            secret=self.credentials.secret,
            random_bytes=os.urandom,
            progress=self._progress,
            authorized_keys=tuple(_public_key(k) for k in self.home.authorized_keys),
            bug=lambda what, error: self.printer.line(f"bug: {write_bug(what, error, self.home.path, self.redactor)}"),
            clean=self.redactor,
            shield=self.interrupts.shield,
        )

    def warm_up(self) -> None:
        """Import what the first login needs, beside the wait for the machine: it takes longer than the login itself.

        No daemon thread: one that is torn out of a compiled module when the process ends takes the exit code with it.
        """
        import importlib
        import threading

        threading.Thread(target=importlib.import_module, args=("gpuops.firstlogin",)).start()

    def state(self, run: RunId) -> RunState:
        """The state of a run; reads the journal only."""
        from gpuops.fold import fold

        state = fold(self.journal.records(run))
        if state is None:
            raise UsageError(f"no run {run!r}", next_command="gpuops status")
        return state

    def states(self, *, open_only: bool = False) -> list[RunState]:
        """All runs, oldest first. One that cannot be read is said to, and hides none of the others."""
        found = []
        for run in self.journal.runs(open_only=open_only):
            try:
                found.append(self.state(run))
            except JournalError:
                raise
            except SENSELESS as error:
                self.printer.line(
                    f"ALARM: the records of run {run} make no sense ({error}); it may bill.  next: gpuops reconcile"
                )
        return found

    def find(self, name: str | None, *, open_only: bool = False) -> RunState:
        """The run called `name`: an id, the start of one, or the name in its manifest; without a name the only open one."""
        states = self.states()
        if name is None:
            found = [s for s in states if not s.closed]
            if not found and not open_only and states:
                found = states[-1:]
                self.printer.line(f"No run is open; this is the last one: {found[0].run}, closed.")
        else:
            found = [s for s in states if s.run == name] or [s for s in states if s.spec.name == name]
            found = found or [s for s in states if s.run.startswith(name)]
            found = [s for s in found if not s.closed] or found[-1:]
        if not found:
            raise UsageError(f"no run {name!r}" if name else "there is no open run", next_command="gpuops status")
        if len(found) > 1:
            raise UsageError(f"which run? {', '.join(s.run for s in found)}", next_command="gpuops status")
        return found[0]

    def _progress(self, what: str, done: float, total: float) -> None:
        if self.printer.live and total > 0:
            from gpuops.render import size_text

            self.printer.progress(f"{what}: {size_text(done)} of {size_text(total)}, {100 * done / total:.0f} %")


def _public_key(text: str) -> str:
    """A key given as text, or as the path of a .pub file."""
    if text.startswith(("ssh-", "ecdsa-", "sk-")):
        return text
    try:
        return Path(text).expanduser().read_text().strip()
    except OSError as error:
        raise UsageError(
            f"config.toml, ssh.authorized_keys: {text}: {error.strerror}", next_command="edit config.toml"
        ) from None


def make_app(*, as_json: bool = False) -> App:
    """The app of this process."""
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    return App(find_home(os.environ), Printer(as_json=as_json))
