"""Extra attention backends for SGLang's draft worker, on the stock release.

Nothing happens on import: this package is imported at the start of every Python process that has it installed, so the
public names are loaded when they are first used.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sglang_draft_ext.backend import DraftBackend as DraftBackend
    from sglang_draft_ext.errors import AgreementError as AgreementError
    from sglang_draft_ext.errors import BackendError as BackendError
    from sglang_draft_ext.errors import DraftExtError as DraftExtError
    from sglang_draft_ext.errors import HookError as HookError
    from sglang_draft_ext.errors import LateRegistrationError as LateRegistrationError
    from sglang_draft_ext.errors import RegistrationError as RegistrationError
    from sglang_draft_ext.errors import SelectionError as SelectionError
    from sglang_draft_ext.errors import SettingsError as SettingsError
    from sglang_draft_ext.registry import register as register

__version__ = "0.1.0"

_PUBLIC = {
    "AgreementError": "errors",
    "BackendError": "errors",
    "DraftBackend": "backend",
    "DraftExtError": "errors",
    "HookError": "errors",
    "LateRegistrationError": "errors",
    "RegistrationError": "errors",
    "SelectionError": "errors",
    "SettingsError": "errors",
    "register": "registry",
}

__all__ = [
    "AgreementError",
    "BackendError",
    "DraftBackend",
    "DraftExtError",
    "HookError",
    "LateRegistrationError",
    "RegistrationError",
    "SelectionError",
    "SettingsError",
    "register",
]


def __getattr__(name: str) -> object:
    module = _PUBLIC.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(f"{__name__}.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
