"""First imports of SGLang from many threads at once: every hook is applied once, and nobody waits for ever.

``DRAFT_EXT_STRESS=200 pytest tests/unit/test_threads.py`` starts 200 interpreters instead of a few.
"""

import os

import pytest
from unit.fake_release import FILES, python, write

pytestmark = pytest.mark.unit

INTERPRETERS = int(os.environ.get("DRAFT_EXT_STRESS", "3"))
THREADS = 32
# Another thread is importing this provider while a name is resolved, and it registers from inside the import.
REGISTERING = """
import provider, sglang_draft_ext
from sglang_draft_ext import DraftBackend
import sglang.srt.server_args

MINE = DraftBackend(name="mine", attention="provider:attention")
sglang_draft_ext.register(MINE)
"""
PROGRAM = """
import importlib, inspect, random, sys, threading
sys.setswitchinterval(1e-5)
random.seed({seed})
names = [random.choice({modules}) for _ in range({threads})]
names[random.randrange({threads})] = "registering"
barrier = threading.Barrier({threads})
errors = []

def work(name):
    barrier.wait()
    try:
        importlib.import_module(name)
    except BaseException as error:
        errors.append((name, error))

threads = [threading.Thread(target=work, args=(name,)) for name in names]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert not errors, errors

import wrapt
from sglang_draft_ext import hooks, points
surface = hooks.activation.surface
checked = 0
eras = [era for point in points.POINTS if (era := point.era(surface))]
for hook in (hook for era in eras for hook in era.hooks):
    if hook.module not in sys.modules or not (hook.wrapper or hook.edit):
        continue
    found = sys.modules[hook.module]
    for part in hook.attribute.split("."):
        found = inspect.getattr_static(found, part)
    assert hook in hooks.activation.applied, hook
    if hook.kind == "list":
        assert found.count("accel") == found.count("mine") == 1, found
    elif hook.kind == "dict":
        assert {{"accel", "mine"}} <= {{*found}}, found
    elif hook.kind == "class":
        assert "__new__" in vars(found), hook
    elif hook.attribute.endswith("__post_init__"):
        assert found.__code__.co_names[-1:] == ("built",), hook
    elif hook.wrapper or (hook.edit == "choices:guard_helper" and hook.module.endswith("choices")):
        if type(found) in (staticmethod, classmethod):
            found = found.__func__
        assert isinstance(found, wrapt.FunctionWrapper), hook
        inner = found.__wrapped__
        assert not isinstance(inner, wrapt.FunctionWrapper), hook
    checked += 1
assert checked >= 5, checked
print("patched once")
"""


def modules():
    names = ("sglang." + name.removesuffix(".py").replace("/", ".") for name in FILES)
    return sorted(name.removesuffix(".__init__") for name in names)


@pytest.mark.parametrize("seed", range(INTERPRETERS))
def test_many_first_imports_at_once(tmp_path, seed):
    folder = write(tmp_path)
    (folder / "registering.py").write_text(REGISTERING)
    code = PROGRAM.format(seed=seed, modules=modules(), threads=THREADS)
    # A deadlock ends in the timeout of `python`.
    result = python(folder, code, SGLANG_DRAFT_EXT_BACKENDS="accel=provider:BACKEND")
    assert (result.returncode, result.stdout) == (0, "patched once\n"), result.stderr
