# SPDX-License-Identifier: Apache-2.0
"""What must be true of the messages of tensor pools, whatever happens to their processes.

This model knows of each block of a pool who keeps it, and of each message who may open it. Calls run at the
same time, and processes are killed in calls, so some facts are known only as "perhaps" for a while: a process
that was killed in an open has or has not counted it. A time limit passes between two times.

The laws:

- No element under a view changes, in any process. (pool_actors)
- A message is opened by at most `opens` processes; and by each process that tries, unless something that has
  happened explains why not.
- The reason that an open gets is one that has happened.
- The blocks and bytes of a pool, and its messages, are those that somebody keeps. (account)
- A pool is full only if no gap between its blocks is large enough.
"""

from dataclasses import dataclass, field
from math import inf
from typing import Any

PAGE = 4096
INLINE, OWN_BLOCK = 2048, 1 << 20  # copied arrays of fewer bytes travel in the message, or share a block
PRIVATE = 4 << 20  # memory of fewer bytes is copied for a process that may write what others have, too
NO, PERHAPS, YES = 0, 1, 2


class Wrong(AssertionError):
    """A law is broken."""


@dataclass(eq=False, repr=False)
class Block:
    pool: "Actor"
    nbytes: int
    keepers: dict[Any, int] = field(default_factory=dict)  # a token -> PERHAPS or YES
    was_forked: bool = False  # a forked child had it

    @property
    def footprint(self):
        return -(-max(self.nbytes, 1) // PAGE) * PAGE

    def is_kept(self, began, ended):
        kept = (
            keeper.state(began, ended) if isinstance(keeper, Message) else certainty
            for keeper, certainty in self.keepers.items()
        )
        return max(kept, default=NO)


@dataclass(eq=False, repr=False)
class Owned:
    """An array of a pool that was not sent."""

    block: Block
    n: int
    seed: int
    is_frozen: bool = False


@dataclass(eq=False, repr=False)
class Item:
    """An array of a message."""

    n: int
    seed: int
    block: Block | None  # None: it travels in the bytes
    handed_over: int  # whether its reader gets the block itself to write
    is_lent: bool


@dataclass(eq=False, repr=False)
class Message:
    sender: "Actor"
    items: list[Item]
    opens: int | None
    tag: int
    data: bytes = b""
    is_handle: bool = False
    until: tuple[float, float] = (inf, inf)  # between these times its limit passes
    left: tuple[int, int] = (0, 0)  # between these numbers of opens are left; sent by send()
    reasons: set[str] = field(default_factory=set)  # that may be the reason why it cannot be opened
    is_revoked: bool = False
    readers: set["Actor"] = field(default_factory=set)

    def state(self, began, ended):
        """Whether processes can open it."""
        if self.sender.is_dead or self.is_revoked or self.left[1] == 0 or began > self.until[1]:
            return NO
        return YES if self.left[0] > 0 and ended < self.until[0] else PERHAPS

    def blocks(self):
        return {item.block for item in self.items if item.block is not None}

    def seeds(self):
        return [item.seed for item in self.items]


@dataclass(eq=False, repr=False)
class View:
    message: Message
    is_writable: bool
    seeds: list[int]
    is_written: bool = False


@dataclass(eq=False, repr=False)
class Actor:
    budget: int
    child: Any = None
    is_dead: bool = False
    blocks: list[Block] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    arrays: dict[int, Owned] = field(default_factory=dict)
    views: dict[int, View] = field(default_factory=dict)
    in_place: set[Block] = field(default_factory=set)  # it may write on these, so it sends copies of them on
    ghost: list[Block] | None = None  # what its forked child has
    ghost_pid: int = 0

    def new_block(self, nbytes):
        block = Block(self, nbytes)
        self.blocks.append(block)
        return block

    def own(self, key, n, seed):
        self.arrays[key] = Owned(self.new_block(8 * n), n, seed)
        self.arrays[key].block.keepers[self, key] = YES

    def disown(self, key):
        del self.arrays.pop(key).block.keepers[self, key]

    def send(self, message, lent, on, copied):
        """Its items and the blocks that it takes. lent: keys of arrays, on: Items, copied: (n, seed)."""
        for key in lent:
            array = self.arrays[key]
            moved = NO if array.is_frozen or message.opens != 1 else YES
            if moved and array.block.was_forked:
                moved = PERHAPS  # the child may have it
            message.items.append(Item(array.n, array.seed, array.block, moved, True))
            if not array.is_frozen:
                self.disown(key)
        message.items += [Item(item.n, item.seed, item.block, NO, True) for item in on]
        moved, shared = YES if message.opens == 1 else NO, None
        sizes = [8 * n for n, _ in copied if INLINE <= 8 * n < OWN_BLOCK]
        if sizes:
            shared = self.new_block(sum(-(-nbytes // 64) * 64 for nbytes in sizes))
        for n, seed in copied:
            block = shared if 8 * n < OWN_BLOCK else self.new_block(8 * n)
            message.items.append(Item(n, seed, None if 8 * n < INLINE else block, moved, False))
        for block in message.blocks():
            block.keepers[message] = YES
        self.messages.append(message)
        message.left = (message.opens or 10**9,) * 2

    def open(self, key, message, is_writable):
        self.views[key] = View(message, is_writable, message.seeds())
        is_again = (
            self in message.readers
        )  # on its own pages, if it has only read-only arrays of an ended one
        message.readers.add(self)
        for item in message.items:
            if item.block is None:
                continue
            if is_writable and item.handed_over != NO:
                self.in_place.add(item.block)
            is_in_place = min(item.handed_over, PERHAPS if is_again else YES)
            if not is_writable or is_in_place == YES or item.block.nbytes >= PRIVATE:
                item.block.keepers[self, key] = YES
            elif is_in_place == PERHAPS:
                item.block.keepers[self, key] = PERHAPS

    def drop(self, key):
        for block in self.views.pop(key).message.blocks():
            block.keepers.pop((self, key), None)

    def fork(self):
        kept = {array.block for array in self.arrays.values()}
        for key, view in self.views.items():
            kept |= {block for block in view.message.blocks() if (self, key) in block.keepers}
        for block in kept:
            block.was_forked = True
            block.keepers[self, "ghost"] = YES if self.keeps(block) == YES else PERHAPS
        self.ghost = list(kept)

    def keeps(self, block):
        mine = (
            certainty
            for keeper, certainty in block.keepers.items()
            if isinstance(keeper, tuple) and keeper[0] is self and keeper[1] != "ghost"
        )
        return max(mine, default=NO)

    def end_ghost(self):
        for block in self.ghost or ():
            block.keepers.pop((self, "ghost"), None)
        self.ghost = None

    def die(self):
        self.is_dead = True
        self.end_ghost()
        for key in list(self.views):
            self.drop(key)

    def account(self, began, ended):
        """The least and the greatest numbers of blocks, bytes and messages that its pool has."""
        self.blocks = [block for block in self.blocks if block.is_kept(began, ended)]
        self.messages = [message for message in self.messages if message.state(began, ended)]
        kept = [(block.is_kept(began, ended), block.footprint) for block in self.blocks]
        live = [message.state(began, ended) for message in self.messages]
        return {
            "blocks": (sum(state == YES for state, _ in kept), len(kept)),
            "used": (sum(n for state, n in kept if state == YES), sum(n for _, n in kept)),
            "messages": (sum(state == YES for state in live), len(live)),
        }

    def check_full(self, sizes, most):
        """The pool had no room for blocks of these sizes, with at most so many bytes and blocks in use."""
        gaps = most["blocks"][1] + len(sizes) + 1
        if self.budget - most["used"][1] >= gaps * max(sizes) + sum(sizes):
            raise Wrong(f"a pool with {most} has no room for {sizes}")


@dataclass
class Opening:
    """A load of a message, beside others of the same round."""

    actor: Actor
    message: Message
    before: int  # the state of the message when the round began
    must: bool  # this process has all of the message
    outcome: tuple[str, float, float] | None = None  # None: it was killed
    is_new: bool = True


def settle(message, openings):
    """Checks the loads of one message that ran at the same time, and counts them."""
    new = [one for one in openings if one.is_new]
    opened = sum(one.outcome is not None and one.outcome[0] == "" for one in new)
    killed = sum(one.outcome is None for one in new)
    low, high = message.left
    if opened > high:
        raise Wrong(f"a message of {message.opens} opens was opened by {len(message.readers) + opened}")
    if message.opens is not None:
        message.left = max(low - opened - killed, 0), high - opened
    if message.left[0] == 0:
        message.reasons.add("opened")
    if message.sender.is_dead:
        message.reasons.add("sender gone")
    for one in openings:
        if one.outcome is None:
            continue
        reason, began, ended = one.outcome
        if ended >= message.until[0]:
            message.reasons.add("expired")
        if reason == "":
            if one.is_new and (one.before == NO or began > message.until[1]):
                raise Wrong(f"a message was opened after its end: {message.reasons}")
        elif one.must:
            raise Wrong(f"a process that has all of a message cannot open it again: {reason}")
        elif reason not in message.reasons:
            raise Wrong(f"a message cannot be opened: {reason}, and not one of {message.reasons}")
        elif reason == "opened":
            message.left = 0, 0
