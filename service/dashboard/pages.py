"""How a page and an action are declared, and how all of them are answered.

A page is a path, a title, the question that it answers, and a function that gives its data. The same data is what its
template shows and what the path with `.json` answers. An action is a page with a form: opened, it says what would
happen; sent, it does it for a reason that the ledger keeps, and leads to a page that says what was done.
"""

from __future__ import annotations

import inspect
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias, TypeVar, get_args, get_type_hints
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from pydantic import ValidationError

from accountant.errors import AccountantError
from service.api.context import Parts, parts_of
from service.dashboard import words
from service.dashboard.sessions import utc_now
from service.dashboard.visitors import (
    Form,
    as_in,
    cookie_name,
    drop_cookie,
    filled,
    is_secure,
    may,
    sessions_of,
    set_cookie,
)
from service.errors import NotFound, Problem, field_at
from service.middleware import as_problem
from service.operations.keys import Actor

if TYPE_CHECKING:
    from jinja2 import Environment

FOLDER: Final = Path(__file__).parent
Data: TypeAlias = dict[str, Any]
Title: TypeAlias = str | Callable[[Data], str]

#: What every page tells the browser: run nothing and fetch nothing that is not ours, and keep no copy.
HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    # Not `no-referrer`: browsers would then send forms without saying where they come from.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_NOTICE_SECONDS: Final = 60
#: What htmx brings up to date beside the part that it swaps where the state of a page changes: what was refused (which
#: every part brings along), and where the same data is.
BESIDE: Final = "#said:innerHTML,#as-json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What a page is called, and which question it answers."""

    title: str
    question: str
    path: str  # as it was asked for, with its query: the state of the page


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """What a page shows although its address cannot be answered: why not, and its form as it was filled in."""

    data: Data
    problem: Problem


# ---------------------------------------------------------------- declaring

Shown = TypeVar("Shown", bound=Callable[..., Data | Refused])


def page(
    router: APIRouter,
    path: str,
    *,
    title: Title,
    question: str,
    template: str,
    draw: Callable[[Data], Mapping[str, Any]] | None = None,
) -> Callable[[Shown], Shown]:
    """Declare a page: the function below gives its data, and says by `as_in` who may see it.

    `draw` makes charts and the like out of the data alone. The path and the path with `.json` show the same. What is
    refused is a problem there, and on the page itself, above the form that asked for it.
    """

    def declare(data: Shown) -> Shown:
        given = Depends(data)

        def html(request: Request, shown: Any = given) -> Response:
            problem = None
            if isinstance(shown, Refused):
                shown, problem = shown.data, shown.problem
            drawn = {} if draw is None else draw(shown)
            status = 200 if problem is None else problem.kind.status
            return rendered(
                request, template, title=_title(title, shown), question=question, data=shown, problem=problem,
                status=status, **drawn,
            )  # fmt: skip

        def as_json(shown: Any = given) -> Response:
            if isinstance(shown, Refused):
                raise shown.problem
            return JSONResponse(shown, headers=dict(HEADERS))

        _add(router, f"{path}.json", as_json, ["GET"])  # first, or a path that ends in a name would take it for one
        _add(router, path, html, ["GET"])
        return data

    return declare


def mirror(router: APIRouter, path: str, route: Callable[..., Any], *, filename: str | None = None) -> None:
    """What a REST address answers to a key, for whoever is signed in: a file to keep, or a document to read.

    With `filename`, a browser is told to keep it under that name.
    """
    hints = get_type_hints(route, include_extras=True)
    visitor = as_in(route)
    parameters = [
        each.replace(annotation=Annotated[Actor, visitor] if _is_actor(hints[name]) else hints[name])
        for name, each in inspect.signature(route).parameters.items()
    ]

    def answer(**given: Any) -> Response:
        found = route(**given)
        response = found if isinstance(found, Response) else JSONResponse(found)
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        if filename is not None:
            chosen = filename.format_map({name: str(value) for name, value in given.items()})
            response.headers["Content-Disposition"] = f'attachment; filename="{chosen}"'
        return response

    answer.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    _add(router, path, answer, ["GET"], tags=["document"])


