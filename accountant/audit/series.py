"""The audits of a population, one after the other for life.

An audit is planned before anything of it is run. Its plan fixes its number, and with that the confidence that it must
have (`verdicts.confidence_of`: all audits of a population share one error budget), and which promise it is held
against. So nobody can run an audit until it says what they like: an audit that comes to nothing has used its share, and
a repetition is another audit, which needs more confidence. All attempts at one audit draw the same chance from the seed
of its plan.

A violation blocks its mechanism in the population until a version of the policy lifts it by name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, get_args

from accountant.audit.empirical import LowerBound, Method
from accountant.audit.verdicts import Power, Verdict, confidence_of, verdict, weakened
from accountant.errors import InvalidDocument, InvalidInput
from accountant.guarantees import rounded_down, rounded_up
from accountant.units import FAILURE_PROBABILITY, NOT_NEGATIVE, real, whole

Document: TypeAlias = Mapping[str, Any]
OnViolation: TypeAlias = Literal["block", "freeze"]
#: What became of a plan so far.
Stage: TypeAlias = Literal["planned", "concluded", "abandoned"]

LEAST_SAMPLES: Final = 100
MAX_SAMPLES: Final = 10**7
_ACTIONS: Final = get_args(OnViolation)
_METHODS: Final = get_args(Method)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedAudit:
    """An audit as its plan fixed it, and what it came to."""

    id: str
    number: int  # among all audits of its population, from 1
    mechanism: str
    name: str  # of the experiment
    samples: int
    confidence: float
    epsilon: float  # that is promised, at `delta`, …
    delta: float
    by: str  # … by whom
    on_violation: OnViolation
    seed: str
    entry: int  # of the log, that planned it
    power: Power | None = None  # what it would see, at its confidence; older plans do not say
    stage: Stage = "planned"
    bound: LowerBound | None = None
    verdict: Verdict | None = None
    ended: int | None = None  # the entry that concluded or abandoned it

    @property
    def freezes(self) -> bool:
        """Whether the population is frozen by it."""
        return self.verdict == "violation" and self.on_violation == "freeze"

    @property
    def stops_holds(self) -> bool:
        """Whether its violation stops what a pipeline holds already: those of older plans, without a power, did not."""
        return self.power is not None

    @property
    def sentence(self) -> str:
        """What it says, for people."""
        promise = f"ε ≤ {rounded_up(self.epsilon, digits=self._digits).normalize():f} at δ = {self.delta:g}"
        which = f"Audit {self.number} of this population"
        if self.stage == "abandoned":
            return f"{which}, of {self.mechanism!r}, came to nothing, and has used its share of errors."
        if self.bound is None:
            return f"{which}, of {self.mechanism!r} against {promise}, is planned; nothing is known yet."
        match self.verdict:
            case "violation":
                said = f"The promise of {promise} for {self.mechanism!r} is false"
            case "consistent":
                said = f"Nothing was found against the promise of {promise} for {self.mechanism!r}, {self._seen}"
            case _:
                said = f"Whether {self.mechanism!r} keeps the promise of {promise} cannot be told, since {self._unseen}"
        sure = math.floor(1000 * self.bound.confidence) / 10  # rounded down, as the bound is
        found = rounded_down(self.bound.epsilon_lower, digits=self._digits).normalize()
        shape = ", if the noise is normal" if self.bound.assumes_a_shape else ""
        return (
            f"{said}: an attack showed ε ≥ {found:f} at δ = {self.bound.delta:g} (lower bound{shape}, {sure:g} % "
            f"confidence, {self._tested})."
        )

    @property
    def _digits(self) -> int:
        """Three, or as many as it takes for a bound above a promise to be shown above it."""
        if self.bound is None or self.verdict != "violation":
            return 3
        low, high = self.epsilon, self.bound.epsilon_lower
        apart = (each for each in range(3, 17) if rounded_up(low, digits=each) < rounded_down(high, digits=each))
        return next(apart, 17)

    @property
    def _tested(self) -> str:
        """On how many it was tested: a quarter of each side may have gone into where to look."""
        assert self.bound is not None
        tested, planned = f"{self.bound.samples:,}", f"{self.samples:,}"
        if self.bound.method == "one_run":
            return f"from {tested} canaries, of {planned} planned"
        return f"from {tested} runs with the datapoint and {tested} without, of {planned} planned of each"

    @property
    def _seen(self) -> str:
        if self.power is None:
            return "by an audit whose plan does not say what it would have seen"
        return f"by an audit that would have caught {weakened(self.power.twin)}"

    @property
    def _unseen(self) -> str:
        if self.power is None or self.power.suffices(self.samples):
            return "so many samples prove nothing at this confidence"
        if self.power.samples is None:
            return f"at the confidence of audit {self.number} this attack would not catch {weakened(self.power.twin)}"
        return (
            f"catching {weakened(self.power.twin)} takes {self.power.samples:,} samples, and there were "
            f"{self.samples:,}"
        )


def planned_body(
    *,
    audit: str,
    number: int,
    mechanism: str,
    name: str,
    samples: int,
    epsilon: float,
    delta: float,
    by: str,
    on_violation: OnViolation,
    seed: str,
    power: Power,
    reason: str | None = None,
) -> dict[str, Any]:
    """The entry that plans audit `number` of a population."""
    said = {} if reason is None else {"reason": reason}
    return {
        **said,
        "kind": "audit.planned",
        "audit": audit,
        "number": number,
        "mechanism": mechanism,
        "name": name,
        "samples": samples,
        "confidence": confidence_of(number),
        "promise": {"epsilon": epsilon, "delta": delta, "by": by},
        "on_violation": on_violation,
        "seed": seed,
        "power": power._asdict(),
    }


def plan_from(document: Document, *, entry: int) -> PlannedAudit:
    """The plan that an entry of the log spells."""
    promise = document["promise"]
    if document["on_violation"] not in _ACTIONS:
        raise InvalidDocument("on_violation", document["on_violation"], " or ".join(map(repr, _ACTIONS)))
    return PlannedAudit(
        id=document["audit"],
        number=document["number"],
        mechanism=document["mechanism"],
        name=document["name"],
        samples=whole("samples", document["samples"], least=LEAST_SAMPLES, most=MAX_SAMPLES),
        confidence=float(document["confidence"]),
        epsilon=real("promise.epsilon", promise["epsilon"], NOT_NEGATIVE),
        delta=real("promise.delta", promise["delta"], FAILURE_PROBABILITY),
        by=promise["by"],
        on_violation=document["on_violation"],
        seed=document["seed"],
        entry=entry,
        power=_power_from(document),
    )


def _power_from(document: Document) -> Power | None:
    """What the plan says of its power: nothing, if it is from before plans did, and then its verdict is as it was."""
    match document.get("power"):
        case None:
            return None
        case {"twin": str(twin), "samples": None}:
            return Power(twin, None)
        case {"twin": str(twin), "samples": int(samples)}:
            return Power(twin, whole("power.samples", samples, least=1, most=MAX_SAMPLES))
        case said:
            raise InvalidDocument("power", said, "a twin, and from how many samples on it shows")


def check_plan(plan: PlannedAudit, *, number: int) -> None:
    """Refuse a plan that is not that of audit `number`: it would need another confidence."""
    if plan.number != number:
        raise InvalidInput("number", plan.number, f"{number}, the next audit of this population")
    if plan.confidence != confidence_of(number):
        raise InvalidInput("confidence", plan.confidence, f"{confidence_of(number)!r}, that of audit {number}")


def said_of(plan: PlannedAudit, bound: LowerBound) -> Verdict:
    """The verdict that follows from a bound; refused is a bound that is not one of what was planned."""
    if bound.confidence != plan.confidence:
        raise InvalidInput("confidence", bound.confidence, f"{plan.confidence!r}, that of audit {plan.number}")
    if bound.delta != plan.delta:
        raise InvalidInput("delta", bound.delta, f"{plan.delta:g}, as planned")
    if bound.samples > plan.samples:
        raise InvalidInput("samples", bound.samples, f"at most {plan.samples:,}, as planned")
    if (bound.method == "gaussian_dp") != bound.assumes_a_shape:
        raise InvalidInput("method", bound.method, "one whose assumptions are said")
    powerful = plan.power is None or plan.power.suffices(plan.samples)
    return verdict(bound, epsilon=plan.epsilon, delta=plan.delta, confidence=plan.confidence, powerful=powerful)


def concluded_body(plan: PlannedAudit, bound: LowerBound) -> dict[str, Any]:
    """The entry that concludes a planned audit: its verdict follows from its numbers."""
    return {"kind": "audit.concluded", "audit": plan.id, "bound": bound_to(bound), "verdict": said_of(plan, bound)}


def bound_to(bound: LowerBound) -> dict[str, Any]:
    """A lower bound in a log."""
    return {
        "epsilon_lower": bound.epsilon_lower,
        "delta": bound.delta,
        "confidence": bound.confidence,
        "method": bound.method,
        "samples": bound.samples,
        "assumptions": list(bound.assumptions),
        "attainable": bound.attainable,
    }


def bound_from(document: Document) -> LowerBound:
    """The bound that `bound_to` spells."""
    match document:
        case {"method": str(method), "assumptions": [*assumptions]} if method in _METHODS:
            pass
        case _:
            raise InvalidDocument("bound", document, "a lower bound")
    return LowerBound(
        epsilon_lower=real("epsilon_lower", document["epsilon_lower"], NOT_NEGATIVE),
        delta=real("delta", document["delta"], FAILURE_PROBABILITY),
        confidence=real("confidence", document["confidence"], FAILURE_PROBABILITY),
        method=document["method"],
        samples=whole("samples", document["samples"], least=1, most=MAX_SAMPLES),
        assumptions=tuple(map(str, assumptions)),
        attainable=real("attainable", document["attainable"], NOT_NEGATIVE),
    )
