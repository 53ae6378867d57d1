# SPDX-License-Identifier: Apache-2.0
"""Tensor pools of processes that are killed. pool_oracle.py has the laws, pool_actors.py their operations.

No test has an upper time limit. Each prints its figures: the longest wait for memory after a death, and how
long after the last use the memory files had bytes.
"""

import os
import random
import time
from statistics import median

import pytest
import soak
from pool_oracle import NO, PRIVATE, YES, Actor, Message, Opening, Wrong, settle
from steered import SECONDS, state_of

OPERATIONS = soak.times(500_000, 4_000)
KILLS = soak.times(10_000, 500)
ACTORS = 8
BUDGET = 12 << 20
MOST_VIEWS, MOST_ARRAYS = 10, 6


def data_nbytes(children, budget=BUDGET):
    """How many bytes of data the memory files of pools have that these processes have open. Does not use the
    library, so it frees nothing."""
    total, seen = 0, set()
    for pid in {child.pid for child in children}:
        for name in os.listdir(f"/proc/{pid}/fd"):
            path = f"/proc/{pid}/fd/{name}"
            try:
                if "memfd:tenon" not in os.readlink(path):
                    continue
                file = os.open(path, os.O_RDONLY)
            except FileNotFoundError:  # it was closed
                continue
            facts = os.fstat(file)
            if facts.st_size > budget and facts.st_ino not in seen:
                seen.add(facts.st_ino)
                total += _written(file, facts.st_size - budget)
            os.close(file)
    return total


def _written(file, begin):
    total = 0
    while True:
        try:
            begin = os.lseek(file, begin, os.SEEK_DATA)
        except OSError:  # there are no further ones
            return total
        end = os.lseek(file, begin, os.SEEK_HOLE)
        total, begin = total + end - begin, end


def seconds_until(children, nbytes, budget=BUDGET):
    """How long it takes until the memory files have at most so many bytes of data."""
    began = time.monotonic()
    while (left := data_nbytes(children, budget)) > nbytes:
        assert time.monotonic() < began + SECONDS, f"{left} bytes are left, and not {nbytes}"
        time.sleep(0.002)
    return time.monotonic() - began


def bury(nursery, child):
    child.kill()
    child.end()
    nursery.children.remove(child)


def figures(**lists):
    for name, values in lists.items():
        values = sorted(1000 * value for value in values)
        most = f"99 % {values[len(values) * 99 // 100]:.2f}, worst {values[-1]:.2f}"
        print(f"{name}: {len(values)} times, median {median(values):.2f} ms, {most}")


def start(nursery, code="None", **values):
    child = nursery.child()
    child.ask("import pool_actors as actor")
    child.ask(code, **values)
    return child


# ------------------------------------------------------------------------------------- random operations


