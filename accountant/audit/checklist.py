"""The checklist before a release: what is known of it in, findings out. Nothing is read, run or drawn here.

`CHECKS` is the list, one line for each rule of `findings.RULES`: what must be known for the check to say anything, and
the function that says it. A check that had nothing to look at is not passed: `audit` says which were made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from scipy.special import gammaincinv

from accountant.audit import heads, names
from accountant.audit.contents import Contents, Earlier, Tensor, label_digest
from accountant.audit.findings import RULES, Basis, Finding
from accountant.audit.manifests import (
    CONSTANTS,
    STATEMENTS,
    constants,
    is_misread,
    number_of,
    statement,
    text_of,
    texts_of,
)
from accountant.engines import account, rdp
from accountant.events import Adjacency, ApproxDP, Event, PoissonSampled, PureDP, leaves
from accountant.guarantees import ProofStatus

#: Kinds of release that answer with labels.
CLASSIFIERS: Final = frozenset({"weights", "prototypes", "window_model"})
SPENT_OR_HELD: Final = frozenset({"held", "committed", "expired"})
CHANCE: Final = 1e-9  # of a false alarm about shared noise, in one audit
MAX_ROWS: Final = 256  # that are compared with each other
MIN_REPEATED: Final = 16  # numbers: fewer may be equal by rounding
MIN_DATA_ROWS: Final = 32  # a tensor with fewer rows than this has them for many reasons


# ---------------------------------------------------------------- what is known


@dataclass(frozen=True, slots=True, kw_only=True)
class Population:
    """What a population is, as its ledger or a manifest says."""

    unit: str | None = None
    adjacency: str | None = None
    delta: float | None = None
    datapoints: int | None = None
    task_datapoints: int | None = None  # of the task that is released about


@dataclass(frozen=True, slots=True, kw_only=True)
class Mechanism:
    """What the catalog says of the mechanism; `price` are the events that it asks for with the given parameters."""

    name: str
    proof_status: ProofStatus
    adjacencies: tuple[Adjacency, ...] = ()
    price: tuple[Event, ...] | None = None
    charges_memory: bool = False  # whether a part of the price is for records of earlier tasks


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All that is known of a release. None is: not known."""

    kind: str = "weights"
    declared: Mapping[str, Any] = field(default_factory=dict)
    is_ours: bool = False  # run by a worker of ours: how it samples, clips and forgets is our own program
    unit: str | None = None  # what the release counts on
    adjacency: str | None = None
    population: Population = field(default_factory=Population)
    mechanism: Mechanism | None = None
    nearest: str | None = None  # the catalog's name that was perhaps meant, where it has not the one that is given
    accepts: tuple[str, ...] | None = None
    charged: tuple[Event, ...] = ()
    statuses: Mapping[str, str] | None = None  # of the releases that it names, as the ledger has them
    labels: Sequence[str] | None = None  # all labels that it has to answer with
    also: frozenset[str] = frozenset()  # labels of what a run of ours builds on, which it may have taken over
    label_digests: frozenset[str] = frozenset()  # spellings of the label space that it was promised to have
    overlapping: int | None = None  # tasks that share datapoints with this one
    unknown_tasks: int = 0  # that are named, and not in the ledger
    metrics: bool = False  # whether some go out beside the artifact
    contents: Contents | None = None
    digests: Mapping[str, str] = field(default_factory=dict)  # who says which digest
    earlier: Sequence[Earlier] = ()
    builds_on: frozenset[str] = frozenset()
    head: str | None = None  # the tensor with a row for each label
    public: tuple[str, ...] = ()  # beginnings of names of frozen public tensors
    public_digests: frozenset[str] = frozenset()  # of tensors in public files that were at hand


@dataclass(frozen=True, slots=True, kw_only=True)
class Audited:
    """Findings in the order of the rules, and the codes of the checks that had something to look at."""

    findings: tuple[Finding, ...]
    checked: tuple[str, ...]


def audit(facts: Facts, *, codes: Sequence[str] | None = None) -> Audited:
    """Everything that is to be said of a release; of these rules alone, if they are named."""
    findings, made = list[Finding](), list[str]()
    for check in CHECKS if codes is None else [_BY_CODE[code] for code in codes]:
        if check.applies(facts):
            made.append(check.code)
            findings += check.find(facts)
    return Audited(findings=tuple(findings), checked=tuple(made))


# ---------------------------------------------------------------- labels


def _is_classifier(facts: Facts) -> bool:
    return facts.kind in CLASSIFIERS


def _label_source(facts: Facts) -> str | None:
    return statement(facts.declared, "label_space")


def _labels_from_data(facts: Facts) -> Iterator[Finding]:
    if _label_source(facts) == "data":
        yield _found("label_space.from_data", "attested")


def _labels_undeclared(facts: Facts) -> Iterator[Finding]:
    if _label_source(facts) is None:
        yield _found("label_space.undeclared", "attested")


def _names_label_release(facts: Facts) -> bool:
    return facts.statuses is not None and _label_source(facts) == "released"


