"""Shapes that the papers report, beside `benchmarks.accuracy`: labels that are released, other data, other noise.

Tables are on real data with repeatable noise, as there. What a paper calls ε and what is proved of the same program are
two columns where they differ. `bench trainers shapes` prints all of it.
"""

from __future__ import annotations

import csv
import io
import math
import zipfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from accountant import account, calibrate_noise_multiplier, calibrate_split
from accountant.calibration import dp_sgd
from accountant.events import Composed, Repeated
from benchmarks import accuracy as common
from benchmarks.accuracy import (
    DELTA,
    DIGITS,
    EPSILONS,
    STEPS,
    Artifact,
    Document,
    Learned,
    Papers,
    line,
    percent,
    title,
)
from benchmarks.streams import (
    Labelled,
    Task,
    blurred,
    mnist,
    movements,
    permuted_digits,
    photographs,
    pictures,
    titles,
)
from trainers.backbones import Backbone
from trainers.catalog import mechanism
from trainers.mechanisms.l2dp_ml_as_published import Weights, claimed_epsilon, initial, logits
from trainers.metrics import average_accuracy, average_forgetting
from trainers.ports import Rows
from trainers.predictors import predict

SHARES: Final = (0.01, 0.05, 0.1)
HARW: Final = (0.2, 1.0, 8.0)  # ε, the paper's first
PUBLISHED: Final = "{:<44}{:>10}{:>10}{:>10}{:>12}{:>8}  {}"
FILM_SIZE: Final = 48  # pixels
FILM_ROWS: Final = 300  # of a class


def report() -> None:
    """Print a table for every shape whose data is here."""
    folder = common.data()
    began, worked = perf_counter(), process_time()
    for needed, show in (
        (("diabetes130_icd9", "arxiv"), told),
        (("cifar10_12k", "efficientnet_lite0"), released_labels),
        (("hapt",), devices),
        (("arxiv",), papers),
        (("mnist",), regressions),
        (("mnist",), published),
        (("cifar10_12k", "efficientnet_lite0"), adapters),
    ):
        if all((folder / name).is_dir() for name in needed):
            show(folder)
        else:
            print(f"There is nothing to show of {', '.join(needed)}: point STINT_SHARED_DATA at it.")
    print(f"in all {perf_counter() - began:.0f} s, {process_time() - worked:.0f} s of them at work")


# Labels


def told(folder: Path) -> None:
    """How many labels of real label sets a share of the budget tells."""
    print("\nLabels told by one release with a share of (ε, 1e-5), and the share of records that carry one of them")
    print(f"{'':<44}{'ε':>5}" + "".join(f"{percent(share) + ' %':>20}" for share in SHARES))
    for what, labels in {
        "primary diagnoses of 101,766 encounters": diagnoses(folder),
        "subjects of 10,000 papers": titles(folder)[1],
    }.items():
        names, sizes = np.unique(labels, return_counts=True)
        size_of = dict(zip(names.tolist(), sizes.tolist(), strict=True))
        rows = Rows(slots=len(labels), unit=np.arange(len(labels)), x=np.zeros((len(labels), 1), np.float32), y=labels)
        for epsilon in EPSILONS:
            cells = []
            for number, share in enumerate(SHARES):
                parameters = {"epsilon": share * epsilon, "delta": share * DELTA}
                made = common.released("label-release", parameters, {}, [rows], seed=number, inputs={})
                found = made.facts["labels"]
                carried = sum(size_of[name] for name in found) / len(labels)
                cells.append(f"{len(found)} of {len(names)}, {percent(carried)} %")
            print(f"{what:<44}{epsilon:>5g}" + "".join(f"{cell:>20}" for cell in cells), flush=True)


def released_labels(folder: Path) -> None:
    """Labels told by a tenth of the budget beside labels that were known, on tasks that share classes or not."""
    tasks = photographs(folder)
    for share in (0.0, 0.5):
        name = "disjoint" if not share else f"{percent(share)} % of each class in all tasks alike"
        title(f"CIFAR-10, 5 tasks, {name}; labels known, or told by a tenth of the budget")
        stream = blurred(tasks, share)
        for epsilon in EPSILONS:
            paper: Papers = {
                ("labels told", 1.0): "as with known ones" if not share else "worse than known ones",
                ("labels told", 8.0): "as with known ones",
            }
            line("labels known", epsilon, partial(prototypes, stream, epsilon, known=True), paper)
            line("labels told", epsilon, partial(prototypes, stream, epsilon, known=False), paper)


