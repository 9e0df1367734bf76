"""The protocol of our all-reduce kernels as a model: programs of all ranks interleaved at will, launch after launch.

A program is a generator that stops after every access to memory that others see. The model keeps what the kernels'
memory orders promise (what was stored before a flag is seen by who has seen the flag) and asks the rest: that nobody
reads a row before it is there or after another launch has overwritten it, that no epoch is lost, that all come through.
Each fault below is the protocol with one thing left out, and the model finds it.
"""

import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

BLOCKED, MOVED = False, True
Steps = Iterator[bool]


@dataclass(frozen=True)
class Launch:
    """One launch, the same on all ranks."""

    rows: int
    programs: int
    two_shot: bool


@dataclass(frozen=True)
class Protocol:
    """The kernels' own, or with something left out."""

    halves: int = 2
    exact: bool = False
    """Wait for this very epoch instead of for it or a later one."""
    first_meeting: bool = True
    second_place: bool = True
    """Flags of its own for the second meeting."""
    one_epoch: bool = True
    """One number for all programs, raised by the last, instead of one each."""


class WrongReadError(AssertionError):
    """A row of another launch, rank or place was read."""


class DeadlockError(AssertionError):
    """Nobody can move."""


@dataclass
class Machine:
    """What the ranks share, and each one's counters."""

    ranks: int
    protocol: Protocol = field(default_factory=Protocol)

    def __post_init__(self) -> None:
        self.memory: dict[tuple[int, int, int], tuple[int, ...]] = {}
        self.flags: dict[tuple[int, int, int], int] = defaultdict(int)
        self.epoch: dict[int, int] = defaultdict(int)
        self.own_epoch: dict[tuple[int, int], int] = defaultdict(int)
        self.left: dict[int, int] = defaultdict(int)

    def peers(self, rank: int) -> list[int]:
        return [peer for peer in range(self.ranks) if peer != rank]

    def read(self, rank: int, half: int, address: int, expected: tuple[int, ...]) -> None:
        if (found := self.memory.get((rank, half, address))) != expected:
            raise WrongReadError(f"rank {rank} read {found} for {expected}")

    def meet(self, rank: int, place: int, epoch: int) -> Steps:
        for peer in self.peers(rank):
            self.flags[peer, place, rank] = epoch
            yield MOVED
        for peer in self.peers(rank):
            while not self._come(self.flags[rank, place, peer], epoch):
                yield BLOCKED
            yield MOVED

    def _come(self, seen: int, epoch: int) -> bool:
        return seen == epoch if self.protocol.exact else seen >= epoch

    def program(self, rank: int, program: int, number: int, launch: Launch) -> Steps:
        """Programs `program`, `program` + programs, ... of one launch on one rank."""
        epoch = (self.epoch[rank] if self.protocol.one_epoch else self.own_epoch[rank, program]) + 1
        yield MOVED
        body = self._two_shot if launch.two_shot else self._one_shot
        yield from body(rank, program, number, launch, epoch, epoch % self.protocol.halves)
        self.own_epoch[rank, program] = epoch
        self.left[rank] += 1
        last = self.left[rank] == launch.programs
        yield MOVED
        if last:
            self.left[rank] = 0
            self.epoch[rank] = epoch

    def _one_shot(self, rank: int, program: int, number: int, launch: Launch, epoch: int, half: int) -> Steps:
        mine = range(program, launch.rows, launch.programs)
        for row in mine:
            for peer in self.peers(rank):
                self.memory[peer, half, rank * launch.rows + row] = (number, rank, row)
                yield MOVED
        if self.protocol.first_meeting:
            yield from self.meet(rank, program, epoch)
        for row in mine:
            for peer in self.peers(rank):
                self.read(rank, half, peer * launch.rows + row, (number, peer, row))
                yield MOVED

    def _two_shot(self, rank: int, program: int, number: int, launch: Launch, epoch: int, half: int) -> Steps:
        chunk = -(-launch.rows // self.ranks)
        mine = range(program, chunk, launch.programs)
        sums = self.ranks * chunk
        for i in mine:
            for owner in self.peers(rank):
                if (row := owner * chunk + i) < launch.rows:
                    self.memory[owner, half, rank * chunk + i] = (number, rank, row)
                    yield MOVED
        if self.protocol.first_meeting:
            yield from self.meet(rank, program, epoch)
        for i in mine:
            if (row := rank * chunk + i) >= launch.rows:
                continue
            for peer in self.peers(rank):
                self.read(rank, half, peer * chunk + i, (number, peer, row))
                yield MOVED
            for peer in range(self.ranks):
                self.memory[peer, half, sums + row] = (number, row)
                yield MOVED
        second = launch.programs + program if self.protocol.second_place else program
        yield from self.meet(rank, second, epoch)
        for i in mine:
            for owner in range(self.ranks):
                if (row := owner * chunk + i) < launch.rows:
                    self.read(rank, half, sums + row, (number, row))
                    yield MOVED


def run(machine: Machine, launches: list[Launch], choose: Callable[[int], int]) -> None:
    """All launches on all ranks; `choose(n)` picks which of n programs moves next. A rank's launches are in order."""
    number = dict.fromkeys(range(machine.ranks), -1)
    running: dict[int, list[Steps]] = {rank: [] for rank in range(machine.ranks)}
    stuck = 0
    while True:
        for rank, programs in running.items():
            if not programs and number[rank] < len(launches) - 1:
                number[rank] += 1
                launch = launches[number[rank]]
                running[rank] = [machine.program(rank, p, number[rank], launch) for p in range(launch.programs)]
        movable = [(rank, steps) for rank, programs in running.items() for steps in programs]
        if not movable:
            return
        rank, steps = movable[choose(len(movable))]
        moved = next(steps, None)
        if moved is None:
            running[rank].remove(steps)
        # nothing changes while everybody waits: blocked steps in a row, whoever was asked
        stuck = stuck + 1 if moved is BLOCKED else 0
        if stuck > 200 * len(movable):
            raise DeadlockError(f"launch {number}")


launches = st.builds(Launch, rows=st.integers(1, 5), programs=st.integers(1, 3), two_shot=st.booleans())


@given(ranks=st.integers(2, 4), launches=st.lists(launches, min_size=1, max_size=6), seed=st.integers(0, 2**32))
def test_every_interleaving_reads_what_was_sent_in_this_launch(ranks: int, launches: list[Launch], seed: int) -> None:
    machine = Machine(ranks)
    run(machine, launches, random.Random(seed).randrange)
    assert dict(machine.epoch) == dict.fromkeys(range(ranks), len(launches))
    assert set(machine.left.values()) == {0}


@given(launches=st.lists(launches, min_size=2, max_size=6), seed=st.integers(0, 2**32), slow=st.integers(0, 2))
def test_a_rank_may_be_as_slow_as_it_likes(launches: list[Launch], seed: int, slow: int) -> None:
    """One rank moves once in fifty steps: the others run ahead as far as the protocol lets them."""
    draw = random.Random(seed)

    def choose(n: int) -> int:
        # movable programs are listed by rank, so a third of the list is about one rank's
        picked = draw.randrange(n)
        return picked if picked * 3 // n != slow or draw.random() < 0.02 else draw.randrange(n)

    run(Machine(3), launches, choose)


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Protocol(halves=1), WrongReadError),
        (Protocol(first_meeting=False), WrongReadError),
        (Protocol(exact=True), DeadlockError),
        (Protocol(second_place=False), WrongReadError),
        (Protocol(one_epoch=False), (WrongReadError, DeadlockError)),
    ],
    ids=lambda value: str(value)[9:-1] if isinstance(value, Protocol) else "",
)
def test_the_model_finds_each_part_left_out(fault: Protocol, error: type[Exception]) -> None:
    shapes = [Launch(3, 2, False), Launch(4, 1, True), Launch(3, 3, False), Launch(5, 2, True), Launch(1, 1, False)]
    found = 0
    for seed in range(200):
        draw = random.Random(seed)
        try:
            run(Machine(2, fault), draw.choices(shapes, k=6), draw.randrange)
        except error:
            found += 1
    assert found > 0
