// Q4_1: planes 4-bit (16 bytes a group) and (scale, min) (two f16). A weight is scale * q + min.
#pragma once
#include "planes.cuh"

struct Q4_1 {
    static constexpr int SUB = 32;
    static constexpr bool SHARES_SUPERS = false;
    static constexpr bool SIGNED = false;
    struct Raw {
        uint4 q;
        uint32_t dm;
    };
    const uint4* quants;
    const uint32_t* scales;

    __device__ __forceinline__ Q4_1(const uint8_t* w, size_t n_groups)
        : quants((const uint4*)w), scales((const uint32_t*)(w + plane_bytes(n_groups, 16))) {}
    __device__ __forceinline__ Raw load(size_t group) const { return {__ldg(quants + group), __ldg(scales + group)}; }
    DEVICE void words(const Raw& raw, int (&v)[8]) { nibbles(raw.q, v); }
    DEVICE float2 scale(const Raw& raw, int) { return half2_at(raw.dm); }
};
