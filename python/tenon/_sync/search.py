# SPDX-License-Identifier: Apache-2.0
"""The search for objects that refer to the memory of arrays. It begins at the variables of running code.

The search runs no code of the user's objects and leaves no new references behind.
"""

from __future__ import annotations

import builtins
import collections
import dataclasses
import gc
import sys
import threading
import types
from collections.abc import Iterable
from types import FrameType, TracebackType
from typing import Any

import numpy as np

from .._core import NDArray
from .holders import BODY_CODES, OWNERS
from .objects import (
    HAS_REFERENTS,
    IS_HEAP_TYPE,
    class_dict_of,
    class_flags_of,
    class_name_of,
    frame_of_generator,
    is_a,
    items_of,
    module_dict,
    mro_of,
    variables_of,
)

_OTHERS_CODE = ("tenon", "IPython", "ipykernel")  # its variables are no news to the user
_MAX_CONTAINERS = 16  # of those that only the collector knows: each costs a look at the whole heap
_MAX_HOPS = 6
_EXPANSION = 5  # what a look into a container costs, in looks at objects
_MAX_FUNCTIONS = 200  # of torch's graph of one tensor

# What an object is to the search. Views come before DICT.
_LEAF, _NUMPY, _BUFFER, _TORCH, _JAX = range(5)
(
    DICT,
    SEQUENCE,
    SET,
    _FUNCTION,
    _METHOD,
    _EXCEPTION,
    _TRACEBACK,
    _FRAME,
    _GENERATOR,
    _INSTANCE,
) = range(5, 15)

KINDS: dict[type, int] = {
    **dict.fromkeys(
        (NDArray, str, bytes, bytearray, int, float, complex, type, types.ModuleType, types.CodeType), _LEAF
    ),
    np.ndarray: _NUMPY,
    memoryview: _BUFFER,
    dict: DICT,
    list: SEQUENCE,
    tuple: SEQUENCE,
    collections.deque: SEQUENCE,
    set: SET,
    frozenset: SET,
    types.FunctionType: _FUNCTION,
    types.MethodType: _METHOD,
    BaseException: _EXCEPTION,
    TracebackType: _TRACEBACK,
    FrameType: _FRAME,
    types.GeneratorType: _GENERATOR,
    types.CoroutineType: _GENERATOR,
    types.AsyncGeneratorType: _GENERATOR,
}

_array_interface: Any = np.ndarray.__dict__["__array_interface__"].__get__
_array_itemsize: Any = np.ndarray.__dict__["itemsize"].__get__
array_base: Any = np.ndarray.__dict__["base"].__get__


@dataclasses.dataclass(frozen=True)
class Limits:
    depth: int  # of containers in containers
    objects: int  # looked at in all
    items: int  # of one container
    frames: int  # of one thread or traceback


# Of the search in the way of a message, of the one for `drop_views`, and of its look at one object.
QUICK = Limits(depth=2, objects=8_000, items=1_000, frames=100)
THOROUGH = Limits(depth=4, objects=5_000_000, items=1_000_000, frames=10_000)
ONE_OBJECT = Limits(depth=4, objects=100_000, items=10_000, frames=1_000)

# How an object is reached: a word, and what belongs to it.
Label = tuple[Any, ...]


class Node:
    """An object on the way of the search, and how it was reached: from a parent, or from a root."""

    __slots__ = ("depth", "label", "parent", "value")

    def __init__(self, value: Any, label: Label, parent: Node | None, depth: int) -> None:
        self.value = value
        self.label = label
        self.parent = parent
        self.depth = depth


