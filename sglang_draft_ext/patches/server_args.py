"""Why: what was asked for must be possible before a model is loaded, and nothing may be asked for afterwards; and stock has one
draft flag for all roles (none before 0.5.7).
How: `ServerArgs.add_cli_args`, `from_cli_args`, what runs when arguments are built, and the method that resolves them are wrapped.
The parser gets the role flags. The window closes when arguments are built, and every provider is imported. Going into resolution,
the selection is put into the draft flag's field; coming out, it is completed, checked, given a fallback where it inherits what
cannot draft, and attached for the children.
Upstream: `--speculative-draft-attention-backend` of PR 14843 (0.5.7); stock's helpers accept a late call and ignore it.
Delete when: stock checks draft backends when it resolves its arguments, and splits the flag by role."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

from sglang_draft_ext import checks, fallback, guard, hooks, launch, selection
from sglang_draft_ext.carried import Carried
from sglang_draft_ext.errors import DraftExtError, SelectionError
from sglang_draft_ext.launch import FIELD, FLAG, ROLE_FIELDS, ROLE_FLAGS
from sglang_draft_ext.points import SERVER_ARGS
from sglang_draft_ext.selection import ROLES, Role
from sglang_draft_ext.settings import Settings

logger = logging.getLogger("sglang_draft_ext")


def add_cli_args(
    wrapped: Callable[..., Any], _cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Wrapper of ``ServerArgs.add_cli_args(parser)``: the role flags, and a draft flag that takes a selection."""
    result = wrapped(*args, **kwargs)
    # It may be a group of a parser, or one whose `add_argument` puts a prefix before every flag.
    parser: argparse.ArgumentParser = args[0] if args else kwargs["parser"]
    if not hasattr(sys.modules[SERVER_ARGS].ServerArgs, FIELD):
        parser.add_argument(
            FLAG,
            default=None,
            help="Attention backend of the draft: a name, or prefill=NAME,extend=NAME,decode=NAME.",
        )
    for action in parser._actions:
        if action.dest.endswith(FIELD):
            action.type = _draft_flag
    for role in ROLES:
        parser.add_argument(
            ROLE_FLAGS[role], type=_role_flag, default=None, help=f"Attention backend of the draft's {role}."
        )
    # Roles are only known together once the line is parsed: what is then refused is refused as a parser does it.
    parser.set_defaults(_draft_ext_program=getattr(parser, "prog", None) or os.path.basename(sys.argv[0]))
    return result


def _draft_flag(text: str) -> str:
    if "=" in text or "," in text:
        _argument(selection.parse, text)
    return text


def _role_flag(text: str) -> str:
    _argument(selection.parse, f"prefill={text}")
    return text.strip()


def _argument(function: Callable[[str], Any], text: str) -> None:
    try:
        function(text)
    except DraftExtError as error:
        raise argparse.ArgumentTypeError(f"{error.problem}; {error.remedy}") from error


