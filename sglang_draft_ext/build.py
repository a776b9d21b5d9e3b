"""Builds what a `DraftBackend` declares, inside the process that runs the draft."""

from __future__ import annotations

import inspect
import logging
from typing import Any

from sglang_draft_ext import backports, catalogue, hooks, points
from sglang_draft_ext.backend import STOCK, DraftBackend, Mla, load_reference
from sglang_draft_ext.errors import BackendError
from sglang_draft_ext.registry import registry

logger = logging.getLogger("sglang_draft_ext")


def is_stock_general(name: str) -> bool:
    """Whether *name* is a general backend of this release itself."""
    return name in catalogue.stock_names(hooks.activation.surface).general


def declared(name: str) -> DraftBackend:
    """The declaration of an extra name, importing its provider when first asked.

    Raises:
        BackendError: it builds on a general backend that the release does not have; and as `Registry.resolve`.
    """
    stock = catalogue.stock_names(hooks.activation.surface)
    backend = registry.resolve(name, stock)
    general = backend.references["attention"]
    if general.startswith(STOCK) and general.removeprefix(STOCK) not in stock.general:
        raise BackendError(
            f"{name!r} builds on {general!r}, which this release does not have",
            where=registry.where(name),
            found=f"general backends {', '.join(stock.general)}",
            remedy="build on one of these",
        )
    return backend


def build_attention(name: str, runner: Any) -> Any:
    """The ``AttentionBackend`` of an extra name for *runner* (a ``ModelRunner``).

    Raises:
        BackendError: the model is of the wrong kind, or the factory gives something else than an AttentionBackend.
    """
    backend = declared(name)
    _check_mla(backend, runner)
    built = _attention(backend, runner)
    logger.info("%s: built %s for %s", name, type(built).__qualname__, _whose(runner))
    return built


def build_extend(name: str, runner: Any) -> Any:
    """The draft extend backend of an extra or backported name; it serves the draft's prefill, too, where stock has it so.

    Raises:
        BackendError: as `build_attention`.
    """
    if name in catalogue.backported(hooks.activation.surface, "extend"):
        return backports.EXTEND[name](runner)
    extend = extending(name, build_attention(name, runner))
    if declared(name).extend_graph:
        # `patches.eagle_worker_v2` looks for the one, `multistep.captures` for the other.
        extend.captures_draft_extend = extend.supports_cuda_graph = True
    return extend


def extending(name: str, backend: Any) -> Any:
    """*backend*, the ``AttentionBackend`` that an extra name has in a draft, made to serve draft extend.

    The release's own classes know about drafts, and so does a provider that brings a multi-step backend: theirs is used as
    it is.
    """
    from sglang_draft_ext.extend import DraftExtendBackend

    return DraftExtendBackend(backend) if makes_decode(name) else backend


def makes_decode(name: str) -> bool:
    """Whether the multi-step backend of an extra name is made here, out of its ``AttentionBackend``."""
    return (
        name not in catalogue.backported(hooks.activation.surface, "decode") and declared(name).decode is None
    )


def build_decode(name: str, runner: Any, topk: int, num_steps: int) -> Any:
    """The multi-step draft decode backend of an extra or backported name, for *num_steps* draft steps of *topk* branches.

    Raises:
        BackendError: the model is of the wrong kind, or the factory gives something without ``attn_backends``.
    """
    if name in catalogue.backported(hooks.activation.surface, "decode"):
        return backports.DECODE[name](runner, topk, num_steps)
    backend = declared(name)
    _check_mla(backend, runner)
    if makes_decode(name):
        from sglang_draft_ext.multistep import MultiStepDraftBackend

        built: Any = MultiStepDraftBackend(
            runner, topk, num_steps, attention=lambda runner: _attention(backend, runner)
        )
    else:
        built = _factory(backend, "decode")(runner, topk, num_steps)
        if not hasattr(built, "attn_backends") or not hasattr(built, "init_forward_metadata"):
            raise BackendError(
                f"The decode factory of {name!r} gave no multi-step draft backend",
                where=registry.where(name),
                found=f"an object of type {type(built).__qualname__}",
                remedy="return an object with attn_backends and init_forward_metadata(forward_batch)",
            )
    logger.info(
        "%s: built %s for draft decode, topk %d, %d steps", name, type(built).__qualname__, topk, num_steps
    )
    return built


def load_factories(name: str) -> None:
    """Import what builds an extra name.

    Raises:
        BackendError: a reference does not import, or leads to something that cannot be called.
    """
    backend = declared(name)
    for role, reference in backend.references.items():
        if not reference.startswith(STOCK):
            _factory(backend, role)


def _whose(runner: Any) -> str:
    return "the draft" if getattr(runner, "is_draft_worker", False) else "the target"


def _factory(backend: DraftBackend, role: str) -> Any:
    factory = getattr(backend, role)
    where = registry.where(backend.name)
    found = load_reference(factory, where=where) if isinstance(factory, str) else factory
    if not callable(found):
        raise BackendError(
            f"The {role} factory of {backend.name!r} is not callable",
            where=where,
            found=f"{factory!r} is an object of type {type(found).__qualname__}",
            remedy="refer to a function or class",
        )
    return found


def _attention(backend: DraftBackend, runner: Any) -> Any:
    from sglang.srt.layers.attention.base_attn_backend import AttentionBackend

    reference = backend.attention
    if isinstance(reference, str) and reference.startswith(STOCK):
        built = stock_general(reference.removeprefix(STOCK), runner)
    else:
        built = _factory(backend, "attention")(runner)
    if not isinstance(built, AttentionBackend):
        raise BackendError(
            f"The attention factory of {backend.name!r} gave no AttentionBackend",
            where=registry.where(backend.name),
            found=f"an object of type {type(built).__qualname__}",
            remedy="return an instance of sglang.srt.layers.attention.base_attn_backend.AttentionBackend",
        )
    return built


def stock_general(name: str, runner: Any) -> Any:
    """Stock's own general backend of *name*; before there was a registry, a method of ModelRunner knew the names."""
    if hooks.activation.surface.source(points.ATTENTION_REGISTRY) is None:
        return inspect.unwrap(runner._get_attention_backend_from_str)(name)
    from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS

    return ATTENTION_BACKENDS[name](runner)


def _check_mla(backend: DraftBackend, runner: Any) -> None:
    """Raises BackendError when the runner's model is of the kind that the backend cannot serve."""
    if backend.mla == "any":
        return
    uses = bool(getattr(runner, "use_mla_backend", False))
    if uses != (backend.mla == "required"):
        raise mla_error(backend.name, backend.mla, uses, where=registry.where(backend.name))


def mla_error(name: str, mla: Mla, uses: bool, *, where: str) -> BackendError:
    """A draft model of the wrong kind for the backend *name*."""
    return BackendError(
        f"{name!r} {'needs' if mla == 'required' else 'cannot serve'} a model with multi-head latent attention",
        where=where,
        found=f"the model {'has it' if uses else 'does not have it'}",
        remedy="choose another draft attention backend",
    )
