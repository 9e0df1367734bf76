"""libyaml's events and pyyaml's own give the same document, or both refuse it."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import UserError
from harness.paths import package_root
from harness.schema.strict_yaml import _FAST, _TAKEN_BY_LIBYAML_ALONE, _Reader

PATH = Path("x.yaml")


def read(text: str, loader: Any) -> Any:
    """Data, lines and what was noted; None where it is refused."""
    try:
        found = _Reader(PATH, text, loader).document()
    except UserError:
        return None
    return found.data, found.lines, found.refused


def test_the_fast_loader_is_libyaml_where_there_is_one() -> None:
    assert issubclass(_FAST, getattr(yaml, "CSafeLoader", yaml.SafeLoader))


@pytest.mark.parametrize("file", sorted((package_root() / "shapes").glob("*.yaml"))[:4], ids=lambda file: file.stem)
def test_manifests_read_alike(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    found = read(text, _FAST)
    assert found is not None
    assert found == read(text, yaml.SafeLoader)


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="ab1:- \n\"'#[]{},|>.~\té", max_size=30))
def test_any_text_reads_alike_or_is_refused(text: str) -> None:
    fast, slow = read(text, _FAST), read(text, yaml.SafeLoader)
    if fast is not None and slow is not None:
        assert fast == slow
    elif fast is not None and not _TAKEN_BY_LIBYAML_ALONE.search(text):
        pytest.fail(f"libyaml takes {text!r}, which pyyaml refuses")
