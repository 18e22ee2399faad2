"""A progress bar on one line of standard error, or a plain line now and then in a log."""

import sys
import time
from typing import TextIO

WIDTH = 24
QUIET_SECONDS = 10.0  # between lines where there is no terminal


class Progress:
    """Shows how far a stage is.

    Args:
        title: what is counted, e.g. ``fit``.
        total: the count at the end.
        start: the count at the beginning, more than 0 when resumed.
    """

    def __init__(
        self, title: str, total: int, *, start: int = 0, stream: TextIO | None = None
    ) -> None:
        self._title, self._total, self._first = title, max(total, 1), start
        self._stream = stream or sys.stderr
        self._is_terminal = self._stream.isatty()
        self._began = time.monotonic()
        self._last = 0.0

    def show(self, done: int, note: str = "", *, is_last: bool = False) -> None:
        """Draw the bar; calls that come too soon are skipped, except the last."""
        now = time.monotonic()
        if not is_last and now - self._last < (0.1 if self._is_terminal else QUIET_SECONDS):
            return
        self._last = now
        filled = WIDTH * done // self._total
        bar = "#" * filled + "." * (WIDTH - filled)
        text = f"{self._title} [{bar}] {done}/{self._total} {self._left(done, now)} {note}".rstrip()
        if self._is_terminal:
            self._stream.write(f"\r\x1b[K{text}" + ("\n" if is_last else ""))
        else:
            self._stream.write(text + "\n")
        self._stream.flush()

    def _left(self, done: int, now: float) -> str:
        seconds = now - self._began
        if done <= self._first:
            return ""
        left = seconds / (done - self._first) * (self._total - done)
        return f"{int(seconds)} s, {int(left)} s left"
