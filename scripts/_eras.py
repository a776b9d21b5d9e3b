"""The spans of releases that are alike at every point of the hook table. Standard library only."""

from __future__ import annotations

import json
import sys
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parent

sys.path.insert(0, str(SCRIPTS.parent))

from sglang_draft_ext.releases import TESTED  # noqa: E402 - it need not be installed

ERAS = SCRIPTS / "eras.json"


def changes() -> dict[str, dict[str, str]]:
    """First release of each span -> the eras of the hook table's points that begin with it."""
    return json.loads(ERAS.read_text())


def of(release: str) -> dict[str, str]:
    """Point of the hook table -> its era in *release*."""
    begun: dict[str, str] = {}
    for first, eras in changes().items():
        if TESTED.index(first) <= TESTED.index(release):
            begun |= eras
    return begun


def newest() -> tuple[str, ...]:
    """The newest release of each span, oldest first."""
    firsts = [TESTED.index(first) for first in changes()]
    return tuple(TESTED[following - 1] for following in (*firsts[1:], len(TESTED)))


if __name__ == "__main__":
    print(*newest(), sep="\n")
