"""Colours can be told apart and read, and are written once."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from service import printed
from service.dashboard import palette

STATIC = Path(palette.__file__).parent / "static"
PRINTED = Path(printed.__file__).parent / "templates" / "style.css"
THEMES = {"light": palette.LIGHT, "dark": palette.DARK, "print": palette.PRINT}


def test_contrast_is_that_of_the_standard() -> None:
    assert palette.contrast("#000000", "#ffffff") == pytest.approx(21)
    assert palette.contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.005)  # known to fail, by a little
    assert (
        palette.contrast("#0000ff", "#ffffff")
        == palette.contrast("#ffffff", "#0000ff")
        == pytest.approx(8.59, abs=0.005)
    )


@pytest.mark.parametrize("theme", THEMES)
def test_text_can_be_read(theme: str) -> None:
    found = {pair: palette.contrast(*(THEMES[theme][name] for name in pair)) for pair in palette.TEXT}
    assert {pair: ratio for pair, ratio in found.items() if ratio < 4.5} == {}


@pytest.mark.parametrize("theme", THEMES)
def test_marks_can_be_seen(theme: str) -> None:
    found = {pair: palette.contrast(*(THEMES[theme][name] for name in pair)) for pair in palette.GRAPHICS}
    assert {pair: ratio for pair, ratio in found.items() if ratio < 3} == {}


def test_every_theme_has_every_colour() -> None:
    assert list(palette.LIGHT) == list(palette.DARK) == list(palette.PRINT)
    assert all(re.fullmatch("#[0-9a-f]{6}", colour) for theme in THEMES.values() for colour in theme.values())


def test_the_style_sheet_is_the_palette() -> None:
    assert (STATIC / "palette.css").read_text(encoding="utf-8") == palette.css()


def test_no_other_style_sheet_has_colours_of_its_own() -> None:
    named = re.compile(r"#[0-9a-fA-F]{3,8}\b|\b(?:rgb|hsl|oklch)a?\(|:\s*(?:white|black|red|green|blue|gr[ae]y)\b")
    for sheet in STATIC.glob("*.css"):
        if sheet.name != "palette.css":
            assert named.findall(sheet.read_text(encoding="utf-8")) == [], sheet.name


def test_style_sheets_use_only_colours_that_exist() -> None:
    for sheet in STATIC.glob("*.css"):
        text = sheet.read_text(encoding="utf-8")
        own = set(re.findall(r"(--[a-z-]+)\s*:", text))
        used = set(re.findall(r"var\((--[a-z-]+)", text))
        assert used - own <= {f"--{name}" for name in palette.LIGHT}, sheet.name


def test_documents_have_few_colours_that_can_be_read_on_every_ground() -> None:
    """They stand alone, so their colours are inside: once for light, once for dark, once for paper, and no others."""
    text = PRINTED.read_text(encoding="utf-8")
    themes = [dict(re.findall(r"--([a-z]+): (#[0-9a-f]{6});", rule)) for rule in re.findall(r":root {([^}]*)}", text)]
    assert len(themes) == 3
    assert {frozenset(theme) for theme in themes} == {frozenset({"ink", "paper", "line", "quiet", "band"})}
    assert not re.search(r"#[0-9a-fA-F]{3,8}\b|(?:rgb|hsl)a?\(", re.sub(r":root {[^}]*}", "", text))
    for theme in themes:
        for pair, least in [
            (pair, least)
            for pairs, least in ((palette.TEXT, 4.5), (palette.GRAPHICS, 3))
            for pair in pairs
            if set(pair) <= set(theme)
        ]:
            assert palette.contrast(*(theme[name] for name in pair)) >= least, (pair, theme)
