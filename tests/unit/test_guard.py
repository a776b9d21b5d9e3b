"""The window, on the fake release: every route that comes too late, and every route that does not."""

import pytest
from unit.fake_release import python, write

pytestmark = pytest.mark.unit

ASKING = {"SGLANG_DRAFT_EXT_BACKENDS": "accel=provider:BACKEND"}
PRELUDE = """
import argparse, os, pickle, sys, types
import sglang_draft_ext
from sglang_draft_ext import DraftBackend

PICKLED = b"csglang.srt.server_args\\n_rebuild_server_args\\n(csglang.srt.server_args\\nServerArgs\\n}}tR."

def more(name="more"):
    return DraftBackend(name=name, attention="provider:attention")

def late(call):
    try:
        call()
    except sglang_draft_ext.LateRegistrationError as error:
        print("late:", error)
    else:
        print("in time")
"""
CLOSE = {
    "prepare_server_args": "from sglang.srt.server_args import prepare_server_args; prepare_server_args([])",
    "from_cli_args": "ServerArgs.from_cli_args(types.SimpleNamespace())",
    "built": "ServerArgs()",
    "resolve_once": "ServerArgs().resolve_once()",
    "Engine": "from sglang.srt.entrypoints.engine import Engine; Engine()",
    "several": "ServerArgs().resolve_once(); ServerArgs().resolve_once()",
}
OPEN = {
    "nothing": "pass",
    "parser": "ServerArgs.add_cli_args(argparse.ArgumentParser()); argparse.ArgumentParser().format_help()",
    "defaults": "ServerArgs(model_path='dummy').resolve_once(); ServerArgs.page_size",
    "unpickling": "pickle.loads(pickle.dumps(ServerArgs(model_path='dummy')))",
    "unpickling what was built elsewhere": "pickle.loads(PICKLED)",
}
LATE = {
    "register": "sglang_draft_ext.register(more())",
    "helper": "choices.add_attention_backend_choices(['x'])",
    "draft helper": "choices.add_draft_attention_backend_choices(['x'])",
    "helper of server_args": "server_args.add_attention_backend_choices(['x'])",
}
UNNOTICED = {
    "list": "choices.ATTENTION_BACKEND_CHOICES.append('x')",
    "draft list": "choices.DRAFT_ATTENTION_BACKEND_CHOICES += ['x']",
    "removal": "choices.ATTENTION_BACKEND_CHOICES.remove('wave')",
    "variable": "os.environ['SGLANG_DRAFT_EXT_BACKENDS'] = 'wave'",
    "selection": "os.environ['SGLANG_DRAFT_EXT_SELECT'] = 'decode=accel'",
    "off switch": "os.environ['SGLANG_DRAFT_EXT_DISABLE'] = '1'",
}
IMPORTS = """
from sglang.srt.server_args import ServerArgs
from sglang.srt import server_args
from sglang.srt.arg_groups import choices
"""


@pytest.fixture
def release(tmp_path):
    return write(tmp_path)


def said(folder, code, **environ):
    result = python(folder, PRELUDE + code, **environ)
    assert result.returncode == 0, result.stderr
    assert "Error" not in result.stderr
    return result.stdout


@pytest.mark.parametrize("route", LATE)
@pytest.mark.parametrize("closing", CLOSE)
def test_a_late_call_raises_with_both_places(release, closing, route):
    code = IMPORTS + f"{CLOSE[closing]}\nlate(lambda: {LATE[route]})\n"
    line = len((PRELUDE + IMPORTS).splitlines()) + 1
    out = said(release, code, **ASKING)
    assert f"server arguments were already parsed or built at <string>:{line}" in out
    assert f"<string>:{line + 1}" in out
    assert "do it before, or name the backend in SGLANG_DRAFT_EXT_BACKENDS" in out


@pytest.mark.parametrize("route", LATE)
@pytest.mark.parametrize("opening", OPEN)
def test_in_time(release, opening, route):
    assert said(release, IMPORTS + f"{OPEN[opening]}\nlate(lambda: {LATE[route]})", **ASKING) == "in time\n"


