"""Signing in with an API key, and out again."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, RedirectResponse, Response
from starlette.concurrency import run_in_threadpool

from service.api.context import parts_of
from service.dashboard.pages import HEADERS, rendered
from service.dashboard.sessions import LASTS, utc_now
from service.dashboard.visitors import (
    cookie_name,
    drop_cookie,
    filled,
    must_come_from_here,
    read_form,
    safe_path,
    session_of,
    sessions_of,
    set_cookie,
)
from service.errors import Problem

router = APIRouter()
_TITLE, _QUESTION = "Sign in", "Who is asking?"
Next = Annotated[str, Query(alias="next", max_length=4000)]


@router.get("/sign-in", include_in_schema=False)
def ask(request: Request, to: Next = "/") -> Response:
    """The form; its key travels in the body of the request and is kept nowhere."""
    return rendered(request, "sign_in.html", title=_TITLE, question=_QUESTION, next=safe_path(to))


@router.get("/sign-in.json", include_in_schema=False)
def ask_as_json(to: Next = "/") -> Response:
    """What the page shows."""
    return JSONResponse({"next": safe_path(to)}, headers=dict(HEADERS))


@router.post("/sign-in", include_in_schema=False)
async def enter(request: Request) -> Response:
    """A session for whoever shows a key that is valid. There is no session yet to bind the form to: where it was sent
    from is checked, and cookies are sent by no other site."""
    must_come_from_here(request)
    form = await read_form(request)
    to, sessions = safe_path(form.text("next")), sessions_of(parts_of(request))
    try:
        actor = await run_in_threadpool(sessions.sign_in.enter, form.text("key") or "")
    except Problem as problem:
        if problem.name != "unauthorized":
            raise
        return rendered(request, "sign_in.html", title=_TITLE, question=_QUESTION, next=to, problem=problem, status=401)
    request.state.actor = actor.id
    response = RedirectResponse(to, status_code=303, headers=dict(HEADERS))
    set_cookie(request, response, "session", sessions.begin(actor, now=utc_now()), seconds=int(LASTS.total_seconds()))
    return response


@router.post("/sign-out", include_in_schema=False)
async def leave(request: Request) -> Response:
    """End the session, here and in every copy of its cookie."""
    response = RedirectResponse("/sign-in", status_code=303, headers=dict(HEADERS))
    try:
        await session_of(request)
        await filled(request)
        cookie = request.cookies[cookie_name(request, "session")]
        await run_in_threadpool(partial(sessions_of(parts_of(request)).end, cookie, now=utc_now()))
    except Problem as problem:
        if problem.name != "unauthorized":  # whoever is signed out already may leave
            raise
    drop_cookie(request, response, "session")
    return response
