"""Which labels a release told, remapped or took from a prior: from declarations, recipes and released label sets.

Rules and names are public. How many records a rule dropped is private, counted nowhere, and never shown.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import text

from accountant.canonical import from_canonical
from trainers import inspection
from trainers.cards import MODEL

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from service.api.context import Parts

_RELEASE: Final = re.compile(r"rel_[0-9A-Z]{26}")
MOST_LABELS: Final = 500
MOST_RULES: Final = 500
_FOUND = text(
    "SELECT release.id, entry.body, job.recipe FROM release JOIN entry USING (population_id, number) "
    "LEFT JOIN job ON job.release = release.id WHERE release.id = ANY(:releases)"
)


def of_releases(parts: Parts, releases: Sequence[str]) -> list[dict[str, Any]]:
    """What is known of the labels of each of these releases, in their order; those that say nothing are left out."""
    with parts.database.transaction() as connection:
        rows = {row.id: row for row in connection.execute(_FOUND, {"releases": list(releases)})}
    folder = parts.settings.artifacts_folder
    found = []
    for name in releases:
        row = rows[name]
        recipe = {} if row.recipe is None else from_canonical(row.recipe.encode())
        shown = _of_release(folder, name, from_canonical(bytes(row.body)), recipe)
        if shown is not None:
            found.append(shown)
    return found


def _of_release(
    folder: Path, release: str, body: Mapping[str, Any], recipe: Mapping[str, Any]
) -> dict[str, Any] | None:
    if body["release_kind"] == "labels":
        return _shown(release, "told", _told(folder, release), recipe)
    declared = body["declared"].get("label_space") or {}
    source = recipe.get("label_source") or declared.get("source")
    if source == "prior":
        names = recipe.get("label_names") or declared.get("labels")
        return _shown(release, "prior", names, recipe, digest=declared.get("digest"))
    if source == "released":
        origin = recipe.get("labels_release") or declared.get("release")
        names = _told(folder, origin) if isinstance(origin, str) else None
        return _shown(release, "released", names, recipe, origin=origin if isinstance(origin, str) else None)
    return None


def _told(folder: Path, release: str) -> list[str] | None:
    """The labels in the file of a release, if it lies here."""
    if not _RELEASE.fullmatch(release):  # a name becomes a path
        return None
    return inspection.labels_in(folder / release / MODEL)


def _shown(
    release: str,
    source: str,
    names: Sequence[str] | None,
    recipe: Mapping[str, Any],
    *,
    origin: str | None = None,
    digest: str | None = None,
) -> dict[str, Any]:
    rules = recipe.get("remap", [])
    return {
        "release": release,
        "source": source,
        "labels": None if names is None else list(names[:MOST_LABELS]),
        "labels_in_all": None if names is None else len(names),
        "origin": origin,
        "digest": digest,
        "remapped": [dict(rule) for rule in rules[:MOST_RULES] if rule["to"]],
        "dropped": [rule["from"] for rule in rules[:MOST_RULES] if not rule["to"]],
        "rule": recipe.get("remap_rule"),
        "otherwise": recipe.get("otherwise") or None,
    }