def _labels_unreleased(facts: Facts) -> Iterator[Finding]:
    release = text_of(facts.declared, "label_space", "release")
    assert facts.statuses is not None
    status = facts.statuses.get(release or "")
    if status is not None and status not in {"committed", "expired"}:
        yield _found("label_space.unreleased", "checked", release=release, status=status)


def _labels_of_nobody(facts: Facts) -> Iterator[Finding]:
    assert facts.statuses is not None
    if facts.statuses.get(text_of(facts.declared, "label_space", "release") or "") is None:
        yield _found("label_space.unknown_release", "checked")


def _knows_label_set(facts: Facts) -> bool:
    said = texts_of(facts.declared, "label_space", "labels")
    return _is_classifier(facts) and bool(facts.label_digests or (facts.labels is not None and said is not None))


def _labels_mismatch(facts: Facts) -> Iterator[Finding]:
    """The declared labels against the known set, and the artifact's against a digest where no names are known.

    A subset is another set: that a label is missing tells that nobody had it.
    """
    said = texts_of(facts.declared, "label_space", "labels")
    if said is not None:
        differs = facts.labels is not None and set(said) != set(facts.labels)
        if differs or (facts.label_digests and label_digest(said) not in facts.label_digests):
            yield _found("label_space.mismatch", "checked", where="declaration")
    contents = facts.contents
    if facts.label_digests and contents is not None and contents.is_open and contents.labels is not None:
        known = facts.labels is not None and _is_label_set(facts, contents.labels)
        if not known and label_digest(contents.labels) not in facts.label_digests:
            yield _found("label_space.mismatch", "checked", where="artifact")


def _is_label_set(facts: Facts, labels: Sequence[str]) -> bool:
    """Whether these are all labels of the label space and no others, but for those that stand in what it builds on."""
    assert facts.labels is not None
    least, given = set(facts.labels), set(labels)
    return least <= given <= least | facts.also


def _promises_labels(facts: Facts) -> bool:
    return _is_open(facts) and _is_classifier(facts) and _label_source(facts) in {"prior", "released"}


def _labels_unchecked(facts: Facts) -> Iterator[Finding]:
    assert facts.contents is not None
    by_digest = facts.label_digests and facts.contents.labels is not None
    if facts.labels is None and not by_digest:
        yield _found("label_space.unchecked", "attested", source=_label_source(facts))


def _denies_labels(facts: Facts) -> bool:
    return _is_open(facts) and (not _is_classifier(facts) or _label_source(facts) == "none")


def _labels_contradicted(facts: Facts) -> Iterator[Finding]:
    """One output alone tells of no set of labels: a regression has one."""
    assert facts.contents is not None
    tensors = _tensors(facts)
    answering = [own] if (own := heads.own_head(facts.contents)) is not None else heads.likely(tensors)
    found = {
        "names of labels": bool(facts.contents.labels) and facts.kind != "labels",
        "a head": any(max(heads.widths(tensors, name), default=0) > 1 for name in answering),
    }
    said = f"kind = {facts.kind}" if not _is_classifier(facts) else "label_space.source = none"
    if any(found.values()):
        parts = " and ".join(name for name, is_there in found.items() if is_there)
        yield _found("label_space.contradicted", "checked", said=said, parts=parts)


def _knows_labels(facts: Facts) -> bool:
    return _is_open(facts) and facts.labels is not None and _is_classifier(facts)


def _artifact_labels(facts: Facts) -> Iterator[Finding]:
    assert facts.contents is not None
    assert facts.labels is not None
    if facts.contents.labels is not None and not _is_label_set(facts, facts.contents.labels):
        yield _found("artifact.labels", "checked", labels=len(set(facts.labels)))


def _knows_outputs(facts: Facts) -> bool:
    return _is_open(facts) and _is_classifier(facts) and _outputs(facts) is not None


def _outputs(facts: Facts) -> int | None:
    """How many labels there are: those of the label space; those that the file names, where that is not known."""
    assert facts.contents is not None
    named = facts.contents.labels
    if facts.labels is None or (facts.also and named is not None):
        return None if named is None else len(set(named))
    return len(set(facts.labels))


def _artifact_head(facts: Facts) -> Iterator[Finding]:
    outputs, answering = _outputs(facts), _answering(facts)
    if len(answering) == 1 and not _fits(answering[0], outputs):
        yield _found("artifact.head_width", "checked", labels=outputs)


def _head_unknown(facts: Facts) -> Iterator[Finding]:
    """Where several layers could be the head, it is no matter which of them is, as long as all have the right width."""
    outputs, answering = _outputs(facts), _answering(facts)
    if not answering or (len(answering) > 1 and not all(_fits(each, outputs) for each in answering)):
        yield _found("artifact.head_unknown", "checked", layers=len(answering), labels=outputs)


def _fits(widths: Sequence[int], outputs: int | None) -> bool:
    return all(width == outputs or (width == 1 and outputs == 2) for width in widths)  # one row for the second of two


