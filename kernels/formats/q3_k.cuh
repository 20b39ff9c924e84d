// Q3_K: planes 2-bit (8 bytes a group), 1-bit (4 bytes; the third bit), scales (2 signed bytes a group, one for each 16
// weights) and d (f16 a superblock). A weight is d * scale * (q - 4).
#pragma once
#include "planes.cuh"

struct Q3_K {
    static constexpr int SUB = 16;
    static constexpr bool SHARES_SUPERS = true;
    static constexpr bool SIGNED = true;
    struct Raw {
        uint2 q;
        uint32_t high;
        uint16_t scales, d;
    };
    const uint2* quants;
    const uint32_t* high;
    const uint16_t *scales, *supers;

    __device__ __forceinline__ Q3_K(const uint8_t* w, size_t n_groups)
        : quants((const uint2*)w),
          high((const uint32_t*)(w + plane_bytes(n_groups, 8))),
          scales((const uint16_t*)(w + plane_bytes(n_groups, 8) + plane_bytes(n_groups, 4))),
          supers((const uint16_t*)(w + plane_bytes(n_groups, 8) + plane_bytes(n_groups, 4) + plane_bytes(n_groups, 2))) {}
    __device__ __forceinline__ uint32_t super(size_t superblock) const { return __ldg(supers + superblock); }
    __device__ __forceinline__ Raw load(size_t group, uint32_t super) const {
        return {__ldg(quants + group), __ldg(high + group), __ldg(scales + group), (uint16_t)super};
    }
    __device__ __forceinline__ Raw load(size_t group) const { return load(group, super(group / 8)); }
    DEVICE void words(const Raw& raw, int (&v)[8]) {
        pairs(raw.q, v);
        add_third_bits(raw.high, v);
#pragma unroll
        for (int j = 0; j < 8; j++) v[j] = minus_bytes(v[j], 0x04040404);
    }
    DEVICE float2 scale(const Raw& raw, int half) {
        return make_float2(half_at(raw.d) * (int8_t)(raw.scales >> (8 * half)), 0.0f);
    }
};