def prototypes(tasks: Sequence[Task], epsilon: float, *, known: bool) -> Learned:
    """Sums of all tasks so far, over labels that a task has, or that a release of a tenth told of it."""
    noise = calibrate_noise_multiplier(epsilon=epsilon, delta=DELTA)
    labels: Document = {}
    if not known:
        split = calibrate_split(epsilon=epsilon, delta=DELTA)
        noise, labels = split.noise_multiplier, {"epsilon": split.labels.epsilon, "delta": split.labels.delta}
    matrix, before, missing = np.zeros((len(tasks), len(tasks))), list[Artifact](), 0
    for number, task in enumerate(tasks):
        names = [str(label) for label in np.unique(task.y)]
        if not known:
            telling = common.released("label-release", labels, {}, [task.rows()], seed=100 + number, inputs={})
            missing += len(names) - len(telling.facts["labels"])
            names = telling.facts["labels"]
        inputs = {"previous": before[-1]} if before else {}
        if names:
            recipe = {"label_source": "prior", "label_names": names, "feature_size": task.x.shape[1]}
            parameters = {"noise_multiplier": noise}
            before.append(
                common.released("cosine-classifier", parameters, recipe, [task.rows()], seed=number, inputs=inputs)
            )
        matrix[number] = [common.accuracy(other, before[-1:]) if before else 0.0 for other in tasks]
    return Learned(matrix=matrix, note=f"{missing} labels of tasks not told" if missing else "")


def diagnoses(folder: Path) -> NDArray[np.str_]:
    """Primary ICD-9 codes of hospital encounters."""
    with zipfile.ZipFile(folder / "diabetes130_icd9" / "dataset_diabetes.zip") as archive:
        [name] = [each for each in archive.namelist() if each.endswith("diabetic_data.csv")]
        with archive.open(name) as raw:
            return np.array([row["diag_1"] for row in csv.DictReader(io.TextIOWrapper(raw, "utf-8"))])


# Movements


def devices(folder: Path) -> None:
    """HAPT as HARW: what four devices of different rates measured, one task each."""
    tasks = movements(folder)
    sizes = ", ".join(f"{len(task.x):,}" for task in tasks)
    title(f"HAPT at 50, 20, 10 and 5 Hz, 4 tasks of {sizes} windows, 6 activities, 9 users held out; the paper: HARW")
    known: Papers = {
        ("a-gem", None): "62.27",
        ("l2dp-ml", 0.2): "61.26 (ε 0.2 claimed, refuted); 66.4 with heterogeneous training",
    }
    names = {"label_names": [str(label) for label in np.unique(tasks[0].y)], "shape": [tasks[0].x.shape[1]]}
    network: Document = {**names, "hidden": [32]}
    plain = {"steps": STEPS, "batch_size": common.BATCH}
    line("fine-tuning", None, partial(common.descended, tasks, "fine-tuning", plain, part="all", **network), known)
    remembering = {**plain, "memory_batch": common.BATCH}
    line(
        "a-gem",
        None,
        partial(common.descended, tasks, "a-gem", remembering, part="train", memories="memory", **network),
        known,
    )
    for epsilon in HARW:
        line("l2dp-ml", epsilon, partial(common.statistics, tasks, epsilon), known)
    for epsilon in EPSILONS:
        parameters = common.sampled(tasks, epsilon, times=1)
        rate = common.NAIVE_RATES[epsilon]
        naive = partial(common.descended, tasks, "dp-sgd", parameters, part="all", rate=rate, **network)
        line("dp-sgd naive", epsilon, naive, known)


# Papers, and regressions with noise on their weights


