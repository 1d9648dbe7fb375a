"""What is learned and what is forgotten on streams of real data, beside what the papers report.

Sizes, backbones and the meaning of ε differ from the papers', and each table says how: their figures are there to
compare shapes with. Ours are for a lifelong ε that is proved, over the whole stream, for every datapoint, if noise is
fresh. Here it is repeatable, so that a figure that changes has a reason, and nothing that is made is to be released.
Step sizes and the size of the memory were chosen on training rows that no stream has (docs/benchmarks.md), batches and
clipping were set once. `bench trainers` prints all of it.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from accountant import account, calibrate_noise_multiplier
from accountant.streams.memories import EpisodicMemory
from benchmarks.streams import MEMORY_RATE, Labelled, Task, in_pairs, mnist, permuted_digits, photographs, pooled
from trainers.backbones import Backbone
from trainers.catalog import mechanism
from trainers.metrics import average_accuracy, average_forgetting, learning_curve_area, worst_forgetting
from trainers.noise import Noise
from trainers.ports import Made, Rows, Run
from trainers.predictors import Aggregation, predict

Document = dict[str, Any]
Floats = NDArray[np.float64]
#: What a paper reports, by the name of a line and its ε.
Papers = Mapping[tuple[str, float | None], str]

DELTA: Final = 1e-5
EPSILONS: Final = (1.0, 8.0)
BATCHES: Final = 10  # of a learning curve: LCA over the first ten, as in A-GEM
STEPS: Final = 80  # of a task
PERMUTED: Final = 8  # tasks
BATCH: Final = 256  # rows that a step expects
MEMORY_BATCH: Final = 1024
PLAIN_RATE: Final = 0.2  # step size without privacy
RATES: Final = {1.0: 0.5, 8.0: 2.0}  # with it: what fits ε, whatever the stream
NAIVE_RATES: Final = {1.0: 0.5, 8.0: 1.0}  # of whoever has nothing to hold on to
PROJECTION_RATES: Final = {1.0: 0.3, 8.0: 1.0}  # of whoever only looks at memories, and follows its own task
HEAD_RATES: Final = {1.0: 0.1, 8.0: 0.3}  # of an ensemble's heads
DIGITS: Final = [str(digit) for digit in range(10)]
COLUMNS: Final = "{:<38}{:>5}{:>10}{:>12}{:>8}{:>8}{:>8}  {}"
HEADINGS: Final = ("", "ε", "accuracy", "forgetting", "worst", "LCA", "time", "the paper")


@dataclass(frozen=True)
class Artifact:
    """What was made, as a later run sees it."""

    release: str
    made: Made

    @property
    def tensors(self) -> Mapping[str, torch.Tensor]:
        return self.made.tensors

    @property
    def facts(self) -> Mapping[str, Any]:
        return self.made.facts


@dataclass(frozen=True, kw_only=True)
class Learned:
    """Accuracy on each task after each, and on each task after the first batches of it, where there are batches."""

    matrix: Floats
    curves: Floats | None = None
    note: str = ""


def data() -> Path:
    """The folder of real data."""
    return Path(os.environ.get("STINT_SHARED_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")


def report() -> None:
    """Print a table for every stream whose data is here."""
    folder = data()
    began, worked = perf_counter(), process_time()
    print("\nAccuracy and forgetting in percent, on held-out rows; ε is for life, at δ = 1e-5; inf: not private")
    if (folder / "mnist").is_dir():
        digits(folder)
        windows(folder)
    else:
        print("MNIST is absent, so there is nothing to show of it: point STINT_SHARED_DATA at it.")
    if (folder / "cifar10_12k").is_dir() and (folder / "efficientnet_lite0").is_dir():
        classes(folder)
    else:
        print("CIFAR-10 or the backbone is absent, so there is nothing to show of photographs.")
    print(f"in all {perf_counter() - began:.0f} s, {process_time() - worked:.0f} s of them at work")


# Digits


def digits(folder: Path) -> None:
    """Permuted and split MNIST; every image is in one task alone."""
    title(
        f"Permuted MNIST, {PERMUTED} tasks of 6,000, MLP 784-256-256-10; the papers: 17 or 20 tasks of 55,000 or 60,000"
    )
    papers: Papers = {
        ("fine-tuning", None): "",
        ("a-gem", None): "79.3 (17 tasks, Desai et al.), 71 (20 tasks, Lai et al.)",
        ("dp-sgd naive", 1.0): "10.43 (20 tasks, 'NaiveGaussian', ε 0.5)",
        (
            "episodic-memory projection",
            1.0,
        ): "47.5, forgetting 40.1, worst 58.6, LCA 14.6 (DP-CL, ε 0.85 claimed, refuted)",
        ("l2dp-ml", 1.0): "47.73 (20 tasks, ε 0.5 claimed, refuted)",
    }
    compare(permuted_digits(folder, PERMUTED), papers)
    title(
        "Split MNIST, 5 tasks of two digits, 6,000 each; ours answer with one of ten digits and are not told the task"
    )
    papers = {
        ("a-gem", None): "79.71 (Lai et al.)",
        ("l2dp-ml", 1.0): "81.83 (ε 1 claimed, refuted); 73.54 at 0.5",
    }
    train, test = mnist(folder, "train", 60_000), mnist(folder, "t10k", 10_000)
    compare(in_pairs(train, test, most=6000, most_tests=1000), papers)


def compare(tasks: Sequence[Task], papers: Papers) -> None:
    """Every way to learn such a stream, without privacy and at each ε."""
    plain = {"steps": STEPS, "batch_size": BATCH}
    line("fine-tuning", None, partial(descended, tasks, "fine-tuning", plain, part="all"), papers)
    remembering = {**plain, "memory_batch": MEMORY_BATCH}
    line("a-gem", None, partial(descended, tasks, "a-gem", remembering, part="train", memories="memory"), papers)
    for epsilon in EPSILONS:
        line("dp-sgd naive", epsilon, partial(naive, tasks, epsilon), papers)
        line("dp-sgd full-data", epsilon, partial(full_data, tasks, epsilon), papers)
        line("episodic-memory replay", epsilon, partial(episodic, tasks, epsilon, "replay"), papers)
        line("episodic-memory projection", epsilon, partial(episodic, tasks, epsilon, "projection"), papers)
        line("l2dp-ml", epsilon, partial(statistics, smaller(tasks), epsilon), papers)


def naive(tasks: Sequence[Task], epsilon: float) -> Learned:
    """Training goes on, task after task; each datapoint pays once."""
    return descended(tasks, "dp-sgd", sampled(tasks, epsilon, times=1), part="all", rate=NAIVE_RATES[epsilon])


def full_data(tasks: Sequence[Task], epsilon: float) -> Learned:
    """All tasks so far are sampled at every task, so the first pays as often as there are tasks."""
    plan = sampled(tasks, epsilon, times=len(tasks))
    return descended(tasks, "dp-sgd", plan, part="all", memories="all", rate=RATES[epsilon])


def sampled(tasks: Sequence[Task], epsilon: float, *, times: int) -> Document:
    """So much noise that all of a datapoint's tasks together cost ε."""
    probability = BATCH / max(len(task.x) for task in tasks)
    noise = calibrate_noise_multiplier(
        epsilon=epsilon, delta=DELTA, sampling_probability=probability, steps=STEPS * times
    )
    return {"noise_multiplier": noise, "sampling_probability": probability, "steps": STEPS, "clip_norm": 1.0}


