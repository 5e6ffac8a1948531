"""What goes wrong between an adapter and its cloud: nothing of it may look like an empty account or a missing machine."""

from __future__ import annotations

import pytest

from gpuops.errors import CredentialsError, GpuopsError, ProviderError, RateLimited
from gpuops.testing.conformance_world import (
    ANSWER_S,
    ConformanceWorld,
    blind,
    by_nonce,
    created,
    in_time,
    listed,
    offered,
    ordered,
    pass_lag,
    seen,
    unknown,
)

_SHORT_S = 1.0
"""What a call gets that is never answered: it must be over by then, whatever the HTTP library's own timeout says."""


class WireConformance:
    """The tests of an adapter that speaks HTTP; part of `ProviderConformance`."""

    @pytest.fixture
    def world(self) -> ConformanceWorld:
        """To be overridden."""
        raise NotImplementedError

    @pytest.fixture
    def wire(self, world: ConformanceWorld) -> ConformanceWorld:
        """The world, where there is a wire."""
        if not world.speaks_http:
            pytest.skip("this adapter does not speak HTTP")
        return world

    @pytest.mark.parametrize("fault", ["cut_connection", "answer_late"])
    def test_a_create_call_that_is_cut_off_is_unknown_and_found_by_nonce(
        self, wire: ConformanceWorld, fault: str
    ) -> None:
        order = ordered(wire)
        offered(wire, getattr(wire, fault))
        with in_time(_SHORT_S):
            unknown(wire, order, _SHORT_S)
        pass_lag(wire)
        assert len(by_nonce(wire, order.mark.nonce)) == 1

    @pytest.mark.parametrize("retry_after_s", [None, 7.0])
    def test_too_many_requests_is_told_with_the_time_to_wait(
        self, wire: ConformanceWorld, retry_after_s: float | None
    ) -> None:
        ref = created(wire, ordered(wire))
        offered(wire, lambda: wire.throttle(retry_after_s))
        with in_time(0), pytest.raises(RateLimited) as raised:  # told, not waited for
            seen(wire, ref)
        assert raised.value.retry_after_s == (retry_after_s or 0.0)
        assert blind(wire)

    def test_too_many_requests_is_no_answer_to_a_create_call(self, wire: ConformanceWorld) -> None:
        # public incident: a create call was answered by 429 after the launch
        order = ordered(wire)
        offered(wire, lambda: wire.throttle(None))
        unknown(wire, order)

    def test_an_error_page_is_neither_an_empty_account_nor_a_missing_machine(self, wire: ConformanceWorld) -> None:
        ref, order = created(wire, ordered(wire)), ordered(wire)
        offered(wire, wire.answer_html)
        assert blind(wire)
        for call in (lambda: seen(wire, ref), wire.provider.account):
            with pytest.raises(ProviderError):
                call()
        unknown(wire, order)

    def test_forbidden_is_neither_an_empty_account_nor_a_missing_machine(self, wire: ConformanceWorld) -> None:
        ref = created(wire, ordered(wire))
        offered(wire, wire.forbid)
        assert blind(wire)
        with pytest.raises(GpuopsError):
            seen(wire, ref)

    def test_not_found_under_bad_credentials_is_not_absent(self, wire: ConformanceWorld) -> None:
        # public incident: a revoked key was answered by 404, and that was taken for the end of the machine
        ref = created(wire, ordered(wire))
        offered(wire, wire.mask_credentials)
        with pytest.raises(CredentialsError):
            seen(wire, ref)
        with pytest.raises(CredentialsError):
            wire.provider.terminate(ref, wire.now() + ANSWER_S)
        assert blind(wire)

    def test_a_look_that_fails_is_not_absent(self, wire: ConformanceWorld) -> None:
        ref = created(wire, ordered(wire))
        offered(wire, wire.fail_looks)
        with pytest.raises(GpuopsError):
            seen(wire, ref)

    def test_a_listing_that_breaks_off_is_not_complete(self, wire: ConformanceWorld) -> None:
        made = {created(wire, ordered(wire)) for _ in range(3)}
        pass_lag(wire)
        whole = listed(wire)
        assert not whole.gaps
        assert made <= {item.ref for item in whole.items}, "a page is missing"
        offered(wire, wire.break_pages)
        assert blind(wire)
