# SPDX-License-Identifier: Apache-2.0
"""The search for what refers to views of memory: variables, attributes, items, closures, tracebacks.

It follows references from the variables of running functions, and then from the variables of modules, as the
garbage collector does, up to a number of objects. It runs no code of the user's objects and leaves no
reference behind.

It cannot begin at the views: the collector does not know NumPy arrays, nor tuples and dictionaries that have
only such objects, so `gc.get_referrers` does not find what leads to them.
"""

from __future__ import annotations

import builtins
import contextlib
import dataclasses
import gc
import inspect
import itertools
import re
import sys
import threading
import types
import weakref
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from types import FrameType, FunctionType, TracebackType
from typing import Any

import numpy as np

from .._core import NDArray, addresses, borrowers, counted_variables, references
from .bodies import call_body
from .objects import (
    CONTAINERS,
    GENERATORS,
    HAS_REFERENTS,
    attributes_of,
    class_dict_of,
    class_flags_of,
    class_name_of,
    dict_of,
    frame_of_generator,
    is_a,
    items_of,
    module_dict,
    mro_of,
    variables_of,
)

# The number of references that a search follows: for a message, from one object for `drop_views`, and in the
# whole process.
QUICK, ONE_OBJECT, THOROUGH = 10_000, 100_000, 5_000_000
_SHARE = 1_000  # references from one function or module, before those from others are followed
_MAX_HOPS = 8  # from the variable to the view, in a text
_MAX_NAMES = 4  # of one view in one object
_MAX_VIEWS = 16  # of one object
_MAX_FOUND = 64
_MAX_FUNCTIONS = 200  # of torch's graph of one tensor
_OTHERS_CODE = ("tenon", "IPython", "ipykernel")  # the user does not know its variables

# What an object is to the search. Views come last.
_LEAF, _OWN, _OTHER, _NUMPY, _BUFFER, _TORCH, _JAX = range(7)

_array_flags: Any = np.ndarray.__dict__["flags"].__get__
_array_base: Any = np.ndarray.__dict__["base"].__get__
_array_dtype: Any = np.ndarray.__dict__["dtype"].__get__


@dataclasses.dataclass(frozen=True)
class ViewPlace:
    """Where an object refers to a view of the memory of an array."""

    text: str  # as 'variable `x` of main (train.py:12)'
    change: str  # the statement that removes the view from there, as '`del x`'; else empty
    scope: str  # the function or module in which the statement works; empty: the code that calls Tenon
    cell: str  # the name of a variable of a closure, which the function around it may delete; else empty
    is_held_elsewhere: bool  # something that was not found refers to the view, so no statement suffices
    is_writable: bool  # the view holds the memory for writing, as far as can be seen
    is_leftover: bool  # a notebook or a traceback keeps it: `drop_views` drops it
    is_original: bool  # the array that was given to `from_numpy`, or a view of that
    is_movable: bool  # that array itself, if from_numpy(mode='move') takes it
    is_of_block: bool  # a variable names it, and the end of a block would empty it
    is_of_buffer: bool  # taken from `a.readonly()`, it would only read
    is_own_variable: bool  # a variable of the code that calls Tenon names it
    has_ended: bool  # it is an array that has no elements since the end of its block


@dataclasses.dataclass(frozen=True)
class Aim:
    """What a search is to find."""

    n_views: int  # that Tenon counts, over the bytes of all arrays
    is_original: bool  # an array that was given to `from_numpy` too, or a view of that
    written: frozenset[int]  # the numbers of the arrays with which that conflicts


