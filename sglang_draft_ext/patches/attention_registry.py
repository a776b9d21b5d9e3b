"""Why: the draft runner's own backend, and any target backend, is looked up in the general registry.
How: extra names are added to the registry's dict, unless someone (stock, or the provider) has filled them already.
Upstream: `register_attention_backend` does the same for a target.
Delete when: never needed by itself; it goes with the draft maps."""

from __future__ import annotations

from functools import partial
from types import ModuleType

from sglang_draft_ext.build import build_attention
from sglang_draft_ext.registry import registry


def add(module: ModuleType, attribute: str) -> None:
    """Add the extra names to the general registry."""
    for name in registry.names:
        getattr(module, attribute).setdefault(name, partial(build_attention, name))
