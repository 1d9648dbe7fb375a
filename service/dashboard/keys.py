"""Keys: who may come in."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.concurrency import run_in_threadpool

from service.api import keys as keys_api
from service.api.context import Service
from service.api.keys import KeyId
from service.dashboard.decisions import idempotency, must_be_confirmed, reason_of
from service.dashboard.pages import Asked, Data, Done, action, page, rendered
from service.dashboard.visitors import as_in
from service.errors import NotFound, Problem
from service.operations import key_log, keys
from service.operations.keys import ROLES, Actor
from service.schemas import NewKey

router = APIRouter()
Reader = Annotated[Actor, as_in(keys_api.list_all)]
LogReader = Annotated[Actor, as_in(keys_api.log)]
Maker = Annotated[Actor, as_in(keys_api.create)]
Revoker = Annotated[Actor, as_in(keys_api.revoke, keys_api.list_all)]
_PAGE, _KEYS = 50, 100
_MOST_CHECKED = 10_000  # entries that are compared whenever somebody looks
#: What each role may do, in a sentence.
MAY = {
    "pipeline": "register datapoints and tasks, propose, commit and void releases, submit and cancel jobs",
    "officer": "see everything, propose releases, change policies, make and freeze populations, settle holds, plan "
    "audits",
    "auditor": "see everything, verify ledgers, plan audits",
    "worker": "run jobs, and see who a release was charged to, which a job needs",
    "admin": "everything, keys included",
}


@page(router, "/keys", title="Keys", question="Who may come in?", template="keys.html")
def every(parts: Service, actor: Reader, cursor: Annotated[str | None, Query(max_length=1000)] = None) -> Data:
    """Oldest first, without their secrets."""
    return {
        **keys_api.list_all(parts, actor, limit=_KEYS, cursor=cursor),
        "live": keys.live(parts.database),
        "own": actor.id,
        "may": MAY,
        "query": {},
    }


@page(router, "/keys/log", title="Log of keys", question="Who let whom in, and why?", template="key_log.html")
def log(parts: Service, actor: LogReader, cursor: Annotated[str | None, Query(max_length=1000)] = None) -> Data:
    """Newest first; its chain and the keys that follow from it are compared while one looks."""
    found = keys_api.log(parts, actor, limit=_PAGE, cursor=cursor)
    with parts.database.transaction() as connection:
        head = key_log.head(connection)
        entries = 0 if head is None else head.number
        problems = key_log.verified(connection, [])[1] if entries <= _MOST_CHECKED else None
    return {
        **found,
        "entries_in_all": entries,
        "problems": problems,
        "names": keys.names(parts.database, [each["body"]["actor"] for each in found["items"]]),
    }


def new(_actor: Maker) -> Data:
    """What a key may be for."""
    return {"roles": [{"name": name, "may": MAY[name]} for name in ROLES]}


@action(
    router,
    "/keys/new",
    title="A new key",
    question="Who should come in, and what may they do?",
    template="key_new.html",
    data=new,
)
async def made(asked: Asked) -> Any:
    """A key whose secret is shown on this answer and nowhere else."""
    must_be_confirmed(asked)
    days = asked.form.number("expires_in_days")
    wanted = NewKey.model_validate(
        {"name": asked.form.text("name") or "", "roles": asked.form.texts("roles"), "expires_in_days": days}
    )
    create = partial(
        keys.create_once,
        asked.parts.database,
        idempotency(asked),
        name=wanted.name,
        roles=wanted.roles,
        expires_in_days=wanted.expires_in_days,
        by=asked.actor.id,
        reason=reason_of(asked),
    )
    answer = await run_in_threadpool(create)
    return rendered(
        asked.request,
        "key_made.html",
        title="A new key",
        question="Shown once: copy it now.",
        data={},
        key=answer.document,
    )


def revoking(key: KeyId, parts: Service, actor: Revoker) -> Data:
    """The key that would be revoked."""
    found = keys.listed(parts.database, after=key[:-1], limit=50)
    shown = next((each for each in found if each["id"] == key), None)
    if shown is None:
        raise NotFound("key", key)
    return {**shown, "own": actor.id}


@action(
    router,
    "/keys/{key}/revoke",
    title="Revoke a key",
    question="What would follow?",
    template="key_revoke.html",
    data=revoking,
)
async def revoked(asked: Asked) -> Done:
    """Within two seconds it no longer works."""
    must_be_confirmed(asked)
    if asked.shown["id"] == asked.actor.id:
        raise Problem("conflict", "This is the key that you are signed in with: revoke it under another one.")
    revoke = partial(keys.revoke, asked.parts.database, asked.shown["id"], by=asked.actor.id, reason=reason_of(asked))
    await run_in_threadpool(revoke)
    return Done(notice=f"The key {asked.shown['name']} no longer works.", to="/keys")