def episodic(tasks: Sequence[Task], epsilon: float, combine: str) -> Learned:
    """The part `train` pays once, the part `memory` in every later task; each for itself comes to ε."""
    probability = BATCH / ((1 - MEMORY_RATE) * max(len(task.x) for task in tasks))
    plan: Document = {
        "steps": STEPS,
        "train_probability": probability,
        "train_noise_multiplier": calibrate_noise_multiplier(
            epsilon=epsilon, delta=DELTA, sampling_probability=probability, steps=STEPS
        ),
        "memory_probability": MEMORY_BATCH / (MEMORY_RATE * max(len(task.x) for task in tasks)),
        "use": "union",
    }
    low, high = 0.2, 200.0  # too little noise, and enough
    while high / low > 1.01:
        noise = (low * high) ** 0.5
        life = EpisodicMemory(**plan, memory_noise_multiplier=noise).life(1, "memory", tasks=len(tasks))
        low, high = (low, noise) if account(life, delta=DELTA).upper <= epsilon else (noise, high)
    whole = {**plan, "memory_noise_multiplier": high, "clip_norm": 1.0}
    rate = (PROJECTION_RATES if combine == "projection" else RATES)[epsilon]
    return descended(tasks, "episodic-memory", whole, part="train", memories="memory", rate=rate, combine=combine)


