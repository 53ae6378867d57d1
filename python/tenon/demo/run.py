# SPDX-License-Identifier: Apache-2.0
"""Runs the demo: builds the C library, trains the model, counts copies and page faults."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import tenon as tn
from tenon.demo import hand_over
from tenon.demo.report import progress
from tenon.demo.source import ROW_NBYTES, DemoError, Source, build_library, find_compiler, load_digits

ROWS = 512  # of a batch
BATCHES_PER_STATUS = 50  # of the progress bar


@dataclasses.dataclass(frozen=True)
class _Plan:
    epochs: int
    batches_per_epoch: int
    fault_batches: int
    copy_rows: int
    copy_rounds: int


_FULL = _Plan(20, 200, 1000, 1 << 17, 5)
_QUICK = _Plan(5, 160, 300, 1 << 16, 3)


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
            raise DemoError(f"PyTorch cannot be used ({error}): pip install torch") from None
        return _learner_type("numpy")
    return TorchLearner


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
                    if i % BATCHES_PER_STATUS == 0:
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

    def hand_over(self) -> dict[str, Any]:
        plan, batches = self.plan, self.learner_type.batches
        copies, check, method = hand_over.count_copies(
            self.source, batches, self.learner_type.copy, plan.copy_rows, plan.copy_rounds
        )
        with self.feed(None, self.seed + 1) as feed:
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


def _versions() -> dict[str, str | None]:
    versions: dict[str, str | None] = {"tenon": tn.__version__, "python": platform.python_version()}
    for package in ("numpy", "torch", "scikit-learn"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = None
    return versions


def run(
    framework: str = "auto", workers: int | None = None, seed: int = 0, quick: bool = False
) -> dict[str, Any]:
    """Builds the library, trains the model and counts copies and page faults. Takes half a minute on two
    cores.

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
    with tempfile.TemporaryDirectory(prefix="tenon-demo-") as folder:
        source = Source(build_library(Path(folder), compiler), digits)
        work = _Run(_QUICK if quick else _FULL, workers, seed, source, learner_type)
        result = {"framework": learner_type.name, **work.train(), **work.hand_over()}
    return result | {
        "seed": seed,
        "quick": quick,
        "compiler": " ".join(compiler),
        "cores": len(os.sched_getaffinity(0)),
        "machine": f"{platform.machine()}, {platform.system()} {platform.release()}",
        "versions": _versions(),
        "total_seconds": time.perf_counter() - begin,
    }
