# SPDX-License-Identifier: Apache-2.0
"""The parts of the measurement, their jobs and their contenders. Within a part, those that fork come
first."""

import dataclasses
import itertools
from collections.abc import Callable

import mxnet_peer
import native_build
from report import plural

import tenon as tn

from .contenders import (
    Contender,
    fed,
    fill_by_pillow,
    fresh_arrays,
    grain_batches,
    mxnet_prefetched,
    python_fed,
    python_looped,
    queued,
    spdl_process,
    spdl_threads,
    stacked,
    warm_buffers,
    whole,
)
from .jobs import AugmentedDigits, Fill, Jpegs, PackedSequences, RowGroups

FOLDER = native_build.folder_of("feed")
WORKERS = 2
SLOTS = WORKERS + 4  # of a feed
ONE_BUFFER = "one warm buffer filled in place"
BUFFERS = f"{SLOTS} warm buffers filled in turn"
IN_MEMORY = "64 batches in memory"
NO_WORKER = "tenon.Feed, no worker"
PROCESSES, THREADS, LOADERS = ("process", "es"), ("thread", "s"), ("worker", "s")


def library(name):
    return FOLDER / f"native/lib{name}.so"


def feeds(job, expected=None):
    return [
        Contender(
            f"tenon.Feed, {plural(workers, *kind)}",
            lambda workers=workers, kind=kind: fed(job.feed(workers, kind is PROCESSES)),
            expected,
        )
        for kind in (PROCESSES, THREADS)
        for workers in (1, WORKERS)
    ] + [Contender(NO_WORKER, lambda: fed(job.feed(0)), expected)]


def loader(what, workers, begin, expected=None):
    name = f"DataLoader, {plural(workers, *LOADERS)}, {what}"
    return Contender(name, lambda: begin(workers), expected)


def spdl_in_process(job):
    return Contender("SPDL, 1 process, segment pool", lambda: spdl_process(job), needs="spdl")


def grain_in_processes(job, make=None, what=""):
    name = f"grain, {plural(WORKERS, *PROCESSES)}{what}"
    return Contender(name, lambda: grain_batches(make or job.arrays, 1, WORKERS), make, needs="grain")


def tenon_loader(what, job, make, expected=None):
    name = f"tenon.DataLoader, {plural(WORKERS, *LOADERS)}, {what}, samples stacked"
    return Contender(name, lambda: stacked(job, make, WORKERS, loader=tn.DataLoader), expected)


def of_processes(job):
    """Peers that start processes."""
    return [spdl_in_process(job), grain_in_processes(job)]


def of_threads(job, make=None, what=""):
    """make: of the arrays of a batch, instead of the function of all contenders; named by what."""
    make, expected = make or job.arrays, make
    return [
        Contender(
            f"SPDL, {plural(WORKERS, *THREADS)}{what}",
            lambda: spdl_threads(make, WORKERS),
            expected,
            needs="spdl",
        ),
        Contender(
            f"grain, {plural(WORKERS, *THREADS)}{what}",
            lambda: grain_batches(make, WORKERS, 0),
            expected,
            needs="grain",
        ),
    ]


def of_mxnet(job):
    if mxnet_peer.is_missing():
        return []
    return [
        Contender(
            f"{mxnet_peer.NAME}, PrefetchingIter, mx.nd.{convert}",
            lambda convert=convert: mxnet_prefetched(job, convert),
        )
        for convert in ("from_numpy", "array")
    ]


def for_batches(job):
    return [
        *[loader("whole batches", n, lambda n: whole(job, n)) for n in (1, WORKERS)],
        loader("whole batches, share_memory_() in place", WORKERS, lambda n: whole(job, n, True)),
        loader("samples stacked", WORKERS, lambda n: stacked(job, job.tensors, n)),
        Contender("multiprocessing.Queue of NumPy arrays", lambda: queued(job)),
        *of_processes(job),
        *feeds(job),
        Contender("np.empty + ctypes + torch.from_numpy", lambda: fresh_arrays(job)),
        Contender(ONE_BUFFER, lambda: warm_buffers(job, 1)),
        Contender(BUFFERS, lambda: warm_buffers(job, SLOTS)),
        *of_threads(job),
        *of_mxnet(job),
    ]


def for_jpegs(job):
    return [
        loader("Pillow, samples stacked", WORKERS, lambda n: stacked(job, job.pillows, n), job.pillows),
        loader("libjpeg-turbo, samples stacked", WORKERS, lambda n: stacked(job, job.tensors, n)),
        loader("libjpeg-turbo, whole batches", WORKERS, lambda n: whole(job, n)),
        loader(
            "libjpeg-turbo, whole batches, share_memory_() in place", WORKERS, lambda n: whole(job, n, True)
        ),
        loader(
            "libjpeg-turbo, whole batches, prefetch_factor=4",
            WORKERS,
            lambda n: whole(job, n, prefetch_factor=4),
        ),
        tenon_loader("Pillow", job, job.pillows, job.pillows),
        tenon_loader("libjpeg-turbo", job, job.tensors),
        Contender(
            f"tenon.Feed, {plural(WORKERS, *PROCESSES)}, Pillow",
            lambda: python_fed(job, WORKERS, "fork", fill_by_pillow),
            job.pillows,
        ),
        grain_in_processes(job, job.pillows, ", Pillow"),
        *of_processes(job),
        *feeds(job),
        Contender(ONE_BUFFER, lambda: warm_buffers(job, 1)),
        *of_threads(job),
        *of_threads(job, job.pillows, ", Pillow"),
    ]


