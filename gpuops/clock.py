"""Money time on a real computer: the provider's time, carried on by a clock that goes on while the computer sleeps."""

from __future__ import annotations

import time

from gpuops.values import Time

_JITTER_S = 1.5
"""Answers take time to arrive and vendors round to seconds: a smaller difference is no news."""
_DRIFT = 0.05
"""Two answers agree when the time between them passed as it did here, give or take this part."""


def _ticks() -> float:
    """Seconds of a clock that counts suspend. CLOCK_BOOTTIME is Linux; elsewhere the wall clock, which the OS corrects."""
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    return time.clock_gettime(boot) if boot is not None else time.time()


class MoneyClock:
    """Starts at this computer's time and follows the provider's as soon as an answer tells it."""

    def __init__(self, offset_s: float = 0.0) -> None:
        """`offset_s`: how far the provider's time was ahead of this computer's when it was last known."""
        self._at = time.time() + offset_s
        self._ticks = _ticks()
        self._told: tuple[Time, float] | None = None
        """The provider's last word, and when it was heard."""

    def now(self) -> Time:
        """Money time."""
        return self._at + (_ticks() - self._ticks)

    def wall(self) -> Time:
        """This computer's own time."""
        return time.time()

    def learn(self, provider_time: Time) -> None:
        """Follow the provider when it differs by more than rounding.

        The first word counts at once. A later one that contradicts it counts when the next one agrees with it: a time that
        stands still, as behind a cache, would otherwise hold the limit back for ever.
        """
        before, ticks = self._told, _ticks()
        self._told = provider_time, ticks
        if abs(provider_time - self.now()) <= _JITTER_S:
            return
        if before is not None:
            elapsed = ticks - before[1]
            if abs(provider_time - before[0] - elapsed) > max(_JITTER_S, _DRIFT * elapsed):
                return
        self._at, self._ticks = provider_time, ticks

    def heard(self) -> bool:
        """An answer has told the provider's time."""
        return self._told is not None

    def sleep_until(self, at: Time) -> None:
        """Sleep until money time `at`; wakes late after a suspend, never early."""
        while (left := at - self.now()) > 0:
            # short pieces: `sleep` does not count the time of a suspended computer
            time.sleep(min(left, 1.0))
