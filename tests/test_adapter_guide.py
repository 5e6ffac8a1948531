"""The guide for adapter authors is held to the contract and to the kit, and its distribution is made and run."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from gpuops import provider, registry
from gpuops.testing.conformance import ConformanceWorld
from gpuops.values import Refused

ROOT = Path(__file__).parent.parent
POND = ROOT / "tests/conformance/pond"
GUIDE = (ROOT / "docs/how-to/adapter.md").read_text()
PROTOCOLS = [
    kind
    for kind in vars(provider).values()
    if getattr(kind, "_is_protocol", False) and kind.__module__ == provider.__name__
]


def section(title: str) -> str:
    return re.split(r"^##+ ", GUIDE.split(f"## {title}\n", 1)[1], maxsplit=1, flags=re.M)[0]


def first_cells(title: str) -> set[str]:
    cells = re.findall(r"^\| (`.*?) \|", section(title), re.M)
    return {name for cell in cells for name in re.findall(r"`([A-Za-z_]+)`", cell)}


def block(language: str, holds: str) -> str:
    (found,) = [text for text in re.findall(rf"```{language}\n(.*?)```", GUIDE, re.S) if holds in text]
    return found


def methods(kind: type) -> set[str]:
    return {name for name, value in vars(kind).items() if not name.startswith("_") and callable(value)}


def test_it_is_reached_from_contributing() -> None:
    assert "(docs/how-to/adapter.md)" in (ROOT / "CONTRIBUTING.md").read_text()


def test_it_names_every_call_of_the_contract_and_no_other() -> None:
    assert first_cells("What the contract asks") >= methods(provider.Provider)
    calls = set(re.findall(r"^\| `(\w+)` \|", section("What the contract asks"), re.M))
    assert calls == methods(provider.Provider)


def test_it_names_every_optional_protocol_with_its_methods_and_no_other() -> None:
    optional = [kind for kind in PROTOCOLS if kind is not provider.Provider]
    assert first_cells("What may come beside the calls") == {kind.__name__ for kind in optional}
    for kind in optional:
        row = re.search(rf"^\| `{kind.__name__}` \| (.*?) \|", GUIDE, re.M)
        assert row and set(re.findall(r"`(\w+)`", row[1])) == methods(kind), kind.__name__


def test_it_explains_every_trait_and_no_other() -> None:
    assert first_cells("Traits, row by row") == {field.name for field in dataclasses.fields(provider.Traits)}
    for grade in get_args(provider.Grade):
        assert f"`{grade}`" in section("Traits, row by row")
    for route in get_args(get_type_hints(provider.Traits)["host_key_route"]):
        assert f"`{route}`" in section("Traits, row by row")


def test_it_names_everything_in_the_world_of_the_kit_and_no_other() -> None:
    names = {
        name for name in {**vars(ConformanceWorld), **get_type_hints(ConformanceWorld)} if not name.startswith("_")
    }
    assert first_cells("The world of the kit") == names


def test_it_says_what_may_be_refused_for_in_the_words_of_the_contract() -> None:
    told = section("What `Refused` may be said for")
    for kind in ("capacity", "quota", "price"):
        assert kind in get_args(get_type_hints(Refused)["kind"]) and kind in told


def test_what_it_quotes_of_a_failing_test_is_what_the_kit_says() -> None:
    kit = "".join(path.read_text() for path in (ROOT / "gpuops/testing").glob("conformance*.py"))
    for phrase in (
        "nobody can know what came of this create call, and the adapter says ",
        "the listing shows ",
        " rentals with the nonce ",
        " s were given",
        " did not happen within ",
        " is not listed",
        "this provider tells no charges",
        "NotOfferedError",
    ):
        assert phrase in kit, f"the kit no longer says {phrase!r}"
        assert phrase.strip() in GUIDE, f"the guide no longer quotes {phrase!r}"


def test_the_files_that_it_names_are_there_and_no_other_lies_beside_them() -> None:
    named = set(re.findall(r"`(?:tests/conformance/)?([a-z_]+\.py)`", GUIDE.split("## What the contract asks")[0]))
    assert named == {path.name for path in POND.glob("*.py")}
    for path in re.findall(r"`((?:gpuops|tests|script)/[a-z_/.]+)`", GUIDE.split("## Your own distribution")[0]):
        assert (ROOT / path).exists(), path


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """The distribution as the guide shows it, made of Pond's files, with what an installation would write down."""
    told = block("toml", "[build-system]")
    entries = tomllib.loads(told)["project"]["entry-points"][registry.GROUP]
    ours, tests, info = (tmp_path / name for name in ("gpuops_pond", "tests", "gpuops_pond-0.1.0.dist-info"))
    for folder in (ours, tests, info):
        folder.mkdir()
    (tmp_path / "pyproject.toml").write_text(told)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: gpuops-pond\nVersion: 0.1.0\n")
    lines = [f"{name} = {target}" for name, target in entries.items()]
    (info / "entry_points.txt").write_text("\n".join([f"[{registry.GROUP}]", *lines]) + "\n")
    (ours / "__init__.py").touch()
    for name in ("adapter.py", "wire.py", "words.py"):
        (ours / name).write_text((POND / name).read_text())
    (tests / "pond_cloud.py").write_text((POND / "cloud.py").read_text())
    world = (POND / "world.py").read_text().replace("from .adapter", "from gpuops_pond.adapter")
    (tests / "pond_world.py").write_text(world.replace("from .cloud", "from pond_cloud"))
    (tests / "conftest.py").write_text(block("python", "register_assert_rewrite"))
    (tests / "test_pond.py").write_text(block("python", "class TestPond"))
    return tmp_path


def run(package: Path, *arguments: str) -> str:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(package), os.environ.get("PYTHONPATH", str(ROOT))]),
        "GPUOPS_HOME": str(package / "home"),
    }
    command = [sys.executable, "-m", *arguments]
    done = subprocess.run(command, cwd=package, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_kit_runs_alone_in_the_distribution_that_it_shows(package: Path) -> None:
    told = run(package, "pytest", "-q", "-p", "no:cacheprovider", "-k", "traits or charged")
    assert "passed" in told and "this provider tells no charges" in told


def test_an_assertion_of_the_kit_shows_its_values_there(package: Path) -> None:
    words = package / "gpuops_pond/words.py"
    words.write_text(words.read_text().replace('"draining": "ending"', '"draining": "terminal"'))
    with pytest.raises(AssertionError, match="'terminal' not in"):
        run(package, "pytest", "-q", "-p", "no:cacheprovider", "-k", "ending")


def test_the_distribution_that_it_shows_is_a_provider_of_gpuops(package: Path) -> None:
    assert re.search(r"^pond\s+none\s+injected", run(package, "gpuops", "providers"), re.M)
    (package / "secrets_of_pond.py").write_text("from gpuops.registry import credential_names as c\nprint(c('pond'))\n")
    assert "POND_TOKEN" in run(package, "secrets_of_pond")
