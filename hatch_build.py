"""Build hook: the start-up file of an editable install.

The ``.pth`` line of a wheel loads the package that lies beside it. In an editable install the package lies in the
working tree, so the same line is installed with that folder written out.
"""

import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PTH = "sglang_draft_ext.pth"
START = "sglang_draft_ext.start"


class StartFiles(BuildHookInterface):
    """Found by hatchling, as the one hook in this file."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Before a build; *version* is ``standard`` or ``editable``."""
        if version != "editable":
            return
        root = Path(self.root)
        line = (root / PTH).read_text(encoding="utf-8")
        assert line.count("sitedir") == 1, f"{PTH} names sitedir once"
        self._folder = tempfile.TemporaryDirectory()
        written = Path(self._folder.name, PTH)
        written.write_text(line.replace("sitedir", repr(str(root))), encoding="utf-8")
        build_data["force_include_editable"] = {str(written): PTH, str(root / START): START}

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """After a build."""
        if version == "editable":
            self._folder.cleanup()
