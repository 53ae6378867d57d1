# SPDX-License-Identifier: Apache-2.0
"""Feeds that are consumed in other processes: every batch arrives unchanged, in place, as often as the mode
says. The slots of a dead process become free, and no process waits for a dead one."""

import gc
import hashlib
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from other_process import SECONDS, Other, files_open, maps

import tenon as tn

SCHEMA = tn.schema(data=("f4", (8, 500)), label=("i8", (8,)))
CASES = ["queue", "broadcast"]

# What a consumer does with its batches, in processes that attach to the feed by its name.
CONSUMER = """
import hashlib
def look(batch):
    arrays = [np.asarray(array) for array in batch.arrays]
    digest = hashlib.sha1(b"".join(array.tobytes() for array in arrays)).hexdigest()
    return batch.epoch, batch.index, digest, [array.shape for array in arrays], batch.attachment
def epoch(feed, seconds=0.0):
    found = []
    for batch in feed:
        found.append(look(batch))
        del batch
        time.sleep(seconds)
    return found
"""


def fill(batch):
    batch.data[...] = np.random.default_rng(batch.seed).random(batch.data.shape, dtype="f4")
    batch.label[...] = batch.index


def fill_others(batch):
    """Smaller batches, with an extra."""
    fill(batch)
    batch.rows = 8 - batch.index % 8
    batch.resize("data", (batch.rows, 1 + batch.index))[...] = batch.index
    batch.attachment = b"x" * batch.index


@tn.worker(SCHEMA)
def fill_in_loop(batches):
    for batch in batches:
        fill(batch)


def looked_at(batch):
    arrays = [np.asarray(array) for array in batch.arrays]
    digest = hashlib.sha1(b"".join(array.tobytes() for array in arrays)).hexdigest()
    return batch.epoch, batch.index, digest, [array.shape for array in arrays], batch.attachment


def of_local_feed(generator=fill, epochs=1, **options):
    with tn.Feed(generator, SCHEMA, **options) as feed:
        return [[looked_at(batch) for batch in feed] for _ in range(epochs)]


def attach(process, name, **arguments):
    process.ask(CONSUMER)
    process.ask("feed = tn.Feed.attach(name, wait=600, **arguments)", name=name, arguments=arguments)


def until(is_met, seconds=SECONDS):
    end = time.monotonic() + seconds
    while not is_met():
        assert time.monotonic() < end
        time.sleep(0.005)


def held(feed):
    """The number of slots that consumers have."""
    return feed.stats().slots_held


# ------------------------------------------------------------------------------------- what arrives


@pytest.mark.slow
@pytest.mark.parametrize("mode", CASES)
@pytest.mark.parametrize(
    ("generator", "options"),
    [
        (fill, {}),
        (fill, {"processes": "fork", "workers": 2}),
        (fill_in_loop(), {"workers": 3}),
        (fill_others, {"attachment_nbytes": 64}),
    ],
    ids=["thread", "processes", "threads", "smaller"],
)
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_batches_are_those_of_the_local_feed(mode, generator, options, name, other, another):
    options = {"batches": 13, "seed": 5, **options}
    wanted = of_local_feed(generator, epochs=2, **options)
    with tn.Feed(generator, SCHEMA, shared=name, **options) as feed:
        with feed.serve(mode, epochs=2, consumers=2, background=True) as server:
            for process in (other, another):
                attach(process, name)
            found = []
            for _ in range(2):
                for process in (other, another):
                    process.start("epoch(feed, 0.001)")
                found.append([process.answer() for process in (other, another)])
            server.wait(SECONDS)
            assert (server.epochs, server.batches) == (2, 26)
        for epoch in range(2):
            if mode == "broadcast":
                assert found[epoch] == [wanted[epoch], wanted[epoch]]
            else:
                assert sorted(found[epoch][0] + found[epoch][1]) == wanted[epoch]
                assert all(part == sorted(part) for part in found[epoch])
        assert held(feed) == 0