def _answering(facts: Facts) -> list[tuple[int, ...]]:
    """Widths of what answers: the file's own head, the one that is named, or all that look like it.

    What a file of ours predicts with is no matter of anybody's word.
    """
    assert facts.contents is not None
    tensors = _tensors(facts)
    name = heads.own_head(facts.contents) or facts.head
    found = [heads.widths(tensors, each) for each in (heads.likely(tensors) if name is None else [name])]
    return [each for each in found if each]


def _tensors(facts: Facts) -> dict[str, Tensor]:
    assert facts.contents is not None
    return {tensor.name: tensor for tensor in facts.contents.tensors}


def _names_head(facts: Facts) -> bool:
    if not (_is_open(facts) and _is_classifier(facts)):
        return False
    assert facts.contents is not None
    return facts.head is not None or heads.own_head(facts.contents) is not None


def _head_missing(facts: Facts) -> Iterator[Finding]:
    assert facts.contents is not None
    tensors = _tensors(facts)
    for where, name in (("manifest", facts.head), ("artifact", heads.own_head(facts.contents))):
        if name is not None and not heads.widths(tensors, name):
            yield _found("artifact.head_missing", "checked", where=where)


def _needs_head(facts: Facts) -> bool:
    """A head has to be found by its name, and there is something to compare it with."""
    if not _knows_outputs(facts) or facts.is_ours or _label_source(facts) == "none" or _names_head(facts):
        return False
    assert facts.contents is not None
    return bool(facts.contents.tensors)


# ---------------------------------------------------------------- statements


def _empty_task(facts: Facts) -> Iterator[Finding]:
    answer = statement(facts.declared, "empty_task")
    words = {"untrained": "an untrained model", "nothing": "nothing"}
    if answer in words:
        yield _found("empty_task.no_classifier", "attested", answer=words[answer])
    if _is_open(facts):
        assert facts.contents is not None
        if not facts.contents.tensors:
            yield _found("empty_task.no_classifier", "checked", answer="a file without any tensor")


def _unsaid(name: str, code: str) -> Callable[[Facts], Iterator[Finding]]:
    """That a statement is not made."""

    def find(facts: Facts) -> Iterator[Finding]:
        if statement(facts.declared, name) is None:
            yield _found(code, "attested")

    return find


def _said(name: str, word: str, code: str) -> Callable[[Facts], Iterator[Finding]]:
    """That a statement admits what must not be."""

    def find(facts: Facts) -> Iterator[Finding]:
        if statement(facts.declared, name) == word:
            yield _found(code, "attested")

    return find


#: Statements that something was charged or released: the word that says so, and the field that names the releases.
_CLAIMS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "tuning": ("charged", "releases"),
        "preprocessing": ("charged", "releases"),
        "pretraining": ("released", "release"),
        "evaluation": ("charged", "releases"),
    }
)
#: Those that may be charged for in the release itself, beside its mechanism.
_WITHIN: Final = frozenset({"preprocessing", "evaluation"})


def _claimed(facts: Facts, name: str) -> list[str] | None:
    """The releases under which something is said to be charged; None if that is not said."""
    word, field_name = _CLAIMS[name]
    said = constants(facts.declared).values() if name == "preprocessing" else [statement(facts.declared, name)]
    if word not in said:
        return None
    one = text_of(facts.declared, name, field_name)
    return [one] if one is not None else texts_of(facts.declared, name, field_name) or []


def _paid_within(facts: Facts, name: str) -> bool | None:
    """Whether the release itself pays for it, by a charge beside those of its mechanism; None if that is not known."""
    if name not in _WITHIN:
        return False
    price = None if facts.mechanism is None else facts.mechanism.price
    return None if price is None else len(facts.charged) > len(price)


def _uncharged(name: str, code: str) -> Callable[[Facts], Iterator[Finding]]:
    """That what is said to be charged is no release that is spent or held."""

    def find(facts: Facts) -> Iterator[Finding]:
        assert facts.statuses is not None
        named = _claimed(facts, name)
        if named:
            statuses = [facts.statuses.get(each) for each in named]
            is_known = name == "pretraining"  # what the ledger has not is told as that
            if missing := sum(each not in SPENT_OR_HELD and not (is_known and each is None) for each in statuses):
                yield _found(code, "checked", missing=missing)
        elif named is not None and _paid_within(facts, name) is False:
            yield _found(code, "checked", missing="all")

    return find


def _pretraining_of_nobody(facts: Facts) -> Iterator[Finding]:
    assert facts.statuses is not None
    named = _claimed(facts, "pretraining")
    if named and facts.statuses.get(named[0]) is None:
        yield _found("pretraining.unknown_release", "checked")


def _memory_uncharged(facts: Facts) -> Iterator[Finding]:
    assert facts.mechanism is not None
    if statement(facts.declared, "state") == "charged_memory" and not facts.mechanism.charges_memory:
        yield _found("state.uncharged", "checked", mechanism=facts.mechanism.name)