def for_python(job):
    """Batches that Python code makes, whole."""
    return [
        *[loader("whole batches", n, lambda n: whole(job, n)) for n in (1, WORKERS)],
        loader("whole batches, share_memory_() in place", WORKERS, lambda n: whole(job, n, True)),
        *of_processes(job),
        *[
            Contender(
                f"tenon.Feed, {plural(workers, *kind)}",
                lambda workers=workers, kind=kind: python_looped(job, workers, kind is PROCESSES and "fork"),
            )
            for kind in (PROCESSES, THREADS)
            for workers in (1, WORKERS)
        ],
        Contender(NO_WORKER, lambda: python_fed(job, 0, False)),
        loader("whole batches", 0, lambda n: whole(job, n)),
        Contender(ONE_BUFFER, lambda: warm_buffers(job, 1)),
        Contender(BUFFERS, lambda: warm_buffers(job, SLOTS)),
        *of_threads(job),
    ]


def in_memory(job, count=64):
    batches = [job.tensors(index) for index in range(count)]
    yield from itertools.cycle(batches)


def for_digits(job):
    return [
        loader("samples stacked", WORKERS, lambda n: stacked(job, job.tensors, n), job.expected_stacked),
        *[loader("whole batches", n, lambda n: whole(job, n)) for n in (1, WORKERS)],
        *of_processes(job),
        *feeds(job, job.expected_of_feed),
        loader("whole batches", 0, lambda n: whole(job, n)),
        Contender(IN_MEMORY, lambda: in_memory(job)),
        *of_threads(job),
    ]


def for_first_batch(job):
    python_name = f"tenon.Feed, {plural(WORKERS, *PROCESSES)}, Python, fork"
    return [
        loader("whole batches, fork", WORKERS, lambda n: whole(job, n)),
        spdl_in_process(job),
        Contender(python_name, lambda: python_fed(job, WORKERS, "fork")),
        *feeds(job),
        loader("whole batches", 0, lambda n: whole(job, n)),
        *of_threads(job),
    ]


def for_first_batch_of_all(job):
    python_name = f"tenon.Feed, {plural(WORKERS, *PROCESSES)}, Python, spawn"
    spawned = [
        loader("whole batches, spawn", WORKERS, lambda n: whole(job, n, multiprocessing_context="spawn")),
        Contender(python_name, lambda: python_fed(job, WORKERS, "spawn")),
        grain_in_processes(job),
    ]
    return [
        *for_first_batch(job),
        *[dataclasses.replace(contender, is_spawned=True) for contender in spawned],
    ]


def small():
    return Fill(library("fill"), 1, (64, 64))


def large():
    return Fill(library("fill"), 1, (64, 3, 224, 224))


@dataclasses.dataclass(frozen=True)
class Part:
    """kind: "batches", "training" or "first batch"."""

    title: str
    kind: str
    make_job: Callable
    contenders: Callable
    unit: str = ""  # of speed,
    per_batch: float = 0  # as many of which are in a batch


EPOCH_BATCHES = 22  # of 64 rows: 1,408 of the 1,437 digits that are not held out

PARTS = {
    "38.5 MB": Part("Batches of 38.5 MB", "batches", large, for_batches, "GB/s", 64 * 3 * 224 * 224 * 4e-9),
    "16 KB": Part("Batches of 16 KB", "batches", small, for_batches, "GB/s", 64 * 64 * 4e-9),
    "30 arrays": Part(
        "Batches of 30 arrays of 16 KB",
        "batches",
        lambda: Fill(library("fill"), 30, (64, 64)),
        for_batches,
        "GB/s",
        30 * 64 * 64 * 4e-9,
    ),
    "JPEG": Part(
        "JPEGs of 256 x 256 decoded into batches of 32",
        "batches",
        lambda: Jpegs(library("jpeg")),
        for_jpegs,
        "images/s",
        Jpegs.ROWS,
    ),
    "Parquet": Part(
        "Row groups of Parquet decoded into batches of 4,096 rows",
        "batches",
        lambda: RowGroups(FOLDER / "rows.parquet"),
        for_python,
        "rows/s",
        RowGroups.ROWS,
    ),
    "packing": Part(
        "Token sequences packed into batches of 16 x 2,048",
        "batches",
        PackedSequences,
        for_python,
        "Mtokens/s",
        PackedSequences.ROWS * PackedSequences.LENGTH * 1e-6,
    ),
    "digits": Part(
        "Training on digits",
        "training",
        lambda: AugmentedDigits(library("digits")),
        for_digits,
        "epochs/s",
        1 / EPOCH_BATCHES,
    ),
    "first 16 KB": Part("First batch of 16 KB", "first batch", small, for_first_batch_of_all),
    "first 38.5 MB": Part("First batch of 38.5 MB", "first batch", large, for_first_batch),
}


def missing(part):
    """Why a part cannot be measured here, or None."""
    if part == "JPEG" and not library("jpeg").exists():
        return "the system has no libjpeg-turbo with its header turbojpeg.h"
    return None
