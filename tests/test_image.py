"""An image that may mean something else tomorrow is refused in the plan, with the line that would be right."""

from __future__ import annotations

from dataclasses import replace

import pytest
from runstory import OFFER, POLICY, SPEC, START

from gpuops.errors import GateRefused
from gpuops.plan import make_plan
from gpuops.provider import CONTAINER, ImageForm, Traits

DIGEST = "docker.io/pytorch/pytorch@sha256:" + "0" * 64
MACHINE = ImageForm("machine", r"ami-[0-9a-f]{8,17}", "ami-0123456789abcdef0")
TRAITS = Traits(
    idempotency_token=False, billing_unit_s=1, stopped_bills=(), outlives=(), listing_lag_s=0, deadline="observed to fire",
    end_movable=True, host_key_route="injected", kinds=("rental",),
)  # fmt: skip


def planned(image: str, form: ImageForm) -> None:
    spec = replace(SPEC, image=image)
    make_plan(spec, (OFFER,), replace(TRAITS, image=form), START, POLICY, guard=True, accept_loss="a test")


@pytest.mark.parametrize(
    ("image", "form"),
    [("", CONTAINER), ("", ImageForm("none")), (DIGEST, CONTAINER), ("ami-0123456789abcdef0", MACHINE)],
)
def test_an_image_that_cannot_change_is_accepted(image: str, form: ImageForm) -> None:
    planned(image, form)


@pytest.mark.parametrize(
    ("image", "form", "line"),
    [
        ("pytorch/pytorch:latest", CONTAINER, "`image: docker.io/pytorch/pytorch@sha256:<64 hexadecimal digits>`"),
        (DIGEST[:-1], CONTAINER, "@sha256:<64 hexadecimal digits>"),
        (DIGEST, MACHINE, "`image: ami-0123456789abcdef0`"),
        ("ubuntu-24.04", MACHINE, "`image: ami-0123456789abcdef0`"),
        (DIGEST, ImageForm("none"), "no resources.image"),
    ],
)
def test_any_other_image_is_refused_with_the_line_that_would_be_right(image: str, form: ImageForm, line: str) -> None:
    with pytest.raises(GateRefused) as refused:
        planned(image, form)
    assert image in refused.value.message and "Nothing was bought" in refused.value.message
    assert refused.value.next_command is not None and line in refused.value.next_command
