"""Signed URLs of S3.

They are signed as in "Authenticating Requests: Using Query Parameters (AWS Signature Version 4)" of
Amazon's documentation of S3.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import hmac
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlsplit

#: How long a URL is good for: Amazon's limit is seven days.
SECONDS = 24 * 3600


@dataclass(frozen=True, slots=True)
class S3Signer:
    """Who signs, and for where.

    Attributes:
        endpoint: of another server than Amazon's, with its scheme; empty for Amazon's.
    """

    key: str
    secret: str = field(repr=False)
    token: str = field(default="", repr=False)
    region: str = "us-east-1"
    endpoint: str = ""

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> S3Signer | None:
        """With the keys of a client's arguments (:func:`changefeed.core.stores.connect`), else of
        the environment; None without a key, and for a role."""

        def one(name: str, variable: str) -> str:
            return str(arguments.get(name) or os.environ.get(variable, ""))

        key = one("access_key", "AWS_ACCESS_KEY_ID")
        if not key or "role_arn" in arguments:
            return None
        server = arguments.get("endpoint_override")
        return cls(
            key,
            one("secret_key", "AWS_SECRET_ACCESS_KEY"),
            one("session_token", "AWS_SESSION_TOKEN"),
            one("region", "AWS_REGION") or "us-east-1",
            f"{arguments['scheme']}://{server}" if server else "",
        )

    def url(
        self,
        bucket: str,
        name: str,
        now: dt.datetime,
        seconds: int = SECONDS,
        method: str = "GET",
    ) -> str:
        """The URL to GET an object with, or to do with it what ``method`` is."""
        if self.endpoint:
            address = urlsplit(self.endpoint)
            scheme, host, path = address.scheme, address.netloc, f"/{bucket}/{name}"
        else:
            scheme, host, path = "https", f"{bucket}.s3.{self.region}.amazonaws.com", f"/{name}"
        path = quote(path, safe="/-_.~")
        day, at = now.strftime("%Y%m%d"), now.strftime("%Y%m%dT%H%M%SZ")
        scope = f"{day}/{self.region}/s3/aws4_request"
        query = {
            "X-Amz-Algorithm": "AWS4-HMAC-SHA256",
            "X-Amz-Credential": f"{self.key}/{scope}",
            "X-Amz-Date": at,
            "X-Amz-Expires": str(seconds),
            "X-Amz-SignedHeaders": "host",
        }
        if self.token:
            query["X-Amz-Security-Token"] = self.token
        listed = "&".join(f"{k}={quote(v, safe='-_.~')}" for k, v in sorted(query.items()))
        request = f"{method}\n{path}\n{listed}\nhost:{host}\n\nhost\nUNSIGNED-PAYLOAD"
        digest = hashlib.sha256(request.encode()).hexdigest()
        key = f"AWS4{self.secret}".encode()
        for part in (day, self.region, "s3", "aws4_request"):
            key = hmac.new(key, part.encode(), hashlib.sha256).digest()
        text = f"AWS4-HMAC-SHA256\n{at}\n{scope}\n{digest}"
        signature = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
        return f"{scheme}://{host}{path}?{listed}&X-Amz-Signature={signature}"
