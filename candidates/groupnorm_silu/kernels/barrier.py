"""A barrier among programs of one launch, and tiles kept in registers across it."""

import triton
import triton.language as tl


@triton.jit
def read_word(word_ptr):
    """The barrier's word, for `wait_for_all`. May be read early: its top bit cannot flip before the reader arrives."""
    return tl.load(word_ptr, cache_modifier=".cg")


@triton.jit
def wait_for_all(word_ptr, before, participants, leader):
    """Waits for all `participants` programs that share the word; `leader` is true in exactly one of them.

    Everyone adds one, the leader adds what makes the sum 2^31: the top bit flips when all are there and the others are
    back at zero, so the word needs no reset (the scheme of CUDA's cooperative groups). One thread of a program waits.
    The programs must run at the same time: launch cooperatively.
    """
    step = tl.where(leader, -2147483648 - (participants - 1), 1).to(tl.int32)
    tl.debug_barrier()
    tl.inline_asm_elementwise(
        """
        {
        .reg .pred others, waiting;
        .reg .u32 thread, now;
        mov.u32 thread, %tid.x;
        setp.ne.u32 others, thread, 0;
        @others bra THROUGH;
        red.release.gpu.global.add.u32 [$1], $3;
        AGAIN:
        ld.acquire.gpu.global.u32 now, [$1];
        xor.b32 now, now, $2;
        setp.ge.s32 waiting, now, 0;
        @waiting bra AGAIN;
        THROUGH:
        mov.u32 $0, 0;
        }
        """,
        "=r,l,r,r",
        [word_ptr.to(tl.int64), before, step],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
    tl.debug_barrier()


@triton.jit
def held(x, zero, ASM: tl.constexpr):
    """x itself, for a `zero` that the compiler cannot know to be zero.

    x was widened to fp32 before the barrier; without this the compiler keeps the wide copy, in twice the registers.
    """
    if ASM and x.dtype.primitive_bitwidth == 16:
        x = tl.inline_asm_elementwise(
            "xor.b32 $0, $1, $2;", "=r,r,r,r", [x, zero], dtype=x.dtype, is_pure=False, pack=2
        )
    return x
