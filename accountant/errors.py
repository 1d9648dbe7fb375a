"""What can go wrong in the accountant, and nothing about how it is shown.

    AccountantError
    ├── InvalidInput (also a ValueError)    an argument is not what it must be
    │   └── InvalidDocument                 a document is not an event, or not in canonical form
    ├── BrokenChain                         a stored entry does not follow from the one before
    ├── BrokenProof                         a Merkle proof does not show what it should
    ├── Refused                             a signed statement, or what it says, cannot be relied on
    ├── Unattainable                        no parameter of the asked kind fits
    └── UnknownRelease (also a LookupError) no open hold has this name

A denial is not an error: `accountant.ledger.propose` returns it as a decision with its reasons.
"""

from __future__ import annotations

from reprlib import Repr
from typing import Literal, TypeAlias

# A message repeats the offending value, but never at a length or depth that the value chooses.
_shortened = Repr()
_shortened.maxstring = _shortened.maxother = 60
_MAX_DIGITS = 60
_MAX_NAME = 300


class AccountantError(Exception):
    """Base of every error that the accountant raises on purpose."""


class InvalidInput(AccountantError, ValueError):
    """`argument` was given `value`, but must be `expected`."""

    def __init__(self, argument: str, value: object, expected: str) -> None:
        self.argument, self.value, self.expected = argument, value, expected
        name = argument if len(argument) <= _MAX_NAME else argument[: _MAX_NAME - 1] + "…"
        super().__init__(f"{name}: expected {expected}, got {_shown(value)}")


class InvalidDocument(InvalidInput):
    """A document cannot be read as what it should be, or has no canonical form; `argument` is the path to the fault."""


Fault: TypeAlias = Literal["number", "previous", "body", "hash", "head", "end"]


class BrokenChain(AccountantError):
    """Entry `number` is not the one that belongs there; `fault` says in what.

    `number`: another number stands there. `previous`: it names another hash before it. `body`: its body is not in
    canonical form. `hash`: its hash is not that of its content. `head`: a checkpoint saw another hash or root there.
    `end`: a checkpoint saw this entry, but the log ends before it.
    """

    def __init__(self, number: int, fault: Fault, shown: str) -> None:
        self.number, self.fault = number, fault
        super().__init__(
            f"entry {number} breaks the chain: {shown}. The log agrees with itself before it; compare this entry and "
            f"the one before with an export or a backup, and append nothing until the log is mended"
        )


class BrokenProof(AccountantError):
    """A Merkle proof or a set of heads does not lead to the root; the message says where it fails."""

    def __init__(self, shown: str) -> None:
        super().__init__(f"the proof fails: {shown}. Ask for it again, and if it fails again, do not trust the log")


class Refused(AccountantError):
    """A signed statement, or what it says, is refused; `code` is stable, `message` says what was found."""

    def __init__(self, code: str, message: str) -> None:
        self.code, self.message = code, message
        super().__init__(f"{code}: {message}")


class Unattainable(AccountantError):
    """What was asked for cannot be had with any parameter; the message says of what."""


class UnknownRelease(AccountantError, LookupError):
    """The release has no open hold: it was never held, or it is already committed, voided or expired."""

    def __init__(self, release: str) -> None:
        self.release = release
        super().__init__(f"release {_shown(release)} has no open hold")


def _shown(value: object) -> str:
    if isinstance(value, int) and abs(value) >= 10**_MAX_DIGITS:
        return f"an integer of {value.bit_length()} bits"
    try:
        return _shortened.repr(value)
    except ValueError:  # Python refuses to print an integer inside
        return f"a {type(value).__name__}"
