"""The guard: nothing comes too late unnoticed, and every process of a server agrees on what was asked.

The window closes when server arguments are parsed or built. Whoever comes later is told at the call, where there is a call
of ours or of stock's helpers. Other routes (a variable, a list written to directly, an error that its place has swallowed)
are noticed at the next *checkpoint*: parsing, resolving, starting a child, and the beginning of a child's work.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from datetime import timedelta
from typing import Any

from sglang_draft_ext import __version__, _finder, build, hooks, points, settings
from sglang_draft_ext.errors import AgreementError, DraftExtError, LateRegistrationError
from sglang_draft_ext.registry import call_site, registry

# Ranks have just left a barrier when they compare.
PATIENCE = timedelta(seconds=10)
# Until the ranks of a node have compared, from when its other processes begin.
TELLING = timedelta(seconds=30)

#: What ends this rank, once the others are told.
untold: DraftExtError | None = None
_choices: dict[str, tuple[str, ...]] = {}


def close() -> None:
    """End the window of this process; everything that was asked for must be there.

    Raises:
        BackendError, RegistrationError: a name cannot be resolved.
        LateRegistrationError: see `checkpoint`.
    """
    checkpoint()
    registry.close(call_site())
    checkpoint()
    for name in registry.names:
        build.declared(name)


def checkpoint() -> None:
    """Raise what is wrong and was not raised, or not heard, where it happened.

    Raises:
        LateRegistrationError: a variable or a list of choices has changed since it was read.
        BaseException: the recorded refusal, see ``_finder.refuse``.
    """
    _finder.check()
    if hooks.activation.deferred:
        raise hooks.activation.deferred
    _check_environment()
    _check_choices()


def _check_environment() -> None:
    then, now = hooks.activation.environment, settings.variables()
    changed = sorted(name for name in {*then, *now} if then.get(name) != now.get(name))
    if not changed or not (hooks.activation.purposes or {*changed} & {settings.BACKENDS, settings.SELECT}):
        return
    raise LateRegistrationError(
        f"{', '.join(changed)} changed too late to have an effect",
        where=f"the environment, noticed at {call_site()}",
        found="; ".join(f"{name} was {then.get(name)!r} and is {now.get(name)!r}" for name in changed)
        + f"; it was read when SGLang was imported at {hooks.activation.activated_at}"
        + (
            f", and server arguments were parsed or built at {registry.closed_at}"
            if registry.closed_at
            else ""
        ),
        remedy="set it before SGLang is imported",
    )


def _check_choices() -> None:
    if not registry.closed_at:
        return
    for hook in hooks.activation.applied:
        if hook.edit != points.EXTEND_CHOICES:
            continue
        choices = getattr(sys.modules[hook.module], hook.attribute)
        names = tuple(name for name in choices if name not in registry)
        before = _choices.setdefault(hook.target, names)
        if names != before:
            changed = sorted({*names} ^ {*before}) or list(names)
            raise LateRegistrationError(
                f"{hook.target} changed too late to have an effect: {', '.join(changed)}",
                where=f"code that writes to the list, noticed at {call_site()}",
                found=f"server arguments were already parsed or built at {registry.closed_at}",
                remedy=f"do it before, or name the backend in {settings.BACKENDS}",
            )


def registered() -> dict[str, str]:
    """What this process was asked for, in words that are the same in every process of a server."""
    environment = hooks.activation.environment
    said = {
        name: environment[name]
        for name in (settings.SELECT, settings.STRICT, settings.DISABLE)
        if environment.get(name)
    }
    said["version"] = __version__
    for name in registry.names:
        try:
            said[f"draft backend {name!r}"] = str(build.declared(name).portable)
        except DraftExtError as error:
            said[f"draft backend {name!r}"] = error.problem
    return said


def agree(server_args: Any, *, who: str) -> None:
    """Compare this process, whose work begins, with the one that made *server_args* and started it.

    Args:
        server_args: The arguments that the process was given.
        who: What the process does.

    Raises:
        AgreementError: they were asked for different things.
    """
    carried = getattr(server_args, "_draft_ext", None)
    parent = hooks.activation.parent or (carried.registered if carried else {})
    found = difference(registered(), parent, other="in the process that started it")
    if found:
        raise AgreementError(
            "A process of the server was asked for something else than the one that started it",
            where=f"{who}, process {os.getpid()}",
            found=found,
            remedy=f"give every process the same {settings.PREFIX}* variables and the same packages",
        )


def tell_ranks(error: DraftExtError) -> None:
    """Keep *error*, which ends this rank, until the ranks have joined: another node's would wait for this one till then."""
    global untold
    untold = untold or error


def agree_with_ranks(
    store: Any, rank: int, size: int, *, selection: str, refusal: DraftExtError | None = None
) -> None:
    """Compare this rank with all others; their nodes were launched one by one, each with its own environment.

    Args:
        store: The ranks' ``torch.distributed.Store``. Unlike a collective, it shows which rank never answers, because
            nothing is asked of this package there.
        rank, size: Of this rank in that world.
        selection: The draft's backends.
        refusal: What ends this rank, to tell the others.

    Raises:
        AgreementError: another rank was asked for something else, or for nothing.
        DraftExtError: *refusal*.
    """
    mine = {**registered(), "selection": selection}
    if refusal:
        mine["refusal"] = str(refusal)
    # The variable is one way to ask for the selection, and another node may use another.
    mine.pop(settings.SELECT, None)
    store.set(_key("asked", rank), json.dumps(mine))
    with suppress(RuntimeError):
        store.wait([_key("asked", other) for other in range(size)], PATIENCE)
    answered = [other for other in range(size) if store.check([_key("asked", other)])]
    differences = []
    for other in range(size):
        theirs = json.loads(store.get(_key("asked", other))) if other in answered else {}
        differences.append(difference(mine, theirs, other=f"on rank {other}"))
    store.set(_key("compared", rank), "")
    found = "; ".join(filter(None, differences))
    if found or refusal:
        # The rank that keeps the store ends last.
        with suppress(RuntimeError):
            store.wait([_key("compared", other) for other in answered], PATIENCE)
        raise refusal or AgreementError(
            "The ranks of the server were asked for different things",
            where=f"rank {rank}",
            found=found,
            remedy=f"launch every node with the same {settings.PREFIX}* variables, packages and selection",
        )


def _key(what: str, rank: int) -> str:
    return f"sglang_draft_ext/{what}/{rank}"


def difference(here: dict[str, str], there: dict[str, str], *, other: str) -> str:
    """What differs between what two processes registered; empty if nothing does."""
    names = sorted(name for name in {*here, *there} if here.get(name) != there.get(name))
    if "version" in names and there:
        names = ["version"]  # what else they say cannot be compared
    return "; ".join(
        f"{name}: {here.get(name, 'nothing')} here, {there.get(name, 'nothing')} {other}" for name in names
    )
