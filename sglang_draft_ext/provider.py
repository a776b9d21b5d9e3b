"""Whose code a module is: the distribution that installed it, and its file."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cache
from importlib.metadata import packages_distributions, version
from importlib.util import find_spec

logger = logging.getLogger("sglang_draft_ext")


@dataclass(frozen=True, kw_only=True)
class Provider:
    """Where a module comes from; None for what is not known, such as the distribution of a file on ``PYTHONPATH``."""

    distribution: str | None
    file: str | None

    def __str__(self) -> str:
        return f"{self.distribution or 'no installed distribution'}, {self.file or 'no file'}"


def provider(module: str) -> Provider:
    """The provider of *module*, which has been imported."""
    names = sorted({*packages_distributions().get(module.partition(".")[0], ())})
    spec = find_spec(module)
    return Provider(
        distribution=", ".join(f"{name} {version(name)}" for name in names) or None,
        file=spec.origin if spec else None,
    )


@cache
def announce(module: str) -> None:
    """Log who provides *module*, once in a process."""
    logger.info("imported %s of a draft backend's provider: %s", module, provider(module))
