"""Rows of mechanisms that release models of a stream."""

from __future__ import annotations

from functools import lru_cache
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final, get_args

from accountant.cohorts import MAX_DATAPOINTS
from accountant.errors import InvalidInput
from accountant.events import Composed, Gaussian, L2Laplace, NonPrivate, PureDP
from accountant.streams.allocations import gaussian_noise, pure_noise
from accountant.streams.schedules import (
    MAX_K,
    MAX_PANE,
    MAX_STEPS,
    ContinualRelease,
    MultiResolution,
    SlidingWindow,
    Startup,
)
from accountant.units import exact, rounded
from trainers.catalog.erm import NOISE, PROBLEM, shift_of
from trainers.catalog.label_spaces import LABEL_RELEASES
from trainers.catalog.parameters import Bounds, Parameter
from trainers.catalog.quotes import Mechanism, Priced, Quoted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from accountant.events import Adjacency, Event
    from accountant.streams.allocations import Allocation
    from accountant.streams.schedules import Block, Schedule, Step


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

    What is charged is computed from the schedule, with `chain` or without: it is there to be compared.
    """
    schedule = SlidingWindow(k=k, w0=w0, startup=startup)
    allocation = _allocation(schedule, adjacency, noise, epsilon, mu)
    due = schedule.step(step)
    if chain:
        _check_blocks(chain, due, offset)
    return Quoted(
        charges=_charges(due, allocation, offset),
        life=_each_once(schedule, adjacency, noise, epsilon, mu),
        stream=f"sliding-window k={k} w0={w0} offset={offset} startup={startup} {noise}={epsilon or mu!r}",
        trained=tuple(_in_words(_document(block, offset)) for block in due.trained),
        reused=tuple(_in_words(_document(block, offset)) for block in due.chain if block not in due.trained),
        steps_note=(
            f"Step {step} trains {len(due.trained)} of the {len(due.chain)} blocks of its window; "
            "what is reused costs nothing."
        ),
    )


@lru_cache(maxsize=256)  # the steps of a stream share it
def _allocation(
    schedule: Schedule, adjacency: Adjacency, noise: str, epsilon: float | None, mu: float | None
) -> Allocation:
    """The same noise at every level, for a life that costs `epsilon` or is `mu`-GDP."""
    if noise == "pure":
        assert epsilon is not None
        return pure_noise(schedule, epsilon=epsilon, adjacency=adjacency)
    assert mu is not None
    return gaussian_noise(schedule, mu=mu, adjacency=adjacency)


@lru_cache(maxsize=256)
def _each_once(
    schedule: Schedule, adjacency: Adjacency, noise: str, epsilon: float | None, mu: float | None
) -> Composed:
    """A life that enters every model once."""
    allocation = _allocation(schedule, adjacency, noise, epsilon, mu)
    return Composed(events=tuple(allocation.event(model) for model in allocation.shares))


def _multi_resolution(
    *,
    adjacency: Adjacency,
    pane: int,
    levels: int,
    step: int,
    offset: int,
    noise: str,
    epsilon: float | None = None,
    mu: float | None = None,
) -> Quoted:
    """One charge for every level that is due: level i at every 2^i-th step, on the last 2^i panes.

    A datapoint enters one block of each level, so a life is one event for each level. Without end, shares halve from
    level to level (of μ²: are quartered), and all that a stream can ever reach add up to no more than the budget.
    """
    schedule = MultiResolution(pane=pane, levels=levels or None)
    allocation = _allocation(schedule, adjacency, noise, epsilon, mu)
    due = schedule.step(step)
    return Quoted(
        charges=_charges(due, allocation, offset),
        life=_each_once(schedule, adjacency, noise, epsilon, mu),
        stream=f"multi-resolution pane={pane} levels={levels} offset={offset} {noise}={epsilon or mu!r}",
        trained=_names(due.trained, offset),
        steps_note=f"Step {step} trains a model of each of {len(due.trained)} sizes; none leans on another.",
    )


def _continual_release(
    *,
    adjacency: Adjacency,
    pane: int,
    doublings: int,
    step: int,
    offset: int,
    noise: str,
    epsilon: float | None = None,
    mu: float | None = None,
) -> Quoted:
    """One charge: a base on all that arrived, or an update on what arrived since the last base.

    Lives differ: the first datapoints enter bases alone, the first after a base enter every update until the next one,
    and all later bases. No life costs more than the budget of the allocation, however long the stream; so `life` is
    one event that costs just that. For pure noise it is any ε-DP release, whose curve is above that of all releases
    whose ε add up to ε (Kairouz, Oh & Viswanath 2015); Gaussians add up exactly.
    """
    schedule = ContinualRelease(pane=pane, base=pane << doublings)
    allocation = _allocation(schedule, adjacency, noise, epsilon, mu)
    due = schedule.step(step)
    life: Event
    if mu is None:
        life = PureDP(epsilon=rounded(allocation.budget, towards=float("inf")))
    else:
        life = Gaussian(noise_multiplier=rounded(shift_of(adjacency) / exact(mu), towards=0.0))
    return Quoted(
        charges=_charges(due, allocation, offset),
        life=life,
        stream=f"continual-release pane={pane} doublings={doublings} offset={offset} {noise}={epsilon or mu!r}",
        trained=_names(due.trained, offset),
        reused=_names([block for block in due.chain if block not in due.trained], offset),
        steps_note=_continual_note(due),
    )


def _continual_release_as_published(
    *, adjacency: Adjacency, pane: int, doublings: int, step: int, offset: int, epsilon: float
) -> Quoted:
    """The same blocks, with noise for which the paper's claim is refuted: no price is offered for a false promise."""
    del adjacency
    due = ContinualRelease(pane=pane, base=pane << doublings).step(step)
    [block] = due.trained
    return Quoted(
        charges=(Priced(event=NonPrivate(), start=block.start + offset, stop=block.stop + offset),),
        stream=f"continual-release-as-published pane={pane} doublings={doublings} offset={offset} epsilon={epsilon!r}",
        trained=_names(due.trained, offset),
        reused=_names([block for block in due.chain if block not in due.trained], offset),
        steps_note=_continual_note(due),
    )


