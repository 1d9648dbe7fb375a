"""Mechanisms: which are proved, claimed or refuted, where they are accepted, and what audits said of them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter

from service.api import audits as audits_api
from service.api import mechanisms as mechanisms_api
from service.api import populations as populations_api
from service.api.context import Service
from service.dashboard.pages import Data, page
from service.dashboard.policies import STATUSES, acceptance
from service.dashboard.visitors import as_in, may
from service.operations.keys import Actor
from trainers.attacks.planned import offered
from trainers.catalog import CATALOG

router = APIRouter()
Reader = Annotated[Actor, as_in(mechanisms_api.list_all, populations_api.list_all, audits_api.list_all)]
_MOST_POPULATIONS = 200


@page(
    router,
    "/mechanisms",
    title="Mechanisms",
    question="Which mechanisms are proved, claimed, refuted?",
    template="mechanisms.html",
)
def catalog(actor: Reader) -> Data:
    """Every mechanism, by the status of its proof."""
    shown = mechanisms_api.list_all(actor)["items"]
    return {
        "statuses": [
            {"status": status, "items": [_row(each) for each in shown if each["proof_status"] == status]}
            for status in STATUSES
        ]
    }


def _row(each: Data) -> Data:
    kept = ("name", "title", "kind", "paper", "proof_status", "proof_note", "is_run_by_workers")
    return {name: each[name] for name in kept}


@page(
    router,
    "/mechanisms/{name}",
    title=lambda data: data["title"],
    question="What does it promise, and on what does that rest?",
    template="mechanism.html",
)
def one(name: str, parts: Service, actor: Reader) -> Data:
    """One mechanism: its card, its parameters, its audits, and where it may be used."""
    shown = mechanisms_api.get(name, actor)
    status = shown["proof_status"]
    populations, audits = [], []
    for known in populations_api.list_all(parts, actor, limit=_MOST_POPULATIONS)["items"]:
        with parts.books.read(known["name"]) as book:
            accepted = status in book.policy.accepts
            populations.append(
                {
                    "name": book.name,
                    "accepted": accepted,
                    "blocked_by": [audit.id for audit in book.blocking(name)],
                    "releases": sum(
                        each.mechanism == name and each.status != "denied" for each in book.releases.values()
                    ),
                    # What is refuted can be accepted by whoever writes a policy; it is not one click away.
                    "approve": acceptance(book, status) if not accepted and status != "refuted" else None,
                }
            )
            audits += [
                {
                    "id": audit.id,
                    "population": book.name,
                    "name": audit.name,
                    "verdict": audit.verdict,
                    "stage": audit.stage,
                }
                for audit in book.audits.values()
                if audit.mechanism == name
            ]
    return {
        **shown,
        "populations": populations,
        "audits": audits[-50:],
        "plans": [{"name": plan.name, "what": plan.what} for plan in offered(CATALOG[name].name)],
        "may_change": may(actor, populations_api.change_policy),
        "may_audit": may(actor, audits_api.plan),
    }
