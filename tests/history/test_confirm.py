"""Fresh pairs of old and new, and nothing else, make a regression of a suspicion."""

from pathlib import Path

import numpy as np
import pytest

from harness.errors import UserError
from harness.history import history
from harness.history.confirm import ConfirmStore
from harness.schema.history import Change, Metric, Standing
from harness.schema.measurement import EnvironmentRecord
from tests.history.nights import NEW, OLD, nights, run


def change_of(root: Path) -> Change:
    _, changes = history(root)
    (change,) = (one for one in changes if one.key.metric is Metric.RATIO)
    return change


def pairs(root: Path, count: int, factor: float, new: EnvironmentRecord = NEW, old: EnvironmentRecord = OLD) -> None:
    """Fresh runs of old and new in turn, the new one's speed by `factor` apart."""
    store = ConfirmStore(root / "results")
    for number in range(count):
        store.append(run(1.3, old, 100, seed=2 * number + 1, minutes=4 * number))
        store.append(run(1.3 * factor, new, 100, seed=2 * number + 2, minutes=4 * number + 2))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Nights that look slower by 3 % since the new build."""
    nights(tmp_path, 24, 16, 0.97)
    return tmp_path


@pytest.mark.defence("history_confirm")
@pytest.mark.parametrize(
    ("count", "factor", "standing"),
    [
        (0, 0.97, Standing.SUSPECTED),
        (1, 0.97, Standing.SUSPECTED),
        (2, 0.97, Standing.SUSPECTED),
        (4, 0.97, Standing.REGRESSION),
        (4, 1.0, Standing.UNDER_THE_BAR),
        (4, 1.03, Standing.UNDER_THE_BAR),
        (8, 0.99, Standing.INCONCLUSIVE),
    ],
)
def test_the_rule_on_fresh_pairs_decides(root: Path, count: int, factor: float, standing: Standing) -> None:
    pairs(root, count, factor)
    change = change_of(root)
    assert change.standing is standing
    if count:
        assert change.confirmation is not None
        assert change.confirmation.pairs <= count
        shift = change.confirmation.shift_pct
        assert shift.lower < 100 * (1 - 1 / factor) < shift.upper
        assert f"[{shift.lower:+.2f}, {shift.upper:+.2f}] of the time saved" in change.why


def test_an_improvement_is_confirmed_likewise(tmp_path: Path) -> None:
    nights(tmp_path, 24, 16, 1.03)
    assert change_of(tmp_path).standing is Standing.SUSPECTED
    pairs(tmp_path, 4, 1.03)
    change = change_of(tmp_path)
    assert change.standing is Standing.IMPROVEMENT
    assert change.confirmation is not None
    assert change.confirmation.shift_pct.estimate == pytest.approx(100 * (1 - 1 / 1.03), abs=0.3)


@pytest.mark.defence("history_builds")
def test_runs_of_another_build_or_another_card_make_no_pair(root: Path) -> None:
    pairs(root, 4, 0.97, new=NEW.model_copy(update={"op_sha256": "c" * 64}))
    other = NEW.model_copy(update={"device": NEW.device.model_copy(update={"uuid": "GPU-2"})})
    pairs(root, 4, 0.97, new=other, old=NEW.model_copy(update={"driver": "570.99"}))
    change = change_of(root)
    assert change.standing is Standing.SUSPECTED
    assert change.confirmation is None or change.confirmation.pairs == 0


def test_nights_never_confirm_themselves(tmp_path: Path) -> None:
    """However many there are: they were chosen for looking changed."""
    nights(tmp_path, 60, 30, 0.9)
    assert change_of(tmp_path).standing is Standing.SUSPECTED


def test_fresh_runs_are_no_nights(root: Path) -> None:
    before, _ = history(root)
    pairs(root, 3, 0.97)
    after, _ = history(root)
    assert after == before


def test_a_damaged_fresh_run_is_named(root: Path) -> None:
    pairs(root, 1, 0.97)
    (file,) = root.glob("results/*/confirm/groupnorm_silu.jsonl")
    file.write_bytes(file.read_bytes().replace(b'"polls":40', b'"polls":41', 1))
    with pytest.raises(UserError, match=r"confirm/groupnorm_silu\.jsonl:1: the checksum does not match"):
        history(root)


@pytest.mark.slow
def test_how_often_an_unchanged_build_is_called_a_regression(tmp_path: Path) -> None:
    """At no change never in 60; at a slowdown of just 1 % in at most the rule's few percent."""
    from harness.history.confirm import ruled

    rng = np.random.default_rng(3)
    wrong = {0.0: 0, 1.005: 0}
    for true_log_pct in wrong:
        for _ in range(300):
            drawn = [-true_log_pct + rng.normal(0, 0.21) + rng.normal(0, 0.28, 24) for _ in range(8)]
            for count in range(1, 9):
                decision = ruled(drawn[:count], slower=True).decision
                if decision != "CONTINUE":
                    wrong[true_log_pct] += decision == "WIN"
                    break
    assert wrong[0.0] == 0
    assert wrong[1.005] <= 0.05 * 300