def test_a_native_generator_on_threads_is_served_too(name, other, tmp_path):
    source, library = tmp_path / "fill.c", tmp_path / "libfill.so"
    source.write_text(
        "#include <stdint.h>\n"
        "int fill(float *data, int64_t *label, int64_t n, uint64_t index) {\n"
        "  for (int64_t i = 0; i < n * 500; ++i) data[i] = (float)(index + i);\n"
        "  for (int64_t i = 0; i < n; ++i) label[i] = (int64_t)index;\n  return 0;\n}\n"
    )
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    prototype = "int fill(float *data, int64_t *label, int64_t n, uint64_t index)"
    generator = tn.c_function(str(library), prototype, threadsafe=True)
    wanted = of_local_feed(generator, batches=20, workers=2)[0]
    with tn.Feed(generator, SCHEMA, batches=20, workers=2, shared=name) as feed, feed.serve(background=True):
        attach(other, name)
        assert other.ask("epoch(feed)") == wanted


@pytest.mark.parametrize("mode", CASES)
def test_batches_lie_in_the_feeds_slots(mode, name, other):
    """The addresses are those of the slots' file, at most as many as there are slots. Batches of a broadcast
    are read-only. A consumer of a queue writes only into its own batch."""
    with tn.Feed(fill, SCHEMA, batches=50, slots=4, shared=name) as feed:
        with feed.serve(mode, background=True):
            attach(other, name)
            pages, writable, files = other.ask(
                """(lambda found: (
                    {address - feed._native.describe()["memory"] for address, _ in found},
                    {w for _, w in found},
                    [line.split()[4:] for line in open("/proc/self/maps")
                     if int(line.split("-")[0], 16) == feed._native.describe()["memory"]],
                ))([(batch.data.data_ptr, batch.data.writable) for batch in feed])"""
            )
        slot = feed.stats().slot_nbytes
        assert pages <= {i * slot for i in range(4)} and len(pages) >= 2
        assert writable == {mode == "queue"}
        inode = os.fstat(feed._native.place()[0]).st_ino
        assert int(files[0][0]) == inode and files[0][1].startswith("/memfd:tenon:")


def test_consumers_by_multiprocessing_share_a_queue(name):
    context = multiprocessing.get_context("spawn")
    with tn.Feed(fill, SCHEMA, batches=30, shared=name) as feed, context.Pool(2) as pool:
        results = [pool.apply_async(_indices_of, (name,)) for _ in range(2)]
        feed.serve(consumers=2)
        found = [result.get(SECONDS) for result in results]
    assert sorted(found[0] + found[1]) == list(range(30))


def _indices_of(name):
    with tn.Feed.attach(name, wait=SECONDS) as feed:
        return [int(batch.label[0]) for batch in feed]


@pytest.mark.slow
def test_training_and_evaluation_loops_in_torch_share_a_broadcast(name, other, another):
    pytest.importorskip("torch")
    wanted = [(int(label[0]), float(data.sum())) for data, label in _local_torch()]
    with (
        tn.Feed(fill, SCHEMA, batches=9, shared=name) as feed,
        feed.serve("broadcast", consumers=2, background=True),
    ):
        loop = "[(int(y[0]), float(x.sum()), x.data_ptr()) for x, y in feed.torch(trust=True)]"
        for process in (other, another):
            attach(process, name)
            process.ask("import torch")
        for process in (other, another):
            process.start(loop)
        for process in (other, another):
            found = process.answer()
            assert [entry[:2] for entry in found] == wanted
            begin = process.ask('feed._native.describe()["memory"]')
            assert all(begin <= entry[2] < begin + feed._native.place()[3] for entry in found)


def _local_torch():
    with tn.Feed(fill, SCHEMA, batches=9) as feed:
        yield from feed.torch()


@pytest.mark.slow
def test_tensors_of_a_broadcast_are_copies_without_trust(name, other):
    pytest.importorskip("torch")
    with tn.Feed(fill, SCHEMA, batches=1, shared=name) as feed, feed.serve("broadcast", background=True):
        attach(other, name)
        assert other.ask("[(x.zero_(), y.zero_()) and len(x) for x, y in feed.torch()]") == [8]


