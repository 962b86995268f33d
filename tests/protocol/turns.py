"""Tasks in turns: one of them runs at a time, and a seed says which is next, and what fails, at every effect."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from threading import Lock, Thread
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from random import Random

Fault = Literal["killed", "asleep", "engine killed", "answer lost", "sent again"]
"""The client's process dies, or sleeps until all others are done or for some turns; the engine dies with all sessions;
the answer to a statement is lost on its way; a statement is sent a second time."""

Place = tuple[str, int]
"""The n-th time, from 0, that anybody comes to an effect; or of all effects, the n-th of any name."""

ANY = "any"

FOREVER = 2**31  # effects: until everybody else is done


class Died(BaseException):
    """A client's process is gone. Nobody catches it but the one who started the client."""


@dataclass(eq=False)
class Client:
    """A process that works on the lake: whether it is dead, and the faults that wait for its next statement."""

    name: str
    dead: bool = False
    faults: Counter[Fault] = field(default_factory=Counter)

    def struck(self, fault: Fault) -> bool:
        """Whether a fault waits here; it strikes once."""
        if self.faults[fault] == 0:
            return False
        self.faults[fault] -= 1
        return True


@dataclass(eq=False)
class Task:
    """What a client does, in a thread that waits for its turn."""

    client: Client
    thread: _Waiting
    until: int = 0
    """It sleeps until so many effects are over."""
    awaited: Sequence[Task] = ()
    done: bool = False
    error: BaseException | None = None


class _Waiting:
    """A thread that is used again: to start one for every task costs more than the task."""

    idle: list[_Waiting] = []  # noqa: RUF012  # shared on purpose: by all simulations of the process

    def __init__(self) -> None:
        self.turn = Lock()
        self.turn.acquire()
        self.body: Callable[[], None] | None = None
        Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        while True:
            self.turn.acquire()
            assert self.body is not None
            self.body()


class Turns:
    """Who is next. Between two effects nobody else runs, so the same seed gives the same order of everything."""

    def __init__(self, random: Random, faults: Mapping[Place, Fault], switching: float) -> None:
        self.random, self.faults, self.switching = random, faults, switching
        self.tasks: list[Task] = []
        self.current: Task | None = None
        self.over = Lock()
        self.over.acquire()
        self.effects = 0
        self.crossed: Counter[str] = Counter()
        self.told: list[str] | None = None
        """What happened, if somebody wants to know."""
        self.engine_dies: Callable[[], None] = lambda: None

    @property
    def client(self) -> Client | None:
        """Whose turn it is; None while nobody runs beside the caller."""
        return None if self.current is None else self.current.client

    def start(self, client: Client, work: Callable[[], None]) -> Task:
        """Begin a task; it waits for its first turn."""
        thread = _Waiting.idle.pop() if _Waiting.idle else _Waiting()
        task = Task(client, thread)

        def body() -> None:
            try:
                work()
            except BaseException as error:  # whoever waits for the task hears of it
                task.error = error
            task.done = True
            _Waiting.idle.append(thread)
            self._give(self._next(), None)

        thread.body = body
        self.tasks.append(task)
        return task

    def run(self) -> None:
        """Let all tasks work until they are done. What failed in one is in it."""
        self._give(self._next(), None)
        self.over.acquire()

    def together(self, works: Sequence[Callable[[], None]]) -> None:
        """Let a client do several things side by side, and go on when all are done."""
        if self.current is None:
            for work in works:
                work()
            return
        me = self.current
        me.awaited = [self.start(me.client, work) for work in works]
        while not all(task.done for task in me.awaited):
            self._give(self._next(), me)
        errors = [task.error for task in me.awaited if task.error is not None]
        me.awaited = ()
        if errors:
            raise errors[0]

    def cross(self, effect: str, engine: bool = False) -> None:
        """An effect is about to happen. `engine`: the engine is at it, and goes on when its client dies."""
        me = self.current
        if me is None:
            return
        if me.client.dead and not engine:
            raise Died
        fault = self.faults.get((ANY, self.effects)) or self.faults.get((effect, self.crossed[effect]))
        self.effects += 1
        self.crossed[effect] += 1
        if self.told is not None:
            self.told.append(f"{me.client.name}: {effect}" + (f" ({fault})" if fault is not None else ""))
        if fault is not None:
            self._strike(me, fault)
        if me.until > self.effects or self.random.random() < self.switching:
            self._give(self._next(), me)
        if me.client.dead and not engine:
            raise Died

    def say(self, what: str) -> None:
        """Something worth knowing."""
        if self.told is not None:
            self.told.append(f"    {what}")

    def _strike(self, me: Task, fault: Fault) -> None:
        match fault:
            case "killed":
                me.client.dead = True
            case "asleep":
                me.until = self.random.choice((FOREVER, FOREVER, self.effects + self.random.randrange(3, 60)))
            case "engine killed":
                self.engine_dies()
            case _:
                me.client.faults[fault] += 1

    def _next(self) -> Task | None:
        ready = [t for t in self.tasks if not t.done and (not t.awaited or all(other.done for other in t.awaited))]
        if not ready:
            return None
        awake = [task for task in ready if task.until <= self.effects]
        if not awake:  # nobody else can do anything until it wakes
            first = min(ready, key=lambda task: task.until)
            first.until = 0
            return first
        return awake[int(self.random.random() * len(awake))]

    def _give(self, task: Task | None, me: Task | None) -> None:
        """Hand the turn over, and wait for the next one of our own; a task that is done waits no more."""
        if task is me and me is not None:
            return
        self.current = task
        (self.over if task is None else task.thread.turn).release()
        if me is not None:
            me.thread.turn.acquire()
