"""Manifests: every bad input's exact sentence and line, the op's own checks, and the shipped files."""

import importlib
import math
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import UserError
from harness.op import Op
from harness.schema.case import Case, Confidence, Dtype, Layout
from harness.schema.manifest import (
    Manifest,
    RowType,
    check_against_op,
    json_schema,
    load_manifest,
    load_manifests,
    read_manifest,
    readable_manifests,
)
from harness.schema.manifest_checks import MAX_REHEARSAL_NUMEL

SHAPES = Path(__file__).parents[2] / "shapes"
OPS = sorted(path.stem for path in SHAPES.glob("*.yaml"))

GOOD = """\
op: norm
row: {title: Norm, type: Single, order: 1, cuda_ref: vllm `norm`}
tolerance:
  atol: 1e-2
  rtol: 0.01
deciding_models: [wan]
cases:
  - id: big
    model: wan
    step: denoise step
    calls: 90
    dims: {B: 1, S: 32760, D: 1536}
    formula: {S: "((81-1)//4+1)*(480//16)*(832//16)"}
    params: {eps: 1e-6}
    dtype: bfloat16
    confidence: derived
    source: made up for this test
    rehearsal: {B: 1, S: 64, D: 1536}
    contexts: [residual_add]
  - id: small
    model: flux
    step: denoise step
    calls: 2
    dims: {B: 1, S: 5, D: 128}
    params: {eps: 1e-6}
    dtype: float32
    layout: sliced
    confidence: quoted
    source: made up for this test
    rehearsal: {B: 1, S: 5, D: 64}
"""


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def manifest(text: str = GOOD) -> Manifest:
    Path("norm.yaml").write_text(text)
    return load_manifest(Path("norm.yaml"))


def changed(old: str, new: str) -> str:
    assert old in GOOD
    return GOOD.replace(old, new, 1)


