// Q2_0: planes 2-bit (8 bytes a group) and scale (f16 for each 2 groups). A weight is scale * (q - 1).
#pragma once
#include "planes.cuh"

struct Q2_0 {
    static constexpr int SUB = 32;
    static constexpr bool SHARES_SUPERS = false;
    static constexpr bool SIGNED = true;
    struct Raw {
        uint2 q;
        uint16_t d;
    };
    const uint2* quants;
    const uint16_t* scales;

    __device__ __forceinline__ Q2_0(const uint8_t* w, size_t n_groups)
        : quants((const uint2*)w), scales((const uint16_t*)(w + plane_bytes(n_groups, 8))) {}
    __device__ __forceinline__ Raw load(size_t group) const { return {__ldg(quants + group), __ldg(scales + group / 2)}; }
    DEVICE void words(const Raw& raw, int (&v)[8]) {
        pairs(raw.q, v);
#pragma unroll
        for (int j = 0; j < 8; j++) v[j] = minus_bytes(v[j], 0x01010101);
    }
    DEVICE float2 scale(const Raw& raw, int) { return make_float2(half_at(raw.d), 0.0f); }
};