class Search:
    """One search, breadth first. One thread; it refers to what it has found until it is gone.

    Parameters
    ----------
    ranges : list of (int, int)
        Where the bytes of each array begin and end, as `range_of_array` says.
    limits : Limits

    Attributes
    ----------
    found : list of (int, Node)
        The objects that look at the memory, each with the number of the array in question.
    """

    def __init__(self, ranges: list[tuple[int, int]], limits: Limits) -> None:
        self.found: list[tuple[int, Node]] = []
        self._ranges = ranges
        self._limits = limits
        self._left = limits.objects
        self._queue: collections.deque[Node] = collections.deque()
        self._seen = {id(builtins.__dict__)}
        self._running: set[int] = set()
        self._bases = {id(cls): kind for cls, kind in KINDS.items()}
        self._types: list[type] = []  # whose ids _kinds knows: none may be freed and its id used again
        torch = sys.modules.get("torch")
        self._torch = torch if torch is not None and "Tensor" in torch.__dict__ else None
        if self._torch is not None:
            self._bases[id(self._torch.Tensor)] = _TORCH
        self._kinds = dict(self._bases)
        self._graph: dict[int, Any] = {}

    def kind_of(self, value: Any) -> int:
        cls = type(value)
        kind = self._kinds.get(id(cls))
        return self._classify(cls) if kind is None else kind

    def _classify(self, cls: type) -> int:
        kind = next((self._bases[id(base)] for base in mro_of(cls) if id(base) in self._bases), None)
        if kind is None:
            module = class_dict_of(cls).get("__module__")
            module = module if type(module) is str else ""
            if class_name_of(cls) == "ArrayImpl" and module.startswith("jax"):
                kind = _JAX
            elif module.partition(".")[0] == "tenon" or not class_flags_of(cls) & HAS_REFERENTS:
                kind = _LEAF
            else:
                kind = _INSTANCE
        self._types.append(cls)
        self._kinds[id(cls)] = kind
        return kind

    def visit(self, value: Any, label: Label, parent: Node | None = None, depth: int = 0) -> None:
        """Looks at an object, and notes it for `run` if others may hang on it."""
        self._left -= 1
        kind = self.kind_of(value)
        if kind == _LEAF:
            return
        node = Node(value, label, parent, depth)
        if kind < DICT:
            number = self.looks_at(value, kind)
            if number is not None:
                self.found.append((number, node))
            if kind == _TORCH:
                self._visit_graph(node)
        elif depth < self._limits.depth and id(value) not in self._seen:
            self._seen.add(id(value))
            self._queue.append(node)

    def leave_out_running_code(self) -> None:
        """From now on the search does not go through variables of code that runs, or of the main module."""
        self._running = {id(builtins.__dict__), id(module_dict(sys.modules.get("__main__")))}
        tops = sys._current_frames()
        try:
            for top in tops.values():
                frame: FrameType | None = top
                while frame is not None:
                    self._running.add(id(frame))
                    frame = frame.f_back
            del top
        finally:
            tops.clear()  # it holds this frame, which holds it

    def is_running(self, frame: FrameType) -> bool:
        """It was when `leave_out_running_code` was called."""
        return id(frame) in self._running

    def leads_to_view(self, value: Any) -> bool:
        """A view hangs on an object, up to the limits."""
        self._seen = set(self._running)
        self._graph.clear()
        self._left = self._limits.objects
        self.visit(value, ("anywhere",))
        self.run()
        has_found = bool(self.found)
        self.found.clear()
        return has_found

    def run(self) -> None:
        """Follows what `visit` noted, until everything in reach is seen or the limit is."""
        while self._queue and self._left > 0:
            self._left -= _EXPANSION
            self._expand(self._queue.popleft())
        self._queue.clear()

    # --- roots

    def visit_threads(self, first: int | None = None) -> None:
        """The variables of all functions that run, outside of Tenon and of the bodies of ops, and of their
        modules: each with what hangs on it, the innermost function of this thread, or of the one that
        ``first`` identifies, first."""
        modules: list[tuple[str, dict[str, Any]]] = []
        main = module_dict(sys.modules.get("__main__"))
        modules.append(("__main__", main))
        self._seen.add(id(main))
        current = threading.get_ident() if first is None else first
        tops = sys._current_frames()
        frame = None
        try:
            for thread in sorted(tops, key=lambda thread: thread != current):
                for frame in self._frames_of(tops[thread]):
                    if id(frame.f_globals) not in self._seen:
                        self._seen.add(id(frame.f_globals))
                        modules.append((_module_of(frame), frame.f_globals))
                    for name, value in variables_of(frame):
                        self.visit(value, ("variable", name, frame, frame.f_lineno, False))
                    self.run()  # so that callers with many objects do not use up the limit before
        finally:
            del frame
            tops.clear()  # it holds this frame, which holds it
        for module, variables in modules:
            self.visit_module(module, variables)

    def _frames_of(self, frame: FrameType | None) -> list[FrameType]:
        frames: list[FrameType] = []
        for _ in range(self._limits.frames):
            if frame is None:
                break
            self._seen.add(id(frame))
            if _module_of(frame).partition(".")[0] in _OTHERS_CODE:
                if id(frame.f_code) in BODY_CODES:
                    frames.clear()  # what the body of an op uses is the op's
            else:
                frames.append(frame)
            frame = frame.f_back
        return frames

    def visit_module(self, module: str, variables: dict[str, Any]) -> None:
        is_notebook = "_oh" in variables and "Out" in variables
        kinds = self._kinds
        for name, value in list(dict.items(variables)):
            kind = kinds.get(id(type(value)), _INSTANCE)
            if kind == _LEAF or type(name) is not str or (is_notebook and name == "_oh"):
                continue
            if is_notebook and (name == "Out" or is_result_name(name)):
                self.visit(value, ("result", name))
            else:
                self.visit(value, ("global", name, module))
        self._left -= len(variables)
        self.run()

    def visit_leftovers(self) -> None:
        """What the interpreter keeps: the last exception of a session, its last result, exceptions that are
        being handled."""
        for name in ("last_exc", "last_value", "last_traceback"):
            value = sys.__dict__.get(name)
            if value is not None:
                self.visit(value, ("last", name))
                break  # the others are the same
        result = builtins.__dict__.get("_")
        if result is not None:
            self.visit(result, ("result", "_"))
        for handled in list(sys._current_exceptions().values()):
            error: Any = handled[1] if type(handled) is tuple else handled  # a tuple before Python 3.12
            if error is not None:
                self.visit(error, ("handled",))
        self.run()

    def visit_heap(self) -> None:
        """All containers, tracebacks and suspended generators that the collector knows."""
        objects = gc.get_objects()
        skipped = {id(objects)}
        for value in objects:
            if id(type(value)) in OWNERS:  # its views are its own until it ends
                parts = gc.get_referents(value)
                skipped.update(id(part) for part in parts if type(part) is dict or type(part) is list)
                del parts
        hits: list[tuple[int, Any, Any]] = []
        frames = []
        for value in objects:
            kind = self.kind_of(value)
            if kind == _FRAME:
                frames.append(value)
            elif kind in (_TRACEBACK, _GENERATOR):
                self.visit(value, ("anywhere",))
            elif kind >= DICT and id(value) not in self._seen and id(value) not in skipped:
                for part in gc.get_referents(value):
                    part_kind = self.kind_of(part)
                    if _LEAF < part_kind < DICT:
                        number = self.looks_at(part, part_kind)
                        if number is not None:
                            hits.append((number, value, part))
        del objects[:], value
        self.run()
        while frames:  # now that those of tracebacks and generators have been seen
            self.visit(frames.pop(), ("anywhere",))
        self.run()
        named = {id(node.value) for _, node in self.found}
        skipped |= {id(hits), id(self._types), *map(id, hits)}
        for number, container, part in hits[:_MAX_CONTAINERS]:
            # The cell of a variable of a function that runs, or of a function that has been seen.
            if id(container) in self._seen or (type(container) is types.CellType and id(part) in named):
                continue
            parent = _node_of(container, skipped)
            self.found.append((number, Node(part, ("part",), parent, 1)))

    # --- what an object leads to

    def _expand(self, node: Node) -> None:
        value, kind = node.value, self.kind_of(node.value)
        if kind == _FUNCTION:
            for name, cell in zip(value.__code__.co_freevars, value.__closure__ or ()):
                self._seen.add(id(cell))
                for part in gc.get_referents(cell):
                    self.visit(part, ("closure", name), node, node.depth + 1)
        elif kind == _METHOD:
            self.visit(value.__self__, ("self",), node, node.depth)
        elif kind == _TRACEBACK:
            self._expand_traceback(node)
        elif kind == _FRAME:
            self._expand_frame(node, value, value.f_lineno, False)
        elif kind == _GENERATOR:
            frame = frame_of_generator(value)
            if frame is not None and id(frame) not in self._seen:
                self._expand_frame(node, frame, frame.f_lineno, False)
        elif kind in (_INSTANCE, _EXCEPTION):
            for part in gc.get_referents(value):
                # An object's dictionary is no level of its own, nor are the links of an exception.
                is_part = type(part) in (dict, TracebackType) or self.kind_of(part) == _EXCEPTION
                self.visit(part, ("part",), node, node.depth + (not is_part))
        else:
            self._expand_items(node)

    def _expand_items(self, node: Node) -> None:
        kinds, depth = self._kinds, node.depth + 1
        n = 0
        for key, part in items_of(node.value, self._limits.items):
            n += 1
            if kinds.get(id(type(part)), _INSTANCE) != _LEAF:
                self.visit(part, ("item", key), node, depth)
        self._left -= n

    def _expand_traceback(self, node: Node) -> None:
        link: TracebackType | None = node.value
        for _ in range(self._limits.frames):
            if link is None:
                break
            if id(link.tb_frame) not in self._seen:
                self._expand_frame(node, link.tb_frame, link.tb_lineno, True)
            link = link.tb_next

    def _expand_frame(self, node: Node, frame: FrameType, line: int, is_of_traceback: bool) -> None:
        self._seen.add(id(frame))
        for name, value in variables_of(frame):
            self.visit(value, ("variable", name, frame, line, is_of_traceback), node, node.depth + 1)

    # --- views

    def looks_at(self, value: Any, kind: int) -> int | None:
        """The number of the array whose memory a view looks at."""
        try:
            if kind == _NUMPY:
                return self._numpy_looks_at(value)
            if kind == _BUFFER:
                return self._numpy_looks_at(np.asarray(value))
            if kind == _TORCH:
                return self._torch_looks_at(value)
            if not value.is_ready():
                return None
            begin = value.unsafe_buffer_pointer()
            return self._overlaps(begin, begin + value.nbytes)
        except Exception:
            return None

    def _overlaps(self, begin: int, end: int) -> int | None:
        for i, (first, last) in enumerate(self._ranges):
            if begin < last and first < end:
                return i
        return None

    def _numpy_looks_at(self, array: Any) -> int | None:
        # An array that is a part of another keeps all of that.
        while array is not None and self.kind_of(array) == _NUMPY:
            number = self._overlaps(*_range_of_numpy(array))
            if number is not None:
                return number
            array = array_base(array)
        return None

    def _torch_looks_at(self, tensor: Any) -> int | None:
        assert self._torch is not None
        with self._torch._C.DisableTorchFunctionSubclass():
            storage = tensor.untyped_storage()
            begin = storage.data_ptr()
            return self._overlaps(begin, begin + storage.nbytes())

    def _visit_graph(self, node: Node) -> None:
        """What torch has saved for the backward pass of a tensor."""
        assert self._torch is not None
        try:
            with self._torch._C.DisableTorchFunctionSubclass():
                functions = [node.value.grad_fn]
        except Exception:
            return
        numbers = []
        for _ in range(_MAX_FUNCTIONS):
            if not functions:
                break
            function = functions.pop()
            if function is None or id(function) in self._graph:
                continue
            self._graph[id(function)] = function  # so that its id stays its own
            try:
                functions += [following for following, _ in function.next_functions]
                for part in self._saved_by(function):
                    number = self._torch_looks_at(part) if self.kind_of(part) == _TORCH else None
                    if number is not None:
                        numbers.append(number)
            except Exception:
                continue
        for number in sorted(set(numbers)):
            self.found.append((number, Node(None, ("graph",), node, node.depth)))

    def _saved_by(self, function: Any) -> list[Any]:
        assert self._torch is not None
        cls = type(function)
        base = cls
        if class_flags_of(cls) & IS_HEAP_TYPE:  # of a torch.autograd.Function in Python
            base = self._torch._C._FunctionBase
        saved: list[Any] = []
        for name in dir(base):
            if name in ("saved_tensors", "variable") or name.startswith("_saved_"):
                try:
                    saved += _values_of(function, class_dict_of(base), name)
                except Exception:  # freed by a backward pass
                    continue
        return saved


