"""The client for scripts that train with Opacus: `from service.opacus_client import private_training`.

Two added lines: one opens a block in which the run is priced, held and counted, the other commits.

    with private_training(stint, engine, optimizer=optimizer, data_loader=loader,
                          population="clinic-a", task="2026-w46", epochs=3) as release:
        ...  # the loop as it was
        release.commit(artifact="model.pt")

What is held is read from the objects that `make_private` returned, and read again before every step. A step that the
hold does not cover is refused before noise is drawn and before a weight changes.

Neither torch nor Opacus is imported before a block is asked for, so whoever only prices never pays for them.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cache
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

from service.client import Document, Hold, Stint, dp_sgd

if TYPE_CHECKING:
    import os

    from opacus import PrivacyEngine
    from opacus.optimizers import DPOptimizer
    from torch.utils.data import DataLoader

#: How often Opacus took a step with which noise multiplier and which sampling rate.
_History: TypeAlias = Counter[tuple[float, float]]

#: Why the price of DP-SGD is not that of other optimizers of Opacus.
_OTHER_OPTIMIZERS: Final[Mapping[str, str]] = {
    "AdaClipDPOptimizer": "it also releases how many gradients were clipped, as a share of the batch that was drawn",
    "DPPerLayerOptimizer": "it clips to several norms, and its noise is not that of one clip_norm",
    "DPOptimizerFastGradientClipping": "the model clips, to a norm that the optimizer does not know",
}
_DISTRIBUTED: Final = "several processes draw and add noise, and this one sees only its own share"
#: torch.rand draws multiples of 2^-24 in float32: below a rate between two of them it is as often as below the next.
_GRID: Final = 2**24

_log = logging.getLogger(__name__)


class NotCovered(Exception):
    """What runs is not what a price of DP-SGD covers; the message says why, and what to do."""


def private_training(
    stint: Stint,
    engine: PrivacyEngine,
    *,
    optimizer: DPOptimizer,
    data_loader: DataLoader[Any],
    population: str,
    task: str | None = None,
    steps: int | None = None,
    epochs: int | None = None,
    **proposal: Any,
) -> Training:
    """Hold the budget of a run of `steps`, or of `epochs` of the data loader, while a block trains.

    `engine`, `optimizer` and `data_loader` are those of `PrivacyEngine.make_private`; noise, sampling probability and
    clip norm are read from them. A run that the price of `dp-sgd` does not cover raises `NotCovered`, and one that is
    too expensive raises `Denied`, before the block runs: either way nothing was trained and nobody was charged.
    `proposal` are further fields of a proposal, such as `part`.
    """
    if fixed := {"mechanism", "charges", "on_exhausted", "idempotency_key"} & set(proposal):
        # Trimmed datapoints are in the data loader already, and a key used twice is one hold for two runs.
        raise ValueError(f"leave out {', '.join(sorted(fixed))}: a hold of this kind decides that itself")
    if (steps is None) == (epochs is None):
        raise ValueError("a run has either steps or epochs")
    seen = observe(optimizer, data_loader)
    planned = steps if epochs is None else epochs * len(data_loader)
    if not isinstance(planned, int) or planned < 1:
        raise ValueError(f"a run has one step or more, as a whole number, and not {planned!r}")
    asked: Document = {
        "population": population,
        "task": task,
        "mechanism": dp_sgd(
            noise_multiplier=seen.noise_multiplier,
            sampling_probability=seen.sampling_probability,
            steps=planned,
            clip_norm=seen.clip_norm,
        ),
        "on_exhausted": "deny",
        "sampling": {"scheme": "poisson"},  # `observe` refuses any other sampler
        **proposal,
    }
    asked = {name: value for name, value in asked.items() if value is not None}
    return Training(stint, asked, engine=engine, optimizer=optimizer, data_loader=data_loader, seen=seen, steps=planned)


# ---------------------------------------------------------------- what runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What one step releases, as the objects that take it say; equal for all steps of a run that was priced."""

    noise_multiplier: float
    sampling_rate: float
    clip_norm: float
    loss_reduction: str
    expected_batch_size: float | None
    dataset_size: int

    @property
    def sampling_probability(self) -> float:
        """With which an element really is in a batch: the rate, rounded up to what a random float can be below."""
        return min(1.0, math.ceil(self.sampling_rate * _GRID) / _GRID)

    def changes(self, now: Observed) -> str:
        """What is different by now, in words."""
        pairs = [(each.name, getattr(self, each.name), getattr(now, each.name)) for each in fields(self)]
        return ", ".join(f"{name} was {before} and is {after}" for name, before, after in pairs if before != after)


