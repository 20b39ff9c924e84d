// Half-precision products of tensor cores, as the attention kernels use them.
//
// Rows of f16 numbers lie in shared memory; products add in f32. An operand of f32 numbers is split into two of f16, value and rest,
// so that two products keep about 21 bits of it. The fragments are those of mma.m16n8k16: a lane has rows lane / 4 and lane / 4 + 8.
#pragma once
#include "async_copy.cuh"

DEVICE void load_matrices(uint32_t (&r)[4], const __half* p) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_at(p)));
}
DEVICE void load_matrices_transposed(uint32_t (&r)[4], const __half* p) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_at(p)));
}
DEVICE void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Two numbers as f16 pairs: rounded, and what rounding left.
DEVICE void split(float x, float y, uint32_t& value, uint32_t& rest) {
    __half2 high = __floats2half2_rn(x, y);
    float2 back = __half22float2(high);
    __half2 low = __floats2half2_rn(x - back.x, y - back.y);
    value = *(uint32_t*)&high;
    rest = *(uint32_t*)&low;
}

// A number as f16 can have it: finite ones beyond its range are the largest there.
DEVICE float bounded_half(float x) { return fabsf(x) > 65504.0f && fabsf(x) < INFINITY ? copysignf(65504.0f, x) : x; }

// As `split`, of numbers that may be beyond f16: the rest has what is beyond, up to twice the range of f16 and there with 11 bits.
DEVICE void split_beyond(float x, float y, uint32_t& value, uint32_t& rest) {
    __half2 high = __floats2half2_rn(bounded_half(x), bounded_half(y));
    float2 back = __half22float2(high);
    __half2 low = __floats2half2_rn(bounded_half(x - back.x), bounded_half(y - back.y));
    value = *(uint32_t*)&high;
    rest = *(uint32_t*)&low;
}

// Values d and d + 1 of a row of `dim`; d is even, and what lies beyond the row is zero.
DEVICE float2 load_pair(const float* row, int d, int dim) {
    if (d + 1 < dim && dim % 2 == 0) return *(const float2*)(row + d);
    return make_float2(d < dim ? row[d] : 0.0f, d + 1 < dim ? row[d + 1] : 0.0f);
}
DEVICE void store_pair(float* row, int d, int dim, float x, float y) {
    if (d + 1 < dim && dim % 2 == 0) {
        *(float2*)(row + d) = make_float2(x, y);
    } else {
        if (d < dim) row[d] = x;
        if (d + 1 < dim) row[d + 1] = y;
    }
}

DEVICE float row_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(FULL_WARP, x, 1));
    return fmaxf(x, __shfl_xor_sync(FULL_WARP, x, 2));
}
DEVICE float row_sum(float x) {
    x += __shfl_xor_sync(FULL_WARP, x, 1);
    return x + __shfl_xor_sync(FULL_WARP, x, 2);
}
