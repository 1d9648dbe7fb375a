"""The whole site as lists that can be read: every router, and what the navigation shows to whom."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from fastapi import APIRouter
from fastapi.responses import RedirectResponse

from service.api import audits as audits_api
from service.api import datapoints as datapoints_api
from service.api import jobs as jobs_api
from service.api import keys as keys_api
from service.api import ledger as ledger_api
from service.api import mechanisms as mechanisms_api
from service.api import populations as populations_api
from service.api import releases as releases_api
from service.api import reports as reports_api
from service.dashboard import (
    audits,
    datapoints,
    jobs,
    keys,
    ledger,
    mechanisms,
    overview,
    policies,
    populations,
    releases,
    report,
    sign_in,
    system,
    verify,
)
from service.dashboard.pages import files

first = APIRouter()


@first.get("/", include_in_schema=False)
def root() -> RedirectResponse:
    """A browser that only knows the host."""
    return RedirectResponse("/overview", status_code=303)


#: Added to the application in this order.
ROUTERS: Final[tuple[APIRouter, ...]] = (
    first,
    files,
    sign_in.router,
    overview.router,
    populations.router,
    datapoints.router,
    releases.router,
    ledger.router,
    policies.router,
    mechanisms.router,
    audits.router,
    jobs.router,
    report.router,
    verify.router,
    system.router,
    keys.router,
)


@dataclass(frozen=True, slots=True)
class Place:
    """A page that the navigation leads to; `like` are the REST addresses whose roles it asks for."""

    title: str
    path: str
    like: tuple[Callable[..., object], ...]
    also: tuple[str, ...] = ()  # pages that belong to it

    def holds(self, path: str, population: str = "") -> bool:
        """Whether the page at this path is this one, or belongs to it.

        >>> WITHIN[2].holds("/releases/rel_01/commit", "clinic-a"), WITHIN[1].holds("/populations/a/task?name=t", "a")
        (True, True)
        """
        plain = path.partition("?")[0]
        places = [each.replace("{population}", population) for each in (self.path, *self.also)]
        return any(plain == each or plain.startswith(f"{each}/") for each in places)


#: Pages of the whole installation.
PLACES: Final[tuple[Place, ...]] = (
    Place("Overview", "/overview", (populations_api.list_all,)),
    Place("Mechanisms", "/mechanisms", (mechanisms_api.list_all,)),
    Place("Audits", "/audits", (audits_api.list_all,)),
    Place("Jobs", "/jobs", (jobs_api.list_all,)),
    Place("Verify", "/verify", (populations_api.list_all,)),
    Place("System", "/system", (populations_api.list_all,)),
    Place("Keys", "/keys", (keys_api.list_all,)),
)

#: Pages of one population; `{population}` is its name.
WITHIN: Final[tuple[Place, ...]] = (
    Place("Budget", "/populations/{population}/budget", (populations_api.budget,)),
    Place(
        "Tasks", "/populations/{population}/tasks", (populations_api.list_tasks,), ("/populations/{population}/task",)
    ),
    Place("Releases", "/populations/{population}/releases", (releases_api.list_all,), ("/releases",)),
    Place("Datapoint", "/populations/{population}/datapoint", (datapoints_api.get,)),
    Place(
        "Ledger",
        "/populations/{population}/ledger",
        (ledger_api.entries,),
        ("/populations/{population}/entry", "/populations/{population}/verify"),
    ),
    Place(
        "Policy",
        "/populations/{population}/policy",
        (populations_api.get_policy,),
        ("/populations/{population}/status",),
    ),
    Place("Report", "/populations/{population}/report", (reports_api.of_population,)),
)
