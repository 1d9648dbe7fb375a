"""Who looks at a page, and which forms are believed.

A page is shown to whoever the REST address of its data would answer: `as_in(ledger.entries)` asks for the roles of that
address, so the rules exist once. A form is believed if it was sent from a page of this very site, within the session
that the page was made for.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import parse_qs, quote, urlsplit

from fastapi import Depends, Request
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool

from service.api.context import bearer, must_have, parts_of, roles_of
from service.dashboard.sessions import KeySignIn, Session, Sessions, utc_now
from service.errors import Problem
from service.operations.keys import Actor

if TYPE_CHECKING:
    from starlette.responses import Response

    from service.api.context import Parts

_MOST_FIELDS: Final = 1000
_LOOKS: Final = frozenset({"GET", "HEAD"})
_FORM: Final = "application/x-www-form-urlencoded"
Schema = TypeVar("Schema", bound=BaseModel)


def sessions_of(parts: Parts) -> Sessions:
    """The cookies of this installation, for whoever signs in with a key."""
    return Sessions(parts.secrets.datapoints, KeySignIn(parts.doorkeeper), parts.database)


# ---------------------------------------------------------------- cookies


def is_secure(request: Request) -> bool:
    """Whether the browser came by https, here or at the proxy in front. Whoever lies about it only harms themselves."""
    return request.url.scheme == "https" or request.headers.get("x-forwarded-proto", "").strip().lower() == "https"


def cookie_name(request: Request, name: str) -> str:
    """By https the prefix lets no other host set it, and no plain http read it."""
    return f"__Host-stint-{name}" if is_secure(request) else f"stint-{name}"


def set_cookie(request: Request, response: Response, name: str, value: str, *, seconds: int) -> None:
    """A cookie that no script reads and no other site sends."""
    response.set_cookie(
        cookie_name(request, name),
        value,
        max_age=seconds,
        path="/",
        secure=is_secure(request),
        httponly=True,
        samesite="strict",
    )


def drop_cookie(request: Request, response: Response, name: str) -> None:
    """Have the browser forget it."""
    set_cookie(request, response, name, "", seconds=0)


# ---------------------------------------------------------------- who looks


async def session_of(request: Request) -> Session:
    """Whoever is signed in; the key is looked up again, at most two seconds old."""
    cookie = request.cookies.get(cookie_name(request, "session"))
    if not cookie:
        raise Problem("unauthorized", "Sign in to see this page.")
    session = await run_in_threadpool(sessions_of(parts_of(request)).read, cookie, now=utc_now())
    request.state.session = session
    request.state.actor = session.actor.id
    return session


def recall(request: Request) -> None:
    """Let a page that needs nobody show who is signed in, if somebody is."""
    cookie = request.cookies.get(cookie_name(request, "session"))
    if cookie and getattr(request.state, "session", None) is None:
        with suppress(Problem):
            request.state.session = sessions_of(parts_of(request)).read(cookie, now=utc_now())


def as_in(*routes: Callable[..., object]) -> Any:
    """The actor of a page: whoever all of these REST addresses would answer.

    A script may send its key to look, as it would there. To change something takes a session.
    """
    asked = [roles_of(route) for route in routes]

    async def visitor(request: Request) -> Actor:
        if request.method in _LOOKS and request.headers.get("authorization"):
            actor = await bearer(request)
        else:
            actor = (await session_of(request)).actor
        for roles in asked:
            must_have(actor, roles)
        return actor

    return Depends(visitor)


def _anybody(request: Request) -> Actor | None:
    """Whoever is signed in, or nobody: for pages that are public."""
    recall(request)
    session = getattr(request.state, "session", None)
    return None if session is None else session.actor


anybody: Any = Depends(_anybody)


def may(actor: Actor | None, *routes: Callable[..., object]) -> bool:
    """Whether an actor would be let in there: links that lead nowhere are not shown."""
    return actor is not None and all(not (roles := roles_of(route)) or actor.has(*roles) for route in routes)


# ---------------------------------------------------------------- forms


@dataclass(frozen=True, slots=True)
class Form:
    """The fields that somebody filled in. A field that is empty is one that is not there."""

    fields: Mapping[str, list[str]]

    def text(self, name: str) -> str | None:
        """The words of a field, without blanks around them."""
        found = self.fields.get(name, [""])[-1].strip()
        return found or None

    def texts(self, name: str) -> list[str]:
        """All that was ticked under a name."""
        return [each for each in self.fields.get(name, []) if each]

    def number(self, name: str) -> float | None:
        """The number in a field."""
        words = self.text(name)
        if words is None:
            return None
        try:
            return float(words)
        except ValueError:
            raise Problem("invalid", f"{words!r} is not a number.", name) from None

    def ticked(self, name: str) -> bool:
        """Whether a box is ticked."""
        return self.text(name) is not None

    @property
    def once(self) -> str:
        """The name under which sending the same form twice has one effect."""
        found = self.text("once")
        if found is None or len(found) > 100:
            raise Problem("invalid", "This form was not made by a page of this site.", "once")
        return found


async def filled(request: Request) -> Form:
    """The form of a request, if it comes from a page of this site and of this session."""
    must_come_from_here(request)
    form = await read_form(request)
    session: Session | None = getattr(request.state, "session", None)
    given = form.text("csrf") or ""
    if session is None or not hmac.compare_digest(given.encode(), session.token.encode()):
        raise Problem("forged", "This form does not belong to your session: open the page again, then send it.")
    return form


async def read_form(request: Request) -> Form:
    """The fields of a form."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != _FORM:
        raise Problem("unsupported", f"A form is sent as {_FORM}.")
    body = await request.body()
    try:
        fields = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=_MOST_FIELDS, errors="strict")
    except ValueError:
        raise Problem("invalid", "The form cannot be read.", "body") from None
    return Form(fields)


def must_come_from_here(request: Request) -> None:
    """Refuse a form that another site sent: browsers say where a form comes from."""
    origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site")
    if origin is None:
        is_ours = site == "same-origin"
    else:
        is_ours = urlsplit(origin).netloc.lower() == request.headers.get("host", "").lower() and site in {
            None,
            "same-origin",
        }
    if not is_ours:
        raise Problem("forged", "This form was sent by another site, or by a browser that does not say.")


def safe_path(text: str | None) -> str:
    """Where to go after signing in: a page of this site, or the first one."""
    given = text or ""
    parts = urlsplit(given)
    is_ours = given.startswith("/") and not given.startswith(("//", "/\\")) and not parts.netloc and given.isprintable()
    return given if is_ours and not parts.path.startswith(("/sign-in", "/sign-out")) else "/"


def sign_in_address(path: str) -> str:
    """The sign-in page, and back to here."""
    return f"/sign-in?next={quote(path, safe='')}"
