"""Other code that runs in every process, and may change the same places of SGLang: .pth files, sitecustomize, plugins.

Nothing is imported: a package is taken to touch a hook when one of its files names the module, and assigns to the attribute or
names it in a string.
"""

from __future__ import annotations

import re
import site
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.machinery import PathFinder
from importlib.metadata import entry_points
from pathlib import Path

from sglang_draft_ext.doctor.finding import Finding
from sglang_draft_ext.points import POINTS

PLUGINS = "sglang.srt.plugins"
#: Larger packages than this do more than patch SGLang, and reading them would take long.
MOST_FILES = 2000
_IMPORTS = re.compile(r"(?:\bimport|\bfrom|import_module\(|__import__\()\s*['\"]?([A-Za-z_]\w*)")
_OURS = ("sglang_draft_ext", "sglang_draft_ext.pth")


@dataclass(frozen=True, kw_only=True)
class Neighbour:
    """Something that runs beside this package.

    Args:
        kind: ``.pth file``, ``sitecustomize``, ``usercustomize`` or ``SGLang plugin``.
        name: The file, or the plugin with its distribution.
        touches: The hooks of this package that its code names.
    """

    kind: str
    name: str
    touches: tuple[str, ...]


def examine() -> tuple[tuple[Neighbour, ...], list[Finding]]:
    """Look at all there is on this interpreter's path."""
    found = (*_pth_files(), *_customizers(), *_plugins())
    return found, [
        Finding(
            name="same-target",
            level="note",
            text=f"{neighbour.kind} {neighbour.name} names {', '.join(neighbour.touches)}, which this package changes, too",
            remedy="if a launch misbehaves, try it without one of the two",
        )
        for neighbour in found
        if neighbour.touches
    ]


def _pth_files() -> Iterator[Neighbour]:
    folders = {*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])}
    for file in sorted(path for folder in folders for path in Path(folder).glob("*.pth")):
        if file.name in _OURS:
            continue
        text = file.read_text(encoding="utf-8", errors="replace")
        lines = "\n".join(line for line in text.splitlines() if line.startswith(("import ", "import\t")))
        if lines:
            yield Neighbour(kind=".pth file", name=str(file), touches=_touched(lines))


def _customizers() -> Iterator[Neighbour]:
    for name in ("sitecustomize", "usercustomize"):
        spec = PathFinder.find_spec(name)
        if spec and spec.origin:
            text = Path(spec.origin).read_text(encoding="utf-8", errors="replace")
            yield Neighbour(kind=name, name=spec.origin, touches=_touched(text))


def _plugins() -> Iterator[Neighbour]:
    for point in sorted(entry_points(group=PLUGINS)):
        if not point.value.startswith("sglang_draft_ext."):
            by = f" of {point.dist.name} {point.dist.version}" if point.dist else ""
            yield Neighbour(
                kind="SGLang plugin",
                name=f"{point.name}{by} ({point.value})",
                touches=_touched(f"import {point.value}"),
            )


def _touched(text: str) -> tuple[str, ...]:
    """The hooks that *text* names, or the packages that it imports."""
    packages = {*_IMPORTS.findall(text)} - {*sys.stdlib_module_names, "sglang", *_OURS}
    files = [file for package in sorted(packages) for file in _files(package)]
    texts = [text, *(file.read_text(encoding="utf-8", errors="replace") for file in files)]
    return tuple(sorted({target for text in texts for target in _targets(text)}))


def _files(package: str) -> list[Path]:
    spec = PathFinder.find_spec(package)
    if spec is None:
        return []
    folders: Iterable[str] = spec.submodule_search_locations or ()
    files = [file for folder in folders for file in Path(folder).rglob("*.py")]
    if not folders and spec.origin and spec.origin.endswith(".py"):
        files = [Path(spec.origin)]
    return files if len(files) <= MOST_FILES else []


def _targets(text: str) -> Iterator[str]:
    if "sglang" not in text:
        return
    for hook in (hook for point in POINTS for era in point.eras for hook in era.hooks):
        package, _, module = hook.module.rpartition(".")
        named = hook.module in text or re.search(rf"from {re.escape(package)} import .*\b{module}\b", text)
        if named and (hook.wrapper or hook.edit) and _changes(text, hook.attribute):
            yield hook.target


def _changes(text: str, attribute: str) -> bool:
    """Whether *attribute* is assigned to, or is the end of a string, as patching functions and plugins take it."""
    owner, _, name = attribute.rpartition(".")
    last = re.escape(attribute if name == "__init__" else name)
    quoted = rf"""(['"])([\w.:]*[.:])?{last}\1"""
    assigned = rf"\b{re.escape(owner.rpartition('.')[2] or '')}\.?{re.escape(name)}\s*=(?!=)"
    return re.search(f"{quoted}|{assigned}", text) is not None
