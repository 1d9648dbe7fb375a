"""What a row of the catalog is, and what it says of a run: a quote."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from accountant.errors import InvalidInput
from accountant.events import Adjacency, Event, adjacency_of
from accountant.guarantees import ProofStatus
from trainers.catalog.parameters import Parameter, object_schema, read

Kind: TypeAlias = Literal["weights", "labels", "prototypes", "window_model", "other"]
Column: TypeAlias = Literal["x", "y"]
_COLUMNS: Final[Mapping[Column, str]] = {"x": "the features of a row", "y": "the labels of rows"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """One charge of a release: `event` on the ordinals [start, stop) of the population.

    Without them it is on the scope that the proposal names, or on the `part` of the task that it names; or of the
    earlier `task` that is named here.
    """

    event: Event
    start: int | None = None
    stop: int | None = None
    part: str | None = None
    task: str | None = None

    def __post_init__(self) -> None:
        assert (self.start is None) == (self.stop is None), "a range has two ends"
        assert self.start is None or self.part is None, "a charge is on a range or on a part"
        assert self.start is None or self.task is None, "a charge is on a range or on a task"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quoted:
    """What a mechanism does with given parameters.

    `charges` is all that this release does. `life` is for a mechanism that is one step of a schedule: what the
    worst-off datapoint goes through over the whole of it, this release included. A schedule whose life does not fit the
    budget is sure to be denied one day, with models half renewed, so it is refused at its first step.

    A step may lean on models of earlier steps. Those are free only if they were paid for when they were trained:
    `trained` and `reused` name them within `stream`, and the service refuses a step whose models nobody paid for.

    `one_sum` are the places of charges whose datapoints enter one and the same noisy sum. Who is in two of them would
    move it twice at once, which two charges do not cover: the service refuses scopes that overlap there.
    """

    charges: tuple[Priced, ...]
    life: Event | None = None
    steps_note: str = ""
    stream: str | None = None
    trained: tuple[str, ...] = ()
    reused: tuple[str, ...] = ()
    one_sum: tuple[int, ...] = ()

    @property
    def models(self) -> dict[str, Any] | None:
        """The models of the stream as a log names them; None for what is no step of one."""
        if self.stream is None:
            return None
        return {"id": self.stream, "trained": list(self.trained), "reused": list(self.reused)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mechanism:
    """A row of the catalog. `pricing` gets the parameters by name, all checked, with defaults filled in.

    `parameters` are what the price depends on. `recipe` is all else that a run needs to know, which is public too, and
    `module` says where its function `run` is: nothing that answers requests imports it. `releases` are the parameters
    of the recipe that hold the id of a committed release ("" if none) or a list of ids: a run builds on their
    artifacts. `reads` is what the data of a run must have, features and labels or one of them: without, there would
    be noise alone, and people would pay for it.

    `changing` gets such parameters, the events of their quote, and others to do instead: it returns what to change.
    """

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
    changing: Callable[[Mapping[str, Any], Sequence[Event], Sequence[Event]], Mapping[str, Any] | None] = field(
        repr=False
    )
    recipe: tuple[Parameter, ...] = ()
    module: str | None = None
    releases: tuple[str, ...] = ()
    reads: tuple[Column, ...] = ("x", "y")

    def __post_init__(self) -> None:
        assert set(self.releases) <= {each.name for each in self.recipe}, f"{self.name} builds on what no recipe names"

    def quote(self, parameters: Mapping[str, Any], *, adjacency: Adjacency) -> Quoted:
        """What a run with these parameters does to the data, or `InvalidInput` that names the parameter at fault."""
        if adjacency_of(adjacency) not in self.adjacencies:
            expected = f"{' or '.join(map(repr, self.adjacencies))}: nothing else is proved of {self.name}"
            raise InvalidInput("adjacency", adjacency, expected)
        return self.pricing(adjacency=adjacency, **read("parameters", self.parameters, parameters))

    def instead(
        self, parameters: Mapping[str, Any], events: Sequence[Event], *, adjacency: Adjacency
    ) -> dict[str, Any] | None:
        """Parameters near the given ones whose quote is these events, or a little less where no number gives just them.

        None if there are none. What they do is what their own quote says.

        >>> from accountant.events import Gaussian, PoissonSampled, Repeated
        >>> from trainers.catalog import mechanism
        >>> run = {"noise_multiplier": 1.0, "sampling_probability": 0.01, "steps": 2000, "clip_norm": 1.0}
        >>> step = PoissonSampled(sampling_probability=0.01, event=Gaussian(noise_multiplier=1.5))
        >>> mechanism("dp-sgd").instead(run, [Repeated(times=900, event=step)], adjacency="add_remove")
        {'noise_multiplier': 1.5, 'sampling_probability': 0.01, 'steps': 900, 'clip_norm': 1.0}
        """
        before = [charge.event for charge in self.quote(parameters, adjacency=adjacency).charges]
        changed = self.changing(read("parameters", self.parameters, parameters), before, events)
        return None if changed is None else {**parameters, **changed}

    def cooked(self, recipe: Mapping[str, Any]) -> dict[str, Any]:
        """The recipe, checked, with defaults filled in."""
        return read("recipe", self.recipe, recipe)

    def check_data(self, document: Mapping[str, Any]) -> None:
        """Refuse a data document that does not name what a run reads.

        >>> from trainers.catalog import mechanism
        >>> mechanism("dp-sgd").check_data({"x": ["x"], "y": ""})
        Traceback (most recent call last):
        accountant.errors.InvalidInput: data.y: expected the labels of rows, which dp-sgd reads, got 'nothing'
        """
        for column in self.reads:
            if not document[column]:
                raise InvalidInput(f"data.{column}", "nothing", f"{_COLUMNS[column]}, which {self.name} reads")

    def recipe_schema(self) -> dict[str, Any]:
        """The recipe as JSON Schema, draft 2020-12."""
        return {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": f"{self.title}: recipe",
            **object_schema(self.recipe),
        }

    def schema(self) -> dict[str, Any]:
        """The parameters as JSON Schema, draft 2020-12.

        `quote` accepts exactly what is valid, except that it also compares a window's blocks with its schedule.
        """
        return {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": self.title,
            **object_schema(self.parameters),
        }
