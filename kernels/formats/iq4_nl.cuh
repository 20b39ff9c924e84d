// IQ4_NL: planes 4-bit (16 bytes a group) and scale (f16). A weight is scale * table[q].
#pragma once
#include "codebook.cuh"

struct IQ4_NL {
    static constexpr int SUB = 32;
    static constexpr bool SHARES_SUPERS = false;
    static constexpr bool SIGNED = true;
    struct Raw {
        uint4 q;
        uint16_t d;
    };
    const uint4* quants;
    const uint16_t* scales;

    __device__ __forceinline__ IQ4_NL(const uint8_t* w, size_t n_groups)
        : quants((const uint4*)w), scales((const uint16_t*)(w + plane_bytes(n_groups, 16))) {}
    __device__ __forceinline__ Raw load(size_t group) const { return {__ldg(quants + group), __ldg(scales + group)}; }
    DEVICE void words(const Raw& raw, int (&v)[8]) { look_up(raw.q, iq4_table(), v); }
    DEVICE float2 scale(const Raw& raw, int) { return make_float2(half_at(raw.d), 0.0f); }
};
