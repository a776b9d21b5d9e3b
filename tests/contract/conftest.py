"""The release under test is the `sglang` on the path; this package must be active in this interpreter before it is imported."""

import os
from importlib.util import find_spec

# Read when SGLang is first imported, by any test module.
os.environ["SGLANG_DRAFT_EXT_BACKENDS"] = "contract=contract.provider:BACKEND,torch_native"
if os.environ.get("DRAFT_EXT_DEVICE", "cpu") == "cpu":
    os.environ.setdefault("TRITON_INTERPRET", "1")
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")

# Elsewhere the unit tests can still be collected; asking for these then ends with "no tests ran", which is an error.
collect_ignore_glob = [] if find_spec("sglang") else ["test_*.py"]


def pytest_configure(config):
    # What stock and its dependencies warn of is theirs; what this package warns of is an error.
    config.addinivalue_line("filterwarnings", "ignore")
    config.addinivalue_line("filterwarnings", "error:::sglang_draft_ext")
