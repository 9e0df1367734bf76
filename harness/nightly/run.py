"""One night: comparisons that are due, end-to-end cells in rotation, what was measured before once more, then reports.

Every piece goes through the same functions as `harness bench` and `harness e2e`, is stored as it comes and is noted in
the night's file, so that Ctrl-C or the end of the budget costs the comparison at work and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Literal

from rich.console import Console

from harness.device_lock import expected_uuid
from harness.errors import UnfitError, UserError
from harness.microbench import SECONDS_PER_ARM, Selection, bench, tasks_of
from harness.nightly.budget import RESERVE_S, Budget, BudgetSpent, PieceSpent
from harness.nightly.changes import changes_of, confirmed, told
from harness.nightly.diary import Diary, Ending, states_of
from harness.nightly.due import Card
from harness.nightly.estimates import MARGIN, START_S, UNKNOWN_S, Estimates
from harness.nightly.plan import Choice, State, Work, choose, in_order, minutes, ops_in_order
from harness.nightly.record import Ended, Night, Piece, Stage
from harness.paths import require_places
from harness.progress import LiveProgress
from harness.protocol import Settings
from harness.report import refresh
from harness.schema.history import Change, Metric, Standing
from harness.schema.manifest import Manifest
from harness.schema.measurement import Measurement
from harness.stats.rule import P_CAP
from harness.store import ProcessStore, Store

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
    problems: tuple[str, ...] = ()
    """Manifests that cannot be read, one sentence each."""


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
        require_places(root)
        self.diary = Diary(root, uuid, request.device_type, request.budget_min)
        if self.diary.goes_on:
            err.print(f"going on with the night of {self.night.date}", highlight=False)
        self.diary.problem(*request.problems)
        self._why_not: dict[tuple[Stage, str, str], str] = {}

    @property
    def night(self) -> Night:
        """As far as it has come."""
        return self.diary.night

    def run(self) -> Night:
        """Measure until the budget is spent or nothing is left; the night as it is in its file.

        Raises KeyboardInterrupt for Ctrl-C and UnfitError where nothing could be measured, the file written.
        """
        self.diary.save()
        ended: Ending = "finished"
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
        self._confirm()

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
                Store(self.root / "results"),
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
        self.diary.problem(*problems)
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

    def _confirm(self) -> None:
        """Suspected changes, as long as all the pairs that one may need fit."""
        changes, _ = changes_of(self.root, self.diary.name_device(self.card.lines()))
        for change in changes or ():
            of_cell = change.key.metric is Metric.GAIN
            one_run_s = self.request.cell_budget_s if of_cell else UNKNOWN_S[self.request.device_type]
            needs_s = MARGIN * 2 * P_CAP * (START_S[self.request.device_type] + one_run_s)
            if change.standing is Standing.SUSPECTED and needs_s <= self.budget.left_s:
                self._confirm_one(change, needs_s)

    def _confirm_one(self, change: Change, needs_s: float) -> None:
        before = change.confirmation.pairs if change.confirmation is not None else 0
        made = 0

        def say(line: str) -> None:
            self.err.print(f"  {line}", highlight=False, markup=False)

        def measure() -> tuple[list[str], tuple[str, ...]]:
            nonlocal made
            try:
                now_stands = confirmed(change, self.root, say)
            except UserError as error:  # an old build that cannot be made again is no fault of this night
                return [], (str(error),)
            made = now_stands.confirmation.pairs - before if now_stands.confirmation is not None else 0
            return [], ()

        self.err.print(f"{change.key.name}: old and new build in turn, at most {minutes(needs_s)}", highlight=False)
        choice = Choice((), needs_s)
        self._piece(Stage.HISTORY, change.key.op, change.key.name, choice, measure, lambda: 2 * made)

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
            self.diary.problem(*problems)
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
            self.diary.note(
                Piece(
                    stage=stage,
                    op=op,
                    what=what,
                    states=states_of(choice.works),
                    ended=ended,
                    reason=reason,
                    failures=tuple(failures),
                    measured=stored(),
                    estimate_s=choice.estimate_s,
                    took_s=monotonic() - began_s,
                )
            )

    def _conclude(self, ended: Ending, reason: str) -> None:
        """What was left out, reports, history, and the file: also after Ctrl-C."""
        for op, why in self.request.unusable.items():
            self.diary.leave_out(Stage.MICROBENCH, op, "all", why)
        for op, ranks, count in self.card.lacking():
            why = f"{count} cases of {ranks} ranks need as many devices of one host"
            self.diary.leave_out(Stage.MICROBENCH, op, f"{ranks} ranks", why)
        works = self.card.comparisons(self.night, self.card.estimates())
        self.diary.leave_out_rest(Stage.MICROBENCH, works, self._why_not)
        self.diary.leave_out_rest(Stage.E2E, self._cells(), self._why_not)
        _, problems = refresh(self.root, tuple(self.request.manifests))
        self.diary.problem(*problems)
        changes, problems = changes_of(self.root, self.diary.name_device(self.card.lines()))
        self.diary.problem(*problems)
        standing = None if changes is None else told(self.root, self.night, changes)
        self.diary.close(ended, reason, self.budget.spent_s, standing)
        self.err.print(f"{self.diary.file.relative_to(self.root)} is written", highlight=False)
