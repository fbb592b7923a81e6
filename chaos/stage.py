"""The stage of a scenario: a daemon of its own under a mixed load, watched from outside, judged at the end.

    async def run(given: Run) -> Verdict:
        async with staged(given, "kill_transcript") as stage:
            stage.allow("append", 1002, 1003)
            for _ in range(given.size(3, 20, 200)):
                pid = await stage.pid("transcript_appender")
                if kill(pid):
                    stage.mark("SIGKILL", "transcript_appender")
        return stage.verdict()

`staged` starts the daemon, waits until it is ready, takes the census of a quiet daemon, starts the load. The body
hurts. Afterwards: the load ends, what is unknown is repeated, everything is read back, leaks are looked for, the
daemon is killed and started once more and read again, then drained, and its files are checked. An exception of the
body is a violation, not the end of the run.
"""

import json
import random
import signal
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import psutil
import trio

from chaos import checker
from chaos.client import Client, Disconnected, Hung, RpcError, open_bridge, open_socket
from chaos.daemon import Daemon, kill, wait_gone
from chaos.databases import check_databases
from chaos.facts import summary
from chaos.history import Append, History, Write, again, read_events, read_versions, refused, snapshot
from chaos.lag import LagMeter
from chaos.leaks import Census, check_gone, check_leaks, take_census
from chaos.load import POISON, Clients, Load, Recorder, append_params, clear_poison, put_params
from chaos.observer import Observer
from chaos.scenario import Run, Verdict
from chaos.setup import write_config, write_notes
from chaos.timeline import OK, Mark, Op, Span, Timeline, latencies, shifted, within

__all__ = ["CAPABILITIES", "Load", "Mark", "Op", "Stage", "staged"]

CAPABILITIES = ("append", "write", "read", "search", "build", "cache")
READY_S = 60.0
QUIET_S = 60.0
RESOLVE_S = 30.0
POLL_S = 0.05
REPEATS = 20
ENDING = 64  # so many clients may still be at their last operation when the judgement begins
# What a client may be told while the whole daemon is away or coming up.
RESTART_CODES = ("lost", "1002", "1003", "1004", "1007", "1010", "1018")


