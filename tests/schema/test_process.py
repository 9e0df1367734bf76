"""Lines of the end-to-end store in older formats."""

import json

import pytest
from pydantic import ValidationError

from harness.schema.process import ProcessRecord
from tests.e2e_builders import process


def test_what_the_ceilings_arm_moved_itself_is_read_from_old_lines_alone() -> None:
    of = process({"inhouse.k": 3.0}, 0)
    written = json.loads(of.model_dump_json())
    for version in (1, 2):
        old = json.dumps(written | {"schema_version": version, "ceiling_bytes": 7})
        assert ProcessRecord.model_validate_json(old) == of.model_copy(update={"schema_version": version})
    with pytest.raises(ValidationError, match="ceiling_bytes"):
        ProcessRecord.model_validate_json(json.dumps(written | {"ceiling_bytes": 7}))
