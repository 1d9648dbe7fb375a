"""Work that waits for nobody, done by another thread before it is asked for."""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

Item = TypeVar("Item")


def cores() -> int:
    """How many this process may use: in a container perhaps fewer than there are. Not every system tells."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def ahead(items: Iterator[Item], *, most: int) -> Iterator[Iterator[Item]]:
    """The same items in the same order; where torch leaves a core to spare, another thread makes them meanwhile.

    At most `most` exist at a time, the one that was handed out last among them: whoever asks for the next is done with
    it, so that as many places to keep them in are enough. What goes wrong in the making is raised where it is asked
    for. It helps since torch, numpy and the cipher let go of Python's lock while they compute.
    """
    if torch.get_num_threads() >= cores():
        yield items
        return
    with ThreadPoolExecutor(1, thread_name_prefix="ahead") as thread:
        made = deque(thread.submit(next, items, None) for _ in range(most))

        def coming() -> Iterator[Item]:
            while (item := made.popleft().result()) is not None:
                yield item
                made.append(thread.submit(next, items, None))

        try:
            yield coming()
        finally:
            for each in made:
                each.cancel()
