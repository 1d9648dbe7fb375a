"""Problems as pages, for browsers: the same words as the documents that programs are sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fastapi import Request
from fastapi.responses import RedirectResponse, Response

from service.dashboard.pages import HEADERS, rendered
from service.dashboard.visitors import sign_in_address

if TYPE_CHECKING:
    from starlette.types import Scope

    from service.errors import Problem

_MACHINES: Final = ("/v1/", "/healthz", "/readyz", "/metrics", "/openapi.json")


def wants_page(scope: Scope) -> bool:
    """Whether a browser asks for a page, or htmx for a part of one: all else is for programs, which get a document."""
    path, headers = scope["path"], dict(scope["headers"])
    is_browser = b"text/html" in headers.get(b"accept", b"") or b"hx-request" in headers
    return is_browser and not path.startswith(_MACHINES) and not path.endswith(".json")


def problem_page(request: Request, problem: Problem) -> Response:
    """What went wrong and what to do; whoever is not signed in and wanted to look is asked to sign in."""
    if problem.name == "unauthorized":
        query = request.url.query
        here = request.url.path + (f"?{query}" if query else "")
        if "hx-request" in request.headers:  # part of a page was asked for: the whole page has to go there
            return Response(status_code=401, headers=dict(HEADERS) | {"HX-Redirect": sign_in_address(here)})
        if request.method == "GET":
            return RedirectResponse(sign_in_address(here), status_code=303, headers=dict(HEADERS))
    page = rendered(request, "problem.html", title=problem.kind.title, problem=problem, status=problem.kind.status)
    if problem.kind.status == 503:
        page.headers["Retry-After"] = "1"
    return page