def test_arrays_of_jax_lie_on_the_slots(name, other):
    pytest.importorskip("jax")
    schema = tn.schema(data=("f4", (8, 500)))
    with (
        tn.Feed(lambda b: b.data.fill(b.index), schema, batches=5, shared=name) as feed,
        feed.serve(background=True),
    ):
        attach(other, name)
        assert other.ask("[float(x[0, 0]) for x, in feed.jax()]") == [0, 1, 2, 3, 4]


KEEPS_SOME = """
import random
rng, kept, wrong = random.Random(7), {}, []
for batch in feed:
    view = batch.data.numpy()[2:, ::3]
    kept[batch.index] = (view, view.copy())
    del batch, view
    if len(kept) == 5:
        for index in rng.sample(sorted(kept), rng.randint(1, 5)):
            view, copy = kept.pop(index)
            if not (view == copy).all(): wrong.append(index)
            del view, copy
    if max(kept, default=0) > 300: break
"""


@pytest.mark.parametrize("mode", CASES)
def test_batches_that_are_kept_are_not_overwritten(mode, name, other):
    """In any order of release; and all slots become free again."""
    with tn.Feed(fill, SCHEMA, slots=6, shared=name) as feed, feed.serve(mode, background=True):
        attach(other, name)
        other.ask(KEEPS_SOME)
        assert other.ask("wrong") == []
        other.ask("kept.clear()")


# ------------------------------------------------------------------------------------- epochs


def test_an_early_end_of_a_loop_leaves_the_rest_to_the_next_one(name, other):
    with tn.Feed(fill, SCHEMA, batches=6, shared=name) as feed, feed.serve(epochs=2, background=True):
        attach(other, name)
        assert other.ask("(lambda it: [next(it).index, next(it).index])(iter(feed))") == [0, 1]
        assert [entry[1] for entry in other.ask("epoch(feed)")] == [2, 3, 4, 5]
        assert [entry[1] for entry in other.ask("epoch(feed)")] == [0, 1, 2, 3, 4, 5]


@pytest.mark.slow
@pytest.mark.parametrize("mode", CASES)
def test_a_slow_consumer_counts_the_same_epochs(mode, name, other, another):
    with tn.Feed(fill, SCHEMA, batches=8, shared=name) as feed:
        with feed.serve(mode, epochs=3, consumers=2, background=True) as server:
            for process in (other, another):
                attach(process, name)
            other.start("[[e[:2] for e in epoch(feed)] for _ in range(3)]")
            another.start("[[e[:2] for e in epoch(feed, 0.05)] for _ in range(3)]")
            fast, slow = other.answer(), another.answer()
            server.wait(SECONDS)
        for epoch in range(3):
            together = fast[epoch] + slow[epoch] if mode == "queue" else fast[epoch]
            assert sorted(together) == [(epoch, i) for i in range(8)]


@pytest.mark.slow
@pytest.mark.parametrize("mode", CASES)
def test_who_comes_at_the_end_of_an_epoch_takes_part_in_the_next_one(mode, name, other, another):
    with (
        tn.Feed(fill, SCHEMA, batches=4, shared=name) as feed,
        feed.serve(mode, epochs=2, consumers=2, background=True),
        Other() as late,
    ):
        for process in (other, another):
            attach(process, name)
        for process in (other, another):
            process.start("it = iter(feed); first = next(it)")
        for process in (other, another):
            process.answer()
        other.ask("rest = [batch.index for batch in it]; del first")
        attach(late, name)
        late.start("epoch(feed)")
        until(lambda: feed._native.serve_counts()["consumers"] == 3)
        other.start("epoch(feed)")
        another.ask("[batch.index for batch in it]")
        another.start("epoch(feed)")
        found = [[entry[:2] for entry in process.answer()] for process in (other, another, late)]
        wanted = [(1, i) for i in range(4)]
        assert (
            found == [wanted] * 3 if mode == "broadcast" else sorted(found[0] + found[1] + found[2]) == wanted
        )