def papers(folder: Path) -> None:
    """A window that slides over papers as they appear."""
    x, labels = titles(folder)
    names = ["cs.CV", "cs.CL", "cs.AI"]
    kept = np.isin(labels, names)
    x, labels = x[kept], labels[kept]
    title("arXiv titles as they appear, 384 features, 3 subjects, logistic regression, modulus 0.03, panes of 512")
    cases = {
        "sliding-window of 7 panes": ("sliding-window", {"k": 3, "w0": 512}),
        "continual-release, 8 first": ("continual-release", {"pane": 512, "doublings": 3}),
        "multi-resolution": ("multi-resolution", {"pane": 512}),
    }
    train, test = (x[:-2000], labels[:-2000]), (x[-2000:], labels[-2000:])
    how = {"shape": [384], "radius": 1.0, "modulus": 0.03, "iterations": 100, "label_names": names}
    for what, (name, schedule) in cases.items():
        for (epsilon, kind), life in common.lives().items():
            learn = partial(common.streamed, name, {**schedule, **life}, train=train, test=test, **how)  # type: ignore[arg-type]
            paper = "as without privacy, at ε 1, 512 features, λ 10 (claimed)" if kind else ""
            line(what + kind, epsilon, learn, {(what + kind, 1.0): paper})


def regressions(folder: Path) -> None:
    """One model with noise on its weights, and one for every block of 2^k panes."""
    train, test = mnist(folder, "train", 8 * 1024), mnist(folder, "t10k", 2_000)
    title("MNIST, logistic regression, modulus 1: one model of 8,192, and the last of four steps of panes of 1,024")
    for (epsilon, kind), life in common.lives().items():
        line(f"output-perturbation{kind}", epsilon, partial(perturbed, life, train=train, test=test), {})
    for (epsilon, kind), life in common.lives().items():
        schedule = {"pane": 1024, **life}
        line(
            f"multi-resolution{kind}",
            epsilon,
            partial(common.streamed, "multi-resolution", schedule, train=train, test=test),
            {(f"multi-resolution{kind}", 1.0): "as without privacy, at ε 0.1 and 1 (claimed)" if kind else ""},
        )


CONVEX: Final[Document] = {
    "shape": [784], "radius": 8.0, "modulus": 1.0, "iterations": 25, "label_source": "prior", "label_names": DIGITS,
}  # fmt: skip


def perturbed(life: Document, *, train: Labelled, test: Labelled, name: str = "output-perturbation") -> Learned:
    """One regression."""
    x, y = train
    given = dict(life)
    if "mu" in given:  # one release is the whole life
        given["noise_multiplier"] = 1 / given.pop("mu")
    rows = Rows(slots=len(x), unit=np.arange(len(x)), x=x, y=y)
    model = common.released(name, given, CONVEX, [rows], seed=0, inputs={})
    return Learned(matrix=np.array([[np.mean(predict([model], test[0]) == test[1].astype(str))]]))


# As published


def published(folder: Path) -> None:
    """What the papers print, run as they print it, beside the sound version; what they claim beside what is proved."""
    print("\nAs published, beside what is proved of the same program (inf: nothing) and beside the sound versions")
    print(PUBLISHED.format("MNIST", "claimed ε", "proved ε", "accuracy", "forgetting", "time", ""))
    train, test = mnist(folder, "train", 8 * 1024), mnist(folder, "t10k", 2_000)
    tasks = permuted_digits(folder, 4)
    weights = 10 * 785
    as_published = partial(perturbed, train=train, test=test, name="output-perturbation-as-published")
    for claimed in EPSILONS:
        for lipschitz in ("public", "data"):
            given = {"epsilon": claimed, "weights": weights, "lipschitz": lipschitz}
            what = f"output-perturbation as published, L {lipschitz}"
            row(what, claimed, proved("output-perturbation-as-published", given), partial(as_published, given))
        mu = 1 / calibrate_noise_multiplier(epsilon=claimed, delta=DELTA)
        sound = {"noise": "gaussian", "mu": mu * (1 - 1e-9)}
        row("output-perturbation, gaussian", None, claimed, partial(perturbed, sound, train=train, test=test))
    for claimed in EPSILONS:
        schedule = {"pane": 1024, "doublings": 2}
        given = {**schedule, "epsilon": claimed}
        learn = partial(common.streamed, "continual-release-as-published", given, train=train, test=test)
        row("continual-release as published", claimed, math.inf, learn)
        gaussian = common.lives()[claimed, ", gaussian"]
        learn = partial(common.streamed, "continual-release", {**schedule, **gaussian}, train=train, test=test)
        row("continual-release, gaussian", None, claimed, learn)
    for name in ("dp-agem-as-published", "dp-cl-as-published"):
        claimed, ours = memories(name, len(tasks))
        row(f"{name.replace('-as-', ' as ')}, 4 permuted tasks", claimed, ours, partial(replayed, tasks, name))
    row("episodic-memory replay, 4 permuted tasks", None, 8.0, partial(common.episodic, tasks, 8.0, "replay"))
    small = common.smaller(tasks)
    for epsilon in EPSILONS:
        row("l2dp-ml as published, 4 permuted tasks", epsilon, math.inf, partial(functional, small, epsilon))
        row("l2dp-ml, 4 permuted tasks", None, epsilon, partial(common.statistics, small, epsilon))


