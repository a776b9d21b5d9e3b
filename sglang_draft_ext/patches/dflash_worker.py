"""Why: DFLASH's first workers replace a name outside a tuple, written inside their constructor, by flashinfer or triton.
How: the constructor's code object gets a longer tuple constant; everything else in it stays stock's.
Upstream: moved out of the constructor in 0.5.15, made extensible by PR 35932.
Delete when: releases with the tuple in the constructor are no longer supported."""

from __future__ import annotations

from types import FunctionType, ModuleType

from sglang_draft_ext.registry import registry


def extend(module: ModuleType, attribute: str) -> None:
    """Add the extra names to the one tuple of backend names in a constructor."""
    owner, _, method = attribute.partition(".")
    function: FunctionType = vars(getattr(module, owner))[method]
    function.__code__ = function.__code__.replace(
        co_consts=tuple(_longer(constant) for constant in function.__code__.co_consts)
    )


def _longer(constant: object) -> object:
    if not (isinstance(constant, tuple) and {"flashinfer", "triton"} <= {*map(str, constant)}):
        return constant
    return (*constant, *(name for name in registry.names if name not in constant))
