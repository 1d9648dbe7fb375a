"""The colours of the pages, by what they mean, for light and dark; every pair that meets is listed and tested.

A style sheet uses the custom properties that `css()` yields and no colour of its own, so a colour is written once.
Colour never stands alone: what it says is said by a word and an icon or by a pattern as well.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

LIGHT: Final[Mapping[str, str]] = MappingProxyType({
    "paper": "#ffffff",  # what is written on
    "band": "#f2f4f7",  # heads of tables, cards, what is set apart
    "ink": "#17202a",
    "quiet": "#4c5864",  # what is said beside
    "line": "#75808b",  # borders of what can be used or must be seen
    "hair": "#d5dbe1",  # rules that only help the eye along
    "link": "#0b57a4",
    "focus": "#0b57a4",
    "button": "#0b57a4",
    "on-button": "#ffffff",
    "danger": "#a8202a",  # a button that cannot be undone
    "on-danger": "#ffffff",
    "spent": "#1d5c99",
    "held": "#9a5b00",
    "track": "#e3e8ed",  # the part of a bar that is neither
    "budget": "#17202a",
    "beyond": "#fbe9ea",  # where a measurement would disprove a promise
    "good": "#17663a",
    "on-good": "#e5f4eb",
    "warn": "#7f4d00",
    "on-warn": "#fdf1dc",
    "bad": "#a8202a",
    "on-bad": "#fbe9ea",
})  # fmt: skip

DARK: Final[Mapping[str, str]] = MappingProxyType({
    "paper": "#12171c",
    "band": "#1c232a",
    "ink": "#e8edf2",
    "quiet": "#b2bcc6",
    "line": "#7e8a96",
    "hair": "#333d47",
    "link": "#85bbf5",
    "focus": "#85bbf5",
    "button": "#85bbf5",
    "on-button": "#12171c",
    "danger": "#ff9a9a",
    "on-danger": "#12171c",
    "spent": "#6caef0",
    "held": "#e3a550",
    "track": "#2b353f",
    "budget": "#e8edf2",
    "beyond": "#3a1d20",
    "good": "#74d39c",
    "on-good": "#16301f",
    "warn": "#f0bb66",
    "on-warn": "#33270f",
    "bad": "#ff9a9a",
    "on-bad": "#3a1d20",
})  # fmt: skip

PRINT: Final[Mapping[str, str]] = MappingProxyType(
    dict(LIGHT) | {"ink": "#000000", "budget": "#000000", "quiet": "#333333", "line": "#555555", "link": "#000000"}
)

#: Text on what: WCAG 2 AA asks for 4.5.
TEXT: Final = (
    ("ink", "paper"), ("ink", "band"), ("ink", "track"), ("ink", "beyond"),
    ("ink", "on-good"), ("ink", "on-warn"), ("ink", "on-bad"),
    ("quiet", "paper"), ("quiet", "band"),
    ("link", "paper"), ("link", "band"), ("link", "on-good"), ("link", "on-warn"), ("link", "on-bad"),
    ("on-button", "button"), ("on-danger", "danger"),
    ("spent", "paper"), ("held", "paper"), ("budget", "paper"),
    ("spent", "band"), ("held", "band"), ("budget", "band"),
    ("good", "paper"), ("good", "band"), ("good", "on-good"),
    ("warn", "paper"), ("warn", "band"), ("warn", "on-warn"),
    ("bad", "paper"), ("bad", "band"), ("bad", "on-bad"), ("bad", "beyond"),
)  # fmt: skip

#: Marks and borders on what: WCAG 2 AA asks for 3.
GRAPHICS: Final = (
    ("line", "paper"), ("line", "band"),
    ("focus", "paper"), ("focus", "band"), ("button", "paper"), ("button", "band"), ("danger", "paper"),
    ("danger", "band"),
    ("spent", "track"), ("held", "track"), ("budget", "track"),
    ("spent", "beyond"), ("budget", "beyond"), ("bad", "beyond"),
)  # fmt: skip


def css() -> str:
    """The custom properties of all three, as a style sheet: light, dark where that is preferred, and paper."""
    return (
        "/* Written by service/dashboard/palette.py; a test compares them. */\n"
        f":root {{ color-scheme: light dark;{_properties(LIGHT)} }}\n"
        f"@media (prefers-color-scheme: dark) {{ :root {{{_properties(DARK)} }} }}\n"
        f"@media print {{ :root {{ color-scheme: light;{_properties(PRINT)} }} }}\n"
    )


def contrast(one: str, other: str) -> float:
    """The contrast ratio of two colours, by WCAG 2.2's definition: from 1 to 21.

    >>> contrast("#000000", "#ffffff")
    21.0
    """
    lighter, darker = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(colour: str) -> float:
    channels = (int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
    red, green, blue = (each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _properties(colours: Mapping[str, str]) -> str:
    return "".join(f" --{name}: {colour};" for name, colour in colours.items())
