"""The catalog of mechanisms: a name and parameters in, the charges of the release out.

A quote says **what a mechanism does**, as events on ordinals; what that costs is the accountant's business. It is a
function of public parameters alone, so it may be shown to anybody, and the same parameters always give the same quote.

Only the standard library and the accountant are imported, so a process that answers requests can price a mechanism
without the frameworks that run it. docs/mechanisms.md gives the reasons behind each row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import zip_longest
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias, get_args

from accountant.cohorts import MAX_DATAPOINTS
from accountant.errors import InvalidInput
from accountant.events import (
    MAX_TIMES,
    Adjacency,
    Composed,
    Event,
    Gaussian,
    PartitionSelection,
    PoissonSampled,
    Repeated,
    adjacency_of,
)
from accountant.guarantees import ProofStatus
from accountant.partition import per_label
from accountant.streams.allocations import gaussian_noise, pure_noise
from accountant.streams.schedules import MAX_K, MAX_PANE, MAX_STEPS, Block, SlidingWindow, Startup, Step
from accountant.units import Range, real, whole

Kind: TypeAlias = Literal["weights", "labels", "window_model"]
ParameterKind: TypeAlias = Literal["number", "integer", "string", "array"]

MAX_LABELS: Final = 10_000  # that one datapoint may carry


class _Required(Enum):
    REQUIRED = "required"


#: The default of a parameter that must be given.
REQUIRED: Final = _Required.REQUIRED


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The least and the largest value of a number, or length of an array; None where there is no bound."""

    minimum: float | None = None
    exclusive_minimum: float | None = None
    maximum: float | None = None
    exclusive_maximum: float | None = None

    def contains(self, value: float) -> bool:
        """Whether a value is inside."""
        return (
            (self.minimum is None or value >= self.minimum)
            and (self.exclusive_minimum is None or value > self.exclusive_minimum)
            and (self.maximum is None or value <= self.maximum)
            and (self.exclusive_maximum is None or value < self.exclusive_maximum)
        )

    def __str__(self) -> str:
        """As an interval.

        >>> print(Bounds(exclusive_minimum=0, maximum=1))
        (0, 1]
        """
        low = f"[{self.minimum:g}" if self.minimum is not None else f"({_shown(self.exclusive_minimum, '-∞')}"
        high = f"{self.maximum:g}]" if self.maximum is not None else f"{_shown(self.exclusive_maximum, '∞')})"
        return f"{low}, {high}"


