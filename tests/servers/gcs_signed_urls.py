"""Signed URLs of the small Cloud Storage server: credentials that sign, and the check of a signature (V4).

Google signs with the RSA key of a service account. Here both sides share a key instead.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from google.auth.credentials import AnonymousCredentials, Signing

KEY = b"shared by the signer and the server"
SIGNATURE = "X-Goog-Signature"


class SigningCredentials(AnonymousCredentials, Signing):
    """Credentials that can sign a URL, and send nothing with other requests."""

    signer_email = "jqueue@test.example"
    signer: Any = None

    def sign_bytes(self, message: bytes) -> bytes:
        return hmac.digest(KEY, message, "sha256")


def is_signed(path: str, host: str, params: Mapping[str, str], now: float) -> bool:
    """True if a GET of this path was signed with the key, and the URL has not expired."""
    try:
        moment = datetime.strptime(params["X-Goog-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        lifetime, scope = int(params["X-Goog-Expires"]), params["X-Goog-Credential"].partition("/")[2]
        signature = bytes.fromhex(params[SIGNATURE])
    except (KeyError, ValueError):
        return False
    query = "&".join(f"{quote(k, '')}={quote(v, '')}" for k, v in sorted(params.items()) if k != SIGNATURE)
    request = "\n".join(["GET", path, query, f"host:{host}", "", "host", "UNSIGNED-PAYLOAD"])
    digest = hashlib.sha256(request.encode()).hexdigest()
    text = "\n".join(["GOOG4-RSA-SHA256", params["X-Goog-Date"], scope, digest])
    is_current = 0 <= now - moment.timestamp() + 1 <= lifetime + 1 <= 7 * 86400 + 1
    return is_current and hmac.compare_digest(signature, hmac.digest(KEY, text.encode(), "sha256"))
