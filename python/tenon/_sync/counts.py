# SPDX-License-Identifier: Apache-2.0
"""Which references of variables a decision about memory may leave out: the rule is in python/src/counts.h.

From CPython 3.14 on a function may push a local variable on its evaluation stack without a reference, if the
value leaves the stack within the same basic block (PR 130708 of python/cpython). The value may become a
parameter of the called function. `dis` shows the pushes, so these functions follow the stack up to the
instruction that runs.
"""

from __future__ import annotations

import dis
import inspect
import os
import sys
from types import CodeType, FrameType
from typing import Any

from .. import _core
from .._errors import log

_LAST_OWNED, _LAST_TESTED = (3, 13), (3, 15)
_JUMPS = frozenset([*dis.hasjrel, *dis.hasjabs, *getattr(dis, "hasjump", ())])
_ENDS = ("RETURN", "RAISE", "RERAISE")  # of a basic block, besides jumps
_SINKS = ("STORE_", "POP_", "DELETE_")  # they take values from the stack, and put none there
_BY_NAME = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR")


def _operands(code: CodeType, instruction: int) -> tuple[set[str], set[str]]:
    """The local variables that may lie on the evaluation stack while the instruction runs, and the other
    names that may. What a call returns may be its argument, so a name stays until a value is stored or
    dropped. ``instruction``: an offset in bytes, in the instruction or in its cache."""
    lowest: dict[tuple[bool, str], int] = {}  # of each name on the stack: the depth that it may have
    before: set[tuple[bool, str]] = set()
    depth = 0
    is_new_block = True
    for step in dis.get_instructions(code):
        if step.offset > instruction:
            break
        if is_new_block or step.is_jump_target:
            lowest.clear()
            depth = 0
        name, effect = step.opname, dis.stack_effect(step.opcode, step.arg, jump=False)
        if name == "YIELD_VALUE":  # the value has left the stack
            lowest = {key: low for key, low in lowest.items() if low < depth}
        before = set(lowest)
        depth += effect
        if name.startswith(_SINKS):
            lowest = {key: low for key, low in lowest.items() if low <= depth}
        else:
            # SWAP and COPY move what is among the upper values of the stack.
            top = depth - (step.arg or 0) if name in ("SWAP", "COPY") else depth
            lowest = {key: min(low, depth) if low <= top else min(top, depth) for key, low in lowest.items()}
        is_local = step.opcode in dis.haslocal and not name.startswith(_BY_NAME)
        if (is_local and effect > 0) or name.startswith(_BY_NAME):
            names = step.argval if isinstance(step.argval, tuple) else (step.argval,)
        else:
            names = step.argval[1:] if is_local and effect == 0 and isinstance(step.argval, tuple) else ()
        for pushed in names:
            lowest.setdefault((is_local, pushed), depth - max(effect, len(names)) + 1)
        is_new_block = step.opcode in _JUMPS or name.startswith(_ENDS)
    return {name for is_local, name in before if is_local}, {
        name for is_local, name in before if not is_local
    }


def _parameters(code: CodeType) -> tuple[str, ...]:
    flags = (inspect.CO_VARARGS, inspect.CO_VARKEYWORDS)
    n = code.co_argcount + code.co_kwonlyargcount + sum(code.co_flags & flag != 0 for flag in flags)
    return code.co_varnames[:n]


def certainty_of(code: CodeType, instruction: int, names: tuple[str, ...]) -> str:
    """What is known of the reference of each of the variables to its value while a frame executes the
    instruction: a letter for each (python/src/frames.h). A variable may have got its value from a parameter
    that was lent to the function, also if that has another value now."""
    lent = _operands(code, instruction)[0]
    parameters = set(_parameters(code))
    is_certain = not any(
        step.opname.startswith(("STORE_FAST", "DELETE_FAST"))
        and not parameters.isdisjoint(step.argval if isinstance(step.argval, tuple) else (step.argval,))
        for step in dis.get_instructions(code)
    )
    return "".join(
        "l" if name in lent else "c" if is_certain and name not in parameters else "u" for name in names
    )


def is_one_name(holder: list[Any], n: int) -> bool:
    """Whether only the call of `from_numpy` and at most one name refer to an array. ``holder``: has it, for
    the length of this call. ``n``: its references before, 1 or 2. A view of the array has one, too."""
    frame = sys._getframe(1)
    if n == 1:  # the call's, or one that lent it to the call; then its parameters may be further names
        return _core.counting() == "owned" or not _is_named_around(holder, frame)
    if _core.counting() == "strict":
        return False
    local, other = _operands(frame.f_code, frame.f_lasti)
    names = other if _core.counting() == "lent" else local | other  # the call has a reference of its own
    found = dict(_core.variables_of(frame))
    return any(_value_of(name, found, frame) is holder[0] for name in names)


def _is_named_around(holder: list[Any], frame: FrameType) -> bool:
    around = frame.f_back
    while around is not None:
        if any(value is holder[0] for _, value in _core.variables_of(around)):
            return True
        around = around.f_back
    return False


def _value_of(name: str, variables: dict[str, Any], frame: FrameType) -> Any:
    if name in variables:
        return variables[name]
    if frame.f_code.co_flags & inspect.CO_OPTIMIZED == 0 and name in frame.f_locals:
        return frame.f_locals[name]
    return frame.f_globals.get(name)


def _way_of_counting() -> str:
    """What this interpreter does, as far as tests know it; else 'strict'."""
    wanted = os.environ.get("TENON_COUNTS", "")
    if wanted == "strict":
        return wanted
    if wanted:
        log.warning("TENON_COUNTS is %r: it has no effect. It must be 'strict'", wanted)
    variable = object()
    is_owned = sys.getrefcount(variable) == 2  # of the variable, and of the call
    version = sys.version_info[:2]
    if is_owned and version <= _LAST_OWNED:
        return "owned"
    is_known = "LOAD_FAST_BORROW" in dis.opmap and dis.opmap["LOAD_FAST_BORROW"] in dis.haslocal
    if not is_owned and is_known and _LAST_OWNED < version <= _LAST_TESTED:
        return "lent"
    log.warning(
        "CPython %d.%d is not known to Tenon, so memory of a block may stay in use for as long as views of "
        "it exist (TENON_COUNTS in the documentation)",
        *version,
    )
    return "strict"


_core.set_counting(_way_of_counting())