@pytest.mark.slow
@pytest.mark.parametrize("mode", CASES)
def test_without_consumers_the_server_waits_and_the_next_one_gets_the_rest(mode, name, other, another):
    with (
        tn.Feed(fill, SCHEMA, batches=10, slots=4, shared=name) as feed,
        feed.serve(mode, background=True) as server,
    ):
        attach(other, name)
        assert other.ask("(lambda it: [next(it).index for _ in range(3)])(iter(feed))") == [0, 1, 2]
        other.ask("feed.close()")
        until(lambda: server.batches == 6)  # 3 that may be out, and no consumer takes them
        time.sleep(0.1)
        assert server.is_running and server.batches == 6
        attach(another, name)
        assert [entry[1] for entry in another.ask("epoch(feed)")] == list(range(3, 10))
        server.wait(SECONDS)


@pytest.mark.slow
@pytest.mark.parametrize("mode", CASES)
@pytest.mark.parametrize("leaves", ["feed.close()", "os.kill(os.getpid(), 9)"])
def test_the_rest_of_an_epoch_is_not_mixed_with_the_next_one(leaves, mode, name, another):
    """All batches were sent, and the consumer that should receive them leaves."""
    with (
        tn.Feed(fill, SCHEMA, batches=4, slots=6, shared=name) as feed,
        feed.serve(mode, epochs=2, background=True) as server,
        Other() as doomed,
    ):
        attach(doomed, name)
        assert doomed.ask("(lambda it: next(it).index)(iter(feed))") == 0
        until(lambda: server.batches == 4)
        time.sleep(0.1)
        doomed.start(leaves)
        doomed.process.wait(SECONDS) if "kill" in leaves else doomed.answer()
        attach(another, name)
        assert [entry[:2] for entry in another.ask("epoch(feed)")] == [(0, 1), (0, 2), (0, 3)]
        assert [entry[:2] for entry in another.ask("epoch(feed)")] == [(1, i) for i in range(4)]


def test_a_broadcast_waits_for_somebody_who_listens(name, other, another):
    with (
        tn.Feed(fill, SCHEMA, batches=40, slots=4, shared=name) as feed,
        feed.serve("broadcast", background=True) as server,
    ):
        time.sleep(0.1)
        assert server.batches == 0
        attach(other, name)
        assert other.ask("(lambda it: [next(it).index for _ in range(5)])(iter(feed))") == list(range(5))
        other.ask("feed.close()")
        time.sleep(0.2)
        sent = server.batches
        assert sent < 40
        attach(another, name)
        found = [entry[1] for entry in another.ask("epoch(feed)")]
        assert found == list(range(5, 40))
        server.wait(SECONDS)


@pytest.mark.slow
@pytest.mark.parametrize("mode", CASES)
def test_the_servers_end_ends_the_loops(mode, name, other):
    with tn.Feed(fill, SCHEMA, shared=name) as feed:
        server = feed.serve(mode, epochs=None, background=True)
        attach(other, name)
        other.start("epoch(feed)")
        until(lambda: server.batches > 20)
        server.close()
        found = [entry[1] for entry in other.answer()]
        assert found == list(range(server.batches))
        with pytest.raises(ValueError, match=f"is not served any more by process {os.getpid()}"):
            other.ask("next(iter(feed))")
        # Again: attached consumers continue.
        with feed.serve(mode, epochs=1, background=True):
            assert other.ask("next(iter(feed)).index") == 0


def test_a_server_closes_at_once_under_a_generator_that_hangs(name):
    go_on = threading.Event()
    with tn.Feed(lambda batch: go_on.wait() and None, SCHEMA, shared=name) as feed:
        server = feed.serve(consumers=0, background=True)
        until(lambda: feed.stats().slots_filling > 0)
        server.close()
        assert not server.is_running
        go_on.set()


