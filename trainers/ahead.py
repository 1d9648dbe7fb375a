"""Work that waits for nobody, done by another thread before it is asked for."""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

Item = TypeVar("Item")


def cores() -> int:
    """How many this process may use: in a container perhaps fewer than there are. Not every system tells."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def ahead(items: Iterator[Item], *, together: int) -> Iterator[Iterator[Item]]:
    """The same items in the same order; where torch leaves a core to spare, another thread makes them meanwhile.

    They are made so many `together`, the first alone, since somebody waits for it. At most twice as many exist at a
    time, the one that was handed out last among them: whoever asks for the next is done with it, so that as many places
    to keep them in are enough. What goes wrong in the making is raised where its group is asked for. It helps since
    torch, numpy and the cipher let go of Python's lock while they compute. To get it back from another thread takes
    some 20 µs, which is why groups are handed over and not items.
    """
    if torch.get_num_threads() >= cores():
        yield items
        return

    def made(count: int) -> list[Item]:
        return list(islice(items, count))

    with ThreadPoolExecutor(1, thread_name_prefix="ahead") as thread:
        coming = deque([thread.submit(made, 1), thread.submit(made, together)])

        def handed_out() -> Iterator[Item]:
            while group := coming.popleft().result():
                yield from group
                coming.append(thread.submit(made, together))

        try:
            yield handed_out()
        finally:
            for each in coming:
                each.cancel()
