// MXFP4: planes 4-bit (16 bytes a group) and exponent (one byte). A weight is 2^(exponent - 128) * table[q]; the table has
// twice the values of the 4-bit floats, so that they are integers.
#pragma once
#include "codebook.cuh"

struct MXFP4 {
    static constexpr int SUB = 32;
    static constexpr bool SHARES_SUPERS = false;
    static constexpr bool SIGNED = true;
    struct Raw {
        uint4 q;
        uint8_t exponent;
    };
    const uint4* quants;
    const uint8_t* exponents;

    __device__ __forceinline__ MXFP4(const uint8_t* w, size_t n_groups)
        : quants((const uint4*)w), exponents(w + plane_bytes(n_groups, 16)) {}
    __device__ __forceinline__ Raw load(size_t group) const { return {__ldg(quants + group), __ldg(exponents + group)}; }
    DEVICE void words(const Raw& raw, int (&v)[8]) { look_up(raw.q, fp4_table(), v); }
    DEVICE float2 scale(const Raw& raw, int) {
        // The two least are subnormal.
        uint32_t e = raw.exponent, bits = e >= 2 ? (e - 1) << 23 : 0x00200000u << e;
        return make_float2(__uint_as_float(bits), 0.0f);
    }
};