def _values_of(function: Any, attributes: Any, name: str) -> list[Any]:
    """What a function of torch has saved under a name, without the user's hooks that would unpack it."""
    raw = attributes.get(f"_raw{name}" if name[0] == "_" else f"_raw_{name}")
    packed = [] if raw is None else raw.__get__(function)
    packed = list(packed) if type(packed) in (list, tuple) else [packed]
    if any(part.unpack_hook is not None for part in packed):
        return [part.data for part in packed]
    value = attributes[name].__get__(function)
    return list(value) if type(value) in (list, tuple) else [value]


def _node_of(container: Any, skipped: set[int]) -> Node:
    """A container, with what refers to it up to a variable of a module where there is one."""
    chain = [container]
    skipped = skipped | {id(chain), id(container)}
    root: Label = ("somewhere",)
    modules = {
        id(module_dict(module)): name
        for name, module in list(sys.modules.items())
        if is_a(module, types.ModuleType)
    }
    for _ in range(_MAX_HOPS):
        if id(chain[-1]) in modules:
            root = ("module", modules[id(chain[-1])])
            break
        wholes = [
            whole
            for whole in gc.get_referrers(chain[-1])
            if id(whole) not in skipped and type(whole) not in (Node, FrameType)
        ]
        if not wholes:
            break
        chain.append(next((whole for whole in wholes if id(whole) in modules), wholes[0]))
        skipped.add(id(chain[-1]))
        wholes.clear()  # else the list would be what refers to it
    node = None
    for whole in reversed(chain):
        node = Node(whole, root if node is None else ("part",), node, 0)
    assert node is not None
    return node


