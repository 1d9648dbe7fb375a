"""Whom a key is told of: officers and auditors of anybody, all others of no fewer than ten datapoints together.

A reading is told to those others where ten or more datapoints share the history that it is of: in a population, a
task, a window or a forecast. A release is told to them as it was decided, where it touched ten or more. Whoever was
trimmed is not touched, and the decision's readings are not of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from service.operations.keys import Actor

#: Datapoints of the shortest range, of the smallest window and scope, and with the rarest history, that a pipeline is
#: told about.
LEAST_RANGE: Final = 10
_OF_FEW: Final = "The budget of some has no room; of so few datapoints no number is told to this key."


def names_individuals(scope: Mapping[str, Any]) -> bool:
    """Whether a scope names single datapoints: by key, by bitmap or as a few in a row, at whatever depth."""
    inside, ranges = scope.get("union", []), scope.get("ranges", [])
    return (
        _is_short([0, scope.get("next")])
        or not set(scope) <= {"task", "part", "ranges", "union", "next"}
        or any(_is_short(each) for each in (ranges if isinstance(ranges, list) else []))
        or any(
            isinstance(each, dict) and names_individuals(each) for each in (inside if isinstance(inside, list) else [])
        )
    )


def _is_short(span: Any) -> bool:
    match span:
        case [int(start), int(stop)]:
            return 0 < stop - start < LEAST_RANGE
        case _:
            return False  # none at all, which is found out elsewhere


def may_see(by: Actor, scope: Mapping[str, Any], *, proposer: str) -> bool:
    """Whether a scope of the ledger may be shown to a key.

    Who proposed short ranges named them itself. Keys are bitmaps there, and whose they are it is not told.
    """
    is_own = proposer == by.id and set(scope) <= {"task", "part", "ranges"}
    return by.sees_individuals or is_own or not names_individuals(scope)


def least_told(by: Actor) -> int:
    """How many datapoints must share a history before a key is told what they have behind them."""
    return 1 if by.sees_individuals else LEAST_RANGE


def may_read(by: Actor, *, datapoints: int, proposer: str | None = None) -> bool:
    """Whether readings of the worst-off of so many may be told to a key.

    Who proposed a release was told its decision in the answer, and may read it again.
    """
    return datapoints >= least_told(by) or proposer == by.id


def without_readings(decision: Mapping[str, Any]) -> dict[str, Any]:
    """A decision on few datapoints for who may not see them: what was decided and why, and nothing that they have left.

    The price of each charge may depend on what they had behind them, and advice on what would still fit.
    """
    return {
        **decision,
        "reasons": [
            {**dict.fromkeys(each), "code": each["code"], "task": each["task"], "message": _OF_FEW}
            if "epsilon" in each
            else each
            for each in decision["reasons"]
        ],
        "epsilon": None,
        "quotes": [{**each, "price": None} for each in decision["quotes"]],
        "advice": [],
    }
