"""Rows of mechanisms that build on the features of a frozen backbone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from accountant.events import Gaussian
from trainers.catalog.gradients import DP_SGD
from trainers.catalog.label_spaces import LABEL_RELEASES, LABELS
from trainers.catalog.parameters import NOISES, Bounds, Parameter
from trainers.catalog.quotes import Mechanism, Priced, Quoted
from trainers.catalog.recipes import OPTIMISER, release

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from accountant.events import Adjacency, Event

MAX_FEATURES: Final = 1 << 20

#: Recipe parameters that say what rows are turned into; `trainers.backbones` applies them.
FEATURES: Final[tuple[Parameter, ...]] = (
    Parameter(
        name="backbone",
        kind="string",
        description="name of a backbone in the worker's configuration; '' if rows are features already",
        bounds=Bounds(minimum=0, maximum=64),
        default="",
    ),
    Parameter(
        name="feature_size",
        kind="integer",
        description="numbers in a row that is features already",
        bounds=Bounds(minimum=1, maximum=MAX_FEATURES),
        when=("backbone", ""),
    ),
)


def _prototypes(*, adjacency: Adjacency, noise_multiplier: float) -> Quoted:
    """A sum of unit vectors for each label, all of them one Gaussian release: a datapoint is in one sum alone.

    Together the sums are one long vector, which a datapoint moves by at most 1 when it comes or goes.
    """
    del adjacency
    return Quoted(
        charges=(Priced(event=Gaussian(noise_multiplier=noise_multiplier)),),
        steps_note=f"Each number of each label's sum gets noise of standard deviation {noise_multiplier:g} of its own.",
    )


def _prototypes_instead(
    _given: Mapping[str, Any], _before: Sequence[Event], after: Sequence[Event]
) -> Mapping[str, Any] | None:
    match after:
        case [Gaussian(noise_multiplier=noise)]:
            return {"noise_multiplier": noise}
        case _:
            return None


COSINE_CLASSIFIER: Final = Mechanism(
    name="cosine-classifier",
    title="Sums of normalised features for each label, with Gaussian noise, classified by their angle",
    kind="prototypes",
    paper="Tobaben, Alrawajfeh, Klasson, Heikkilä, Solin & Honkela 2024, Algorithm 1 (arXiv 2411.04680)",
    card="M02",
    adjacencies=("add_remove", "replace_one"),
    proof_status="proved",
    proof_note=(
        "One Gaussian release of all labels' sums together. It holds if features are those of a public, frozen "
        "backbone and are normalised row by row, every label of the set gets noise of its own whether anybody carries "
        "it or not, and the set is public or was released. Equation 9 of the paper adds one noise vector to all "
        "labels of a task, which cancels in differences: that is not what runs here."
    ),
    parameters=(
        Parameter(
            name="noise_multiplier",
            kind="number",
            description="standard deviation of the noise on each number of each sum; a row has norm 1",
            bounds=NOISES,
        ),
    ),
    recipe=(
        *LABELS,
        *FEATURES,
        release("previous", "id of the release of this mechanism for the tasks before, whose sums are added to"),
    ),
    releases=("previous", *LABEL_RELEASES),
    module="trainers.mechanisms.cosine_classifier",
    pricing=_prototypes,
    changing=_prototypes_instead,
)


def _member(
    *, adjacency: Adjacency, noise_multiplier: float, sampling_probability: float, steps: int, clip_norm: float
) -> Quoted:
    """What DP-SGD does to the data of the task, and nothing to those of others."""
    return DP_SGD.pricing(
        adjacency=adjacency,
        noise_multiplier=noise_multiplier,
        sampling_probability=sampling_probability,
        steps=steps,
        clip_norm=clip_norm,
        tasks=(),
    )


PEFT_ENSEMBLE: Final = Mechanism(
    name="peft-ensemble",
    title="An adapter and a head on a frozen backbone for each task, trained by noisy gradients",
    kind="weights",
    paper="Tobaben, Alrawajfeh, Klasson, Heikkilä, Solin & Honkela 2024, Algorithm 2 (arXiv 2411.04680)",
    card="M03",
    adjacencies=DP_SGD.adjacencies,
    proof_status="proved",
    proof_note=(
        "DP-SGD on the task's own data alone; another task's model is another release. It holds on the conditions of "
        "dp-sgd, and if the width of the head is that of a label set that is public or was released, statistics of "
        "normalisation layers are those of the public backbone, and hyper-parameters were not chosen by looking at "
        "the data. Algorithm A5 of the preceding paper prints a training on the data of all tasks so far, which "
        "would cost a datapoint every later task as well."
    ),
    parameters=tuple(each for each in DP_SGD.parameters if each.name != "tasks"),
    recipe=(
        *LABELS,
        *FEATURES,
        Parameter(
            name="adapter",
            kind="string",
            description=(
                "train a head on frozen features (last_layer), or also a scale and a shift for each channel of each "
                "normalisation layer (film)"
            ),
            default="last_layer",
            choices=("last_layer", "film"),
        ),
        Parameter(
            name="feature_norm",
            kind="number",
            description="L2 norm that each row's features are scaled to before the head; 0: they are taken as they are",
            bounds=Bounds(minimum=0, maximum=1e6),
            default=4.0,
        ),
        *OPTIMISER,
    ),
    releases=LABEL_RELEASES,
    module="trainers.mechanisms.peft_ensemble",
    pricing=_member,
    changing=DP_SGD.changing,
)
