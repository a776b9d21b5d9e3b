"""The second trigger: SGLang's own plugin entry point, for installations whose start-up file does not run."""

from __future__ import annotations

from sglang_draft_ext import _startup, hooks


def load() -> None:
    """Activate, unless the start-up file has done so already.

    SGLang logs and swallows what a plugin raises, so an error is kept and raised by the next import inside SGLang.
    """
    if _startup.disabled():
        return
    from sglang_draft_ext import _finder
    from sglang_draft_ext.errors import DraftExtError

    try:
        hooks.activate()
    except DraftExtError as error:
        _finder.refuse(error)
        _startup.run()
        raise
