"""Secrets are found in environment and keyring, and get into no text."""

from __future__ import annotations

import base64
import io
import logging
import subprocess
import sys
from urllib.parse import quote

import pytest

from gpuops.credentials import REDACTED, Credentials, Redactor
from gpuops.errors import CredentialsError

VALUE = 'correct horse "battery"/staple+1'


class Memory:
    """A keyring that works."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str], str] = {}

    def get_password(self, service_name: str, username: str) -> str | None:
        return self.kept.get((service_name, username))

    def set_password(self, service_name: str, username: str, password: str) -> None:
        self.kept[service_name, username] = password

    def delete_password(self, service_name: str, username: str) -> None:
        del self.kept[service_name, username]


class Forgetful(Memory):
    """A keyring that says yes and keeps nothing, as the library's null backend does."""

    def set_password(self, service_name: str, username: str, password: str) -> None:
        pass


class Locked(Memory):
    """A keyring that cannot be opened; its exceptions carry what they were given."""

    def get_password(self, service_name: str, username: str) -> str | None:
        raise LookupError(f"locked: {username}")

    def set_password(self, service_name: str, username: str, password: str) -> None:
        raise LookupError(f"locked: {password}")


@pytest.fixture
def headless() -> object:
    """The real library on a machine without any keyring."""
    keyring = pytest.importorskip("keyring")
    from keyring.backends.fail import Keyring

    before = keyring.get_keyring()
    keyring.set_keyring(Keyring())
    yield keyring
    keyring.set_keyring(before)


def test_the_environment_comes_first_and_our_own_name_before_the_plain_one() -> None:
    backend = Memory()
    Credentials({}, backend).store("API_KEY", "from keyring")
    assert Credentials({"GPUOPS_API_KEY": "ours", "API_KEY": "plain"}, backend).secret("API_KEY") == "ours"
    assert Credentials({"API_KEY": "plain"}, backend).secret("API_KEY") == "plain"
    assert Credentials({"API_KEY": ""}, backend).secret("API_KEY") == "from keyring"
    assert Credentials({}, backend).secret("OTHER_KEY") is None


def test_where_says_the_place_and_never_the_value() -> None:
    backend = Memory()
    credentials = Credentials({"A": "x"}, backend)
    credentials.store("B", "y")
    assert [credentials.where(name) for name in ("A", "B", "C")] == ["environment", "keyring", "missing"]
    assert Credentials({}, Locked()).where("A") == "keyring cannot be read"


def test_delete_removes_and_says_whether_there_was_something() -> None:
    credentials = Credentials({}, Memory())
    credentials.store("A", "value")
    assert credentials.delete("A") and not credentials.delete("A")
    assert credentials.where("A") == "missing"


@pytest.mark.parametrize("backend", ["library", "none"])
def test_a_machine_without_a_keyring_works_and_says_so(headless: object, backend: str) -> None:
    credentials = Credentials({"A": "value"}, headless if backend == "library" else None)  # type: ignore[arg-type]
    assert credentials.headless()
    assert credentials.secret("A") == "value" and credentials.secret("B") is None and not credentials.delete("B")
    with pytest.raises(
        CredentialsError, match=r"this machine has no keyring. Set \$B or \$GPUOPS_B in the environment"
    ):
        credentials.store("B", VALUE)


def test_a_locked_keyring_is_not_mistaken_for_a_missing_secret() -> None:
    with pytest.raises(
        CredentialsError, match="A: the keyring cannot be read \\(LookupError\\); unlock it, or set \\$A"
    ):
        Credentials({}, Locked()).secret("A")
    assert not Credentials({}, Locked()).headless()


def test_no_error_carries_the_value() -> None:
    with pytest.raises(CredentialsError) as caught:
        Credentials({}, Locked()).store("A", VALUE)
    assert VALUE not in str(caught.value) and caught.value.__suppress_context__


def test_a_keyring_that_keeps_nothing_is_found_out() -> None:
    with pytest.raises(CredentialsError, match="accepted by the keyring but not kept"):
        Credentials({}, Forgetful()).store("A", VALUE)


@pytest.mark.parametrize("name", ["", "A B", "a-b", "1A", "A\n"])
def test_names_are_names(name: str) -> None:
    with pytest.raises(CredentialsError, match="is not the name of a secret"):
        Credentials({}).secret(name)


def test_importing_credentials_does_not_import_keyring() -> None:
    code = "import sys, gpuops.credentials; sys.exit('keyring' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=30).returncode == 0


# --- redaction -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "form",
    [VALUE, quote(VALUE, safe=""), VALUE.replace('"', '\\"'), base64.b64encode(VALUE.encode()).decode()],
    ids=["plain", "in a URL", "in JSON", "in base64"],
)
def test_a_value_that_was_handed_out_is_redacted_in_every_form(form: str) -> None:
    credentials = Credentials({"A": VALUE})
    credentials.secret("A")
    shown = credentials.redactor(f"before {form} after")
    assert form not in shown and shown.startswith("before ") and REDACTED in shown


def test_each_line_of_a_key_is_redacted() -> None:
    redact = Redactor()
    redact.add("first line of it\nsecond line of it\n")
    assert redact("x second line of it y") == f"x {REDACTED} y"


def test_a_value_that_contains_another_goes_as_a_whole() -> None:
    redact = Redactor()
    redact.add("abcdef")
    redact.add("abcdef-and-more")
    assert redact("abcdef-and-more") == REDACTED


@pytest.mark.parametrize(
    ("text", "kept", "gone"),
    [
        ("GET https://x/graphql?api_key=abcdef&a=1", "&a=1", "abcdef"),
        ("Authorization: Bearer abcdefgh12345", "Authorization: Bearer ", "abcdefgh12345"),
        ("'authorization': 'Basic dXNlcjpwYXNz'", "'authorization': 'Basic ", "dXNlcjpwYXNz"),
        ("https://ada:hunter22@example.org/x", "@example.org/x", "hunter22"),
        ("key hf_abcdefghijklmnopqrstuvwxyzABCDEFGH!", "key ", "hf_abcdefghij"),
        ("id AKIAIOSFODNN7EXAMPLE", "id ", "AKIAIOSFODNN7EXAMPLE"),
        ("-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNz\n-----END OPENSSH PRIVATE KEY-----\nend", "\nend", "b3BlbnNz"),
    ],
)
def test_what_looks_like_a_secret_is_redacted_without_being_known(text: str, kept: str, gone: str) -> None:
    shown = Redactor()(text)
    assert gone not in shown and kept in shown and REDACTED in shown


@pytest.mark.parametrize(
    "text", ["step-000200 sha256 " + "3f" * 32, "https://example.org:8443/a?page=2", "max_tokens=5"]
)
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert Redactor()(text) == text


def test_the_log_filter_covers_message_arguments_and_traceback() -> None:
    stream, redactor = io.StringIO(), Redactor()
    redactor.add(VALUE)
    handler = logging.StreamHandler(stream)
    handler.addFilter(redactor.filter)
    logger = logging.getLogger("gpuops.test_credentials")
    logger.addHandler(handler)
    logger.propagate = False
    try:
        try:
            raise ValueError(f"bad key {VALUE}")
        except ValueError:
            logger.exception("call with %s failed", VALUE)
        logger.error("does not fit %d", "a word")
    finally:
        logger.removeHandler(handler)
    text = stream.getvalue()
    assert VALUE not in text and "Traceback" in text and text.count(REDACTED) >= 2
    assert "does not fit" in text