def test_what_consumers_let_go_of_is_filled_again_while_the_generator_is_slow(name, other):
    gate = threading.Semaphore(0)
    with (
        tn.Feed(lambda batch: gate.acquire() and None, SCHEMA, slots=6, shared=name) as feed,
        feed.serve(background=True),
    ):
        attach(other, name)
        gate.release(4)
        other.ask("it = iter(feed); kept = [next(it) for _ in range(4)]")
        until(lambda: feed.stats().slots_held == 4)
        other.ask("kept.clear()")
        gate.release(1)
        other.ask("last = next(it)")
        until(lambda: feed.stats().slots_held == 1)
        gate.release(100)


def test_the_feed_can_be_iterated_here_when_it_is_served_no_more(name, other):
    with tn.Feed(fill, SCHEMA, batches=12, shared=name) as feed:
        with feed.serve(background=True) as server:
            with pytest.raises(tn.TenonError, match="being served already"):
                feed.serve()
            attach(other, name)
            other.ask("kept = [batch.label.numpy() for batch in feed if batch.index > 9]")
            server.wait(SECONDS)
        assert [batch.index for batch in feed] == list(range(12))
        assert feed.stats().slots_held == 2
        assert other.ask("[int(label[0]) for label in kept]") == [10, 11]
        other.ask("kept.clear()")
        until(lambda: held(feed) == 0)


# ------------------------------------------------------------------------------------- failures


def breaks(batch):
    fill(batch)
    if batch.index == 3 and batch.epoch == 0:
        raise ValueError("no such picture: " + "\u00e4" * 300)


FAILS = """
seen = []
try:
    for batch in feed: seen.append(batch.index)
except tn.OpError as error:
    failure = error
"""


@pytest.mark.slow
@pytest.mark.parametrize("mode", CASES)
def test_a_failure_comes_at_its_place(mode, name, other):
    with tn.Feed(breaks, SCHEMA, batches=6) as feed, pytest.raises(tn.OpError) as wanted:
        [batch.index for batch in feed]
    with tn.Feed(breaks, SCHEMA, batches=6, shared=name) as feed, feed.serve(mode, epochs=2, background=True):
        attach(other, name)
        other.ask(FAILS)
        assert other.ask("seen") == [0, 1, 2]
        facts = other.ask("(str(failure), failure.code, failure.args, failure.__dict__)")
        assert facts == (str(wanted.value), -1, wanted.value.args, wanted.value.__dict__)
        assert [entry[1] for entry in other.ask("epoch(feed)")] == [0, 1, 2, 3, 4, 5]


@pytest.mark.slow
def test_each_consumer_of_a_queue_is_told_of_a_failure(name, other, another):
    with tn.Feed(breaks, SCHEMA, batches=6, shared=name) as feed, feed.serve(consumers=2, background=True):
        for process in (other, another):
            attach(process, name)
            process.start("epoch(feed)")
        for process in (other, another):
            with pytest.raises(tn.OpError, match="no such picture"):
                process.answer()


@pytest.mark.slow
def test_a_consumer_that_holds_everything_is_told_so(name, other):
    with tn.Feed(fill, SCHEMA, slots=4, shared=name) as feed, feed.serve(background=True):
        attach(other, name)
        other.ask("it = iter(feed); kept = [next(it) for _ in range(3)]; feed.timeout = 0.3")
        with pytest.raises(TimeoutError, match=r"all 3 .* in the hands .* keep copies of fields"):
            other.ask("next(it)")
        other.ask("del kept[0]; feed.timeout = None")
        assert other.ask("next(it).index") == 3
        other.ask("kept.clear(); copies = [next(it).data.copy() for _ in range(8)]")


@pytest.mark.slow
def test_a_consumer_that_waits_for_the_generator_is_told_so(name, other):
    go_on = threading.Event()

    def slow(batch):
        assert go_on.wait(SECONDS)

    with tn.Feed(slow, SCHEMA, batches=2, shared=name) as feed, feed.serve(background=True):
        attach(other, name, timeout=0.2)
        with pytest.raises(TimeoutError, match="waits for its generator"):
            other.ask("next(iter(feed))")
        go_on.set()
        other.ask("feed.timeout = None")
        assert [entry[1] for entry in other.ask("epoch(feed)")] == [0, 1]


