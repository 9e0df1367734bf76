"""The inventory is what the declarations say, leads somewhere, and its examples run."""

from pathlib import Path

import pytest

from harness.inventory.facts import Domain, Facts, collect, domain_of, packages_of
from harness.inventory.page import render
from harness.schema.manifest import load_manifests
from harness.schema.vocabulary import Contract
from tests.builders import case
from tests.markdown import broken_links, parse

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "reports" / "inventory.md"


@pytest.fixture(scope="module")
def facts() -> Facts:
    return collect(ROOT)


def test_the_page_is_what_the_declarations_say(facts: Facts) -> None:
    assert PAGE.read_text(encoding="utf-8") == render(facts), "run `harness inventory`"


def test_its_links_lead_somewhere() -> None:
    assert len(parse(PAGE).links) > 100
    assert broken_links(PAGE) == []


def test_its_examples_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    examples = [text for language, text in parse(PAGE).fences if language == "python"]
    assert len(examples) == 5
    names: dict[str, object] = {}
    for example in examples:
        exec(compile(example, str(PAGE), "exec"), names)
    assert names["exact"]
    assert names["families"]
    assert any(reason is None for reason in names["reasons"].values())  # type: ignore[attr-defined]


def test_every_candidate_stands_on_it_with_its_contract(facts: Facts) -> None:
    ops = {op.op: op for op in facts.ops}
    assert list(ops) == list(load_manifests(ROOT / "shapes"))
    kernel = next(one for one in ops["layernorm"].candidates if one.id == "inhouse.triton_layernorm_exact")
    assert (kernel.contract, kernel.source) == (Contract.BIT_EXACT, "candidates/layernorm/inhouse.py")
    assert all((ROOT / one.source).is_file() for op in facts.ops for one in op.candidates)
    wired = {model for wiring in ops["groupnorm_silu"].wirings for model in wiring.models}
    assert "hunyuanvideo-vae" in wired
    text = PAGE.read_text(encoding="utf-8")
    assert "(../candidates/layernorm/inhouse.py) | triton | bit-exact |" in text


def test_every_provider_has_a_pin_but_this_repository(facts: Facts) -> None:
    unpinned = [one.id for one in facts.providers if not one.pins]
    assert unpinned == ["inhouse"]
    assert [package.version for package in packages_of("vllm")] == ["0.22.1"], "vllm-omni is another provider"


def test_every_case_has_a_domain() -> None:
    cases = [one for manifest in load_manifests(ROOT / "shapes").values() for one in manifest.cases]
    told = {domain_of(one) for one in cases}
    assert told == set(Domain)
    single = {one.step.split(",")[0].split(" ")[0] for one in cases if domain_of(one) is Domain.SINGLE}
    assert single == {"one"}, "a step that begins with a word the inventory does not know"
    assert domain_of(case()) is Domain.VAE
