"""What this computer and this account must have for AWS, found by looking: changes nothing."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable

from gpuops.errors import GpuopsError
from gpuops.values import Finding

from .settings import Settings


def examine(account: Callable[[], str], settings: Settings) -> tuple[Finding, ...]:
    """The library, whose credentials there are, and whether there is a timer on AWS's side."""
    return (_library(), _credentials(account), _timer(settings))


def _library() -> Finding:
    try:
        return Finding("boto3", "ok", f"{importlib.metadata.version('boto3')}: speaks to AWS")
    except importlib.metadata.PackageNotFoundError:
        return Finding("boto3", "missing", "not installed: speaks to AWS", "pip install boto3")


def _credentials(account: Callable[[], str]) -> Finding:
    try:
        return Finding("AWS credentials", "ok", f"account {account()}")
    except ModuleNotFoundError:
        return Finding("AWS credentials", "missing", "cannot be asked for without boto3", "pip install boto3")
    except GpuopsError as error:
        return Finding("AWS credentials", "missing", error.message, error.next_command)


def _timer(settings: Settings) -> Finding:
    if settings.scheduler_role:
        return Finding("AWS timer", "ok", f"EventBridge Scheduler ends instances as {settings.scheduler_role}")
    said = "no scheduler_role: nothing on AWS's side ends a machine, only the timer inside it and the guard here"
    return Finding("AWS timer", "warning", said, "docs/how-to/aws.md, The timer on AWS's side")
