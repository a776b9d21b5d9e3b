"""What a launch asks for, attached to its server arguments so that every child process repeats it.

Children are spawned: a backend named in the environment is found there again, but a call of ``register()`` in the parent's
program is not. Unpickling this object in the child, which stock does before it runs anything, repeats the call.
"""

from __future__ import annotations

from dataclasses import dataclass

from sglang_draft_ext import hooks
from sglang_draft_ext.backend import DraftBackend
from sglang_draft_ext.launch import Plan
from sglang_draft_ext.registry import Entry, registry


@dataclass(frozen=True)
class Carried:
    """The registrations of the process that built the server arguments, and the plan for its draft."""

    entries: tuple[Entry, ...]
    plan: Plan | None

    @classmethod
    def of_this_process(cls, plan: Plan | None) -> Carried:
        """The registrations of this process, with callables as references."""
        return cls(tuple(_portable(entry) for entry in registry.entries().values()), plan)

    def __reduce__(self) -> tuple[object, ...]:
        return restore, (self.entries, self.plan)


def restore(entries: tuple[Entry, ...], plan: Plan | None) -> Carried:
    """Repeat *entries* in this process, and patch it for *plan*."""
    hooks.activate()
    for entry in entries:
        registry.adopt(entry.backend, where=entry.where)
    if plan is not None:
        hooks.activation.select("the server arguments")
    return Carried(entries, plan)


def _portable(entry: Entry) -> Entry:
    backend = entry.backend
    return Entry(
        backend=DraftBackend(
            name=backend.name,
            attention=backend.references["attention"],
            decode=backend.references.get("decode"),
            mla=backend.mla,
            page_sizes=backend.page_sizes,
            max_topk=backend.max_topk,
        ),
        where=entry.where,
    )