# ------------------------------------------------------------------------------------- deaths

SERVER = """
schema = tn.schema(data=("f4", (8, 500)), label=("i8", (8,)))
def fill(batch):
    batch.data[...] = np.random.default_rng(batch.seed).random(batch.data.shape, dtype="f4")
    batch.label[...] = batch.index
feed = tn.Feed(fill, schema, shared=name, **options)
server = feed.serve(mode, epochs=None, background=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("mode", CASES)
@pytest.mark.parametrize("options", [{}, {"processes": "fork", "workers": 2}], ids=["thread", "processes"])
def test_a_server_that_is_killed_is_named_and_batches_in_hand_stay_valid(mode, options, name, other):
    with Other() as owner:
        owner.ask(SERVER, name=name, mode=mode, options=options)
        attach(other, name)
        other.ask("it = iter(feed); kept = [next(it), next(it)]; before = [look(b) for b in kept]")
        other.start("[batch.index for batch in it]")
        time.sleep(random.Random(mode).random() * 0.2)
        owner.kill()
        with pytest.raises(tn.OwnerDied, match=f"process {owner.pid}, which served feed '{name}'") as caught:
            other.answer()
        assert caught.value.pid == owner.pid
        assert other.ask("[look(b) for b in kept] == before")
        with pytest.raises(tn.OwnerDied, match=str(owner.pid)):
            other.ask("next(iter(feed))")
        other.ask("del it, kept, feed")
    with pytest.raises(FileNotFoundError, match="no feed is served under the name"):
        tn.Feed.attach(name)


@pytest.mark.slow
def test_a_server_that_is_killed_between_epochs_is_named(name, other, another):
    """It then waits until a consumer reaches the end of the epoch."""
    with Other() as owner:
        owner.ask(SERVER.replace("epochs=None", "epochs=None, consumers=2"), name=name, mode="queue",
                  options={"batches": 2})  # fmt: skip
        attach(other, name)
        attach(another, name)
        for process in (other, another):
            process.start("it = iter(feed); first = next(it)")
        for process in (other, another):
            process.answer()
        assert other.ask("next(it, None)") is None
        other.start("next(iter(feed))")
        time.sleep(0.1)
        owner.kill()
        with pytest.raises(tn.OwnerDied, match=str(owner.pid)):
            other.answer()
        assert another.ask("int(first.label[0])") in (0, 1)


@pytest.mark.slow
@pytest.mark.parametrize("mode", CASES)
def test_a_consumer_that_is_killed_gives_its_slots_back(mode, name, other):
    with (
        tn.Feed(fill, SCHEMA, slots=5, shared=name) as feed,
        feed.serve(mode, epochs=None, consumers=2, background=True) as server,
        Other() as doomed,
    ):
        for process in (doomed, other):
            attach(process, name)
            process.start("it = iter(feed); kept = [next(it), next(it)]")
        for process in (doomed, other):
            process.answer()
        doomed.kill()
        other.ask("del kept[0]")
        # More batches than slots, while one is kept.
        found = other.ask("[next(it).index for _ in range(30)]")
        assert found == sorted(found)
        assert other.ask("int(kept[0].label[0]) == kept[0].index")
        assert server.is_running


@pytest.mark.slow
@pytest.mark.parametrize("mode", CASES)
def test_consumers_that_are_killed_at_random_disturb_nobody(mode, name, other):
    """One consumer stays; others start, take batches, keep some, and are killed at any moment. The batches of
    the first one are complete and in order: all of them in a broadcast, and none twice in a queue."""
    rng = random.Random(20)
    with tn.Feed(fill, SCHEMA, slots=6, shared=name) as feed:
        server = feed.serve(mode, background=True)
        attach(other, name)
        other.start("epoch(feed, 0.001)")
        for _ in range(6):
            doomed = subprocess.Popen([sys.executable, "-c", _KEEPER, name], stdout=subprocess.PIPE)
            assert doomed.stdout.read(1) == b"."
            time.sleep(rng.random() * 0.03)
            doomed.kill()
            doomed.wait()
            doomed.stdout.close()
            before = server.batches
            until(lambda before=before: server.batches > before + 20)
        server.close()
        found = other.answer()
        until(lambda: held(feed) == 0)
    indices = [entry[1] for entry in found]
    wanted = {entry[1]: entry for entry in of_local_feed(batches=max(indices) + 1)[0]}
    assert all(wanted[entry[1]] == entry for entry in found)
    # The server may count one batch less for each consumer that was killed as it received that batch.
    assert 0 <= len(wanted) - server.batches <= 6
    assert indices == (list(range(len(indices))) if mode == "broadcast" else sorted(set(indices)))
    assert len(indices) > 100


_KEEPER = """
import sys, tenon as tn
feed = tn.Feed.attach(sys.argv[1])
kept = []
for batch in feed:
    if not kept: print(end=".", flush=True)
    kept = kept[-1:] + [batch]