class World:
    """The processes, and the model of what they have."""

    def __init__(self, nursery, chance):
        self.nursery, self.chance = nursery, chance
        self.actors = []
        self.messages = []  # the last ones
        self.number = 0
        self.counts = dict.fromkeys(("operations", "kills", "full", "gone", "opened"), 0)
        self.waits, self.zeros = [], []

    def next(self):
        self.number += 1
        return self.number

    def fill(self):
        while len(self.actors) < ACTORS:
            child = start(self.nursery, "actor.begin(budget)", budget=BUDGET)
            self.actors.append(Actor(BUDGET, child))

    def size(self):
        return PRIVATE // 8 + 100 if self.chance.random() < 0.02 else int(10 ** self.chance.uniform(1, 5.3))

    # Each returns (the code, its values, what it means), or None: it is not possible. The meaning is called
    # with the answer.

    def make(self, actor):
        if len(actor.arrays) >= MOST_ARRAYS:
            return None
        values = {"key": self.next(), "n": self.size(), "seed": self.next()}

        def mean(answer):
            if answer == "made":
                actor.own(*values.values())

        return "actor.make(**how)", values | {"is_put": self.chance.random() < 0.5}, mean

    def freeze(self, actor):
        keys = [key for key, array in actor.arrays.items() if not array.is_frozen]
        if not keys:
            return None
        key = self.chance.choice(keys)

        def mean(_):
            actor.arrays[key].is_frozen = True

        return "actor.freeze(**how)", {"key": key}, mean

    def forget(self, actor):
        if not actor.arrays:
            return None
        key = self.chance.choice(list(actor.arrays))
        return "actor.forget(**how)", {"key": key}, lambda _: actor.disown(key)

    def escape(self, actor):
        keys = [key for key, array in actor.arrays.items() if not array.is_frozen]
        return ("actor.send_with_a_view(**how)", {"key": keys[0]}, lambda _: None) if keys else None

    def send(self, actor):
        chance = self.chance
        lent = chance.sample(list(actor.arrays), min(len(actor.arrays), chance.choice([0, 1, 1, 2])))
        lendable = [
            (key, number, item)
            for key, view in actor.views.items()
            if not view.is_writable
            for number, item in enumerate(view.message.items)
            if item.is_lent and item.block not in actor.in_place
        ]
        on = chance.sample(lendable, 1) if lendable and chance.random() < 0.4 else []
        copied = [(self.size(), self.next()) for _ in range(chance.choice([0, 1, 1, 2, 3]))]
        opens, is_handle = chance.choice([1, 1, 2, 3, None]), chance.random() < 0.15
        if is_handle:
            lent, on, copied = (lent[:1], [], []) if lent else ([], [], [(self.size(), self.next())])
        timeout = chance.choice([None, None, None, None, 0.0, chance.uniform(0.001, 0.3), 60.0])
        message = Message(actor, [], opens, chance.randrange(4), is_handle=is_handle)
        values = {
            "lent": lent,
            "on": [(key, number) for key, number, _ in on],
            "copied": copied,
            "is_handle": is_handle,
            "timeout": timeout,
            "opens": opens,
            "tag": message.tag,
        }

        def mean(answer):
            message.data, began, ended = answer
            if message.data == "full":
                return
            if timeout is not None:
                message.until = began + timeout, ended + timeout
            actor.send(message, lent, [item for _, _, item in on], copied)
            self.messages.append(message)

        return "actor.send(**how)", values, mean

    def load(self, actor):
        if len(actor.views) >= MOST_VIEWS or not self.messages:
            return self.drop(actor)
        chance = self.chance
        message = self.messages[-1 - min(int(chance.expovariate(1 / 15)), len(self.messages) - 1)]
        here = [view for view in actor.views.values() if view.message.blocks() & message.blocks()]
        if any(view.is_written for view in here) or len(here) > 2:
            return None
        key, is_writable = self.next(), chance.random() < 0.5
        kept = [actor.keeps(block) == YES for block in message.blocks()]
        must = actor in message.readers and bool(kept) and all(kept)
        opening = Opening(actor, message, NO, must, is_new=actor not in message.readers)
        self.openings.append(opening)
        values = {"key": key, "message": message.data, "seeds": message.seeds()}

        def mean(answer):
            if answer[0] == "":
                actor.open(key, message, is_writable)
            self.counts["gone" if answer[0] else "opened"] += 1

        values |= {"is_writable": is_writable, "is_handle": message.is_handle}
        return "actor.load(**how)", values, mean

    def drop(self, actor):
        if not actor.views:
            return None
        key = self.chance.choice(list(actor.views))
        return "actor.drop(**how)", {"key": key}, lambda _: actor.drop(key)

    def look(self, actor):
        if not actor.views:
            return None
        key, view = self.chance.choice(list(actor.views.items()))
        return "actor.look(**how)", {"key": key, "seeds": view.seeds}, lambda _: None

    def write(self, actor):
        """Where no other view of this process shows it."""
        for key, view in actor.views.items():
            blocks = view.message.blocks()
            others = [v for v in actor.views.values() if v is not view and v.message.blocks() & blocks]
            if view.is_writable and not others and not actor.ghost:
                seed = self.next()

                def mean(_, view=view, seed=seed):
                    view.seeds, view.is_written = [seed] * len(view.seeds), True

                return "actor.write(**how)", {"key": key, "seed": seed}, mean
        return None

    def revoke(self, actor):
        tag = self.chance.randrange(4)
        tagged = [message for message in actor.messages if message.tag == tag]
        return self.revocation(tagged, "how['tag']", tag=tag)

    def revocation(self, tagged, argument, **values):
        self.revoked += tagged

        def mean(n):
            now = time.monotonic()
            loaded = {opening.message for opening in self.openings}
            states = [message.state(self.began, now) for message in tagged]
            surely = sum(s == YES and m not in loaded for s, m in zip(states, tagged, strict=True))
            if not surely <= n <= sum(state != NO for state in states):
                raise Wrong(f"{n} messages were revoked, and not {surely} of {states}")
            for message in tagged:
                message.is_revoked = True

        return f"actor.pool.revoke({argument})", values, mean

    def revoke_one(self, actor):
        if not actor.messages:
            return None
        message = self.chance.choice(actor.messages)
        return self.revocation([message], "message=how['message']", message=message.data)

    def fork(self, actor):
        if actor.ghost is not None:
            return "actor.end_fork()", {}, lambda _: actor.end_ghost()
        seeds = {}  # of the views that this process may not write under the child
        for key, view in actor.views.items():
            if not view.is_written or not view.is_writable:
                seeds[key] = view.seeds

        def mean(pid):
            actor.fork()
            actor.ghost_pid = pid

        return "actor.fork(**how)", {"seeds": seeds}, mean

    OPS = (load,) * 10 + (send,) * 6 + (make,) * 4 + (drop,) * 4 + (look,) * 2 + (freeze, forget, escape)
    OPS += (write, revoke, revoke_one, fork)

    def round(self):
        """One operation of each process at the same time; perhaps one of them is killed meanwhile."""
        chance, self.openings, self.revoked = self.chance, [], []
        orders = {}
        self.began = time.monotonic()
        for actor in self.actors:
            order = None
            while order is None:
                order = chance.choice(self.OPS)(self, actor)
            orders[actor] = order
        for opening in self.openings:
            opening.before = opening.message.state(self.began, self.began)
        for actor, (code, how, _) in orders.items():
            actor.child.start(code, how=how)
        self.counts["operations"] += len(orders)
        victim = chance.choice(self.actors) if chance.random() < 0.05 else None
        if victim is not None and orders[victim][0] != "actor.fork(**how)":
            time.sleep(chance.uniform(0, 0.003))
            bury(self.nursery, victim.child)
            self.counts["kills"] += 1
        else:
            victim = None
        answers = {actor: actor.child.answer() for actor in orders if actor is not victim}
        self.settle(orders, answers, victim)

    def settle(self, orders, answers, victim):
        for actor, answer in answers.items():  # before the model changes
            if answer == "full" or (isinstance(answer, tuple) and answer[0] == "full"):
                how = orders[actor][1]
                sizes = [8 * n for n, _ in how["copied"]] if "copied" in how else [8 * how["n"]]
                actor.check_full([size + 4096 for size in sizes], actor.account(self.began, time.monotonic()))
                self.counts["full"] += 1
        for message in self.revoked:
            message.reasons.add("revoked")
        if victim is not None:
            self.end(victim)
        by_message = {}
        for opening in self.openings:
            opening.outcome = answers.get(opening.actor)
            opening.must &= not opening.message.sender.is_dead
            by_message.setdefault(opening.message, []).append(opening)
        for actor, answer in answers.items():
            if orders[actor][0].startswith("actor.pool.revoke"):
                orders[actor][2](answer)
        for message, openings in by_message.items():
            settle(message, openings)
        for actor, answer in answers.items():
            if not orders[actor][0].startswith("actor.pool.revoke"):
                orders[actor][2](answer)
        del self.messages[:-200]
        self.fill()

    def end(self, victim):
        had_ghost = victim.ghost is not None
        self.actors.remove(victim)
        victim.die()
        while had_ghost and state_of(victim.ghost_pid) not in "XZ":
            time.sleep(0.0002)

    def check_pools(self):
        """The pools have what somebody keeps."""
        began = time.monotonic()
        for actor in self.actors:
            while True:
                before, stats, after = actor.child.ask("actor.stats()")
                wanted = actor.account(before, after)
                if all(low <= stats[name] <= high for name, (low, high) in wanted.items()):
                    break
                if time.monotonic() > began + SECONDS:
                    raise Wrong(f"a pool has {stats}, and not {wanted}")
        self.waits.append(time.monotonic() - began)

    def check_nothing_is_left(self):
        """When every process has dropped what it has, and all messages were revoked."""
        for actor in self.actors:
            if actor.ghost is not None:
                actor.child.ask("actor.end_fork()")
                actor.end_ghost()
            actor.child.ask("actor.drop_all()")
        for actor in self.actors:
            actor.child.ask("[actor.pool.revoke(tag) for tag in range(4)]")
            actor.blocks, actor.messages, actor.arrays, actor.views = [], [], {}, {}
        self.messages.clear()
        self.zeros.append(seconds_until([actor.child for actor in self.actors], 0))