def _is_actor(annotation: object) -> bool:
    return get_args(annotation)[:1] == (Actor,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What was done, in a sentence, and the page to go on at."""

    notice: str
    to: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """All that an action has in hand: who asks, what they filled in, and the data that its page shows."""

    request: Request
    parts: Parts
    actor: Actor
    form: Form
    shown: Data


def action(
    router: APIRouter,
    path: str,
    *,
    title: Title,
    question: str,
    template: str,
    data: Callable[..., Data | Refused],
    draw: Callable[[Data], Mapping[str, Any]] | None = None,
) -> Callable[[Callable[[Asked], Awaitable[Done | Response]]], Callable[[Asked], Awaitable[Done | Response]]]:
    """Declare an action: `data` is what its page shows and who may do it, the function below does it.

    A problem is shown above the form, with everything as it was filled in. `.json` shows what the page does.
    """
    page(router, path, title=title, question=question, template=template, draw=draw)(data)
    given = Depends(data)

    def declare(
        perform: Callable[[Asked], Awaitable[Done | Response]],
    ) -> Callable[[Asked], Awaitable[Done | Response]]:
        async def sent(request: Request, shown: Any = given) -> Response:
            if isinstance(shown, Refused):
                raise shown.problem
            form = await filled(request)
            session = request.state.session
            asked = Asked(request=request, parts=parts_of(request), actor=session.actor, form=form, shown=shown)
            try:
                done = await perform(asked)
            except (Problem, AccountantError, ValidationError) as failure:
                problem = problem_of(failure)
                if problem.name == "key-reused":  # whose key is the name of the form, and none that anybody signs in by
                    problem = Problem("sent-already", "This form was sent already, with other words.")
                drawn = {} if draw is None else draw(shown)
                return rendered(
                    request, template, title=_title(title, shown), question=question, data=shown, problem=problem,
                    form=form, status=problem.kind.status, **drawn,
                )  # fmt: skip
            return done if isinstance(done, Response) else going_on(request, done)

        _add(router, path, sent, ["POST"])
        return perform

    return declare


def _title(title: Title, shown: Data) -> str:
    return title if isinstance(title, str) else title(shown)


def _add(router: APIRouter, path: str, function: Callable[..., Any], methods: list[str], **more: Any) -> None:
    router.add_api_route(path, function, methods=methods, include_in_schema=False, response_model=None, **more)


def problem_of(failure: Exception) -> Problem:
    """What a form, or an address with a query, is told of a failure: the label of the field, and what is wrong."""
    if isinstance(failure, ValidationError | RequestValidationError):
        first = failure.errors()[0]
        where = field_at(first["loc"])
        name = next((each for each in reversed(where) if isinstance(each, str)), "form")
        called = _LABELS.get(name, name.replace("_", " ").capitalize())
        told = _REFUSED.get(first["type"], "cannot be read as it is").format_map(_said(first.get("ctx", {})))
        return Problem("invalid", f"“{called}” {_WRITTEN.get(name, told)}.", ".".join(map(str, where)) or None)
    return as_problem(failure)


def _said(context: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a refusal says of a field; that nothing may be chosen as well is not said."""
    expected = context.get("expected")
    return context if expected is None else {**context, "expected": str(expected).removeprefix("'', ").replace("'", "")}


#: What the fields of forms are called there, if it is not their name.
_LABELS: Final = {
    "sha256": "Digest of the artifact", "uri": "Where it is", "epsilon": "ε for life", "delta": "δ",
    "accepts": "Accept mechanisms whose promise is", "expires_in_days": "Ends after so many days",
    "times": "How often", "like": "Releases like this one",
}  # fmt: skip
_WRITTEN: Final = {
    "sha256": "has to be 64 hexadecimal digits, in small letters",
    "release": "has to be the id of a release, rel_ and 26 digits and capital letters",
    "like": "has to be the id of a release, rel_ and 26 digits and capital letters",
}
_REFUSED: Final = {
    "missing": "is needed",
    "string_too_short": "is needed",
    "too_short": "is needed",
    "string_too_long": "has more than {max_length} characters",
    "too_long": "has more than {max_length} entries",
    "string_pattern_mismatch": "has signs that it cannot have",
    "greater_than": "has to be more than {gt:g}",
    "greater_than_equal": "has to be at least {ge:g}",
    "less_than": "has to be less than {lt:g}",
    "less_than_equal": "has to be at most {le:g}",
    "int_parsing": "has to be a whole number",
    "int_parsing_size": "has too many digits",
    "float_parsing": "has to be a number",
    "literal_error": "is none of {expected}",
    "finite_number": "has to be a number that is not infinite",
}


# ---------------------------------------------------------------- answering


def rendered(
    request: Request,
    template: str,
    *,
    title: str,
    question: str = "",
    status: int = 200,
    data: Data | None = None,
    problem: Problem | None = None,
    form: Form | None = None,
    **more: Any,
) -> HTMLResponse:
    """A page as HTML, with everything that all of them have."""
    session = getattr(request.state, "session", None)
    now = utc_now()
    notice = _notice(request)
    query = request.url.query
    head = Head(title=title, question=question, path=request.url.path + (f"?{query}" if query else ""))
    text = environment().get_template(template).render(
        page=head,
        data={} if data is None else data,
        actor=None if session is None else session.actor,
        csrf="" if session is None else session.token,
        once=secrets.token_urlsafe(16),
        navigation=_navigation(),
        now=now,
        notice=notice,
        problem=problem,
        request_id=getattr(request.state, "request_id", ""),
        form=form,
        site_address=f"{'https' if is_secure(request) else 'http'}://{request.headers.get('host', '')}",
        swapped=request.headers.get("hx-target", "") if "hx-request" in request.headers else None,
        **more,
    )  # fmt: skip
    response = HTMLResponse(text, status_code=status, headers=dict(HEADERS))
    if notice is not None:
        drop_cookie(request, response, "notice")
    return response


def _navigation() -> Any:
    from service.dashboard import site  # noqa: PLC0415 - the list of pages imports the pages, which import this

    return site


def _notice(request: Request) -> str | None:
    """What the last action did; sealed, so that nobody can put words into the page."""
    cookie = request.cookies.get(cookie_name(request, "notice"))
    found = None if not cookie else sessions_of(parts_of(request)).open("notice", cookie)
    return None if found is None else str(found["notice"])


def going_on(request: Request, done: Done) -> Response:
    """Lead to the page where the result is, which says what was done. To reload that page does nothing again."""
    response = RedirectResponse(done.to, status_code=303, headers=dict(HEADERS))
    sealed = sessions_of(parts_of(request)).seal("notice", {"notice": done.notice[:1000]})
    set_cookie(request, response, "notice", sealed, seconds=_NOTICE_SECONDS)
    return response


def address(path: str, **query: object) -> str:
    """An address with those parameters that say something.

    >>> address("/populations/clinic-a/releases", status="held", task=None)
    '/populations/clinic-a/releases?status=held'
    """
    asked = {name: value for name, value in query.items() if value not in {None, ""}}
    return f"{path}?{urlencode(asked)}" if asked else path


def json_address(path: str) -> str:
    """Where a page's data is: its path with `.json`, in the same state."""
    before, mark, query = path.partition("?")
    return f"{before}.json{mark}{query}"


@cache
def environment() -> Environment:
    """Templates: escaped without exception, and a name that is not there is a fault."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # noqa: PLC0415 - the command line needs none

    made = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= words.FILTERS
    made.globals |= {
        "static": static, "state": words.state, "icon": words.icon, "risen": words.risen, "plural": words.plural,
        "address": address, "json_address": json_address, "may": may, "BESIDE": BESIDE,
    }  # fmt: skip
    return made


def get_ready() -> None:
    """Compile all templates, so that the first who looks at a page waits for none."""
    for name in environment().list_templates(["html"]):
        environment().get_template(name)


# ---------------------------------------------------------------- files

_TYPES: Final = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
files = APIRouter()


@dataclass(frozen=True, slots=True)
class _File:
    content: bytes
    media_type: str
    digest: str


@cache
def _files() -> Mapping[str, _File]:
    """Every file that a page may fetch, read once."""
    found = {}
    root = FOLDER / "static"
    for path in sorted(root.rglob("*")):
        if path.suffix in _TYPES:
            content = path.read_bytes()
            found[path.relative_to(root).as_posix()] = _File(content, _TYPES[path.suffix], sha256(content).hexdigest())
    return found


def static(name: str) -> str:
    """The address of a file, which changes with its content."""
    return f"/static/{name}?v={_files()[name].digest[:16]}"


@files.get("/static/{name:path}", include_in_schema=False)
def send(name: str, v: str = "") -> Response:
    """A style sheet, a script or a picture: the same for everybody."""
    file = _files().get(name)
    if file is None:
        raise NotFound("file", name)
    is_current = v == file.digest[:16]
    headers = dict(HEADERS) | {"Cache-Control": "public, max-age=31536000, immutable" if is_current else "no-cache"}
    return Response(file.content, media_type=file.media_type, headers=headers)
