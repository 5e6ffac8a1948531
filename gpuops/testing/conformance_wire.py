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
    offered,
    pass_lag,
    seen,
)


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
        offered(wire, getattr(wire, fault))
        order = wire.order()
        with pytest.raises(GpuopsError):
            wire.provider.provision(order, wire.now() + ANSWER_S / 10)
        pass_lag(wire)
        assert len(by_nonce(wire, order.mark.nonce)) == 1

    @pytest.mark.parametrize("retry_after_s", [None, 7.0])
    def test_too_many_requests_is_told_with_the_time_to_wait(
        self, wire: ConformanceWorld, retry_after_s: float | None
    ) -> None:
        ref = created(wire, wire.order())
        offered(wire, lambda: wire.throttle(retry_after_s))
        with pytest.raises(RateLimited) as raised:
            seen(wire, ref)
        assert raised.value.retry_after_s == (retry_after_s or 0.0)
        assert blind(wire)

    def test_too_many_requests_is_no_answer_to_a_create_call(self, wire: ConformanceWorld) -> None:
        # public incident: a create call was answered by 429 after the launch
        offered(wire, lambda: wire.throttle(None))
        with pytest.raises(GpuopsError):
            wire.provider.provision(wire.order(), wire.now() + ANSWER_S)

    def test_an_error_page_is_neither_an_empty_account_nor_a_missing_machine(self, wire: ConformanceWorld) -> None:
        ref = created(wire, wire.order())
        offered(wire, wire.answer_html)
        assert blind(wire)
        for call in (lambda: seen(wire, ref), wire.provider.account):
            with pytest.raises(ProviderError):
                call()
        with pytest.raises(GpuopsError):
            wire.provider.provision(wire.order(), wire.now() + ANSWER_S)

    def test_forbidden_is_neither_an_empty_account_nor_a_missing_machine(self, wire: ConformanceWorld) -> None:
        ref = created(wire, wire.order())
        offered(wire, wire.forbid)
        assert blind(wire)
        with pytest.raises(GpuopsError):
            seen(wire, ref)

    def test_not_found_under_bad_credentials_is_not_absent(self, wire: ConformanceWorld) -> None:
        ref = created(wire, wire.order())
        offered(wire, wire.mask_credentials)
        with pytest.raises(CredentialsError):
            seen(wire, ref)
        assert blind(wire)

    def test_a_listing_that_breaks_off_is_not_complete(self, wire: ConformanceWorld) -> None:
        for _ in range(3):
            created(wire, wire.order())
        pass_lag(wire)
        assert not blind(wire)
        offered(wire, wire.break_pages)
        assert blind(wire)
