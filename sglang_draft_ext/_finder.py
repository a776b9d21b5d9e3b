"""What happens before a module of ``sglang`` is imported: the hooks are activated once, and a refusal is repeated.

Standard library only: this must work when wrapt or the rest of the package does not.
"""

import sys
from contextlib import contextmanager

from sglang_draft_ext._startup import DISABLE, configured

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType, TracebackType

#: Why the hooks could not be activated; kept for the doctor when the environment asks nothing of this package.
activation_error: BaseException | None = None
#: Raised by every import of ``sglang`` and its modules, once set.
refusal: BaseException | None = None
_refusal_traceback: "TracebackType | None" = None

# `site` runs .pth lines, sitecustomize and usercustomize.
_SWALLOWING = ("site", "sglang.srt.plugins")


def refuse(error: BaseException) -> None:
    """Let every further import of ``sglang`` fail with *error*; the first refusal stands.

    An import hook that raises does so only once (wrapt has dropped it by then), and a second attempt at the import
    would go through, unpatched.
    """
    global refusal, _refusal_traceback
    if refusal is None:
        # The traceback as it is now: each further raise would lengthen it.
        refusal, _refusal_traceback = error, error.__traceback__


def check() -> None:
    """Raise the refusal, if there is one."""
    if refusal is not None:
        raise refusal.with_traceback(_refusal_traceback)


@contextmanager
def not_swallowed() -> "Iterator[None]":
    """Keep an error that the calling place prints or logs and then forgets; SGLang's next import raises it again."""
    try:
        yield
    except Exception as error:
        frame: FrameType | None = sys._getframe()
        while frame:
            if frame.f_globals.get("__name__") in _SWALLOWING:
                refuse(error)
            frame = frame.f_back
        raise


def activate() -> None:
    """Call ``hooks.activate()`` and keep its failure: for ``_activation`` alone."""
    global activation_error
    try:
        from sglang_draft_ext import hooks

        hooks.activate()
    except Exception as error:
        activation_error = error
        registry = sys.modules.get("sglang_draft_ext.registry")
        if configured() or (registry and registry.registry.names):
            refuse(_with_off_switch(error))


def _with_off_switch(error: Exception) -> Exception:
    if DISABLE in str(error):
        return error
    named = ImportError(
        f"sglang-draft-ext could not patch SGLang ({type(error).__name__}: {error}); "
        f"set {DISABLE}=1 to go on without it",
        name="sglang",
    )
    named.__cause__ = error
    return named