def _shown(bound: float | None, otherwise: str) -> str:
    return otherwise if bound is None else f"{bound:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One parameter of a mechanism, with everything that a value must meet.

    A `number` and an `integer` have `bounds`, a `string` is one of its `choices`, and an `array` is a list of objects
    with the fields `items`, its length within `bounds`. `when` names another parameter and its value: only then is this
    one read, and otherwise it must be absent, since a parameter without effect is a misunderstanding.
    """

    name: str
    kind: ParameterKind
    description: str
    bounds: Bounds = Bounds()
    default: Any = REQUIRED
    choices: tuple[str, ...] = ()
    items: tuple[Parameter, ...] = ()
    when: tuple[str, str] | None = None

    def __post_init__(self) -> None:
        bounded = self.bounds.minimum is not None and self.bounds.maximum is not None
        assert bounded or self.kind not in ("integer", "array"), f"{self.name} needs both bounds"
        assert (self.kind == "string") == bool(self.choices), f"{self.name} is a string exactly if it has choices"
        assert (self.kind == "array") == bool(self.items), f"{self.name} is an array exactly if it has items"

    def read(self, path: str, value: object) -> Any:
        """`value` as this parameter, or an error that names the path and says what it must be.

        A whole number may be written 3 or 3.0, which JSON does not tell apart.
        """
        match self.kind:
            case "number":
                return real(path, value, Range(f"a finite number in {self.bounds}", self.bounds.contains))
            case "integer":
                if isinstance(value, float) and value.is_integer():
                    value = int(value)
                return whole(path, value, least=int(self.bounds.minimum or 0), most=int(self.bounds.maximum or 0))
            case "string":
                if not isinstance(value, str) or value not in self.choices:
                    raise InvalidInput(path, value, " or ".join(map(repr, self.choices)))
                return value
            case "array":
                if not isinstance(value, list | tuple) or not self.bounds.contains(len(value)):
                    raise InvalidInput(
                        path, value, f"a list of {self.bounds.minimum:g} to {self.bounds.maximum:g} objects"
                    )
                return [_read(f"{path}[{place}]", self.items, item) for place, item in enumerate(value)]

    def schema(self) -> dict[str, Any]:
        """The JSON Schema of a value."""
        described: dict[str, Any] = {"type": self.kind, "description": self.description}
        words = ("minItems", None, "maxItems", None) if self.kind == "array" else _LIMITS
        limits = (
            self.bounds.minimum,
            self.bounds.exclusive_minimum,
            self.bounds.maximum,
            self.bounds.exclusive_maximum,
        )
        described |= {word: limit for word, limit in zip(words, limits, strict=True) if word and limit is not None}
        if self.choices:
            described["enum"] = list(self.choices)
        if self.items:
            described["items"] = _object_schema(self.items)
        if self.default is not REQUIRED:
            described["default"] = self.default
        return described


_LIMITS: Final = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """One charge of a release: `event` on the ordinals [start, stop) of the population.

    Without them it is on the scope that the proposal names, or on the `part` of the task that it names.
    """

    event: Event
    start: int | None = None
    stop: int | None = None
    part: str | None = None

    def __post_init__(self) -> None:
        assert (self.start is None) == (self.stop is None), "a range has two ends"
        assert self.start is None or self.part is None, "a charge is on a range or on a part"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quoted:
    """What a mechanism does with given parameters.

    `charges` is all that this release does. `life` is for a mechanism that is one step of a schedule: what the
    worst-off datapoint goes through over the whole of it, this release included. A schedule whose life does not fit the
    budget is sure to be denied one day, with models half renewed, so it is refused at its first step.

    A step may lean on models of earlier steps. Those are free only if they were paid for when they were trained:
    `trained` and `reused` name them within `stream`, and the service refuses a step whose models nobody paid for.
    """

    charges: tuple[Priced, ...]
    life: Event | None = None
    steps_note: str = ""
    stream: str | None = None
    trained: tuple[str, ...] = ()
    reused: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Mechanism:
    """A row of the catalog. `pricing` gets the parameters by name, all checked, with defaults filled in."""

    name: str
    title: str
    kind: Kind
    paper: str
    card: str
    adjacencies: tuple[Adjacency, ...]
    proof_status: ProofStatus
    proof_note: str
    parameters: tuple[Parameter, ...]
    pricing: Callable[..., Quoted] = field(repr=False)

    def quote(self, parameters: Mapping[str, Any], *, adjacency: Adjacency) -> Quoted:
        """What a run with these parameters does to the data, or `InvalidInput` that names the parameter at fault."""
        if adjacency_of(adjacency) not in self.adjacencies:
            expected = f"{' or '.join(map(repr, self.adjacencies))}: nothing else is proved of {self.name}"
            raise InvalidInput("adjacency", adjacency, expected)
        return self.pricing(adjacency=adjacency, **_read("parameters", self.parameters, parameters))

    def schema(self) -> dict[str, Any]:
        """The parameters as JSON Schema, draft 2020-12.

        `quote` accepts exactly what is valid, except that it also compares a window's blocks with its schedule.
        """
        return {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": self.title,
            **_object_schema(self.parameters),
        }


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


def _read(path: str, parameters: Sequence[Parameter], given: object) -> dict[str, Any]:
    """Every parameter with its value, or an error for the first that is unknown, missing, out of place or wrong."""
    names = ", ".join(parameter.name for parameter in parameters)
    if not isinstance(given, Mapping):
        raise InvalidInput(path, given, f"an object with {names}")
    for name in given:
        if not any(name == parameter.name for parameter in parameters):
            shown = name if isinstance(name, str) else "a name that is no text"
            raise InvalidInput(f"{path}.{shown}", given[name], f"nothing: there are {names} and no others")
    values: dict[str, Any] = {}
    for parameter in parameters:
        name, at = parameter.name, f"{path}.{parameter.name}"
        if parameter.when and values[parameter.when[0]] != parameter.when[1]:
            if name in given:
                other, value = parameter.when
                raise InvalidInput(at, given[name], f"nothing: it is read only if {other} is {value!r}")
        elif name in given:
            values[name] = parameter.read(at, given[name])
        elif parameter.default is REQUIRED:
            raise InvalidInput(at, "nothing", f"a value: {parameter.description}")
        else:
            values[name] = parameter.default
    return values


def _object_schema(parameters: Sequence[Parameter]) -> dict[str, Any]:
    described: dict[str, Any] = {
        "type": "object",
        "properties": {parameter.name: parameter.schema() for parameter in parameters},
        "required": [each.name for each in parameters if each.default is REQUIRED and not each.when],
        "additionalProperties": False,
    }
    conditions = [_condition_schema(each, parameters) for each in parameters if each.when]
    return described | ({"allOf": conditions} if conditions else {})


def _condition_schema(parameter: Parameter, parameters: Sequence[Parameter]) -> dict[str, Any]:
    """Given where it is read, absent elsewhere."""
    assert parameter.when
    other, value = parameter.when
    condition: dict[str, Any] = {"properties": {other: {"const": value}}}
    if next(each.default for each in parameters if each.name == other) != value:
        condition["required"] = [other]  # the absent parameter has another value
    return {
        "if": condition,
        "then": {"required": [parameter.name] if parameter.default is REQUIRED else []},
        "else": {"properties": {parameter.name: False}},
    }


def _dp_sgd(
    *, adjacency: Adjacency, noise_multiplier: float, sampling_probability: float, steps: int, clip_norm: float
) -> Quoted:
    """`steps` sums of clipped gradients of a fresh Poisson sample, each with Gaussian noise.

    The noise is noise_multiplier · clip_norm, so that the clip norm scales the sum and its noise alike and does not
    enter the price. What an adjacency makes of the sensitivity is the engines' business.
    """
    del adjacency
    step = PoissonSampled(sampling_probability=sampling_probability, event=Gaussian(noise_multiplier=noise_multiplier))
    deviation = noise_multiplier * clip_norm
    return Quoted(
        charges=(Priced(event=Repeated(times=steps, event=step)),),
        steps_note=f"Each of {steps} steps adds noise of standard deviation {deviation:g} to the sum of a batch.",
    )


def _label_release(*, adjacency: Adjacency, epsilon: float, delta: float, labels_per_unit: int) -> Quoted:
    """Every label decided by truncated geometric partition selection, with the ε and δ that `per_label` allows it.

    The parameters are those of the release under `add_remove`, whatever the adjacency: the mechanism that runs is the
    same. The event holds them, once for each count that an added datapoint changes, and the engines double that for a
    replaced one. To split for `replace_one` here as well would halve the price that the caller asked for.
    """
    del adjacency
    each = per_label(epsilon=epsilon, delta=delta, labels=labels_per_unit, adjacency="add_remove")
    event = PartitionSelection(epsilon=each.epsilon, delta=each.delta)
    return Quoted(
        charges=(Priced(event=event if labels_per_unit == 1 else Repeated(times=labels_per_unit, event=event)),),
        steps_note=f"Every label is decided with epsilon = {each.epsilon!r} and delta = {each.delta!r}.",
    )


def _sliding_window(
    *,
    adjacency: Adjacency,
    k: int,
    w0: int,
    step: int,
    chain: Sequence[Mapping[str, int]],
    offset: int,
    startup: Startup,
    noise: str,
    epsilon: float | None = None,
    mu: float | None = None,
) -> Quoted:
    """One charge for every block that `step` trains, with the noise that its level gets from the budget of a life.

    A step of the schedule has two lists. `Step.chain` is what the released model leans on: one block for each level,
    together the window; each is regularised by the noisy model of the next level. `Step.trained` are those of them that
    are new, in the order of training, the largest first: only they read data, and each is a release of its own noise.
    The rest of the chain is reused as it was released, which is post-processing and costs nothing.

    Over its life a datapoint enters one block of each level (docs/streams.md), so a life is one event for each level.
    With `startup` `full`, step 0 is the first full window, and datapoints of that window may enter fewer. With
    `partial`, step 0 is the first pane; a block that reaches back before the stream is cut there, and one that lies
    wholly before it does not exist. An average still divides by the full size, so the sensitivity is that of the level.
    """
    schedule = SlidingWindow(k=k, w0=w0, startup=startup)
    if noise == "pure":
        assert epsilon is not None
        allocation = pure_noise(schedule, epsilon=epsilon, adjacency=adjacency)
    else:
        assert mu is not None
        allocation = gaussian_noise(schedule, mu=mu, adjacency=adjacency)
    due = schedule.step(step)
    _check_blocks(chain, due, offset)
    return Quoted(
        charges=tuple(
            Priced(event=allocation.event(block.model), start=block.start + offset, stop=block.stop + offset)
            for block in due.trained
        ),
        life=Composed(events=tuple(allocation.event(model) for model in schedule.models)),
        stream=f"sliding-window k={k} w0={w0} offset={offset} startup={startup} {noise}={epsilon or mu!r}",
        trained=tuple(_in_words(_document(block, offset)) for block in due.trained),
        reused=tuple(_in_words(_document(block, offset)) for block in due.chain if block not in due.trained),
        steps_note=(
            f"Step {step} trains {len(due.trained)} of the {len(due.chain)} blocks of its window; "
            "what is reused costs nothing."
        ),
    )


def _check_blocks(given: Sequence[Mapping[str, int]], due: Step, offset: int) -> None:
    """Refuse a list of blocks that is not that of the step: a block left out would be trained and not paid for."""
    trained, chain = ([_document(block, offset) for block in blocks] for blocks in (due.trained, due.chain))
    for place, (block, right) in enumerate(zip_longest(given, trained)):
        if block == right:
            continue
        expected = _in_words(right) if right else "no further block"
        if block in chain and block not in trained:
            expected += f" ({_in_words(block)} is reused, and costs nothing)"
        expected += f": step {due.number} trains {'; '.join(map(_in_words, trained))}, in this order"
        raise InvalidInput(f"parameters.chain[{place}]", block or "nothing", expected)


def _document(block: Block, offset: int) -> dict[str, int]:
    return {"level": block.level, "start": block.start + offset, "stop": block.stop + offset}


def _in_words(block: Mapping[str, int]) -> str:
    return f"level {block['level']} on [{block['start']}, {block['stop']})"


_ORDINAL: Final = Bounds(minimum=0, maximum=MAX_DATAPOINTS - 1)
#: Of a whole life. Below 2e-5 an ε could not be shared among `MAX_K` levels in units of the ledger.
_LIFE: Final = Bounds(minimum=1e-4, maximum=1e9)

#: Every mechanism that can be proposed by name.
CATALOG: Final[Mapping[str, Mechanism]] = MappingProxyType(
    {
        "dp-sgd": Mechanism(
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
                    bounds=Bounds(exclusive_minimum=0),
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
                    bounds=Bounds(exclusive_minimum=0),
                ),
            ),
            pricing=_dp_sgd,
        ),
        "label-release": Mechanism(
            name="label-release",
            title="Which labels exist, by truncated geometric partition selection",
            kind="labels",
            paper="Desfontaines, Voss, Gipson & Mandayam 2022, Theorem 6 (arXiv 2006.03684)",
            card="M04",
            adjacencies=("add_remove", "replace_one"),
            proof_status="proved",
            proof_note=(
                "The loss is known exactly (docs/label-release.md). It holds if nobody carries more than "
                "labels_per_unit labels, enforced on each datapoint alone, a label that nobody carries is never told, "
                "and the noise is a whole number drawn with exactly these probabilities, anew for every label."
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
            ),
            pricing=_label_release,
        ),
        "sliding-window": Mechanism(
            name="sliding-window",
            title="A model of the last datapoints of a stream, renewed as it advances",
            kind="window_model",
            paper="Watson, Ghosh, Rozemberczki & Sarkar 2022, Algorithm 5 (arXiv 2203.03594)",
            card="M17",
            adjacencies=("add_remove", "replace_one"),
            proof_status="proved",
            proof_note=(
                "Of this version, which shares the budget of a life among the levels; the paper leaves the noise below "
                "the base open, and its theorem fails for some readings (docs/streams.md). A datapoint enters one "
                "block of each level. It holds if the losses have a public Lipschitz constant, the penalty is strongly "
                "convex, training is contractive or exact, averages divide by the full size of a block, and pure noise "
                "is spherical, not Laplace on each coordinate."
            ),
            parameters=(
                Parameter(
                    name="k",
                    kind="integer",
                    description="number of levels: a window holds 2^k - 1 panes",
                    bounds=Bounds(minimum=1, maximum=MAX_K),
                ),
                Parameter(
                    name="w0",
                    kind="integer",
                    description="datapoints in a pane, by which the stream advances in one step",
                    bounds=Bounds(minimum=1, maximum=MAX_PANE),
                ),
                Parameter(
                    name="step",
                    kind="integer",
                    description="number of the step that is released, from 0 at the first release",
                    bounds=Bounds(minimum=0, maximum=MAX_STEPS),
                ),
                Parameter(
                    name="chain",
                    kind="array",
                    description=(
                        "the blocks that are trained anew at this step, in the order of training, the largest first; "
                        "they are compared with the schedule"
                    ),
                    bounds=Bounds(minimum=1, maximum=MAX_K),
                    items=(
                        Parameter(
                            name="level",
                            kind="integer",
                            description="the block has 2^level panes",
                            bounds=Bounds(minimum=0, maximum=MAX_K - 1),
                        ),
                        Parameter(
                            name="start",
                            kind="integer",
                            description="ordinal in the population of its first datapoint",
                            bounds=_ORDINAL,
                        ),
                        Parameter(
                            name="stop",
                            kind="integer",
                            description="ordinal after that of its last datapoint",
                            bounds=Bounds(minimum=1, maximum=MAX_DATAPOINTS),
                        ),
                    ),
                ),
                Parameter(
                    name="offset",
                    kind="integer",
                    description="ordinal in the population of the first datapoint of the stream",
                    bounds=_ORDINAL,
                    default=0,
                ),
                Parameter(
                    name="startup",
                    kind="string",
                    description="release nothing before the first full window (full), or from the first pane (partial)",
                    default="full",
                    choices=get_args(Startup),
                ),
                Parameter(
                    name="noise",
                    kind="string",
                    description="spherical Laplace noise (pure) or Gaussian noise",
                    default="pure",
                    choices=("pure", "gaussian"),
                ),
                Parameter(
                    name="epsilon",
                    kind="number",
                    description="what a whole life costs with pure noise, under the population's adjacency",
                    bounds=_LIFE,
                    when=("noise", "pure"),
                ),
                Parameter(
                    name="mu",
                    kind="number",
                    description="a whole life is mu-GDP with Gaussian noise, under the population's adjacency",
                    bounds=_LIFE,
                    when=("noise", "gaussian"),
                ),
            ),
            pricing=_sliding_window,
        ),
    }
)
