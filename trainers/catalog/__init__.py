"""The catalog of mechanisms: a name and parameters in, the charges of the release out.

A quote says **what a mechanism does**, as events on ordinals; what that costs is the accountant's business. It is a
function of public parameters alone, so it may be shown to anybody, and the same parameters always give the same quote.

Only the standard library and the accountant are imported, so a process that answers requests can price a mechanism
without the frameworks that run it. docs/mechanisms.md gives the reasons behind each row.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from accountant.errors import InvalidInput
from trainers.catalog.erm import OUTPUT_PERTURBATION, OUTPUT_PERTURBATION_AS_PUBLISHED
from trainers.catalog.evaluation import A_GEM, ACCURACY, FINE_TUNING
from trainers.catalog.features import COSINE_CLASSIFIER, PEFT_ENSEMBLE
from trainers.catalog.gradients import DP_SGD
from trainers.catalog.labels import LABEL_RELEASE
from trainers.catalog.lifelong import L2DP_ML, L2DP_ML_AS_PUBLISHED
from trainers.catalog.memories import DP_AGEM_AS_PUBLISHED, DP_CL_AS_PUBLISHED, EPISODIC_MEMORY
from trainers.catalog.parameters import REQUIRED, Bounds, Parameter
from trainers.catalog.quotes import Kind, Mechanism, Priced, Quoted
from trainers.catalog.windows import CONTINUAL_RELEASE, CONTINUAL_RELEASE_AS_PUBLISHED, MULTI_RESOLUTION, SLIDING_WINDOW

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["CATALOG", "REQUIRED", "Bounds", "Kind", "Mechanism", "Parameter", "Priced", "Quoted", "mechanism"]

#: Every mechanism that can be proposed by name.
CATALOG: Final[Mapping[str, Mechanism]] = MappingProxyType(
    {
        each.name: each
        for each in (
            DP_SGD,
            LABEL_RELEASE,
            SLIDING_WINDOW,
            EPISODIC_MEMORY,
            L2DP_ML,
            DP_AGEM_AS_PUBLISHED,
            DP_CL_AS_PUBLISHED,
            L2DP_ML_AS_PUBLISHED,
            COSINE_CLASSIFIER,
            PEFT_ENSEMBLE,
            OUTPUT_PERTURBATION,
            MULTI_RESOLUTION,
            CONTINUAL_RELEASE,
            OUTPUT_PERTURBATION_AS_PUBLISHED,
            CONTINUAL_RELEASE_AS_PUBLISHED,
            ACCURACY,
            FINE_TUNING,
            A_GEM,
        )
    }
)


def mechanism(name: str) -> Mechanism:
    """The mechanism of this name, or an error that lists all.

    >>> mechanism("dp-sgd").quote(
    ...     {"noise_multiplier": 1.1, "sampling_probability": 0.01, "steps": 2000, "clip_norm": 1.0},
    ...     adjacency="add_remove",
    ... ).charges[0].event
    Repeated(times=2000, event=PoissonSampled(sampling_probability=0.01, event=Gaussian(noise_multiplier=1.1)))
    """
    if not isinstance(name, str) or name not in CATALOG:
        raise InvalidInput("mechanism", name, "one of " + ", ".join(CATALOG))
    return CATALOG[name]
