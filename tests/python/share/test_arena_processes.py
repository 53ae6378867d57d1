# SPDX-License-Identifier: Apache-2.0
"""One buffer for several layouts, in several processes: pickles, turns, stale views, deaths."""

import asyncio
import concurrent.futures
import multiprocessing as mp
import os
import pickle
import random
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from arena_cases import LAYOUTS, arena_of_totals, turns

import tenon as tn

pytestmark = pytest.mark.usefixtures("nothing_stays_behind")

METHODS = ["fork", "spawn", "forkserver"]

ENTER = "use = arena.use({!r}, {!r}); f = use.__enter__()"
LEAVE = "use.__exit__(None, None, None); del f"


@pytest.fixture
def lock_timeout():
    before = tn.set_lock_timeout(0.2)
    yield 0.2
    tn.set_lock_timeout(before)


def give(other, arena):
    other.ask("arena = given", given=arena)


# ------------------------------------------------------------------------------------------ handing over


def count_in_child(arena):
    with arena.use("features", "r") as f:
        total = int(f.A.sum())
    with arena.use("counts") as f:
        f.D[:] = total
        f.E[:] = os.getpid()


def send_back(arena, queue):
    count_in_child(arena)
    queue.put(arena)


@pytest.mark.parametrize("method", METHODS)
def test_it_goes_to_processes_by_any_start_method(method):
    arena = tn.Arena(LAYOUTS, shared=True)
    context = mp.get_context(method)
    with arena.use("features") as f:
        f.A[:] = 2
    queue = context.Queue()
    child = context.Process(target=send_back, args=(arena, queue))
    child.start()
    again = queue.get(timeout=600)
    child.join(50)
    assert child.exitcode == 0
    assert (again.active, arena.active, arena.generation) == ("counts", "counts", 2)
    with arena.use("counts", "r") as f, again.use("counts", "r") as g:
        assert f.D[499] == g.D[0] == 2000
        assert f.E[0] == child.pid
    queue.close()
    queue.join_thread()


@pytest.mark.parametrize("method", METHODS)
def test_it_goes_to_pools_whose_workers_run_already(method):
    with mp.get_context(method).Pool(2) as pool:
        assert pool.map(abs, [-1, -2]) == [1, 2]
        arena = tn.Arena(LAYOUTS, shared=True)
        with arena.use("features") as f:
            f.A[:] = 3
        pool.apply(count_in_child, (arena,))
        with arena.use("counts", "r") as f:
            assert f.D[0] == 3000
        pool.close()
        pool.join()


def test_it_goes_to_executors_and_by_plain_pickles(other):
    arena = tn.Arena(LAYOUTS, shared=True)
    with arena.use("features") as f:
        f.A[:] = 1
    give(other, arena)
    other.ask("with arena.use('features') as f: f.A[:] = 5")
    with arena.use("features", "r") as f:
        assert f.A[0] == 5
    context = mp.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as executor:
        executor.submit(count_in_child, arena).result(timeout=600)
    with arena.use("counts", "r") as f:
        assert f.D[0] == 5000
    data = pickle.dumps(tn.Arena(LAYOUTS, shared=True))
    assert len(data) < 2000


def test_it_goes_by_its_name_and_lives_as_long_as_anybody_uses_it(other, another):
    other.ask(f"arena = tn.Arena({LAYOUTS!r}, shared='tenon.test.arena.named')")
    other.ask("with arena.use('features') as f: f.A[:] = 8")
    another.ask("arena = tn.Arena.attach('tenon.test.arena.named')")
    assert another.ask("repr(arena)") == other.ask("repr(arena)")
    other.kill()
    assert another.ask("arena.active") == "features"
    mine = tn.Arena.attach("tenon.test.arena.named")
    another.kill()
    with mine.use("features", "r") as f:
        assert f.A[999] == 8
    del mine
    deadline = time.monotonic() + 600
    while True:
        try:
            tn.Arena.attach("tenon.test.arena.named")
        except FileNotFoundError:
            break
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_who_finds_the_name_finds_the_arena(other):
    """Another process repeatedly creates arenas with one name: either there is none, or it is complete."""
    other.ask(
        "def make(n):\n"
        "    import time\n"
        "    fields = {f'f{k}': ('u1', (9,)) for k in range(100)}\n"
        "    while n > 0:\n"
        "        try:\n"
        "            kept = tn.Arena({'x': fields}, shared='tenon.test.arena.race')\n"
        "            time.sleep(0.03)\n"
        "            del kept\n"
        "        except ValueError as error:\n"
        "            assert 'exists already' in str(error)\n"
        "        n -= 1"
    )
    found = 0
    while found == 0:
        other.start("make(20)")
        while other.is_busy(0.001):
            for _ in range(10):
                try:
                    arena = tn.Arena.attach("tenon.test.arena.race")
                except FileNotFoundError:
                    continue
                assert len(arena.layouts["x"]) == 100
                found += 1
                del arena
        other.answer()


