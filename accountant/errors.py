"""What can go wrong in the accountant, and nothing about how it is shown.

    AccountantError
    ├── InvalidInput (also a ValueError)    an argument is not what it must be
    │   └── InvalidDocument                 a wire document is not an event
    ├── Unattainable                        no parameter of the asked kind fits
    └── UnknownRelease (also a LookupError) no open hold has this name

A denial is not an error: `accountant.ledger.propose` returns it as a decision with its reasons.
"""

from __future__ import annotations

from reprlib import Repr

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
    """A wire document does not describe an event; `argument` is the path to the offending field."""


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
