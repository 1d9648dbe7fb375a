"""Rows of mechanisms that add noise to the answer of a strongly convex problem, and the recipe that they share."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final

from accountant.events import Gaussian, L2Laplace, Laplace, NonPrivate
from accountant.units import exact, rounded
from trainers.catalog.label_spaces import LABEL_RELEASES, LABELS
from trainers.catalog.parameters import NOISES, Bounds, Parameter
from trainers.catalog.quotes import Mechanism, Priced, Quoted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from accountant.events import Adjacency, Event

MAX_SIDES: Final = 8
MAX_SIDE: Final = 1 << 24
MAX_WEIGHTS: Final = 10**9
_EPSILON: Final = Bounds(minimum=1e-9, maximum=1e9)

#: What a problem is, apart from the data: none of it enters a price, since noise is relative to what it comes to.
PROBLEM: Final[tuple[Parameter, ...]] = (
    Parameter(
        name="shape",
        kind="array",
        description="shape of a row of data, which is read as one vector",
        bounds=Bounds(minimum=1, maximum=MAX_SIDES),
        each=Parameter(name="side", kind="integer", description="a side", bounds=Bounds(minimum=1, maximum=MAX_SIDE)),
    ),
    Parameter(
        name="radius",
        kind="number",
        description="L2 norm to which longer rows are scaled down: chosen without a look at the data",
        bounds=Bounds(minimum=1e-6, maximum=1e6),
        default=1.0,
    ),
    Parameter(
        name="bias",
        kind="boolean",
        description="whether a label has a weight that is added to each row's score",
        default=True,
    ),
    Parameter(
        name="modulus",
        kind="number",
        description="m of the penalty (m/2) |w - centre|^2: the larger, the less noise, and the closer to the centre",
        bounds=Bounds(minimum=1e-9, maximum=1e6),
    ),
    Parameter(
        name="iterations",
        kind="integer",
        description="steps of gradient descent, each over all rows",
        bounds=Bounds(minimum=1, maximum=1_000_000),
        default=100,
    ),
    *LABELS,
)

NOISE: Final = Parameter(
    name="noise",
    kind="string",
    description="spherical Laplace noise (pure) or Gaussian noise",
    default="pure",
    choices=("pure", "gaussian"),
)

CENTRE: Final = Parameter(
    name="centre",
    kind="string",
    description="id of the release whose linear model is the centre of the penalty, and the start; '' for zero",
    bounds=Bounds(minimum=0, maximum=200),
    default="",
)


def shift_of(adjacency: Adjacency) -> int:
    """How far neighbours can be apart, in units of one record's contribution."""
    return 1 if adjacency == "add_remove" else 2


def _output_perturbation(
    *, adjacency: Adjacency, noise: str, epsilon: float | None = None, noise_multiplier: float | None = None
) -> Quoted:
    """One noisy vector on the scope of the proposal. ε is of the population's adjacency, and buys the noise it needs.

    The scale is rounded up, so that the event never costs more than ε.
    """
    event: Event
    if noise == "pure":
        assert epsilon is not None
        event = L2Laplace(scale=rounded(shift_of(adjacency) / exact(epsilon), towards=math.inf))
    else:
        assert noise_multiplier is not None
        event = Gaussian(noise_multiplier=noise_multiplier)
    return Quoted(
        charges=(Priced(event=event),),
        steps_note="Noise is added once, to the weights at the end of a training that one datapoint can move so far.",
    )


def _output_perturbation_instead(
    given: Mapping[str, Any], before: Sequence[Event], after: Sequence[Event]
) -> Mapping[str, Any] | None:
    match before, after:
        case [L2Laplace(scale=old)], [L2Laplace(scale=new)]:
            return {"epsilon": rounded(exact(given["epsilon"]) * exact(old) / exact(new), towards=0.0)}
        case [Gaussian()], [Gaussian(noise_multiplier=new)]:
            return {"noise_multiplier": new}
        case _:
            return None


