"""Adapters are found by name, and only the one asked for is imported."""

from __future__ import annotations

import sys
from importlib.metadata import Distribution, EntryPoint, distributions
from pathlib import Path

import pytest

from gpuops import registry
from gpuops.errors import UsageError

METADATA = """\
Metadata-Version: 2.1
Name: {name}
Version: 1
Provides-Extra: stormy
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an installed package that offers adapters, good and bad."""
    (tmp_path / "fair_adapter.py").write_text("def provider(**given):\n    return ('fair', given)\nnumber = 3\n")
    (tmp_path / "stormy_adapter.py").write_text("import sdk_of_the_storm.client\n")
    (tmp_path / "broken_adapter.py").write_text("from fair_adapter import no_such_thing\n")
    install(
        tmp_path,
        "weather",
        fair="fair_adapter:provider",
        stormy="stormy_adapter:provider",
        hail="stormy_adapter:provider",
        broken="broken_adapter:provider",
        absent="fair_adapter:missing",
        number="fair_adapter:number",
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    for module in ("fair_adapter", "stormy_adapter", "broken_adapter"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    return tmp_path


def install(site: Path, name: str, **adapters: str) -> None:
    info = site / f"{name}-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(METADATA.format(name=name))
    lines = [f"[{registry.GROUP}]", *(f"{key} = {value}" for key, value in adapters.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")


def offered(site: Path) -> tuple[EntryPoint, ...]:
    found: list[Distribution] = list(distributions(path=[str(site)]))
    return tuple(entry for distribution in found for entry in distribution.entry_points)


def test_listing_names_imports_nothing(site: Path) -> None:
    assert registry.names(offered(site)) == ("absent", "broken", "fair", "hail", "number", "stormy")
    assert not {"fair_adapter", "stormy_adapter", "broken_adapter"} & sys.modules.keys()


def test_only_the_one_asked_for_is_imported(site: Path) -> None:
    assert registry.factory("fair", offered(site))(secret=1) == ("fair", {"secret": 1})
    assert "fair_adapter" in sys.modules and "stormy_adapter" not in sys.modules


def test_an_installed_third_party_is_found_without_being_named(site: Path) -> None:
    assert "fair" in registry.names()
    assert registry.factory("fair")() == ("fair", {})


def test_an_unknown_name_lists_the_known_ones(site: Path) -> None:
    with pytest.raises(UsageError, match="no provider 'fare'; known: absent, broken, fair") as caught:
        registry.factory("fare", offered(site))
    assert caught.value.exit_code == 2


def test_with_nothing_installed_it_says_what_to_install() -> None:
    with pytest.raises(UsageError, match="known: none; install gpuops-cli"):
        registry.factory("local", ())


def test_a_missing_library_names_the_extra(site: Path) -> None:
    with pytest.raises(
        UsageError, match=r"needs sdk_of_the_storm, which is not installed: pip install 'weather\[stormy\]'"
    ):
        registry.factory("stormy", offered(site))


def test_a_missing_library_without_an_extra_names_the_module(site: Path) -> None:
    with pytest.raises(UsageError, match="pip install 'sdk_of_the_storm'"):
        registry.factory("hail", offered(site))


@pytest.mark.parametrize("name", ["broken", "absent"])
def test_a_broken_adapter_does_not_vanish_without_a_word(site: Path, name: str) -> None:
    with pytest.raises(UsageError, match=rf"the provider '{name}' \(weather\) cannot be loaded"):
        registry.factory(name, offered(site))


def test_an_entry_point_that_is_no_function_is_refused(site: Path) -> None:
    with pytest.raises(UsageError, match="fair_adapter:number is not a function"):
        registry.factory("number", offered(site))


def test_two_packages_with_the_same_name_are_not_guessed_between(site: Path) -> None:
    install(site, "impostor", fair="impostor:provider")
    with pytest.raises(
        UsageError, match=r"two packages offer a provider 'fair': fair_adapter:provider \(weather\) and"
    ):
        registry.factory("fair", offered(site))
