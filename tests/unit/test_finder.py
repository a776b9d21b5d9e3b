"""The moment before SGLang is imported: activation happens once, and a refusal holds."""

from __future__ import annotations

import pytest
from environments import Environment

CONFIGURED = {"SGLANG_DRAFT_EXT_BACKENDS": "torch_native"}
TRY = """
def attempt(name):
    try:
        __import__(name)
    except BaseException as error:
        print(type(error).__name__, error)
    else:
        print(name, 'imported')
"""


def set_hooks(environment: Environment, text: str) -> None:
    environment.write({"sglang_draft_ext/hooks.py": text})


def test_it_activates_before_sglang_runs(installed: Environment) -> None:
    assert installed.output("import sglang; import sglang.srt.a").split("\n") == ["activated", "sglang runs"]


@pytest.mark.parametrize("name", ["sglang_router", "sglangx", "json", "sgl"])
def test_other_names_do_not_activate(name: str, installed: Environment) -> None:
    installed.write({f"{name}.py": ""} if name != "json" else {})
    loaded = installed.output(
        f"import {name}, sys; print(*(m for m in sys.modules if m.startswith('sglang_draft_ext')))"
    )
    assert loaded == "sglang_draft_ext._startup"


def test_looking_for_sglang_activates_too(installed: Environment) -> None:
    """A search is not told from an import; wrapt must be in place by then either way."""
    assert (
        installed.output("import importlib.util; importlib.util.find_spec('sglang.srt')")
        == "activated\nsglang runs"
    )


def test_what_a_search_has_brought_may_be_dropped_again(installed: Environment) -> None:
    """As coverage does when it is told to measure sglang: it drops every module that its search has imported."""
    code = """
import importlib.util, sys
import sglang_draft_ext
before = set(sys.modules)
importlib.util.find_spec('sglang')
from sglang_draft_ext import _finder as first
spec = first.__spec__
for name in set(sys.modules) - before: del sys.modules[name]
print('sglang_draft_ext._finder' in sys.modules)
import sglang
import sglang_draft_ext._finder as second, sglang_draft_ext.hooks
print(first is second, second.__spec__ is spec)
"""
    assert installed.output(code).split("\n") == ["activated", "False", "sglang runs", "True True"]


def test_a_process_without_sglang(installed: Environment) -> None:
    (installed.site_packages / "sglang" / "__init__.py").unlink()
    (installed.site_packages / "sglang").rename(installed.site_packages / "other")
    assert (
        installed.output(TRY + "attempt('sglang')")
        == "activated\nModuleNotFoundError No module named 'sglang'"
    )


THREADS = """
import sys, threading
barrier = threading.Barrier(16)
def work(name):
    barrier.wait()
    __import__(name)
threads = [threading.Thread(target=work, args=(names[i % len(names)],)) for i in range(16)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""
SLOW_HOOKS = """
import time, wave  # something to import
def activate():
    time.sleep(0.1)
    import sglang_draft_ext.slow
    print('activated')
"""
SLOW = {"sglang_draft_ext/slow.py": "import time; time.sleep(0.1)\n"}


@pytest.mark.parametrize("names", [["sglang"], ["sglang.srt.a", "sglang", "sglang.srt.b", "sglang.srt"]])
def test_many_threads_activate_once(names: list[str], installed: Environment) -> None:
    set_hooks(installed, SLOW_HOOKS)
    installed.write(SLOW)
    assert installed.output(f"names = {names}" + THREADS).split("\n") == ["activated", "sglang runs"]


def test_many_threads_when_sglang_was_there_before(installed: Environment) -> None:
    """As when SGLang itself loads this package, by its plugin entry point."""
    set_hooks(installed, SLOW_HOOKS)
    installed.write(SLOW)
    late = "import sglang.srt; from sglang_draft_ext import _startup; _startup.run()\n"
    late += "names = ['sglang.srt.a', 'sglang.srt.b']"
    assert (
        installed.output(late + THREADS, "-S", PYTHONPATH=str(installed.site_packages))
        == "sglang runs\nactivated"
    )


def test_imports_that_wait_for_each_other_end(installed: Environment) -> None:
    """One thread activates and wants a module that another is importing, which in turn wants SGLang."""
    set_hooks(
        installed,
        "import time\ndef activate():\n    time.sleep(0.2)\n    import provider\n    print('activated')\n",
    )
    installed.write({"provider.py": "import time; time.sleep(0.1)\nimport sglang\n"})
    code = """