# ------------------------------------------------------------------------------------------------- turns


def test_nobody_reads_counts_while_another_process_uses_features(other):
    arena = tn.Arena(LAYOUTS, shared=True)
    give(other, arena)
    with arena.use("counts") as f:
        f.D[:] = 1
    other.ask(ENTER.format("features", "w"))
    other.ask("f.A[:] = 2")
    with pytest.raises(TimeoutError, match=f"process {other.pid} "):
        arena.use("counts", "r", timeout=0.1).__enter__()
    with pytest.raises(TimeoutError, match=f"process {other.pid} "):
        arena.use("counts", "w", timeout=0.1).__enter__()
    other.ask(LEAVE)
    # The arena is free, and holds features.
    with pytest.raises(tn.LeaseConflict, match="'counts' cannot be read: the arena holds 'features'"):
        arena.use("counts", "r").__enter__()
    with arena.use("features", "r") as f:
        assert f.A[0] == 2


def test_who_waits_for_another_process_gets_its_turn(other):
    arena = tn.Arena(LAYOUTS, shared=True)
    give(other, arena)
    with arena.use("features") as f:
        other.start("with arena.use('counts') as f: f.D[:] = 9")
        assert other.is_busy()
        f.A[:] = 1
        assert arena.active == "features"
    other.answer()
    with arena.use("counts", "r") as f:
        assert f.D[0] == 9
    # The other process waits to read a layout that this one replaces: then it is refused.
    with arena.use("features") as f:
        other.start("arena.use('counts', 'r').__enter__()")
        assert other.is_busy()
    with pytest.raises(tn.LeaseConflict, match="the arena holds 'features'"):
        other.answer()


def test_processes_read_one_layout_together(other):
    arena = tn.Arena(LAYOUTS, shared=True)
    with arena.use("features") as f:
        f.A[:] = 4
    give(other, arena)
    other.ask(ENTER.format("features", "r"))
    with arena.use("features", "r", timeout=600) as f:
        assert f.A[0] == other.ask("float(f.A[0])") == 4
    with pytest.raises(TimeoutError, match=f"process {other.pid} "):
        arena.use("counts", timeout=0.1).__enter__()
    other.ask(LEAVE)
    with arena.use("counts", timeout=600):
        pass


def test_the_default_timeout_names_the_process(other, lock_timeout):
    arena = tn.Arena(LAYOUTS, shared=True)
    give(other, arena)
    other.ask(ENTER.format("features", "w"))
    with pytest.raises(TimeoutError, match=f"process {other.pid} "):
        arena.use("counts").__enter__()
    other.ask(LEAVE)


def test_a_stale_view_of_another_process_is_waited_for_and_named(other):
    arena = tn.Arena(LAYOUTS, shared=True)
    give(other, arena)
    other.ask(ENTER.format("features", "w"))
    other.ask("kept = [f.A[1:]]; f.A[:] = 6")
    other.ask("use.__exit__(None, None, None)")
    with pytest.raises(TimeoutError, match=f"process {other.pid} "):
        arena.use("counts", timeout=0.2).__enter__()
    assert other.ask("float(kept[0][0])") == 6
    other.ask("kept.clear()")
    with arena.use("counts", timeout=600) as f:
        f.D[:] = 1
    with pytest.raises(tn.LeaseConflict, match="cannot be read"):
        other.ask("arena.use('features', 'r').__enter__()")


