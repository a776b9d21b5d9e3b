"""What happens before a module of ``sglang`` is imported: the hooks are activated once, and a refusal is repeated.

Standard library only: this must work when wrapt or the rest of the package does not.
"""

from sglang_draft_ext._startup import DISABLE, configured

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType

#: Why the hooks could not be activated; kept for the doctor when the environment asks nothing of this package.
activation_error: BaseException | None = None
#: Raised by every import of ``sglang`` and its modules, once set.
refusal: BaseException | None = None
_refusal_traceback: "TracebackType | None" = None


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


def activate() -> None:
    """Call ``hooks.activate()`` and keep its failure: for ``_activation`` alone."""
    global activation_error
    try:
        from sglang_draft_ext import hooks

        hooks.activate()
    except Exception as error:
        activation_error = error
        if configured():
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
