"""What really happened to users of other tools, as lives of the simulated world: each must pass, also when it is killed anywhere.

`source` names the public report. What only one vendor's adapter can get wrong (an error body, a flag) is not here: the
conformance kit and that adapter's own tests judge it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpuops.testing.faults import Faults, Lives

HOUR = 3600.0
_SHORT = Faults(deadline_s=1500.0, hold_s=300.0, train_s=150.0, publish_every_s=45.0, boot_s=10.0)
"""A life of a few minutes: few places to die at, and each of them is tried."""


@dataclass(frozen=True)
class Scenario:
    """One kind of incident."""

    source: str
    what: str
    faults: Faults
    closes: bool = True
    """Somebody is left who can close the run; otherwise only what bills is judged."""


SCENARIOS: dict[str, Scenario] = {
    # --- the create call is ambiguous, or nothing can be had
    "create: 500 although it was made": Scenario(
        "transformerlab-app#2305",
        "an error 500 answers a create call that worked",
        replace(_SHORT, seed=1, create="error"),
    ),
    "create: answer lost, two of that name": Scenario(
        "comfyui-mcp#276",
        "the answer is lost, two machines carry the mark, and later somebody clones one",
        replace(_SHORT, seed=2, create="lost", twin=True, clone_s=1100.0, train_s=1300.0, deadline_s=2400.0),
    ),
    "create: the read path lags": Scenario(
        "skypilot vast/utils.py, hashicorp/packer PR 8165",
        "the answer is lost, and neither look nor listing shows it for minutes",
        replace(_SHORT, seed=3, deadline_s=2400.0, create="lost", seen_after_s=500.0, listed_after_s=590.0),
    ),
    "create: 429 after the launch": Scenario(
        "skypilot#2261",
        "rate limited: the create call may or may not have worked",
        replace(_SHORT, seed=9, create="limited", lag_guaranteed=True),
    ),
    "create: not found a second later": Scenario(
        "skypilot#4431, amazon.aws#1810",
        "directly after its create call the id is not found",
        replace(_SHORT, seed=5, seen_after_s=90.0, listed_after_s=120.0),
    ),
    "create: accepted after its sender gave up": Scenario(
        "terraform-provider-aws#23928", "the call hangs and is accepted later", replace(_SHORT, seed=6, create="slow")
    ),
    "create: answer lost, decided by a clock that is ahead": Scenario(
        "found by this simulator",
        "a process that has not heard the provider's time yet decides to buy, and the machine seems older than its intent",
        replace(
            _SHORT,
            seed=24,
            create="lost",
            timer="none",
            sentinel=False,
            operator=Lives(kills=((3, "after"),), restart_s=(2.0,), clock_skew_s=20.0),
        ),
    ),
    "create: no capacity": Scenario(
        "terraform-provider-aws#38133, scylla-cluster-tests PR 14383",
        "the provider has none left",
        replace(_SHORT, seed=7, refusals=99),
    ),
    "create: refused late": Scenario(
        "nodejs-compute#377, course-v3 PR 165",
        "accepted, and refused afterwards for a quota",
        replace(_SHORT, seed=8, late_refusal=True),
    ),
    # --- "terminated" is said and not true
    "terminated: the network is gone": Scenario(
        "dstack#1551",
        "the provider does not answer while the run goes down",
        replace(_SHORT, seed=9, outages=((150.0, 500.0), (600.0, 900.0))),
    ),
    "terminated: 404 while not yet visible": Scenario(
        "horizon#372, horizon#593",
        "a young rental goes down while look and listing do not show it",
        replace(
            _SHORT,
            seed=10,
            style="down",
            act_s=60.0,
            boot_s=5.0,
            seen_after_s=400.0,
            listed_after_s=500.0,
            eclipses=True,
        ),
    ),
    "terminated: accepted and nothing happens": Scenario(
        "dstack PR 4030, skypilot#509",
        "requests to end it are ignored, others are lost",
        replace(_SHORT, seed=11, ignored_terminates=4, lost_terminates=2, terminate_s=60.0),
    ),
    "terminated: the key is revoked": Scenario(
        "AIonDemandCluster PR 1, skypilot#5201",
        "from the teardown on the key is refused for two hours",
        replace(_SHORT, seed=12, revoked=(150.0, 150.0 + 2 * HOUR)),
    ),
    "terminated: words that nobody knows": Scenario(
        "skypilot PR 3410",
        "the status lies and uses unknown words",
        replace(_SHORT, seed=13, lies=((40.0, 90.0, "unknown"), (110.0, 150.0, "terminal"), (180.0, 300.0, "absent"))),
    ),
    "terminated: deleted by hand": Scenario(
        "skypilot#7321, skypilot#4286",
        "somebody ends it at the console in the middle of training",
        replace(_SHORT, seed=14, reclaim_s=100.0),
    ),
    "terminated: deleted by hand while it starts": Scenario(
        "skypilot#7318, dstack PR 4037",
        "it is taken away before it ever ran",
        replace(_SHORT, seed=15, reclaim_s=20.0, boot_s=240.0),
    ),
    # --- leftovers
    "leftover: killed between key and create call": Scenario(
        "hashicorp/packer#7601, skypilot#1225",
        "the user's computer dies after the free objects were made",
        replace(_SHORT, seed=16, operator=Lives(kills=((5, "after"),))),
    ),
    "leftover: killed before its cleanup": Scenario(
        "runpod/containers reap-pods.yml",
        "command and guard die for ever; only a sentinel elsewhere is left",
        replace(
            _SHORT,
            seed=17,
            train_s=9e9,
            timer="none",
            operator=Lives(kills=((40, "after"),)),
            guard=Lives(pauses=((60, 40 * HOUR),)),
        ),
        closes=False,
    ),
    "leftover: a machine that nobody uses": Scenario(
        "marin-dna#564, cloud-gpus#31",
        "made ready, never launched, nobody comes back",
        replace(_SHORT, seed=18, style="hesitate"),
    ),
    "leftover: a machine that never runs": Scenario(
        "scribe-service#355", "it stays in its start for ever and bills", replace(_SHORT, seed=19, boot_s=9e9)
    ),
    "leftover: of others on the account": Scenario(
        "skypilot#779, ray PR 43124",
        "foreign things and another operator's rental lie there",
        replace(_SHORT, seed=20, others=True),
    ),
    # --- the deadline that never fires
    "deadline: the provider's timer never fires": Scenario(
        "runpodctl#330, runpod/docs#820",
        "the timer is accepted and ignored; training would go on for ever",
        replace(_SHORT, seed=21, timer="never", style="detach", train_s=9e9, ignores_stop=True),
    ),
    "deadline: the laptop is closed": Scenario(
        "dstack#2349",
        "this computer sleeps from the middle of training on; timer and sentinel remain",
        replace(_SHORT, seed=22, style="detach", train_s=9e9, asleep=(200.0, 200.0 + 26 * HOUR)),
    ),
    "deadline: resumed, and the old one does not count": Scenario(
        "bifrost#7175",
        "a lost rental is replaced: the deadline of the first does not stop the second",
        replace(_SHORT, seed=23, reclaim_s=120.0, resumes=1, deadline_s=2400.0, train_s=240.0),
    ),
    "deadline: moved by the user": Scenario(
        "dstack#2906",
        "extended in the middle of training",
        replace(_SHORT, seed=24, style="extend", act_s=100.0, train_s=300.0, cap=50.0),
    ),
}