@pytest.mark.slow
def test_processes_use_layouts_by_turns():
    arena = arena_of_totals(400, shared=True)
    with mp.get_context("spawn").Pool(3) as pool:
        answers = [pool.apply_async(turns, (arena, seed, 300)) for seed in range(3)]
        own = turns(arena, 3, 300)
        assert sum(answer.get(50) for answer in answers) + own > 0
        pool.close()
        pool.join()


def test_a_forked_child_waits_for_its_parent_s_block():
    arena = tn.Arena(LAYOUTS, shared=True)
    reader, writer = os.pipe()
    with arena.use("features") as f:
        f.A[:] = 1
        child = os.fork()
        if child == 0:
            code = 1
            try:
                del f
                try:
                    arena.use("counts", timeout=0.2).__enter__()
                except (TimeoutError, tn.LeaseConflict):
                    code = 0
                os.write(writer, b"x")
            finally:
                os._exit(code)
        assert os.read(reader, 1) == b"x"
        assert os.waitpid(child, 0)[1] == 0
        assert f.A[999] == 1
    os.close(reader)
    os.close(writer)
    with arena.use("counts"):
        pass


# ------------------------------------------------------------------------------------------------ deaths


def test_the_death_of_a_writer_is_told_until_all_is_overwritten(other):
    arena = tn.Arena(LAYOUTS, shared=True)
    give(other, arena)
    other.ask(ENTER.format("features", "w"))
    other.kill()
    for _ in range(2):
        with pytest.raises(tn.OwnerDied, match=re.escape("an arena: use(layout, overwrite=True)")) as caught:
            arena.use("features", "r").__enter__()
        assert caught.value.pid == other.pid
    with pytest.raises(tn.OwnerDied):
        arena.use("counts").__enter__()  # a change of the layout alone
    with arena.use("features", overwrite=True) as f:
        f.A[...] = 1
    with arena.use("features", "r"):
        pass


def test_the_death_of_a_reader_is_told_to_nobody(other):
    arena = tn.Arena(LAYOUTS, shared=True)
    with arena.use("features"):
        pass
    give(other, arena)
    other.ask(ENTER.format("features", "r"))
    other.kill()
    with arena.use("counts", timeout=600):
        pass


@pytest.mark.parametrize("mode", ["w", "r"])
def test_a_function_repairs_what_a_dead_writer_has_left(other, mode):
    arena = tn.Arena(LAYOUTS, shared=True)
    give(other, arena)
    other.ask(ENTER.format("features", "w"))
    other.ask("f.A[:500] = 1")
    other.kill()
    told = []

    def repair(values, error):
        told.append((error.pid, arena.active))
        values[:4000].view("f4")[:] = 3

    with arena.use("features", mode, on_owner_died=repair) as f:
        assert f.A.tolist() == [3] * 1000
    assert told == [(other.pid, "features")]


@pytest.mark.parametrize("is_task", [False, True])
def test_nothing_is_repaired_for_a_read_of_another_layout(other, is_task):
    arena = tn.Arena(LAYOUTS, shared=True)
    give(other, arena)
    other.ask(ENTER.format("features", "w"))
    other.kill()
    told = []
    use = arena.use("counts", "r", on_owner_died=lambda values, error: told.append(error.pid))
    with pytest.raises(tn.LeaseConflict, match="the arena holds 'features', which was not repaired"):
        asyncio.run(use.__aenter__()) if is_task else use.__enter__()
    assert told == []
    with pytest.raises(tn.OwnerDied):
        arena.use("features", "r").__enter__()


def test_a_repair_that_fails_leaves_the_arena_free(other):
    arena = tn.Arena(LAYOUTS, shared=True)
    give(other, arena)
    other.ask(ENTER.format("features", "w"))
    other.kill()

    def repair(values, error):
        raise ArithmeticError("cannot")

    with pytest.raises(ArithmeticError):
        arena.use("features", on_owner_died=repair).__enter__()
    with pytest.raises(tn.OwnerDied):
        arena.use("features", "r").__enter__()
    with arena.use("counts", overwrite=True):
        pass
    with arena.use("counts", "r"):
        pass


