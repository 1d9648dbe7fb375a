"""Rows of mechanisms that train by noisy gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from accountant.events import MAX_TIMES, Gaussian, PoissonSampled, Repeated
from trainers.catalog.label_spaces import LABELS
from trainers.catalog.parameters import NOISES, Bounds, Parameter
from trainers.catalog.quotes import Mechanism, Priced, Quoted
from trainers.catalog.recipes import MODEL, OPTIMISER, START

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from accountant.events import Adjacency, Event

#: Gradients are summed in float32. Far below, a share of the norm would round to a multiple of the least float that is
#: larger than itself; far above there is nothing to clip, since squares overflow.
CLIP_NORMS: Final = Bounds(minimum=1e-6, maximum=1e6)


def _dp_sgd(
    *,
    adjacency: Adjacency,
    noise_multiplier: float,
    sampling_probability: float,
    steps: int,
    clip_norm: float,
    tasks: Sequence[str],
) -> Quoted:
    """`steps` sums of clipped gradients of a fresh Poisson sample, each with Gaussian noise.

    The noise is noise_multiplier · clip_norm, so that the clip norm scales the sum and its noise alike and does not
    enter the price. What an adjacency makes of the sensitivity is the engines' business.

    Earlier tasks are sampled by coins of their own and their sums have noise of their own, so that a datapoint of
    several tasks pays for each and no more: one noise on a common sum would protect it less than two charges say.
    """
    del adjacency
    step = PoissonSampled(sampling_probability=sampling_probability, event=Gaussian(noise_multiplier=noise_multiplier))
    deviation = noise_multiplier * clip_norm
    event = Repeated(times=steps, event=step)
    return Quoted(
        charges=(Priced(event=event), *(Priced(event=event, task=task) for task in tasks)),
        steps_note=f"Each of {steps} steps adds noise of standard deviation {deviation:g} to the sum of a batch.",
    )


def _dp_sgd_instead(
    _given: Mapping[str, Any], _before: Sequence[Event], after: Sequence[Event]
) -> Mapping[str, Any] | None:
    match after:
        case [Repeated(times=steps, event=PoissonSampled(event=Gaussian(noise_multiplier=noise))) as one, *others]:
            return {"noise_multiplier": noise, "steps": steps} if all(other == one for other in others) else None
        case _:
            return None


DP_SGD: Final = Mechanism(
    name="dp-sgd",
    title="Stochastic gradient descent with clipped gradients and Gaussian noise",
    kind="weights",
    paper="Abadi, Chu, Goodfellow, McMahan, Mironov, Talwar & Zhang 2016, Algorithm 1 (arXiv 1607.00133)",
    card="M01",
    adjacencies=("add_remove", "replace_one"),
    proof_status="proved",
    proof_note=(
        "Composition of Poisson-sampled Gaussian sums, for both adjacencies. It holds if every gradient is "
        "clipped by itself, batches are really Poisson samples, an empty batch is still a noisy step, and the "
        "sampling probability, the number of steps and what sums are divided by are public constants: the size "
        "of the batch that was drawn is not."
    ),
    parameters=(
        Parameter(
            name="noise_multiplier",
            kind="number",
            description="standard deviation of the noise on a sum of gradients, in units of clip_norm",
            bounds=NOISES,
        ),
        Parameter(
            name="sampling_probability",
            kind="number",
            description="probability with which a datapoint is in a batch, independently of all others",
            bounds=Bounds(exclusive_minimum=0, maximum=1),
        ),
        Parameter(
            name="steps",
            kind="integer",
            description="number of noisy steps, fixed in advance",
            bounds=Bounds(minimum=1, maximum=MAX_TIMES),
        ),
        Parameter(
            name="clip_norm",
            kind="number",
            description="L2 norm to which each gradient is clipped; recorded, and no part of the price",
            bounds=CLIP_NORMS,
        ),
        Parameter(
            name="tasks",
            kind="array",
            each=Parameter(
                name="task", kind="string", description="an earlier task", bounds=Bounds(minimum=1, maximum=100)
            ),
            description="earlier tasks whose datapoints are sampled as well, each under a charge of its own",
            bounds=Bounds(minimum=0, maximum=1000),
            default=[],
        ),
    ),
    pricing=_dp_sgd,
    changing=_dp_sgd_instead,
    recipe=(*MODEL, *OPTIMISER, *LABELS, START),
    module="trainers.mechanisms.dp_sgd",
    releases=("labels_release", "start"),
)
