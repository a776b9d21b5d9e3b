"""What runs when the interpreter starts: the ``.pth`` line, the ``.start`` file and ``sitecustomize`` call ``run()``.

Every Python process of an environment pays for this file, whether it has to do with SGLang or not. So it is the only
file loaded, it imports nothing that ``site`` has not imported already (not even ``__future__``), and everything else
waits for the first ``import sglang``. The finder that waits is this module itself, as creating a class takes longer
than the rest of it.

``os`` and ``sys`` are imported in the functions: the finder lives until the interpreter has ended, with the globals of
this module, and to keep those two alive so long costs more at every exit than all that happens here.
"""

# typing is not loaded at interpreter start.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType

PACKAGE = "sglang_draft_ext"
PREFIX = "SGLANG_DRAFT_EXT_"
DISABLE = PREFIX + "DISABLE"
ALL = ("1", "true", "all")  # of DISABLE: nothing of this package runs

# What was imported to activate, with its spec: see create_module().
_activated: "dict[str, tuple[ModuleType, ModuleSpec | None]]" = {}


def disabled() -> bool:
    """Whether ``SGLANG_DRAFT_EXT_DISABLE`` switches the whole package off (it may also name single hooks)."""
    import os

    return os.environ.get(DISABLE, "").strip().lower() in ALL


def configured() -> bool:
    """Whether the environment asks anything of this package; if not, it must not get in the way, even if it fails."""
    import os

    return any(
        value.strip() and name.startswith(PREFIX) and name not in (DISABLE, PREFIX + "DEBUG")
        for name, value in os.environ.items()
    )


def find_spec(name: str, path: object = None, target: object = None) -> "ModuleSpec | None":
    """Find nothing but this package, and take the moment before anything of ``sglang`` is imported.

    Raises:
        ImportError: this package is damaged, and the environment asks something of it.
        BaseException: the recorded refusal, see ``_finder.refuse``.
    """
    if name in _activated:
        import sys
        from importlib.machinery import ModuleSpec

        return ModuleSpec(name, sys.modules[__name__])  # type: ignore[arg-type]  # this module is a loader, too
    if name == PACKAGE:
        return _own_spec()
    if name != "sglang" and not name.startswith("sglang."):
        return None
    import _imp
    import sys

    # Finders are called under the import lock, which every import in every thread needs to get on. What follows
    # waits for imports of other threads, so it lets go of it.
    held = 0
    try:
        while True:
            _imp.release_lock()
            held += 1
    except RuntimeError:
        pass  # not held by this thread, or no longer
    try:
        # Activates, once for all threads: the lock of this one module sees to that. A lock of ours would not do.
        # The caller already holds the lock of the module it asked for, and the import system breaks a deadlock only
        # among locks that it knows. This form of the statement waits for another thread, and puts up with finding
        # the module half imported by this one.
        import sglang_draft_ext._activation  # noqa: F401
        from sglang_draft_ext import _finder
    except Exception as error:
        if not configured():
            return None
        raise ImportError(
            f"sglang-draft-ext is damaged ({type(error).__name__}: {error}), yet {PREFIX}* variables ask for it: "
            f"install it again, or set {DISABLE}=1 to go on without it",
            name=PACKAGE,
        ) from error
    finally:
        for _ in range(held):
            _imp.acquire_lock()
    for loaded, module in sys.modules.copy().items() if not _activated else ():
        if loaded.partition(".")[0] in (PACKAGE, "wrapt"):
            _activated[loaded] = module, getattr(module, "__spec__", None)
    _finder.check()
    return None


def create_module(spec: "ModuleSpec") -> "ModuleType":
    """Give back the module that was dropped from ``sys.modules``.

    Programs look for ``sglang`` and then drop all modules that this has brought (coverage does, for ``source = sglang``). The
    hooks are applied by those modules; a second copy of them would know of nothing.
    """
    return _activated[spec.name][0]


def exec_module(module: "ModuleType") -> None:
    """It has run already."""
    module.__spec__ = _activated[module.__name__][1]


def _own_spec() -> "ModuleSpec | None":
    # One process, one copy. The .pth line has loaded this file by its place, before the package itself; what sys.path
    # holds by now (the working directory, a checkout on PYTHONPATH) must not mix a second copy into it.
    import os
    from importlib.machinery import PathFinder

    return PathFinder.find_spec(PACKAGE, [os.path.dirname(os.path.dirname(os.path.abspath(__file__)))])


def run() -> None:
    """Wait for the first import of ``sglang``. Does nothing when switched off, or when called again."""
    import sys

    finder = sys.modules[__name__]
    if not disabled() and finder not in sys.meta_path:
        sys.meta_path.insert(0, finder)
