"""What this package raises. Every message says what was asked and where, what was found, and one thing to do."""

from __future__ import annotations

OFF_SWITCH = "SGLANG_DRAFT_EXT_DISABLE=1 switches this package off"


class DraftExtError(Exception):
    """Base of every error of this package.

    Args:
        problem: What was asked and cannot be done, as one sentence without the full stop.
        where: Where it was asked: an environment variable, a flag, an entry point, a call site.
        found: What was found instead.
        remedy: One thing to do.
    """

    def __init__(
        self, problem: str, *, where: str | None = None, found: str | None = None, remedy: str | None = None
    ) -> None:
        self.problem = problem
        self.where = where
        self.found = found
        self.remedy = remedy
        parts = [problem]
        if where:
            parts.append(f"Asked in: {where}")
        if found:
            parts.append(f"Found: {found}")
        parts.append(f"To do: {remedy}; {OFF_SWITCH}" if remedy else f"To do: {OFF_SWITCH}")
        super().__init__(". ".join(parts) + ".")

    def __reduce__(self) -> tuple[object, ...]:
        # Keyword-only arguments do not survive Exception's own pickling, and errors cross process borders here.
        return _rebuild, (type(self), self.problem, self.where, self.found, self.remedy)


def _rebuild(
    kind: type[DraftExtError], problem: str, where: str | None, found: str | None, remedy: str | None
) -> DraftExtError:
    return kind(problem, where=where, found=found, remedy=remedy)


class SettingsError(DraftExtError):
    """A ``SGLANG_DRAFT_EXT_*`` variable does not say anything that can be done."""


class SelectionError(DraftExtError):
    """The backends selected for the draft's roles are malformed, or one of them cannot do its role."""


class BackendError(DraftExtError):
    """A draft backend is declared wrongly, cannot be built, or cannot do what this launch asks of it."""


class RegistrationError(DraftExtError):
    """A name cannot be registered: unknown, taken, or a stock draft backend."""


class LateRegistrationError(RegistrationError):
    """A registration came after server arguments were parsed in this process."""


class AgreementError(DraftExtError):
    """The processes of a server do not ask the same of this package."""


class HookError(DraftExtError):
    """This SGLang release does not look as a hook expects, so it is left unpatched and the launch is refused."""
