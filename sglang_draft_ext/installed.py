"""The SGLang of this interpreter, found without importing it."""

from __future__ import annotations

import sys

from sglang_draft_ext import _startup
from sglang_draft_ext.surface import Surface, installed_version


def installed() -> Surface | None:
    """The release that `import sglang` would find; None where there is none."""
    # Not by `importlib.util.find_spec`, which would ask this package's own finder, and so activate the hooks.
    others = (finder for finder in sys.meta_path if finder is not _startup)
    spec = next(filter(None, (finder.find_spec("sglang", None) for finder in others)), None)
    folders = [*(spec.submodule_search_locations or ())] if spec else []
    return Surface(folders, installed_version()) if folders else None
