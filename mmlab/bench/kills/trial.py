"""One trial: a pipeline with requests under way, a kill at its stage, and all that comes after.

The controller sees everything from outside: exit codes, descriptors, names and processes are read
from the kernel; only what became of the futures is told by the frontend that survived.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path

from mmlab.bench.kills import traces
from mmlab.bench.kills.line import (
    Answered,
    Ended,
    Go,
    Hello,
    Here,
    Line,
    Listener,
    Pending,
    Task,
    TrialBroken,
)
from mmlab.bench.kills.plan import (
    DETECT_S,
    ENGINE,
    FRONTEND,
    PENDING,
    RESTART_S,
    VICTIMS,
    Trial,
)
from mmlab.bench.kills.processes import Frontend, Held
from mmlab.pipeline.directory import sweep

Row = dict[str, object]
_LONGEST = 40  # bytes of a temporary directory in which a socket's path still has room
_TAIL = 2000
_WAIT_S = 15.0  # for a reaction that is judged: longer than its limit, so that it can be named


def run(trial: Trial, *, restart: bool = True) -> Row:
    """The trial's row. `ok` where every limit was kept and nothing was left.

    Within `adopting_orphans`, which is the whole process's; else an engine's exit code is None.
    Without `restart` nothing is started afterwards, only what a start would remove is removed.
    """
    with _Scene(trial, restart) as scene:
        try:
            scene.play()
        except TrialBroken as error:
            scene.problems.append(f"the trial broke off: {error}{scene.said()}")
        return scene.row()


class _Scene:
    """The processes and files of one trial, all gone when it is left."""

    def __init__(self, trial: Trial, restart: bool) -> None:
        self._trial = trial
        self._restarts = restart
        self._victim = VICTIMS[trial.victim]
        self.problems: list[str] = []
        self._leaks: list[str] = []
        self._times: dict[str, float | None] = dict.fromkeys(("detect_s", "restart_s", "close_s"))
        self._exit: dict[str, int | None] = {}
        self._left_directory = False
        self._undo = ExitStack()

    def __enter__(self) -> _Scene:
        base = tempfile.gettempdir()
        self._folder = Path(
            tempfile.mkdtemp(prefix="mmk-", dir=base if len(base) <= _LONGEST else "/tmp")
        )
        self._undo.callback(shutil.rmtree, self._folder, ignore_errors=True)
        self._mark = self._folder / "t"
        self._mark.mkdir()
        self._output = self._undo.enter_context((self._folder / "said").open("wb"))
        self._listener = Listener(self._folder / "line")
        self._undo.callback(self._listener.close)
        self._shm = traces.shm_names()
        return self

    def __exit__(self, *exc: object) -> None:
        for pid in traces.processes_of(self._mark):  # only where a trial broke off
            with suppress(ProcessLookupError):
                Held(pid).close()
        self._undo.close()

    def play(self) -> None:
        trial = self._trial
        frontend = self._start()
        survives = FRONTEND not in self._victim.roles
        spare = self._start() if self._restarts and not survives else None
        self._load({frontend: trial} | ({spare: None} if spare else {}))
        before = traces.descriptors(frontend.pid)
        frontend.line.tell(Go())
        pending = frontend.line.hear(Pending)
        engine = Held(pending.engine)
        self._undo.callback(engine.close)
        if (pending.futures, pending.blocked) != (PENDING, 2):
            self.problems.append(f"not under way: {pending.futures} futures of {PENDING}")
        stop = self._listener.accept(frontend.line)
        self._undo.callback(stop.close)
        if stop.hear(Here).stage != trial.stage:
            raise TrialBroken("another stage than wanted")
        time.sleep(trial.moment_s)
        killed_ns = self._kill({FRONTEND: frontend, ENGINE: engine}, stop)
        if survives:
            self._frontend_survives(frontend, before, killed_ns)
        elif ENGINE not in self._victim.roles:
            self._engine_follows(engine, killed_ns)
        elif not (engine.ended(5.0) and frontend.ended(5.0)):
            self.problems.append("a killed process is still there after 5 s")
        last = frontend if survives else spare
        spared = set() if last is None else {last.pid}
        self._leaks += traces.leaks(self._mark, self._shm, pending.arena, spared)
        left = traces.left_in(self._mark)
        self._left_directory = bool(left)
        if left and not self._victim.leaves_directory:
            self._leaks += [f"{name} in the temporary directory" for name in left]
        if self._restarts:
            self._restart(frontend, spare, before)
        elif survives:
            frontend.line.tell(Go(on=False))
        self._last_look(last)

    def _start(self) -> Frontend:
        frontend = Frontend(self._listener.path, self._mark, self._output)
        self._undo.callback(frontend.close)
        return frontend

    def _load(self, tasks: dict[Frontend, Trial | None]) -> None:
        """Give each started frontend its task, and wait until all have loaded what they need."""
        started = {frontend.pid: frontend for frontend in tasks}
        for _ in tasks:
            line = self._listener.accept(next(iter(tasks)))
            started[line.peer].meet(line)
        for frontend, trial in tasks.items():
            frontend.line.tell(Task(trial, self._trial.model, self._trial.strategy))
        for frontend in tasks:
            frontend.line.hear(Hello)

    def _kill(self, processes: dict[str, Held], stop: Line) -> int:
        """SIGKILL to the victims, one right after the other; when (CLOCK_MONOTONIC)."""
        roles = sorted(self._victim.roles, key=lambda role: role == ENGINE)
        if self._trial.engine_first:
            roles.reverse()
        for role, process in processes.items():
            if process.ended():
                self.problems.append(f"the {role} had ended before the kill")
        killed_ns = time.monotonic_ns()
        for role in roles:
            processes[role].kill()
        stop.close()  # a survivor that is held at the stage goes on
        return killed_ns

    def _frontend_survives(
        self, frontend: Frontend, before: dict[str, str], killed_ns: int
    ) -> None:
        """Every future and every submitter gets an EngineError in time, and `close` all is gone."""
        ended = frontend.line.hear(Ended)
        self._times["close_s"] = ended.close_s
        detect_s = max(end.at_ns for end in ended.ends) / 1e9 - killed_ns / 1e9
        self._judge(detect_s, FRONTEND)
        for end in ended.ends:
            if end.kind != "EngineError" or end.exit_code != -9:
                self.problems.append(f"a {end.what} request got {end.kind} ({end.exit_code})")
        self._leaks += [f"thread {name}" for name in ended.threads]
        self._compare(frontend, before, "after the kill")

    def _engine_follows(self, engine: Held, killed_ns: int) -> None:
        """It exits in time, whatever it is computing."""
        if not engine.ended(_WAIT_S):
            self.problems.append(f"the engine still runs {_WAIT_S:.0f} s after its frontend's end")
            return
        self._judge((time.monotonic_ns() - killed_ns) / 1e9, ENGINE)
        self._exit[ENGINE] = engine.exit_code()

    def _judge(self, seconds: float, role: str) -> None:
        self._times["detect_s"] = seconds
        if seconds > DETECT_S[role]:
            self.problems.append(f"{role}: {seconds:.2f} s after the kill, limit {DETECT_S[role]}")

    def _compare(self, frontend: Frontend, before: dict[str, str], when: str) -> None:
        new = traces.descriptors(frontend.pid).items() - before.items()
        self._leaks += [f"descriptor {fd} -> {target} {when}" for fd, target in sorted(new)]

    def _restart(self, frontend: Frontend, spare: Frontend | None, before: dict[str, str]) -> None:
        """A new pipeline, in the survivor or the spare, answers; then nothing is left."""
        if spare is not None:
            frontend, before = spare, traces.descriptors(spare.pid)
        frontend.line.tell(Go())
        seconds = frontend.line.hear(Answered).seconds
        self._times["restart_s"] = seconds
        if seconds > RESTART_S:
            self.problems.append(f"a new pipeline took {seconds:.1f} s, limit {RESTART_S}")
        self._compare(frontend, before, "after a new pipeline")
        frontend.line.tell(Go())

    def _last_look(self, frontend: Frontend | None) -> None:
        """The last process ends in order, and then nothing at all is left."""
        if frontend is None:
            sweep(self._mark)
        elif not frontend.ended(_WAIT_S) or frontend.exit_code() != 0:
            self.problems.append(f"the last frontend ended with {frontend.exit_code()}")
        if frontend is not None and FRONTEND not in self._victim.roles:
            self._exit[FRONTEND] = frontend.exit_code()
        self._leaks += traces.leaks(self._mark, self._shm, None, set())
        left = traces.left_in(self._mark)
        self._leaks += [f"{name} after the next start" for name in left]

    def said(self) -> str:
        """The last that the trial's frontends wrote."""
        text = (self._folder / "said").read_bytes()[-_TAIL:].decode(errors="replace").strip()
        return f"; a frontend wrote: {text}" if text else ""

    def row(self) -> Row:
        trial = self._trial
        limits = [DETECT_S[role] for role in self._victim.watched]
        return {
            "stage": trial.stage,
            "victim": trial.victim,
            "model": trial.model,
            "strategy": trial.strategy,
            "seed": trial.seed,
            "moment_s": trial.moment_s,
            "ok": not self.problems and not self._leaks,
            **self._times,
            "detect_limit_s": limits[0] if limits else None,
            "exit_codes": self._exit,
            "directory_left_to_next_start": self._left_directory,
            "leaks": self._leaks,
            "problems": self.problems,
            "again": trial.again,
        }
