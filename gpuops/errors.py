"""One small tree of errors; each class owns its exit code.

    GpuopsError                     1   a bug, or anything without a better name
    ├── UsageError                  2   manifest, arguments or credentials are wrong; nothing was bought
    │   ├── ManifestError           2   with file:line and key path
    │   └── CredentialsError        2
    ├── GateRefused                 3   a safety gate said no, or a scope that is not ours is unproved
    ├── ProviderError               4   the provider's answer is an error, or there was none: outcome unknown
    │   ├── RateLimited             4   try again later; nothing was decided
    │   └── Unreadable              4   an answer that cannot be understood; never an empty list
    ├── HostError                   4   the rented host failed
    │   ├── Unreachable             4   no connection, or it broke
    │   ├── HostKeyMismatch         4   somebody else answered: never retried, never accepted
    │   └── ListChanged             4   what was approved for sending is not what lies there now: list and ask again
    ├── CopyError                   4   a copy does not match what was sealed
    ├── MayBill                     5   something of ours may still be billing; outranks all others
    ├── TrainingIncomplete          6   training did not complete; teardown is complete
    ├── Stale                       1   a decision was made on an old version: read again
    └── JournalError                1   the journal cannot be read or written

Foreign exceptions are translated where the foreign library is called, and nowhere else.
"""

from __future__ import annotations


class GpuopsError(Exception):
    """Base of every error that gpuops raises on purpose; `next_command` is what the user should type."""

    exit_code = 1
    code = "error"

    def __init__(self, message: str, *, may_bill: tuple[str, ...] = (), next_command: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.may_bill = may_bill
        self.next_command = next_command


class UsageError(GpuopsError):
    """Arguments are wrong; nothing was bought."""

    exit_code, code = 2, "usage"


class ManifestError(UsageError):
    """The manifest is wrong at `file:line`, key `key`."""

    code = "manifest"

    def __init__(self, message: str, *, file: str = "", line: int = 0, key: str = "") -> None:
        where = f"{file}:{line}: " if file else ""
        again = f"mend the file, then again: gpuops check {file}" if file else ""
        super().__init__(f"{where}{key + ': ' if key else ''}{message}", next_command=again)
        self.file, self.line, self.key = file, line, key


class CredentialsError(UsageError):
    """Credentials are missing, expired or lack a right."""

    code = "credentials"


class GateRefused(GpuopsError):
    """A safety gate refused to go on."""

    exit_code, code = 3, "refused"


class ProviderError(GpuopsError):
    """The provider failed or did not answer; what it did is unknown."""

    exit_code, code = 4, "provider"


class RateLimited(ProviderError):
    """The provider asks to wait `retry_after_s` seconds."""

    code = "rate_limited"

    def __init__(self, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Unreadable(ProviderError):
    """An answer arrived that cannot be understood; it is never taken for an empty one."""

    code = "unreadable"


class HostError(GpuopsError):
    """The rented host failed or refused."""

    exit_code, code = 4, "host"


class Unreachable(HostError):
    """The host cannot be reached, or the connection broke."""

    code = "unreachable"


class HostKeyMismatch(HostError):
    """The host that answered is not the one that was bought."""

    code = "host_key"


class ListChanged(HostError):
    """A file that is to be sent changed after the list was approved; nothing was sent."""

    code = "list_changed"


class CopyError(GpuopsError):
    """A copied file differs from the sealed list, or could not be written."""

    exit_code, code = 4, "copy"


class MayBill(GpuopsError):
    """Something of ours may still be billing."""

    exit_code, code = 5, "may_bill"


class TrainingIncomplete(GpuopsError):
    """Training failed, was interrupted, or ended without a verified result; teardown is complete."""

    exit_code, code = 6, "training_incomplete"


class Stale(GpuopsError):
    """The run moved on since this decision was made."""

    code = "stale"


class JournalError(GpuopsError):
    """The journal cannot be read or written."""

    code = "journal"
