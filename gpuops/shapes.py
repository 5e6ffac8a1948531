"""What looks like a secret, by name and by value. Pure; the manifest, the transfer list and the log filter share it."""

from __future__ import annotations

import math
import re
from collections import Counter

# Keys and tokens that carry their vendor's prefix: the match itself is enough to refuse or to redact.
VALUE_SHAPES = re.compile(
    r"""
    -----BEGIN\ [A-Z ]*PRIVATE\ KEY-----.*?(?:-----END\ [A-Z ]*PRIVATE\ KEY-----|\Z)
    | \b(?:AKIA|ASIA)[0-9A-Z]{16}\b
    | \bAIza[0-9A-Za-z_-]{35}
    | \bya29\.[0-9A-Za-z_-]{20,}
    | \bgh[pousr]_[0-9A-Za-z]{30,} | \bgithub_pat_[0-9A-Za-z_]{30,} | \bglpat-[0-9A-Za-z_-]{20,}
    | \bhf_[0-9A-Za-z]{30,}
    | \bsk-[0-9A-Za-z_-]{20,}
    | \brpa_[0-9A-Za-z]{30,}
    | \bxox[abprs]-[0-9A-Za-z-]{10,}
    | \bsecret_[0-9A-Za-z_]{20,}
    | \beyJ[0-9A-Za-z_-]{10,}\.[0-9A-Za-z_-]{10,}\.[0-9A-Za-z_-]{5,}
    """,
    re.VERBOSE | re.DOTALL,
)
# The password of a URL, the credentials of a header, a telling query parameter: the group stays, the rest is secret.
CONTEXT_SHAPES = re.compile(
    r"""
    ( \b[a-z][a-z0-9+.-]*://[^\s/:@]*: ) [^\s/@]+ (?=@)
    | ( \bauthorization["']?\s*[:=]\s*["']?(?:bearer|basic|token)?\s* ) [^\s"',]+
    | ( \bbearer\s+ ) [0-9A-Za-z._~+/=-]{8,}
    | ( [?&](?:api_?key|access_?token|token|key|signature|password|secret)= ) [^&\s"']+
    """,
    re.VERBOSE | re.IGNORECASE,
)

_SECRET_WORDS = {
    "SECRET",
    "SECRETS",
    "TOKEN",
    "PASSWORD",
    "PASSWD",
    "PASSPHRASE",
    "PWD",
    "CREDENTIAL",
    "CREDENTIALS",
    "APIKEY",
}
_KEY_OWNERS = {"API", "ACCESS", "PRIVATE", "SECRET", "AUTH", "ENCRYPTION", "SIGNING", "SSH", "LICENSE", "ACCOUNT"}
# Words of a tokenizer, which language models set in their environment.
_TOKENIZER_WORDS = {"PAD", "EOS", "BOS", "UNK", "MASK", "CLS", "SEP", "IMAGE", "SPECIAL", "PER", "MAX", "MIN"}


def secret_name(name: str) -> bool:
    """Whether a variable of this name usually holds a secret: `HF_TOKEN` does, `MAX_TOKENS` does not."""
    words = [word for word in re.split(r"[^A-Z0-9]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).upper()) if word]
    for before, word in zip(["", *words], words, strict=False):
        if word == "TOKEN" and before in _TOKENIZER_WORDS:
            continue
        # The shell's own PWD and OLDPWD are directories.
        if word == "PWD" and len(words) == 1:
            continue
        if word in _SECRET_WORDS or (word in ("KEY", "KEYS") and before in _KEY_OWNERS):
            return True
    return False


def secret_value(value: str) -> bool:
    """Whether a value looks like a key or token by its prefix, its place in a URL, or its randomness."""
    return bool(VALUE_SHAPES.search(value) or CONTEXT_SHAPES.search(value) or _random_looking(value))


def _random_looking(value: str) -> bool:
    """One unbroken word of 32 or more characters of three classes and high entropy; hex digests are not secrets."""
    if not re.fullmatch(r"[0-9A-Za-z+/=_-]{32,}", value) or value.count("/") > 1:
        return False
    if not (re.search(r"[a-z]", value) and re.search(r"[A-Z]", value) and re.search(r"[0-9]", value)):
        return False
    counts = Counter(value)
    entropy = -sum(n / len(value) * math.log2(n / len(value)) for n in counts.values())
    return entropy >= 4.0