def _as_published(*, adjacency: Adjacency, epsilon: float, weights: int, lipschitz: str) -> Quoted:
    """Laplace noise of scale 2C/ε on each of `weights` coordinates, for which the paper claims ε.

    A shift of C in the L2 norm is one of up to √d C in the L1 norm, which is what such noise is measured by: relative
    to √d C the scale is 2/(ε√d), rounded down. With a Lipschitz constant that was computed from the data the noise
    depends on the data, and nothing is proved at all.
    """
    del adjacency
    event: Event = NonPrivate()
    if lipschitz == "public":
        event = Laplace(scale=rounded(2 / (exact(epsilon) * _root_up(weights)), towards=0.0))
    return Quoted(
        charges=(Priced(event=event),),
        steps_note=f"The paper claims ε = {epsilon:g} for a replaced datapoint; the noise costs √{weights} times that.",
    )


def _root_up(number: int) -> Fraction:
    """The square root, rounded up."""
    return Fraction(math.isqrt(number * 10**24 - 1) + 1, 10**12)


def _as_published_instead(
    given: Mapping[str, Any], before: Sequence[Event], after: Sequence[Event]
) -> Mapping[str, Any] | None:
    match before, after:
        case [Laplace(scale=old)], [Laplace(scale=new)]:
            return {"epsilon": rounded(exact(given["epsilon"]) * exact(old) / exact(new), towards=0.0)}
        case _:
            return None


OUTPUT_PERTURBATION: Final = Mechanism(
    name="output-perturbation",
    title="Logistic regression with noise on its weights",
    kind="weights",
    paper="Watson, Ghosh, Rozemberczki & Sarkar 2022, Algorithms 1 and 3 (arXiv 2203.03594)",
    card="M13",
    adjacencies=("add_remove", "replace_one"),
    proof_status="proved",
    proof_note=(
        "Proved for the version that runs here. "
        "One datapoint moves the weights by at most L/(m n), since gradient descent with a step of "
        "at most 2/(beta + m) is a contraction; the optimum need not be reached. It holds if rows are scaled down to "
        "a public norm, averages divide by the public number of slots, the centre is public or was released, and "
        "pure noise is spherical: Laplace noise on each coordinate, as printed, costs the root of their number more."
    ),
    parameters=(
        NOISE,
        Parameter(
            name="epsilon",
            kind="number",
            description="what the release costs with pure noise, under the population's adjacency",
            bounds=_EPSILON,
            when=("noise", "pure"),
        ),
        Parameter(
            name="noise_multiplier",
            kind="number",
            description="standard deviation of Gaussian noise, in units of what one datapoint can contribute",
            bounds=NOISES,
            when=("noise", "gaussian"),
        ),
    ),
    pricing=_output_perturbation,
    changing=_output_perturbation_instead,
    recipe=(*PROBLEM, CENTRE),
    releases=(*LABEL_RELEASES, "centre"),
    module="trainers.mechanisms.output_perturbation",
)

OUTPUT_PERTURBATION_AS_PUBLISHED: Final = Mechanism(
    name="output-perturbation-as-published",
    title="Logistic regression with Laplace noise on each weight, as the paper prints it",
    kind="weights",
    paper="Watson, Ghosh, Rozemberczki & Sarkar 2022, Algorithm 1 (arXiv 2203.03594)",
    card="M13",
    adjacencies=("add_remove", "replace_one"),
    proof_status="claimed",
    proof_note=(
        "The paper calibrates Laplace noise on each of d coordinates to a sensitivity in the L2 norm: that is "
        "sqrt(d) epsilon and not epsilon, which is what is charged here. Its experiments take the Lipschitz constant "
        "from the data, which no theorem covers: then nothing is promised. Use output-perturbation."
    ),
    parameters=(
        Parameter(
            name="epsilon",
            kind="number",
            description="what the paper claims for a replaced datapoint",
            bounds=_EPSILON,
        ),
        Parameter(
            name="weights",
            kind="integer",
            description="number of weights, bias included: labels times values of a row",
            bounds=Bounds(minimum=1, maximum=MAX_WEIGHTS),
        ),
        Parameter(
            name="lipschitz",
            kind="string",
            description="from the public radius (public), or from the data as in the paper's experiments (data)",
            default="public",
            choices=("public", "data"),
        ),
    ),
    pricing=_as_published,
    changing=_as_published_instead,
    recipe=(*PROBLEM, CENTRE),
    releases=(*LABEL_RELEASES, "centre"),
    module="trainers.mechanisms.output_perturbation_as_published",
)
