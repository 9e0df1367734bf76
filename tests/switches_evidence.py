"""Switches of the defences of the store, the verdicts and the reports; see `tests.switches`."""

import contextlib
from collections.abc import Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

from tests.switches import _everywhere as everywhere
from tests.switches import _off as off


def _put(module: ModuleType, **replacements: Any) -> None:
    """Replace names of a module."""
    for name, value in replacements.items():
        assert hasattr(module, name), name
        setattr(module, name, value)


# -- the store ---------------------------------------------------------------------------------------------------------


@off("store_nan")
def _() -> None:
    import json

    from harness import sources

    def lax(value: Any, *, sort_keys: bool = False) -> str:
        return json.dumps(value, sort_keys=sort_keys, separators=(",", ":"), ensure_ascii=False)

    everywhere(sources.compact_json, lax)


@off("store_checksum")
def _() -> None:
    from harness import jsonl

    _put(jsonl, text_sha256=lambda text: "0" * 64)


@off("store_torn_line")
def _() -> None:
    from harness import jsonl

    _put(jsonl, _set_torn_tail_aside=lambda file: None)


@off("store_lock")
def _() -> None:
    from harness import jsonl

    _put(jsonl, _lock=lambda file: contextlib.nullcontext())


@off("store_key_order")
def _() -> None:
    from harness import jsonl, sources

    compact = sources.compact_json
    _put(jsonl, compact_json=lambda value: compact(value, sort_keys=True))


# -- verdicts ----------------------------------------------------------------------------------------------------------


def _forgive(function: str, beginning: str) -> None:
    """Reasons that begin so are no reasons."""
    from harness.verdict import compare

    strict = getattr(compare, function)

    def lax(*args: Any) -> str:
        reason: str = strict(*args)
        return "" if reason.startswith(beginning) else reason

    setattr(compare, function, lax)


@off("verdict_aa")
def _() -> None:
    _forgive("_why_invalid", "A/A failed")


@off("verdict_aa_allowance")
def _() -> None:
    from harness.verdict import compare

    everywhere(compare.allowance_log_pct, lambda of: 0.0)


@off("verdict_lottery")
def _() -> None:
    from harness.schema.vocabulary import Role
    from harness.verdict import compare

    _put(compare, reference_arm=lambda of: next((arm for arm in of.arms if arm.role is Role.BASELINE), None))


@off("verdict_gate_after")
def _() -> None:
    _forgive("_why_untrusted", "GATE_FAILED after")


@off("verdict_gate_missing")
def _() -> None:
    _forgive("_why_untrusted", "no gate")


@off("verdict_memory")
def _() -> None:
    from harness.verdict import compare

    _put(compare, MEMORY_MARGIN=float("inf"))


@off("verdict_two_cards")
def _() -> None:
    """All cards of one key are one card."""
    from dataclasses import replace

    from harness import verdict
    from harness.verdict import select

    choose = select.choose

    def on_one_card(one: Any) -> Any:
        environment = one.measurement.environment
        device = environment.device.model_copy(update={"uuid": "any"})
        changed = environment.model_copy(update={"device": device})
        return replace(one, measurement=one.measurement.model_copy(update={"environment": changed}))

    def pooled(stored: Any, *args: Any) -> Any:
        return choose([on_one_card(one) for one in stored], *args)

    _put(verdict, choose=pooled)


def _staleness_without(**hidden: Any) -> None:
    from dataclasses import replace

    from harness.verdict import select

    found = select.staleness
    _put(select, staleness=lambda *args: replace(found(*args), **hidden))


@off("verdict_stale")
def _() -> None:
    _staleness_without(reasons=())


@off("verdict_case_changed")
def _() -> None:
    _staleness_without(case_changed=False)


@off("verdict_weighting")
def _() -> None:
    """Every case counts alike."""
    from dataclasses import replace

    from harness.stats import combine
    from harness.verdict import steps

    weighted = combine.weighted_log_ratio
    _put(steps, weighted_log_ratio=lambda effects: weighted([replace(effect, calls=1) for effect in effects]))


@off("verdict_leader_fresh_blocks")
def _() -> None:
    from harness.verdict import steps

    _put(steps, EVEN=steps.ALL, ODD=steps.ALL)


@off("verdict_memory_confidence")
def _() -> None:
    from harness.verdict import steps

    _put(steps, Confidence=SimpleNamespace(MEMORY=None))


@off("verdict_context")
def _() -> None:
    from harness.verdict import rows

    _put(rows, losses=lambda *args: iter(()))


@off("verdict_holm")
def _() -> None:
    from harness.verdict import rows

    def each_alone(p_values: Sequence[float]) -> tuple[bool, ...]:
        return tuple(p <= 0.025 for p in p_values)

    _put(rows, holm=each_alone)


@off("verdict_claims")
def _() -> None:
    from harness.verdict import trackers

    _put(trackers, ClaimState=SimpleNamespace(DONE=None))


# -- reports -----------------------------------------------------------------------------------------------------------


@off("report_escaping")
def _() -> None:
    from harness.report import text

    everywhere(text.plain, lambda value: value)


@off("matrix_check")
def _() -> None:
    from harness.report import matrix_check

    _put(matrix_check, _cell_problem=lambda *args: "")


@off("post_refuses")
def _() -> None:
    from harness.report import subissue

    everywhere(subissue.require_symbol, lambda *args: None)


@off("verify_compares")
def _() -> None:
    from harness import report

    everywhere(report.verify, lambda root: [])


@off("verify_one_sample")
def _() -> None:
    """Judge by the first block alone, and print no checksum."""
    import numpy as np

    from harness.verdict import compare

    evidence = compare.Evidence
    _put(compare, Evidence=lambda **of: evidence(**{**of, "sha256": "0" * 64}))
    times = compare.train_times_us
    everywhere(times, lambda arm: np.full_like(times(arm), 1.0 + len(arm.id)))
