"""What a launch asks for, attached to its server arguments so that every child process repeats it, and can tell if it differs.

Children are spawned: a backend named in the environment is found there again, but a call of ``register()`` in the parent's
program is not. Unpickling this object in the child, which stock does before it runs anything, repeats the call.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass, replace

from sglang_draft_ext import __version__, guard, hooks
from sglang_draft_ext.launch import Plan
from sglang_draft_ext.registry import Entry, registry


@dataclass(frozen=True, kw_only=True)
class Carried:
    """What the process that resolved the server arguments has registered, and the plan for its draft.

    Args:
        entries: What its program registered, with callables as references.
        registered: All that it was asked for, as `guard.registered` says it.
        plan: The draft's backends; None when stock's own rule decides.
    """

    entries: tuple[Entry, ...]
    registered: dict[str, str]
    plan: Plan | None

    @classmethod
    def of_this_process(cls, plan: Plan | None) -> Carried:
        entries = tuple(replace(entry, backend=entry.backend.portable) for entry in registry.registered)
        return cls(entries=entries, registered=guard.registered(), plan=plan)

    def __reduce__(self) -> tuple[object, ...]:
        # The arguments are pickled to start a child: the last moment at which the parent itself can refuse.
        guard.checkpoint()
        return restore, (__version__, pickle.dumps((self.entries, self.registered, self.plan)))

    def __deepcopy__(self, _memo: object) -> Carried:
        return self


def restore(version: str, content: bytes) -> Carried:
    """Repeat in this process what its parent registered, and patch it for the same plan.

    Nothing that differs is raised here: the parent hears only of what is raised once the child's work begins. The two
    parameters stay as they are in every version of this package, or versions that differ could not tell.
    """
    entries: tuple[Entry, ...] = ()
    registered: dict[str, str] = {"version": version}
    plan: Plan | None = None
    if version == __version__:
        entries, registered, plan = pickle.loads(content)
    hooks.activate(parent=registered)
    for entry in entries:
        registry.inherit(entry)
    if plan is not None:
        hooks.activation.select("the server arguments")
    hooks.activation.refresh()
    return Carried(entries=entries, registered=registered, plan=plan)
