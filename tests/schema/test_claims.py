"""Claims: what people write about rows, and the exact words for what they may not write."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import UserError
from harness.schema.claims import Claims, ClaimState, TrackerName, check_rows, load_claims

ROOT = Path(__file__).parents[2]

GOOD = """\
rows:
  rmsnorm:
    ubench: {owner: "@jane-doe", state: claimed, note: one H200}
    e2e:
      owner: "@jane-doe"
      state: in_progress
      link: https://github.com/vllm-project/vllm-omni/issues/3186
  layernorm: {}
"""


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def claims(text: str = GOOD) -> Claims:
    Path("claims.yaml").write_text(text)
    return load_claims(Path("claims.yaml"))


def test_good_claims() -> None:
    of = claims()
    ubench, e2e = of.claim("rmsnorm", TrackerName.UBENCH), of.claim("rmsnorm", TrackerName.E2E)
    assert ubench is not None
    assert (ubench.owner, ubench.state, ubench.link, ubench.note) == (
        "@jane-doe", ClaimState.CLAIMED, None, "one H200",
    )  # fmt: skip
    assert e2e is not None
    assert e2e.state is ClaimState.IN_PROGRESS
    assert e2e.link == "https://github.com/vllm-project/vllm-omni/issues/3186"
    for op, tracker in (("rmsnorm", TrackerName.PR), ("layernorm", TrackerName.UBENCH), ("absent", TrackerName.PR)):
        assert of.claim(op, tracker) is None
    assert of.place("rmsnorm", TrackerName.E2E) == "claims.yaml:4"
    assert of.place("rmsnorm", TrackerName.PR) == "claims.yaml:2"


@pytest.mark.parametrize(
    ("old", "new", "wanted"),
    [
        ("state: claimed", "state: taken",
         "claims.yaml:3: `rows.rmsnorm.ubench.state` is \"taken\" and must be 'claimed', 'in_progress' or 'done'."),
        ("state: claimed", "state: claimed, symbol: ✅",
         "claims.yaml:3: `rows.rmsnorm.ubench.symbol` is not a known key; remove it; the keys here are owner, state, "
         "link, note."),
        ('"@jane-doe", state: claimed', "jane, state: claimed",
         'claims.yaml:3: `rows.rmsnorm.ubench.owner` is "jane" and must match pattern '
         "'^@[A-Za-z0-9][A-Za-z0-9-]*$' (Account of the person who claims it, with the @)."),
        ('owner: "@jane-doe", ', "",
         "claims.yaml:3: `rows.rmsnorm.ubench.owner` is missing; add it "
         "(Account of the person who claims it, with the @)."),
        ("      link: https://github.com/vllm-project/vllm-omni/issues/3186\n", "",
         "claims.yaml:4: `rows.rmsnorm.e2e`: state in_progress needs a `link` that shows it; add it, "
         "or write `state: claimed`."),
        ("https://github.com/vllm-project/vllm-omni/issues/3186", "javascript:alert(1)",
         'claims.yaml:7: `rows.rmsnorm.e2e.link` is "javascript:alert(1)" and must match pattern '
         "'^https://[^\\s<>()|]+$' (Comment, sub-issue or PR that shows it; needed unless the state is claimed)."),
        ("e2e:", "e2:", "claims.yaml:4: `rows.rmsnorm.e2` is not a known key; did you mean `e2e`?"),
        ("layernorm: {}", "layernorm: []",
         "claims.yaml:8: `rows.layernorm` is [] and must be a mapping of `key: value`."),
        ("layernorm: {}", "layernorm:", "claims.yaml:8: `layernorm` has no value; write one or remove it."),
        ("layernorm: {}", "rmsnorm: {}",
         "claims.yaml:8: key `rmsnorm` stands here a second time (first on line 2); keep one."),
    ],
)  # fmt: skip
def test_bad_claims(old: str, new: str, wanted: str) -> None:
    assert old in GOOD
    with pytest.raises(UserError) as caught:
        claims(GOOD.replace(old, new, 1))
    assert str(caught.value) == wanted


def test_claims_on_rows_that_do_not_exist() -> None:
    assert check_rows(claims(), ["rmsnorm", "layernorm"]) == []
    assert check_rows(claims(), ["rmsnorm", "groupnorm_silu"]) == [
        "claims.yaml:8: row `layernorm` has no manifest; choose from rmsnorm, groupnorm_silu."
    ]


@given(st.binary(max_size=60), st.integers(0, len(GOOD)), st.integers(0, 30))
def test_damaged_claims_raise_nothing_but_user_errors(noise: bytes, start: int, cut: int) -> None:
    raw = GOOD.encode()
    Path("claims.yaml").write_bytes(raw[:start] + noise + raw[start + cut :])
    try:
        load_claims(Path("claims.yaml"))
    except UserError as error:
        sentence = str(error)
    else:
        return
    assert sentence.startswith("claims.yaml:")


def test_shipped_claims_load_and_name_rows_that_exist() -> None:
    assert (
        check_rows(load_claims(ROOT / "reports/claims.yaml"), [path.stem for path in (ROOT / "shapes").glob("*.yaml")])
        == []
    )