#: Of "Continual Learning with Differential Privacy": σ, clip norm, batches of 100 and 50.
AGEM: Final[Document] = {"steps": 301, "noise_multiplier": 1.0, "clip_norm": 0.1}
AGEM_TRAIN, AGEM_MEMORY = 100 / 3000, 50 / 3000  # half of 6,000 are the memory


def memories(name: str, tasks: int) -> tuple[float, float]:
    """What a lemma of the paper says of a life, and what is proved of it."""
    steps = AGEM["steps"]
    train, memory = (
        account(dp_sgd(noise_multiplier=1.0, sampling_probability=rate, steps=steps), delta=DELTA).upper
        for rate in (AGEM_TRAIN, AGEM_MEMORY)
    )
    lemma = train + memory * (tasks - 1 if name == "dp-agem-as-published" else 1)
    parameters = {**AGEM, "train_probability": AGEM_TRAIN, "memory_probability": AGEM_MEMORY, "memories": ["0"]}
    own, kept = mechanism(name).quote(parameters, adjacency="add_remove").charges
    life = Composed(events=(Repeated(times=tasks - 1, event=kept.event),))
    return lemma, max(account(event, delta=DELTA).upper for event in (own.event, life))


def replayed(tasks: Sequence[Task], name: str) -> Learned:
    """A network of two hidden layers, task after task."""
    parameters = {**AGEM, "train_probability": AGEM_TRAIN, "memory_probability": AGEM_MEMORY}
    return common.descended(tasks, name, parameters, part="train", memories="memory", rate=0.1, steps=AGEM["steps"])


def functional(tasks: Sequence[Task], epsilon: float) -> Learned:
    """An auto-encoder and a network on Taylor coefficients, all tasks in one run, at a noise for which ε is claimed."""
    size, inputs, width = len(tasks[0].x), tasks[0].x.shape[1], 32
    encoder = initial(inputs, width, width, len(DIGITS), scale=0.01).encoder
    parameters = {
        "tasks": [{"task": str(number), "epochs": 20} for number in range(len(tasks))],
        "epsilon_1": epsilon / 2 / claimed_epsilon(1.0, 0.0, encoder, size=size),
        "epsilon_2": epsilon / 2,
    }
    recipe = {
        "inputs": inputs, "hidden": width, "last": width, "memory": 500, "learning_rate": 0.1, "scale": 0.01,
        "label_source": "prior", "label_names": DIGITS,
    }  # fmt: skip
    rows = [Rows(slots=size, unit=np.arange(size), x=2 * task.x - 1, y=task.y) for task in tasks]  # in [−1, 1]
    made = common.released("l2dp-ml-as-published", parameters, recipe, rows, seed=0, inputs={})
    matrix = np.zeros((len(tasks), len(tasks)))
    for number in range(len(tasks)):
        weights = Weights(*(made.tensors[f"task.{number}.{part}"] for part in Weights._fields))
        for place, task in enumerate(tasks):
            said = logits(weights, torch.from_numpy(2 * task.test_x - 1).to(torch.float64)).argmax(1).numpy()
            matrix[number, place] = np.mean(said == task.test_y)
    assert math.isclose(max(made.facts["claimed_epsilon"]), epsilon)
    return Learned(matrix=matrix)


def proved(name: str, parameters: Document) -> float:
    """What the catalog charges for one run."""
    [charge] = mechanism(name).quote(parameters, adjacency="add_remove").charges
    return account(charge.event, delta=DELTA).upper


