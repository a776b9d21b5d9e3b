"""Which attention backend the draft uses for each role.

A selection travels as one string, the value of ``--speculative-draft-attention-backend``: a name for all roles, or
``prefill=fa3,decode=flashinfer``. Stock carries that string through pickling, copies, logs and ``/server_info``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal, cast, get_args

from sglang_draft_ext.errors import SelectionError
from sglang_draft_ext.settings import NAME

Role = Literal["prefill", "extend", "decode"]
ROLES = cast("tuple[Role, ...]", get_args(Role))


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The backend of each role: the draft's prompt, its re-reading of accepted tokens, its multi-step proposal."""

    prefill: str
    extend: str
    decode: str

    def __str__(self) -> str:
        """As stock carries it: one name when all roles agree."""
        if self.prefill == self.extend == self.decode:
            return self.prefill
        return ",".join(f"{role}={getattr(self, role)}" for role in ROLES)


def parse(text: str, *, where: str | None = None) -> dict[Role, str]:
    """The roles that *text* names: ``NAME`` names all of them, ``ROLE=NAME[,ROLE=NAME…]`` some.

    Raises:
        SelectionError: a role is unknown or given twice, or a name is empty or malformed.
    """
    items = [item.strip() for item in text.split(",")]
    if len(items) == 1 and "=" not in text:
        return dict.fromkeys(ROLES, _name(items[0], where))
    roles: dict[Role, str] = {}
    for item in items:
        role, equals, name = (part.strip() for part in item.partition("="))
        if not equals or role not in ROLES:
            raise SelectionError(
                f"{role!r} is not a role of the draft",
                where=where,
                found=repr(text),
                remedy=f"write ROLE=NAME with roles {', '.join(ROLES)}",
            )
        if role in roles:
            raise SelectionError(
                f"Role {role!r} is given twice", where=where, found=repr(text), remedy="give it once"
            )
        roles[role] = _name(name, where)
    return roles


def _name(name: str, where: str | None) -> str:
    if NAME.fullmatch(name):
        return name
    raise SelectionError(
        "A role has no backend name" if not name else f"{name!r} is not a backend name",
        where=where,
        remedy="name an attention backend",
    )


def complete(asked: Mapping[Role, str], *, prefill: str, decode: str, attention_mode: str) -> Selection:
    """Fill in the roles that were not asked for.

    Args:
        asked: The roles that were.
        prefill, decode: The target's pair of backends.
        attention_mode: ``--speculative-attention-mode``; stock lets draft extend follow the decode name in mode "decode".
    """
    chosen: dict[Role, str] = {"prefill": prefill, "decode": decode, **asked}
    chosen.setdefault("extend", chosen["decode" if attention_mode == "decode" else "prefill"])
    return Selection(**{str(role): name for role, name in chosen.items()})


def check(name: str, role: Role, able: Collection[str], *, where: str | None = None, why: str = "") -> None:
    """Refuse a name that cannot do *role*.

    Args:
        name: The backend's name.
        role: The role it is asked to do.
        able: Every name that can.
        where: Where it was asked.
        why: What is known about the name that is refused.

    Raises:
        SelectionError: with the nearest name and the full list.
    """
    if name in able:
        return
    nearest = get_close_matches(name, able, n=1)
    raise SelectionError(
        f"{name!r} cannot serve the draft's {role}"
        + (f": {why}" if why else f" (did you mean {nearest[0]!r}?)" if nearest else ""),
        where=where,
        remedy=f"choose from {', '.join(sorted(able))}",
    )
