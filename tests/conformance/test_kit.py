"""The conformance kit finds each mistake that an adapter can make: every row is one mistake in the model adapter."""

from __future__ import annotations

from pathlib import Path

import pytest
from conformance.mutants import MUTANTS, Mutant
from conformance.pond.cloud import Pond, served
from conformance.pond.world import PondWorld
from conformance.test_pond import TestPond as Suite

from gpuops.errors import GpuopsError

FOUND = (AssertionError, pytest.fail.Exception, GpuopsError, ValueError)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.does.replace(" ", "-"))
def test_the_kit_finds_an_adapter_that(mutant: Mutant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    factory = mutant.factory(tmp_path, f"pond_mutant_{MUTANTS.index(mutant)}")
    test = getattr(Suite(), mutant.caught_by)
    pond = Pond()
    with served(pond) as url, pytest.raises(FOUND):
        test(PondWorld(pond, url, factory), *mutant.given)
