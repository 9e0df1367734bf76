"""Defences that are a line of the harness: switched off by importing the module with that line changed.

`EDITS[name]` lists (module, the text as it stands, the text that takes its place). The files stay as they are; a text
that is not found exactly once is an error, so that a switch never goes stale in silence.
"""

import importlib.machinery
import sys
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, ModuleType

Edit = tuple[str, str, str]

EDITS: dict[str, tuple[Edit, ...]] = {
    # -- the nightly run
    "nightly_resume": (
        ("harness.nightly.due", "if (task.case.content, task.context) not in tonight:", "if True:"),
    ),
    "nightly_fit": (("harness.nightly.plan", "if whole_s <= left_s:", "if True:"),),
    # -- what is remembered of the store
    "index_notices_a_change": (("harness.line_index", "known.stamp == stamp:", "known.stamp is not None:"),),
    "index_checksums": (("harness.line_index", "and sha256 == framed[1]:", "and sha256:"),),
    "remembered_forgets": (("harness.verdict.remembered", "if kept_key == key else None", "if kept_key else None"),),
    # -- the history of nights
    "history_trigger": (("harness.history.changes", "PENALTY = 8.0", "PENALTY = 8000.0"),),
    "history_clip": (("harness.history.changes", "signal = np.clip(centred, -CLIP, CLIP)", "signal = centred"),),
    "history_unconfirmed": (
        ("harness.history.changes", "standing=Standing.SUSPECTED", "standing=Standing.REGRESSION"),
    ),
    "history_confirm": (("harness.history.confirm", "(-d if slower else d)", "(d if slower else -d)"),),
    "compare_other_gpu": (
        ("harness.history.two_runs", "common = gpus_a & gpus_b", "common = {next(iter(gpus_a))}"),
    ),
    "history_in_turn": (("harness.history.rerun", "if made % 2 == 0 else reversed(sides)", ""),),
    "history_builds": (("harness.history.confirm", " and one.build == build]", "]"),),
    # -- the worker, the clock, the catalog
    "blame": (("harness.isolate", "guilty = self._culprits(task, death)", "guilty = {}"),),
    "time_limit": (
        (
            "harness.worker_line",
            "not selector.select(left):\n                    return None",
            "not selector.select(left):\n                    raise AssertionError('would wait for ever')",
        ),
    ),
    "overlapping_launches": (
        ("harness.verdict.compare", "return hidden_us / train_us if overlaps else 0.0", "return 0.0"),
    ),
    "forks": (("harness.processes", "after_in_child=lambda: os._exit(1)", "after_in_child=lambda: None"),),
    "device_lock": (("harness.device_lock", "lock.acquire(timeout=0)", "pass"),),
    "device_lock_first": (("harness.isolate", "            self._lock.hold(uuid)\n", "            pass\n"),),
    "foreign_process": (("harness.worker_line", "if len(self.watcher.own_pids) > 1:", "if False:"),),
    "certified_baseline": (
        ("harness.measure.arms", "if arm.counter is None or arm.counter.graphs == 1:", "if True:"),
    ),
    "noop_control": (("harness.measure.controls", '"" if noop_us <= limit else', '"" if True else'),),
    "watcher_void": (
        (
            "harness.measure.telemetry",
            "for poll in self._span(start_s, stop_s):\n            for bit",
            "for poll in ():\n            for bit",
        ),
    ),
    "reversed_blocks": (("harness.measure.sampler", "(*order, *reversed(order))", "(*order, *order)"),),
    "random_orders": (("harness.stats.orders", "rng.permutation(arms)", "range(arms)"),),
    "candidate_sources": (("harness.imported", "pending += _named(one, roots)", "pass"),),
    "empty_filter": (
        (
            "harness.microbench",
            "if not any(fnmatch.fnmatchcase(case.id, pattern) for case in manifest.cases):",
            "if False:",
        ),
        ("harness.microbench", "selection.context not in contexts:", "False:"),
    ),
    "resume": (("harness.microbench", "if fresh or not _stored(", "if True or not _stored("),),
    "device_key": (
        ("harness.measure.environment", "round(info.memory_bytes / 2**30)", "round(info.memory_bytes / 2**20)"),
        ("harness.measure.environment", 'driver.split(".")[0]', "driver"),
    ),
    "candidate_declared": (("harness.op", "if problem := self._problem():", "if False:"),),
    "import_apart": (("harness.survey", "if not what or what in broken:", "if True:"),),
    "settings_watch": (("harness.measure.global_state", "found.changed = said(changed)", "pass"),),
    "settings_run": (
        ("harness.measure.link", "if settings.changed and state.arm.candidate is not None:", "if False:"),
    ),
    "settings_guard": (("harness.measure.arms", "if settings.changed:", "if False:"),),
    "settings_sample": (("harness.measure.timing", "if settings.changed:", "if False:"),),
    "settings_import": (
        ("harness.importing", "            if settings.changed:\n", "            if False:\n"),
        ("harness.measure.comparison", "elif (reason := self.c.refused.get(state.arm.id)) is not None:", "elif False:"),
    ),
    "help_without_torch": (("harness.cli", "import json\n", "import json\nimport torch\n"),),
    "store_whole_or_nothing": (("harness.jsonl", "os.ftruncate(descriptor, size)", "pass"),),
    # -- several ranks
    "ranks_last_entry": (
        ("harness.measure.train", "last.duration_ns + max(behind, 0)", "max(span.duration_ns for span in spans)"),
    ),
    "ranks_blame": (("harness.rank_group", " and code != PEERS_LOST_CODE]", "]"),),
    "ranks_apart": (
        ("harness.rank_group", "limit if self._apart_since is None else min(limit,", "limit if True else min(limit,"),
    ),
    "ranks_apart_late": (("harness.rank_group", "if step.begun < now or not step.ended]", "if not step.ended]"),),
    "ranks_named": (("harness.rank_group", "if 0 < len(late) < len(self._steps) else", "if False else"),),
    "ranks_equal": (("harness.measure.rank_gate", "if team.ranks == 1 or candidate", "if True or candidate"),),
    "ranks_multicast": (("harness.worker", "        forbid_multicast()\n", ""),),
    # -- statistics
    "stats_p_loss": (("harness.stats.rule", " & (n >= settings.p_loss)", ""),),
    "stats_p_win": (("harness.stats.rule", " & (n >= P_WIN)", ""),),
    "stats_q_guard": (("harness.stats.rule", " & (q_p_value >= Q_GUARD)", ""),),
    "stats_simulated_error_rates": (("harness.stats.rule", "win=(lower >= BAR_LOG_PCT)", "win=(mean >= BAR_LOG_PCT)"),),
    "stats_look_levels": (
        ("harness.stats.levels", "levels[first_look:] = [row[column] for row in _NOMINAL[first_look]]", "pass"),
    ),
    "stats_session_gate": (("harness.stats.aa", "if abs(x_log_pct) > limit:", "if False:"),),
    "stats_rolling_gate": (
        (
            "harness.stats.aa",
            "if -tolerance_log_pct < interval.lower and interval.upper < tolerance_log_pct:",
            "if abs(interval.estimate) < tolerance_log_pct:",
        ),
    ),
    "stats_call_weights": (("harness.stats.combine", "case.baseline_us * case.calls for case", "1.0 for case"),),
    "stats_holm": (("harness.stats.combine", "level / (len(p_values) - rank)", "level"),),
    "stats_se_of_interval": (
        ("harness.stats.estimators", "np.sqrt((n - 1) / (kept * (kept - 1)))", "np.sqrt(1 / n)"),
    ),
    "stats_whole_processes": (
        ("harness.stats.traces", "hodges_lehmann(d[:, :value])[drawn", "hodges_lehmann(d[:, -value:])[drawn"),
    ),
    "accuracy_excuse": (("harness.measure.accuracy", "if farther and farther <=", "if farther or farther <="),),
    "accuracy_worst": (("harness.measure.accuracy", " & ~rule.within(worst, c, n, o)", " & False"),),
    # -- the end-to-end stage and its verdicts
    "e2e_native_exact": (("harness.e2e.proofs", "if torch.equal(found, native) else", "if True else"),),
    "e2e_all_sites": (("harness.e2e.proofs", "if calls.count != expected:", "if False:"),),
    "e2e_engagement": (
        ("harness.e2e.engaged", "if now * calls.graphs_baseline >= before * calls.graphs:", "if False:"),
    ),
    "e2e_both_baselines": (
        ("harness.stats.sequences", "all(decision is Decision.WIN", "any(decision is Decision.WIN"),
    ),
    "e2e_best_of_many": (("harness.verdict.e2e_rows", "_led_among(cell) * composition", "composition"),),
    "e2e_beaten": (("harness.e2e.beaten", "if reason := _beaten(sampler):", "if reason := \"\":"),),
    "e2e_clearly_beaten": (("harness.e2e.beaten", "if fastest < CLEARLY * slowest:", "if False:"),),
    "e2e_beaten_later": (("harness.e2e.stopping", " or arm.status is ArmStatus.BEATEN", ""),),
    "e2e_decided": (("harness.e2e.stopping", "if arm.role is not ModelRole.CANDIDATE:", "if True:"),),
    "e2e_left_out": (("harness.e2e.stopping", " | decided(processes, p_max)", ""),),
    "e2e_decided_verdict": (
        ("harness.verdict.e2e_arms", "(ArmStatus.OK, ArmStatus.DECIDED)", "(ArmStatus.OK,)"),
    ),
    "e2e_beaten_elsewhere": (
        ("harness.e2e.before", "one.library, one.e2e_sha256) == here:", "one.library) == here[:4]:"),
    ),
    "e2e_later_start": (("harness.e2e.eta", "- checks_s - spared_s", "- checks_s"),),
    "e2e_nothing_stored": (("harness.e2e.runner", "looked or not self._any_stored(cell)", "looked"),),
    "e2e_drift": (("harness.e2e.runner", "if record.upstream.get(name) != pinned", "if False"),),
    "e2e_aa": (("harness.verdict.e2e_arms", "        if not gate.passed:\n", "        if False:\n"),),
    "e2e_late": (("harness.e2e.runner", "if needs_s <= here_s:", "if True:"),),
    "e2e_positive": (("harness.verdict.e2e", "positive.verdict is Verdict.NO_WIN", "False"),),
    "e2e_ceiling": (("harness.verdict.e2e_arms", "hardest.gain_pct.lower > ceiling.upper", "False"),),
    "e2e_regression": (("harness.verdict.e2e_rows", "any(one.regression for one in figures)", "False"),),
}  # fmt: skip


