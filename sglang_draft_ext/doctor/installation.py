"""How this package comes into an interpreter: its start-up files, its copies, and whether it runs."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import site
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from pathlib import Path

from sglang_draft_ext import __version__, _startup
from sglang_draft_ext.doctor.finding import Finding

DISTRIBUTION = "sglang-draft-ext"
PTH, START = "sglang_draft_ext.pth", "sglang_draft_ext.start"
#: From this version on, Python obeys a .start file, and then leaves the lines of a .pth of the same name alone.
STARTS = (3, 15)
_VERSION = re.compile(r'^__version__ = "([^"]+)"', re.MULTILINE)
AGAIN = "install sglang-draft-ext again"


@dataclass(frozen=True, kw_only=True)
class StartFile:
    """A start-up file of this package, and whether this Python obeys it."""

    path: str
    obeyed: bool
    why: str


@dataclass(frozen=True, kw_only=True)
class Copy:
    """A folder (or file) that `import sglang_draft_ext` could find."""

    path: str
    version: str | None
    running: bool


@dataclass(frozen=True, kw_only=True)
class Installation:
    """This package in this interpreter.

    Args:
        distributions: Name, version and place of every installed distribution of this package.
        start_files: Its start-up files in the folders of ``sys.path``.
        copies: Its copies there, and in the working directory.
        running: Whether the finder is on ``sys.meta_path``.
    """

    python: str
    distributions: tuple[str, ...]
    start_files: tuple[StartFile, ...]
    copies: tuple[Copy, ...]
    running: bool


def running() -> bool:
    """Whether this process waits for the first `import sglang`."""
    return _startup in sys.meta_path


def package() -> Path:
    """The folder of the copy that this process runs."""
    return Path(_startup.__file__).resolve().parent


def examine() -> tuple[Installation, list[Finding]]:
    """Look at this interpreter."""
    found = [d for d in distributions() if (d.metadata["Name"] or "").replace("_", "-") == DISTRIBUTION]
    files = tuple(_start_files())
    copies = tuple(_copies())
    made = Installation(
        python="{}.{}.{}".format(*sys.version_info) + f", {sys.executable}",
        distributions=tuple(f"{DISTRIBUTION} {d.version}, {_place(d)}" for d in found),
        start_files=files,
        copies=copies,
        running=running(),
    )
    findings = [*_of_start(files), *_of_copies(copies), *_of_distributions(found), *_of_finder()]
    return made, findings


def _place(distribution: Distribution) -> Path:
    return Path(str(distribution.locate_file(""))).resolve()


def _site_folders() -> list[Path]:
    """The folders whose start-up files Python obeys."""
    if sys.flags.no_site:
        return []
    folders = [*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]
    return [Path(folder).resolve() for folder in folders]


def _path() -> list[Path]:
    """The folders in which modules are looked for, the working directory first: `python -m` begins there."""
    return [*dict.fromkeys(Path(entry or os.curdir).resolve() for entry in ("", *sys.path))]


def _start_files() -> Iterator[StartFile]:
    sites = _site_folders()
    for folder in dict.fromkeys((*sites, *_path())):
        has_start = (folder / START).is_file()
        for name in (PTH, START):
            if not (folder / name).is_file():
                continue
            if sys.flags.no_site:
                why = "-S keeps Python from reading start-up files"
            elif folder not in sites:
                why = "not in a site folder; Python reads no start-up files elsewhere"
            elif name == START and sys.version_info < STARTS:
                why = "Python before 3.15 does not read .start files"
            elif name == PTH and has_start and sys.version_info >= STARTS:
                why = f"{START} takes its place"
            else:
                why = ""
            yield StartFile(path=str(folder / name), obeyed=not why, why=why)


def _copies() -> Iterator[Copy]:
    ours = package()
    for folder in _path():
        for path in (folder / "sglang_draft_ext", folder / "sglang_draft_ext.py"):
            if path.exists():
                yield Copy(path=str(path), version=_version_of(path), running=path == ours)
    if ours.parent not in _path():  # an editable install
        yield Copy(path=str(ours), version=__version__, running=True)


def _version_of(path: Path) -> str | None:
    init = path / "__init__.py"
    match = _VERSION.search(init.read_text(encoding="utf-8", errors="replace")) if init.is_file() else None
    return match[1] if match else None


def _of_start(files: tuple[StartFile, ...]) -> Iterator[Finding]:
    obeyed = [file for file in files if file.obeyed]
    if running():
        if not obeyed:
            yield Finding(
                name="started-otherwise",
                level="note",
                text="something else than a start-up file of this package has started it (sitecustomize, a program)",
                remedy="make sure that it does so in every process, or install the package",
            )
        return
    if _startup.disabled():
        return
    if sys.flags.no_site:
        yield Finding(
            name="no-site",
            level="problem",
            text="Python was started with -S, which leaves out start-up files",
            remedy="start it without -S",
        )
    elif obeyed:
        yield Finding(
            name="not-started",
            level="problem",
            text=f"{obeyed[0].path} is there, but has not started this package",
            remedy=AGAIN,
        )
    elif files:
        yield Finding(
            name="start-file-not-read",
            level="problem",
            text=f"Python does not obey {files[0].path}: {files[0].why}",
            remedy="install the package into the environment itself, or start it from a sitecustomize",
        )
    else:
        yield Finding(
            name="no-start-file",
            level="problem",
            text="this package has no start-up file here, so no process is patched when it starts",
            remedy=AGAIN,
        )


def _of_copies(copies: tuple[Copy, ...]) -> Iterator[Finding]:
    (ours, *_), others = [c for c in copies if c.running], [c for c in copies if not c.running]
    first = copies[0]
    for copy in others:
        shadows = copy is first
        what = f"version {copy.version}" if copy.version else "another thing of that name"
        yield Finding(
            name="shadowed" if shadows else "second-copy",
            level="note",
            text=f"{copy.path} ({what}) "
            + ("comes first on the path" if shadows else "lies on the path, too")
            + f"; this process runs {ours.path}",
            remedy="start Python elsewhere, or take it off PYTHONPATH" if shadows else "keep one of them",
        )


def _of_distributions(found: list[Distribution]) -> Iterator[Finding]:
    if len(found) > 1:
        yield Finding(
            name="installed-twice",
            level="problem",
            text=f"{DISTRIBUTION} is installed {len(found)} times: "
            + ", ".join(f"{d.version} in {_place(d)}" for d in found),
            remedy="uninstall it until none is left, and install one",
        )
    elif found and found[0].version != __version__:
        yield Finding(
            name="version-differs",
            level="problem",
            text=f"the installed distribution says version {found[0].version}, the running copy {__version__} ({package()})",
            remedy=AGAIN,
        )
    for distribution in found:
        for file in distribution.files or ():
            if file.name not in (PTH, START) or file.hash is None:
                continue
            path = Path(str(file.locate()))
            if path.is_file() and _digest(path, file.hash.mode) != file.hash.value:
                yield Finding(
                    name="start-file-changed",
                    level="problem",
                    text=f"{path} is not the file that was installed: its digest is not the one in RECORD",
                    remedy=f"read it, and {AGAIN}",
                )


def _digest(path: Path, algorithm: str) -> str:
    digest = hashlib.new(algorithm, path.read_bytes()).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _of_finder() -> Iterator[Finding]:
    if not running():
        return
    for finder in sys.meta_path[: sys.meta_path.index(_startup)]:
        find = getattr(finder, "find_spec", None)
        if find and find("sglang", None) is not None:
            yield Finding(
                name="finder-in-front",
                level="problem",
                text=f"{finder!r} finds sglang before this package sees the import",
                remedy="start what installs it before this package, or without it",
            )