def descended(
    tasks: Sequence[Task],
    name: str,
    parameters: Document,
    *,
    part: str,
    memories: str | None = None,
    rate: float = PLAIN_RATE,
    steps: int = STEPS,
    **more: Any,
) -> Learned:
    """A network that is trained on, from task to task.

    The first batches of a task are runs of one step, each from the last: without momentum that is the same program,
    and between them one can look.
    """
    recipe: Document = {
        "model": "mlp",
        "hidden": [256, 256],
        "shape": [784],
        "learning_rate": rate,
        "momentum": 0.0,
        "label_source": "prior",
        "label_names": DIGITS,
        **more,
    }
    matrix, curves = np.zeros((len(tasks), len(tasks))), np.zeros((len(tasks), BATCHES + 1))
    before: Artifact | None = None
    for number, task in enumerate(tasks):
        earlier = tasks[:number] if memories else ()
        rows = [task.rows(part), *(each.rows(memories or "") for each in earlier)]
        named = {"tasks" if name == "dp-sgd" else "memories": [str(n) for n in range(len(earlier))]} if memories else {}
        for batch, some in enumerate([*[1] * BATCHES, steps - BATCHES]):
            curves[number, batch] = accuracy(task, [before]) if before else 1 / len(recipe["label_names"])
            run = {**parameters, **named, "steps": some}
            seed = number * (BATCHES + 1) + batch
            before = released(name, run, recipe, rows, seed=seed, inputs={"start": before} if before else {})
        assert before is not None
        matrix[number] = [accuracy(other, [before]) for other in tasks]
    return Learned(matrix=matrix, curves=curves)


def statistics(tasks: Sequence[Task], epsilon: float) -> Learned:
    """Class sums and second moments, each released once; the classifier replays them."""
    noise = {"noise_multiplier": calibrate_noise_multiplier(epsilon=epsilon, delta=DELTA)}
    matrix, before = np.zeros((len(tasks), len(tasks))), list[Artifact]()
    for number, task in enumerate(tasks):
        names = [str(label) for label in np.unique(task.y)]
        recipe = {"label_source": "prior", "label_names": names, "features": "identity"}
        recipe["inputs"] = task.x.shape[1]
        inputs = {f"previous.{place}": each for place, each in enumerate(before)}
        recipe["previous"] = [each.release for each in before]
        before.append(released("l2dp-ml", noise, recipe, [task.rows()], seed=number, inputs=inputs))
        matrix[number] = [accuracy(other, before[-1:]) for other in tasks]
    return Learned(matrix=matrix)


def smaller(tasks: Sequence[Task]) -> list[Task]:
    """The same digits at 14 × 14 pixels."""
    return [Task(x=pooled(task.x, 2), y=task.y, test_x=pooled(task.test_x, 2), test_y=task.test_y) for task in tasks]


# Windows