class _EditedLoader(importlib.machinery.SourceFileLoader):
    """Compiles a module from its source with texts replaced; never from or to a bytecode cache."""

    def __init__(self, name: str, path: str, edits: Sequence[Edit]) -> None:
        super().__init__(name, path)
        self._edits = edits

    def get_code(self, fullname: str) -> CodeType:
        """The edited code."""
        source = Path(self.path).read_text(encoding="utf-8")
        for _, old, new in self._edits:
            count = source.count(old)
            if count != 1:
                raise AssertionError(f"{fullname} holds {old!r} {count} times: the switch in tests/edits.py is stale")
            source = source.replace(old, new)
        code = compile(source, self.path, "exec")
        assert isinstance(code, CodeType)
        return code


class _EditedFinder(importlib.machinery.PathFinder):
    """Finds the edited modules before anyone else does."""

    edits: Sequence[Edit] = ()

    @classmethod
    def find_spec(
        cls, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The usual spec with another loader, for the modules that are edited."""
        mine = [edit for edit in cls.edits if edit[0] == fullname]
        spec = super().find_spec(fullname, path, target) if mine else None
        if spec is not None and spec.origin is not None:
            spec.loader = _EditedLoader(fullname, spec.origin, mine)
        return spec


def apply(edits: Sequence[Edit]) -> None:
    """Have the modules imported with their edits from now on; none may be loaded yet."""
    loaded = [module for module, _, _ in edits if module in sys.modules]
    assert not loaded, f"{loaded} loaded before the switch"
    _EditedFinder.edits = edits
    sys.meta_path.insert(0, _EditedFinder)