BAD = {
    "unknown key, close": (
        changed("    calls: 90\n", "    calls: 90\n    layuot: sliced\n"),
        ["norm.yaml:12: `cases[big].layuot` is not a known key; did you mean `layout`?"],
    ),
    "unknown key, far": (
        changed("  rtol: 0.01\n", "  rtol: 0.01\n  zzz: 1\n"),
        ["norm.yaml:6: `tolerance.zzz` is not a known key; remove it; the keys here are atol, rtol."],
    ),
    "missing provenance": (
        changed("    source: made up for this test\n", ""),
        ["norm.yaml:8: `cases[big].source` is missing; add it (Where the dims come from: file, PR or formula)."],
    ),
    "missing section": (
        changed("tolerance:\n  atol: 1e-2\n  rtol: 0.01\n", ""),
        ["norm.yaml:1: `tolerance` is missing; add it (The gate's tolerance against native)."],
    ),
    "wrong word": (
        changed("dtype: bfloat16", "dtype: bf16"),
        ["norm.yaml:15: `cases[big].dtype` is \"bf16\" and must be 'bfloat16', 'float16' or 'float32'."],
    ),
    "text for a size": (
        changed("S: 32760", 'S: "32760"'),
        ['norm.yaml:12: `cases[big].dims.S` is "32760" and must be a whole number.'],
    ),
    "bool for a size": (
        changed("S: 32760", "S: true"),
        ["norm.yaml:12: `cases[big].dims.S` is true and must be a whole number."],
    ),
    "float for a count": (
        changed("calls: 90", "calls: 90.0"),
        ["norm.yaml:11: `cases[big].calls` is 90.0 and must be a whole number."],
    ),
    "zero size": (
        changed("S: 32760", "S: 0"),
        ["norm.yaml:12: `cases[big].dims.S` is 0 and must be greater than or equal to 1."],
    ),
    "negative tolerance": (
        changed("rtol: 0.01", "rtol: -0.01"),
        ["norm.yaml:5: `tolerance.rtol` is -0.01 and must be greater than or equal to 0."],
    ),
    "list for a mapping": (
        changed("dims: {B: 1, S: 32760, D: 1536}", "dims: [1, 32760, 1536]"),
        ["norm.yaml:12: `cases[big].dims` is [1, 32760, 1536] and must be a mapping of `key: value`."],
    ),
    "mapping for a list": (
        changed("deciding_models: [wan]", "deciding_models: {wan: 1}"),
        ['norm.yaml:6: `deciding_models` is {"wan": 1} and must be a list.'],
    ),
    "list for a param": (
        changed("eps: 1e-6", "eps: [1]"),
        [
            "norm.yaml:14: `cases[big].params.eps` is [1] and must be true or false or must be a whole number "
            "or must be a number or must be text."
        ],
    ),
    "short source": (
        changed("source: made up for this test", "source: me"),
        ['norm.yaml:17: `cases[big].source` is "me" and must have at least 10 characters.'],
    ),
    "id with a space": (
        changed("id: big", "id: big one"),
        [
            'norm.yaml:8: `cases[big one].id` is "big one" and '
            "must match pattern '^[a-z0-9][a-z0-9_.+-]*$' (Unique in its manifest)."
        ],
    ),
    "no cases": (
        GOOD[: GOOD.index("cases:")] + "cases: []\n",
        ["norm.yaml:7: `cases` is [] and must have at least 1 item after validation, not 0."],
    ),
    "case is text": (
        GOOD[: GOOD.index("  - id: small")] + "  - small\n",
        ['norm.yaml:20: `cases[1]` is "small" and must be a mapping of `key: value`.'],
    ),
    "several errors, in order": (
        changed("calls: 90", "calls: many")
        .replace("dtype: float32", "dtype: float64")
        .replace("type: Single", "type: Two"),
        [
            "norm.yaml:2: `row.type` is \"Two\" and must be 'Single' or 'Fused'.",
            'norm.yaml:11: `cases[big].calls` is "many" and must be a whole number.',
            "norm.yaml:26: `cases[small].dtype` is \"float64\" and must be 'bfloat16', 'float16' or 'float32'.",
        ],
    ),
    "another op's file": (
        changed("op: norm", "op: layernorm"),
        ["norm.yaml:1: `op` is layernorm and the file is norm.yaml; give both one name."],
    ),
    "id twice": (
        changed("id: small", "id: big"),
        ["norm.yaml:20: case id `big` stands here again (first on line 8); give it its own."],
    ),
    "deciding model without a case": (
        changed("deciding_models: [wan]", "deciding_models: [qwen]"),
        ["norm.yaml:6: deciding model `qwen` has no case; add one, or choose from wan, flux."],
    ),
    "deciding model twice": (
        changed("deciding_models: [wan]", "deciding_models:\n  - wan\n  - wan"),
        ["norm.yaml:8: deciding model `wan` stands here twice; keep one."],
    ),
    "deciding model from memory": (
        changed("confidence: derived", "confidence: memory"),
        ["norm.yaml:6: deciding model `wan` has only cases from memory; add one whose dims were read or derived."],
    ),
    "derived without a formula": (
        changed('    formula: {S: "((81-1)//4+1)*(480//16)*(832//16)"}\n', ""),
        [
            "norm.yaml:15: `cases[big].confidence` is derived and there is no `formula`; "
            "add one, such as `formula: {H: 1024 // 8}`."
        ],
    ),
    "formula does not fit": (
        changed("S: 32760", "S: 32761"),
        ["norm.yaml:13: `cases[big].formula.S` gives 32760 and dims.S is 32761; correct one of them."],
    ),
    "formula of no dim": (
        changed("formula: {S:", "formula: {T:"),
        ["norm.yaml:13: `cases[big].formula.T` names no dim; choose from B, S, D."],
    ),
    "formula with a name": (
        changed("((81-1)//4+1)*(480//16)*(832//16)", "__import__('os')"),
        [
            "norm.yaml:13: `cases[big].formula.S` cannot be checked: "
            "only whole numbers, + - * // and brackets are allowed; correct it."
        ],
    ),
    "twin with other names": (
        changed("rehearsal: {B: 1, S: 64, D: 1536}", "rehearsal: {B: 1, D: 64}"),
        ["norm.yaml:18: `cases[big].rehearsal` must have the same names in the same order as dims; write B, S, D."],
    ),
    "twin larger than the case": (
        changed("rehearsal: {B: 1, S: 5, D: 64}", "rehearsal: {B: 1, S: 6, D: 64}"),
        ["norm.yaml:30: `cases[small].rehearsal.S` is 6, larger than the case's 5; make it smaller."],
    ),
    "twin too large": (
        changed("S: 64", "S: 2000"),
        [
            "norm.yaml:18: `cases[big].rehearsal` has 3072000 elements; make it at most 2097152, it runs on laptops."
        ],
    ),
    "layout without meaning": (
        changed("layout: sliced", "layout: channels_last"),
        [
            "norm.yaml:27: `cases[small].layout` is channels_last, which needs 4 or 5 dims and there are 3; "
            "correct one."
        ],
    ),
    "context twice": (
        changed("[residual_add]", "[residual_add, residual_add]"),
        ["norm.yaml:19: `cases[big].contexts` names a context twice; keep one."],
    ),
    "dims in another order": (
        changed("dims: {B: 1, S: 5, D: 128}", "dims: {S: 5, B: 1, D: 128}").replace(
            "rehearsal: {B: 1, S: 5, D: 64}", "rehearsal: {S: 5, B: 1, D: 64}"
        ),
        ["norm.yaml:24: case small: dims are (S, B, D) here and (B, S, D) above; use one order."],
    ),
    "counted twice": (
        GOOD + GOOD[GOOD.index("  - id: small") :].replace("id: small", "id: again").replace("sliced", "contiguous"),
        [
            "norm.yaml:35: case again: `small` has the same model, step, dims and params, so its calls would count "
            "twice; add up the calls, or name another step."
        ],
    ),
    "YAML error": (
        changed("calls: 90", "calls: 1_0"),
        [
            "norm.yaml:11: `1_0` means different things to different YAML readers; "
            "write true, false or a plain decimal number, or put text in quotes."
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("text", "wanted"), BAD.values(), ids=BAD)
def test_bad_manifest(text: str, wanted: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        manifest(text)
    assert str(caught.value).splitlines() == wanted


def test_good_manifest() -> None:
    of = manifest()
    assert of.row.title == "Norm"
    assert of.row.type is RowType.SINGLE
    assert (of.row.triton_ref, of.row.cuda_ref) == ("—", "vllm `norm`")
    assert of.tolerance.atol == of.tolerance.rtol == 0.01
    big, small = of.cases
    assert big.shape == (1, 32760, 1536)
    assert big.params == {"eps": 1e-6}
    assert (big.layout, small.layout) == (Layout.CONTIGUOUS, Layout.SLICED)
    assert small.dtype is Dtype.FP32
    assert big.rehearsed().shape == (1, 64, 1536)
    assert big.rehearsed().formula == {}
    assert of.steps() == {("wan", "denoise step"): (big,), ("flux", "denoise step"): (small,)}
    assert of.case("small") is small
    assert of.place(("cases", 1, "dims")) == "norm.yaml:24"
    with pytest.raises(UserError, match=r"^norm.yaml: there is no case `tiny`; choose one of big, small\.$"):
        of.case("tiny")


def test_load_manifests_lists_the_errors_of_all_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there are no manifests"):
        load_manifests(tmp_path)
    Path("norm.yaml").write_text(GOOD)
    Path("other.yaml").write_text(GOOD.replace("op: norm", "op: other"))
    Path("late.yml").write_text(GOOD)
    Path("wrong.yaml").write_text("op: wrong\n")
    with pytest.raises(UserError) as caught:
        load_manifests(tmp_path)
    assert str(caught.value).splitlines() == [
        "late.yml: manifests end in .yaml; rename the file.",
        "wrong.yaml:1: `row` is missing; add it (The op's row of the RFC's matrix).",
        "wrong.yaml:1: `tolerance` is missing; add it (The gate's tolerance against native).",
        "wrong.yaml:1: `deciding_models` is missing; add it (Models that must all be tested before the row can be ❌).",
        "wrong.yaml:1: `cases` is missing; add it (The shapes to measure).",
        "other.yaml:2: order 1 is taken by norm; give each row its own place.",
    ]
    for name in ("late.yml", "wrong.yaml"):
        Path(name).unlink()
    Path("other.yaml").write_text(GOOD.replace("op: norm", "op: other").replace("order: 1", "order: 0x"))
    with pytest.raises(UserError, match=r"^other.yaml:2: `row.order` is \"0x\" and must be a whole number\.$"):
        load_manifests(tmp_path)
    Path("other.yaml").write_text(GOOD.replace("op: norm", "op: other").replace("order: 1,", "order: 9,"))
    Path("norm.yaml").write_text(GOOD.replace("order: 1,", "order: 10,"))
    assert list(load_manifests(tmp_path)) == ["other", "norm"]


def test_all_kinds_of_errors_come_at_once() -> None:
    """What the reader refuses, wrong types, and what needs two places: nobody has to run it three times."""
    text = (
        GOOD.replace("calls: 2", "calls: yes")
        .replace("rtol: 0.01", "rtol: 0.01\n  rtol: 0.02")
        .replace("calls: 90", "calls: 90\n    calls: 91")
        .replace("type: Single", "type: Simple")
        .replace("op: norm", "op: nrom")
    ) + GOOD[GOOD.index("  - id: big") : GOOD.index("  - id: small")].replace("S: 64", "S: 99999")
    Path("norm.yaml").write_text(text)
    with pytest.raises(UserError) as caught:
        load_manifest(Path("norm.yaml"))
    assert str(caught.value).splitlines() == [
        "norm.yaml:1: `op` is nrom and the file is norm.yaml; give both one name.",
        "norm.yaml:2: `row.type` is \"Simple\" and must be 'Single' or 'Fused'.",
        "norm.yaml:6: key `rtol` stands here a second time (first on line 5); keep one.",
        "norm.yaml:13: key `calls` stands here a second time (first on line 12); keep one.",
        "norm.yaml:25: `yes` means different things to different YAML readers; write true, false or a plain decimal "
        "number, or put text in quotes.",
        "norm.yaml:43: `cases[big].rehearsal.S` is 99999, larger than the case's 32760; make it smaller.",
        "norm.yaml:43: `cases[big].rehearsal` has 153598464 elements; make it at most 2097152, it runs on laptops.",
    ]


def test_a_hundred_errors_are_said_and_the_rest_counted() -> None:
    with pytest.raises(UserError) as caught:
        manifest(GOOD + "".join(f"unknown{number}: 1\n" for number in range(150)))
    lines = str(caught.value).splitlines()
    assert len(lines) == 101
    assert lines[0].endswith(f"`unknown0` is not a known key; {lines[0].partition('key; ')[2]}")
    assert lines[100].endswith(": and 50 more errors; mend these first.")


def test_what_needs_two_places_is_said_beside_a_case_that_cannot_be_read() -> None:
    text = GOOD.replace("calls: 2", "calls: two").replace("rehearsal: {B: 1, S: 64", "rehearsal: {B: 9, S: 64")
    Path("norm.yaml").write_text(text)
    draft = read_manifest(Path("norm.yaml"))
    assert draft.manifest is None
    assert [case.id for _, case in draft.cases] == ["big"]
    assert draft.sentences(_op(id="rms")) == [
        "norm.yaml:1: `op` is norm and the op calls itself rms; give both one id.",
        "norm.yaml:18: `cases[big].rehearsal.B` is 9, larger than the case's 1; make it smaller.",
        "norm.yaml:19: case big: rms has no context `residual_add`; choose from none.",
        'norm.yaml:23: `cases[small].calls` is "two" and must be a whole number.',
    ]


def test_deciding_models_are_not_judged_by_cases_that_cannot_be_read() -> None:
    text = GOOD.replace("calls: 90", "calls: many").replace("deciding_models: [wan]", "deciding_models: [wan, qwen]")
    with pytest.raises(UserError) as caught:
        manifest(text)
    assert str(caught.value).splitlines() == [
        "norm.yaml:6: deciding model `qwen` has no case; add one, or choose from flux.",
        'norm.yaml:11: `cases[big].calls` is "many" and must be a whole number.',
    ]


def test_one_broken_manifest_leaves_the_others_readable() -> None:
    Path("norm.yaml").write_text(GOOD)
    Path("other.yaml").write_text("op: other\n")
    good, problems = readable_manifests(Path())
    assert list(good) == ["norm"]
    assert problems
    assert all(line.startswith("other.yaml:1: ") for problem in problems for line in problem.splitlines())


def _op(**changes: Any) -> Op:
    def check(case: Case) -> str | None:
        return f"D={case.dims['D']} is not a multiple of 128" if case.dims["D"] % 128 else None

    def unused(*args: Any) -> Any:
        raise AssertionError

    fields: dict[str, Any] = {
        "id": "norm",
        "dims": (("T", "D"), ("B", "S", "D")),
        "params": {"eps": float},
        "native": unused,
        "fake": unused,
        "inputs": unused,
        "bytes_moved": unused,
        "check": check,
    }
    return Op(**(fields | changes))


def test_check_against_op_finds_what_only_the_op_knows() -> None:
    assert (
        check_against_op(manifest(changed("D: 64", "D: 128").replace("    contexts: [residual_add]\n", "")), _op())
        == []
    )
    assert check_against_op(manifest(), _op()) == [
        "norm.yaml:19: case big: norm has no context `residual_add`; choose from none.",
        "norm.yaml:30: case small: `rehearsal` is impossible: D=64 is not a multiple of 128; correct it.",
    ]
    text = GOOD.replace("{eps: 1e-6}", "{eps: 1, groups: 32}", 1).replace("{eps: 1e-6}", "{}").replace("S:", "R:")
    assert check_against_op(manifest(text), _op(id="rms", params={"eps": float, "mode": str})) == [
        "norm.yaml:1: `op` is norm and the op calls itself rms; give both one id.",
        "norm.yaml:12: case big: dims (B, R, D) are not what rms takes; write (T, D) or (B, S, D).",
        "norm.yaml:14: case big: `params.eps` is 1 of type int; write a value of type float.",
        "norm.yaml:14: case big: `params.mode` is missing; add it, it is of type str.",
        "norm.yaml:14: case big: rms takes no `groups`; remove it; it takes eps, mode.",
        "norm.yaml:19: case big: rms has no context `residual_add`; choose from none.",
        "norm.yaml:24: case small: dims (B, R, D) are not what rms takes; write (T, D) or (B, S, D).",
        "norm.yaml:25: case small: `params.eps` is missing; add it, it is of type float.",
        "norm.yaml:25: case small: `params.mode` is missing; add it, it is of type str.",
    ]  # fmt: skip


identifiers = st.from_regex(r"[a-z0-9][a-z0-9_.+-]{0,12}", fullmatch=True)
words = st.text(st.characters(exclude_categories=("Cc", "Cs")), min_size=10, max_size=40)
params = st.dictionaries(
    st.sampled_from(["eps", "groups", "mode"]),
    st.one_of(st.booleans(), st.integers(-99, 99), st.floats(allow_nan=False, allow_infinity=False), words),
)


@st.composite
def manifests(draw: st.DrawFn) -> dict[str, Any]:
    cases = []
    ids = draw(st.lists(identifiers, min_size=1, max_size=3, unique=True))
    for case_id in ids:
        rehearsal = {name: draw(st.integers(1, 8)) for name in ("N", "C", "H", "W")}
        dims = {name: size * draw(st.integers(1, 1000)) for name, size in rehearsal.items()}
        cases.append(
            {
                "id": case_id,
                "model": "a-model",
                "dims": dims,
                "params": draw(params),
                "dtype": draw(st.sampled_from(list(Dtype))).value,
                "layout": draw(st.sampled_from(list(Layout))).value,
                "calls": draw(st.integers(1, 1000)),
                "step": f"step of {case_id}",
                "source": draw(words),
                "confidence": draw(st.sampled_from([c for c in Confidence if c is not Confidence.MEMORY])).value,
                "formula": {"C": f"{dims['C']} * 1"},
                "rehearsal": rehearsal,
                "contexts": draw(st.lists(identifiers, max_size=2, unique=True)),
            }
        )
    return {
        "op": "norm",
        "row": {"title": draw(words), "type": "Fused", "order": 3, "triton_ref": draw(words), "cuda_ref": "—"},
        "tolerance": {"atol": draw(st.floats(0, 1)), "rtol": draw(st.floats(0, 1))},
        "deciding_models": ["a-model"],
        "cases": cases,
    }


class _Quoting(yaml.SafeDumper):
    """Writes text in double quotes, so that no reader takes it for a number."""


_Quoting.add_representer(str, lambda dumper, value: dumper.represent_scalar("tag:yaml.org,2002:str", value, style='"'))


@given(manifests())
def test_round_trip(data: dict[str, Any]) -> None:
    written = yaml.dump(data, Dumper=_Quoting, allow_unicode=True, sort_keys=False)
    assert manifest(written).model_dump(mode="json") == data


@given(st.binary(max_size=80), st.integers(0, len(GOOD)), st.integers(0, 40))
def test_a_damaged_manifest_raises_nothing_but_user_errors(noise: bytes, start: int, cut: int) -> None:
    raw = GOOD.encode()
    Path("norm.yaml").write_bytes(raw[:start] + noise + raw[start + cut :])
    lines: list[str] = []
    try:
        load_manifest(Path("norm.yaml"))
    except UserError as error:
        lines = str(error).splitlines()
    assert all(line.startswith("norm.yaml:") and line.endswith((".", "?")) for line in lines)


@pytest.mark.parametrize("op", OPS)
def test_shipped_manifest_fits_its_op(op: str) -> None:
    of = load_manifest(SHAPES / f"{op}.yaml")
    assert check_against_op(of, importlib.import_module(f"candidates.{op}.op").OP) == []


@pytest.mark.parametrize("op", OPS)
def test_shipped_twins_are_small_and_few(op: str) -> None:
    """A laptop compiles each distinct twin: 20 of them are minutes."""
    cases = load_manifest(SHAPES / f"{op}.yaml").cases
    assert max(case.rehearsed().numel for case in cases) <= 200_000 < MAX_REHEARSAL_NUMEL
    assert len({case.rehearsed().content for case in cases}) <= 16
    assert {case.layout for case in cases} == {case.rehearsed().layout for case in cases}


@pytest.mark.parametrize("op", OPS)
def test_shipped_manifest_has_a_case_beyond_32_bit_offsets(op: str) -> None:
    cases = load_manifest(SHAPES / f"{op}.yaml").cases
    # no server reduces so much at once over several ranks: it would not fit in the peers' buffers
    expected = ["canary"] if all(case.ranks == 1 for case in cases) else []
    assert [case.model for case in cases if case.numel > 2**31] == expected


def _calls_per_step(op: str) -> dict[tuple[str, str], int]:
    of = load_manifest(SHAPES / f"{op}.yaml")
    return {key: sum(case.calls for case in cases) for key, cases in of.steps().items()}


def test_calls_per_step_are_the_models() -> None:
    """Totals as counted by hooks on the models."""
    groupnorm, rmsnorm = _calls_per_step("groupnorm_silu"), _calls_per_step("rmsnorm")
    assert groupnorm["hunyuanvideo-vae", "decode of one 4x32x32 latent tile"] == 29
    assert groupnorm["hunyuanvideo-vae-17f", "decode of a 17-frame 256x256 tile"] == 29
    assert groupnorm["hunyuanvideo-vae-17f-nchw", "decode of a 17-frame 256x256 tile, contiguous"] == 29
    assert groupnorm["flux.1-vae", "decode of 1024x1024"] == 29
    assert rmsnorm["wan2.1-t2v-1.3b", "denoise step, 832x480, 81 frames"] == 120
    assert rmsnorm["wan2.1-t2v-14b", "denoise step, 1280x720, 81 frames"] == 160
    assert rmsnorm["flux.1-dev", "denoise step, 1024x1024, 512 text tokens"] == 152
    assert rmsnorm["qwen-image", "denoise step, 1024x1024, 128 text tokens"] == 240
    assert rmsnorm["hunyuanvideo", "denoise step, 848x480, 65 frames, 45 text tokens"] == 160
    assert rmsnorm["qwen3-omni-thinker", "decode of one token, one sequence"] == 193
    assert rmsnorm["qwen3-omni-thinker", "prefill of 2048 tokens"] == 193


@pytest.mark.parametrize(
    ("op", "wanted"),
    [
        ("groupnorm_silu", {(1, 128, 20, 256, 256), (1, 512, 8, 45, 80), (1, 512, 16, 90, 160), (1, 256, 17, 256, 256),
                            (1, 512, 5, 32, 32)}),
        ("rmsnorm", {(98304, 128), (4096, 128), (4096, 3072), (32760, 1536), (75600, 5120)}),
    ],
)  # fmt: skip
def test_shapes_measured_before_are_there_contiguous(op: str, wanted: set[tuple[int, ...]]) -> None:
    cases = [case for case in load_manifest(SHAPES / f"{op}.yaml").cases if case.layout is Layout.CONTIGUOUS]
    shapes = {case.shape for case in cases} | {(math.prod(case.shape[:-1]), case.shape[-1]) for case in cases}
    assert wanted <= shapes


def test_json_schema_describes_the_shipped_files() -> None:
    schema = json_schema()
    assert schema["$schema"].startswith("https://json-schema.org/")
    assert schema["additionalProperties"] is False
    assert set(schema["required"]) == {"op", "row", "tolerance", "deciding_models", "cases"}
    case = schema["$defs"]["Case"]
    assert case["properties"]["source"]["description"] == "Where the dims come from: file, PR or formula."
    assert all("description" in field for field in case["properties"].values())
    assert schema["$defs"]["Confidence"]["enum"] == [str(confidence) for confidence in Confidence]
    used = {key for op in OPS for item in load_manifest(SHAPES / f"{op}.yaml").cases for key in item.model_fields_set}
    assert used <= set(case["properties"])
    assert get_args(Manifest.model_fields["cases"].annotation)[0] is Case


def test_a_case_of_one_rank_is_written_as_before_there_were_ranks() -> None:
    alone = load_manifest(SHAPES / "groupnorm_silu.yaml").cases[0]
    assert "ranks" not in alone.model_dump(mode="json")
    assert "ranks" not in alone.content
    pair = alone.model_copy(update={"ranks": 2})
    assert pair.model_dump(mode="json") == {**alone.model_dump(mode="json"), "ranks": 2}
    assert pair.content == f"{alone.content};ranks=2"
    assert pair.rehearsed().ranks == 2
