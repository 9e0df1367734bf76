"""What a measuring process is told by its surroundings."""

import pytest

from harness import processes


def test_rehearsal_is_spared_threads_and_probes_unless_somebody_wants_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_NUM_THREADS", "TORCHINDUCTOR_VEC_ISA_OK", "TORCHINDUCTOR_COMPILE_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    spared = {"TORCHINDUCTOR_VEC_ISA_OK": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1", "TRITON_INTERPRET": "1"}
    assert processes._rehearsal_environment() == {"OMP_NUM_THREADS": "1", **spared}
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    assert processes._rehearsal_environment() == {"OMP_NUM_THREADS": "8", **spared}
