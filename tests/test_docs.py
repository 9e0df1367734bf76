"""Every link leads somewhere, every command exists, generated pages are what their sources say."""

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.schema import reference
from tests.commands import make_targets, make_variables, verbs
from tests.markdown import broken_links, parse

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    file
    for pattern in ("*.md", "docs/*.md", "reports/*.md", "tests/evil/*.md", "tests/data/noise/*.md")
    for file in ROOT.glob(pattern)
)
GUIDES = [file for file in PAGES if file.parent in (ROOT, ROOT / "docs") and file.name != "schema.md"]
_HARNESS = re.compile(r"(?:^|[\s(`/])(?:harness|python3? -m harness) ([a-z][a-z0-9-]*)([^`\n|]*)")
_OPTION = re.compile(r"(?<!\S)(--[a-z][a-z-]*)")
_GIVEN = re.compile(r"([A-Z_]+)=")


def commands(file: Path) -> Iterator[str]:
    """Lines of shell blocks without comments and with continuations joined, and code spans."""
    page = parse(file)
    for language, text in page.fences:
        if language == "bash":
            joined = text.replace("\\\n", " ")
            yield from (re.sub(r"\s#.*", "", line).strip() for line in joined.splitlines() if line.strip())
    yield from page.spans


@pytest.mark.parametrize("file", PAGES, ids=lambda file: str(file.relative_to(ROOT)))
def test_links_lead_somewhere(file: Path) -> None:
    assert broken_links(file) == []


@pytest.mark.parametrize("file", GUIDES, ids=lambda file: str(file.relative_to(ROOT)))
def test_targets_and_their_variables_exist(file: Path) -> None:
    for command in commands(file):
        words = shlex.split(command) if command.count("'") % 2 == 0 else []
        called = words[next((n for n, word in enumerate(words) if not _GIVEN.match(word)), 0) :]
        if called[:1] == ["make"]:
            for word in called[1:]:
                given = _GIVEN.match(word)
                assert (given[1] in make_variables()) if given else (word in make_targets()), command


@pytest.mark.parametrize("file", GUIDES, ids=lambda file: str(file.relative_to(ROOT)))
def test_verbs_and_their_options_exist(file: Path) -> None:
    known = verbs()
    for command in commands(file):
        for verb, rest in _HARNESS.findall(command):
            assert verb in known, command
            assert set(_OPTION.findall(rest)) <= known[verb] | {"--help"}, command
        if command.startswith("make ") and (options := re.search(r'ARGS="([^"]*)"', command)):
            verb = command.split()[1]
            assert set(_OPTION.findall(options[1])) <= known[verb], command


def test_every_verb_is_told() -> None:
    told = {verb for verb, _ in _HARNESS.findall((ROOT / "docs/commands.md").read_text())}
    assert set(verbs()) <= told


def test_every_page_is_in_the_index() -> None:
    listed = {(ROOT / "docs" / link).resolve() for link in parse(ROOT / "docs/README.md").links}
    pages = set((ROOT / "docs").glob("*.md")) - {ROOT / "docs/README.md"}
    assert pages <= listed


def test_the_readme_fits_on_a_screen_and_shows_a_report() -> None:
    readme = ROOT / "README.md"
    assert len(readme.read_text().splitlines()) <= 65
    pictures = [link for link in parse(readme).links if link.endswith(".png")]
    assert pictures
    assert all((ROOT / picture).read_bytes().startswith(b"\x89PNG") for picture in pictures)


def test_the_schema_reference_is_what_the_models_say() -> None:
    assert (ROOT / "docs/schema.md").read_text(encoding="utf-8") == reference.markdown(), (
        "run `harness schema --markdown > docs/schema.md`"
    )


def test_the_figures_of_the_calibration_are_its_own() -> None:
    """What docs/trust.md says of the rule's errors stands in the report it is taken from."""
    report = (ROOT / "reports/calibration.md").read_text(encoding="utf-8")
    for said in (
        "| false WIN at a true 0.9 %, worst noise model | ≤ 3 % | 0.90 % (Gaussian 2 %) | yes |",
        "| false NO_WIN at a true 1.1 %, worst noise model | ≤ 3 % | 0.60 % (Gaussian 2 %) | yes |",
        "| NO_WIN at 0 %, mean | ≥ 85 % | 90.4 % | yes |",
        "| WIN at 2 %, mean | ≥ 90 % | 91.7 % | yes |",
        "0.7 / 0.4 / 98.8",
        "| 2.97 (Gaussian 0.2 %, compile lottery) | 7.95 (Gaussian 0.2 %, compile lottery) |",
        "| H200, one step of Wan 1.3B | 7 | 0.49 | 0.08 | +0.03 [-0.12, +0.17] | 0.15 |",
    ):
        assert said in report


def test_no_page_is_left_that_git_does_not_know() -> None:
    """Untracked pages would pass here and be missing for everybody else."""
    tracked = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if tracked.returncode:
        pytest.skip("not a git checkout")
    assert {str(file.relative_to(ROOT)) for file in PAGES} <= set(tracked.stdout.splitlines())