def windows(folder: Path) -> None:
    """Models of a window and of everything so far: accuracy after the last step, on the test set."""
    x, y = mnist(folder, "train", 12 * 1024)
    test_x, test_y = mnist(folder, "t10k", 2_000)
    title("MNIST as it arrives, logistic regression, modulus 1, panes of 1,024; no tasks, so nothing to forget")
    cases = {
        "sliding-window of 7 panes": ("sliding-window", {"k": 3, "w0": 1024}),
        "continual-release, 8 first": ("continual-release", {"pane": 1024, "doublings": 3}),
    }
    for what, (name, schedule) in cases.items():
        for (epsilon, kind), life in lives().items():
            paper = "as without privacy, at ε 0.1 and 1 (claimed; its noise is per coordinate)" if kind else ""
            learn = partial(streamed, name, {**schedule, **life}, train=(x, y), test=(test_x, test_y))
            line(what + kind, epsilon, learn, {(what + kind, 1.0): paper})


def lives() -> dict[tuple[float | None, str], Document]:
    """What a life may cost, and by which noise."""
    found: dict[tuple[float | None, str], Document] = {(None, ""): {"epsilon": 1e9}}
    for promised in EPSILONS:
        found[promised, ", pure"] = {"epsilon": promised}
        mu = (1 - 1e-9) / calibrate_noise_multiplier(epsilon=promised, delta=DELTA)
        found[promised, ", gaussian"] = {"noise": "gaussian", "mu": mu}
    return found


def streamed(name: str, given: Document, *, train: Labelled, test: Labelled, **more: Any) -> Learned:
    """The last of four steps, each leaning on the one before where there is something to lean on."""
    x, y = train
    recipe: Document = {
        "shape": [784], "radius": 8.0, "modulus": 1.0, "iterations": 25, "label_source": "prior", "label_names": DIGITS,
        **more,
    }  # fmt: skip
    leans = "previous" in mechanism(name).releases
    model: Artifact | None = None
    for step in range(4):
        parameters = {**given, "step": step}
        charges = mechanism(name).quote(parameters, adjacency="add_remove").charges
        blocks = [(charge.start or 0, charge.stop or 0) for charge in charges]
        rows = [Rows(slots=b - a, unit=np.arange(b - a), x=x[a:b], y=y[a:b]) for a, b in blocks]
        leaning = {"previous": [model.release]} if model and leans else {}
        inputs = {"previous.0": model} if model and leans else {}
        model = released(name, parameters, {**recipe, **leaning}, rows, seed=step, inputs=inputs)
    assert model is not None
    right = predict([model], test[0]) == test[1].astype(str)
    return Learned(matrix=np.array([[np.mean(right)]]))


# Photographs


def classes(folder: Path) -> None:
    """CIFAR-10 as five tasks of two classes, on features of a frozen backbone."""
    began = perf_counter()
    tasks = photographs(folder)
    title(
        "CIFAR-10, 5 tasks of two classes, 2,000 rows each, EfficientNet-Lite0 at 64 px "
        f"(features: {perf_counter() - began:.0f} s); the paper: CIFAR-100, 10 tasks, ViT-B/16"
    )
    papers: Papers = {
        ("cosine-classifier", 1.0): "72.78",
        ("cosine-classifier", 8.0): "78.93",
        ("peft-ensemble last layer", 1.0): "78.81 (FiLM 79.79)",
        ("peft-ensemble last layer", 8.0): "82.48 (FiLM 85.26)",
        ("dp-sgd naive", 1.0): "9.35",
    }
    line("cosine-classifier", None, partial(featured, tasks, "cosine-classifier", None), papers)
    for epsilon in EPSILONS:
        for what, name in (
            ("cosine-classifier", "cosine-classifier"),
            ("peft-ensemble last layer", "peft-ensemble"),
            ("dp-sgd naive", "dp-sgd"),
        ):
            line(what, epsilon, partial(featured, tasks, name, epsilon), papers)


