"""Who asks: the token endpoint of the service account's key, and what stands in `Authorization`.

Two ways that google-auth knows: a signed assertion exchanged for a token that expires (RFC 7523), and an assertion that is itself
the bearer (what compute_v1 does). Both are checked against the public half of the key that the fake has handed out.
"""

from __future__ import annotations

import base64
import json
import secrets
import time
from collections.abc import Mapping
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from .gcp_answers import Answer, Refusal, error_info, json_answer

GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"
REFRESH = "a-refresh-token-of-the-fake"
API_KEY = "AIza-of-the-fake"
PATIENCE_S = 300
"""How far the clock of a client may be off."""


class Tokens:
    """The tokens of one service account. Time is the computer's, as the client signs by it."""

    def __init__(self, project: str, valid_s: int) -> None:
        self.email = f"tester@{project}.iam.gserviceaccount.com"
        self.project = project
        self.valid_s = valid_s
        self.granted: dict[str, float] = {}
        self._private = rsa.generate_private_key(public_exponent=65537, key_size=2048)

    def key_file(self, address: str) -> dict[str, str]:
        """The content of the file that a user would download."""
        pem = self._private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return {
            "type": "service_account",
            "project_id": self.project,
            "private_key_id": "fa4e",
            "private_key": pem.decode(),
            "client_email": self.email,
            "client_id": "100000000000000000001",
            "token_uri": f"{address}/token",
        }

    def user_file(self, address: str) -> dict[str, str]:
        """The content of the file that `gcloud auth application-default login` would write."""
        return {
            "type": "authorized_user",
            "client_id": "fake.apps.googleusercontent.com",
            "client_secret": "of-the-fake",
            "refresh_token": REFRESH,
            "token_uri": f"{address}/token",
        }

    def grant(self, form: Mapping[str, list[str]]) -> Answer:
        """Answer the token endpoint."""
        kind = form.get("grant_type", [""])[-1]
        if kind == "refresh_token":
            good = form.get("refresh_token", [""])[-1] == REFRESH
        else:
            claims = self._claims(form.get("assertion", [""])[-1]) if kind == GRANT else None
            good = claims is not None and bool(claims.get("scope")) and str(claims.get("aud", "")).endswith("/token")
        if not good:
            return json_answer(
                {"error": "invalid_grant", "error_description": "not what this fake has handed out"}, 400
            )
        token = f"ya29.fake-{secrets.token_urlsafe(24)}"
        self.granted[token] = time.time() + self.valid_s
        return json_answer({"access_token": token, "expires_in": self.valid_s, "token_type": "Bearer"})

    def require(self, call: str, headers: Mapping[str, str], query: Mapping[str, list[str]]) -> None:
        """Raise the vendor's 401 unless the caller is known. Public prices take an API key too, in a header or in the address."""
        key = headers.get("X-Goog-Api-Key") or query.get("key", [""])[-1]
        if key and call.startswith("billing."):
            if key != API_KEY:
                raise Refusal(400, "badRequest", "API key not valid", [error_info("API_KEY_INVALID")])
            return
        header = headers.get("Authorization", "")
        word, _, token = header.partition(" ")
        if word.lower() == "bearer":
            if self.granted.get(token, 0) > time.time():
                return
            if token.count(".") == 2 and self._claims(token):
                return
        reason = "CREDENTIALS_MISSING" if not header else "ACCESS_TOKEN_EXPIRED" if token in self.granted else "INVALID"
        raise Refusal(401, "authError", f"Invalid Credentials ({reason})", [error_info(reason)])

    def _claims(self, assertion: str) -> dict[str, Any] | None:
        """What an assertion says; None when it is not signed by the key, is of somebody else, or has expired."""
        try:
            head, body, signature = assertion.split(".")
            signed = f"{head}.{body}".encode()
            self._private.public_key().verify(_decoded(signature), signed, padding.PKCS1v15(), hashes.SHA256())
            claims = dict(json.loads(_decoded(body)))
        except (ValueError, InvalidSignature):
            return None
        if claims.get("iss") != self.email or not abs(time.time() - claims["iat"]) < 3600 + PATIENCE_S:
            return None
        return claims if claims["exp"] > time.time() else None


def _decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
