"""The example provider's own tests, as a vendor who copied it runs them."""

import _environment
from _server import run_group

EXAMPLE = _environment.ROOT / "examples" / "imaginary-accelerator"


def test_its_own_tests_pass(servers, tmp_path):
    python = servers.python(extended=True, providers=[EXAMPLE])
    command = [python, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", EXAMPLE, EXAMPLE / "tests"]
    code, output = run_group(command, tmp_path / "log", timeout=600)
    assert code == 0, output[-3000:]
