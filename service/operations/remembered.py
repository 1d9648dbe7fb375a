"""What was computed of a book, kept as long as nothing is added to its ledger.

A head's hash stands for everything before it, so what depends on the book alone is true as long as the hash is the
same. A new entry is a new hash, and what was kept of the old one is pushed out in time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from accountant.book import Book

Found = TypeVar("Found")
MOST: Final = 256


class Remembered(Generic[Found]):
    """Answers to one kind of question, the newest of them. What is given out is shared: nobody changes it."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._lock = Lock()
        self._kept: OrderedDict[tuple[bytes, Hashable], Found] = OrderedDict()

    def known(self, head: bytes, question: Hashable) -> Found | None:
        """What was found of the book with this head, if it is kept: whoever knows the head needs not open the book."""
        key = (head, question)
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def of(self, book: Book, question: Hashable, find: Callable[[], Found]) -> Found:
        """What was found before of this very book, or what is found now."""
        head = book.chain.link.hash
        known = self.known(head, question)
        if known is not None:
            return known
        found = find()
        with self._lock:
            self._kept[head, question] = found
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
        return found