def row(what: str, claimed: float | None, ours: float, learn: Callable[[], Learned]) -> None:
    """Learn, and print what came of it."""
    began = perf_counter()
    learned = learn()
    several = len(learned.matrix) > 1
    print(
        PUBLISHED.format(
            what,
            "" if claimed is None else f"{claimed:.3g}",
            f"{ours:.3g}",
            percent(average_accuracy(learned.matrix)),
            percent(average_forgetting(learned.matrix)) if several else "-",
            f"{perf_counter() - began:.0f} s",
            "",
        ).rstrip(),
        flush=True,
    )


# Adapters


def adapters(folder: Path) -> None:
    """Prototypes, heads, and heads with FiLM, on the same few photographs at few pixels, in few tasks and in more."""
    known: Papers = {
        ("cosine-classifier", 1.0): "72.78", ("cosine-classifier", 8.0): "78.93",
        ("peft-ensemble last layer", 1.0): "78.81", ("peft-ensemble last layer", 8.0): "82.48",
        ("peft-ensemble FiLM", 1.0): "79.79", ("peft-ensemble FiLM", 8.0): "85.26",
    }  # fmt: skip
    for labels, epsilons in ((5, EPSILONS), (2, EPSILONS[-1:])):
        backbone, tasks = pictures(folder, size=FILM_SIZE, rows=FILM_ROWS, labels=labels)
        title(
            f"CIFAR-10, {len(tasks)} tasks of {labels} classes, {labels * FILM_ROWS} rows each, EfficientNet-Lite0 at "
            f"{FILM_SIZE} px; the paper: CIFAR-100, 10 tasks of 10, ViT-B/16"
        )
        for epsilon in epsilons:
            line("cosine-classifier", epsilon, partial(tuned, backbone, tasks, "", epsilon), known)
            line("peft-ensemble last layer", epsilon, partial(tuned, backbone, tasks, "last_layer", epsilon), known)
            line("peft-ensemble FiLM", epsilon, partial(tuned, backbone, tasks, "film", epsilon), known)


FILM_STEPS, FILM_PROBABILITY = 30, 0.25
FILM_RATES: Final[Mapping[str, Mapping[float, float]]] = {
    "last_layer": {1.0: 0.1, 8.0: 0.6},
    "film": {1.0: 0.05, 8.0: 0.075},
}
#: Norm of features and clip norm: twice both at a quarter of the step size is the same for a head, not for FiLM.
FILM_NORMS: Final[Mapping[str, tuple[float, float]]] = {"last_layer": (4.0, 1.0), "film": (8.0, 2.0)}


def tuned(backbone: Backbone, tasks: Sequence[Task], adapter: str, epsilon: float) -> Learned:
    """Sums that go on, or a member for each task."""
    steps, probability = (FILM_STEPS, FILM_PROBABILITY) if adapter else (1, 1.0)
    noise = calibrate_noise_multiplier(epsilon=epsilon, delta=DELTA, sampling_probability=probability, steps=steps)
    parameters: Document = {"noise_multiplier": noise}
    recipe: Document = {"label_source": "prior", "label_names": DIGITS, "backbone": backbone.name}
    if adapter:
        norm, clip_norm = FILM_NORMS[adapter]
        parameters |= {"sampling_probability": probability, "steps": steps, "clip_norm": clip_norm}
        recipe |= {"adapter": adapter, "learning_rate": FILM_RATES[adapter][epsilon], "physical_batch": 256}
        recipe["feature_norm"] = norm
    backbones = {backbone.name: backbone}
    made = list[Artifact]()
    name = "peft-ensemble" if adapter else "cosine-classifier"
    for number, task in enumerate(tasks):
        inputs: dict[str, Any] = {"previous": made[-1]} if made and not adapter else {}
        if not adapter:
            recipe["label_names"] = [str(label) for label in np.unique(task.y)]
        made.append(
            common.released(name, parameters, recipe, [task.rows()], seed=number, inputs=inputs, backbones=backbones)
        )
    models = made if adapter else made[-1:]
    right = [
        float(
            np.mean(predict(models, task.test_x, backbones=backbones, aggregation="median") == task.test_y.astype(str))
        )
        for task in tasks
    ]
    return Learned(matrix=np.array([[np.mean(right)]]))
