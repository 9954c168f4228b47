"""One thread that does things in order, off the caller's thread, with a bounded queue: saving overlaps with decoding."""

import queue
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Generic, Self, TypeVar

Item = TypeVar("Item")


class Background(Generic[Item]):
    """Calls `act` for each item put, one after the other. After the first exception nothing more is done, and it is raised here."""

    def __init__(self, act: Callable[[Item], None], room: int = 16) -> None:
        self._act = act
        self._items: queue.Queue[Item | None] = queue.Queue(room)
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="sjdvp-save", daemon=True)
        self._thread.start()

    def put(self, item: Item) -> None:
        """Hand an item over, waiting while the queue is full; raises what an earlier item raised."""
        self.check()
        self._items.put(item)

    def check(self) -> None:
        """Raise what an earlier item raised, if anything."""
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Wait until every item is done; raises what one of them raised."""
        self._items.put(None)
        self._thread.join()
        self.check()

    def _work(self) -> None:
        while (item := self._items.get()) is not None:
            if self._failure is None:
                try:
                    self._act(item)
                except BaseException as error:  # noqa: BLE001 (it is raised on the thread that can act on it)
                    self._failure = error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
