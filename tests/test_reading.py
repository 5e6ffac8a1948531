"""What looks like a key or token is found, whatever stands around it; and quickly passed over where there is none."""

from __future__ import annotations

import pytest

from gpuops.reading import has_key

KEYS = {
    "private key": b"-----BEGIN OPENSSH PRIVATE KEY-----",
    "hugging face": b"hf_" + b"a1B2" * 5,
    "sk": b"sk-" + b"a1B2" * 5,
    "aws": b"AKIA" + b"A1B2" * 4,
    "aws session": b"ASIA" + b"A1B2" * 4,
    "github": b"ghs_" + b"a1B2c3" * 5,
    "google": b"AIza" + b"a1-B_" * 7,
    "slack": b"xoxb-" + b"1234-" * 4,
}


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS.keys())
@pytest.mark.parametrize(("before", "after"), [(b"", b""), (b"token = '", b"'\n"), (b"\x00\xff\n", b"\x00 tail")])
def test_a_key_is_found_wherever_it_stands(key: bytes, before: bytes, after: bytes) -> None:
    assert has_key(before + key + after)


@pytest.mark.parametrize(
    "text",
    [b"", b"plain words", b"x" * 300, b"sk-short", b"a_long_name_of_a_function_without_a_key", b"hf_" + b" " * 30],
)
def test_what_is_no_key_is_passed_over(text: bytes) -> None:
    assert not has_key(text)
