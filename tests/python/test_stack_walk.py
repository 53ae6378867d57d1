# SPDX-License-Identifier: Apache-2.0
"""The walk of the evaluation stack (tenon/_sync/counts.py) finds what lies there without a reference."""

import argparse
import asyncio.tasks
import dataclasses
import dis
import email.feedparser
import inspect
import sys

import pytest

from tenon._sync import counts

# How many values an instruction takes from the stack, if it also puts some there: a number, and how often its
# argument is added.
TAKES = {}
for takes, names in {
    (1, 0): "GET_ITER GET_AITER GET_AWAITABLE GET_YIELD_FROM_ITER TO_BOOL MAKE_FUNCTION SEND FORMAT_SIMPLE "
    "CONVERT_VALUE UNPACK_SEQUENCE UNPACK_EX YIELD_VALUE UNARY_NEGATIVE UNARY_NOT UNARY_INVERT "
    "CALL_INTRINSIC_1 STORE_FAST_LOAD_FAST",
    (2, 0): "BINARY_OP COMPARE_OP CONTAINS_OP IS_OP IMPORT_NAME END_SEND FORMAT_WITH_SPEC CALL_INTRINSIC_2 "
    "SET_FUNCTION_ATTRIBUTE CHECK_EG_MATCH BUILD_TEMPLATE",
    (3, 0): "MATCH_CLASS BINARY_SLICE CLEANUP_THROW",
    (4, 0): "CALL_FUNCTION_EX",
    (0, 1): "BUILD_TUPLE BUILD_LIST BUILD_SET BUILD_STRING BUILD_SLICE",
    (0, 2): "BUILD_MAP",
    (2, 1): "CALL",
    (3, 1): "CALL_KW",
}.items():
    TAKES |= dict.fromkeys(names.split(), takes)
ENDS_A_PATH = ("RETURN_VALUE", "RAISE_VARARGS", "RERAISE", "JUMP_")


def lent_on_any_path(code):
    """For each instruction that a path leads to, the variables that lie on the stack without a reference."""
    steps = list(dis.get_instructions(code))
    at = {offset: i for i, step in enumerate(steps) for offset in (step.offset, step.start_offset)}
    found, rest = {}, [(0, ())]
    while rest:
        i, stack = rest.pop()
        known = found.get(i, stack)
        merged = tuple(a | b for a, b in zip(known, stack))
        if i in found and merged == known[: len(merged)]:
            continue
        found[i] = stack = merged
        step, name, nothing = steps[i], steps[i].opname, frozenset()
        for entry in dis._parse_exception_table(code):
            if entry.start <= step.offset < entry.end:
                rest.append((at[entry.target], stack[: entry.depth] + (nothing,) * (1 + entry.lasti)))
        for is_jump in (False, True):
            if step.jump_target is None if is_jump else name.startswith(ENDS_A_PATH):
                continue
            depth = len(stack) + dis.stack_effect(step.opcode, step.arg, jump=is_jump)
            fixed, factor = TAKES.get(name, (max(0, len(stack) - depth), 0))
            after = stack[: len(stack) - fixed - factor * (step.arg or 0)]
            if name == "SWAP":
                after = [*stack]
                after[-1], after[-step.arg] = after[-step.arg], after[-1]
            elif name == "COPY":
                after = (*stack, stack[-step.arg])
            elif name in ("LOAD_ATTR", "LOAD_SUPER_ATTR"):  # a method, and its object
                after = (*stack[: -1 if name == "LOAD_ATTR" else -3], nothing, stack[-1])
            elif name == "LOAD_SPECIAL":  # the object is the manager of a `with`: no array
                after = stack[:-1]
            elif name.startswith("LOAD_FAST_BORROW"):
                names = step.argval if isinstance(step.argval, tuple) else (step.argval,)
                after = (*stack, *(frozenset([name]) for name in names))
            after = (*after, *(nothing,) * depth)[:depth]
            rest.append((at[step.jump_target] if is_jump else i + 1, after))
    return {
        steps[i].offset: frozenset().union(*stack[: -1 if steps[i].opname == "YIELD_VALUE" else None])
        for i, stack in found.items()
    }


@pytest.mark.skipif(sys.version_info < (3, 14), reason="no instruction lends a variable")
@pytest.mark.parametrize("module", [argparse, asyncio.tasks, dataclasses, email.feedparser])
def test_the_walk_of_the_stack_finds_each_variable_that_lies_there_without_a_reference(module):
    codes = [compile(inspect.getsource(module), module.__name__, "exec")]
    n_lent = 0
    for code in codes:
        codes += [constant for constant in code.co_consts if inspect.iscode(constant)]
        for offset, lent in lent_on_any_path(code).items():
            n_lent += len(lent)
            assert lent <= counts._operands(code, offset)[0], (code, offset)
    assert n_lent > 300