def test_death_is_ignored_on_request_and_told_to_tasks(other, another):
    arena = tn.Arena(LAYOUTS, shared=True)
    give(other, arena)
    other.ask(ENTER.format("features", "w"))
    other.kill()
    with arena.use("features", "r", on_owner_died="ignore") as f:
        assert f.A.shape == (1000,)
    with pytest.raises(tn.OwnerDied):  # who ignores it, leaves it to others
        arena.use("features").__enter__()
    with arena.use("features", overwrite=True) as f:
        f.A[...] = 0
    give(another, arena)
    another.ask(ENTER.format("counts", "w"))
    told = []

    async def main():
        async with arena.use("features", on_owner_died=lambda values, error: told.append(error.pid)) as f:
            f.A[:] = 1

    another.process.kill()
    asyncio.run(main())
    assert told == [another.pid]
    with arena.use("features", "r") as f:
        assert f.A[0] == 1


def use_for_ever(arena, seed):
    numbers = random.Random(seed)
    turn = 0
    while True:
        turn += 1
        layout, field = numbers.choice([("floats", "a"), ("ints", "b")])
        with arena.use(layout, on_owner_died="ignore") as f:
            f[field][:] = turn
            f.total[...] = f[field].sum()


@pytest.mark.slow
def test_random_kills_leave_a_whole_layout_or_are_told():
    """Processes that write are killed at random times. Oracle: a reader finds a complete layout, or is told
    of the death of a writer."""
    arena = arena_of_totals(4000, shared=True)
    context = mp.get_context("fork")
    numbers = random.Random(7)
    told = 0
    for layout in ("floats", "ints"):
        with arena.use(layout) as f:
            for name in f:
                f[name][...] = 0
    for seed in range(60):
        child = context.Process(target=use_for_ever, args=(arena, seed), daemon=True)
        child.start()
        time.sleep(0.002 + numbers.random() * 0.02)
        child.kill()
        child.join(50)
        died = False
        generation = -1
        for _ in range(3):
            try:
                layout = arena.active
                field = {"floats": "a", "ints": "b"}[layout]
                with arena.use(layout, "r", 50, "ignore" if died else "raise") as f:
                    whole = (f[field] == f[field][0]).all() and f.total == f[field].sum()
                    assert whole or died, (seed, layout)
                    assert arena.generation >= generation
                    generation = arena.generation
                break
            except tn.OwnerDied as error:
                assert error.pid == child.pid
                assert not died
                died = True
                told += 1
        else:
            raise AssertionError("it was told of the death again and again")
        with arena.use(layout, overwrite=True) as f:  # whole again
            for name in f:
                f[name][...] = 0
    assert told > 0


# ---------------------------------------------------------------------------------------------- the seed


def test_a_buffer_for_floats_at_one_time_and_ints_at_another_takes_less_memory():
    """Its memory has the size of the larger layout, and some pages for its lock."""
    n = 4 << 20
    layouts = {
        "features": dict.fromkeys("ABC", ("f4", (n,))),
        "counts": dict.fromkeys("DE", ("i4", (n,))),
    }
    arena = tn.Arena(layouts, shared="tenon.test.arena.seed")
    assert arena.nbytes == 3 * 4 * n
    assert arena.total_nbytes == 5 * 4 * n
    files = [path for path in Path("/proc/self/fd").iterdir() if os.path.islink(path)]
    (file,) = [path for path in files if re.search(r"memfd:.*tenon\.test\.arena\.seed", os.readlink(path))]
    assert arena.nbytes <= file.stat().st_blocks * 512 < arena.nbytes + (4 << 20)
    with arena.use("features") as f:
        f.C[:] = 1


def test_the_example_shares_one_buffer_for_floats_and_ints_between_processes():
    example = Path(__file__).parents[3] / "examples/arena.py"
    done = subprocess.run([sys.executable, example], capture_output=True, text=True, timeout=600, check=True)
    assert done.stdout.splitlines() == [
        "1200000 bytes instead of 2000000",
        "counts: [1 2 3] 50000",
        "layout 'features' cannot be read: the arena holds 'counts'; a write lease of a layout changes to it",
    ]
