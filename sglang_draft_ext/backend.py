"""What a provider declares: how to build one named attention backend for each role of the draft."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, Literal

from sglang_draft_ext.errors import BackendError, DraftExtError
from sglang_draft_ext.provider import announce
from sglang_draft_ext.settings import NAME, REFERENCE

Mla = Literal["any", "required", "refused"]

STOCK = "stock:"
"""Prefix of a reference to a backend of the release's own general registry: ``"stock:torch_native"``."""


@dataclass(frozen=True, kw_only=True)
class DraftBackend:
    """How to build the attention backend *name* for a draft, the same on every release of SGLang.

    Args:
        name: The backend's name, as in ``--speculative-draft-attention-backend NAME``.
        attention: Called with the draft's ``ModelRunner``; returns an ``AttentionBackend``. It serves the draft's
            prefill and extend, and ``--attention-backend NAME`` where stock has no such name.
        decode: Called with ``(model_runner, topk, num_steps)``; returns the multi-step draft decode backend, an object
            with ``attn_backends`` (``num_steps - 1`` backends) and ``init_forward_metadata(forward_batch)``. Without
            it, :mod:`sglang_draft_ext.multistep` makes one out of ``attention``.
        mla: ``"any"``, or whether the draft model must (``"required"``) or must not (``"refused"``) use multi-head
            latent attention.
        page_sizes: The KV-cache page sizes (tokens per page) that the backend can read; None means any.
        max_topk: The largest ``--speculative-eagle-topk`` that the backend can draft; None means any.
        max_head_dim: The largest head dimension of a draft model that the backend can attend with; None means any.
        extend_graph: Whether draft extend may run in a CUDA graph; SGLang captures it for backends of its own list only.

    ``attention`` and ``decode`` are ``"module:attr"`` strings, or callables that can be imported again by module and name:
    every process of a server builds its backends anew. ``attention="stock:NAME"`` is a backend of the release's own general
    registry.

    Raises:
        BackendError: a field is malformed, or a callable cannot be imported again.
    """

    name: str
    attention: str | Callable[[Any], Any]
    decode: str | Callable[[Any, int, int], Any] | None = None
    mla: Mla = "any"
    page_sizes: tuple[int, ...] | None = None
    max_topk: int | None = None
    max_head_dim: int | None = None
    extend_graph: bool = False

    def __post_init__(self) -> None:
        where = f"DraftBackend(name={self.name!r})"
        if not isinstance(self.name, str) or not NAME.fullmatch(self.name):
            raise BackendError(
                f"{self.name!r} is not a backend name",
                where=where,
                remedy="begin with a letter and use letters, digits, '_', '-' and '.' only",
            )
        reference_of(self.attention, where=f"{where}, attention")
        if self.decode is not None:
            decode = reference_of(self.decode, where=f"{where}, decode")
            if decode.startswith(STOCK):
                raise BackendError(
                    f"decode={decode!r} is no multi-step backend",
                    where=where,
                    found="stock's general registry holds none",
                    remedy="leave decode out: it is made out of attention",
                )
        if self.mla not in ("any", "required", "refused"):
            raise BackendError(
                f"mla={self.mla!r} is unknown", where=where, remedy="use 'any', 'required' or 'refused'"
            )
        if self.page_sizes is not None:
            sizes = (
                tuple(self.page_sizes)
                if isinstance(self.page_sizes, (tuple, list, set, frozenset, range))
                else ()
            )
            if not sizes or not all(_positive(size) for size in sizes):
                raise BackendError(
                    f"page_sizes={self.page_sizes!r} is not a tuple of positive integers",
                    where=where,
                    remedy="list the page sizes, or leave it out for any",
                )
            object.__setattr__(self, "page_sizes", tuple(sorted(sizes)))
        for field in ("max_topk", "max_head_dim"):
            value = getattr(self, field)
            if value is not None and not _positive(value):
                raise BackendError(
                    f"{field}={value!r} is not a positive integer", where=where, remedy="leave it out for any"
                )
        if not isinstance(self.extend_graph, bool):
            raise BackendError(
                f"extend_graph={self.extend_graph!r} is neither True nor False",
                where=where,
                remedy="say True if draft extend can be captured in a CUDA graph",
            )

    @property
    def references(self) -> dict[str, str]:
        """Role factory -> ``"module:attr"``, as another process can repeat it."""
        found = {"attention": reference_of(self.attention)}
        if self.decode is not None:
            found["decode"] = reference_of(self.decode)
        return found

    @property
    def portable(self) -> DraftBackend:
        """The same with callables as references: equal in every process that declares it."""
        found = self.references
        return replace(self, attention=found["attention"], decode=found.get("decode"))


def _positive(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def reference_of(factory: object, *, where: str | None = None) -> str:
    """The ``"module:attr"`` string that finds *factory* again in another process.

    Raises:
        BackendError: it is a lambda, local, or otherwise cannot be imported by name.
    """
    if isinstance(factory, str):
        stock = factory.startswith(STOCK)
        if NAME.fullmatch(factory.removeprefix(STOCK)) if stock else REFERENCE.fullmatch(factory):
            return factory
        raise BackendError(
            f"{factory!r} is not a reference",
            where=where,
            remedy="write 'package.module:attribute' or 'stock:NAME'",
        )
    if not callable(factory):
        raise BackendError(
            f"{factory!r} is neither a reference nor callable",
            where=where,
            found=f"an object of type {type(factory).__qualname__}",
            remedy="give 'package.module:attribute' or a function or class defined at the top of a module",
        )
    module, name = getattr(factory, "__module__", None), getattr(factory, "__qualname__", None)
    reason = None
    if not module or not name:
        reason = "it has no module and name of its own"
    elif "<lambda>" in name:
        reason = "it is a lambda"
    elif "<locals>" in name:
        reason = "it is defined inside a function"
    elif module == "__main__":
        reason = "it is defined in the main script, which the other processes of a server do not run"
    elif _attribute(sys.modules.get(module), name) is not factory:
        reason = f"{module}:{name} is another object"
    if reason:
        raise BackendError(
            f"{factory!r} cannot be imported again by the other processes of a server: {reason}",
            where=where,
            remedy="define it at the top of an importable module",
        )
    return f"{module}:{name}"


def _attribute(value: object, dotted: str) -> object:
    for part in dotted.split("."):
        value = getattr(value, part, None)
    return value


def load_reference(reference: str, *, where: str) -> Any:
    """Import ``"module:attr"``.

    Raises:
        BackendError: the module does not import (the original error is the cause) or lacks the attribute.
    """
    module_name, _, dotted = reference.partition(":")
    try:
        value: Any = import_module(module_name)
    except DraftExtError:
        raise  # of a provider that does something wrong with this package: it says what
    except Exception as error:
        raise BackendError(
            f"{reference!r} cannot be imported",
            where=where,
            found=f"{type(error).__name__}: {error}",
            remedy=f"make 'python -c \"import {module_name}\"' work in the environment that SGLang runs in",
        ) from error
    announce(module_name)
    seen = module_name
    for part in dotted.split("."):
        try:
            value = getattr(value, part)
        except AttributeError as error:
            raise BackendError(
                f"{reference!r} cannot be imported",
                where=where,
                found=f"{seen} has no attribute {part!r}",
                remedy="correct the reference",
            ) from error
        seen += f".{part}"
    return value
