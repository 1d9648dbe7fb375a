"""Rows of mechanisms that tell which labels exist."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from accountant.events import ApproxDP, PartitionSelection, Repeated
from accountant.partition import binary_delta, per_label
from accountant.units import exact, rounded
from trainers.catalog.parameters import Bounds, Parameter
from trainers.catalog.quotes import Mechanism, Priced, Quoted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from accountant.events import Adjacency, Event

MAX_LABELS: Final = 10_000  # that one datapoint may carry


def _label_release(*, adjacency: Adjacency, epsilon: float, delta: float, labels_per_unit: int, rule: str) -> Quoted:
    """Every label decided by one rule, with the ε and δ that `per_label` allows it.

    The parameters are those of the release under `add_remove`, whatever the adjacency: the mechanism that runs is the
    same. The event holds them, once for each count that an added datapoint changes. A replaced one changes twice as
    many. The engines know that of `PartitionSelection`; of a promise that is made under the population's adjacency they
    cannot, so there the event is repeated for both. To split for `replace_one` here as well would halve the price that
    the caller asked for.
    """
    each = per_label(epsilon=epsilon, delta=delta, labels=labels_per_unit, adjacency="add_remove")
    event: Event
    if rule == "geometric":
        event, counts = PartitionSelection(epsilon=each.epsilon, delta=each.delta), labels_per_unit
    else:
        event = ApproxDP(epsilon=each.epsilon, delta=binary_delta(told_alone=each.delta))
        counts = labels_per_unit * (2 if adjacency == "replace_one" else 1)
    return Quoted(
        charges=(Priced(event=event if counts == 1 else Repeated(times=counts, event=event)),),
        steps_note=f"Every label is decided with epsilon = {each.epsilon!r} and delta = {each.delta!r}.",
    )


def _label_release_instead(
    given: Mapping[str, Any], before: Sequence[Event], after: Sequence[Event]
) -> Mapping[str, Any] | None:
    """What a whole label set gets is so many times what a label gets, rounded down; so is its δ if labels are fewer."""
    if len(before) != 1 or len(after) != 1 or type(_one(before[0])[0]) is not type(_one(after[0])[0]):
        return None
    (each, counts), (_, counts_before) = _one(after[0]), _one(before[0])
    if not isinstance(each, PartitionSelection | ApproxDP) or each.epsilon <= 0:
        return None
    labels, rest = divmod(counts * given["labels_per_unit"], counts_before)
    if labels < 1 or rest:
        return None
    changed: dict[str, Any] = {"epsilon": rounded(labels * exact(each.epsilon), towards=0.0)}
    if labels != given["labels_per_unit"]:
        changed |= {"delta": -math.expm1(labels * math.log1p(-each.delta)), "labels_per_unit": labels}
    return changed


def _one(event: Event) -> tuple[Event, int]:
    """An event, and how often it is repeated."""
    return (event.event, event.times) if isinstance(event, Repeated) else (event, 1)


LABEL_RELEASE: Final = Mechanism(
    name="label-release",
    title="Which labels exist, by partition selection",
    kind="labels",
    paper="Desfontaines, Voss, Gipson & Mandayam 2022, Theorems 1 and 6 (arXiv 2006.03684)",
    card="M04",
    adjacencies=("add_remove", "replace_one"),
    proof_status="proved",
    proof_note=(
        "The loss of the geometric rule is known exactly, and the others are (epsilon, delta)-DP in every label that "
        "one datapoint changes, with the delta of a label that it carries alone (docs/label-release.md). It holds if "
        "nobody carries more than labels_per_unit labels, enforced on each datapoint alone, a label that nobody "
        "carries is never told, and every label is decided by itself with exactly these probabilities."
    ),
    parameters=(
        Parameter(
            name="epsilon",
            kind="number",
            description="of the whole label set, under add_remove; twice that under replace_one",
            bounds=Bounds(minimum=1e-9, maximum=1e9),
        ),
        Parameter(
            name="delta",
            kind="number",
            description="of the whole label set, under add_remove; up to twice that under replace_one",
            bounds=Bounds(minimum=1e-300, exclusive_maximum=1),
        ),
        Parameter(
            name="labels_per_unit",
            kind="integer",
            description="the most labels that one datapoint carries",
            bounds=Bounds(minimum=1, maximum=MAX_LABELS),
            default=1,
        ),
        Parameter(
            name="rule",
            kind="string",
            description=(
                "how a label is decided: by truncated geometric noise on its count (geometric); with the largest "
                "probabilities that there are (optimal); by Laplace noise and a threshold (laplace); by a test of its "
                "own datapoints that needs delta for new labels alone (binary)"
            ),
            default="geometric",
            choices=("geometric", "optimal", "laplace", "binary"),
        ),
    ),
    module="trainers.mechanisms.label_release",
    reads=("y",),
    pricing=_label_release,
    changing=_label_release_instead,
)
