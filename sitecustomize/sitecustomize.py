"""The start of sglang-draft-ext where nothing can be installed: put this folder and the package's folder on PYTHONPATH.

Python imports the first ``sitecustomize`` on ``sys.path`` and no other, so this one then runs the next, as if it had
not been there itself. PYTHONPATH reaches every interpreter, older ones too, so this file must run on those.
"""

import os
import sys


def _start():
    if sys.version_info < (3, 10):  # noqa: UP036
        return
    try:
        from sglang_draft_ext import _startup
    except ImportError as error:
        # Without the package there is nothing to start. A package that is there and lacks something is worth a word.
        if error.name != "sglang_draft_ext":
            _report(error)
    except Exception as error:
        _report(error)
    else:
        _startup.run()


def _report(error):
    # Not raised: the next sitecustomize must have its turn whatever became of this one.
    sys.stderr.write(f"sglang-draft-ext cannot start ({type(error).__name__}: {error})\n")


def _run_next():
    # Always loaded, unlike importlib.machinery.
    import _frozen_importlib_external as external

    here = os.path.abspath(os.path.dirname(__file__))
    path = [os.path.abspath(entry) for entry in sys.path]
    if here not in path:
        return
    spec = external.PathFinder.find_spec(__name__, path[path.index(here) + 1 :])
    # A mere folder of that name (a namespace package, which has no origin) holds nothing to run.
    if spec is not None and spec.origin is not None:
        # It takes this module's place in sys.modules, and what it raises goes up to site, which reports it.
        external._bootstrap._load(spec)


_start()
_run_next()
