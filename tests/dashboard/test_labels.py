"""Which labels a task told, was trained on, remapped or knew before; and that no count of what was dropped is told."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.dashboard.house import WARD, House

if TYPE_CHECKING:
    from tests.dashboard.browser import Sight

pytestmark = pytest.mark.slow
TASK = f"/populations/{WARD}/task?name=diagnoses"


@pytest.fixture(scope="module")
def told(house: House) -> dict[str, dict[str, Any]]:
    opened = {"Authorization": f"Bearer {house.key}"}
    found = httpx.get(house.url + TASK.replace("?", ".json?"), headers=opened).json()["labels"]
    names = {release: name for name, release in house.labels.items()}
    return {names[each["release"]]: each for each in found}


def test_labels_come_from_where_they_were_told(told: dict[str, dict[str, Any]], house: House) -> None:
    assert {name: (each["source"], each["labels"]) for name, each in told.items()} == {
        "told": ("told", ["0", "1"]),
        "released": ("released", ["0", "1"]),
        "prior": ("prior", ["0", "1", "other"]),
        "declared": ("prior", ["healthy", "ill"]),
    }
    assert told["released"]["origin"] == house.labels["told"]


def test_rules_are_those_of_the_recipe_or_of_the_pipelines_word(told: dict[str, dict[str, Any]]) -> None:
    rules = {name: (each["remapped"], each["dropped"], each["otherwise"]) for name, each in told.items()}
    assert rules == {
        "told": ([], [], None),
        "released": ([{"from": "2", "to": "1"}], ["unknown"], None),
        "prior": ([], [], "other"),
        "declared": ([{"from": "flu", "to": "ill"}], ["a typo"], "healthy"),
    }


def test_no_count_of_what_was_dropped_is_told(told: dict[str, dict[str, Any]], house: House) -> None:
    """All that is told of labels is names and rules; the only numbers are how many labels and rules there are."""

    def numbers(value: Any) -> list[Any]:
        if isinstance(value, dict):
            return [
                found
                for name, each in value.items()
                if name not in {"labels_in_all", "further_rules"}
                for found in numbers(each)
            ]
        if isinstance(value, list):
            return [found for each in value for found in numbers(each)]
        return [value] if isinstance(value, int | float) else []

    assert numbers(list(told.values())) == []
    assert [each["labels_in_all"] for each in told.values()] == [len(each["labels"]) for each in told.values()]
    opened = {"Authorization": f"Bearer {house.key}"}
    for release in house.labels.values():
        for path in (f"/releases/{release}.json", f"/v1/releases/{release}"):
            shown = httpx.get(house.url + path, headers=opened).json()
            assert not re.search(r'"[^"]*(drop|discard|kept|skipped)[^"]*": *\d', json.dumps(shown)), path


def test_what_is_said_of_labels_can_be_read(sights: dict[str, Sight]) -> None:
    for sight in sights.values():
        page = sight.open(TASK)
        sight.photograph("task-labels")
        words = page.locator("section[aria-labelledby=labels]").inner_text()
        assert "released 2 labels" in words
        assert "took 3 labels from a prior" in words
        assert "A label that is named neither here nor in a rule is read as other" in words
        assert "1 label is read as another, 1 is dropped" in words
        assert "Records with any other label are dropped." in words
        if sight.name == "scriptless":
            continue
        page.locator("section[aria-labelledby=labels] summary").evaluate_all("all => all.forEach(each => each.click())")
        assert "2 is read as 1" in page.locator("section[aria-labelledby=labels]").inner_text()
        assert "records with unknown are dropped" in page.locator("section[aria-labelledby=labels]").inner_text()
        sight.photograph("task-labels-open")
        sight.is_accessible()
        sight.is_content()
