"""Kernel names as reports print them."""

from harness.report.text import kernel_name


def test_template_and_call_arguments_are_dropped_and_the_functor_kept() -> None:
    name = (
        "void at::native::(anonymous namespace)::RowwiseMomentsCUDAKernel<c10::BFloat16>(long, c10::BFloat16, float*)"
    )
    assert kernel_name(name) == "at::native::RowwiseMomentsCUDAKernel"
    fill = (
        "void at::native::vectorized_elementwise_kernel<2, at::native::FillFunctor<long>, std::array<char*, 1ul> >(int)"
    )
    assert kernel_name(fill) == "at::native::vectorized_elementwise_kernel<FillFunctor>"
    assert kernel_name("triton_red_fused_native_group_norm_0") == "triton_red_fused_native_group_norm_0"
