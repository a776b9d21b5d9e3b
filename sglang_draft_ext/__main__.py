"""``python -m sglang_draft_ext``, the same as the console script."""

from sglang_draft_ext.cli import main

raise SystemExit(main())