def featured(tasks: Sequence[Task], name: str, epsilon: float | None) -> Learned:
    """One release for each task: sums that go on, one more member of an ensemble, or weights that go on."""
    size = tasks[0].x.shape[1]
    steps, probability = (1, 1.0) if name == "cosine-classifier" else (50, 0.5)
    noise = 1e-6
    if epsilon is not None:
        noise = calibrate_noise_multiplier(epsilon=epsilon, delta=DELTA, sampling_probability=probability, steps=steps)
    parameters: Document = {"noise_multiplier": noise}
    recipe: Document = {"label_source": "prior", "label_names": DIGITS}
    if name == "cosine-classifier":
        recipe |= {"feature_size": size}
    else:
        parameters |= {"sampling_probability": probability, "steps": steps, "clip_norm": 1.0}
        if name == "peft-ensemble":
            recipe |= {"feature_size": size, "learning_rate": HEAD_RATES[epsilon or max(HEAD_RATES)]}
        else:
            recipe |= {"model": "linear", "shape": [size], "optimiser": "adam", "learning_rate": 0.002}
    builds_on = {"cosine-classifier": "previous", "dp-sgd": "start"}.get(name)
    made, matrix = list[Artifact](), np.zeros((len(tasks), len(tasks)))
    for number, task in enumerate(tasks):
        if name == "cosine-classifier":
            recipe["label_names"] = [str(label) for label in np.unique(task.y)]
        inputs = {builds_on: made[-1]} if made and builds_on else {}
        made.append(released(name, parameters, recipe, [task.rows()], seed=number, inputs=inputs))
        models = made[-1:] if builds_on else made
        matrix[number] = [accuracy(other, models, aggregation="median") for other in tasks]
    return Learned(matrix=matrix)


# Common to all


def released(
    name: str,
    parameters: Document,
    recipe: Document,
    rows: Sequence[Rows],
    *,
    seed: int,
    inputs: Mapping[str, Artifact],
    backbones: Mapping[str, Backbone] | None = None,
) -> Artifact:
    """A run of a mechanism as a worker has it, without the worker: its quote is checked, its price is the caller's."""
    row = mechanism(name)
    assert row.module is not None
    assert len(row.quote(parameters, adjacency="add_remove").charges) == len(rows)
    single = {each: given.release for each, given in inputs.items() if "." not in each}
    defaults = {each.name: each.default for each in row.parameters if each.name not in parameters and not each.when}
    run = Run(
        parameters={**defaults, **parameters},
        recipe=row.cooked({**recipe, **single}),
        adjacency="add_remove",
        rows=rows,
        noise=Noise.repeatable(seed),
        inputs=inputs,
        backbones=backbones or {},
    )
    return Artifact(f"rel_{seed}", importlib.import_module(row.module).run(run))


def accuracy(task: Task, models: Sequence[Artifact], *, aggregation: Aggregation = "argmax") -> float:
    """The share of a task's held-out rows that are recognised."""
    return float(np.mean(predict(models, task.test_x, aggregation=aggregation) == task.test_y.astype(str)))


def title(text: str) -> None:
    """Begin a table."""
    print(f"\n{text}\n{COLUMNS.format(*HEADINGS)}", flush=True)


def line(
    what: str,
    epsilon: float | None,
    learn: Callable[[], Learned],
    papers: Papers,
) -> None:
    """Learn, and print what came of it."""
    began = perf_counter()
    learned = learn()
    matrix, several = learned.matrix, len(learned.matrix) > 1
    print(
        COLUMNS.format(
            what,
            "inf" if epsilon is None else f"{epsilon:g}",
            percent(average_accuracy(matrix)),
            percent(average_forgetting(matrix)) if several else "-",
            percent(worst_forgetting(matrix)) if several else "-",
            "-" if learned.curves is None else percent(learning_curve_area(learned.curves, batches=BATCHES)),
            f"{perf_counter() - began:.0f} s",
            "; ".join(filter(None, (learned.note, papers.get((what, epsilon), "")))),
        ).rstrip(),
        flush=True,
    )


def percent(share: float) -> str:
    """With one digit.

    >>> percent(0.4773)
    '47.7'
    """
    return f"{100 * share:.1f}"
