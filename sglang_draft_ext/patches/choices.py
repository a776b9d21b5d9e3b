"""Why: argparse and the draft worker accept only the attention backend names of these lists.
How: the lists are extended in place; argparse and every importer hold the same list objects.
Upstream: `add_attention_backend_choices`, and `add_draft_attention_backend_choices` of PR 35932 (DFLASH and DSPARK only).
Delete when: stock takes names from a registry that draft backends can join."""

from __future__ import annotations

from types import ModuleType

from sglang_draft_ext.registry import registry


def extend(module: ModuleType, attribute: str) -> None:
    """Add the extra names to a list of choices."""
    choices: list[str] = getattr(module, attribute)
    choices.extend(name for name in registry.names if name not in choices)
