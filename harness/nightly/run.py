"""One night: comparisons that are due, end-to-end cells in rotation, what was measured before once more, then reports.

Every piece goes through the same functions as `harness bench` and `harness e2e`, is stored as it comes and is noted in
the night's file, so that Ctrl-C or the end of the budget costs the comparison at work and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from time import monotonic
from typing import Literal

from rich.console import Console

from harness.device_lock import expected_uuid
from harness.errors import UnfitError, UserError
from harness.microbench import SECONDS_PER_ARM, Selection, bench, require_writable, tasks_of
from harness.nightly.budget import RESERVE_S, Budget, BudgetSpent, PieceSpent
from harness.nightly.changes import changes_found
from harness.nightly.due import Card
from harness.nightly.estimates import Estimates
from harness.nightly.plan import Choice, State, Work, choose, in_order, minutes, ops_in_order
from harness.nightly.record import Ended, Night, Piece, Session, Stage, file_of, load, now, save
from harness.progress import LiveProgress
from harness.protocol import Settings
from harness.report import refresh
from harness.schema.manifest import Manifest
from harness.schema.measurement import Measurement
from harness.store import ProcessStore

MICROBENCH_SHARE = 0.5
"""Of the night, for comparisons that are due while end-to-end cells wait."""


@dataclass(frozen=True)
class Request:
    """What was asked for on the command line, and what the survey found."""

    budget_min: float
    device_type: Literal["cuda", "cpu"]
    manifests: Mapping[str, Manifest]
    cell_budget_s: float
    seconds_per_arm: float | None = None
    broken: Mapping[str, str] = field(default_factory=dict)
    """What must not be imported, from `harness.survey`."""
    unusable: Mapping[str, str] = field(default_factory=dict)
    """Ops that cannot be measured, with a sentence."""


class NightRun:
    """One call of the command on one card."""

    def __init__(self, request: Request, root: Path, out: Console, err: Console) -> None:
        self.request, self.root, self.out, self.err = request, root, out, err
        self.budget = Budget(60 * request.budget_min, RESERVE_S[request.device_type])
        uuid = expected_uuid(request.device_type)
        if uuid is None:
            raise UserError(
                "CUDA_VISIBLE_DEVICES names the GPU neither by number nor by UUID, and a night keeps to one card; "
                "set it to a number or to GPU-..."
            )
        usable = {op: of for op, of in request.manifests.items() if op not in request.unusable}
        self.card = Card(root, uuid, request.device_type, usable, request.broken)
        require_writable(root)
        self.file = file_of(root, uuid, datetime.now(UTC).date().isoformat())
        self.night = self._begin()
        self._why_not: dict[tuple[Stage, str, str], str] = {}

    def _begin(self) -> Night:
        session = Session(started_at=now(), budget_min=self.request.budget_min)
        if not self.file.exists():
            date = session.started_at[:10]
            return Night(date=date, device_type=self.request.device_type, sessions=(session,))
        before = load(self.file)
        kept = tuple(piece for piece in before.pieces if piece.ended is not Ended.LEFT_OUT)
        self.err.print(f"going on with the night of {before.date}: {len(kept)} pieces were begun", highlight=False)
        return before.model_copy(update={"sessions": (*before.sessions, session), "pieces": kept})

    def run(self) -> Night:
        """Measure until the budget is spent or nothing is left; the night as it is in its file.

        Raises KeyboardInterrupt for Ctrl-C and UnfitError where nothing could be measured, the file written.
        """
        save(self.night, self.file)
        ended: Literal["finished", "interrupted", "unfit"] = "finished"
        reason = ""
        try:
            with self.budget.alarm():
                self._measure()
        except BudgetSpent:
            reason = "the budget is spent"
        except KeyboardInterrupt:
            ended, reason = "interrupted", "Ctrl-C; the same command goes on from there"
            raise
        except UnfitError as error:
            ended, reason = "unfit", str(error)
            raise
        finally:
            self._conclude(ended, reason)
        return self.night

    # -- measuring -------------------------------------------------------------------------------------------------

    def _measure(self) -> None:
        cells = self._cells()
        affordable = any(work.seconds <= self.budget.left_s / 2 for work in cells)
        night_s = self.budget.left_s * (MICROBENCH_SHARE if affordable else 1.0)
        self._announce(cells, night_s)
        self._microbench(self.budget.left_s - night_s, night_s, lambda work: work.state.is_due)
        self._rotate()
        self._microbench(0.0, self.budget.left_s, lambda work: work.state.is_due)
        self._microbench(0.0, self.budget.left_s, lambda work: True)

    def _announce(self, cells: list[Work], night_s: float) -> None:
        estimates = self.card.estimates()
        works = self.card.comparisons(self.night, estimates)
        waiting = [work for work in works if work.state.is_due]
        needed_s = sum(
            estimates.of_run([cost for work in waiting if work.op == op for cost in work.costs])
            for op in {work.op for work in waiting}
        )
        cells_s = sum(work.seconds for work in cells)
        self.err.print(
            f"night of {self.night.date}, {self.request.budget_min:g} min: {len(waiting)} of {len(works)} cases are "
            f"due (about {minutes(needed_s)}; {minutes(night_s)} for them), {len(cells)} end-to-end cells in rotation "
            f"(about {minutes(cells_s)})",
            highlight=False,
        )

    def _microbench(self, kept_back_s: float, night_s: float, wanted: Callable[[Work], bool]) -> None:
        """Ops one after another, each as far as it fits into what is left but for `kept_back_s`."""
        estimates = self.card.estimates()
        works = [work for work in self.card.comparisons(self.night, estimates) if wanted(work)]
        for op in ops_in_order(works):
            of_op = [work for work in works if work.op == op]
            choice = choose(of_op, estimates, self.budget.left_s - kept_back_s, night_s)
            self._why_not |= {
                (Stage.MICROBENCH, op, work.id): choice.reason for work in of_op if work not in choice.works
            }
            if choice.works:
                self._bench(op, choice, estimates, kept_back_s)

    def _bench(self, op: str, choice: Choice, estimates: Estimates, kept_back_s: float) -> None:
        manifest = self.request.manifests[op]
        selection = Selection(tuple(work.id for work in choice.works))
        tasks = sorted(
            tasks_of(manifest, self.request.device_type, selection), key=lambda task: task.case.ranks
        )  # as `bench` takes them
        costs = [estimates.of_task(op, task).measure_s for task in tasks]
        what = f"{len(choice.works)} cases"
        stored = 0

        def on_measured(measurement: Measurement) -> None:
            nonlocal stored
            stored += 1
            progress.measured(measurement)
            if stored < len(costs) and costs[stored] > self.budget.left_s - kept_back_s:
                raise PieceSpent

        def measure() -> tuple[list[str], tuple[str, ...]]:
            outcome = bench(
                manifest,
                self.root,
                self.card.store,
                self.request.device_type,
                selection=selection,
                settings=Settings(
                    seconds_per_arm=self.request.seconds_per_arm or SECONDS_PER_ARM[self.request.device_type]
                ),
                extra=(),
                broken=self.request.broken,
                fresh=True,
                progress=progress,
                on_measured=on_measured,
                on_planned=progress.planned,
            )
            return outcome.failures, outcome.problems

        self.err.print(
            f"{op}: {what}, about {minutes(choice.estimate_s)}; {minutes(self.budget.left_s)} left", highlight=False
        )
        with LiveProgress(self.err, op) as progress:
            self._piece(Stage.MICROBENCH, op, what, choice, measure, lambda: stored)

    def _cells(self) -> list[Work]:
        works, problems = self.card.cells(self.night, self.request.cell_budget_s)
        self._problem(*problems)
        return works

    def _rotate(self) -> None:
        """Cells by urgency, those measured before oldest first, as long as one fits."""
        for work in in_order(self._cells()):
            needs_s = work.seconds
            if needs_s > self.budget.left_s:
                reason = f"needs about {minutes(needs_s)}, {minutes(self.budget.left_s)} are left"
                self._why_not[Stage.E2E, work.op, work.id] = reason
            else:
                self._cell(work)

    def _cell(self, work: Work) -> None:
        from harness.e2e.command import Request as CellRequest
        from harness.e2e.command import run
        from harness.e2e.protocol import CellSettings

        request = CellRequest(
            ops=(work.op,),
            models=(work.id,),
            device_type=self.request.device_type,
            settings=CellSettings(budget_s=self.request.cell_budget_s),
            fresh=work.state is State.MEASURED and not work.began,
            arms=(),
            checkpoint=None,
            extra=(),
            broken=self.request.broken,
            minutes=max(self.budget.left_s, 1.0) / 60,
        )
        store = ProcessStore(self.root / "results")
        before = len(store.load(work.op))

        def measure() -> tuple[list[str], tuple[str, ...]]:
            ran = run(request, self.root, self.out, self.err)
            if ran.left and not ran.failures:
                raise PieceSpent
            return ran.failures, tuple(ran.left)

        def stored() -> int:
            return len(store.load(work.op)) - before

        choice = Choice((work,), work.seconds)
        self._piece(Stage.E2E, work.op, work.id, choice, measure, stored)

    def _piece(
        self,
        stage: Stage,
        op: str,
        what: str,
        choice: Choice,
        measure: Callable[[], tuple[list[str], tuple[str, ...]]],
        stored: Callable[[], int],
    ) -> None:
        """Measure one piece and note what became of it, however it ends."""
        began_s = monotonic()
        ended, reason = Ended.CUT, "interrupted"
        failures: list[str] = []
        try:
            failures, problems = measure()
            ended, reason = Ended.FAILED if failures else Ended.DONE, choice.reason
            self._problem(*problems)
        except PieceSpent:
            reason = "what comes next would not have fitted into the time for it"
        except BudgetSpent:
            reason = "it took longer than the budget had"
            raise
        except UnfitError as error:
            ended, reason, failures = Ended.FAILED, "", [f"{op}: {what}: {error}"]
            if not any(piece.measured for piece in self.night.pieces):
                raise
        except UserError as error:
            ended, reason, failures = Ended.FAILED, "", [f"{op}: {what}: {error}"]
        finally:
            states: dict[State, int] = {}
            for work in choice.works:
                states[work.state] = states.get(work.state, 0) + 1
            self._note(
                Piece(
                    stage=stage,
                    op=op,
                    what=what,
                    states=states,
                    ended=ended,
                    reason=reason,
                    failures=tuple(failures),
                    measured=stored(),
                    estimate_s=choice.estimate_s,
                    took_s=monotonic() - began_s,
                )
            )

    # -- the record ------------------------------------------------------------------------------------------------

    def _note(self, piece: Piece) -> None:
        self.night = self.night.model_copy(update={"pieces": (*self.night.pieces, piece)})
        save(self.night, self.file)

    def _note_rest(self, stage: Stage, works: list[Work]) -> None:
        """What this night has not measured, by op and reason."""
        rest: dict[tuple[str, str], list[Work]] = {}
        for work in works:
            why = self._why_not.get((stage, work.op, work.id), "the night ended before its turn")
            rest.setdefault((work.op, why), []).append(work)
        for (op, why), of_op in rest.items():
            names = ", ".join(work.id for work in of_op[:3]) + (f" and {len(of_op) - 3} more" if len(of_op) > 3 else "")
            states = {state: count for state in State if (count := sum(work.state is state for work in of_op))}
            self._note(Piece(stage=stage, op=op, what=names, states=states, ended=Ended.LEFT_OUT, reason=why))

    def _name_device(self) -> None:
        """As the evidence of this card names it."""
        stored = (one.measurement.environment.device for one in self.card.store.load())
        cells = (one.record.environment.device for one in ProcessStore(self.root / "results").load())
        device = next((one for one in chain(stored, cells) if one.uuid == self.card.uuid), None)
        if device is not None:
            self.night = self.night.model_copy(update={"device": device.name, "device_key": device.key})

    def _problem(self, *sentences: str) -> None:
        problems = dict.fromkeys((*self.night.problems, *sentences))
        self.night = self.night.model_copy(update={"problems": tuple(problems)})

    def _conclude(self, ended: Literal["finished", "interrupted", "unfit"], reason: str) -> None:
        """Reports, history, and the file: also after Ctrl-C."""
        for op, why in self.request.unusable.items():
            self._note(Piece(stage=Stage.MICROBENCH, op=op, what="all", states={}, ended=Ended.LEFT_OUT, reason=why))
        for op, ranks, count in self.card.lacking():
            reason = f"{count} cases of {ranks} ranks need as many devices of one host"
            self._note(
                Piece(
                    stage=Stage.MICROBENCH, op=op, what=f"{ranks} ranks", states={}, ended=Ended.LEFT_OUT, reason=reason
                )
            )
        self._note_rest(Stage.MICROBENCH, self.card.comparisons(self.night, self.card.estimates()))
        self._note_rest(Stage.E2E, self._cells())
        self._name_device()
        _, problems = refresh(self.root, tuple(self.request.manifests))
        self._problem(*problems)
        changes, problems = changes_found(self.root, self.night)
        self._problem(*problems)
        last = self.night.sessions[-1].model_copy(
            update={"took_s": self.budget.spent_s, "ended": ended, "reason": reason}
        )
        self.night = self.night.model_copy(update={"sessions": (*self.night.sessions[:-1], last), "changes": changes})
        save(self.night, self.file)
        self.err.print(f"{self.file.relative_to(self.root)} is written", highlight=False)