class Stage:
    """What a scenario works with. Times are monotonic seconds."""

    def __init__(self, run: Run, scenario: str, load: Load | None, config_path: Path) -> None:
        self.run = run
        self.scenario = scenario
        self.data = run.data
        self.config_path = config_path
        self.daemon = Daemon(run.data, config_path)
        self.rng = run.rng
        self.load = load
        self.history = History()
        self.lag = LagMeter()
        self.recorder = Recorder(self.history, self.lag, deadline_s=(load or Load()).deadline_s)
        self.observer = Observer(self.daemon.socket_path, run.data)
        self.marks: list[Mark] = []
        self.violations: list[str] = []
        self.facts: dict[str, object] = {}
        self.windows: list[Span] = []
        self.allowed: dict[str, set[str]] = {}
        self.waived: dict[str, str] = {}
        self.quiet_s = QUIET_S  # how long what is on its way out may take before it is a leak
        self.damaged: set[str] = set()  # files that the scenario destroyed for good, relative to the data directory
        self.began_at = time.monotonic()
        self.phases: list[tuple[str, float]] = []
        self.lives_hurt = 1  # how many lives the daemon had under the scenario; the judgement adds one
        self.clients: Clients | None = None
        self._control: Client | None = None
        self._excuses: list[tuple[Span, frozenset[str]]] = []
        self._resets: list[float] = []
        self._nursery: trio.Nursery | None = None
        self._census: Census | None = None

    # ------------------------------------------------------------ what a scenario says

    @property
    def client(self) -> Client:
        """Return the control connection. It is replaced when the daemon was restarted: do not keep it."""
        if self._control is None:
            raise Disconnected("the control connection is not open")
        return self._control

    @property
    def ops(self) -> list[Op]:
        """Return every operation of the load so far, in the order in which they ended."""
        return self.recorder.ops

    def mark(self, name: str, target: str = "", detail: str = "") -> None:
        """Note a fault that really fired: it is counted, and stands on the time line."""
        self.marks.append(Mark(at=time.monotonic(), name=name, target=target, detail=detail))

    def violate(self, text: str) -> None:
        """Note that something that must hold did not."""
        self.violations.append(text)

    def allow(self, op: str, *outcomes: int | str) -> None:
        """Say which error codes (or "lost", "hung") the faults may cause for an operation, before or after them."""
        self.allowed.setdefault(op, set()).update(str(each) for each in outcomes)

    def waive(self, invariant: str, reason: str) -> None:
        """Leave out an invariant ("I12") that the fault itself breaks; the reason goes into the verdict.

        "lag" leaves the daemon's loop lag out of the sum over a run, for scenarios that stop the daemon itself.
        """
        self.waived[invariant] = reason

    def rolled_back(self) -> None:
        """Say that from now on an older generation may serve (a rollback, or one that was damaged on purpose)."""
        self._resets.append(time.monotonic())

    @contextmanager
    def window(self, name: str) -> Iterator[None]:
        """Name the operations that begin inside; windows of the same name are taken together."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.windows.append(Span(name=name, begin=began, end=time.monotonic()))

    @contextmanager
    def excused(self, *outcomes: int | str) -> Iterator[None]:
        """Allow these outcomes to every operation that is under way at some time inside."""
        began = time.monotonic()
        try:
            yield
        finally:
            span = Span(name="excused", begin=began, end=time.monotonic())
            self._excuses.append((span, frozenset(str(each) for each in outcomes)))

    # ------------------------------------------------------------ what a scenario reads

    def inside(self, window: str, op: str | None = None) -> list[Op]:
        """Return the operations (of one name) that began inside the windows of a name."""
        spans = [span for span in self.windows if span.name == window]
        return [each for each in within(self.ops, spans) if op is None or each.name == op]

    def p99(self, window: str, op: str) -> float:
        """Return the p99 of the latency in ms of an operation inside the windows of a name, 0 when there is none."""
        return float(latencies(self.inside(window, op))["p99_ms"])

    def errors(self, window: str, op: str | None = None) -> int:
        """Return how many operations (of one name) inside the windows of a name did not succeed."""
        return sum(each.outcome != OK for each in self.inside(window, op))

    async def call(self, method: str, params: dict[str, Any] | None = None, *, seconds: float = READY_S) -> Any:
        """Call over the control connection, connecting again while the daemon is away; raise RpcError as it is."""
        give_up = time.monotonic() + seconds
        while True:
            try:
                return await self.client.call(method, params)
            except Disconnected:
                if time.monotonic() > give_up:
                    raise
            await trio.sleep(POLL_S)

    async def status(self) -> dict[str, Any]:
        """Return system.status."""
        answer: dict[str, Any] = await self.call("system.status")
        return answer

    async def pid(self, actor: str) -> int | None:
        """Return the process id of an actor's worker (the active one of searcher), None while it has none."""
        pid: int | None = (await self.status())["actors"][actor]["pid"]
        return pid

    async def until(
        self, predicate: Callable[[dict[str, Any]], object], seconds: float = 30.0, method: str = "system.status"
    ) -> dict[str, Any]:
        """Ask for a status again and again until it is as wanted; raise TimeoutError with what it was last."""
        give_up = time.monotonic() + seconds
        while True:
            answer: dict[str, Any] = await self.call(method, seconds=seconds)
            if predicate(answer):
                return answer
            if time.monotonic() > give_up:
                wanted = getattr(predicate, "__name__", "predicate")
                if wanted == "<lambda>":
                    wanted = f"the lambda in line {predicate.__code__.co_firstlineno}"
                raise TimeoutError(f"{method} did not fulfil {wanted} in {seconds} s: {json.dumps(answer)[:2000]}")
            await trio.sleep(POLL_S)

    async def ready(self, *capabilities: str, seconds: float = 30.0) -> None:
        """Wait until all of these work; raise TimeoutError that names those that do not."""
        wanted = capabilities or CAPABILITIES
        give_up = time.monotonic() + seconds
        while True:
            status = await self.call("system.health", seconds=seconds)
            missing = [name for name in wanted if not status["ready"][name]]
            if not missing:
                return
            if time.monotonic() > give_up:
                raise TimeoutError(f"not ready after {seconds} s: {missing}")
            await trio.sleep(POLL_S)

    # ------------------------------------------------------------ what a scenario does

    async def restart(self, *wait: str) -> None:
        """Kill the whole daemon with SIGKILL and start it again; the load reconnects. A fault that is marked."""
        with self.excused(*RESTART_CODES):
            pid = self.daemon.pid()
            self.daemon.kill()
            self.mark("SIGKILL", "daemon")
            await wait_gone(pid, 10.0)
            await self._start_again(pid)
            await self.ready(*(wait or ("append", "write", "read", "search")), seconds=READY_S)

    async def kill(self, actor: str, number: int = signal.SIGKILL, *, wait: bool = True) -> int:
        """Send a signal to an actor's worker (the active one of searcher), mark it, and return the pid it had.

        Waits first until the actor has a worker and, with `wait`, afterwards until another one serves. Raises
        TimeoutError when that takes longer than a minute.
        """

        def replaced(status: dict[str, Any]) -> bool:
            row = status["actors"][actor]
            return row["pid"] not in (None, pid) and row["state"] in ("ready", "degraded")

        while True:
            status = await self.until(lambda s: s["actors"][actor]["pid"] is not None, READY_S)
            pid: int = status["actors"][actor]["pid"]
            if kill(pid, number):
                break
        self.mark(signal.Signals(number).name, actor, f"pid {pid}")
        if wait:
            await self.until(replaced, READY_S)
        return pid

    async def stop_load(self) -> None:
        """Let every client of the load finish what it is doing, for good."""
        if self.clients is not None:
            await self.clients.stop()

    async def _start_again(self, old: int | None) -> None:
        """Start a daemon, unless a bridge of the load does it; two at once are settled by their lock."""
        if self.load is not None and self.load.bridges and self.clients is not None:
            with trio.move_on_after(3.0):
                while self.daemon.pid() in (None, old):  # noqa: ASYNC110 - another process
                    await trio.sleep(POLL_S)
        if self.daemon.pid() in (None, old):
            self.daemon.start()
        await self.daemon.connected()
        await self.connected()

    async def connected(self, seconds: float = READY_S) -> None:
        """Wait until the control connection is open and answers."""
        await self.call("system.health", seconds=seconds)

    def verdict(self) -> Verdict:
        """Return the verdict, with everything that was found and measured."""
        return Verdict(
            scenario=self.scenario,
            seed=self.run.seed,
            tier=self.run.tier,
            violations=list(self.violations),
            faults=len(self.marks),
            facts=self.facts,
        )

    # ------------------------------------------------------------ behind the stage

    async def keep_control(self) -> None:
        """Keep a control connection open, for ever."""
        while True:
            try:
                async with open_socket(self.daemon.socket_path) as client:
                    self._control = client
                    while not client.closed:  # noqa: ASYNC110 - the client says so by no event
                        await trio.sleep(0.01)
                    self._note_closed(client)
            except OSError:
                pass
            await trio.sleep(0.02)

    def _note_closed(self, client: Client) -> None:
        self.recorder.closed(client)
        self._control = None

    def start_load(self, nursery: trio.Nursery) -> None:
        """Start the clients."""
        if self.load is not None:
            self.clients = Clients(self.load, self.recorder, self._connect, random.Random(self.rng.random()))
            nursery.start_soon(self.clients.run)

    def _connect(self) -> AbstractAsyncContextManager[Client]:
        if self.load is not None and self.load.bridges:
            return open_bridge(self.data, self.config_path)
        return open_socket(self.daemon.socket_path)

    async def settle(self, wait: Sequence[str]) -> None:
        """Bring everything to rest and judge it."""
        for name, step in (
            ("load end", self.stop_load),
            ("ready", lambda: self.ready(*wait, seconds=READY_S)),
            ("resolve", self.resolve),
            ("read back", self.read_back),
            ("repeat", self.repeat_some),
            ("leak check", lambda: self.check_leaks(wait)),
            ("last start", self._last_start),
            ("read again", self.read_back),
        ):
            await self.step(name, step)

    async def step(self, name: str, step: Callable[[], Awaitable[None]]) -> None:
        """Do one step of the judgement; what it raises is a violation and does not stop the others."""
        self.enter(name)
        try:
            await step()
        except (RpcError, Disconnected, Hung, TimeoutError, OSError, psutil.Error) as error:
            self.violations.append(f"judgement: {name} failed: {type(error).__name__}: {str(error)[:1000]}")

    async def resolve(self) -> None:
        """Repeat every write of unknown outcome with its request_id, until it is acknowledged or refused for good."""
        give_up = time.monotonic() + RESOLVE_S
        for write in self.history.unresolved():
            await self._repeat(write, give_up)

    async def repeat_some(self) -> None:
        """Repeat some writes that were acknowledged: the first result must come again (I3)."""
        give_up = time.monotonic() + RESOLVE_S
        writes = [write for write in self.history.writes() if write.outcome == "ok"]
        for write in self.rng.sample(writes, min(REPEATS, len(writes))):
            await self._repeat(write, give_up)

    async def _repeat(self, write: Write, give_up: float) -> None:
        """Repeat one write until it is answered; one that stays refused keeps its outcome."""
        again(write)
        while True:
            try:
                if isinstance(write, Append):
                    result = await self.client.call("event.append", append_params(write))
                    self.violations += self.history.acknowledge(write, result)
                else:
                    result = await self.client.call("unit.put", put_params(write))
                    self.violations += self.history.acknowledge_put(write, result)
                return
            except (RpcError, Disconnected) as error:
                refused(write, error.outcome if isinstance(error, RpcError) else "unknown")
                if isinstance(error, RpcError):
                    poison = error.code == POISON and await clear_poison(self.client)
                    if not poison and not error.data.get("retryable"):
                        return
            if time.monotonic() > give_up:
                self.violations.append(f"I3: {write.request_id} could not be resolved within {RESOLVE_S} s")
                return
            await trio.sleep(POLL_S)

    async def read_back(self) -> None:
        """Read every session and unit of the history, and compare (I1 to I4)."""
        known, puts = snapshot(self.history.appends), snapshot(self.history.puts)
        stored = await read_events(self, self.history)
        # What the load appends while we read is looked up, but not judged.
        wrong = checker.check_appends(known, stored, everything=self.history.appends)
        wrong += checker.check_sessions(stored, known.values())
        seqs = [event["seq"] for event in stored]
        wrong += checker.check_order(seqs, breaks=len(seqs))
        units = sorted({put.unit_id for put in puts.values()})
        versions = {unit_id: await read_versions(self, unit_id) for unit_id in units}
        wrong += checker.check_units(puts, versions, everything=self.history.puts)
        self.violations += [text for text in wrong if text not in self.violations]

    async def take_census(self, wait: Sequence[str]) -> None:
        """Count what the daemon holds before anything is done to it."""
        self._census = await self._quiet_census(wait)

    async def _quiet_census(self, wait: Sequence[str]) -> Census:
        """Wait until the workers are up and no build is under way, and count.

        A scenario that does not wait for builds may end in the middle of one: its folder is no leak then.
        """
        whole = "search" in wait and "build" in wait
        try:
            status = await self.until(at_rest if whole else answering, seconds=QUIET_S)
        except TimeoutError:
            status = await self.call("system.status")
            if not whole or at_rest(status):
                raise
            index = {
                key: status["index"][key] for key in ("generation", "delta", "deltas", "covers", "paused", "last_error")
            }
            text = f"the daemon is not at rest after {QUIET_S} s: {unrest(status)}; index: {json.dumps(index)}"
            raise TimeoutError(text[:1500]) from None
        idle = status["index"]["building"] is None and status["ready"]["build"]
        return take_census(self.data, status["pid"], building=not idle)

    async def check_leaks(self, wait: Sequence[str]) -> None:
        """Compare with the census at the start, giving what is on its way out up to a minute (I10)."""
        assert self._census is not None
        began = time.monotonic()
        while wrong := check_leaks(self._census, await self._quiet_census(wait)):
            if time.monotonic() > began + self.quiet_s:
                self.violations += wrong
                return
            self.facts["left_late"] = {"seconds": round(time.monotonic() - began, 1), "what": wrong}
            await trio.sleep(0.25)

    async def _last_start(self) -> None:
        await self.observer.look(self.client)
        self.violations += checker.check_moves(
            self.observer.moves, gaps=self.observer.gaps, running=("core_writer", "transcript_appender")
        )
        self.lives_hurt = len(self.observer.lives)
        pid = self.daemon.pid()
        self.daemon.kill()
        await wait_gone(pid, 10.0)
        self.daemon.start()
        await self.connected()
        await self.ready("append", "write", "read", seconds=READY_S)

    def enter(self, phase: str) -> None:
        """Note that a phase begins, and that the one before has ended."""
        self.phases.append((phase, time.monotonic()))

    async def leave(self) -> None:
        """Drain the daemon, see that it is gone, and check its files."""
        pid = self.daemon.pid()
        await self.daemon.stop()
        if not await wait_gone(pid, 5.0):
            self.violations.append(f"I10: the daemon (pid {pid}) did not end after its drain")
        with trio.move_on_after(5.0):
            while self.daemon.family():  # noqa: ASYNC110 - other processes
                await trio.sleep(POLL_S)
        self.violations += check_gone(self.daemon.socket_path, self.daemon.described_family())
        self.violations += check_databases(self.data, damaged=self.damaged)

    def judge(self) -> None:
        """Judge what was collected, leave out what was waived, and sum up."""
        recorder, observer = self.recorder, self.observer
        ignore = self.load.ignore if self.load is not None else frozenset[str]()
        judged = [op for op in self.ops if not self._is_excused(op)]
        self.violations += recorder.violations + observer.violations
        self.violations += checker.check_answers(judged, self.allowed, ignore)
        self.violations += checker.check_generations(self.ops, [*self._resets, *observer.suspected])
        if recorder.bad_lines:
            self.violations.append(f"I13: {recorder.bad_lines} lines on stdout or the socket were no frames")
        if recorder.strays > sum(op.outcome == "hung" for op in self.ops):
            self.violations.append(f"I6: {recorder.strays} answers came for requests that had been answered")
        self.violations = without_waived(self.violations, self.waived)
        self.facts = {**summary(self), **self.facts}

    def _is_excused(self, op: Op) -> bool:
        return any(
            op.outcome in outcomes and op.at <= span.end and op.end >= span.begin for span, outcomes in self._excuses
        )

    def timeline(self) -> Timeline:
        """Return everything that the picture is made of."""
        phases = dict(self.phases)
        begin = phases.get("body", self.began_at)
        end = max([phases.get("judgement", time.monotonic()), *(op.end for op in self.ops[-ENDING:])])
        whole = Timeline(
            scenario=self.scenario,
            seconds=end - begin,
            ops=list(self.ops),
            marks=self.marks,
            moves=self.observer.moves,
            lives=self.observer.lives,
            windows=self.windows,
        )
        return shifted(whole, -begin)