"""


# ------------------------------------------------------------------------------------- surroundings


@pytest.mark.slow
@pytest.mark.parametrize("mode", CASES)
def test_nothing_grows_over_a_thousand_batches(mode, name, other):
    with (
        tn.Feed(fill, SCHEMA, batches=1100, shared=name) as feed,
        feed.serve(mode, epochs=2, background=True) as server,
    ):
        attach(other, name)
        count = "len(os.listdir('/proc/self/fd')), open('/proc/self/maps').read().count('\\n')"
        other.ask("it = iter(feed); first = [next(it).index for _ in range(100)]")
        here, there = (files_open(), maps()), other.ask(count)
        assert other.ask("len([batch.index for batch in it]) + len(epoch(feed))") == 2100
        server.wait(SECONDS)
        assert files_open() <= here[0] and other.ask(count)[0] == there[0]
        assert maps() <= here[1] + 8 and other.ask(count)[1] <= there[1] + 8

    name += "-2"
    for turn in range(25):
        if turn == 5:
            before = files_open()
        with (
            tn.Feed(fill, SCHEMA, batches=1, shared=name) as feed,
            feed.serve(mode, background=True),
            tn.Feed.attach(name) as attached,
        ):
            assert [batch.index for batch in attached] == [0]
            del attached

        del feed
    gc.collect()
    assert files_open() <= before + 6  # one that is going


def test_ctrl_c_ends_a_consumer_that_waits(name):
    with tn.Feed(fill, SCHEMA, shared=name) as feed:
        feed.serve(consumers=2, background=True)
        code = (
            "import sys, tenon as tn\nfeed = tn.Feed.attach(sys.argv[1])\nit = iter(feed)\n"
            "try:\n    print(end='.', flush=True)\n    next(it)\n"
            "except KeyboardInterrupt:\n    print('ended')"
        )
        process = subprocess.Popen([sys.executable, "-c", code, name], stdout=subprocess.PIPE, text=True)
        assert process.stdout.read(1) == "."
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=SECONDS)[0] == "ended\n"


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["before", "during"])
def test_ctrl_c_ends_serving_and_the_consumers_loops(moment, name, other):
    code = f"""
import sys, time, tenon as tn
def fill(batch):
    if batch.index > 5: time.sleep(3600)
with tn.Feed(fill, tn.schema(x=("f4", (8,))), shared=sys.argv[1]) as feed:
    try:
        print(end=".", flush=True)
        feed.serve(consumers={2 if moment == "before" else 1})
    except KeyboardInterrupt:
        print("ended", flush=True)
        import os; os._exit(0)
