"""Why: the worker of DFLASH and DSPARK replaces a name outside a tuple by flashinfer or triton.
How: the module's tuple is replaced by a longer one, which its resolver looks up at each call.
Upstream: PR 35932 replaced the tuple by an extensible list (0.5.19).
Delete when: releases with the tuple are no longer supported."""

from __future__ import annotations

from types import ModuleType

from sglang_draft_ext.registry import registry


def extend(module: ModuleType, attribute: str) -> None:
    """Add the extra names to a module's tuple."""
    names = getattr(module, attribute)
    setattr(module, attribute, (*names, *(name for name in registry.names if name not in names)))
