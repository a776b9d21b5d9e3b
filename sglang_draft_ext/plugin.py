"""The second trigger: SGLang's own plugin entry point, for installations whose start-up file does not run."""

from __future__ import annotations

from sglang_draft_ext import _startup


def load() -> None:
    """Activate, unless the start-up file has done so already.

    SGLang logs and swallows what a plugin raises, so a refusal is repeated by the next import inside SGLang.
    """
    if not _startup.disabled():
        _startup.run()
        _startup.find_spec("sglang")
