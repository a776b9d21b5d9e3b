"""Reports for a person to read: headings, marks and tables, in colour only on a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Literal, TextIO

Mark = Literal["good", "note", "problem"]
SIGNS: Mapping[Mark, str] = {"good": "ok", "note": "note", "problem": "PROBLEM"}
_COLOURS: Mapping[str, str] = {"good": "32", "note": "33", "problem": "31", "title": "1", "faint": "2"}


def wants_colour(stream: TextIO) -> bool:
    """Whether *stream* is a terminal whose user has not set ``NO_COLOR``."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


class Report:
    """Lines of text.

    Args:
        colour: Whether to use ANSI colours; None asks the standard output.
    """

    def __init__(self, *, colour: bool | None = None) -> None:
        self._colour = wants_colour(sys.stdout) if colour is None else colour
        self._lines: list[str] = []

    def __str__(self) -> str:
        return "\n".join(self._lines)

    def paint(self, text: str, colour: str) -> str:
        return f"\033[{_COLOURS[colour]}m{text}\033[0m" if self._colour and text else text

    def title(self, text: str) -> None:
        """A heading, with an empty line before it."""
        if self._lines:
            self._lines.append("")
        self._lines.append(self.paint(text, "title"))

    def line(self, text: str = "", *, colour: str | None = None) -> None:
        self._lines.append(self.paint(text, colour) if colour else text)

    def marked(self, mark: Mark, text: str) -> None:
        """A line that begins with what it amounts to."""
        self.line(f"  {self.paint(f'{SIGNS[mark]:<8}', mark)}{text}")

    def facts(self, facts: Mapping[str, str | None]) -> None:
        """Names and what is known of each."""
        width = max(map(len, facts), default=0)
        for name, value in facts.items():
            self.line(f"  {name:<{width}}  {value if value is not None else '-'}".rstrip())

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Columns as wide as their widest cell; the last one is not padded."""
        widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
        for number, row in enumerate((head, *rows)):
            cells = [f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)]
            self.line("  " + "  ".join(cells).rstrip(), colour=None if number else "faint")
