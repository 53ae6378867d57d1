# SPDX-License-Identifier: Apache-2.0
"""The iterator of a `DataLoader` without workers."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from typing import Any

import torch
from torch.utils.data.dataloader import _BaseDataLoaderIter as BaseIterator
from torch.utils.data.dataloader import _DatasetKind as Kind
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter as SingleProcessIterator

from .._errors import log
from .generators import states_of
from .state import (
    Progress,
    cannot_go_on,
    fetcher_state,
    has_place,
    is_before,
    is_stateful,
    own,
    restore_all,
    restore_fetcher,
)

_is_profiled: Any = torch.autograd._profiler_enabled  # type: ignore[attr-defined]


class Quick(BaseIterator):
    """Marks batches for a profiler only if one runs: a mark costs as much as a small batch. Threads that
    share the iterator take batches in turn."""

    def __init__(self, loader: Any) -> None:
        super().__init__(loader)
        self._pid = os.getpid()
        self._turn = threading.RLock()  # the handler of a signal may take batches, too

    def _turn_here(self) -> contextlib.AbstractContextManager[Any]:
        # A forked child does not have the thread whose turn it was.
        return self._turn if os.getpid() == self._pid else contextlib.nullcontext()

    def __next__(self: Any) -> Any:
        if self._IterableDataset_len_called is not None or _is_profiled():
            return super().__next__()  # which warns, and marks the batch in a profile
        data = self._next_data()
        self._num_yielded += 1
        return data


class HereProgress(Progress):
    """Without workers."""

    fetcher: Any = None
    restored: Any = None  # the state of the fetcher, until the next batch
    is_pending = False  # the last index has no batch yet: it was interrupted, or asked for its state
    batches: Any = None  # weak: the iterator

    def state(self, loader: Any) -> dict[str, Any]:
        batches = self.batches()
        if batches is not None and self.begins_with_state(loader):
            with contextlib.suppress(StopIteration):
                batches._next_index()
        return {
            **super().state(loader),
            "is_pending": self.is_pending,
            "fetcher": self.restored or fetcher_state(self.fetcher),
        }

    def restore_dataset(self, loader: Any, state: dict[str, Any]) -> None:
        is_at_end = state["is_finished"] or is_before(state)
        is_iterable = loader._dataset_kind == Kind.Iterable
        restore_all([loader.dataset], [state["fetcher"]["dataset"]], is_at_end=is_at_end and is_iterable)


class Here(Quick, SingleProcessIterator):
    make_progress = HereProgress

    def __init__(self, loader: Any, progress: HereProgress, state: dict[str, Any] | None = None) -> None:
        super().__init__(loader)
        self.progress = progress
        progress.fetcher = self._dataset_fetcher
        progress.batches = weakref.ref(self)
        progress.iterate(self, self._sampler_iter)
        if state is not None:
            self._go_on(loader, state)

    def _go_on(self, loader: Any, state: dict[str, Any]) -> None:
        progress = self.progress
        if self._dataset_kind == Kind.Map:
            progress.run_sampler(loader, self, state)
            progress.is_pending = state["is_pending"]
        elif has_place(state["fetcher"]):
            progress.restore_counts(state)
            restore_fetcher(self._dataset_fetcher, state["fetcher"])
        else:
            self._run_again(state)
        self._num_yielded = progress.yielded
        progress.restored = state["fetcher"]

    def _run_again(self, state: dict[str, Any]) -> None:
        """Reads an iterable dataset without a state up to its place."""
        progress = self.progress
        first = None
        name = type(self._dataset).__name__
        for call in range(state["calls"] - state["is_pending"]):
            try:
                self._next_data()
            except StopIteration:
                raise cannot_go_on(
                    f"{name} ended after {call} of {state['calls']} batches when it was read again"
                ) from None
            except Exception:  # it was raised in its place then
                log.debug("a batch that is read again failed, as before", exc_info=True)
            first = first or states_of(progress.generators)
        if first is not None:
            progress.check_draws(first, state, name)

    def _next_index(self) -> Any:
        progress = self.progress
        if progress.is_pending:
            return own(progress.last)
        index = progress.next_index(self)
        progress.is_pending = True
        return index

    def _next_data(self) -> Any:
        with self._turn_here():
            return self._next_in_turn()

    def _next_in_turn(self) -> Any:
        progress = self.progress
        progress.restored = None
        try:
            data = super()._next_data()  # type: ignore[no-untyped-call]
        except StopIteration:
            progress.is_finished = True
            progress.is_pending = False
            raise
        except Exception:
            progress.is_pending = False
            raise
        progress.is_pending = False
        progress.yielded += 1
        return data

    def __del__(self) -> None:
        """The loader keeps the progress, and the iterator of the dataset only if that has a state."""
        fetcher = getattr(self, "_dataset_fetcher", None)
        if fetcher is not None and not is_stateful(getattr(fetcher, "dataset_iter", None)):
            fetcher.dataset_iter = None
