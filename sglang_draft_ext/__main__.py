"""``python -m sglang_draft_ext``, the same as the console script."""

from sglang_draft_ext.cli import main

if __name__ == "__main__":  # a child that the doctor spawns loads this file, too
    raise SystemExit(main())
