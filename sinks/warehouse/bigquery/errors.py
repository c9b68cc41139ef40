"""What Google's errors mean for a feed. Their texts may repeat values, so none is passed on.

Reasons: https://cloud.google.com/bigquery/docs/error-messages. A job's whole message is in
BigQuery itself, under the job id the error names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import requests
from google.api_core import exceptions as api
from google.auth import exceptions as auth
from google.resumable_media import common as upload

from changefeed.core.errors import ChangefeedError, Code

#: Not now: quotas, a conflict of two transactions, trouble inside of BigQuery.
_BUSY = frozenset(
    {
        "rateLimitExceeded",
        "jobRateLimitExceeded",
        "quotaExceeded",
        "backendError",
        "jobBackendError",
        "internalError",
        "jobInternalError",
        "badGateway",
        "resourceInUse",
        "tableUnavailable",
        "stopped",
        "timeout",
    }
)
_LOGIN = frozenset({"accessDenied", "authError", "required", "billingNotEnabled", "blocked"})
#: Said by reason "invalidQuery" alone; words of the documentation on transactions.
_CONFLICT = ("concurrent update", "could not serialize", "transaction is aborted due to")

#: The same reason, for a row that has no value in a column that is REQUIRED.
_NO_VALUE = re.compile(r"required field \S+ cannot be null")

_GONE = (
    ConnectionError,
    TimeoutError,
    api.RetryError,
    auth.TransportError,
    requests.exceptions.RequestException,
    upload.InvalidResponse,
)


def reason(error: BaseException) -> str:
    """BigQuery's word for what happened, or the name of the error's class."""
    details = getattr(error, "errors", None) or ()
    for detail in details:
        if isinstance(detail, dict) and detail.get("reason"):
            return str(detail["reason"])
    return type(error).__name__


def sorted_out(error: BaseException, place: str, what: str, topic: str = "") -> ChangefeedError:
    """The error as the core knows them.

    ``what`` is what was being done, ``topic`` the table it is about, if it is about one.
    """
    word = reason(error)
    detail = f"{what}; reason {word}"
    text = str(error).lower()
    if isinstance(error, auth.TransportError | api.RetryError):
        return ChangefeedError(Code.SINK_UNREACHABLE, f"{place} cannot be reached", detail=detail)
    if isinstance(error, auth.GoogleAuthError | api.Unauthorized) or word in _LOGIN:
        return _refused_login(place, detail)
    if word in _BUSY or any(phrase in text for phrase in _CONFLICT):
        return ChangefeedError(Code.SINK_BUSY, f"{place} is busy", detail=detail)
    if isinstance(error, api.TooManyRequests | api.ServiceUnavailable):
        return ChangefeedError(Code.SINK_BUSY, f"{place} is busy", detail=detail)
    if isinstance(error, api.Forbidden):
        return _refused_login(place, detail)
    if isinstance(error, (api.ServerError, *_GONE)):
        return ChangefeedError(Code.SINK_UNREACHABLE, f"{place} cannot be reached", detail=detail)
    if isinstance(error, api.NotFound):
        return ChangefeedError(
            Code.SINK_UNREACHABLE,
            f"{place}: a dataset or table that was there is gone",
            detail=detail,
        )
    if topic:
        return ChangefeedError(
            Code.SINK_CANNOT_TAKE_TABLE,
            f"{place} refused a statement about table {topic}",
            detail=detail,
            hint="BigQuery shows the whole message under this job.",
            target=topic,
            about_row=_NO_VALUE.search(text) is not None,
        )
    return ChangefeedError(Code.SINK_REFUSED_DATA, f"{place} refused a statement", detail=detail)


def _refused_login(place: str, detail: str) -> ChangefeedError:
    return ChangefeedError(
        Code.SINK_REFUSED_LOGIN,
        f"{place} refused the login or a right is missing",
        detail=detail,
        hint="the account needs the roles BigQuery Job User on the project and BigQuery Data "
        "Editor on the dataset.",
    )


@contextmanager
def translated(place: str, what: str, topic: str = "") -> Iterator[None]:
    """Errors of Google's libraries inside come out as ChangefeedError, without their text."""
    try:
        yield
    except (api.GoogleAPIError, auth.GoogleAuthError, *_GONE) as error:
        raise sorted_out(error, place, what, topic) from None