"""
    process = subprocess.Popen([sys.executable, "-c", code, name], stdout=subprocess.PIPE, text=True)
    assert process.stdout.read(1) == "."
    attach(other, name)
    taken, wanted = tn.zeros(1, "i8", shared=True), 0 if moment == "before" else 6
    other.start("for batch in feed:\n    del batch\n    taken[0] += 1", taken=taken)
    until(lambda: taken.item() == wanted)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=SECONDS)[0] == "ended\n"
    other.answer()
    assert taken.item() == wanted


def test_names_are_nobody_elses(name, other):
    with pytest.raises(FileNotFoundError, match="no feed is served under the name 'nobody'"):
        tn.Feed.attach("nobody")
    array = tn.zeros(3, shared=name)
    with pytest.raises(ValueError, match="shared, but of no feed"):
        tn.Feed.attach(name)
    with tn.Feed(fill, SCHEMA, shared=name) as feed:
        with pytest.raises(ValueError, match=name):
            feed.serve(background=True)
        del array
        server = feed.serve(background=True)
        with tn.Feed(fill, SCHEMA, shared=name) as second, pytest.raises(ValueError, match=name):
            second.serve(background=True)
        with tn.Feed.attach(name), pytest.raises(ValueError, match=r"attached to feed .* already"):
            tn.Feed.attach(name)
        assert server.is_running


def test_what_cannot_be_served_is_refused(name):
    with tn.Feed(fill, SCHEMA) as feed, pytest.raises(ValueError, match='make it with shared="name"'):
        feed.serve()
    for arguments, match in (
        ({"mode": "latest"}, "must be one of queue, broadcast"),
        ({"epochs": -1}, "epochs is -1"),
        ({"consumers": -1}, "consumers is -1"),
    ):
        with tn.Feed(fill, SCHEMA, shared=name) as feed, pytest.raises(ValueError, match=match):
            feed.serve(**arguments)
    with pytest.raises(ValueError, match="it keeps to its slots"):
        tn.Feed(fill, SCHEMA, shared=True, on_starved="grow")
    with pytest.raises(TypeError, match="False, True or a name"):
        tn.Feed(fill, SCHEMA, shared=3)
    with tn.Feed(fill, SCHEMA, shared=True) as feed:
        assert str(os.getpid()) in feed.name
        feed.serve("queue", epochs=0, consumers=0)
        with pytest.raises(ValueError, match="was served as a queue before"):
            feed.serve("broadcast")
    with pytest.raises(ValueError, match="the feed is closed"):
        feed.serve(consumers=0)


def test_a_served_feed_is_seen_from_outside(name, other):
    with tn.Feed(fill, SCHEMA, batches=5, shared=name) as feed, feed.serve(background=True):
        attach(other, name)
        other.ask("it = iter(feed); batch = next(it)")
        command = [sys.executable, "-m", "tenon", "ls"]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert f"{name}  channel" in text and "channel: queue" in text
        found = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True).stdout
        assert name in json.dumps(json.loads(found))
        assert f"consumers: {other.pid}" in text


def test_a_consumer_that_waits_long_says_for_what(name, caplog, quick_reports):
    with tn.Feed(fill, SCHEMA, shared=name) as feed:
        feed.serve(consumers=2, background=True)
        wanted = {"waits for other consumers", "2 consumers before its first batch: 1 have attached"}
        with tn.Feed.attach(name, timeout=1.0) as attached:
            while not all(any(text in message for message in caplog.messages) for text in wanted):
                with pytest.raises(TimeoutError):
                    next(iter(attached))


METERS = """
from tenon.demo._copy_meter import CopyMeter
written = []
with CopyMeter() as meter:
    batches = iter(feed)
    next(batches)
    while True:
        meter.start()
        batch = next(batches, None)
        if batch is None: break
        view = batch.data.numpy()
        total = float(view[0, 0])
        written.append(meter.stop() / batch.data.nbytes)
        del batch, view
"""


@pytest.mark.parametrize("mode", CASES)
def test_a_consumer_writes_nothing_of_a_batch(mode, name, other):
    from tenon.demo._copy_meter import why_unavailable

    if why_unavailable() is not None:
        pytest.skip("the kernel does not count written pages")
    schema = tn.schema(data=("f4", (8, 1 << 20)))
    with (
        tn.Feed(lambda batch: batch.data.fill(batch.index), schema, batches=8, slots=3, shared=name) as feed,
        feed.serve(mode, background=True),
    ):
        attach(other, name)
        other.ask(METERS)
        assert sorted(other.ask("written"))[3] < 0.05