def _module_of(frame: FrameType) -> str:
    name = dict.get(frame.f_globals, "__name__")
    return name if type(name) is str else "?"


def is_result_name(name: str) -> bool:
    return name in ("_", "__", "___") or (name[:1] == "_" and name[1:].isdigit())


# --- memory


def range_of_array(array: NDArray) -> tuple[int, int]:
    if array.size == 0:
        return 0, 0
    itemsize = array.itemsize
    if itemsize == 0:  # elements are packed below a byte
        return array.data_ptr, array.data_ptr + array.nbytes
    return _range(array.data_ptr, array.shape, array.strides, itemsize)


def _range_of_numpy(array: Any) -> tuple[int, int]:
    interface = _array_interface(array)
    shape, strides = interface["shape"], interface["strides"]
    itemsize = _array_itemsize(array)
    begin = interface["data"][0]
    if 0 in shape:
        return 0, 0
    if strides is None:
        n = itemsize
        for extent in shape:
            n *= extent
        return begin, begin + n
    return _range(begin, shape, strides, itemsize)


def _range(begin: int, shape: Iterable[int], strides: Iterable[int], itemsize: int) -> tuple[int, int]:
    end = begin + itemsize
    for extent, stride in zip(shape, strides):
        if stride < 0:
            begin += (extent - 1) * stride
        else:
            end += (extent - 1) * stride
    return begin, end
