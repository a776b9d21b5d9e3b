"""Why: argparse and the draft worker accept only the attention backend names of these lists.
How: the lists are extended in place; argparse and every importer hold the same list objects. Stock's helpers, which accept a
late call and do nothing for it, are wrapped to refuse one.
Upstream: `add_attention_backend_choices`, and `add_draft_attention_backend_choices` of PR 35932 (DFLASH and DSPARK only).
Delete when: stock takes names from a registry that draft backends can join."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import wrapt

from sglang_draft_ext import _finder
from sglang_draft_ext.registry import call_site, registry


def extend(module: ModuleType, attribute: str) -> None:
    """Add the extra names to a list of choices."""
    choices: list[str] = getattr(module, attribute)
    choices.extend(name for name in registry.names if name not in choices)


def guard_helper(module: ModuleType, attribute: str) -> None:
    """Wrap one of stock's helpers; later it is a bound method of the list, which several modules hold."""
    helper = getattr(module, attribute)
    if getattr(helper, "_self_wrapper", None) is not _in_time:
        setattr(module, attribute, wrapt.FunctionWrapper(helper, _in_time))


def _in_time(
    wrapped: Callable[..., Any], _instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Wrapper of ``add_attention_backend_choices(choices)`` and ``add_draft_attention_backend_choices(choices)``."""
    with _finder.not_swallowed():
        registry.check_open(f"{args or kwargs} added to the choices", where=call_site())
    return wrapped(*args, **kwargs)
