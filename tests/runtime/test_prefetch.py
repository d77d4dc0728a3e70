"""Making one item ahead: the order of items, how many exist, and how it ends."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator

import pytest

from streamveil.runtime.grouping import Prefetch


class Item:
    """Something that can be seen to be gone."""


def test_at_most_two_items_exist() -> None:
    made: weakref.WeakSet[Item] = weakref.WeakSet()
    most = 0

    def items() -> Iterator[Item]:
        nonlocal most
        for _ in range(50):
            item = Item()
            made.add(item)
            most = max(most, len(made))
            yield item
            del item

    count = 0
    for item in Prefetch(items()):
        assert item in made
        del item
        count += 1
    assert count == 50
    assert most <= 2, "the one in use and the next"


def test_the_next_one_is_made_while_one_is_in_use() -> None:
    made = threading.Semaphore(0)

    def items() -> Iterator[int]:
        for number in range(10):
            made.release()
            yield number

    ahead = Prefetch(items())
    assert made.acquire(timeout=60)
    for number in ahead:
        assert number == 9 or made.acquire(timeout=60)


def test_the_next_but_one_is_made_once_one_is_done_and_not_before() -> None:
    made = threading.Semaphore(0)

    def items() -> Iterator[int]:
        for number in range(4):
            yield number
            made.release()  # the one after it is asked for

    ahead = Prefetch(items())
    assert next(ahead) == 0
    assert made.acquire(timeout=60)
    assert not made.acquire(timeout=0.2), "two are there: 0, in use, and 1"
    ahead.done()
    assert made.acquire(timeout=60), "2 is made while nobody has asked for 1"
    ahead.done()
    assert not made.acquire(timeout=0.2), "0 can be given back once"
    assert next(ahead) == 1
    assert not made.acquire(timeout=0.2), "taking 1 gives no further one: two are there"
    assert list(ahead) == [2, 3]


def test_an_exception_comes_where_its_item_would_have_been() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise KeyError("2")

    ahead = Prefetch(items())
    assert next(ahead) == 1
    with pytest.raises(KeyError):
        next(ahead)
    assert list(ahead) == []


@pytest.mark.parametrize("taken", [0, 1, 2])
def test_closing_waits_for_no_source_and_ends_it_at_its_next_item(taken: int) -> None:
    go_on, closed = threading.Event(), threading.Event()

    def items() -> Iterator[int]:
        try:
            for number in range(100):
                if number == 2:
                    assert go_on.wait(60)
                yield number
        finally:
            closed.set()

    ahead = Prefetch(items())
    assert [next(ahead) for _ in range(taken)] == list(range(taken))
    ahead.close()
    assert list(ahead) == []
    go_on.set()
    ahead._thread.join(60)
    del ahead
    assert closed.wait(60)
