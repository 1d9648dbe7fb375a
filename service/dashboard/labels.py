"""Which labels a release told, remapped or took from a prior: from declarations, recipes and released label sets.

What a job runs is in its recipe; of other releases there is their pipeline's word. Rules and names are public. How many
records a rule dropped is private, counted nowhere, and never shown: only names and rules are read here.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import text

from accountant.audit.manifests import statement, text_of, texts_of
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
    declared, rules = body["declared"], recipe or _declared_rules(body["declared"])
    source = recipe.get("label_source") or statement(declared, "label_space")
    if source == "prior":
        names = recipe.get("label_names") or texts_of(declared, "label_space", "labels")
        return _shown(release, "prior", names, rules, digest=text_of(declared, "label_space", "digest"))
    if source == "released":
        origin = recipe.get("labels_release") or text_of(declared, "label_space", "release")
        names = None if origin is None else _told(folder, origin)
        return _shown(release, "released", names, rules, origin=origin)
    return None


def _declared_rules(declared: Mapping[str, Any]) -> dict[str, Any]:
    """The rules that a pipeline says it read labels by, as a recipe has them; what is no rule is not shown."""
    said = declared.get("label_space")
    remap = said.get("remap") if isinstance(said, dict) else None
    pairs = remap.items() if isinstance(remap, dict) else ()
    return {
        "remap": [{"from": old, "to": new} for old, new in pairs if isinstance(new, str)],
        "otherwise": text_of(declared, "label_space", "otherwise"),
    }


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
        "origin": origin if origin is not None and _RELEASE.fullmatch(origin) else None,  # it becomes a link
        "digest": digest,
        "remapped": [dict(rule) for rule in rules[:MOST_RULES] if rule["to"]],
        "dropped": [rule["from"] for rule in rules[:MOST_RULES] if not rule["to"]],
        "further_rules": max(0, len(rules) - MOST_RULES),
        "rule": recipe.get("remap_rule"),
        "otherwise": recipe.get("otherwise") or None,
    }
