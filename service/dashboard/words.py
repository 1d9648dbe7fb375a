"""How values are written on pages: numbers with a direction, times, counts, and states as words with an icon."""

from __future__ import annotations

import math
import re
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from markupsafe import Markup, escape

from accountant.audit.findings import RULES
from accountant.audit.verdicts import weakened
from service.printed import down, moment, sign, up

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Every state that a page shows: its word, its tone (a colour, never alone) and its icon.
STATES: Final[dict[str, tuple[str, str, str]]] = {
    # releases
    "held": ("held", "warn", "clock"),
    "committed": ("committed", "good", "check"),
    "denied": ("denied", "bad", "cross"),
    "voided": ("voided", "plain", "dash"),
    "expired": ("expired into spent", "warn", "clock"),
    "admitted": ("admitted", "good", "check"),
    # populations
    "open": ("open", "good", "check"),
    "frozen": ("frozen", "warn", "pause"),
    "closed": ("closed", "plain", "dash"),
    # findings
    "error": ("error", "bad", "cross"),
    "warning": ("warning", "warn", "bang"),
    "note": ("note", "plain", "dash"),
    # audits
    "consistent": ("consistent", "good", "check"),
    "violation": ("violation", "bad", "cross"),
    "inconclusive": ("inconclusive", "warn", "bang"),
    # mechanisms
    "proved": ("proved", "good", "check"),
    "claimed": ("claimed", "warn", "bang"),
    "refuted": ("refuted", "bad", "cross"),
    # jobs, and audits under way
    "planned": ("planned", "plain", "clock"),
    "queued": ("queued", "plain", "clock"),
    "running": ("running", "warn", "clock"),
    "failed": ("failed", "bad", "cross"),
    "cancelled": ("cancelled", "plain", "dash"),
    "concluded": ("concluded", "good", "check"),
    "abandoned": ("abandoned", "plain", "dash"),
    # promises and ledgers
    "inside": ("inside", "good", "check"),
    "empty": ("empty", "plain", "dash"),
    "in doubt": ("in doubt", "bad", "bang"),
    "low": ("running low", "warn", "bang"),
    "exhausted": ("exhausted", "bad", "cross"),
    "hollow": ("promises practically nothing", "warn", "bang"),
    "verified": ("verified", "good", "check"),
    "not verified": ("not verified yet", "warn", "bang"),
    "broken": ("does not verify", "bad", "cross"),
    "genuine": ("genuine", "good", "check"),
    "not genuine": ("not genuine", "bad", "cross"),
    # keys
    "valid": ("valid", "good", "check"),
    "revoked": ("revoked", "plain", "dash"),
}

_ICONS: Final[dict[str, str]] = {
    "check": '<path d="M3.5 8.5l3 3 6-7"/>',
    "cross": '<path d="M4 4l8 8M12 4l-8 8"/>',
    "dash": '<path d="M3.5 8h9"/>',
    "clock": '<circle cx="8" cy="8" r="6"/><path d="M8 4.5V8l2.5 2"/>',
    "bang": '<path d="M8 2.5v7M8 12.4v.6"/>',
    "pause": '<path d="M5.5 3.5v9M10.5 3.5v9"/>',
}


def icon(name: str) -> Markup:
    """A small drawing beside a word; for readers of the word alone it is not there."""
    drawing = Markup(_ICONS[name])  # noqa: S704 - a literal of this file
    return Markup('<svg class="icon" viewBox="0 0 16 16" aria-hidden="true" focusable="false">{}</svg>').format(drawing)


def state(name: str, *, word: str | None = None) -> Markup:
    """A state as word, icon and colour. One that this version does not know is shown as the word that it is."""
    words, tone, drawing = STATES.get(name, (name, "plain", "dash"))
    return Markup('<span class="state {}">{} {}</span>').format(tone, icon(drawing), word or words)


def count(value: int | None) -> str:
    """A number of things."""
    return "–" if value is None else f"{value:,}"


def plural(value: int, one: str, many: str | None = None) -> str:
    """So many of something.

    >>> plural(1, "release"), plural(1200, "release"), plural(0, "entry", "entries")
    ('1 release', '1,200 releases', '0 entries')
    """
    return f"{value:,} {one if value == 1 else many or one + 's'}"


def used_up(tasks: int, where: str = "") -> str:
    """That so many tasks have a budget of their own of which nothing is available to somebody.

    >>> used_up(1)
    '1 task has nothing left in its own budget for some members: no release of it that touches them is admitted.'
    >>> used_up(2, " of clinic-a").partition(":")[0]
    '2 tasks of clinic-a have nothing left in their own budget for some members'
    """
    has, its, it = ("has", "its", "it") if tasks == 1 else ("have", "their", "them")
    found = f"{plural(tasks, 'task')}{where} {has} nothing left in {its} own budget for some members"
    return f"{found}: no release of {it} that touches them is admitted."


