"""Run by test_layernorm_exact.py: compiles the bit-exact LayerNorm kernel of some real shapes for sm_90."""

from candidates.layernorm import launch_exact
from tests.candidates.hopper import print_facts
from tests.candidates.hopper_layernorm import EPS, FP32, meta, modulation, residual

if __name__ == "__main__":
    print_facts(
        {
            "32760x1536": lambda: launch_exact.exact_layernorm(meta(1, 32760, 1536), None, None, EPS),
            "32760x1536 modulated": lambda: launch_exact.exact_modulated_layernorm(
                meta(1, 32760, 1536), *modulation(1536), EPS, True
            ),
            "32760x1536 affine": lambda: launch_exact.exact_layernorm(
                meta(1, 32760, 1536), meta(1536, dtype=FP32), meta(1536, dtype=FP32), EPS
            ),
            "27280x3072 fp32 per token": lambda: launch_exact.exact_modulated_layernorm(
                meta(1, 27280, 3072), *modulation(3072, FP32, 27280), EPS, False
            ),
            "75600x5120 fp32": lambda: launch_exact.exact_modulated_layernorm(
                meta(1, 75600, 5120), *modulation(5120, FP32), EPS, False
            ),
            "1024x2240 modulated": lambda: launch_exact.exact_modulated_layernorm(
                meta(1, 1024, 2240), *modulation(2240), EPS, True
            ),
            "4608x6144 modulated": lambda: launch_exact.exact_modulated_layernorm(
                meta(1, 4608, 6144), *modulation(6144), EPS, True
            ),
            "4096x3072 residual": lambda: launch_exact.exact_residual_modulated_layernorm(
                meta(1, 4096, 3072), *modulation(3072), EPS, True, *residual(4096, 3072)
            ),
            "2x4096x3072 modulated": lambda: launch_exact.exact_modulated_layernorm(
                meta(2, 4096, 3072), meta(2, 1, 3072), meta(2, 1, 3072), EPS, True
            ),
            "6x75600x5120 residual": lambda: launch_exact.exact_residual_modulated_layernorm(
                meta(6, 75600, 5120), meta(6, 1, 5120), meta(6, 1, 5120), EPS, True,
                meta(6, 75600, 5120), meta(6, 1, 5120),
            ),
        }
    )  # fmt: skip
