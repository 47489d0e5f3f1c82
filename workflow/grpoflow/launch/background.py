"""One call in a thread, so that supervision goes on while a server thinks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Background(Generic[T]):
    """A call that runs in a daemon thread from the start."""

    def __init__(self, call: Callable[[], T]):
        self._call = call
        self._value: list[T] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def result(self) -> T:
        """Wait, and return what the call returned or raise what it raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._value[0]

    def _run(self) -> None:
        try:
            self._value.append(self._call())
        except BaseException as error:
            self._error = error