def _continual_note(due: Step) -> str:
    [block] = due.trained
    what = "everything so far" if block.kind == "base" else f"[{block.start}, {block.stop}) of the stream"
    return f"Step {due.number} trains a model of {what}; what it leans on costs nothing."


def _charges(due: Step, allocation: Allocation, offset: int) -> tuple[Priced, ...]:
    return tuple(
        Priced(event=allocation.event(block.model), start=block.start + offset, stop=block.stop + offset)
        for block in due.trained
    )


def _names(blocks: Sequence[Block], offset: int) -> tuple[str, ...]:
    return tuple(f"{block.kind} of {_in_words(_document(block, offset))}" for block in blocks)


def _same_noise_instead(
    given: Mapping[str, Any], before: Sequence[Event], after: Sequence[Event]
) -> Mapping[str, Any] | None:
    """All levels share what a life costs, so noise that grows everywhere alike divides it."""
    match before, after:
        case [L2Laplace(scale=old), *_], [L2Laplace(scale=new), *_]:
            return {"epsilon": rounded(exact(given["epsilon"]) * exact(old) / exact(new), towards=0.0)}
        case [Gaussian(noise_multiplier=old), *_], [Gaussian(noise_multiplier=new), *_]:
            return {"mu": rounded(exact(given["mu"]) * exact(old) / exact(new), towards=0.0)}
        case _:
            return None


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

_STEP: Final = Parameter(
    name="step",
    kind="integer",
    description="number of the step that is released, from 0 at the first release",
    bounds=Bounds(minimum=0, maximum=MAX_STEPS),
)
_OFFSET: Final = Parameter(
    name="offset",
    kind="integer",
    description="ordinal in the population of the first datapoint of the stream",
    bounds=_ORDINAL,
    default=0,
)
_PANE: Final = Parameter(
    name="pane",
    kind="integer",
    description="datapoints by which the stream advances in one step",
    bounds=Bounds(minimum=1, maximum=MAX_PANE),
)
_DOUBLINGS: Final = Parameter(
    name="doublings",
    kind="integer",
    description="the first base holds 2^doublings panes, and is released at step 0",
    bounds=Bounds(minimum=0, maximum=MAX_K),
)
_BUDGET: Final = (
    NOISE,
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
)
#: One release suffices, that of the step before: an artifact holds every model of its chain.
_PREVIOUS: Final = Parameter(
    name="previous",
    kind="array",
    description="ids of releases that hold the models that are reused: the one before this is enough",
    bounds=Bounds(minimum=0, maximum=MAX_K),
    each=Parameter(name="release", kind="string", description="an id", bounds=Bounds(minimum=1, maximum=200)),
    default=[],
)