import threading
def work(name):
    try:
        __import__(name)
    except RuntimeError as error:  # Python's own way out of a deadlock, as between any two modules
        assert 'deadlock' in str(error), error
threads = [threading.Thread(target=work, args=(name,)) for name in ('sglang', 'provider')]
for thread in threads: thread.start()
for thread in threads: thread.join()
import sglang
"""
    assert "sglang runs" in installed.output(code)


# Refusals

REFUSE = """
from sglang_draft_ext import _finder
class Refused(Exception): pass
_finder.refuse(Refused('the first'))
_finder.refuse(Refused('the second'))
"""


def test_a_refusal_is_repeated_and_the_first_one_stands(installed: Environment) -> None:
    code = (
        TRY
        + "import sglang.srt"
        + REFUSE
        + "for name in ['sglang.srt.a'] * 3 + ['sglang.srt', 'json']: attempt(name)"
    )
    assert installed.output(code).split("\n")[2:] == ["Refused the first"] * 3 + [
        "sglang.srt imported",
        "json imported",
    ]


def test_a_refused_import_leaves_no_module_behind(installed: Environment) -> None:
    code = TRY + REFUSE + "import sys\nattempt('sglang.srt')\nprint('sglang' in sys.modules)"
    assert installed.output(code).split("\n") == ["activated", "Refused the first", "False"]


def test_a_refusal_keeps_its_traceback_and_does_not_lengthen_it(installed: Environment) -> None:
    code = """
import traceback
from sglang_draft_ext import _finder
def origin():
    raise ValueError('why')
try:
    origin()
except ValueError as error:
    _finder.refuse(error)
for attempt in range(50):
    try:
        import sglang
    except ValueError as error:
        frames = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
print('origin' in frames, len(frames) < 12)
"""
    assert installed.output(code) == "activated\nTrue True"


# Activation that fails

FAILS = "def activate():\n    print('tried')\n    raise RuntimeError('no way')\n"


def test_a_failure_is_kept_when_nothing_is_asked_of_the_package(installed: Environment) -> None:
    set_hooks(installed, FAILS)
    code = TRY + "attempt('sglang'); attempt('sglang.srt.a')\nfrom sglang_draft_ext import _finder\n"
    kept = "print(repr(_finder.activation_error), _finder.refusal)"
    expected = [
        "tried",
        "sglang runs",
        "sglang imported",
        "sglang.srt.a imported",
        "RuntimeError('no way') None",
    ]
    assert installed.output(code + kept).split("\n") == expected
    for name in ("DISABLE", "DEBUG", "BACKENDS"):
        value = " " if name == "BACKENDS" else "0"
        assert installed.output(code + kept, **{f"SGLANG_DRAFT_EXT_{name}": value}).split("\n") == expected


def test_a_failure_is_raised_by_every_import_when_something_is_asked(installed: Environment) -> None:
    set_hooks(installed, FAILS)
    code = (
        TRY
        + "attempt('sglang'); attempt('sglang'); attempt('sglang.srt.a')\nfrom sglang_draft_ext import _finder\n"
    )
    *lines, cause = installed.output(code + "print(repr(_finder.refusal.__cause__))", **CONFIGURED).split(
        "\n"
    )
    message = "sglang-draft-ext could not patch SGLang (RuntimeError: no way)"
    off = "set SGLANG_DRAFT_EXT_DISABLE=1 to go on without it"
    assert lines == ["tried"] + [f"ImportError {message}; {off}"] * 3
    assert cause == "RuntimeError('no way')"


def test_an_error_that_names_the_off_switch_is_raised_as_it_is(installed: Environment) -> None:
    set_hooks(installed, "def activate():\n    raise LookupError('or set SGLANG_DRAFT_EXT_DISABLE=1')\n")
    code = TRY + "attempt('sglang'); attempt('sglang')"
    assert (
        installed.output(code, **CONFIGURED).split("\n")
        == ["LookupError or set SGLANG_DRAFT_EXT_DISABLE=1"] * 2
    )


def test_an_interrupt_is_not_kept(installed: Environment) -> None:
    set_hooks(installed, "def activate():\n    raise KeyboardInterrupt\n")
    assert installed.output(TRY + "attempt('sglang')").startswith("KeyboardInterrupt")