def _preprocessing_private(facts: Facts) -> Iterator[Finding]:
    private = [name for name, source in constants(facts.declared).items() if source == "private"]
    if private:
        yield _found("preprocessing.private", "attested", constants=", ".join(private))


def _preprocessing_undeclared(facts: Facts) -> Iterator[Finding]:
    said = constants(facts.declared)
    if unsaid := [name for name in CONSTANTS if name not in said]:
        yield _found("preprocessing.undeclared", "attested", constants=", ".join(unsaid))


def _incomplete(facts: Facts) -> Iterator[Finding]:
    """Words with nothing behind them; what another rule looks up, in the ledger or in the file, is its matter."""
    source = _label_source(facts)
    if source in {"prior", "released"} and _is_classifier(facts) and not _says_labels(facts):
        yield _found("statement.incomplete", "attested", statement="label_space", word=source)
    for name, (word, _) in _CLAIMS.items():
        paid = _paid_within(facts, name)
        if _claimed(facts, name) == [] and not paid and (facts.statuses is None or paid is None):
            yield _found("statement.incomplete", "attested", statement=name, word=word)


def _says_labels(facts: Facts) -> bool:
    """Whether a set is there, or another rule says that none is."""
    declared = facts.declared
    if facts.is_ours or _is_open(facts) or facts.labels is not None or texts_of(declared, "label_space", "labels"):
        return True
    named = "release" if _label_source(facts) == "released" else "digest"
    return text_of(declared, "label_space", named) is not None or (named == "release" and facts.statuses is not None)


def _metrics_undeclared(facts: Facts) -> Iterator[Finding]:
    if statement(facts.declared, "evaluation") is not None:
        return
    if facts.metrics:
        yield _found("metrics.undeclared", "checked", where="commit")
    if facts.contents is not None and facts.contents.is_open:
        keys = {*facts.contents.metadata, *(facts.contents.facts or {})}
        if any(map(names.is_metric, keys)):
            yield _found("metrics.undeclared", "checked", where="artifact")


def _statement_unknown(facts: Facts) -> Iterator[Finding]:
    for name in facts.declared:
        if name in STATEMENTS and is_misread(facts.declared, name):
            yield _found("statement.unknown", "attested", statement=name)


# ---------------------------------------------------------------- mechanism and price


def _proof_status(facts: Facts) -> Iterator[Finding]:
    assert facts.mechanism is not None
    assert facts.accepts is not None
    if facts.mechanism.proof_status not in facts.accepts:
        yield _found(
            "mechanism.proof_status",
            "checked",
            mechanism=facts.mechanism.name,
            status=facts.mechanism.proof_status,
            accepts=" or ".join(facts.accepts),
        )


def _mechanism_unknown(facts: Facts) -> Iterator[Finding]:
    if facts.mechanism is None:
        yield _found("mechanism.unknown", "attested")


def _mechanism_misspelt(facts: Facts) -> Iterator[Finding]:
    if facts.nearest is not None:
        yield _found("mechanism.misspelt", "checked", nearest=facts.nearest)


def _charges_missing(facts: Facts) -> Iterator[Finding]:
    if facts.mechanism is None and not facts.charged:
        yield _found("charges.missing", "checked")


def _charges_too_low(facts: Facts) -> Iterator[Finding]:
    assert facts.mechanism is not None
    assert facts.mechanism.price is not None
    adjacency = _counted_on(facts)
    if not covers(facts.charged, facts.mechanism.price, adjacency=adjacency):
        yield _found("charges.too_low", "checked", mechanism=facts.mechanism.name)


def _counted_on(facts: Facts) -> Adjacency:
    known = facts.population.adjacency or facts.adjacency
    return "replace_one" if known == "replace_one" else "add_remove"


def covers(charged: Sequence[Event], price: Sequence[Event], *, adjacency: Adjacency) -> bool:
    """Whether these charges are sure to cost at least this price.

    Each event of the price by a charge of its own: several charges may be on different people, who pay for one each.
    An event covers itself; an (ε, δ) covers what an engine proves to be (ε, δ); any other covers what has a Rényi curve
    at or below its own at every order, with no more δ.
    """
    left = list(charged)
    for event in price:
        place = next((place for place, one in enumerate(left) if _covers(one, event, adjacency)), None)
        if place is None:
            return False
        del left[place]
    return True


def _covers(charged: Event, price: Event, adjacency: Adjacency) -> bool:
    if charged == price:
        return True
    if isinstance(charged, PureDP | ApproxDP):
        delta = charged.delta if isinstance(charged, ApproxDP) else 0.0
        if delta > 0:
            return account(price, delta=delta, adjacency=adjacency).upper <= charged.epsilon
    orders = rdp.ORDERS
    mine, asked = rdp.curve(charged, orders, adjacency), rdp.curve(price, orders, adjacency)
    pure = mine.pure is None or (asked.pure is not None and asked.pure <= mine.pure)
    return bool(np.all(asked.rho <= mine.rho)) and pure and asked.delta <= mine.delta


