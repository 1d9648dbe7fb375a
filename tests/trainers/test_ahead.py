"""Work done ahead is the same work: in order, no more of it at a time than was asked for, and its failures are told."""

from collections.abc import Iterator

import pytest

from trainers.ahead import ahead


@pytest.fixture(params=[1, 1000], ids=["no core to spare", "cores to spare"], autouse=True)
def _cores(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainers.ahead.cores", lambda: request.param)


@pytest.mark.parametrize("count", [0, 1, 3, 50])
def test_items_come_in_order_and_at_most_so_many_exist(count: int) -> None:
    made, done = [], 0

    def squares() -> Iterator[int]:
        for number in range(1, count + 1):
            made.append(number)
            yield number * number

    with ahead(squares(), together=3) as items:
        for number, item in enumerate(items, start=1):
            assert item == number * number
            done += 1
            assert len(made) < number + 2 * 3
    assert done == count == len(made)


def test_what_goes_wrong_is_raised_where_it_is_asked_for() -> None:
    with ahead((6 // number for number in (3, 2, 0, 1)), together=1) as items:
        assert [next(items), next(items)] == [2, 3]
        with pytest.raises(ZeroDivisionError):
            next(items)


def test_what_nobody_asks_for_is_left_undone() -> None:
    made: list[int] = []
    with ahead((made.append(number) or number for number in range(1, 1000)), together=3) as items:  # type: ignore[func-returns-value]
        next(items)
    assert len(made) <= 4