def observe(optimizer: DPOptimizer, data_loader: DataLoader[Any]) -> Observed:
    """What a step of this pair releases, or `NotCovered` if that is no DP-SGD step on a Poisson sample."""
    import torch  # noqa: PLC0415 - see the head of this file
    from opacus.optimizers import DPOptimizer as Flat  # noqa: PLC0415
    from opacus.utils.uniform_sampler import UniformWithReplacementSampler  # noqa: PLC0415

    kind = type(optimizer).__name__
    if type(optimizer) is not Flat:
        why = _DISTRIBUTED if "Distributed" in kind or "FSDP" in kind else _OTHER_OPTIMIZERS.get(kind)
        raise NotCovered(
            f"The price of dp-sgd does not cover {kind}" + (f": {why}. " if why else ". ") + "Take the optimizer that "
            'make_private returns with clipping="flat" and without ghost clipping, in one process.'
        )
    sampler = data_loader.batch_sampler
    if type(sampler) not in (UniformWithReplacementSampler, _counted_sampler()):
        raise NotCovered(
            f"The batches of this data loader come from {type(sampler).__name__}, which is no Poisson sampling in one "
            "process. Take the data loader that make_private returns with poisson_sampling=True; a BatchMemoryManager "
            "goes around it inside of the block."
        )
    if getattr(data_loader.collate_fn, "rand_on_empty", False):
        raise NotCovered(
            "An empty batch would be replaced by a made-up element, so that one datapoint changes a sum by up to twice "
            "the clip norm. Leave rand_on_empty out."
        )
    seen = Observed(
        noise_multiplier=float(optimizer.noise_multiplier),
        sampling_rate=float(sampler.sample_rate),
        clip_norm=float(optimizer.max_grad_norm),
        loss_reduction=str(optimizer.loss_reduction),
        expected_batch_size=optimizer.expected_batch_size,
        dataset_size=int(sampler.num_samples),
    )
    for name, value in (("noise_multiplier", seen.noise_multiplier), ("max_grad_norm", seen.clip_norm)):
        if not 0 < value < math.inf:
            raise NotCovered(f"The optimizer's {name} is {value}: without noise in proportion nothing is private.")
    if not 0 < seen.sampling_rate <= 1:
        raise NotCovered(f"The data loader's sample rate is {seen.sampling_rate}, which is no probability.")
    coarse = {torch.get_default_dtype(), *(each.dtype for each in optimizer.params)} - {torch.float32, torch.float64}
    if coarse:
        raise NotCovered(
            f"Noise or batches would be drawn in {', '.join(sorted(map(str, coarse)))}, which is too coarse for a "
            "Gaussian. Keep parameters and the default type in float32; autocast may compute in less."
        )
    return seen


@cache
def _counted_sampler() -> type:
    """Opacus' Poisson sampler, with a count of the batches that were drawn."""
    from opacus.utils.uniform_sampler import UniformWithReplacementSampler  # noqa: PLC0415 - see the head of this file

    class CountedSampler(UniformWithReplacementSampler):  # type: ignore[misc]
        draws = 0

        def __iter__(self) -> Iterator[list[int]]:
            for batch in super().__iter__():
                self.draws += 1
                yield batch

    return CountedSampler


def _counted(history: Iterable[tuple[float, float, int]]) -> _History:
    counted: _History = Counter()
    for noise_multiplier, rate, steps in history:
        counted[float(noise_multiplier), float(rate)] += steps
    return counted


# ---------------------------------------------------------------- the block