def counts_on_poisson(event: Event) -> bool:
    """Whether an event is cheaper for samples that were drawn by independent coins."""
    return any(isinstance(leaf, PoissonSampled) for leaf, _ in leaves(event))


def _counts_on_poisson(facts: Facts) -> bool:
    return any(map(counts_on_poisson, facts.charged))


def _not_poisson(facts: Facts) -> Iterator[Finding]:
    scheme = statement(facts.declared, "sampling")
    words = {"shuffled": "shuffled", "fixed_size": "of a fixed size", "full": "whole tasks"}
    if scheme in words:
        yield _found("sampling.not_poisson", "attested", scheme=words[scheme])


# ---------------------------------------------------------------- noise


def _repeatable(facts: Facts) -> Iterator[Finding]:
    if statement(facts.declared, "noise") == "seeded":
        yield _found("noise.repeatable", "attested")
    if _is_open(facts):
        assert facts.contents is not None
        if facts.contents.metadata.get("releasable", "true") != "true":
            yield _found("noise.repeatable", "checked")


def _noisy(facts: Facts) -> list[Tensor]:
    """Tensors that noise must make different from all others."""
    assert facts.contents is not None
    return [
        tensor
        for tensor in facts.contents.tensors
        if tensor.is_real and not tensor.is_constant and tensor.size >= MIN_REPEATED and not _is_public(facts, tensor)
    ]


def _is_public(facts: Facts, tensor: Tensor) -> bool:
    """Whether it is a frozen public tensor: it stands in a public file, or the pipeline says so.

    That accounts for two things: that it is the same in every release, and that it has statistics. No word lets an
    optimizer's state, counts or rows of data pass.
    """
    return tensor.digest in facts.public_digests or _is_said_public(facts, tensor)


def _is_said_public(facts: Facts, tensor: Tensor) -> bool:
    return bool(facts.public) and tensor.name.startswith(facts.public)


def _repeated(facts: Facts) -> Iterator[Finding]:
    """The same numbers in two releases, of which neither builds on the other: no fresh noise gives them.

    A copy of an earlier tensor costs nothing, so what stands in a release that this one builds on may stand here too.
    """
    taken_over = frozenset().union(*(each.digests for each in facts.earlier if each.release in facts.builds_on))
    digests = [tensor.digest for tensor in _noisy(facts) if tensor.digest not in taken_over]
    for other in facts.earlier:
        if other.release not in facts.builds_on and (same := sum(each in other.digests for each in digests)):
            yield _found("noise.repeated", "checked", tensors=same, where=f"release {other.release}")


def _declares_noise(facts: Facts) -> bool:
    return _is_open(facts) and number_of(facts.declared, "noise", "scale") is not None and any(map(len, _rows(facts)))


def _rows(facts: Facts) -> list[np.ndarray[Any, np.dtype[np.float64]]]:
    assert facts.contents is not None
    name = text_of(facts.declared, "noise", "tensor")
    return [each.values for each in facts.contents.tensors if each.name == name and each.values is not None]


def _shared(facts: Facts) -> Iterator[Finding]:
    """Rows whose noise is independent with deviation σ differ by at least as much as their noise, in law.

    With n the difference of both noises and v any vector, ‖v + n‖² / 2σ² is a non-central χ² with as many degrees as
    columns, which lies above a central one in law: below its quantile at p it lies with a chance of at most p, whatever
    the data. p is shared among all pairs, so that the chance of a false alarm is `CHANCE` in all. A row may have been
    added to one that was released before, whose noise both then have: of rows of another release only the noise that is
    new is counted on, ‖v + n‖² / σ². Rows that were taken over as they are from what this release builds on have none.
    """
    scale = number_of(facts.declared, "noise", "scale")
    assert scale is not None
    mine = np.concatenate(_rows(facts))[:MAX_ROWS]
    rows = [each for each in facts.earlier if each.rows is not None and each.rows.shape[1] == mine.shape[1]]
    copied = {row.tobytes() for each in rows if each.release in facts.builds_on for row in each.rows}  # type: ignore[union-attr]
    fresh = np.array([row.tobytes() not in copied for row in mine], dtype=np.bool_)
    others = [each.rows[:MAX_ROWS] for each in rows if each.release not in facts.builds_on]  # type: ignore[index]
    compared = len(mine) * (len(mine) - 1) // 2 + sum(int(fresh.sum()) * len(each) for each in others)
    if not compared or not mine.shape[1]:
        return
    least = 2 * scale**2 * gammaincinv(mine.shape[1] / 2, CHANCE / compared)
    close = int(np.count_nonzero(_distances(mine, mine)[np.triu_indices(len(mine), 1)] < 2 * least))
    close += sum(int(np.count_nonzero(_distances(mine[fresh], each) < least)) for each in others)
    if close:
        yield _found("noise.shared", "checked", pairs=close, chance=CHANCE)


