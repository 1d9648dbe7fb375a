"""Rows that judge models: accuracy on private data, which is charged, and training without privacy, to compare with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from accountant.events import MAX_TIMES, Gaussian, Laplace, NonPrivate
from trainers.catalog.label_spaces import LABEL_RELEASES, LABELS
from trainers.catalog.parameters import NOISES, Bounds, Parameter
from trainers.catalog.quotes import Mechanism, Priced, Quoted
from trainers.catalog.recipes import MODEL, OPTIMISER, START

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from accountant.events import Adjacency, Event

MAX_MODELS: Final = 1000
_ID: Final = Bounds(minimum=1, maximum=200)


def _accuracy(
    *, adjacency: Adjacency, noise: str, scale: float | None = None, noise_multiplier: float | None = None
) -> Quoted:
    """Two counts with noise, of right and of wrong answers, to which a datapoint adds at most one together.

    Both norms of what one datapoint adds are at most 1, so the two cost no more than one would.
    """
    del adjacency
    event: Event
    if noise == "laplace":
        assert scale is not None
        event = Laplace(scale=scale)
    else:
        assert noise_multiplier is not None
        event = Gaussian(noise_multiplier=noise_multiplier)
    return Quoted(charges=(Priced(event=event),))


def _accuracy_instead(
    _given: Mapping[str, Any], _before: Sequence[Event], after: Sequence[Event]
) -> Mapping[str, Any] | None:
    match after:
        case [Laplace(scale=scale)]:
            return {"scale": scale}
        case [Gaussian(noise_multiplier=noise)]:
            return {"noise_multiplier": noise}
        case _:
            return None


ACCURACY: Final = Mechanism(
    name="accuracy",
    title="How often released models are right on private data",
    kind="other",
    paper="Dwork, McSherry, Nissim & Smith 2006, Theorem 1; Balle & Wang 2018, Theorem 8 (arXiv 1805.06530)",
    card="",
    adjacencies=("add_remove", "replace_one"),
    proof_status="proved",
    proof_note=(
        "A noisy histogram of two cells, right and wrong, to which a datapoint adds at most one in all; each of its "
        "rows adds a share. It holds if the models were released before, and what is shown is computed from the noisy "
        "counts alone."
    ),
    parameters=(
        Parameter(
            name="noise",
            kind="string",
            description="noise on the counts of right and of wrong answers",
            default="laplace",
            choices=("laplace", "gaussian"),
        ),
        Parameter(
            name="scale",
            kind="number",
            description="of the Laplace noise, in datapoints: 1 / scale is the price under add_remove",
            bounds=NOISES,
            when=("noise", "laplace"),
        ),
        Parameter(
            name="noise_multiplier",
            kind="number",
            description="standard deviation of the Gaussian noise, in datapoints",
            bounds=NOISES,
            when=("noise", "gaussian"),
        ),
    ),
    recipe=(
        Parameter(
            name="models",
            kind="array",
            description="ids of the releases that answer, oldest first",
            bounds=Bounds(minimum=1, maximum=MAX_MODELS),
            each=Parameter(name="release", kind="string", description="id of a release", bounds=_ID),
        ),
        Parameter(
            name="aggregation",
            kind="string",
            description="how an ensemble decides",
            default="argmax",
            choices=("argmax", "median", "entropy"),
        ),
    ),
    releases=("models",),
    module="trainers.mechanisms.accuracy",
    pricing=_accuracy,
    changing=_accuracy_instead,
)


def _fine_tuning(*, adjacency: Adjacency, steps: int, batch_size: int) -> Quoted:
    del adjacency, steps, batch_size
    return Quoted(charges=(Priced(event=NonPrivate()),), steps_note="Nothing covers this: no budget admits it.")


def _a_gem(*, adjacency: Adjacency, steps: int, batch_size: int, memory_batch: int, memories: Sequence[str]) -> Quoted:
    del adjacency, steps, batch_size, memory_batch
    return Quoted(
        charges=(Priced(event=NonPrivate()), *(Priced(event=NonPrivate(), task=task) for task in memories)),
        steps_note="Nothing covers this: no budget admits it.",
    )


def _nothing_instead(
    _given: Mapping[str, Any], _before: Sequence[Event], _after: Sequence[Event]
) -> Mapping[str, Any] | None:
    return None


_STEPS: Final = (
    Parameter(
        name="steps",
        kind="integer",
        description="number of steps",
        bounds=Bounds(minimum=1, maximum=MAX_TIMES),
    ),
    Parameter(
        name="batch_size",
        kind="integer",
        description="rows that a step looks at",
        bounds=Bounds(minimum=1, maximum=1 << 20),
    ),
)
_TRAINED: Final = (*LABELS, *MODEL, *OPTIMISER, START)

FINE_TUNING: Final = Mechanism(
    name="fine-tuning",
    title="Gradient descent without any privacy, for comparison",
    kind="weights",
    paper="Robbins & Monro 1951",
    card="",
    adjacencies=("add_remove", "replace_one"),
    proof_status="refuted",
    proof_note=(
        "Without clipping and noise the weights are a function of the data, and may hold a record word for word. It is "
        "here to be compared with, on data that needs no protection; no policy admits it, since its price is infinite."
    ),
    parameters=_STEPS,
    recipe=_TRAINED,
    releases=("start", *LABEL_RELEASES),
    module="trainers.mechanisms.fine_tuning",
    pricing=_fine_tuning,
    changing=_nothing_instead,
)

A_GEM: Final = Mechanism(
    name="a-gem",
    title="Averaged gradient episodic memory without any privacy, for comparison",
    kind="weights",
    paper="Chaudhry, Ranzato, Rohrbach & Elhoseiny 2019, Algorithm 2 (arXiv 1812.00420)",
    card="M09",
    adjacencies=("add_remove", "replace_one"),
    proof_status="refuted",
    proof_note=(
        "Without clipping and noise the weights are a function of the data and of the memories, record by record. It "
        "is here to be compared with, on data that needs no protection; no policy admits it, since its price is "
        "infinite."
    ),
    parameters=(
        *_STEPS,
        Parameter(
            name="memory_batch",
            kind="integer",
            description="rows of the memories that a step looks at",
            bounds=Bounds(minimum=1, maximum=1 << 20),
        ),
        Parameter(
            name="memories",
            kind="array",
            description="earlier tasks whose rows are the memories",
            bounds=Bounds(minimum=0, maximum=1000),
            each=Parameter(name="task", kind="string", description="a task", bounds=_ID),
            default=[],
        ),
    ),
    recipe=_TRAINED,
    releases=("start", *LABEL_RELEASES),
    module="trainers.mechanisms.a_gem",
    pricing=_a_gem,
    changing=_nothing_instead,
)
