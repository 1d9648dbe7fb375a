"""What a request can be told, as a table: RFC 9457 problems with stable types. docs/errors.md lists them all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of problem: its HTTP status, its title, and what to do about it."""

    status: int
    title: str
    advice: str


#: Every problem that the service answers with; the type is `urn:stint:problem:` and the name.
PROBLEMS: Final[dict[str, Kind]] = {
    "invalid": Kind(422, "What was sent cannot be used as it is", "Change the field that is named, and send it again."),
    "unauthorized": Kind(401, "No valid key", "Send `Authorization: Bearer sk_…` with a key that is still valid."),
    "forbidden": Kind(403, "This key may not do that", "Use a key with one of the roles that are named."),
    "forged": Kind(403, "This form was not sent by its page", "Open the page again, and send the form from there."),
    "not-found": Kind(404, "There is no such thing", "Check the name; lists show what there is."),
    "not-allowed": Kind(405, "This address has no such method", "See /openapi.json for the methods of each address."),
    "conflict": Kind(409, "The state of things forbids it", "Look at the current state, then decide anew."),
    "blocked": Kind(
        409, "An audit blocks its mechanism",
        "Void the release if nothing of it left; if it has left, have an officer commit it with a reason.",
    ),
    "gone": Kind(410, "It was erased", "Nothing can be looked up under an erased key."),
    "precondition": Kind(412, "Somebody else changed it", "Read it again, and send If-Match with its new ETag."),
    "too-large": Kind(413, "The request is too large", "Send less at a time."),
    "unsupported": Kind(415, "The body has the wrong type", "Send one of the content types that are named."),
    "key-reused": Kind(422, "The idempotency key was used for another request", "Take a new key for a new request."),
    "sent-already": Kind(
        422, "This form was sent already", "Look at what was done, then open the form again if more is to be done."
    ),
    "busy": Kind(503, "Too much is going on", "Try again after Retry-After seconds, with the same Idempotency-Key."),
    "unavailable": Kind(503, "The database cannot be reached", "Try again later, with the same Idempotency-Key."),
    "artifact-absent": Kind(
        404, "The artifact is not here",
        "Let STINT_ARTIFACTS of the service and of its workers be one folder, or copy the release's folder into it.",
    ),
    "artifact-changed": Kind(
        500, "The artifact is not what was committed",
        "Do not use this file; put a copy in its place that has the sha256 of the ledger.",
    ),
    "internal": Kind(500, "A fault of ours", "Report it with the request id."),
}  # fmt: skip


@dataclass
class Problem(Exception):
    """An answer that is no success."""

    name: str
    detail: str
    field_name: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def kind(self) -> Kind:
        """Its row in the table."""
        return PROBLEMS[self.name]

    def document(self, request_id: str) -> dict[str, Any]:
        """The body of the answer."""
        shown = {
            "type": f"urn:stint:problem:{self.name}",
            "title": self.kind.title,
            "status": self.kind.status,
            "detail": self.detail,
            "advice": self.kind.advice,
            "instance": f"urn:stint:request:{request_id}",
        }
        if self.field_name is not None:
            shown["field"] = self.field_name
        return shown | self.extra

    def __str__(self) -> str:
        return self.detail


def field_at(place: Sequence[str | int]) -> Sequence[str | int]:
    """The field at the place of a failed validation.

    After the name of a parameter come the names of types, as one of which it could have been read.

    >>> field_at(("body", "charges", 0, "scope")), field_at(("query", "population", "constrained-str"))
    (('charges', 0, 'scope'), ('population',))
    """
    match place:
        case ["query" | "path" | "header" | "cookie", name, *_]:
            return (name,)
        case ["body", *inside]:
            return tuple(inside)
        case _:
            return place


class NotFound(Problem):
    """There is no such population, release, task, datapoint, mechanism or key."""

    def __init__(self, what: str, name: object) -> None:
        super().__init__("not-found", f"There is no {what} {str(name)[:200]!r}.")


class WrongSecrets(Exception):
    """The database belongs to other secrets: under these, every known key would be a stranger with a full budget."""

    def __init__(self, folder: Path) -> None:
        super().__init__(
            f"the secrets in {folder} are not those of this database, under which its datapoints are known; "
            "start with the data folder that belongs to it (STINT_DATA)"
        )