def without_waived(violations: list[str], waived: dict[str, str]) -> list[str]:
    """Return the violations but those of invariants that a scenario waived."""
    return [text for text in violations if text.split(":", 1)[0] not in waived]


def at_rest(status: dict[str, Any]) -> bool:
    """Say whether everything runs, nothing is being built, and nothing waits to be."""
    return not unrest(status)


def unrest(status: dict[str, Any]) -> dict[str, Any]:
    """Return what of a status is not as it is at rest."""
    index, searcher = status["index"], status["searcher"]
    found: dict[str, Any] = {"not ready": [name for name, ready in status["ready"].items() if not ready]}
    found |= {"building": index["building"], "delta building": index["deltas"]["building"]}
    found |= {f"behind by {name}": count for name, count in index["behind"].items()}
    if searcher["workers_ready"] != 2 or (index["generation"] is not None and searcher["loaded"] != 2):
        found["searcher"] = {name: searcher[name] for name in ("workers_ready", "loaded")}
    return {name: value for name, value in found.items() if value}


def answering(status: dict[str, Any]) -> bool:
    """Say whether the truth can be read and written."""
    ready = status["ready"]
    return bool(ready["append"] and ready["write"] and ready["read"])


@asynccontextmanager
async def staged(
    run: Run,
    scenario_name: str,
    *,
    config: str = "",
    load: Load | None = Load(),  # noqa: B008 - frozen
    launcher: bool = False,
    files: int = 0,
    wait: Sequence[str] = CAPABILITIES,
) -> AsyncIterator[Stage]:
    """Set the stage, let the body hurt, judge. `config` is TOML that is put over the configuration of chaos.

    `wait` names what has to work before the body begins and again at the end; a scenario without searches need not
    wait for the search workers, which take seconds to start. `files` markdown notes are registered as a source.
    """
    config_path = run.data.with_name("chaos.toml")
    write_config(config_path, config, launcher=launcher)
    stage = Stage(run, scenario_name, load, config_path)
    opened = False
    try:
        async with trio.open_nursery() as nursery:
            await _open(stage, nursery, wait, files)
            opened = True
            stage.start_load(nursery)
            stage.enter("body")
            try:
                yield stage
            except Exception as error:
                stage.violate(f"the scenario raised {describe(error)}")
            stage.enter("judgement")
            await stage.settle(wait)
            nursery.cancel_scope.cancel()
        await stage.step("drain", stage.leave)
        stage.enter("end")
    except Exception as error:
        if not opened:
            raise
        stage.violate(f"the stage fell: {describe(error)}")
    stage.judge()
    await trio.to_thread.run_sync(keep_timeline, run.data, stage.timeline())


