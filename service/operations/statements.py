"""What has been released about one person, in sentences for that person. Nothing here changes or decides anything."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from accountant import book as ledger_book
from accountant import certificates
from accountant.audit.findings import RULES
from accountant.guarantees import Guarantee
from accountant.ledger import LIFELONG
from service.operations import readings
from service.operations.certificates import proof_status
from service.printed import down, moment, plain, sign, up
from trainers.catalog import CATALOG

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from accountant.book import Book, Release
    from accountant.guarantees import ProofStatus
    from accountant.histories import History

MOST_LISTED: Final = 1000
KINDS: Final[Mapping[str, str]] = {
    "weights": "the weights of a model",
    "labels": "a list of labels",
    "prototypes": "prototypes of labels",
    "window_model": "a model of a window of the stream",
    "other": "something else that was computed",
}
#: What became of a release, in words that need no ledger to be understood.
BECAME: Final[Mapping[str, str]] = {
    "committed": "it has left",
    "expired": "nobody said what became of it, so it counts as if it had left",
    "held": "it may still leave, and counts already",
    "voided": "nothing of it left, and it does not count",
}
_NO_FILE: Final = "it counts as if it had left, and no file of it is on record"
CONDITION: Final = (
    "Read as a promise of its own, that number would hold only if what was released had been planned beforehand; the "
    "promise for life holds either way."
)


def touching(book: Book, ordinal: int) -> list[Release]:
    """The releases that may have touched a datapoint, oldest first: all but those whom memory knows to pass it by."""
    found = []
    for release in book.releases.values():
        if release.status == "denied":
            continue
        if release.touched is None:
            found.append(release)
            continue
        for _, scope in release.touched:  # a loop: there are thousands of releases, with a part or two each
            if ordinal in scope:
                found.append(release)
                break
    return found


def touch_of(book: Book, document: Mapping[str, Any], ordinal: int) -> str | None:
    """By which charges of a release a datapoint was touched; None if by none, or if it was trimmed."""
    touched = book.releases[document["release"]].touched
    if touched is None:
        touched = tuple((part.touch.decode(), part.scope) for part in book.held_from(document).parts)
    return next((touch for touch, scope in touched if ordinal in scope), None)


def surety(book: Book, document: Mapping[str, Any]) -> ProofStatus:
    """How sure it is that a release costs what it was charged; a violation that an audit found refutes it."""
    mechanism = book.releases[document["release"]].mechanism
    return "refuted" if mechanism is not None and book.violations(mechanism) else proof_status(document)


def alone(book: Book, document: Mapping[str, Any], ordinal: int) -> float | None:
    """The ε of one release for one datapoint, as if there had been no other; None where no proof bounds it."""
    touch = touch_of(book, document, ordinal)
    if touch is None or surety(book, document) != "proved":
        return None
    return readings.rounded(book.promise.meter(ledger_book.spending_of(document, touch)[LIFELONG]))


def statement(
    book: Book,
    ordinal: int,
    bodies: Iterable[Mapping[str, Any]],
    *,
    at: str,
) -> dict[str, Any]:
    """The statement, as an answer and as sentences; `bound` says whether its readings are upper bounds."""
    listed = [found for body in bodies if (found := _released(book, body, ordinal)) is not None]
    promise = certificates.lifelong(
        promise=book.promise, unit=book.unit, adjacency=book.adjacency, accepted=[book.proof_status]
    )
    history = book.ledger.cohorts.history(ordinal)
    shown = readings.shown(readings.reading(book.policy.budget, history))
    return {
        "title": f"What has been released about {book.unit} {ordinal} of {book.name}",
        "population": book.name,
        "ordinal": ordinal,
        "erased": ordinal in book.erased,
        "at": at,
        "entry": {"number": book.number, "hash": book.chain.link.hash.hex()},
        "bound": readings.bound(book),
        "promise": promise.to_json() | {"text": certificates.told(promise.guarantee)},
        "epsilon": shown,
        "delta": book.policy.budget.delta,
        "tasks": [task.name for task in book.tasks.values() if ordinal in task.members],
        "releases": listed[-MOST_LISTED:],
        "releases_in_all": len(listed),
        "sections": [
            _about(book, ordinal, at),
            _promise(book, promise.guarantee, promise.condition),
            _list(book, listed),
            _so_far(book, shown, history, promise.guarantee),
            _limits(book),
        ],
    }


def _released(book: Book, document: Mapping[str, Any], ordinal: int) -> dict[str, Any] | None:
    touch = touch_of(book, document, ordinal)
    if touch is None:
        return None
    release = book.releases[document["release"]]
    status = surety(book, document)
    declared = document["declared"].get("mechanism")
    known = None if declared is None else CATALOG.get(declared["name"])
    return {
        "release": release.id,
        "kind": release.kind,
        "status": release.status,
        "at": release.at,
        "mechanism": None if declared is None else declared["name"],
        "title": None if known is None else known.title,
        "tasks": sorted(release.tasks),
        "proof_status": status,
        "epsilon_upper": alone(book, document, ordinal),
        "delta": book.promise.delta,
        "artifact": None if release.artifact is None else {"sha256": release.artifact["sha256"]},
        "findings": [code for code, severity in release.findings if severity == "error"],
    }


def _about(book: Book, ordinal: int, at: str) -> dict[str, Any]:
    who = "each person as a whole" if book.unit == "user" else "each single record"
    about = (
        f"This statement is about number {ordinal:,}, counted from 0 in the order of arrival, of the {book.size:,} in "
        f"the population {book.name}. What is protected here is {who}. This statement was read from the ledger on "
        f"{moment(at)}, at entry {book.number:,}."
    )
    paragraphs = [about]
    if ordinal in book.erased:
        paragraphs.append(
            "Its key was erased: it can no longer be found by name. What was released before cannot be taken back, and "
            "stays counted."
        )
    return {"title": "Whom this is about", "paragraphs": paragraphs, "lines": []}


def _promise(book: Book, guarantee: Guarantee, condition: str) -> dict[str, Any]:
    failure = "δ is the small chance that this does not hold"
    failure += f", about 1 in {round(1 / guarantee.delta):,}" if guarantee.delta else ", here none"
    promised = (
        f"For life, everything that is ever released about one {book.unit} of this population is to stay within "
        f"{guarantee.in_words()}, if {condition}. The smaller ε is, the less anybody can find out; {failure}."
    )
    violated = [
        f"An audit found that the promise does not hold: {audit.sentence} Nothing more is released by this mechanism, "
        "until whoever is responsible has said why it may be."
        for audit in book.violations()
    ]
    paragraphs = dict.fromkeys([guarantee.odds(), promised, *violated, guarantee.meaning()])  # the same if not proved
    return {"title": "What was promised", "paragraphs": list(paragraphs), "lines": []}


def _list(book: Book, listed: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    left = sum(each["status"] in {"committed", "expired"} for each in listed)
    held = sum(each["status"] == "held" for each in listed)
    voided = len(listed) - left - held
    if not listed:
        sentence = (
            f"Nothing that was computed from the data of this {book.unit} has been released, and nothing is planned."
        )
    else:
        became = [
            "1 has left, or counts as if it had"
            if left == 1
            else f"{_none_or(left)} have left, or count as if they had",
            f"{_none_or(held)} may still leave",
        ]
        if voided:
            it = "it" if voided == 1 else "them"
            became.append(f"{voided:,} {'does' if voided == 1 else 'do'} not count, since nothing of {it} left")
        sentence = (
            f"Data of this {book.unit} may have been used for {len(listed):,} "
            f"{'release' if len(listed) == 1 else 'releases'}: {'; '.join(became)}. Each was counted against the "
            f"budget of this {book.unit} when it was admitted."
        )
    paragraphs = [sentence]
    if len(listed) > MOST_LISTED:
        paragraphs.append(f"The newest {MOST_LISTED:,} of {len(listed):,} are listed.")
    return {
        "title": "What has been released",
        "paragraphs": paragraphs,
        "lines": [_sentence(each) for each in listed[-MOST_LISTED:]],
    }


def _none_or(number: int) -> str:
    return f"{number:,}" if number else "none"


def _sentence(each: Mapping[str, Any]) -> str:
    method = f"; method: {each['title'][0].lower()}{each['title'][1:]}" if each["title"] else ""
    named = f" for {', '.join(each['tasks'])}" if each["tasks"] else ""
    if each["proof_status"] == "proved":
        cost = (
            f" By itself it stays within ε ≤ {up(each['epsilon_upper'])} at δ = {plain(each['delta'])}, on the meter "
            "of the lifelong promise."
        )
    else:
        cost = f" How much it tells is not proved: its mechanism is {each['proof_status']}."
    if titles := [RULES[code].title if code in RULES else code for code in each["findings"]]:
        cost += f" It may tell more than it was charged for, since a check found: {'; '.join(titles)}."
    became = _NO_FILE if each["status"] == "committed" and each["artifact"] is None else BECAME[each["status"]]
    return (
        f"{moment(each['at'])}: {KINDS[each['kind']]}{named} (release {each['release']}{method}); "
        f"{became}.{'' if each['status'] == 'voided' else cost}"
    )


def _so_far(book: Book, shown: Mapping[str, Any], history: History, promise: Guarantee) -> dict[str, Any]:
    budget = book.policy.budget
    most = "at most " if promise.proof_status == "proved" else ""
    raised = (
        "Nothing that may still leave raises that."
        if shown["held"] == 0
        else f"Releases that may still leave would raise that by {most}{up(shown['held'])}."
    )
    meters = (
        f"Spent: ε {sign(promise.proof_status)} {up(shown['spent'])}. {raised} "
        f"Available: a single further release of at most ε = {down(shown['available'])} would be admitted. Budget: "
        f"ε = {plain(budget.epsilon)} at δ = {plain(budget.delta)}. These are readings of a meter, each rounded "
        "against us. Each answers a question of its own, so they need not add up."
    )
    paragraphs = [meters]
    if promise.proof_status != "proved":
        why = (
            "An audit has refuted a mechanism by which something was released."
            if book.violations()
            else "Policies of this population have accepted mechanisms that are not proved."
        )
        paragraphs.append(f"{why} The readings count what such mechanisms claim, and are no bound on what they tell.")
    elif (so_far := _behind(book, history)) is not None:
        what = "means" if shown["held"] == 0 else "and what may still leave, taken together, mean"
        paragraphs.append(f"As odds, what has been spent {what}: {so_far.meaning()} {CONDITION}")
    return {"title": "How much that is", "paragraphs": paragraphs, "lines": []}


def odds_so_far(book: Book, history: History) -> str | None:
    """What those with a history have behind them as odds, in a sentence, and on which condition; None if not proved.

    A reading is the smallest budget that would have admitted what happened. Nobody fixed that budget beforehand, so as
    a promise it holds on a condition, which is said with it.
    """
    so_far = _behind(book, history)
    return None if so_far is None else f"{so_far.odds()} {CONDITION}"


def _behind(book: Book, history: History) -> Guarantee | None:
    """Spent and held together, as an attacker may have seen it: what became of an open hold is not known, so it counts.

    None where that is not proved, or not finite.
    """
    budget = book.policy.budget
    epsilon = budget.meter(readings.standing(budget, history))
    if book.proof_status != "proved" or not math.isfinite(epsilon):
        return None
    return Guarantee(
        epsilon=epsilon, delta=budget.delta, unit=book.unit, adjacency=book.adjacency, proof_status="proved"
    )


def _limits(book: Book) -> dict[str, Any]:
    limits = (
        "It tells what was declared to this ledger. It cannot tell whether somebody used the data without asking, or "
        "did something else than was declared. The data themselves are not in the ledger, and nobody can read there "
        f"what they say about this {book.unit}."
    )
    return {"title": "What this statement does not show", "paragraphs": [limits], "lines": []}
