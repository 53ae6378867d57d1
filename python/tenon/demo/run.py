# SPDX-License-Identifier: Apache-2.0
"""Runs the demo from the C source to the figures."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import itertools
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import tenon as tn
from tenon.demo import hand_over
from tenon.demo.report import progress
from tenon.demo.source import ROW_NBYTES, DemoError, Source, build_library, find_compiler, load_digits
from tenon.demo.speed import race, speed

ROWS = 512  # of a batch
IN_MEMORY_BATCHES = 64
IN_MEMORY, FEED, FEED_PROCESSES = "data in memory", "tenon.Feed", "tenon.Feed, processes"
LOOK_EVERY = 50  # batches, at the feed


@dataclasses.dataclass(frozen=True)
class _Plan:
    epochs: int
    batches_per_epoch: int
    rounds: int
    batches_per_round: int
    fault_batches: int
    copy_rows: int
    copy_rounds: int


_FULL = _Plan(20, 200, 9, 300, 1000, 1 << 17, 5)
_QUICK = _Plan(5, 160, 3, 50, 300, 1 << 16, 3)


def _learner_type(framework: str) -> Any:
    if framework not in ("auto", "torch", "numpy"):
        raise DemoError(f"framework is {framework!r}; it can be auto, torch or numpy")
    if framework == "numpy":
        from tenon.demo.numpy_learner import NumpyLearner

        return NumpyLearner
    try:
        from tenon.demo.torch_learner import TorchLearner
    except ImportError as error:
        if framework == "torch":
            raise DemoError(f"PyTorch cannot be used ({error}): pip install 'tenon-arrays[torch]'") from None
        return _learner_type("numpy")
    return TorchLearner


def _openblas(verb: str) -> list[Any]:
    """The functions that set or get the number of threads of each OpenBLAS that NumPy has loaded."""
    with open("/proc/self/maps") as maps:
        paths = sorted({line.split(maxsplit=5)[5].strip() for line in maps if "openblas" in line})
    names = [
        f"{prefix}openblas_{verb}_num_threads{suffix}" for prefix in ("scipy_", "") for suffix in ("64_", "")
    ]
    libraries = [ctypes.CDLL(path) for path in paths]
    found = [[getattr(library, name) for name in names if hasattr(library, name)] for library in libraries]
    return [functions[0] for functions in found if functions]


@contextlib.contextmanager
def _one_compute_thread(framework: str) -> Iterator[None]:
    """Every contender computes on one thread, so that none competes with its own source of batches."""
    if framework == "torch":
        import torch

        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)
    else:
        setters = _openblas("set")
        before = [get() for get in _openblas("get")]
        for set_threads in setters:
            set_threads(1)
        try:
            yield
        finally:
            for set_threads, count in zip(setters, before, strict=True):
                set_threads(count)


class _Run:
    """One run: the parts that every measurement needs."""

    def __init__(
        self, plan: _Plan, workers: int | None, seed: int, source: Source, learner_type: Any
    ) -> None:
        self.seed, self.plan, self.source, self.learner_type = seed, plan, source, learner_type
        self.workers = workers or max(1, min(4, len(os.sched_getaffinity(0)) - 1))
        self.slots = self.workers + 4

    def feed(self, batches: int | None, seed: int, processes: bool = False) -> tn.Feed:
        return self.source.feed(
            ROWS, workers=self.workers, slots=self.slots, batches=batches, seed=seed, processes=processes
        )

    def train(self) -> dict[str, Any]:
        plan, digits = self.plan, self.source.digits
        total = plan.epochs * plan.batches_per_epoch
        learner = self.learner_type(total, self.seed)
        accuracy: float | None = None
        with (
            self.feed(plan.batches_per_epoch, self.seed, processes=True) as feed,
            contextlib.closing(progress(total, "training", "batches")) as bar,
        ):
            begin = time.perf_counter()
            for _ in range(plan.epochs):
                for i, (images, labels) in enumerate(learner.batches(feed)):
                    learner.step(images, labels)
                    bar.update(1)
                    if i % LOOK_EVERY == 0:
                        bar.set_postfix_str(_live(feed.stats(), accuracy), refresh=False)
                del images, labels
                accuracy = learner.accuracy(digits.held_out_images, digits.held_out_labels)
            seconds = time.perf_counter() - begin
            stats = feed.stats()
            bar.set_postfix_str(_live(stats, accuracy), refresh=False)
        return {
            "accuracy": accuracy,
            "held_out": len(digits.held_out_labels),
            "batches": total,
            "seconds": seconds,
            "batch_bytes": ROWS * ROW_NBYTES,
            "slots": self.slots,
            "workers": self.workers,
            "augment_us_per_batch": stats.fill_ns / 1e3 / stats.batches,
        }

    def compare(self) -> dict[str, Any]:
        plan, learner_type = self.plan, self.learner_type
        loaders = self.loaders()  # before the feed's threads: a loader may fork
        with (
            self.feed(IN_MEMORY_BATCHES, self.seed + 1) as kept,
            self.feed(None, self.seed + 2) as feed,
            self.feed(None, self.seed + 2, processes=True) as by_processes,
        ):
            in_memory = [tuple(map(learner_type.copy, fields)) for fields in learner_type.batches(kept)]
            contenders = {
                IN_MEMORY: itertools.cycle(in_memory),
                FEED: learner_type.batches(feed),
                FEED_PROCESSES: learner_type.batches(by_processes),
                **loaders,
            }
            turns = len(contenders) * plan.rounds
            learner = learner_type(turns * plan.batches_per_round, self.seed)
            with contextlib.closing(progress(turns, "measuring", "turns")) as bar:
                timings = race(
                    contenders, learner.step, plan.batches_per_round, plan.rounds, lambda: bar.update(1)
                )
            contenders.clear()
        return _speeds(timings, list(loaders), plan)

    def loaders(self) -> dict[str, Iterator[Any]]:
        """PyTorch's DataLoader in all the settings that may be its best."""
        if self.learner_type.name != "torch":
            return {}
        from tenon.demo.torch_loader import loader_batches

        return {
            f"DataLoader, num_workers={workers}": loader_batches(self.source, ROWS, workers, self.seed)
            for workers in (0, 1, 2)
        }

    def hand_over(self) -> dict[str, Any]:
        plan, batches = self.plan, self.learner_type.batches
        copies, check, method = hand_over.count_copies(
            self.source, batches, self.learner_type.copy, plan.copy_rows, plan.copy_rounds
        )
        with self.feed(None, self.seed + 3) as feed:
            faults = hand_over.count_faults(feed, batches, plan.fault_batches // 2, plan.fault_batches)
        return {
            "host_copies_per_batch": max(0.0, round(copies, 2)),
            "host_copies_check": None if check is None else round(check, 2),
            "host_copies_method": method,
            "page_faults_per_batch": faults,
            "page_faults_method": "minor faults of all threads in a loop that reads every page of a batch",
        }


def _live(stats: Any, accuracy: float | None) -> str:
    """What the feed is doing, for the end of the progress bar."""
    text = f"{stats.gb_per_s:.2g} GB/s, {stats.slots_ready} of {stats.slots} slots ready"
    if stats.verdict != "starting":
        text += f", {stats.verdict}"
    return text if accuracy is None else f"{text}, held-out accuracy {accuracy:.1%}"


def _speeds(timings: dict[str, list[float]], loaders: list[str], plan: _Plan) -> dict[str, Any]:
    seconds = {name: statistics.median(rounds) for name, rounds in timings.items()}
    ratio, extremes = speed(timings, FEED, IN_MEMORY)
    result: dict[str, Any] = {
        "in_memory_loop_ratio": ratio,
        "in_memory_loop_ratio_range": extremes,
        "dataloader_ratio": None,
        "dataloader_reason": "only measured with PyTorch as the framework",
        "us_per_batch": {name: 1e6 * value for name, value in seconds.items()},
        "rounds": plan.rounds,
        "batches_per_round": plan.batches_per_round,
    }
    if loaders:
        best = min(loaders, key=lambda name: seconds[name])
        ratio, extremes = speed(timings, FEED, best)
        result |= {
            "dataloader_ratio": ratio,
            "dataloader_ratio_range": extremes,
            "dataloader_reason": None,
            "dataloader_best": best,
        }
    return result


def _versions() -> dict[str, str | None]:
    versions: dict[str, str | None] = {"tenon": tn.__version__, "python": platform.python_version()}
    for package in ("numpy", "torch"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = None
    return versions


def run(
    framework: str = "auto", workers: int | None = None, seed: int = 0, quick: bool = False
) -> dict[str, Any]:
    """Builds, trains, measures. Takes a minute on two cores.

    Parameters
    ----------
    framework : {'auto', 'torch', 'numpy'}
    workers : int, optional
        Threads of the feed. None leaves one core to the training.
    seed : int
    quick : bool
        A run of a few seconds, whose figures are rough.

    Returns
    -------
    dict
        What ``tenon demo --json`` prints: only str, int, float, None, lists and dicts.

    Raises
    ------
    DemoError
        A compiler or package is missing.
    """
    begin = time.perf_counter()
    compiler = find_compiler()
    learner_type = _learner_type(framework)
    digits = load_digits()
    with tempfile.TemporaryDirectory(prefix="tenon-demo-") as folder, _one_compute_thread(learner_type.name):
        source = Source(build_library(Path(folder), compiler), digits)
        work = _Run(_QUICK if quick else _FULL, workers, seed, source, learner_type)
        result = {"framework": learner_type.name, **work.train(), **work.compare(), **work.hand_over()}
    return result | {
        "seed": seed,
        "quick": quick,
        "compute_threads": 1,
        "compiler": " ".join(compiler),
        "cores": len(os.sched_getaffinity(0)),
        "machine": f"{platform.machine()}, {platform.system()} {platform.release()}",
        "versions": _versions(),
        "total_seconds": time.perf_counter() - begin,
    }