async def _open(stage: Stage, nursery: trio.Nursery, wait: Sequence[str], files: int) -> None:
    stage.enter("start")
    nursery.start_soon(stage.lag.run)
    stage.daemon.start()
    await stage.daemon.connected()
    nursery.start_soon(stage.keep_control)
    nursery.start_soon(stage.observer.run)
    await stage.connected()
    if files:
        folder = stage.data.with_name("notes")
        write_notes(folder, files, stage.rng)
        await stage.ready("write", seconds=READY_S)
        await stage.call("source.add", {"path": str(folder)})
    await stage.ready(*wait, seconds=READY_S)
    await stage.take_census(wait)


def describe(error: BaseException) -> str:
    """Return an exception with the place where it was raised, groups with their members."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(describe(each) for each in error.exceptions)
    frames = traceback.extract_tb(error.__traceback__)
    where = next((f"{Path(f.filename).name}:{f.lineno}" for f in reversed(frames) if "chaos" in f.filename), "?")
    return f"{type(error).__name__} at {where}: {str(error)[:1500]}"


def keep_timeline(data: Path, timeline: Timeline) -> None:
    """Leave the time line beside the data directory, where the runner looks for it."""
    number = len(list(data.parent.glob("timeline-*.json")))
    data.with_name(f"timeline-{number}.json").write_bytes(msgspec.json.encode(timeline))