def _distances(one: Any, other: Any) -> Any:
    """Squared distances of all pairs of rows, by subtraction: large squares would lose a small difference."""
    return np.array([((other - row) ** 2).sum(axis=1) for row in one])


# ---------------------------------------------------------------- promise


def _adjacency(facts: Facts) -> Iterator[Finding]:
    known, declared = facts.population.adjacency, facts.adjacency
    if known is not None and declared not in {None, known}:
        yield _found("population.adjacency", "checked", declared=declared, where="population", known=known)
    counted = declared or known
    if facts.mechanism is not None and facts.mechanism.adjacencies and counted is not None:
        proved = facts.mechanism.adjacencies
        if counted not in proved:
            words = " or ".join(proved)
            yield _found(
                "population.adjacency", "checked", declared=counted, where="proof of the mechanism", known=words
            )


def _unit(facts: Facts) -> Iterator[Finding]:
    if facts.unit != facts.population.unit:
        yield _found("population.unit", "checked", declared=facts.unit, known=facts.population.unit)


def _delta(facts: Facts) -> Iterator[Finding]:
    delta, datapoints = facts.population.delta, facts.population.datapoints
    assert delta is not None
    assert datapoints is not None
    if delta * datapoints >= 1:
        yield _found("population.delta", "checked", delta=delta)


def _claims_parallel(facts: Facts) -> bool:
    return statement(facts.declared, "composition") == "parallel"


def _overlap(facts: Facts) -> Iterator[Finding]:
    if facts.overlapping:
        yield _found("tasks.overlap", "checked", tasks=facts.overlapping)


def _tasks_unknown(facts: Facts) -> Iterator[Finding]:
    if facts.unknown_tasks:
        yield _found("tasks.unknown", "checked")


def _overlap_unchecked(facts: Facts) -> Iterator[Finding]:
    if facts.overlapping is None and not facts.unknown_tasks:
        has_ledger = facts.statuses is not None
        why = "no task is named" if has_ledger else "no ledger is at hand that says who is in which task"
        yield _found("tasks.unchecked", "attested", why=why)


# ---------------------------------------------------------------- the file


def _is_open(facts: Facts) -> bool:
    return facts.contents is not None and facts.contents.is_open


def _unopened(facts: Facts) -> Iterator[Finding]:
    if facts.contents is None:
        yield _found("artifact.unopened", "attested")


_FORMS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "pickle": "a pickle",
        "torch": "a torch archive of pickles",
        "archive": "a zip archive",
        "tar": "a tar archive",
        "npz": "a NumPy archive",
        "npy": "a NumPy array",
        "gguf": "a GGUF file",
        "hdf5": "an HDF5 file",
        "onnx": "an ONNX file",
        "other": "of no known form",
    }
)


def _pickle(facts: Facts) -> Iterator[Finding]:
    assert facts.contents is not None
    if facts.contents.form in {"pickle", "torch"}:
        yield _found("artifact.pickle", "checked", form=_FORMS[facts.contents.form])


def _format(facts: Facts) -> Iterator[Finding]:
    assert facts.contents is not None
    if facts.contents.form not in {"safetensors", "pickle", "torch"}:
        yield _found("artifact.format", "checked", form=_FORMS[facts.contents.form])


def _unreadable(facts: Facts) -> Iterator[Finding]:
    assert facts.contents is not None
    if facts.contents.problem is not None:
        yield _found("artifact.unreadable", "checked", problem=facts.contents.problem)


def _digest(facts: Facts) -> Iterator[Finding]:
    assert facts.contents is not None
    for where, expected in facts.digests.items():
        if expected != facts.contents.sha256:
            yield _found("artifact.digest", "checked", found=facts.contents.sha256, where=where, expected=expected)


def _telling(facts: Facts, words_in: Callable[[str], frozenset[str]]) -> tuple[dict[str, Tensor], set[str]]:
    """Tensors whose names tell of something, by name, and the words that do."""
    assert facts.contents is not None
    found = {tensor.name: (tensor, words) for tensor in facts.contents.tensors if (words := words_in(tensor.name))}
    return {name: tensor for name, (tensor, _) in found.items()}, {
        word for _, words in found.values() for word in words
    }


def _batch_norm(facts: Facts) -> Iterator[Finding]:
    """Frozen public layers have such statistics too: those that are declared public are told of there."""
    named, words = _telling(facts, names.statistics_in)
    if tensors := sum(not _is_public(facts, tensor) for tensor in named.values()):
        yield _found("artifact.batch_norm", "checked", tensors=tensors, words=", ".join(sorted(words)))


def _optimizer(facts: Facts) -> Iterator[Finding]:
    tensors, words = _telling(facts, names.optimizer_in)
    if tensors:
        yield _found("artifact.optimizer_state", "checked", tensors=len(tensors), words=", ".join(sorted(words)))


