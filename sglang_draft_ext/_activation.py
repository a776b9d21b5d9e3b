"""Importing this module activates the hooks: the import system then sees to it that it happens once."""

from sglang_draft_ext import _finder

_finder.activate()