def from_cli_args(
    wrapped: Callable[..., Any], cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Wrapper of ``ServerArgs.from_cli_args(args)``: folds the role flags into the draft flag."""
    namespace: argparse.Namespace = args[0] if args else kwargs["args"]
    values = vars(namespace).copy()
    program = values.pop("_draft_ext_program", None)
    roles = {role: values.pop(field, None) for role, field in ROLE_FIELDS.items()}
    text = launch.flag_value(values.get(FIELD), roles)
    if text is not None:
        values[FIELD] = text
    token = launch.pending.set(text)
    try:
        guard.close()
        names, sources = launch.asked(text)
        if names and not (launch.uniform(names) and hasattr(cls, FIELD)):
            hooks.activation.select(", ".join(dict.fromkeys(sources.values())))
            launch.check_names(names, sources, values.get("speculative_algorithm"))
            guard.checkpoint()
        return wrapped(argparse.Namespace(**values))
    except SelectionError as error:
        # argparse's manners, where there is a parser; a program gets the exception.
        if program is None:
            raise
        print(f"{program}: error: {error.problem}; {error.remedy} (asked in {error.where})", file=sys.stderr)
        raise SystemExit(2) from None
    finally:
        launch.pending.reset(token)


_stock_post_init: Callable[[Any], None] | None = None


def watch_building(module: ModuleType, _attribute: str) -> None:
    """Close the window where arguments are built and not yet resolved.

    The function gets other code, since msgspec calls the one that it found as ``__post_init__`` when it made the class.
    """
    global _stock_post_init
    function: FunctionType = vars(module.ServerArgs)["__post_init__"]
    if _stock_post_init or function.__code__.co_freevars:
        return
    _stock_post_init = FunctionType(function.__code__, function.__globals__)
    function.__code__ = _post_init.__code__


def _post_init(self: Any) -> None:
    # Runs with the globals of stock's module.
    from sglang_draft_ext.patches.server_args import built

    built(self)


def built(server_args: Any) -> None:
    """What ``ServerArgs.__post_init__()`` does where it resolves nothing."""
    if _stock_post_init:
        _stock_post_init(server_args)
    # Unpickling and copying a struct builds one.
    rebuilt = sys._getframe(2).f_code.co_name == "_rebuild_server_args"
    if not rebuilt and not hooks.is_placeholder(server_args):
        guard.close()


def resolution(
    wrapped: Callable[..., Any], server_args: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Wrapper of ``ServerArgs.resolve_once()``, or of ``__post_init__()`` where arguments are resolved there."""
    if getattr(server_args, "_draft_ext", None) is not None:
        guard.checkpoint()
        return wrapped(*args, **kwargs)
    if hooks.is_placeholder(server_args):
        return wrapped(*args, **kwargs)
    guard.close()
    has_flag = hasattr(server_args, FIELD)
    names, sources = launch.asked(getattr(server_args, FIELD, None) or launch.pending.get())
    value = launch.flag_value(None, names)
    drafts = server_args.speculative_algorithm not in launch.NO_DRAFT_MODEL
    if has_flag and drafts and value != getattr(server_args, FIELD):
        # Model hooks give the draft a default backend where the field is None: what was asked for must be seen there.
        setattr(server_args, FIELD, value)
    for_stock = has_flag and (not names or launch.uniform(names) is not None)
    if not for_stock and names:
        hooks.activation.select(", ".join(dict.fromkeys(sources.values())))
        guard.checkpoint()
    result = wrapped(*args, **kwargs)
    if hooks.activation.purposes:
        plan = _plan(server_args, names, sources)
        if plan:
            level = logging.WARNING if fallback.fell_back(plan) else logging.INFO
            logger.log(level, "draft attention backends: %s", plan)
        if plan and not fallback.fell_back(plan) and (for_stock or not names):
            plan = None  # stock's own rule says the same
        if plan:
            hooks.activation.select("the server arguments")
            write(server_args, str(plan.selection))
        server_args._draft_ext = Carried.of_this_process(plan)
    return result


def _plan(server_args: Any, names: dict[Role, str], sources: dict[Role, str]) -> launch.Plan | None:
    """The draft's backends, checked and decided; None when there is no draft."""
    config = resolved(server_args)
    if config.speculative_algorithm in launch.NO_DRAFT_MODEL:
        return None
    hooks.activation.require(algorithm=config.speculative_algorithm)
    facts = checks.Launch(server_args, config)
    strict = Settings.from_environment(hooks.activation.environment).strict
    plan = fallback.settle(facts, launch.plan(config, names, sources), strict=strict)
    checks.check(facts, plan)
    return plan


def resolved(server_args: Any) -> Any:
    """A view of *server_args* as resolved so far; some releases keep decisions beside the record."""
    if hooks.activation.surface.get("sglang.srt.arg_groups.overrides", "resolved_view"):
        from sglang.srt.arg_groups.overrides import resolved_view

        return resolved_view(server_args)
    return server_args


def write(server_args: Any, name: str) -> None:
    """Decide the draft flag's value, in the way in which the release keeps decisions."""
    if hasattr(type(server_args), "resolve_once"):
        from sglang.srt.arg_groups.overrides import declare_resolution

        declare_resolution(server_args, "sglang_draft_ext", **{FIELD: name})
    elif hasattr(server_args, FIELD):
        # Past the seal that some releases put on resolved arguments.
        object.__setattr__(server_args, FIELD, name)