class Search:
    """One search, breadth first, by one thread, for views of memory. ``extents``: where the bytes of each
    array begin and end. ``budget``: how many references it follows. ``first``: the thread whose variables
    come first; None for this one. ``aim``: the search looks at what is near to variables first, and ends when
    it has found all that the aim asks for, and all references to that.

    It refers to what it has found until it is gone.

    A *whole* is an object that may refer to views, a *part* what it refers to. A *root* is a whole with which
    the search begins.
    """

    def __init__(
        self,
        extents: list[tuple[int, int]],
        budget: int,
        first: int | None = None,
        aim: Aim | None = None,
    ) -> None:
        self._extents = extents
        self._budget = self._left = budget
        self._most = budget // 10  # references of one object
        self._aim = aim
        self._shares = (1, _SHARE) if aim is None else (1, _SHARE // 10, _SHARE)
        self._n_compared = 0  # of what was found, when it was last compared with the aim
        self._found: list[tuple[int, int, Any]] = []  # number of the extent, number of the whole, view
        # The wholes, each with the number of the whole that refers to it, or -1 for a root.
        self._wholes: list[Any] = []
        self._parents: list[int] = []
        self._templates: dict[int, str] = {}  # for the texts of the parts of a root; {} stands for a name
        self._copies: set[int] = set()  # roots that the search has made
        # By the identity of an object: the references to it that were seen, and those of the search itself.
        self._counts: defaultdict[int, int] = defaultdict(int)
        self._own: defaultdict[int, int] = defaultdict(int)
        self._roots: list[int] = []
        self._modules: set[int] = set()  # whose variables are roots
        self._queue: deque[int] = deque()
        self._torch: Any = sys.modules.get("torch")
        tensor = getattr(self._torch, "Tensor", None)
        self._bases: list[tuple[Any, int]] = [
            ((types.ModuleType, types.CellType, *([] if budget == THOROUGH else [type])), _LEAF),
            ((BaseException, type, *CONTAINERS), _OTHER),
            (np.ndarray, _NUMPY),
            (memoryview, _BUFFER),
            (tensor if isinstance(tensor, type) else (), _TORCH),
        ]
        self._kinds: dict[int, tuple[int, type]] = {}  # by the identity of a class, which lives on here
        # The identities of the frames of all threads, of the main module's variables and of the builtins.
        self.running = {id(builtins.__dict__), id(module_dict(sys.modules.get("__main__")))}
        self._frames: list[FrameType] = []
        tops = sys._current_frames()
        for thread in sorted(tops, key=lambda thread: thread != (first or threading.get_ident())):
            self._frames += self._frames_from(tops[thread])
        tops.clear()  # it holds this frame, which holds it
        self._seen = set(self.running)

    def places(self) -> list[tuple[int, ViewPlace]]:
        """Each place with the number of its array, the likely ones first. With the budget `THOROUGH`, the
        search covers all modules."""
        names = ("last_exc", "last_value", "last_traceback")
        last = [name for name in names if sys.__dict__.get(name) is not None]
        self._add_root({name: sys.__dict__[name] for name in last[:1]}, "sys.{}", True)  # they are the same
        self._add_root({"_": builtins.__dict__.get("_")}, "`{}`", True)
        for handled in list(sys._current_exceptions().values()):
            error: Any = handled[1] if type(handled) is tuple else handled  # a tuple before Python 3.12
            self._add_root([error], "that is being handled", True)
        modules = {"__main__": module_dict(sys.modules.get("__main__"))}
        for frame in self._frames:
            self._add_root(frame)
            name = dict.get(frame.f_globals, "__name__")
            modules.setdefault(name if type(name) is str else "?", frame.f_globals)
        if self._aim is None:
            self._run()
        self._add_modules(modules)
        self._run()
        if self._budget == THOROUGH:
            self._add_modules({name: module_dict(module) for name, module in list(sys.modules.items())})
            self._run()
        self._follow(self._queue, self._left)
        found: dict[str, tuple[int, ViewPlace]] = {}
        held = self._held_elsewhere()
        for number, i, view in self._found:
            for place in self._places_of(i, view, held):
                found.setdefault(place.text, (number, place))
        return list(found.values())

    def finds_all(self) -> bool:
        """Whether it has found all that the aim asks for. A collection of garbage frees nothing of that. So
        views that a `weakref.WeakKeyDictionary` refers to do not count: its keys may be garbage. Views that
        inner functions use do not count either: the function around, which comes later, can delete them."""
        aim, views, has_original = self._aim, set(), False
        if aim is None:
            return False
        for number, i, value in self._found:
            chain = [i]
            while chain[-1] >= 0:
                chain.append(self._parents[chain[-1]])
            wholes = [self._wholes[j] for j in chain[:-1]]
            if any(is_a(whole, weakref.WeakKeyDictionary) for whole in wholes):
                continue
            if type(wholes[-1]) is FrameType and wholes[-1].f_code.co_freevars:
                names = _names(wholes[-1], wholes[-2] if len(wholes) > 1 else value, self._most)
                if set(names) <= {*wholes[-1].f_code.co_freevars}:
                    continue
            root = _root_of(value)
            while is_a(root, memoryview) and is_a(root.obj, np.ndarray):
                root = _root_of(root.obj)
            if root is None:
                has_original |= number in aim.written
            elif _is_view_holder(root):
                views.add(id(root))
            elif is_a(root, memoryview) and is_a(root.obj, NDArray):
                views.update(map(id, gc.get_referents(root)))  # parts of a memoryview have its one buffer
            else:  # a tensor, a capsule: it need not be a view that Tenon counts
                return False
        return len(views) == aim.n_views and (has_original or not aim.is_original)

    def leads_to_view(self, *values: Any) -> bool:
        """One of the objects leads to a view, not counting the variables of code that runs."""
        self._seen, self._left = set(self.running), self._budget
        self._add_root(values)
        self._run()
        self._follow(self._queue, self._left)
        is_found = bool(self._found)
        self._found, self._wholes, self._parents, self._queue = [], [], [], deque()
        return is_found

    # --- roots

    def _frames_from(self, frame: FrameType | None) -> list[FrameType]:
        frames: list[FrameType] = []
        while frame is not None:
            self.running.add(id(frame))
            if _package(dict.get(frame.f_globals, "__name__")) not in _OTHERS_CODE:
                frames.append(frame)
            elif frame.f_code is call_body.__code__:
                frames.clear()  # what the body of an op uses is the op's
            frame = frame.f_back
        return frames

    def _add(self, whole: Any, parent: int, queue: Any) -> None:
        self._seen.add(id(whole))
        queue.append(len(self._wholes))
        self._wholes.append(whole)
        self._parents.append(parent)

    def _add_root(self, whole: Any, template: str = "", is_copy: bool = False) -> None:
        self._templates[len(self._wholes)] = template
        if is_copy:
            self._copies.add(len(self._wholes))
        self._add(whole, -1, self._roots)

    def _add_modules(self, modules: dict[str, dict[str, Any]]) -> None:
        for module, variables in modules.items():
            if id(variables) in self._modules or _package(module) in _OTHERS_CODE:
                continue
            self._modules.add(id(variables))
            self._seen.add(id(variables))
            is_notebook = "_oh" in variables and "Out" in variables
            if is_notebook:
                variables = dict(variables)  # which no other thread changes
                self._add_root(variables["_oh"], "Out[{}]")
                results = {name: variables.pop(name) for name in list(variables) if is_result_name(name)}
                self._add_root(results, "`{}`", True)
            self._add_root(variables, f"variable `{{}}` of module {module}", is_notebook)

    # --- references

    def _run(self) -> None:
        """Looks at the parts of all roots, then follows a share of the references from each."""
        queues = [deque([root]) for root in self._roots]
        self._roots.clear()
        for n, queue in itertools.product(self._shares, queues):
            self._follow(queue, n)
        self._queue += itertools.chain(*queues)

    def _follow(self, queue: deque[int], n: int) -> None:
        end = max(self._left - n, 0)
        while queue and self._left > end and len(self._found) < _MAX_FOUND:
            i = queue.popleft()
            for part in self._parts_of(i)[: self._most]:
                self._left -= 1
                kind = self._kind_of(type(part))
                if kind <= _OWN:
                    continue
                self._counts[id(part)] += 1
                if i in self._copies:
                    self._own[id(part)] += 1
                if kind >= _NUMPY:
                    self._note(part, kind, i)
                if kind in (_OTHER, _TORCH) and id(part) not in self._seen:
                    self._add(part, i, queue)
            part = None  # whose references are counted
            if type(self._wholes[i]) is FrameType:
                self._forget_uncounted(self._wholes[i])
            if self._aim is not None and len(self._found) > self._n_compared:
                self._n_compared = len(self._found)
                if self.finds_all() and not self._held_elsewhere():
                    self._left = 0

    def _forget_uncounted(self, frame: FrameType) -> None:
        """Of the variables of a frame, leaves those in the counts that have a reference for certain."""
        counted = Counter(map(id, counted_variables(frame)))
        for key, n in Counter(id(value) for _, value in variables_of(frame)).items():
            if n > counted[key] and key in self._counts:
                self._counts[key] -= n - counted[key]

    def _parts_of(self, i: int) -> list[Any]:
        whole = self._wholes[i]
        if type(whole) is FrameType:
            return [value for _, value in variables_of(whole)]
        if issubclass(type(whole), GENERATORS):
            return [frame_of_generator(whole)]
        if type(whole) is FunctionType:
            return gc.get_referents(*(whole.__closure__ or ()))
        if type(whole) is list or type(whole) is tuple:
            return list(whole[: -self._most - 1 : -1])  # a long one is not copied; in the collector's order
        if self._kind_of(type(whole)) == _TORCH:
            for tensor in self._saved_for(whole):
                self._note(tensor, _TORCH, i)
        return gc.get_referents(whole)

    def _kind_of(self, cls: type) -> int:
        known = self._kinds.get(id(cls))
        if known is not None:
            return known[0]
        kind = next((kind for base, kind in self._bases if issubclass(cls, base)), None)
        if kind is None:
            module = _package(class_dict_of(cls).get("__module__"))
            if module in _OTHERS_CODE:
                kind = _OWN
            elif module in ("jax", "jaxlib") and class_name_of(cls) == "ArrayImpl":
                kind = _JAX
            else:
                kind = _OTHER if class_flags_of(cls) & HAS_REFERENTS else _LEAF
        self._kinds[id(cls)] = kind, cls
        return kind

    # --- views

    def _note(self, value: Any, kind: int, i: int) -> None:
        if len(self._found) >= _MAX_VIEWS and self._found[-_MAX_VIEWS][1] == i:
            return
        try:
            begin, end = self._bytes_of(value, kind)
        except Exception:  # it has none, or not yet
            return
        for number, (first, last) in enumerate(self._extents):
            if begin < last and first < end:
                self._found.append((number, i, value))
                self._own[id(value)] += 1
                break

    def _bytes_of(self, value: Any, kind: int) -> tuple[int, int]:
        if kind == _TORCH:
            with self._torch._C.DisableTorchFunctionSubclass():
                storage = value.untyped_storage()
                return storage.data_ptr(), storage.data_ptr() + storage.nbytes()
        if kind == _JAX:
            if not value.is_ready():
                return 0, 0
            return value.unsafe_buffer_pointer(), value.unsafe_buffer_pointer() + value.nbytes
        array = np.asarray(value) if kind == _BUFFER else value
        while is_a(base := _array_base(array), np.ndarray):  # it keeps all of what it is a part of
            array = base
        return addresses(array)

    def _saved_for(self, tensor: Any) -> list[Any]:
        """What torch has saved for the backward pass of a tensor. Hooks that unpack it are not called."""
        saved = []
        with contextlib.suppress(Exception), self._torch._C.DisableTorchFunctionSubclass():
            functions = [tensor.grad_fn]
            for function in functions:  # which grows
                if len(functions) < _MAX_FUNCTIONS:
                    functions += [to for to, _ in function.next_functions if to is not None]
                for cls in mro_of(type(function)):
                    for name, getter in class_dict_of(cls).items():
                        if type(getter) is not types.GetSetDescriptorType:
                            continue
                        if name == "variable" or name.startswith("_raw_saved"):
                            with contextlib.suppress(RuntimeError):  # a backward pass has freed it
                                value = getter.__get__(function)
                                saved += [part.data for part in (value if type(value) is tuple else [value])]
        return [part for part in saved if self._kind_of(type(part)) == _TORCH]

    def _held_elsewhere(self) -> set[int]:
        """The identities of views, and of what leads to them, to which something refers that was not found:
        the iterator of a loop, an object of a C library, an object beyond the budget."""
        own = self._references_to_arrays()
        leading: set[int] = set()
        for i in [row[1] for row in self._found]:
            while self._parents[i] >= 0 and i not in leading:
                leading.add(i)
                i = self._parents[i]
        values = itertools.chain((row[2] for row in self._found), (self._wholes[i] for i in leading))
        held = set()
        for value in values:
            # One of the references is the variable here.
            if (
                type(value) is not FrameType
                and references([value]) - 1 > self._known(id(value)) + own[id(value)]
            ):
                held.add(id(value))
        # Other arrays, or the iterator of a loop, may refer to what a view is a part of.
        for *_, view in self._found:
            base = _array_base(view) if is_a(view, np.ndarray) else None
            while is_a(base, np.ndarray):
                if references([base]) - 1 > self._known(id(base)) + own[id(base)]:
                    held.add(id(view))
                base = _array_base(base)
        return held

    def _known(self, key: int) -> int:
        """The references to an object that were seen, and the search's own."""
        return self._counts[key] + self._own[key] + (key in self._seen)

    def _references_to_arrays(self) -> defaultdict[int, int]:
        """References to arrays that the collector does not show: of arrays over them, and of what is lent. By
        their identity."""
        found: defaultdict[int, int] = defaultdict(int)
        arrays = [view for *_, view in self._found if is_a(view, np.ndarray)]
        exports = {id(view) for *_, view in self._found if not is_a(view, np.ndarray)}
        counted = set()
        for array in arrays:  # which grows
            if id(array) in counted:
                continue
            counted.add(id(array))
            # Each export may refer to it; what is lent has one more, of its lender or of the array over it.
            found[id(array)] += len(exports) + _is_original(array)
            base = _array_base(array)
            if is_a(base, np.ndarray):
                found[id(base)] += 1
                arrays.append(base)
        return found

    # --- words

    def _places_of(self, i: int, view: Any, held: set[int]) -> Iterator[ViewPlace]:
        """Where a view is that the object with a number refers to."""
        chain, template = [view], ""
        while i >= 0:
            whole, template, i = self._wholes[i], self._templates.get(i, ""), self._parents[i]
            if i < 0 or not _is_within(whole, self._wholes[i]):
                chain.append(whole)
        if len(chain) > _MAX_HOPS:
            chain[_MAX_HOPS:], template = [], ""
        chain.reverse()
        is_variable = type(chain[0]) is FrameType or template.startswith("variable")
        scope = self._scope_of(chain[0], template)
        is_leftover = template.startswith(("sys.", "`", "Out["))
        texts, paths, cell = [""], [""], ""
        for whole, part in itertools.pairwise(chain):
            names = _names(whole, part, self._most) or ["?"]
            if template:
                texts, template = [template.replace("{}", str(name)) for name in names], ""
            else:
                texts = [self._place(whole, part, name, texts[0]) for name in names]
            if whole is not chain[0]:
                paths = [_path(paths[0], whole, name) for name in names]
            elif is_variable:
                paths = list(names)
            is_leftover |= is_a(whole, AttributeError)
            is_leftover |= type(part) is FrameType and is_a(whole, (BaseException, TracebackType))
            if type(whole) is FunctionType or (
                type(whole) is FrameType and names[0] in whole.f_code.co_freevars
            ):
                cell = names[0]
        roots = _names(chain[0], chain[1], self._most) if is_variable and len(chain) > 2 else []
        is_array, is_original = is_a(view, np.ndarray), _is_original(view)
        facts = {
            "is_writable": _is_writable(view),
            "is_leftover": is_leftover,
            "is_original": is_original,
            "is_movable": is_original and is_array and _is_movable(view),
            "is_of_block": is_variable and len(chain) == 2 and type(view) is np.ndarray,
            "is_own_variable": is_variable and len(chain) == 2 and scope == "",
            "has_ended": is_array
            and (_array_dtype(view).names or ("",))[0].startswith("ended with its block"),
            "is_of_buffer": _is_of_buffer(view),
        }
        for text, path in zip(texts, paths):
            change, n = ("", -1) if is_leftover or not is_variable else _change(chain, path, roots)
            is_held = any(id(part) in held for part in chain[n:])
            for whole, part in itertools.pairwise(chain[n - 1 : -1]):  # only whole may refer to part
                is_held |= self._counts[id(part)] > max(len(_names(whole, part, self._most)), 1)
            yield ViewPlace(text, change, scope, cell, is_held_elsewhere=is_held, **facts)

    def _scope_of(self, root: Any, template: str) -> str:
        """Where a statement works that names the variables of a root; empty: where Tenon is called."""
        line = self._frames[0] if self._frames else None
        if type(root) is FrameType:
            return "" if root is line else root.f_code.co_name
        module = template.removeprefix("variable `{}` of ")
        if line is None or line.f_code.co_flags & inspect.CO_OPTIMIZED or line.f_locals is not line.f_globals:
            return module
        # A notebook's variables are a copy here.
        is_here = root is line.f_globals or module == f"module {dict.get(line.f_globals, '__name__')}"
        return "" if is_here else module

    def _place(self, whole: Any, part: Any, name: Any, where: str) -> str:
        """Where a part of an object is. where: the object's own place."""
        owner = _owner(whole, where)
        if is_a(whole, BaseException) and is_a(part, BaseException):
            return where
        if type(whole) is FrameType:
            code = whole.f_code
            text = f"variable `{name}` of {code.co_name} ({code.co_filename}:{whole.f_lineno}){where}"
        elif type(whole) is FunctionType:
            text = f"variable `{name}` in the closure of {owner}"
        elif is_a(whole, CONTAINERS):
            is_named = _is_short(name) and not is_a(whole, (set, frozenset))
            text = f"{f'item {name!r}' if is_named else 'an item'} of {owner}"
        elif name != "?":
            text = f"attribute `{name}` of {owner}"
        else:
            is_tensor = self._kind_of(type(whole)) == _TORCH
            text = f"the autograd graph of {where}" if is_tensor else f"a part of {owner}"
        if type(part) is not FrameType:
            return text
        if is_a(whole, (BaseException, TracebackType)):
            return f", a frame of {owner if type(whole) is TracebackType else f'the traceback of {owner}'}"
        return f", kept by {owner}" if is_a(whole, GENERATORS) else f", kept in {text}"


def _is_within(whole: Any, above: Any) -> bool:
    """The text does not name the two apart: an object and its attributes, an exception and its traceback."""
    if type(whole) is TracebackType:
        return is_a(above, (BaseException, TracebackType))
    return type(whole) is dict and (is_a(above, type) or dict_of(above) is whole)


def _names(whole: Any, part: Any, most: int) -> list[Any]:
    """The names, keys or indices under which an object refers to a part; not all of many. ``most``: how
    many items of a container it looks at."""
    if type(whole) is FrameType:
        pairs = variables_of(whole)
    elif type(whole) is FunctionType:
        cells = zip(whole.__code__.co_freevars, whole.__closure__ or ())
        pairs = [(name, value) for name, cell in cells for value in gc.get_referents(cell)]
    elif is_a(whole, type):
        pairs = list(class_dict_of(whole).items())
    elif is_a(whole, CONTAINERS):
        pairs = items_of(whole, most)
    else:
        pairs = attributes_of(whole)
    return [name for name, value in pairs if value is part][:_MAX_NAMES]


def _owner(value: Any, where: str) -> str:
    """An object that refers to others, in words."""
    noun: str = class_name_of(type(value))
    if where.startswith("variable `"):
        return noun + where.removeprefix("variable")
    return f"the {noun} {'' if where.startswith('that is') else 'in '}{where}" if where else f"a {noun}"


def _path(path: str, whole: Any, name: Any) -> str:
    """The expression for a part of an object that an expression leads to; empty if none is known."""
    if not path or name == "?":
        return ""
    if _is_plain(whole):
        return f"{path}[{name!r}]" if _is_short(name) else ""
    has_attributes = not is_a(whole, (*CONTAINERS, *GENERATORS, FrameType, FunctionType))
    return f"{path}.{name}" if has_attributes and type(name) is str and name.isidentifier() else ""


def _is_short(name: Any) -> bool:
    return (type(name) is int or type(name) is str) and len(str(name)) <= 40


def _is_plain(whole: Any) -> bool:
    return type(whole) is list or type(whole) is dict  # comparing types may run code of theirs


def _change(chain: list[Any], path: str, roots: list[str]) -> tuple[str, int]:
    """The statement that removes a view, the last object of a chain, from where it is, or an empty text; and
    the index in the chain of what the statement drops. It deletes no argument, because the caller keeps
    that."""
    holder, view = chain[-2:]
    names, n = [path], -1
    if len(chain) > 2:
        if path and _is_plain(holder) and is_a(view, np.ndarray):
            return f"`{path} = {path}.copy()`", -1
        if path and (type(holder) is dict or _can_delete(holder, path.rpartition(".")[2])):
            return f"`del {path}`", -1
        names, n = roots, 1 - len(chain)
    kept = {""}
    if type(chain[0]) is FrameType:
        code = chain[0].f_code
        n_arguments = code.co_argcount + code.co_kwonlyargcount
        n_arguments += bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
        kept |= {*code.co_varnames[:n_arguments], *code.co_freevars}
        if code.co_flags & inspect.CO_OPTIMIZED and code.co_name.startswith("<"):  # an expression
            return "", -1
    if not names or not kept.isdisjoint(names):
        return "", -1
    return f"`del {', '.join(names)}`", n


def _can_delete(holder: Any, name: str) -> bool:
    """Whether `del` works on the attribute: it is in the dictionary of the object, and the class allows
    it."""
    if is_a(holder, type) or name not in dict_of(holder):
        return False
    own = [cls for cls in mro_of(type(holder)) if cls is not object]
    if any(hasattr(type(class_dict_of(cls).get(name)), "__set__") for cls in own):
        return False
    deleting = next((cls for cls in own if "__delattr__" in class_dict_of(cls)), None)
    nn = sys.modules.get("torch.nn")  # of whose modules it is known
    return deleting is None or deleting is getattr(nn, "Module", None)


def _is_writable(value: Any) -> bool:
    """Whether the view below an object holds the memory for writing, as far as the object shows it."""
    if is_a(value, memoryview):
        return not value.readonly
    while is_a(value, np.ndarray):
        if _array_flags(value).writeable:
            return True
        value = _array_base(value)
    # An export through DLPack holds for writing, whatever its consumer does.
    return not (value is None or type(value) is memoryview or _is_view_holder(value))


def _is_view_holder(value: Any) -> bool:
    return bool(class_name_of(type(value)) == "ViewHolder")


def _root_of(value: Any) -> Any:
    """The object that owns the memory of an array; None if the array or its base owns it."""
    while is_a(value, np.ndarray):
        value = _array_base(value)
    return value


def _is_original(value: Any) -> bool:
    root = _root_of(value)
    return root is None or type(root) is bytes or type(root) is bytearray


def _is_movable(array: Any) -> bool:
    """Whether the array owns its memory, and is read-only because of one borrow."""
    flags = _array_flags(array)
    return bool(flags.owndata) and not flags.writeable and len(borrowers(array)) == 1


def _is_of_buffer(value: Any) -> bool:
    root = _root_of(value)
    return is_a(root.obj, NDArray) if is_a(root, memoryview) else _is_view_holder(root)


def _package(module: Any) -> str:
    return module.partition(".")[0] if type(module) is str else ""


def is_result_name(name: Any) -> bool:
    """Whether a notebook gives the name to a result."""
    return type(name) is str and re.fullmatch(r"_{1,3}|_\d+", name) is not None