@pytest.mark.parametrize("checkpoint", ["from_cli_args", "resolve_once", "pickle"])
@pytest.mark.parametrize("route", UNNOTICED)
def test_a_late_change_is_noticed_at_the_next_checkpoint(release, checkpoint, route):
    code = IMPORTS + "made = ServerArgs(); made.resolve_once()\n"
    again = {**CLOSE, "pickle": "pickle.dumps(made)"}[checkpoint]
    line = len((PRELUDE + code).splitlines()) + 2
    out = said(release, code + f"{UNNOTICED[route]}\nlate(lambda: {again})\n", **ASKING)
    assert out.startswith("late:")
    assert f"noticed at <string>:{line}" in out
    assert f"parsed or built at <string>:{line - 2}" in out


def test_a_variable_that_changed_before_the_window_closed_is_not_ignored_either(release):
    code = (
        IMPORTS
        + "os.environ['SGLANG_DRAFT_EXT_BACKENDS'] = 'wave'\nlate(lambda: ServerArgs().resolve_once())\n"
    )
    out = said(release, code)
    assert "SGLANG_DRAFT_EXT_BACKENDS was None and is 'wave'; it was read when SGLang was imported at" in out


@pytest.mark.parametrize("route", sorted({*LATE, *UNNOTICED} - {"register", "variable", "selection"}))
def test_where_nothing_asks_for_this_package_stock_is_stock(release, route):
    code = (
        IMPORTS
        + f"ServerArgs().resolve_once()\n{({**LATE, **UNNOTICED})[route]}\nServerArgs().resolve_once()\n"
    )
    code += "print(type(choices.add_attention_backend_choices).__name__)\n"
    assert said(release, code) == "builtin_function_or_method\n"


def test_stocks_helpers_do_what_they_did(release):
    code = (
        IMPORTS
        + "print(choices.add_attention_backend_choices(('a', 'b')), choices.ATTENTION_BACKEND_CHOICES)\n"
    )
    code += "import inspect; print(inspect.signature(choices.add_attention_backend_choices))\n"
    code += "ServerArgs().resolve_once(); ServerArgs().resolve_once()\n"
    expected = "None ['triton', 'torch_native', 'wave', 'accel', 'a', 'b']\n(iterable, /)\n"
    assert said(release, code, **ASKING) == expected


def test_an_entry_in_stocks_registry_is_never_late(release):
    code = IMPORTS + "ServerArgs().resolve_once()\n"
    code += "from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS\n"
    code += "ATTENTION_BACKENDS['x'] = 1; ServerArgs().resolve_once()\n"
    assert said(release, code, **ASKING) == ""


def test_a_provider_that_registers_while_the_arguments_are_parsed_is_late(release):
    (release / "eager.py").write_text(
        "import provider, sglang_draft_ext\nBACKEND = provider.BACKEND\nsglang_draft_ext.register(provider.LIMITED)\n"
    )
    code = IMPORTS + f"late(lambda: {CLOSE['from_cli_args']})\n"
    out = said(release, code, SGLANG_DRAFT_EXT_BACKENDS="accel=eager:BACKEND")
    assert out.startswith("late: Draft backend 'limited' is registered too late to have an effect")
    assert "eager.py:3" in out


# Places that swallow what is raised in them

REGISTERS = {
    "twice": "import sglang_draft_ext, provider; sglang_draft_ext.register(provider.BACKEND); "
    "sglang_draft_ext.register(provider.BACKEND)",
    "something else": "import sglang_draft_ext; sglang_draft_ext.register(7)",
}
TRY = """
for attempt in range(2):
    try:
        import sglang.srt.server_args
    except Exception as error:
        print(type(error).__name__, str(error)[:40])
"""


@pytest.mark.parametrize("what", REGISTERS)
@pytest.mark.parametrize("place", [".pth", "sitecustomize"])
def test_what_is_swallowed_at_the_start_is_raised_by_the_import(release, place, what):
    site = release / "site"
    site.mkdir()
    start = release / "start"
    start.mkdir()
    if place == ".pth":
        (site / "provider.pth").write_text(REGISTERS[what] + "\n")
        (start / "sitecustomize.py").write_text(f"import site; site.addsitedir({str(site)!r})\n")
    else:
        (start / "sitecustomize.py").write_text(REGISTERS[what] + "\n")
    # Before the package's own sitecustomize, whose work register() does, then.
    code = f"import subprocess, sys, os\nos.environ['PYTHONPATH'] = {str(start)!r} + os.pathsep + os.environ['PYTHONPATH']\n"
    code += f"done = subprocess.run([sys.executable, '-c', {TRY!r}], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)\n"
    code += (
        "print(done.returncode, done.stdout)\nassert 'SGLANG_DRAFT_EXT_DISABLE=1' in done.stderr, done.stderr"
    )
    kind = (
        "RegistrationError Draft backend 'accel' is registered twic"
        if what == "twice"
        else "BackendError 7 is not"
    )
    out = said(release, code)
    assert out.startswith("0 ")
    assert out.count(kind) == 2


