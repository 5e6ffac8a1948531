"""Every horizon, gap, poll and hold in one frozen record, each with its reason. Seconds unless the name says otherwise."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from typing import Any

from gpuops.spec import Timeouts


@dataclass(frozen=True, slots=True)
class Policy:
    """The numbers of one driver; `config.toml` may replace them under `[policy]`."""

    # buying
    preflight_fresh_s: float = 60
    """A preflight older than this is made again before an intent."""
    send_window_s: float = 30
    """A create call is sent only this long after its intent: a laptop that slept must not buy on waking."""
    accept_s: float = 30
    """How long after `send_before` a request already under way may still be accepted."""
    call_s: float = 30
    """Bound on one call to a provider or host."""
    intents_max: int = 3
    """Intents per run, beside those for lost rentals, so that no fault can make a run buy without end."""
    further_offers: int = 4
    """So many other offers stand in, one after the other, for one that the provider refuses for want of capacity."""
    further_rate: float = 1.5
    """None of them costs more than this times the first one."""
    arm_s: float = 60
    """The guard must show within this time that it reaches the account; otherwise nothing is bought."""
    replace_least_s: float = 900
    """A lost rental is not replaced for less time than this: renting, checking and sending take most of it."""
    search_fast_s: float = 120
    search_fast_every_s: float = 5
    search_active_s: float = 900
    search_active_every_s: float = 15
    search_end_s: float = 86_400
    search_slow_every_s: float = 1_800
    give_up_attempts: int = 30
    """A free object that cannot be removed is given up after `search_end_s` and so many attempts: two hours awake."""
    twin_horizon_s: float = 900
    """A second hit created later than `send_before` plus this is somebody's clone of our mark."""

    # waiting for the host
    allocate_s: float = 900
    """Create call → running with an endpoint, or fetching its image."""
    image_s: float = 1_800
    """The provider tells that the image is fetched → running with an endpoint."""
    allocate_part: float = 0.2
    """The gap between looks at a starting rental, as a part of its age: waiting costs at most this much more."""
    allocate_every_s: tuple[float, float] = (0.3, 5)
    """The shortest and the longest gap between those looks."""
    ssh_s: float = 300
    """Endpoint known → reached and checked."""
    ssh_every_s: float = 0.5
    checks_s: float = 30
    """One look at the host, from the login to the last fact."""
    install_s: float = 180
    """Installing missing tools during the check, where the manifest says `host.tools: install`."""
    launch_s: float = 300
    """Wish to launch → supervisor started, without the transfer."""
    transfer_s: float = 14_400
    """Longest transfer; the deadline usually comes first."""
    transfer_slice_s: float = 1_800
    """One go at it; rsync goes on where the last one was cut."""

    fetch_bytes_per_s: float = 50e6
    """Assumed for what a host fetches by itself, until that was measured."""

    # watching
    status_every_s: float = 5
    inspect_every_s: float = 60
    survey_first_s: float = 120
    """A complete listing this long after the intent, for a second machine from the same create call."""
    survey_every_s: float = 900
    mirror_every_s: float = 60

    # teardown
    bulk_slice_s: float = 60
    """A bulk effect returns after this long and goes on by range: nothing else waits longer for it."""
    seal_extra_s: float = 60
    """On top of the program's grace: hashing and the load check of one attempt."""
    copy_margin_s: float = 120
    """Teardown starts this much before `deadline - copy time`."""
    copy_margin_part: float = 0.2
    """The margin is at most this part of the time between plan and deadline, so that short runs still train."""
    copy_bytes_per_s: float = 20e6
    """Assumed until a copy has been measured."""
    resend_every_s: tuple[float, ...] = (10, 30, 120, 300)
    """Gaps between terminate calls; the last one repeats for ever."""
    proof_gap_s: float = 10
    """Between the two rounds of the proof."""
    proof_every_s: tuple[float, ...] = (3, 5, 10, 30, 60)
    proof_soon: int = 20
    """So many failed rounds come close together, as long as ending usually takes; then the gaps grow."""
    alarm_after: int = 5
    """A person is told when so many requests to end something led to nothing."""
    close_every_s: tuple[float, ...] = (3, 15, 60, 300)

    # everything
    backoff_s: tuple[float, ...] = (2, 5, 15, 60, 300)
    """Gaps after the 1st, 2nd … failure in a row of one rule; the last one repeats."""
    environment_s: float = 3_600
    """Sent → the environment of training is made and looked at."""
    first_update_s: float = 3_600
    """Training started → its first sign. Lines in its log are one, too, unless the manifest sets this."""
    probe_extra_s: float = 120
    """Beside the probe's own time: until it has begun and was asked for."""
    busy_every_s: tuple[float, ...] = (2, 5, 15)
    """Gaps while another process of this computer has the lock for the same work; what it gets done is read at once."""
    wake_s: float = 2
    """A sleeping driver looks at the journal this often, since other operators write to it."""
    clock_warn_s: float = 60
    ask_time_every_s: float = 15
    """Until a process has heard the provider's time, it asks again this often."""
    confirm_s: float = 1_000
    """A provider that tells a time before the limit is believed for this long beyond it, by this computer's clock."""
    confirm_soon: int = 3
    """So often, within seconds, before training is stopped by the clock alone: it costs training time, no checkpoint."""
    confirm_attempts: int = 30
    """So often, over some two hours, looks and listings may fail before this computer's clock alone decides that the limit has
    come: an adapter that can no longer read answers must not let a bill run for ever."""

    def backoff(self, failures: int, table: tuple[float, ...] | None = None) -> float:
        """The gap after `failures` failures in a row (at least 1)."""
        gaps = table or self.backoff_s
        return gaps[min(max(failures, 1), len(gaps)) - 1]

    def allocate_every(self, age_s: float) -> float:
        """The gap between looks at a rental that was asked for `age_s` ago and does not run yet."""
        shortest, longest = self.allocate_every_s
        return min(max(age_s * self.allocate_part, shortest), longest)

    def search_every(self, age_s: float) -> float:
        """The gap between searches for a purchase whose intent is `age_s` old."""
        if age_s < self.search_fast_s:
            return self.search_fast_every_s
        return self.search_active_every_s if age_s < self.search_active_s else self.search_slow_every_s


@lru_cache(maxsize=64)  # asked for at every step of a run
def with_timeouts(policy: Policy, *told: Timeouts) -> Policy:
    """Replace the numbers that a provider or a manifest gives; the last one that gives a number counts."""
    changes = {name: seconds for timeouts in told for name, seconds in asdict(timeouts).items() if seconds}
    return replace(policy, **changes) if changes else policy


def with_overrides(policy: Policy, overrides: dict[str, Any]) -> Policy:
    """Replace numbers by name; a list becomes a tuple. Raises `ValueError` for a name that does not exist."""
    known = {f.name for f in fields(Policy)}
    if wrong := sorted(set(overrides) - known):
        raise ValueError(f"unknown policy number: {', '.join(wrong)}")
    changes: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in overrides.items()}
    return replace(policy, **changes)
