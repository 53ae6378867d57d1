# SPDX-License-Identifier: Apache-2.0
"""Arenas: one buffer that holds the arrays of one layout at one time and those of another one at another."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from types import FrameType, TracebackType
from typing import Any, Literal

from . import _core
from ._core import NativeLease, NDArray
from ._errors import LeaseEscaped, OwnerDied, text_of
from ._planner import Plan, plan
from ._tasks import current_task, number_of
from .lease import end_views, leases, no_other_search, repair
from .share import OnOwnerDied, Shared, check_on_owner_died, settings

Fields = Mapping[str, tuple[Any, Any]]


class Arena:
    """One buffer for several sets of arrays, of which it holds one at a time.

    Which layout it holds is a part of what its lock guards: while somebody uses one layout, in this process
    or, of a shared arena, in another, nobody reads the bytes as those of another one.

    Parameters
    ----------
    layouts : mapping of str to mapping of str to (dtype, shape)
        By the names of layouts and fields. Every field begins on a multiple of 64 bytes.
    shared : bool, str or Shared
        As of `empty`. A pickled arena is a handle on the same memory.
    buffer : object with the buffer protocol, array, optional
        Writable memory of at least `nbytes` bytes, to be used instead of new memory, and kept. What layout it
        has, only this object knows: it is not shared.

    Attributes
    ----------
    nbytes : int
        Of the largest layout.
    total_nbytes : int
        Of all layouts side by side: what is saved is the difference.

    Raises
    ------
    ValueError
        Names, shapes; the buffer is too small, or not aligned for a field; the name is taken.
    TypeError
        Dtypes.
    MemoryError, OSError
        As `empty`.
    """

    plan = staticmethod(plan)

    def __init__(
        self,
        layouts: Mapping[str, Fields],
        shared: bool | str | Shared = False,
        buffer: Any = None,
    ) -> None:
        described = [
            (name, [(field, dtype, shape) for field, (dtype, shape) in fields.items()])
            for name, fields in layouts.items()
        ]
        options = settings(shared)
        if buffer is not None:
            if options is not None:
                raise ValueError("an arena over a buffer cannot be shared: leave out buffer= or shared=")
            self._native = _core.NativeArena.over(described, _array_over(buffer))
        elif options is None:
            self._native = _core.NativeArena.create(described, None, False, False, -1)
        else:
            self._native = _core.NativeArena.create(described, *options)

    @classmethod
    def attach(cls, name: str) -> Arena:
        """The arena that a process of this user shares under a name. Raises as `tenon.attach`, and ValueError
        where the name is that of something else."""
        return cls._of(_core.NativeArena.open(_core.attach(name)))

    @classmethod
    def _of(cls, native: _core.NativeArena) -> Arena:
        arena = object.__new__(cls)
        arena._native = native
        return arena

    @property
    def nbytes(self) -> int:
        return self._native.nbytes()

    @property
    def total_nbytes(self) -> int:
        return self._native.total_nbytes()

    @property
    def layouts(self) -> dict[str, dict[str, tuple[_core.dtype, tuple[int, ...]]]]:
        """The fields of each layout, with dtype and shape."""
        return {
            name: {field: (dtype, shape) for field, dtype, shape in fields}
            for name, fields in self._native.layouts()
        }

    @property
    def active(self) -> str | None:
        """The layout that it holds; None before the first use. Certain only while it is in use."""
        return self._native.active() or None

    @property
    def generation(self) -> int:
        """How often the layout was changed."""
        return self._native.generation()

    def use(
        self,
        layout: str,
        mode: Literal["r", "w"] = "w",
        timeout: float | None = None,
        on_owner_died: OnOwnerDied = "raise",
    ) -> Use:
        """``with arena.use("features") as f:`` gives the arrays of a layout as NumPy arrays: ``f.A``.

        Parameters
        ----------
        layout : str
        mode : {'w', 'r'}
            'w': alone; the arena changes to the layout if it holds another one, and then the elements have no
            values. 'r': beside other readers; the arena must hold the layout.
        timeout : float, optional
            Seconds. None: as long as it takes, but for other processes as `set_lock_timeout` says.
        on_owner_died : {'raise', 'ignore'} or callable
            As of `NDArray.read`. The function gets the arena's bytes.

        Raises
        ------
        LeaseConflict
            To be read, and it holds another layout. To be changed, and views of the other layout live on,
            which the message names, or the caller itself uses it.
        FileNotFoundError
            There is no such layout.
        TimeoutError, DeadlockError, OwnerDied
            As `NDArray.read`.
        LeaseEscaped
            At the end of the block: a view of a shared arena lives on, so that others cannot use it.
        """
        return Use(self._native, layout, mode, timeout, on_owner_died)

    def __reduce__(self) -> tuple[Any, ...]:
        memory = self._native.memory()
        if memory is None or not _core.is_shared(memory):
            raise TypeError("only shared arenas can be pickled: make it with shared=True")
        return _open, (memory,)

    def __repr__(self) -> str:
        layouts = "; ".join(f"{name}: {', '.join(fields)}" for name, fields in self.layouts.items())
        saved = self.total_nbytes - self.nbytes
        return f"<tenon.Arena of {self.nbytes} bytes, {saved} less than side by side: {layouts}>"


def _open(memory: NDArray) -> Arena:
    return Arena._of(_core.NativeArena.open(memory))


def _array_over(buffer: Any) -> NDArray:
    if isinstance(buffer, NDArray):
        return buffer
    try:
        return _core.from_buffer(buffer, "uint8")
    except TypeError:
        return _core.share(buffer)


class Use:
    """What ``with arena.use(...) as f`` enters."""

    def __init__(
        self,
        native: _core.NativeArena,
        layout: str,
        mode: Literal["r", "w"],
        timeout: float | None,
        on_owner_died: OnOwnerDied,
    ) -> None:
        if mode not in ("r", "w"):
            raise ValueError(f"mode is {mode!r}: it must be 'r' or 'w'")
        self._native = native
        self._layout = layout
        self._mode = mode
        self._timeout = timeout
        self._on_owner_died = check_on_owner_died(on_owner_died)
        self._lease: NativeLease | None = None
        self._fields: ArenaFields | None = None
        self._roots: list[Any] = []

    def __enter__(self) -> ArenaFields:
        if self._lease is not None:
            raise RuntimeError("a block cannot be entered a second time: call use() again")
        data = self._native.data()
        ignores = self._on_owner_died == "ignore"
        self._lease = NativeLease(data, self._mode == "w", ignores_owner_died=ignores)
        while True:
            try:
                self._lease.use(self._native, self._layout, self._timeout, number_of(current_task()))
                break
            except OwnerDied as error:
                repair(data, error, self._on_owner_died)
        try:
            return self._views()
        except BaseException:
            self._fields = None
            self._roots.clear()
            self._lease.release()
            raise

    def _views(self) -> ArenaFields:
        layouts = self._native.layouts()
        index = next(i for i, (name, _) in enumerate(layouts) if name == self._layout)
        views = {}
        for k, (name, _, _) in enumerate(layouts[index][1]):
            array = self._native.array(index, k)
            # As of a block on an array: what is made of the view stands on the root.
            root = (array if self._mode == "w" else array.readonly()).numpy()
            self._roots.append(root)
            views[name] = root[...]
        self._fields = ArenaFields(views)
        return self._fields

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(error, sys._getframe(1))

    def _end(self, error: BaseException | None, frame: FrameType | None) -> None:
        assert self._lease is not None and self._fields is not None
        views = self._fields._let_go()
        self._fields = None
        is_free = True
        while views:
            root, own = self._roots.pop(), [views.pop()]
            if not end_views(own, root, frame):
                with no_other_search():
                    is_free &= end_views(own, root, frame)
            del root, own
        del frame
        if error is not None and self._mode == "w":
            self._lease.fail(f"the block that wrote the arena ended with {text_of(error)}")
        else:
            self._lease.release()
        data = self._native.data()
        if is_free or error is not None or not _core.is_shared(data):
            return
        left = [holder for holder in leases(data) if holder.kind == "view"]
        places = ", ".join(sorted({holder.site for holder in left if holder.site}))
        raise LeaseEscaped(
            f"{len(left)} views of the arena live on after the block, and keep other processes from it"
            f"{': taken at ' + places if places else ''}; drop them, or copy what is to be kept"
        )


class ArenaFields:
    """The arrays of the layout in use: ``f.A`` or ``f["A"]``. Empty after the block."""

    def __init__(self, views: dict[str, Any]) -> None:
        self.__dict__.update(views)

    def __getitem__(self, name: str) -> Any:
        return self.__dict__[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.__dict__)

    def _let_go(self) -> list[Any]:
        views = list(self.__dict__.values())
        self.__dict__.clear()
        return views

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the layout in use has no field {name!r}, or its block has ended")

    def __repr__(self) -> str:
        return f"<tenon.ArenaFields {', '.join(self.__dict__) or 'of a block that has ended'}>"


__all__ = ["Arena", "Plan", "Use"]