def nth(number: int) -> str:
    """A place in an order.

    >>> nth(1), nth(12), nth(22), nth(1003)
    ('1st', '12th', '22nd', '1,003rd')
    """
    teen = number % 100 in {11, 12, 13}
    return f"{number:,}{'th' if teen else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"


def when(text: str | None) -> Markup:
    """A time of the ledger, to the minute; machines and a pointer find all of it."""
    if text is None:
        return Markup("–")
    return Markup('<time datetime="{}">{}</time>').format(text, f"{text[:10]} {text[11:16]}")


def since(text: str, now: datetime) -> str:
    """How long ago, or how far ahead, roughly and in words.

    >>> since("2026-01-02T00:00:00Z", datetime.fromisoformat("2026-01-04T00:00:00Z"))
    '2 days ago'
    >>> since("2026-01-04T06:00:00Z", datetime.fromisoformat("2026-01-04T00:00:00Z"))
    'in 6 hours'

    What is ahead is not cut to the hour or the day below: somebody may wait for it.

    >>> since("2026-01-04T01:59:00Z", datetime.fromisoformat("2026-01-04T00:00:00Z"))
    'in 1 hour 59 minutes'
    >>> since("2026-02-08T01:00:00Z", datetime.fromisoformat("2026-01-04T00:00:00Z"))
    'in 35 days'
    """
    seconds = (now - datetime.fromisoformat(text)).total_seconds()
    size, unit = next(((length, name) for length, name in _LENGTHS if abs(seconds) >= length), (1.0, "second"))
    if unit == "month" and -90 * 86_400 < seconds < 0:
        return f"in {plural(int(-seconds // 86_400), 'day')}"
    amount = plural(int(abs(seconds) // size), unit)
    if seconds >= 0:
        return f"{amount} ago"
    if unit in _FINER:
        length, finer = _FINER[unit]
        rest = int(-seconds % size // length)
        return f"in {amount} {plural(rest, finer)}" if rest else f"in {amount}"
    return f"in {plural(round(-seconds / size), unit)}" if unit in {"year", "month"} else f"in {amount}"


_LENGTHS: Final = (
    (365.25 * 86_400, "year"),
    (30.44 * 86_400, "month"),
    (86_400, "day"),
    (3600, "hour"),
    (60, "minute"),
)
_FINER: Final = {"day": (3600, "hour"), "hour": (60, "minute")}


def duration(seconds: float) -> str:
    """How long something takes at most, in seconds, minutes or hours.

    >>> duration(5), duration(3600), duration(86_400)
    ('5 seconds', '60 minutes', '24 hours')
    """
    if seconds < 120:
        return plural(math.ceil(seconds), "second")
    return plural(math.ceil(seconds / 60), "minute") if seconds < 7200 else plural(math.ceil(seconds / 3600), "hour")


def expiring(text: str, now: datetime, *, exactly: bool = False) -> Markup:
    """When a hold ends, perhaps with the time beside it; one that is overdue waits for the sweeper.

    >>> str(expiring("2026-01-04T06:00:00Z", datetime.fromisoformat("2026-01-04T00:00:00Z")))
    'expires in 6 hours'
    >>> str(expiring("2026-01-02T00:00:00Z", datetime.fromisoformat("2026-01-04T00:00:00Z")))
    'ran out 2 days ago; not counted as spent yet'
    """
    is_over = datetime.fromisoformat(text) <= now
    at = Markup(" ({} UTC)").format(when(text)) if exactly else Markup()
    if is_over:
        return Markup("ran out {}{}; not counted as spent yet").format(since(text, now), at)
    return Markup("expires {}{}").format(since(text, now), at)


def bound(proof_status: str) -> str:
    """Which bound an ε of a life is, which is as sure as what it rests on.

    >>> bound("proved"), bound("claimed")
    ('upper bound', 'claimed, no bound')
    """
    return "upper bound" if proof_status == "proved" else f"{proof_status}, no bound"


def risen(before: float | None, after: float | None) -> str:
    """What is added where a charge is too small to be seen between two readings that are written alike.

    >>> risen(1.2551, 1.2552), risen(1.2, 1.3), risen(0.12341, 0.12342), risen(1.0, 1.0)
    (' (higher by less than 0.01)', '', ' (higher by less than 0.001)', '')
    """
    if before is None or after is None or after <= before or up(before) != up(after):
        return ""
    return f" (higher by less than {10.0 ** (math.floor(math.log10(after)) - 2):.3g})"


def unbroken(text: str) -> Markup:
    """Sentences whose numbers are not broken at the end of a line: ε ≤ 2.5, ε 0.8, 5 %, 1e-06, 2026-01-02.

    >>> str(unbroken("at δ = 1e-06 & more"))
    'at <span class="joined">δ = 1e-06</span> &amp; more'
    """
    pieces = re.split(r"(<[^>]*>)", str(escape(text)))
    kept = (
        piece if place % 2 else _WHOLE.sub(r'<span class="joined">\g<0></span>', piece)
        for place, piece in enumerate(pieces)
    )
    return Markup("".join(kept))  # noqa: S704 - escaped above, and only spans are added


_WHOLE: Final = re.compile(r"[εδ] (?:[≤≥=] )?[\d∞][^\s,;)]*|\d[\d.,]* %|\b\d[\d.]*e-\d+|\b\d{4}-\d\d-\d\d\b")


def begun(sentence: str) -> str:
    """A sentence after words that begin it.

    >>> begun("An attacker can tell."), begun("ε is 1.")
    ('an attacker can tell.', 'ε is 1.')
    """
    return sentence[:1].lower() + sentence[1:]


def titled(finding: str) -> str:
    """What a finding is called; one that this version does not know is its code."""
    rule = RULES.get(finding)
    return finding if rule is None else rule.title


def adjacent(adjacency: str, unit: str) -> str:
    """Which two data sets are hard to tell apart, in words.

    >>> adjacent("add_remove", "user"), adjacent("replace_one", "record")
    ('with or without one user', 'one record replaced by another')
    """
    return f"with or without one {unit}" if adjacency == "add_remove" else f"one {unit} replaced by another"


def short(text: str, length: int = 12) -> Markup:
    """A digest or an id as long as a person reads it; all of it is there for a pointer and for copying."""
    if len(text) <= length:
        return code(text)
    return Markup('<code class="short" title="{}">{}…</code>').format(text, text[:length])


def who(actor: str, names: Mapping[str, str]) -> Markup:
    """Who did something: the name of the key, and beside it the end of its id, since names may be given twice.

    >>> str(who("sweeper", {}))
    '<code class="short">sweeper</code>'
    >>> str(who("key_01ABCDEF", {"key_01ABCDEF": "nightly"}))
    '<span class="short" title="nightly, key_01ABCDEF"><span class="name">nightly</span> <code>…ABCDEF</code></span>'
    """
    if actor not in names:
        return Markup('<code class="short">{}</code>').format(actor)
    return Markup('<span class="short" title="{}, {}"><span class="name">{}</span> <code>…{}</code></span>').format(
        names[actor], actor, names[actor], actor[-6:]
    )


def told(text: str, release: str | None) -> Markup:
    """The words of an entry, with its release and audits as links, and digests as long as a person reads them.

    >>> str(told("It was told: " + 64 * "a" + ".", None)).endswith(">aaaaaaaaaa…</code>")
    True
    >>> str(told("Audit aud_" + 26 * "0" + ": it is planned.", None)).startswith('Audit <a href="/audits/aud_000')
    True
    """
    pieces: list[Markup] = []
    is_cut = False
    for piece in _NAMED.split(text):
        if piece == release or _AUDIT.fullmatch(piece):
            place = "releases" if piece == release else "audits"
            pieces.append(Markup('<a href="/{}/{}">{}</a>').format(place, piece, short(piece, 14)))
            is_cut = True
        elif _DIGEST.fullmatch(piece):
            pieces.append(short(piece, 10))
            is_cut = True
        else:
            pieces.append(unbroken(piece.removeprefix(".") if is_cut else piece))  # "…" needs no full stop
            is_cut = False
    return Markup().join(pieces)


_AUDIT: Final = re.compile(r"aud_[0-9A-Z]{26}")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_NAMED: Final = re.compile(rf"(rel_[0-9A-Z]{{26}}|{_AUDIT.pattern}|\b{_DIGEST.pattern}\b)")


def code(text: object) -> Markup:
    """What is written as a machine writes it."""
    return Markup("<code>{}</code>").format(escape(text))


FILTERS: Final[dict[str, Any]] = {
    "up": up, "down": down, "moment": moment, "when": when, "since": since, "count": count, "plural": plural,
    "state": state, "icon": icon, "short": short, "code": code, "told": told,
    "who": who, "expiring": expiring, "duration": duration, "bound": bound, "sign": sign,
    "unbroken": unbroken, "begun": begun, "used_up": used_up, "titled": titled, "adjacent": adjacent,
    "weakened": weakened,
}  # fmt: skip
