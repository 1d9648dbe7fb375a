"""Rows of lifelong learning by noisy statistics (L2DP-ML): one that holds, and the published one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from accountant.events import Gaussian, NonPrivate
from accountant.ledger import MAX_CHARGES, MAX_NAME
from trainers.catalog.label_spaces import LABEL_RELEASES, LABELS
from trainers.catalog.parameters import Bounds, Parameter
from trainers.catalog.quotes import Mechanism, Priced, Quoted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from accountant.events import Adjacency, Event

MAX_SIZE: Final = 4_096  # of a feature vector: its second moments are a matrix
MAX_RELEASES: Final = 1_000


def _l2dp_ml(*, adjacency: Adjacency, noise_multiplier: float, moment_weight: float) -> Quoted:
    """One Gaussian for the task's class sums and second moments together.

    A datapoint adds φ to the sum of its class and w·φφᵀ to the moments, ‖φ‖ ≤ 1, in the Frobenius norm. Both are
    coordinates of one vector of norm ≤ √(1 + w²), and the noise on each is noise_multiplier·√(1 + w²): the weight
    scales contribution and noise alike and does not enter the price. What an adjacency makes of the sensitivity is the
    engines' business; under `replace_one` they double it, although moments move by √2·w at most.
    """
    del adjacency
    deviation = noise_multiplier * (1 + moment_weight**2) ** 0.5
    return Quoted(
        charges=(Priced(event=Gaussian(noise_multiplier=noise_multiplier)),),
        steps_note=f"Once: noise of {deviation:g} on class sums, and {deviation / moment_weight:g} on second moments.",
    )


def _l2dp_ml_instead(
    _given: Mapping[str, Any], _before: Sequence[Event], after: Sequence[Event]
) -> Mapping[str, Any] | None:
    match after:
        case [Gaussian(noise_multiplier=noise)]:
            return {"noise_multiplier": noise}
        case _:
            return None


def _l2dp_ml_as_published(
    *, adjacency: Adjacency, tasks: Sequence[Mapping[str, Any]], epsilon_1: float, epsilon_2: float
) -> Quoted:
    """As published: noise is drawn once for all records, batches and tasks, and can be solved for."""
    del adjacency, epsilon_1, epsilon_2
    return Quoted(
        charges=tuple(Priced(event=NonPrivate(), task=each["task"]) for each in tasks),
        steps_note="Nothing is proved of this version.",
    )


def _nothing_instead(*_: object) -> None:
    """Nothing to change: no noise makes it another mechanism."""


_PAPER: Final = "Lai, Hu, Phan, Jin, Thai & Chen 2022, Lifelong DP (arXiv 2207.12831)"

L2DP_ML: Final = Mechanism(
    name="l2dp-ml",
    title="Lifelong learning from class sums and second moments, each released once",
    kind="prototypes",
    paper=f"{_PAPER}, in the version of this page; Dwork, Talwar, Thakurta & Zhang 2014, Analyze Gauss",
    card="M12",
    adjacencies=("add_remove", "replace_one"),
    proof_status="proved",
    proof_note=(
        "Proved for the version that runs here, not the paper's: "
        "one Gaussian mechanism for each task, on a sum of bounded vectors; "
        "training and replay read what was released. It holds if features are fixed in public, each is scaled to norm "
        "1 by itself, and the noise is fresh for every task, every class and every entry of the moments."
    ),
    parameters=(
        Parameter(
            name="noise_multiplier",
            kind="number",
            description="standard deviation of the noise, in units of the norm √(1 + moment_weight²) of a contribution",
            bounds=Bounds(minimum=1e-6, maximum=1e6),
        ),
        Parameter(
            name="moment_weight",
            kind="number",
            description="weight w of second moments beside class sums: more is less noise on moments and more on sums",
            bounds=Bounds(minimum=1e-3, maximum=1e3),
            default=1.0,
        ),
    ),
    recipe=(
        *LABELS,
        Parameter(
            name="features",
            kind="string",
            description=(
                "the public map that rows go through before they are scaled to norm 1: none (identity), or a random "
                "projection (projection)"
            ),
            default="identity",
            choices=("identity", "projection"),
        ),
        Parameter(
            name="inputs",
            kind="integer",
            description="values in a row, all axes together",
            bounds=Bounds(minimum=1, maximum=10**6),
        ),
        Parameter(
            name="size",
            kind="integer",
            description="features of a random map; with identity, no more than this many values in a row",
            bounds=Bounds(minimum=1, maximum=MAX_SIZE),
            default=256,
        ),
        Parameter(
            name="ridge",
            kind="number",
            description="penalty of the classifier, beside the one that outweighs the noise on moments",
            bounds=Bounds(minimum=0, maximum=1e9),
            default=0.0,
        ),
        Parameter(
            name="previous",
            kind="array",
            description="ids of the releases of earlier tasks, with the same features: the classifier replays them all",
            bounds=Bounds(minimum=0, maximum=MAX_RELEASES),
            each=Parameter(
                name="release", kind="string", description="a release", bounds=Bounds(minimum=1, maximum=MAX_NAME)
            ),
            default=[],
        ),
    ),
    releases=(*LABEL_RELEASES, "previous"),
    module="trainers.mechanisms.l2dp_ml",
    pricing=_l2dp_ml,
    changing=_l2dp_ml_instead,
)

L2DP_ML_AS_PUBLISHED: Final = Mechanism(
    name="l2dp-ml-as-published",
    title="L2DP-ML as published: noise on Taylor coefficients, drawn once",
    kind="weights",
    paper=f"{_PAPER}, Algorithms 1 and 2",
    card="M12",
    adjacencies=("add_remove", "replace_one"),
    proof_status="refuted",
    proof_note=(
        "The same noise masks every record, batch and task: differences of perturbed records are free of it, and two "
        "releases give it away by linear algebra: an attack is right every time, and shows all that its samples can "
        "(docs/soundness.md). Kept only to reproduce and audit the paper; for real "
        "releases use l2dp-ml."
    ),
    parameters=(
        Parameter(
            name="tasks",
            kind="array",
            description="the tasks in the order in which they are learned",
            bounds=Bounds(minimum=1, maximum=MAX_CHARGES),
            items=(
                Parameter(
                    name="task",
                    kind="string",
                    description="name of a task",
                    bounds=Bounds(minimum=1, maximum=MAX_NAME),
                ),
                Parameter(
                    name="epochs",
                    kind="integer",
                    description="passes over it; with whole tasks as batches, so many steps",
                    bounds=Bounds(minimum=1, maximum=10_000),
                ),
            ),
        ),
        Parameter(
            name="epsilon_1",
            kind="number",
            description="what the paper claims for the auto-encoder's coefficients",
            bounds=Bounds(minimum=1e-6, maximum=1e6),
        ),
        Parameter(
            name="epsilon_2",
            kind="number",
            description="what the paper claims for the output layer's coefficients",
            bounds=Bounds(minimum=1e-6, maximum=1e6),
        ),
    ),
    recipe=(
        *LABELS,
        Parameter(
            name="inputs",
            kind="integer",
            description="values in a row, all axes together; they are clamped to [-1, 1]",
            bounds=Bounds(minimum=1, maximum=10**6),
        ),
        Parameter(
            name="hidden",
            kind="integer",
            description="width of the auto-encoder",
            bounds=Bounds(minimum=1, maximum=10**5),
        ),
        Parameter(
            name="last",
            kind="integer",
            description="width of the last hidden layer",
            bounds=Bounds(minimum=1, maximum=10**5),
        ),
        Parameter(
            name="batch",
            kind="integer",
            description="records in a streaming batch (Algorithm 2); 0: a batch is a whole task (Algorithm 1)",
            bounds=Bounds(minimum=0, maximum=10**7),
            default=0,
        ),
        Parameter(
            name="memory",
            kind="integer",
            description="records of each task that are kept, perturbed, for later gradients of reference; 0: none",
            bounds=Bounds(minimum=0, maximum=10**6),
            default=0,
        ),
        Parameter(
            name="learning_rate",
            kind="number",
            description="of a step along the average gradient of a batch",
            bounds=Bounds(exclusive_minimum=0),
            default=0.1,
        ),
        Parameter(
            name="scale",
            kind="number",
            description="standard deviation of the public initial weights",
            bounds=Bounds(exclusive_minimum=0),
            default=0.1,
        ),
    ),
    releases=LABEL_RELEASES,
    module="trainers.mechanisms.l2dp_ml_as_published",
    pricing=_l2dp_ml_as_published,
    changing=_nothing_instead,
)
