# SPDX-License-Identifier: Apache-2.0
"""Which references of variables a decision about memory may leave out: the rule is in python/src/counts.h.

From CPython 3.14 on a function may push a local variable on its evaluation stack without a reference, if the
value leaves the stack within the same basic block (PR 130708 of python/cpython). The value may become a
parameter of the called function. `dis` shows the pushes, so these functions follow the stack up to the
instruction that runs.
"""

from __future__ import annotations

import bisect
import dis
import functools
import inspect
import os
import sys
from types import CodeType, FrameType
from typing import Any, NamedTuple

from .. import _core
from .._errors import log

_LAST_OWNED, _LAST_TESTED = (3, 13), (3, 15)
_JUMPS = frozenset([*dis.hasjrel, *dis.hasjabs, *getattr(dis, "hasjump", ())])
_ENDS = ("RETURN", "RAISE", "RERAISE")  # of a basic block, besides jumps
_SINKS = ("STORE_", "POP_", "DELETE_")  # they take values from the stack, and put none there
_BY_NAME = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR")


class _Step(NamedTuple):
    """One instruction of a code object."""

    offset: int  # in bytes
    begins_block: bool
    name: str  # of the operation
    argument: int
    effect: int  # on the depth of the evaluation stack, where it does not jump
    names: tuple[str, ...]  # that it loads
    is_local: bool  # they are local variables


@functools.lru_cache(maxsize=16)
def _steps(code: CodeType) -> list[_Step]:
    found = []
    begins_block = True
    for one in dis.get_instructions(code):
        name, effect = one.opname, dis.stack_effect(one.opcode, one.arg, jump=False)
        is_by_name = name.startswith(_BY_NAME)
        is_local = one.opcode in dis.haslocal and not is_by_name
        names: tuple[str, ...] = ()
        if is_by_name or (is_local and effect > 0):
            names = one.argval if isinstance(one.argval, tuple) else (one.argval,)
        elif is_local and effect == 0 and isinstance(one.argval, tuple):
            names = one.argval[1:]  # it stores to the first one
        begins_block |= one.is_jump_target
        found.append(_Step(one.offset, begins_block, name, one.arg or 0, effect, names, is_local))
        begins_block = one.opcode in _JUMPS or name.startswith(_ENDS)
    return found


def _operands(code: CodeType, instruction: int) -> tuple[set[str], set[str]]:
    """The local variables that may lie on the evaluation stack while the instruction runs, and the other
    names that may. What a call returns may be its argument, so a name stays until a value is stored or
    dropped. ``instruction``: an offset in bytes, in the instruction or in its cache."""
    steps = _steps(code)
    end = begin = bisect.bisect_right(steps, instruction, key=lambda step: step.offset)
    while begin > 0 and (begin == end or not steps[begin].begins_block):
        begin -= 1
    lowest: dict[tuple[bool, str], int] = {}  # of each name on the stack: the depth that it may have
    before: set[tuple[bool, str]] = set()
    depth = 0
    for step in steps[begin:end]:
        name, effect = step.name, step.effect
        if name == "YIELD_VALUE":  # the value has left the stack
            lowest = {key: low for key, low in lowest.items() if low < depth}
        before = set(lowest)
        depth += effect
        if name.startswith(_SINKS):
            lowest = {key: low for key, low in lowest.items() if low <= depth}
        else:
            # SWAP and COPY move what is among the upper values of the stack.
            top = depth - step.argument if name in ("SWAP", "COPY") else depth
            lowest = {key: min(low, depth) if low <= top else min(top, depth) for key, low in lowest.items()}
        for pushed in step.names:
            lowest.setdefault((step.is_local, pushed), depth - max(effect, len(step.names)) + 1)
    return {name for is_local, name in before if is_local}, {
        name for is_local, name in before if not is_local
    }


def _parameters(code: CodeType) -> tuple[str, ...]:
    flags = (inspect.CO_VARARGS, inspect.CO_VARKEYWORDS)
    n = code.co_argcount + code.co_kwonlyargcount + sum(code.co_flags & flag != 0 for flag in flags)
    return code.co_varnames[:n]


@functools.lru_cache(maxsize=256)
def _changes_none(code: CodeType, parameters: frozenset[str]) -> bool:
    """Whether the code stores to none of the parameters, and deletes none."""
    return not any(
        step.opname.startswith(("STORE_FAST", "DELETE_FAST"))
        and not parameters.isdisjoint(step.argval if isinstance(step.argval, tuple) else (step.argval,))
        for step in dis.get_instructions(code)
    )


def certainty_of(code: CodeType, instruction: int, names: tuple[str, ...]) -> str:
    """What is known of the reference of each of the variables to its value while a frame executes the
    instruction: a letter for each (python/src/frames.h). A variable may have got its value from a parameter
    that was lent to the function, also if that has another value now."""
    lent = _operands(code, instruction)[0]
    parameters = set(_parameters(code))
    is_certain = _changes_none(code, frozenset(parameters))
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
