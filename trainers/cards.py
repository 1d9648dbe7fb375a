"""Model cards: what was promised to whom, and how a release was made. Nothing in one was computed from data.

A card follows from the ledger and the catalog alone, so whoever has those can write it again. No framework is needed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from accountant.engines import ENGINES
from accountant.events import Adjacency, Composed, counted, event_from_json
from accountant.guarantees import Unit, rounded_up
from trainers.catalog import Mechanism

MODEL: Final = "model.safetensors"  # the file that a release is
_MOST_LEAVES, _MOST_KINDS = 100_000, 20
_MOST_SHOWN: Final = 20  # of a list


def card(
    mechanism: Mechanism,
    *,
    release: str,
    population: str,
    unit: Unit,
    adjacency: Adjacency,
    parameters: Mapping[str, Any],
    recipe: Mapping[str, Any],
    events: Sequence[Mapping[str, Any]],
    promise: Mapping[str, float],
) -> dict[str, Any]:
    """What a model card says, apart from the file that it goes with."""
    return {
        "release": release,
        "population": population,
        "unit": unit,
        "adjacency": adjacency,
        "mechanism": {"name": mechanism.name, "title": mechanism.title, "parameters": dict(parameters)},
        "recipe": recipe,
        "paper": mechanism.paper,
        "proof_status": mechanism.proof_status,
        "proof_note": mechanism.proof_note,
        "events": list(events),
        "guarantee": _guarantee(events, delta=promise["delta"], adjacency=adjacency),
        "promise": promise,
    }


def of_file(said: Mapping[str, Any], *, sha256: str, size: int, releasable: bool) -> dict[str, Any]:
    """The whole card, with the file that it goes with."""
    return {**said, "releasable": releasable, "artifact": {"sha256": sha256, "bytes": size}}


def _guarantee(events: Sequence[Mapping[str, Any]], *, delta: float, adjacency: Adjacency) -> dict[str, Any]:
    """The least ε that an engine proves of this release by itself, at the δ of the promise."""
    event = Composed(events=tuple(event_from_json(each) for each in events))
    found: dict[str, float] = {}
    if delta > 0 and event.shape.leaves <= _MOST_LEAVES and len(counted(event)) <= _MOST_KINDS:
        found = {name: engine(event, delta, adjacency).upper for name, engine in ENGINES.items()}
    best = min(found, key=lambda name: found[name], default=None)
    if best is None or found[best] == float("inf"):
        return {"bound": "upper", "epsilon_upper": None, "delta": delta, "engine": None}
    return {"bound": "upper", "epsilon_upper": found[best], "delta": delta, "engine": best}


def readable(whole: Mapping[str, Any]) -> str:
    """A model card for people, in Markdown."""
    mechanism, guarantee, promise = whole["mechanism"], whole["guarantee"], whole["promise"]
    proved = guarantee["epsilon_upper"]
    by_itself = (
        f"Alone it is (ε ≤ {_up(proved)}, δ = {_up(guarantee['delta'])})-DP, by the engine `{guarantee['engine']}`."
        if proved is not None
        else "No engine bounds it alone; it was admitted by the curves of its charges."
    )
    promised = f"ε = {_up(promise['epsilon'])} at δ = {_up(promise['delta'])}"
    lines = [
        f"# Release {whole['release']}",
        "",
        *(
            []
            if whole["releasable"]
            else ["**Not to be released:** its noise was repeatable, as in a test, and protects nobody.", ""]
        ),
        f"{mechanism['title']} (`{mechanism['name']}`; {whole['paper']}).",
        "",
        "## Guarantee",
        "",
        by_itself,
        f"Every ε is an upper bound. The unit is one {whole['unit']}, and neighbours differ by `{whole['adjacency']}`.",
        f"Over all releases nobody of population `{whole['population']}` is charged more than {promised}.",
        "",
        f"Status of its proof: **{whole['proof_status']}**. {whole['proof_note']}",
        "",
        "## How it was made",
        "",
        *_listed(mechanism["parameters"]),
        "",
        "By this recipe:",
        "",
        *_listed(whole["recipe"]),
        "",
        "## File",
        "",
        f"`{MODEL}`, {whole['artifact']['bytes']:,} bytes, sha256 `{whole['artifact']['sha256']}`.",
        "",
    ]
    return "\n".join(lines)


def _listed(given: Mapping[str, Any]) -> list[str]:
    """One line each; of long lists, as of labels, the first."""
    return [f"- {name}: {_shown(value)}" for name, value in given.items()]


def _shown(value: Any) -> str:
    if isinstance(value, list | tuple) and len(value) > _MOST_SHOWN:
        return f"{_shown(value[:_MOST_SHOWN])} and {len(value) - _MOST_SHOWN:,} more"
    return f"`{json.dumps(value, ensure_ascii=False)}`"


def _up(value: float) -> str:
    """Six digits of what is promised, never below it."""
    return f"{float(rounded_up(value, digits=6)):g}"
