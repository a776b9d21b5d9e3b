"""The blocks of README and docs, and the launch lines in them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from environments import ROOT

DOCUMENTS = (ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md")))
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block of a document."""

    document: Path
    language: str
    text: str
    line: int

    def __str__(self) -> str:
        return f"{self.document.name}:{self.line}"

    @property
    def commands(self) -> list[str]:
        """One string a command, with lines that go on put together."""
        return [line for line in self.text.replace("\\\n", " ").splitlines() if line.strip()]


def blocks(document: Path) -> Iterator[Block]:
    text = document.read_text(encoding="utf-8")
    for match in _BLOCK.finditer(text):
        yield Block(document, match[1], match[2], text[: match.start()].count("\n") + 1)


@dataclass(frozen=True)
class Launch:
    """A launch line, and the variables that its block exports before it."""

    block: Block
    variables: dict[str, str]
    flags: list[str]


def launches(document: Path) -> Iterator[Launch]:
    for block in (block for block in blocks(document) if block.language == "sh"):
        variables: dict[str, str] = {}
        for command in block.commands:
            words = shlex.split(command)
            if words[0] == "export":
                variables.update(word.split("=", 1) for word in words[1:])
            elif words[:3] == ["python", "-m", "sglang.launch_server"]:
                yield Launch(block, dict(variables), words[3:])