@pytest.mark.timeout(7200)
def test_messages_are_what_the_model_says(nursery, chance):
    world = World(nursery, chance)
    world.fill()
    rounds = OPERATIONS // ACTORS
    for i in range(rounds):
        world.round()
        if i % 20 == 0:
            world.check_pools()
        if i % 250 == 249 or i == rounds - 1:
            world.check_nothing_is_left()
    print(world.counts)
    figures(pools_as_the_model=world.waits, memory_after_the_last_use=world.zeros)
    for actor in world.actors:
        bury(nursery, actor.child)


# ----------------------------------------------------------------------------------------------- kills

SMALL = 1 << 20  # the budget of pools that are soon full
FULL = 4  # so many messages of so many words fill a pool
WORDS = SMALL // FULL // 8
BATCH = 25


def expect(reasons, wanted):
    assert reasons == wanted, reasons


class Deaths:
    """A process with a pool, one that reads, and their figures."""

    def __init__(self, nursery):
        self.nursery, self.seed = nursery, 0
        self.sender = start(nursery, "actor.begin(budget)", budget=SMALL)
        self.reader = start(nursery, "actor.begin(budget)", budget=SMALL)
        self.stalls, self.zeros, self.held = [], [], []

    def messages(self, n=FULL, sender=None, words=WORDS, **limits):
        self.seed += n
        how = {"n": n, "words_each": words, "seed": self.seed, **limits}
        return (sender or self.sender).ask("actor.send_some(**how)", how=how)

    def read(self, messages, reader=None, **how):
        how |= {"messages": messages, "seed": self.seed}
        return (reader or self.reader).ask("actor.load_some(**how)", how=how)

    def of_a_reader(self, is_holding):
        """A reader has, or is to get, all that fits into the pool. It is killed while the sender waits for
        room."""
        victim = start(self.nursery)
        kept = self.messages(receivers=victim.pid)
        if is_holding:
            expect(self.read(kept, victim, key="held"), [""] * FULL)
        self.seed += FULL
        how = {"n": FULL, "words_each": WORDS, "seed": self.seed}
        self.sender.start("actor.send_some(**how), actor.got_room", how=how)
        if random.random() < 0.5:
            time.sleep(0.002)  # it waits
        killed = time.monotonic()
        victim.kill()
        messages, got_room = self.sender.answer()
        self.stalls.append(max(got_room - killed, 0))
        bury(self.nursery, victim)
        expect(self.read(messages), [""] * FULL)
        if not is_holding:
            assert set(self.read(kept)) == {"receivers gone"}

    def of_senders(self):
        """A reader keeps what it has opened, and nothing else."""
        nbytes, keys = data_nbytes([self.reader], SMALL), []
        words = WORDS // 64
        for _ in range(BATCH):
            victim = start(self.nursery, "actor.begin(budget)", budget=SMALL)
            messages = self.messages(FULL, victim, words, opens=2)
            keys.append((f"sender {self.seed}", self.seed))
            expect(self.read(messages[:1], key=keys[-1][0]), [""])
            killed = time.monotonic()
            bury(self.nursery, victim)
            passed = self.messages(1)
            expect(self.read(passed), [""])
            self.stalls.append(time.monotonic() - killed)
            self.seed = keys[-1][1]
            expect(self.read(messages[1:]), ["sender gone"] * (FULL - 1))
            self.seed += FULL
        self.held.append(seconds_until([self.reader], nbytes + BATCH * words * 8, SMALL))
        for key, seed in keys:
            self.reader.ask("actor.look(key, [seed])", key=(key, 0), seed=seed)
            self.reader.ask("actor.drop(key)", key=(key, 0))
        self.zeros.append(seconds_until([self.reader], nbytes, SMALL))

    def of_groups(self):
        """Senders and their readers die at once. A process that has nothing of it frees the memory."""
        nbytes = data_nbytes([self.reader], SMALL)
        for _ in range(BATCH // 2):
            sender = start(self.nursery, "actor.begin(budget)", budget=SMALL)
            group = [sender, *(start(self.nursery) for _ in range(2))]
            messages = self.messages(FULL, sender, WORDS // 64, opens=4)
            expect(self.read(messages), [""] * FULL)
            for victim in group[1:]:
                expect(self.read(messages, victim, key="held"), [""] * FULL)
            for victim in group:
                victim.kill()
            killed = time.monotonic()
            for victim in group:
                bury(self.nursery, victim)
            expect(self.read(messages), ["sender gone"] * FULL)
            passed = self.messages(1)
            expect(self.read(passed), [""])
            self.stalls.append(time.monotonic() - killed)
        self.zeros.append(seconds_until([self.reader], nbytes, SMALL))

    def end(self):
        self.zeros.append(seconds_until([self.sender, self.reader], 0, SMALL))
        for child in (self.sender, self.reader):
            bury(self.nursery, child)
        for name in ("stalls", "held", "zeros"):
            if getattr(self, name):
                figures(**{name: getattr(self, name)})


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("who", ["idle reader", "reader", "sender", "group"])
def test_after_a_death_nobody_is_refused_and_nothing_is_left(nursery, who):
    deaths, n = Deaths(nursery), KILLS // 4
    while n > 0:
        if who == "sender":
            deaths.of_senders()
            n -= BATCH
        elif who == "group":
            deaths.of_groups()
            n -= 3 * (BATCH // 2)
        else:
            deaths.of_a_reader(who == "reader")
            n -= 1
    deaths.end()


# ------------------------------------------------------------------------------------- requests, backpressure


def test_aborted_requests_leave_nothing(nursery, chance):
    """Each is revoked at any moment beside the loads of two processes."""
    sender = start(nursery, "actor.begin(budget)", budget=BUDGET)
    readers = [start(nursery) for _ in range(2)]
    counts = {}
    for seed in range(soak.times(10_000, 1000)):
        how = {"n": 1, "words_each": 10 ** chance.randrange(1, 6), "seed": seed}
        message = sender.ask("actor.send_some(tag=how['seed'], opens=None, **how)", how=how)
        for reader in readers:
            how = {"messages": message, "seed": seed, "is_writable": chance.random() < 0.5}
            reader.start("actor.load_some(**how)", how=how)
        time.sleep(chance.uniform(0, 0.0002))
        assert sender.ask("actor.pool.revoke(tag=seed)", seed=seed) == 1
        for reader in readers:
            [reason] = reader.answer()
            assert reason in ("", "revoked")
            counts[reason] = counts.get(reason, 0) + 1
    assert len(counts) == 2, counts
    print(counts)
    figures(memory_after_the_last_use=[seconds_until([sender, *readers], 0)])
    for child in (sender, *readers):
        bury(nursery, child)


def test_what_a_consumer_keeps_is_not_overwritten(nursery, chance):
    """The producer is always ahead: it fills the pool, and then waits."""
    producer, consumer = start(nursery, "actor.begin(budget)", budget=BUDGET), start(nursery)
    kept, n, most = {}, 0, BUDGET >> 20
    for _ in range(soak.times(300, 30)):
        while True:
            how = {"n": 1, "words_each": 1 << 17, "seed": n}
            producer.start("actor.send_some(**how)", how=how)
            if len(kept) >= most and not producer.has_answered(0.005):
                break
            kept[n] = producer.answer()
            expect(consumer.ask("actor.load_some(message, n, n)", message=kept[n], n=n), [""])
            n += 1
        assert len(kept) == most
        for seed in kept:
            consumer.ask("actor.look((seed, 0), [seed])", seed=seed)
        for seed in chance.sample(list(kept), chance.randrange(1, most)):
            del kept[seed]
            consumer.ask("actor.drop((seed, 0))", seed=seed)
        kept[n] = producer.answer()
        expect(consumer.ask("actor.load_some(message, n, n)", message=kept[n], n=n), [""])
        n += 1
    for child in (producer, consumer):
        bury(nursery, child)