def entry_point(folder, text):
    """A distribution with a plugin for SGLang."""
    (folder / "plugin-1.dist-info").mkdir()
    (folder / "plugin-1.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: plugin\nVersion: 1\n"
    )
    (folder / "plugin-1.dist-info" / "entry_points.txt").write_text(
        "[sglang.srt.plugins]\nit = " + text + "\n"
    )


@pytest.mark.parametrize("environ", [{}, ASKING])
def test_what_sglang_swallows_of_a_plugin_is_raised_all_the_same(release, environ):
    (release / "bad_plugin.py").write_text(
        "import sglang_draft_ext\ndef load(): sglang_draft_ext.register(7)\n"
    )
    entry_point(release, "bad_plugin:load")
    code = """
from sglang.srt.entrypoints.engine import Engine
try:
    Engine()
except sglang_draft_ext.BackendError as error:
    print(error.problem)
"""
    # Where this package is installed, its own plugin repeats the refusal, and that is swallowed, too.
    *swallowed, raised = said(release, code, **environ).splitlines()
    assert {*swallowed} == {"swallowed BackendError"}
    assert raised == "7 is not a DraftBackend"


def test_a_program_that_handles_the_error_itself_goes_on(release):
    code = "try: sglang_draft_ext.register(7)\nexcept sglang_draft_ext.BackendError: pass\n"
    assert said(release, code + CLOSE["Engine"]) == ""


# Started after SGLang was imported

LATE_START = """
import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not sys.modules.get("sglang_draft_ext._startup")]
"""


def test_a_plugin_is_early_enough_to_patch(release):
    entry_point(release, "sglang_draft_ext.plugin:load")
    code = (
        LATE_START
        + """
from sglang.srt.entrypoints.engine import Engine
from sglang.srt.model_executor import model_runner
from sglang.srt.model_executor.model_runner_components import attention_backend_setup
Engine()
from sglang_draft_ext import hooks
print({"ServerArgs.resolve_once", "ATTENTION_BACKEND_CHOICES"} <= {hook.attribute for hook in hooks.activation.applied})
print(model_runner.resolve_attention_backend_strs is attention_backend_setup.resolve_attention_backend_strs)
print(hasattr(model_runner.resolve_attention_backend_strs, "__wrapped__"))
late(lambda: sglang_draft_ext.register(more()))
"""
    )
    out = said(release, code, **ASKING).splitlines()
    assert out[:3] == ["True"] * 3
    assert out[3].startswith("late:")


def test_a_plugin_after_the_arguments_is_too_late(release):
    entry_point(release, "sglang_draft_ext.plugin:load")
    code = (
        LATE_START
        + """
from sglang.srt.server_args import ServerArgs
from sglang.srt.plugins import load_plugins
held = ServerArgs()
load_plugins()
from sglang_draft_ext import hooks
"""
    )
    notice = "try: ServerArgs().resolve_once()\nexcept Exception as error: print(error)\n"
    out = said(release, code + notice, **ASKING)
    assert "The environment is read too late to have an effect" in out
    assert "parsed or built at an unknown place, before this package was started" in out
    out = said(release, code + "held.resolve_once(); late(lambda: sglang_draft_ext.register(more()))")
    assert out.startswith("late: Draft backend 'more' is registered too late")


@pytest.mark.parametrize("held", [True, False])
def test_register_starts_the_package_where_the_interpreter_did_not(release, held):
    code = LATE_START + IMPORTS + ("held = ServerArgs()\n" if held else "")
    code += "late(lambda: sglang_draft_ext.register(more()))\n"
    code += "print('more' in choices.ATTENTION_BACKEND_CHOICES)\n"
    out = said(release, code)
    assert out.startswith("late:") == held
    assert out.endswith("False\n" if held else "in time\nTrue\n")
