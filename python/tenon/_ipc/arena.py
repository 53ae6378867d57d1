# SPDX-License-Identifier: Apache-2.0
"""Arenas: one buffer that holds the arrays of one layout at a time."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any, Literal

from .. import _answers, _core
from .._array.creation import empty
from .._array.fields import Fields, FieldsLike, described, named
from .._array.share import (
    OnOwnerDied,
    Shared,
    axes_of,
    check_on_owner_died,
    memory_named,
    opened_or_made,
    settings,
)
from .._core import NativeLease, NDArray
from .._errors import LeaseConflict, text_of
from .._sync.endings import Views
from .._sync.lease import TimeLimit, check_outlived, take, take_later, warn_of_outlived
from .._values import flag, seconds


class Arena:
    """One buffer for several sets of arrays (layouts), which holds one set at a time.

    The lock of the arena protects the current layout: while one layout is in use, in this process or another,
    the bytes cannot be read as another layout.

    Parameters
    ----------
    layouts : mapping of str to mapping of str to (dtype, shape), or to Schema
        The fields of each layout by name. Every field is aligned to 64 bytes.
    shared : bool, str or Shared
        As for `empty`. The pickle of a shared arena is a handle on the same memory.
    buffer : object with the buffer protocol, array, optional
        Writable memory of at least `nbytes` bytes, which is used instead of new memory and kept alive. Only
        this object knows its current layout: the arena is not shared.
    exist_ok : bool
        If there is an arena of the name, open that one.

    Attributes
    ----------
    nbytes : int
        The size of the largest layout.
    total_nbytes : int
        The sum of the sizes of all layouts.

    Raises
    ------
    ValueError
        Invalid names or shapes; the buffer is too small, or not aligned for a field; the name is taken: with
        ``exist_ok``, by an arena with other layouts, or by another object.
    TypeError
        An invalid dtype.
    MemoryError, OSError
        As `empty`.
    """

    def __init__(
        self,
        layouts: Mapping[str, FieldsLike],
        shared: bool | str | Shared = False,
        buffer: Any = None,
        *,
        exist_ok: bool = False,
    ) -> None:
        parts = [
            (name, described(fields, f"layout {name!r}"))
            for name, fields in named(layouts, "layouts", "layouts")
        ]
        options = settings(shared)
        if buffer is not None:
            if options is not None:
                raise ValueError("an arena over a buffer cannot be shared: leave out buffer= or shared=")
            self._set(_core.NativeArena.over(parts, _array_over(buffer)))
        elif flag(exist_ok, "exist_ok"):
            self._set(
                opened_or_made(
                    options,
                    lambda found, name: _same(found, parts, name),
                    lambda given: _core.NativeArena.create(parts, *given),
                )
            )
        elif options is None:
            self._set(_core.NativeArena.create(parts, None, False, False, -1))
        else:
            self._set(_core.NativeArena.create(parts, *options))

    def _set(self, native: _core.NativeArena) -> None:
        self._native = native
        self._data = native.data()
        self._layouts = {
            name: (i, {field: (dtype, shape) for field, dtype, shape in fields})
            for i, (name, fields) in enumerate(native.layouts())
        }
        self._usable: set[str] = set()  # layouts of which NumPy has all dtypes

    def _check_dtypes(self, layout: str) -> None:
        """Raises TypeError if NumPy has no dtype for a field. To be called before the arena changes to the
        layout, because its values would be lost."""
        if layout in self._usable:
            return
        for name, (dtype, _) in self._layouts[layout][1].items():
            try:
                _core.rooted_pair(empty((0,), dtype))
            except TypeError as error:
                raise TypeError(f"field {name!r} of layout {layout!r}: {error}") from None
        self._usable.add(layout)

    @classmethod
    def attach(cls, name: str, readonly: bool = False, wait: float = 0.0) -> Arena:
        """Opens the arena that a process of this user shares under a name, for which it waits ``wait``
        seconds. With ``readonly`` its layouts can only be read. Errors are those of `tenon.attach`;
        ValueError if the name belongs to another object."""
        return cls._of(memory_named(name, readonly, wait))

    @classmethod
    def _of(cls, memory: NDArray) -> Arena:
        arena = object.__new__(cls)
        arena._set(_core.NativeArena.open(memory))
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
        return {name: dict(fields) for name, (_, fields) in self._layouts.items()}

    @property
    def active(self) -> str | None:
        """The current layout; None before the first use. Reliable only inside of a block."""
        return self._native.active() or None

    @property
    def generation(self) -> int:
        """The number of changes of the layout."""
        return self._native.generation()

    def use(
        self,
        layout: str,
        mode: Literal["r", "w"] = "w",
        timeout: float | None = None,
        on_owner_died: OnOwnerDied = "raise",
        overwrite: bool = False,
    ) -> Use:
        """``with arena.use("features") as f:`` gives the arrays of a layout as NumPy arrays, without a copy:
        ``f.A``. ``async with`` works too.

        Parameters
        ----------
        layout : str
        mode : {'w', 'r'}
            'w': exclusive access. The arena changes to the layout if it holds another one; the elements then
            are invalid. 'r': shared access with other readers. The arena must hold the layout.
        timeout : float, optional
            Seconds. None: no limit inside of this process; `set_lock_timeout` applies to other processes.
        on_owner_died : {'raise', 'ignore'} or callable
            As for `NDArray.read`. The function gets the bytes of the arena; `active` is their layout.
        overwrite : bool
            You promise to write every element before any is read. This clears the failure of an earlier block
            that wrote this layout, and the state after the death of a writer. A change of the layout always
            clears the failure, but raises OwnerDied without ``overwrite``.

        Raises
        ------
        KeyError
            There is no such layout.
        LeaseConflict
            A read, but the arena holds another layout. Or a change, but writable views of the other layout
            exist in this process (the message names them), or the caller itself uses it.
        OpError
            In this process an exception left a block that wrote this layout.
        TypeError
            NumPy has no dtype for a field.
        DeadlockError
            As for `NDArray.read`. Or a write, but read-only views exist that outlived a block of the caller.
        TimeoutError, OwnerDied
            As for `NDArray.read`.
        LeaseEscaped
            At the end of the block, with ``TENON_DEBUG=leases`` in the environment: a view still exists.
        """
        return Use(self, layout, mode, timeout, on_owner_died, overwrite)

    def __reduce__(self) -> tuple[Any, ...]:
        memory = self._native.memory()
        if memory is None or not memory.shared:
            raise TypeError("only shared arenas can be pickled: make it with shared=True")
        return _received, (memory,)

    def _repr_html_(self) -> str:
        """For notebooks: the sizes, and the fields of each layout. It never raises and never waits."""
        from .._array.text import html_of

        try:
            active = f"in use: {self.active}" if self.active else "not used yet"
            facts = [f"{self.nbytes:,} bytes", f"{self.total_nbytes:,} side by side", active]
        except Exception as error:
            facts = [text_of(error)]
        lines = [
            f"{layout}.{name}: {dtype} {shape}"
            for layout, (_, fields) in self._layouts.items()
            for name, (dtype, shape) in fields.items()
        ]
        return html_of("tenon.Arena", facts, "\n".join(lines))

    def __repr__(self) -> str:
        layouts = "; ".join(f"{name}: {', '.join(fields)}" for name, (_, fields) in self._layouts.items())
        saved = self.total_nbytes - self.nbytes
        return f"<tenon.Arena of {self.nbytes} bytes, {saved} less than side by side: {layouts}>"


_answers.answer(Arena, _answers.ARENA)


def _same(memory: NDArray, parts: Any, name: str) -> _core.NativeArena:
    """The arena that exists. Fails with ValueError if its layouts are not these."""
    native = _core.NativeArena.open(memory)

    def texts(layouts: Any) -> dict[str, Any]:
        return {
            layout: {field: f"{_core.dtype(dtype)} {axes_of(shape)}" for field, dtype, shape in fields}
            for layout, fields in layouts
        }

    found, asked = texts(native.layouts()), texts(parts)
    if list(found.items()) != list(asked.items()):
        raise ValueError(f"the arena named {name!r} exists with the layouts {found}, and not {asked}")
    return native


def _received(memory: NDArray) -> Arena:
    from .._array.pickle import opened_or_lost

    arena: Arena = opened_or_lost(Arena, Arena._of, memory)
    return arena


def _array_over(buffer: Any) -> NDArray:
    if isinstance(buffer, NDArray):
        return buffer
    try:
        return _core.from_buffer(buffer, "uint8")
    except TypeError:
        if hasattr(buffer, "__dlpack__"):
            return _core.from_dlpack(buffer, copy=False)
        memory = _core.without_verbs(buffer, True)
        if isinstance(memory, NDArray):
            return memory
        raise


class Use:
    """The context manager that `Arena.use` returns."""

    def __init__(
        self,
        arena: Arena,
        layout: str,
        mode: Literal["r", "w"],
        timeout: float | None,
        on_owner_died: OnOwnerDied,
        overwrite: bool,
    ) -> None:
        if not isinstance(layout, str) or layout not in arena._layouts:
            raise KeyError(f"the arena has no layout {layout!r}, but {', '.join(arena._layouts)}")
        if mode not in ("r", "w"):
            raise ValueError(f"mode is {mode!r}: it must be 'r' or 'w'")
        if overwrite and mode == "r":
            raise ValueError("mode is 'r': what is only read, cannot be overwritten")
        self._arena = arena
        self._layout = layout
        self._is_write = mode == "w"
        self._is_overwrite = overwrite
        self._timeout = None if timeout is None else seconds(timeout, "timeout", ", or None")
        check_on_owner_died(on_owner_died)
        is_checked = callable(on_owner_died) and not self._is_write
        self._on_owner_died: OnOwnerDied = self._repair if is_checked else on_owner_died
        self._repairs = on_owner_died
        self._lease: NativeLease | None = None
        self._views = Views()

    def _begin(self) -> NativeLease:
        if self._lease is not None:
            raise RuntimeError("a block cannot be entered a second time: call use() again")
        self._arena._check_dtypes(self._layout)
        arena = self._arena
        is_allowed = self._is_write and arena.active == self._layout  # another layout is refused
        if is_allowed and _core.has_outlived_views(arena._data):
            warn_of_outlived(arena._data)
        ignores = self._on_owner_died == "ignore"
        self._lease = NativeLease(self._arena._data, self._is_write, self._is_overwrite, ignores)
        return self._lease

    def __enter__(self) -> ArenaFields:
        lease, arena = self._begin(), self._arena
        acquire = functools.partial(lease.use, arena._native, self._layout, self._timeout)
        take(acquire, arena._data, self._on_owner_died)
        return self._fields(lease)

    async def __aenter__(self) -> ArenaFields:
        lease, arena = self._begin(), self._arena
        enter = functools.partial(lease.enter, arena._native, self._layout)
        limit = TimeLimit(self._timeout, f"use the layout {self._layout!r} of the arena")
        died = self._on_owner_died
        await take_later(lease, enter, arena._data, died, limit, arena._native)
        return self._fields(lease)

    def _repair(self, values: Any, error: Exception) -> None:
        """The function of the caller, unless the read would fail after it. Called under a write lease."""
        active = self._arena.active
        if active != self._layout:
            raise LeaseConflict(
                f"layout {self._layout!r} cannot be read: the arena holds {active!r}, which was not repaired;"
                " a write lease of a layout changes to it"
            ) from error
        assert callable(self._repairs)
        self._repairs(values, error)

    def _fields(self, lease: NativeLease) -> ArenaFields:
        index, fields = self._arena._layouts[self._layout]
        try:
            for k, name in enumerate(fields):
                array = self._arena._native.array(index, k)
                self._views.add(name, _core.rooted_pair(array if self._is_write else array.readonly()))
        except BaseException:
            self._views.end(None)
            lease.release()
            raise
        return ArenaFields(self._views.named)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._end(error, sys._getframe(1))

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._end(error, sys._getframe(1))

    def _end(self, error: BaseException | None, frame: FrameType | None) -> None:
        assert self._lease is not None
        is_free = self._views.end(frame, error)
        del frame
        if error is not None and self._is_write:
            has_outlived = self._lease.fail(
                f"the block that wrote the arena ended with {text_of(error)}; "
                "use(layout, overwrite=True) writes all of it"
            )
        else:
            has_outlived = self._lease.release()
        if error is None and (has_outlived or not is_free):
            check_outlived(self._arena._data, "arena")


class ArenaFields(Fields):
    """The arrays of the layout in use: ``f.A`` or ``f["A"]``. ``f.A = value`` writes the elements of A. Empty
    after the block."""

    _noun = "the layout in use"

    def __init__(self, views: dict[str, Any]) -> None:
        object.__setattr__(self, "__dict__", views)  # so that ``f.A`` is fast; empty after the block

    @property
    def _names(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(self.__dict__)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._names:  # other attributes are not allowed
            raise AttributeError(type(self)._missing(self, name))
        super().__setattr__(name, value)

    def _is_own(self, name: str) -> bool:
        return hasattr(type(self), name)

    def _array(self, name: str) -> Any:
        return self.__dict__[name]

    def _missing(self, name: object) -> str:
        if not self.__dict__:
            return f"the layout has no field {name!r} any more: its block has ended"
        return super()._missing(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.__dict__)

    def __repr__(self) -> str:
        return f"<tenon.ArenaFields {', '.join(self.__dict__) or 'of a block that has ended'}>"


__all__ = ["Arena", "Use"]
