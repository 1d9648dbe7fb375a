"""Rows of mechanisms that learn a task beside memories of earlier ones (A-GEM with noise)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyroaring import BitMap

from accountant.book import bitmap_to
from accountant.errors import InvalidInput
from accountant.events import Gaussian, NonPrivate, PoissonSampled, Repeated
from accountant.ledger import MAX_CHARGES, MAX_NAME
from accountant.streams.memories import EpisodicMemory, Use, role
from trainers.catalog.gradients import CLIP_NORMS
from trainers.catalog.label_spaces import LABEL_RELEASES, LABELS
from trainers.catalog.parameters import Bounds, Parameter
from trainers.catalog.quotes import Mechanism, Priced, Quoted
from trainers.catalog.recipes import MODEL, OPTIMISER, START

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from accountant.events import Adjacency, Event

#: Draws are derived one by one when a run is priced, which a request has to wait for.
MAX_STEPS: Final = 100_000
MIN_SEED: Final = 32  # characters: 128 bits, if they are hexadecimal digits


def parts(ordinals: Iterable[int], *, key: bytes, rate: float) -> dict[str, dict[str, str]]:
    """The parts `train` and `memory` of a task, by a coin for each ordinal, as `POST …/tasks` takes them.

    The coin depends on the ordinal and the key alone, so that nobody who is added, replaced or missing moves anybody
    else. The key is drawn once for a population, before any data is seen; it need not be secret.

    >>> from accountant.book import bitmap_from
    >>> found = parts(range(1000), key=bytes(16), rate=0.1)
    >>> [len(bitmap_from(found[part]["bitmap"])) for part in ("train", "memory")]
    [893, 107]
    """
    found = {"train": BitMap(), "memory": BitMap()}
    for ordinal in ordinals:
        found[role(ordinal.to_bytes(8), key=key, rate=rate)].add(ordinal)
    return {part: {"bitmap": bitmap_to(members)} for part, members in found.items()}


def drawn(*, steps: int, use: Use, memories: Sequence[str], seed: str = "") -> tuple[int, ...]:
    """For each step the place in `memories` of the block that it draws; none unless the use is `one_block`."""
    if use != "one_block":
        return ()
    # Rates and noise do not change what is drawn.
    plan = EpisodicMemory(
        steps=steps,
        train_probability=1,
        train_noise_multiplier=1,
        memory_probability=1,
        memory_noise_multiplier=1,
        use=use,
    )
    draws = plan.draws(seed=seed.encode(errors="surrogatepass"), task=len(memories) + 1)
    return tuple(block - 1 for block in draws)


def _charges(plan: EpisodicMemory, memories: Sequence[str], *, draws: Sequence[int] = ()) -> tuple[Priced, ...]:
    """What a plan charges, with names for its numbers: `memories` are the tasks 1 to n, and task n + 1 is learned."""
    for place, name in enumerate(memories):
        if name in memories[:place]:
            # Twice in one sum of a union, a datapoint would move it by two gradients and pay for one at a time.
            raise InvalidInput(f"parameters.memories[{place}]", name, "each task once")
    own, *earlier = plan.charges(len(memories) + 1, draws=[place + 1 for place in draws])
    return (
        Priced(event=own.event, part=own.part),
        *(Priced(event=each.event, part=each.part, task=memories[each.task - 1]) for each in earlier),
    )


def _episodic_memory(
    *,
    adjacency: Adjacency,
    steps: int,
    train_probability: float,
    train_noise_multiplier: float,
    memory_probability: float,
    memory_noise_multiplier: float,
    clip_norm: float,
    use: Use,
    memories: Sequence[str],
    seed: str = "",
) -> Quoted:
    """The steps of the task's own part `train`, and of the part `memory` of each earlier task what can be used of it.

    Each is a Poisson sample of gradients that are clipped one by one, with Gaussian noise on their sum. What is made of
    them sees noisy sums only. What an adjacency makes of the sensitivity is the engines' business.
    """
    del adjacency, clip_norm
    plan = EpisodicMemory(
        steps=steps,
        train_probability=train_probability,
        train_noise_multiplier=train_noise_multiplier,
        memory_probability=memory_probability,
        memory_noise_multiplier=memory_noise_multiplier,
        use=use,
    )
    charges = _charges(plan, memories, draws=drawn(steps=steps, use=use, memories=memories, seed=seed))
    return Quoted(
        charges=charges,
        one_sum=tuple(range(1, len(charges))) if use == "union" else (),
        steps_note=(
            f"Each of {steps} steps reads the task's part train"
            + (f", and {_READS[use]} of {len(memories)} memories." if memories else ".")
        ),
    )


_READS: Final[Mapping[Use, str]] = {
    "union": "one sample from the union",
    "every_block": "one sample from each",
    "one_block": "one sample from a public draw",
}


def _episodic_memory_instead(
    given: Mapping[str, Any], before: Sequence[Event], after: Sequence[Event]
) -> Mapping[str, Any] | None:
    """Other noise, or fewer steps; with public draws not fewer, since they would be other draws."""
    if len(before) != len(after):
        return None
    noises, times = list[float](), list[bool]()
    for old, new in zip(before, after, strict=True):
        match old, new:
            case Repeated(times=was), Repeated(times=now, event=PoissonSampled(event=Gaussian(noise_multiplier=noise))):
                noises.append(noise)
                times.append(was == now)
            case _:
                return None
    fewer = not all(times)
    if len(set(noises[1:])) > 1 or (fewer and given["use"] == "one_block"):
        return None
    changed: dict[str, Any] = {"train_noise_multiplier": noises[0]}
    if noises[1:]:
        changed["memory_noise_multiplier"] = noises[1]
    if fewer:
        counts = {each.times for each in after if isinstance(each, Repeated)}
        if len(counts) > 1:
            return None
        changed["steps"] = counts.pop()
    return changed


def _dp_agem(
    *,
    adjacency: Adjacency,
    steps: int,
    train_probability: float,
    memory_probability: float,
    noise_multiplier: float,
    clip_norm: float,
    memories: Sequence[str],
) -> Quoted:
    """As published: the gradient of a whole batch is clipped, not each example's.

    Whoever is added to a batch or replaced in it can turn its clipped gradient round, which moves it by at most twice
    the clip norm: a contribution of norm 2·clip_norm, under noise of noise_multiplier·clip_norm. So a step is charged
    with half the noise multiplier, to the part that it samples, and every step of every later task is charged.
    """
    del adjacency, clip_norm
    halved = noise_multiplier / 2
    plan = EpisodicMemory(
        steps=steps,
        train_probability=train_probability,
        train_noise_multiplier=halved,
        memory_probability=memory_probability,
        memory_noise_multiplier=halved,
        use="every_block",
    )
    return Quoted(
        charges=_charges(plan, memories),
        steps_note=f"Each of {steps} steps clips whole batches, so that the noise multiplier counts as {halved:g}.",
    )


def _dp_cl(
    *,
    adjacency: Adjacency,
    steps: int,
    train_probability: float,
    memory_probability: float,
    noise_multiplier: float,
    clip_norm: float,
    memories: Sequence[str],
) -> Quoted:
    """As published: a block is drawn in secret at each step, and its price is claimed to stay the same for ever."""
    del adjacency, steps, train_probability, memory_probability, noise_multiplier, clip_norm
    return Quoted(
        charges=(
            Priced(event=NonPrivate(), part="train"),
            *(Priced(event=NonPrivate(), part="memory", task=name) for name in memories),
        ),
        steps_note="Nothing is proved of this version.",
    )


def _nothing_instead(*_: object) -> None:
    """Nothing to change: no noise makes it another mechanism."""


_PROBABILITY: Final = Bounds(exclusive_minimum=0, maximum=1)
_STEPS: Final = Parameter(
    name="steps",
    kind="integer",
    description="number of noisy steps, fixed in advance",
    bounds=Bounds(minimum=1, maximum=MAX_STEPS),
)
_TRAIN_PROBABILITY: Final = Parameter(
    name="train_probability",
    kind="number",
    description="probability with which a datapoint of the part train is in a batch",
    bounds=_PROBABILITY,
)
_MEMORY_PROBABILITY: Final = Parameter(
    name="memory_probability",
    kind="number",
    description="probability with which a datapoint of one block is in a memory batch; of a union of n, 1/n of it",
    bounds=_PROBABILITY,
)
_CLIP_NORM: Final = Parameter(
    name="clip_norm",
    kind="number",
    description="L2 norm to which gradients are clipped; recorded, and no part of the price",
    bounds=CLIP_NORMS,
)
_MEMORIES: Final = Parameter(
    name="memories",
    kind="array",
    description="names of earlier tasks whose part memory is used; a task that is retired is left out",
    bounds=Bounds(minimum=0, maximum=MAX_CHARGES - 1),
    each=Parameter(
        name="task", kind="string", description="name of a task", bounds=Bounds(minimum=1, maximum=MAX_NAME)
    ),
)
_RECIPE: Final = (*MODEL, *OPTIMISER, *LABELS, START)
_COMBINE: Final = Parameter(
    name="combine",
    kind="string",
    description=(
        "what is followed: the mean of the noisy gradients of all tasks (replay), or that of the task without what "
        "would raise the loss on the memories (projection)"
    ),
    choices=("replay", "projection"),
    default="replay",
)
_RELEASES: Final = (*LABEL_RELEASES, "start")
_MEMORY_PAPER: Final = "Desai, Lai, Phan & Thai 2021, Continual Learning with Differential Privacy (arXiv 2110.05223)"


def _noise(name: str, what: str) -> Parameter:
    return Parameter(
        name=name,
        kind="number",
        description=f"standard deviation of the noise on {what}, in units of clip_norm",
        bounds=Bounds(minimum=1e-6, maximum=1e6),
    )


EPISODIC_MEMORY: Final = Mechanism(
    name="episodic-memory",
    title="A task learned beside noisy gradients of memories of earlier tasks",
    kind="weights",
    paper=f"{_MEMORY_PAPER}, accounted as in Privacy Leakage via Output Label Space, Appendix D.4",
    card="M11",
    adjacencies=("add_remove", "replace_one"),
    proof_status="proved",
    proof_note=(
        "Composition of Poisson-sampled Gaussian sums, apart for the part train of the task and the part memory of "
        "each earlier one (docs/streams.md). It holds if parts are decided by a coin for each datapoint, every "
        "gradient is clipped by itself, both batches are Poisson samples, draws of blocks are public, and no datapoint "
        "is in two blocks of one union. What is made of them, replay or projection, sees noisy sums only."
    ),
    parameters=(
        _STEPS,
        _TRAIN_PROBABILITY,
        _noise("train_noise_multiplier", "a sum of the task's gradients"),
        _MEMORY_PROBABILITY,
        _noise("memory_noise_multiplier", "a sum of a memory's gradients"),
        _CLIP_NORM,
        Parameter(
            name="use",
            kind="string",
            description=(
                "a step samples from all blocks together (union), from each (every_block), or from one that the seed "
                "draws (one_block)"
            ),
            default="union",
            choices=("union", "every_block", "one_block"),
        ),
        _MEMORIES,
        Parameter(
            name="seed",
            kind="string",
            description="public, and new for every release: the draws of blocks are derived from it",
            bounds=Bounds(minimum=MIN_SEED, maximum=128),
            when=("use", "one_block"),
        ),
    ),
    recipe=(*_RECIPE, _COMBINE),
    releases=_RELEASES,
    module="trainers.mechanisms.episodic_memory",
    pricing=_episodic_memory,
    changing=_episodic_memory_instead,
)

DP_AGEM_AS_PUBLISHED: Final = Mechanism(
    name="dp-agem-as-published",
    title="DP-AGEM as published: whole batches are clipped",
    kind="weights",
    paper=f"{_MEMORY_PAPER}, Lemma 1",
    card="M09",
    adjacencies=("add_remove", "replace_one"),
    proof_status="claimed",
    proof_note=(
        "The paper clips a batch's gradient as a whole, counts as if each example's were clipped, and does not add up "
        "δ. Charged here is what its steps can leak by our own argument: a sensitivity of twice the clip norm, so half "
        "the noise multiplier, and every step of every later task. Use episodic-memory, which needs half the noise."
    ),
    parameters=(
        _STEPS,
        _TRAIN_PROBABILITY,
        _MEMORY_PROBABILITY,
        _noise("noise_multiplier", "the clipped gradient of a batch"),
        _CLIP_NORM,
        _MEMORIES,
    ),
    recipe=_RECIPE,
    releases=_RELEASES,
    module="trainers.mechanisms.dp_agem_as_published",
    pricing=_dp_agem,
    changing=_nothing_instead,
)

DP_CL_AS_PUBLISHED: Final = Mechanism(
    name="dp-cl-as-published",
    title="DP-CL as published: one memory block a step, drawn in secret",
    kind="weights",
    paper=f"{_MEMORY_PAPER}, Algorithm 1, Lemma 2",
    card="M10",
    adjacencies=("add_remove", "replace_one"),
    proof_status="refuted",
    proof_note=(
        "Lemma 2 charges a block for one later task, and it is drawn in all of them: I·H(T−1) times on average, "
        "without bound. Nor does the secret draw count as sampling at the rate divided by the number of blocks. For "
        "reproduction and audits; use episodic-memory with one_block or union."
    ),
    parameters=(
        _STEPS,
        _TRAIN_PROBABILITY,
        _MEMORY_PROBABILITY,
        _noise("noise_multiplier", "the clipped gradient of a batch"),
        _CLIP_NORM,
        _MEMORIES,
    ),
    recipe=_RECIPE,
    releases=_RELEASES,
    module="trainers.mechanisms.dp_cl_as_published",
    pricing=_dp_cl,
    changing=_nothing_instead,
)
