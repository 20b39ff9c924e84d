// NVFP4: planes 4-bit (16 bytes a group) and scales (2 bytes a group, one for each 16 weights: 8-bit floats without a sign, 4 bits of
// exponent). A weight is scale / 2 * table[q]; the table has twice the values of the 4-bit floats, so that they are integers.
#pragma once
#include "codebook.cuh"

struct NVFP4 {
    static constexpr int SUB = 16;
    static constexpr bool SHARES_SUPERS = false;
    static constexpr bool SIGNED = true;
    struct Raw {
        uint4 q;
        uint16_t scales;
    };
    const uint4* quants;
    const uint16_t* scales;

    __device__ __forceinline__ NVFP4(const uint8_t* w, size_t n_groups)
        : quants((const uint4*)w), scales((const uint16_t*)(w + plane_bytes(n_groups, 16))) {}
    __device__ __forceinline__ Raw load(size_t group) const { return {__ldg(quants + group), __ldg(scales + group)}; }
    DEVICE void words(const Raw& raw, int (&v)[8]) { look_up(raw.q, fp4_table(), v); }
    DEVICE float2 scale(const Raw& raw, int half) {
        // The exponent's bias is off by 120; the factor is half of 2^120.
        uint32_t bits = (raw.scales >> (8 * half) & 0xffu) << 20;
        return make_float2(__uint_as_float(bits) * __uint_as_float((119u + 127u) << 23), 0.0f);
    }
};