def _example_counts(facts: Facts) -> Iterator[Finding]:
    """By name, in tensors and metadata; and whole numbers for each label that add up to the size of the data."""
    assert facts.contents is not None
    tensors, words = _telling(facts, names.counts_in)
    keys = [names.counts_in(key) for key in (*facts.contents.metadata, *(facts.contents.facts or {}))]
    sizes = {
        size
        for size in (facts.population.datapoints, facts.population.task_datapoints)
        if size is not None and size >= MIN_DATA_ROWS
    }
    sums = sum(
        tensor.name not in tensors and tensor.total in sizes and sum(side > 1 for side in tensor.shape) <= 1
        for tensor in facts.contents.tensors
    )
    if parts := len(tensors) + sum(map(bool, keys)) + sums:
        shown = [*sorted(words.union(*keys)), *(["numbers that add up to the size of the data"] if sums else [])]
        yield _found("artifact.example_counts", "checked", parts=parts, words=", ".join(shown))


def _training_data(facts: Facts) -> Iterator[Finding]:
    assert facts.contents is not None
    tensors, words = _telling(facts, names.data_in)
    same = sum(tensor.data_rows > 0 and tensor.name not in tensors for tensor in facts.contents.tensors)
    if tensors or same:
        shown = [*sorted(words), *(["rows of the data itself"] if same else [])]
        yield _found("artifact.training_data", "checked", tensors=len(tensors) + same, words=", ".join(shown))


def _rows_like_data(facts: Facts) -> Iterator[Finding]:
    assert facts.contents is not None
    for where, size in (("task", facts.population.task_datapoints), ("population", facts.population.datapoints)):
        if size is None or size < MIN_DATA_ROWS:
            continue
        tensors = [each for each in facts.contents.tensors if each.shape and each.shape[0] == size]
        if tensors:
            yield _found("artifact.rows_like_data", "checked", tensors=len(tensors), where=where)
            return


def _not_finite(facts: Facts) -> Iterator[Finding]:
    assert facts.contents is not None
    if wrong := sum(not tensor.is_finite for tensor in facts.contents.tensors):
        yield _found("artifact.not_finite", "checked", tensors=wrong)


_OWN_METADATA: Final = frozenset({"stint", "releasable", "format"})


def _metadata(facts: Facts) -> Iterator[Finding]:
    assert facts.contents is not None
    if strange := len(set(facts.contents.metadata) - _OWN_METADATA):
        yield _found("artifact.metadata", "checked", keys=strange)


def _declared_public(facts: Facts) -> Iterator[Finding]:
    assert facts.contents is not None
    said = [tensor for tensor in facts.contents.tensors if _is_said_public(facts, tensor)]
    if public := sum(tensor.digest not in facts.public_digests for tensor in said):
        yield _found("artifact.declared_public", "attested", tensors=public)


def _found(code: str, basis: Basis, **evidence: Any) -> Finding:
    return RULES[code].found(basis, **evidence) if evidence else _plainly(code, basis)


@lru_cache(maxsize=256)
def _plainly(code: str, basis: Basis) -> Finding:
    """What is found a thousand times a second is made once."""
    return RULES[code].found(basis)


# ---------------------------------------------------------------- the list

Applies: TypeAlias = Callable[[Facts], bool]
Find: TypeAlias = Callable[[Facts], Iterator[Finding]]


class Check(NamedTuple):
    """A rule, whether there is anything to look at, and what is found."""

    code: str
    applies: Applies
    find: Find


def _always(_facts: Facts) -> bool:
    return True


def _theirs(facts: Facts) -> bool:
    """What a pipeline alone knows. Of a run by our own worker it is our own program, which was tested."""
    return not facts.is_ours


def _their_classifier(facts: Facts) -> bool:
    return _theirs(facts) and _is_classifier(facts)


def _ledger(facts: Facts) -> bool:
    return facts.statuses is not None


def _file(facts: Facts) -> bool:
    return facts.contents is not None


