"""What spares the suite most of its CPU time on two cores, as in a rehearsal (`harness.isolate`); before torch.

Tests compare torch with torch or with numpy; on small tensors a second thread only waits. Without the second setting
every process with a cold cache compiles 16 s of C++ to learn that the compiler knows AVX2.
"""

import os

LEAN = {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_VEC_ISA_OK": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}


def be_lean() -> None:
    """Set them for this process and its children, where the person did not; call it before torch is imported."""
    for name, value in LEAN.items():
        os.environ.setdefault(name, value)
