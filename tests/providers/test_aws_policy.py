"""The policy that the how-to hands out has every call that the adapter can make, and no other."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path

from botocore import xform_name
from botocore.loaders import Loader
from gpuops_providers import aws
from gpuops_providers.aws.kinds import ENDS, SOURCES

PACKAGE = Path(aws.__file__).parent
HOW_TO = Path(__file__).resolve().parents[2] / "docs" / "how-to"
PREFIXES = {"efs": "elasticfilesystem"}
BESIDE = {"iam:PassRole"}
"""What a call needs although it is no call itself: handing a role to the scheduler."""
OF_EC2 = ("_change", "_every")
"""Helpers that take the name of a call to EC2."""
PASSED_ON = {"pages", "found", "terminate", "_change", "_every"}
"""Functions that make a call whose name they were given: its names are collected where they are written."""


def written_calls() -> Iterator[tuple[str, str]]:
    """(service, method) of every call that is written down in the package, and in its tables."""
    for source in SOURCES:
        yield source.service, source.method
    for service, method, _ in ENDS.values():
        yield service, method
    for path in sorted(PACKAGE.glob("*.py")):
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef):
                yield from calls_in(function)


def calls_in(function: ast.FunctionDef) -> Iterator[tuple[str, str]]:
    for node in ast.walk(function):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        texts = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
        if name in ("call", "pages") and len(node.args) > 2:
            method = node.args[2]
            if isinstance(method, ast.Constant) and isinstance(node.args[0], ast.Constant):
                yield str(node.args[0].value), str(method.value)
            else:
                assert function.name in PASSED_ON, f"{function.name} makes a call whose name is not written there"
        elif name in OF_EC2:
            yield "ec2", texts[0]


def action(service: str, method: str) -> str:
    """The name of a call in a policy. Raises KeyError when the service has no such call."""
    operations = Loader().load_service_model(service, "service-2")["operations"]
    return f"{PREFIXES.get(service, service)}:{({xform_name(name): name for name in operations})[method]}"


def granted() -> set[str]:
    policy = json.loads((HOW_TO / "aws-policy.json").read_text())
    found: set[str] = set()
    for statement in policy["Statement"]:
        actions = statement["Action"]
        found |= {actions} if isinstance(actions, str) else set(actions)
    return found


def test_the_policy_has_every_call_and_no_other() -> None:
    made = {action(service, method) for service, method in set(written_calls())}
    assert len(made) > 40
    assert granted() == made | BESIDE


def test_what_changes_or_ends_something_needs_a_mark_on_it() -> None:
    policy = json.loads((HOW_TO / "aws-policy.json").read_text())
    for statement in policy["Statement"]:
        actions = {statement["Action"]} if isinstance(statement["Action"], str) else set(statement["Action"])
        ends = {
            a for a in actions if a.split(":")[1].startswith(("Terminate", "Delete", "Cancel", "Deregister", "Release"))
        }
        if ends - {"scheduler:DeleteSchedule"}:
            assert statement["Condition"] == {"StringLike": {"aws:ResourceTag/gpuops:run": "*"}}, statement["Sid"]


def test_the_timers_role_may_do_one_thing_to_what_carries_a_mark() -> None:
    trust = json.loads((HOW_TO / "aws-timer-trust.json").read_text())["Statement"]
    (may,) = json.loads((HOW_TO / "aws-timer-policy.json").read_text())["Statement"]
    assert [s["Principal"] for s in trust] == [{"Service": "scheduler.amazonaws.com"}]
    assert may["Action"] == "ec2:TerminateInstances"
    assert may["Condition"] == {"StringLike": {"aws:ResourceTag/gpuops:run": "*"}}


def test_the_how_to_names_every_setting() -> None:
    from gpuops_providers.aws.settings import Settings

    text = (HOW_TO / "aws.md").read_text()
    assert [name for name in Settings.__dataclass_fields__ if f"| `{name}` |" not in text] == []