SLIDING_WINDOW: Final = Mechanism(
    name="sliding-window",
    title="A model of the last datapoints of a stream, renewed as it advances",
    kind="window_model",
    paper="Watson, Ghosh, Rozemberczki & Sarkar 2022, Algorithm 5 (arXiv 2203.03594)",
    card="M17",
    adjacencies=("add_remove", "replace_one"),
    proof_status="proved",
    proof_note=(
        "Proved for the version that runs here, which "
        "shares the budget of a life among the levels; the paper leaves the noise below "
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
        _STEP,
        Parameter(
            name="chain",
            kind="array",
            description=(
                "the blocks that are trained anew at this step, in the order of training, the largest first; "
                "they are compared with the schedule, which is what is charged if they are left out"
            ),
            bounds=Bounds(minimum=0, maximum=MAX_K),
            default=[],
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
        _OFFSET,
        Parameter(
            name="startup",
            kind="string",
            description="release nothing before the first full window (full), or from the first pane (partial)",
            default="full",
            choices=get_args(Startup),
        ),
        *_BUDGET,
    ),
    pricing=_sliding_window,
    changing=_same_noise_instead,
    recipe=(*PROBLEM, _PREVIOUS),
    releases=(*LABEL_RELEASES, "previous"),
    module="trainers.mechanisms.sliding_window",
)

MULTI_RESOLUTION: Final = Mechanism(
    name="multi-resolution",
    title="Models of the last datapoints of a stream, at every scale",
    kind="window_model",
    paper="Watson, Ghosh, Rozemberczki & Sarkar 2022, Algorithm 2 (arXiv 2203.03594)",
    card="M14",
    adjacencies=("add_remove", "replace_one"),
    proof_status="proved",
    proof_note=(
        "Proved for the version that runs here. "
        "A datapoint enters one block of each level, and shares of the budget that halve from level "
        "to level have a sum, so that no life passes it however long the stream. It needs what output-perturbation "
        "needs of every model; the paper's noise on each coordinate does not do."
    ),
    parameters=(
        _PANE,
        Parameter(
            name="levels",
            kind="integer",
            description="number of scales, 1 to 2^(levels-1) panes; 0 for no end of them",
            bounds=Bounds(minimum=0, maximum=MAX_K),
            default=0,
        ),
        _STEP,
        _OFFSET,
        *_BUDGET,
    ),
    pricing=_multi_resolution,
    changing=_same_noise_instead,
    recipe=PROBLEM,
    releases=LABEL_RELEASES,
    module="trainers.mechanisms.multi_resolution",
)

CONTINUAL_RELEASE: Final = Mechanism(
    name="continual-release",
    title="A model of everything so far, renewed as a stream advances",
    kind="window_model",
    paper="Watson, Ghosh, Rozemberczki & Sarkar 2022, Algorithms 3 and 4 (arXiv 2203.03594)",
    card="M16",
    adjacencies=("add_remove", "replace_one"),
    proof_status="proved",
    proof_note=(
        "Proved for the version that runs here. "
        "What bases and updates cost is added up for the worst-off datapoint, in closed form, and "
        "the noise is larger than the paper's by max(1, 3/2 - b0/B): its own lets a life cost up to half as much "
        "again as it claims. It needs what output-perturbation needs of every model, and blocks that do not share "
        "their ends."
    ),
    parameters=(_PANE, _DOUBLINGS, _STEP, _OFFSET, *_BUDGET),
    pricing=_continual_release,
    changing=_same_noise_instead,
    recipe=(*PROBLEM, _PREVIOUS),
    releases=(*LABEL_RELEASES, "previous"),
    module="trainers.mechanisms.continual_release",
)

CONTINUAL_RELEASE_AS_PUBLISHED: Final = Mechanism(
    name="continual-release-as-published",
    title="A model of everything so far, with the noise that the paper prints",
    kind="window_model",
    paper="Watson, Ghosh, Rozemberczki & Sarkar 2022, Algorithm 4 (arXiv 2203.03594)",
    card="M16",
    adjacencies=("add_remove", "replace_one"),
    proof_status="refuted",
    proof_note=(
        "The paper claims epsilon for a life, and a datapoint of the first pane after the first base pays "
        "max(1, 3/2 - b0/B) of it, for bases and updates together; and it adds Laplace noise to each coordinate for a "
        "sensitivity in the L2 norm. Use continual-release."
    ),
    parameters=(
        _PANE,
        _DOUBLINGS,
        _STEP,
        _OFFSET,
        Parameter(name="epsilon", kind="number", description="what the paper claims for a whole life", bounds=_LIFE),
    ),
    pricing=_continual_release_as_published,
    changing=lambda _given, _before, _after: None,
    recipe=(*PROBLEM, _PREVIOUS),
    releases=(*LABEL_RELEASES, "previous"),
    module="trainers.mechanisms.continual_release_as_published",
)
