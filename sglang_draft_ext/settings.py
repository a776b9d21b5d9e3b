"""The ``SGLANG_DRAFT_EXT_*`` variables as one frozen object."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from sglang_draft_ext import _startup
from sglang_draft_ext.errors import SettingsError

# What the start needs is declared where it runs, since it may load no other file.
PREFIX = _startup.PREFIX
BACKENDS = PREFIX + "BACKENDS"
DEBUG = PREFIX + "DEBUG"
DISABLE = _startup.DISABLE
SELECT = PREFIX + "SELECT"
STRICT = PREFIX + "STRICT"
KNOWN = (BACKENDS, DEBUG, DISABLE, SELECT, STRICT)

#: What ``SELECT`` says to ask for nothing but the fallback.
AUTO = "auto"

_NO = ("", "0", "false")

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.\-]*")
REFERENCE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


@dataclass(frozen=True, kw_only=True)
class BackendRequest:
    """One item of ``SGLANG_DRAFT_EXT_BACKENDS``: a name, and where to find it unless that is for us to look up."""

    name: str
    reference: str | None
    where: str


def variables(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables of this package in *environ* (default: this process's)."""
    environ = os.environ if environ is None else environ
    return {name: value for name, value in environ.items() if name.startswith(PREFIX)}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the environment asks for."""

    backends: tuple[BackendRequest, ...] = ()
    select: str = ""
    strict: bool = False
    debug: bool = False
    disabled: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """Read the variables of *environ* (default: this process's).

        Raises:
            SettingsError: a variable is malformed.
        """
        environ = variables(environ)
        unknown = sorted(name for name in environ if name not in KNOWN)
        return cls(
            backends=parse_backends(environ.get(BACKENDS, "")),
            select=environ.get(SELECT, "").strip(),
            strict=_switch(STRICT, environ.get(STRICT, "")),
            debug=_switch(DEBUG, environ.get(DEBUG, "")),
            disabled=parse_disabled(environ.get(DISABLE, "")),
            unknown=tuple(unknown),
        )


def _switch(name: str, text: str) -> bool:
    value = text.strip().lower()
    if value not in (*_NO, "1", "true"):
        raise SettingsError(f"{text!r} is neither yes nor no", where=name, remedy="set it to 1, or unset it")
    return value not in _NO


def parse_disabled(text: str) -> tuple[str, ...]:
    """The hook points that ``SGLANG_DRAFT_EXT_DISABLE`` names one by one; whether they exist is for `points` to say."""
    if text.strip().lower() in (*_NO, *_startup.ALL):
        return ()
    return tuple(dict.fromkeys(filter(None, (item.strip() for item in text.split(",")))))


def parse_backends(text: str) -> tuple[BackendRequest, ...]:
    """Parse the comma list of ``NAME`` and ``NAME=module:attr``; white space and empty items are nothing.

    Raises:
        SettingsError: an item is neither, or a name is given twice.
    """
    requests: dict[str, BackendRequest] = {}
    for position, item in enumerate(text.split(","), start=1):
        if not item.strip():
            continue
        where = f"{BACKENDS}, item {position} ({item.strip()!r})"
        name, equals, reference = (part.strip() for part in item.partition("="))
        if not NAME.fullmatch(name):
            raise SettingsError(
                f"{name!r} is not a backend name",
                where=where,
                remedy="begin with a letter and use letters, digits, '_', '-' and '.' only",
            )
        if equals and not REFERENCE.fullmatch(reference):
            raise SettingsError(
                f"{reference!r} is not a reference", where=where, remedy="write NAME=package.module:attribute"
            )
        if name in requests:
            raise SettingsError(
                f"Draft backend {name!r} is named twice",
                where=where,
                found=f"it is already named in {requests[name].where}",
                remedy="name it once",
            )
        requests[name] = BackendRequest(name=name, reference=reference if equals else None, where=where)
    return tuple(requests.values())
