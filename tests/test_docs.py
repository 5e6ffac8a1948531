"""Documentation is held to the code: commands, exit codes, the contract, modules, the screen in the README."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

from gpuops import errors
from gpuops.cli import COMMANDS, EPILOG
from gpuops.cli.home import CONFIG_TABLES
from gpuops.policy import Policy

ROOT = Path(__file__).parent.parent
SCREEN = ("gpuops/render.py", "gpuops/narration.py", "gpuops/cli/driving.py")
README = (ROOT / "README.md").read_text()


def test_every_command_has_a_module_with_help_and_an_example() -> None:
    for name, (module, line) in COMMANDS.items():
        source = (ROOT / "gpuops" / "cli" / f"{module}.py").read_text()
        assert "Example" in source, f"{name} has no example in its help"
        assert line.endswith("."), name


def test_the_readme_names_only_commands_that_exist_and_all_that_people_type() -> None:
    named = set(re.findall(r"`gpuops ([a-z]+)", README))
    assert named <= set(COMMANDS)
    assert {
        "doctor",
        "init",
        "check",
        "plan",
        "up",
        "launch",
        "watch",
        "down",
        "run",
        "status",
        "reconcile",
        "extend",
        "adopt",
    } <= named


def test_exit_codes_of_errors_stand_in_the_reference_and_in_help() -> None:
    reference = (ROOT / "docs/reference/exit-codes.md").read_text()
    codes = {c.exit_code for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, errors.GpuopsError)}
    for code in codes | {0}:
        assert f"| {code} |" in reference
        assert re.search(rf"(^|[\s;:]){code} ", EPILOG), f"{code} is not in --help"
        assert re.search(rf"(\*\*|[\s,]){code} ", README), f"{code} is not in the README"


def test_the_tree_of_errors_is_drawn_as_it_is() -> None:
    drawing = errors.__doc__ or ""
    for name, cls in inspect.getmembers(errors, inspect.isclass):
        match = re.search(rf"\b{name}\s+(\d)", drawing)
        assert match, f"{name} is not in the drawing"
        assert int(match[1]) == cls.exit_code, name


def test_architecture_names_every_module_of_the_core() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    for name in re.findall(r"`gpuops/([a-z_]+\.py)`", text):
        assert (ROOT / "gpuops" / name).exists(), name
    for name in (
        "engine",
        "stages",
        "fold",
        "state",
        "policy",
        "cost",
        "journal",
        "ssh",
        "store",
        "ports",
        "provider",
        "guard",
    ):
        assert name in text


def test_configuration_names_every_table_and_no_other() -> None:
    text = (ROOT / "docs/reference/configuration.md").read_text()
    tables = {t.split(".")[0] for t in re.findall(r"^\[+([a-z_.]+)\]", text, re.M)}
    assert tables == set(CONFIG_TABLES)
    numbers = re.findall(r"^([a-z_]+_s) = \d", text, re.M)
    assert set(numbers) <= set(Policy.__dataclass_fields__)


def test_links_in_documents_lead_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert "://" in target or (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_screen_in_the_readme_is_made_of_what_the_program_prints() -> None:
    screen = re.search(r"<!-- screen.*?```\n(.*?)```", README, re.S)
    assert screen
    tree = ast.parse(
        "\n".join((ROOT / f).read_text().replace("from __future__ import annotations\n", "") for f in SCREEN)
    )
    texts = [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    for phrase in (
        "Rental bought: ", "Host key pinned (", "Host checks", "Transfer, dry run (nothing sent yet)",
        "Transferred and verified on the host by sha256: ", "Training started in tmux; it goes on when this terminal closes",
        "Sealed: training ", "Copied and verified from disk: ", "Proof of termination, round ", "Reconcile (complete listing)",
        "if this computer is off", "costs at most", "whatever went wrong, the machine ends then, ", "what survives",
    ):  # fmt: skip
        assert phrase in screen[1], f"the README no longer shows {phrase!r}"
        assert any(phrase in t for t in texts), f"the program no longer prints {phrase!r}"


def test_the_journals_reference_names_every_kind_that_is_written_and_no_other() -> None:
    written: set[str] = set()
    for file in [p for p in (ROOT / "gpuops").rglob("*.py") if "testing" not in p.parts]:
        for call in [n for n in ast.walk(ast.parse(file.read_text())) if isinstance(n, ast.Call)]:
            if (
                getattr(call.func, "id", "") in ("fact", "Event")
                and call.args
                and isinstance(call.args[0], ast.Constant)
            ):
                written.add(call.args[0].value)
    rows = re.findall(r"^\| (`[^|]*) \|", (ROOT / "docs/reference/journal.md").read_text(), re.M)
    named = {name for row in rows for name in re.findall(r"`([a-z_]+)`", row)}
    assert written - {"extend_wanted", "shortened"} == named - {"extend_wanted", "shortened"}