CHECKS: Final[tuple[Check, ...]] = (
    Check("label_space.from_data", _is_classifier, _labels_from_data),
    Check("label_space.undeclared", _is_classifier, _labels_undeclared),
    Check("label_space.unreleased", _names_label_release, _labels_unreleased),
    Check("label_space.unknown_release", _names_label_release, _labels_of_nobody),
    Check("label_space.mismatch", _knows_label_set, _labels_mismatch),
    Check("label_space.unchecked", _promises_labels, _labels_unchecked),
    Check("label_space.contradicted", _denies_labels, _labels_contradicted),
    Check("artifact.labels", _knows_labels, _artifact_labels),
    Check("artifact.head_width", lambda facts: _knows_outputs(facts) and bool(_answering(facts)), _artifact_head),
    Check("artifact.head_missing", _names_head, _head_missing),
    Check("artifact.head_unknown", _needs_head, _head_unknown),
    Check("empty_task.no_classifier", _is_classifier, _empty_task),
    Check("empty_task.undeclared", _their_classifier, _unsaid("empty_task", "empty_task.undeclared")),
    Check("state.raw", _always, _said("state", "raw", "state.raw")),
    Check(
        "state.uncharged",
        lambda facts: facts.mechanism is not None and facts.mechanism.price is not None,
        _memory_uncharged,
    ),
    Check("state.undeclared", _theirs, _unsaid("state", "state.undeclared")),
    Check("tuning.private", _always, _said("tuning", "private", "tuning.private")),
    Check("tuning.uncharged", _ledger, _uncharged("tuning", "tuning.uncharged")),
    Check("tuning.undeclared", _always, _unsaid("tuning", "tuning.undeclared")),
    Check("preprocessing.private", _always, _preprocessing_private),
    Check("preprocessing.uncharged", _ledger, _uncharged("preprocessing", "preprocessing.uncharged")),
    Check("preprocessing.undeclared", _theirs, _preprocessing_undeclared),
    Check("pretraining.private", _always, _said("pretraining", "private", "pretraining.private")),
    Check("pretraining.uncharged", _ledger, _uncharged("pretraining", "pretraining.uncharged")),
    Check("pretraining.unknown_release", _ledger, _pretraining_of_nobody),
    Check("pretraining.undeclared", _theirs, _unsaid("pretraining", "pretraining.undeclared")),
    Check("metrics.private", _always, _said("evaluation", "private", "metrics.private")),
    Check("metrics.uncharged", _ledger, _uncharged("evaluation", "metrics.uncharged")),
    Check("metrics.undeclared", lambda facts: _theirs(facts) or facts.metrics, _metrics_undeclared),
    Check("statement.unknown", _always, _statement_unknown),
    Check("statement.incomplete", _always, _incomplete),
    Check(
        "mechanism.proof_status",
        lambda facts: facts.mechanism is not None and facts.accepts is not None,
        _proof_status,
    ),
    Check("mechanism.misspelt", _theirs, _mechanism_misspelt),
    Check("mechanism.unknown", _theirs, _mechanism_unknown),
    Check("charges.missing", _theirs, _charges_missing),
    Check(
        "charges.too_low",
        lambda facts: facts.mechanism is not None and facts.mechanism.price is not None and bool(facts.charged),
        _charges_too_low,
    ),
    Check("sampling.not_poisson", _counts_on_poisson, _not_poisson),
    Check(
        "sampling.undeclared",
        lambda facts: _theirs(facts) and _counts_on_poisson(facts),
        _unsaid("sampling", "sampling.undeclared"),
    ),
    Check("noise.repeatable", _always, _repeatable),
    Check("noise.repeated", lambda facts: _is_open(facts) and bool(facts.earlier), _repeated),
    Check("noise.shared", _declares_noise, _shared),
    Check("population.adjacency", lambda facts: facts.adjacency is not None or facts.mechanism is not None, _adjacency),
    Check("population.unit", lambda facts: facts.unit is not None and facts.population.unit is not None, _unit),
    Check(
        "population.delta",
        lambda facts: facts.population.delta is not None and facts.population.datapoints is not None,
        _delta,
    ),
    Check("tasks.overlap", lambda facts: _claims_parallel(facts) and facts.overlapping is not None, _overlap),
    Check("tasks.unknown", _ledger, _tasks_unknown),
    Check("tasks.unchecked", _claims_parallel, _overlap_unchecked),
    Check("artifact.unopened", _always, _unopened),
    Check("artifact.pickle", _file, _pickle),
    Check("artifact.format", _file, _format),
    Check("artifact.unreadable", _file, _unreadable),
    Check("artifact.digest", lambda facts: _file(facts) and bool(facts.digests), _digest),
    Check("artifact.batch_norm", _is_open, _batch_norm),
    Check("artifact.optimizer_state", _is_open, _optimizer),
    Check("artifact.example_counts", _is_open, _example_counts),
    Check("artifact.training_data", _is_open, _training_data),
    Check("artifact.rows_like_data", _is_open, _rows_like_data),
    Check("artifact.not_finite", _is_open, _not_finite),
    Check("artifact.metadata", _is_open, _metadata),
    Check("artifact.declared_public", _is_open, _declared_public),
)

_BY_CODE: Final[Mapping[str, Check]] = MappingProxyType({check.code: check for check in CHECKS})

#: What can be said of a proposal, before there is any artifact.
AT_PROPOSAL: Final[tuple[str, ...]] = (
    "label_space.from_data",
    "label_space.undeclared",
    "label_space.unreleased",
    "label_space.unknown_release",
    "empty_task.no_classifier",
    "state.raw",
    "state.undeclared",
    "tuning.private",
    "tuning.uncharged",
    "tuning.undeclared",
    "preprocessing.private",
    "preprocessing.uncharged",
    "pretraining.private",
    "pretraining.uncharged",
    "pretraining.unknown_release",
    "pretraining.undeclared",
    "metrics.private",
    "metrics.uncharged",
    "statement.unknown",
    "statement.incomplete",
    "mechanism.proof_status",
    "sampling.not_poisson",
    "sampling.undeclared",
    "noise.repeatable",
    "population.adjacency",
    "population.unit",
    "population.delta",
    "tasks.overlap",
    "tasks.unchecked",
)
