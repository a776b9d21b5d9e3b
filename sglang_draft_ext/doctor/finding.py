"""What the doctor has to say about one thing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something that is not as one would wish.

    Args:
        name: Which kind of finding; the same in every version, for scripts.
        level: ``problem``: a launch would fail, or run without what was asked for; ``note``: worth knowing.
        text: What was found.
        remedy: One thing to do.
    """

    name: str
    level: Literal["note", "problem"]
    text: str
    remedy: str = ""