class Training(Hold):
    """A hold that counts the steps of an optimizer, and refuses those that it does not cover.

    After the block the optimizer stays shut, since a step without a hold would be a release that nobody pays for;
    another block opens it again. `steps_run` never is less than what ran.
    """

    def __init__(
        self,
        stint: Stint,
        proposal: Document,
        *,
        engine: PrivacyEngine,
        optimizer: DPOptimizer,
        data_loader: DataLoader[Any],
        seen: Observed,
        steps: int,
    ) -> None:
        super().__init__(stint, proposal, None)
        self.steps, self.steps_run = steps, 0
        self._accountant, self._optimizer, self._data_loader = engine.accountant, optimizer, data_loader
        self._seen = seen
        # A step as the accountant counts it, with the rate that make_private told it.
        self._step = (seen.noise_multiplier, 1 / len(data_loader))
        self._before: _History = Counter()
        self._open = self._voided = self._continued = False
        self._drawn_before = 0
        self._may_move = False  # noise was added, and the weights were not changed yet
        self._unhook: Callable[[], None] = lambda: None

    def __enter__(self) -> Self:
        earlier = self._earlier_block()
        super().__enter__()
        charged = int(self.decision["datapoints"] - self.decision["trimmed"])
        if self._seen.dataset_size > charged:
            self.void(reason="nothing was trained: the data set has more elements than the release has datapoints")
            raise NotCovered(
                f"The data set has {self._seen.dataset_size:,} elements and this release is charged to {charged:,} "
                "datapoints: somebody would not be charged, or has several elements. Train on one element for each "
                "datapoint of the task. The hold was voided."
            )
        if earlier is not None:
            earlier.detach()
        self._attach()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        from opacus.utils.uniform_sampler import UniformWithReplacementSampler  # noqa: PLC0415 - see the head

        self._open = False
        self._data_loader.batch_sampler.__class__ = UniformWithReplacementSampler
        super().__exit__(kind, problem, trace)

    def commit(
        self, artifact: str | os.PathLike[str] | Document | None = None, *, evaluation: Document | None = None
    ) -> Document:
        """What was trained leaves the house; no step can follow. The whole hold is charged, however few steps ran."""
        if not self.steps_run:
            raise NotCovered(
                "No step of this optimizer ran in the block, so what would be committed was not trained under this "
                "hold. Void it if nothing leaves the house."
            )
        self._check_history()
        self._open = False  # before the request, since its answer may be lost
        if self.steps_run < self.steps:
            _log.warning("%d of %d steps ran; release %s is charged for all", self.steps_run, self.steps, self.id)
        return super().commit(artifact, evaluation=evaluation)

    def void(self, *, reason: str, evidence: Document | None = None) -> Document:
        """Nothing of it leaves the house: neither these weights nor any that are trained on from them."""
        if self._continued and self.steps_run:
            raise NotCovered(
                f"Another block trained on from the weights of release {self.id}: what leaves with that one is of this "
                "one too. Commit it, or let it be spent."
            )
        self._open, self._voided = False, True
        return super().void(reason=reason, evidence=evidence)

    def detach(self) -> None:
        """Leave the optimizer, and the weights, to another block."""
        self._continued = True
        self._unhook()
        self._optimizer.__dict__.pop("pre_step", None)

    def _earlier_block(self) -> Training | None:
        """The block that had this optimizer before; all steps of the accountant must be those of such blocks."""
        if self.document or type(self._data_loader.batch_sampler) is _counted_sampler():
            # Two optimizers on one sample are no two releases on samples of their own.
            raise NotCovered("A block is entered once, and a data loader is in one block at a time.")
        earlier = getattr(self._optimizer.__dict__.get("pre_step"), "__self__", None)
        if isinstance(earlier, Training):
            if earlier._open:  # noqa: SLF001 - of the same class
                raise NotCovered(f"This optimizer is in a block already, that of release {earlier.id}.")
            if earlier._voided and earlier.steps_run:  # noqa: SLF001
                raise NotCovered(
                    f"The weights contain {earlier.steps_run} steps of release {earlier.id}, which was voided since "
                    "nothing of it would leave the house. Begin again with a fresh model and a new PrivacyEngine."
                )
            known = earlier._history()  # noqa: SLF001
        else:
            earlier, known = None, Counter()
        if unknown := (_counted(self._accountant.history) - known).total():
            raise NotCovered(
                f"Opacus has counted {unknown} steps that no block of this script held. Open the block before the "
                "first step; if another release was charged for them, continue with a new PrivacyEngine."
            )
        return earlier

    def _attach(self) -> None:
        self._before = _counted(self._accountant.history)
        sampler = self._data_loader.batch_sampler
        sampler.__class__ = _counted_sampler()
        self._drawn_before = sampler.draws  # in an earlier block
        # pre_step clips, and adds noise unless the step goes on with another physical batch. Not `step` itself:
        # learning-rate schedulers replace that, and may do so at any time.
        self._optimizer.pre_step = self._pre_step
        self._unhook = self._optimizer.original_optimizer.register_step_pre_hook(self._before_weights_move).remove
        self._open = True

    # Every step

    def _pre_step(self, closure: Callable[[], float] | None = None) -> bool:
        self._check_step()
        complete = True
        try:
            complete = bool(type(self._optimizer).pre_step(self._optimizer, closure))
        finally:
            # Also if it failed: whether noise was added is then unknown, and unknown is spent.
            self.steps_run += complete
        if complete:
            self._check_history()
            self._may_move = True
        return complete

    def _check_step(self) -> None:
        self._may_move = False
        if not self._open:
            raise NotCovered("No hold is open for this optimizer. Train inside of a private_training block.")
        if self.steps_run >= self.steps:
            raise NotCovered(
                f"Release {self.id} was held for {self.steps} steps, and all of them ran. Hold more from the start, or "
                "commit this and go on in another block."
            )
        now = observe(self._optimizer, self._data_loader)
        if now != self._seen:
            raise NotCovered(f"This step is not what was held: {self._seen.changes(now)}.")
        if (batches := self._optimizer.accumulated_iterations) != 1:
            raise NotCovered(f"This step sums gradients of {batches} batches. Call zero_grad after every step.")
        self._check_batch()

    def _check_batch(self) -> None:
        """Every step is on one fresh Poisson sample, and every sample is a step.

        The physical batches of one step are parts of one sample, so the rule is the same for each of them.
        """
        fresh = self._data_loader.batch_sampler.draws - self._drawn_before - self.steps_run
        if fresh < 1:
            raise NotCovered(
                "No batch was drawn from this data loader for this step. Take every batch from the data loader that "
                "make_private returned, inside of the block, and use it for one step."
            )
        # Worker processes draw ahead, so that behind them too many cannot be told from the right number.
        if fresh > 1 and self._data_loader.num_workers == 0:
            raise NotCovered(
                f"{fresh} batches were drawn for this step. Each of them, an empty one too, has to be a step of its "
                "own: a sum of several, or a choice among them, has another price. Evaluate with another data loader."
            )

    def _before_weights_move(self, *_: object) -> None:
        if not self._may_move:
            raise NotCovered(
                "The optimizer inside of Opacus' optimizer was called by itself, with gradients that have no noise. "
                "Call step() of the optimizer that make_private returned."
            )
        self._may_move = False

    def _history(self) -> _History:
        """What the accountant should have counted, from its beginning."""
        return self._before + Counter({self._step: self.steps_run})

    def _check_history(self) -> None:
        """Opacus and this block agree on the steps that ran, their noise and their sampling rate."""
        opacus, ours = _counted(self._accountant.history), self._history()
        if opacus != ours:
            raise NotCovered(
                f"The accountant of this PrivacyEngine has {_in_words(opacus)}, this block has counted "
                f"{_in_words(ours)}. Some steps went past one of them, so the hold of release {self.id} may be too "
                "small: it stands, and nothing is committed."
            )


def _in_words(history: _History) -> str:
    listed = [f"{steps} steps of noise {noise:g} at rate {rate:g}" for (noise, rate), steps in sorted(history.items())]
    return ", ".join(listed) or "no steps"
