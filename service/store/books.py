"""Books in memory, brought up to date from the log whenever they are opened.

The log in PostgreSQL is the truth; a book is what its entries lead to. Whoever opens a book holds its lock, so nobody
sees a decision before it is committed, and other processes' entries are read before anything is answered.
"""

from __future__ import annotations

import gc
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from sqlalchemy import Connection, text

from accountant.book import Book
from service.errors import NotFound

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from service.store.database import Database

_HEAD = text("SELECT id, number, hash FROM population WHERE name = :name")
_ENTRIES = text(
    "SELECT body FROM entry WHERE population_id = :id AND number > :after AND number <= :upto "
    "ORDER BY number LIMIT 1000"
)
_MANY_ENTRIES: Final = 1000
#: Locks populations for a decision, always in the same order.
LOCK: Final = "SELECT id, name, number, hash FROM population WHERE name = ANY(%(names)s) ORDER BY id FOR UPDATE"


class Slot:
    """Where a population's book is kept."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lock = threading.RLock()
        self.id = 0
        self.book: Book | None = None

    def catch_up(self, connection: Connection, number: int, head: bytes) -> Book:
        """The book as it is after entry `number`, which has the hash `head`; one of another log is read anew."""
        book, self.book = self.book, None  # should an entry fail, the next look starts from nothing
        if book is not None and (book.number > number or (book.number == number and book.chain.link.hash != head)):
            book = None  # the database was restored under us
        begun = 0 if book is None else book.number
        while book is None or book.number < number:
            after = 0 if book is None else book.number
            bodies = connection.execute(_ENTRIES, {"id": self.id, "after": after, "upto": number}).scalars().all()
            assert bodies, "a head without its entries"
            for body in bodies:
                if book is None:
                    book = Book.of(bytes(body))
                else:
                    book.apply(bytes(body))
        assert (book.number, book.chain.link.hash) == (number, head), "the log does not lead to its head"
        self.book = book
        if book.number - begun >= _MANY_ENTRIES:
            # A book stays, and nothing in it refers to itself: to look through it for garbage again and again would
            # hold everybody up, for a fifth of a second after 5,000 releases.
            gc.collect()  # what is garbage already is not to stay
            gc.freeze()
        return book


class Books:
    """All books of this process."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._slots: dict[str, Slot] = {}
        self._lock = threading.Lock()

    def slot(self, name: str) -> Slot:
        """The place of a population's book, whether or not there is such a population."""
        with self._lock:
            return self._slots.setdefault(name, Slot(name))

    def forget(self, name: str) -> None:
        """Give up the place of a population that turned out not to exist."""
        with self._lock:
            self._slots.pop(name, None)

    @contextmanager
    def read(self, name: str) -> Iterator[Book]:
        """The book as it is now; nothing may change it inside the block.

        The connection goes back before the block begins: a reader that held one and waited for a second could wait for
        another reader that does the same.
        """
        slot = self.slot(name)
        with slot.lock:  # before the connection, in the order of the writers
            with self._database.transaction() as connection:
                row = connection.execute(_HEAD, {"name": name}).one_or_none()
                if row is None:
                    self.forget(name)
                    raise NotFound("population", name)
                slot.id = row.id
                book = slot.catch_up(connection, row.number, bytes(row.hash))
            yield book


def opened(
    connection: Connection, slots: Sequence[Slot], rows: Iterable[tuple[int, str, int, bytes]]
) -> dict[str, Book]:
    """The books of populations that `LOCK` has locked and answered with these rows, brought up to date."""
    by_name = {slot.name: slot for slot in slots}
    books: dict[str, Book] = {}
    for identity, name, number, head in rows:
        slot = by_name[name]
        slot.id = identity
        books[name] = slot.catch_up(connection, number, bytes(head))
    return books
