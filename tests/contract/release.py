"""The release's own draft factory, worker or runner class, on a runner with no model behind it."""

from __future__ import annotations

import importlib
from types import SimpleNamespace

from sglang_draft_ext import hooks, points
from sglang_draft_ext.carried import Carried
from sglang_draft_ext.launch import FIELD, Plan
from sglang_draft_ext.selection import ROLES, Selection

SURFACE = hooks.activation.surface
HAS_DRAFT_FLAG = bool(
    SURFACE.get("sglang.srt.arg_groups.fields.spec", f"Spec.{FIELD}")
    or SURFACE.get(points.SERVER_ARGS, f"ServerArgs.{FIELD}")
)
PAIRS = any(
    hook.returns == "pair"
    for point in points.POINTS
    if point.name == "draft maps"
    for hook in point.era(SURFACE).hooks
)


def map_names(role: str) -> tuple[str, ...]:
    """The names in the release's map for *role*, read from its source."""
    return tuple(dict.fromkeys(key for d in points.map_definitions(SURFACE, role) for key in d.keys))


def era(point: str) -> str:
    """The era of one point in this release."""
    return next(p for p in points.POINTS if p.name == point).era(SURFACE).name


def server_args(*, draft=None, selection=None, mode="prefill", target=("triton", "triton")):
    """Arguments as a worker sees them, with the selection attached as after parsing."""
    made = SimpleNamespace(
        attention_backend=target[0],
        prefill_attention_backend=target[0],
        decode_attention_backend=target[1],
        speculative_attention_mode=mode,
        speculative_algorithm="EAGLE",
        get_attention_backends=lambda: target,
    )
    if HAS_DRAFT_FLAG:
        setattr(made, FIELD, str(selection) if selection else draft)
    if selection:
        plan = Plan(selection=selection, sources=dict.fromkeys(ROLES, "here"))
        made._draft_ext = Carried(entries=(), registered={}, plan=plan)
    return made


def select(prefill, extend, decode):
    return Selection(prefill=prefill, extend=extend, decode=decode)


class Blank(SimpleNamespace):
    """Has every attribute that somebody asks for: None, unless it was given."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return None


class Factory:
    """The object whose methods make the draft's backends: a DraftBackendFactory, before there was one an EAGLEWorker."""

    def __init__(self, monkeypatch, arguments, *, steps=3, topk=1):
        on_worker = era("draft maps") == "methods of EAGLEWorker"
        module = importlib.import_module(points.EAGLE_WORKER if on_worker else points.DRAFT_UTILS)
        kind = module.EAGLEWorker if on_worker else module.DraftBackendFactory
        self.made = object.__new__(kind)
        self.runner = Blank(
            server_args=arguments,
            is_draft_worker=True,
            draft_attention_backend=getattr(arguments, FIELD, None),
            model_config=Blank(hf_config=Blank(), hf_text_config=Blank()),
        )
        for name, value in {
            "server_args": arguments,
            "model_runner": self.runner,
            "draft_model_runner": self.runner,
            "topk": topk,
            "speculative_num_steps": steps,
            "seed_dsa_topk_from_draft_extend": False,
            "qsa_profile": None,
        }.items():
            try:
                setattr(self.made, name, value)
            except AttributeError:  # a read-only property made of the others
                assert getattr(self.made, name) is value
        if HAS_DRAFT_FLAG:
            self.made.draft_attn_backend = getattr(arguments, FIELD)
        # What newer releases publish for the process.
        for name, published in {
            "get_spec": lambda: arguments,
            "attention_backends": arguments.get_attention_backends,
        }.items():
            if hasattr(module, name):
                monkeypatch.setattr(module, name, published)
        self._decode, self._extend = (
            ("_create_decode_backend", "_create_draft_extend_backend")
            if on_worker
            else ("create_decode_backend", "create_draft_extend_backend")
        )

    def mark_creators(self):
        """Let every creator of stock's give an object that says which creator it was."""
        for name in dir(type(self.made)):
            if name.startswith("_create_") and name.endswith(("_decode_backend", "_prefill_backend")):
                if name == self._decode:
                    continue
                mark = SimpleNamespace(creator=name, attn_backends=[])
                value = ("stamp", mark) if PAIRS else mark
                setattr(self.made, name, lambda value=value: value)

    def decode(self):
        return getattr(self.made, self._decode)()

    def extend(self):
        return getattr(self.made, self._extend)()


__all__ = [
    "HAS_DRAFT_FLAG",
    "PAIRS",
    "SURFACE",
    "Blank",
    "Factory",
    "era",
    "map_names",
    "select",
    "server_args",
]
