"""sglang's kernels written in the CuTe DSL: the same package, and what that language needs beside it."""

from candidates._providers import sglang, unpacked
from harness.op import Provider
from harness.provision.packages import SGLANG


def _missing() -> str | None:
    return sglang.PROVIDER.missing() or unpacked.lacks_modules(SGLANG, "cutlass", "cuda", "tvm_ffi", "einops")


PROVIDER = Provider(sglang.PROVIDER.id, _missing, sglang.PROVIDER.version)
