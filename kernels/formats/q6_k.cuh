// Q6_K: planes 4-bit (16 bytes a group), 2-bit (8 bytes; the upper bits), scales (2 signed bytes a group, one for each 16
// weights) and d (f16 a superblock). A weight is d * scale * (q - 32).
#pragma once
#include "planes.cuh"

#ifndef TAKES_STRIPS
#define TAKES_STRIPS  // has STRIP_HIGH, so that products of few rows take strips (strips.cuh)
#endif

struct Q6_K {
    static constexpr int STRIP_HIGH = 8;
    static constexpr int SUB = 16;
    static constexpr bool SHARES_SUPERS = true;
    static constexpr bool SIGNED = true;
    struct Raw {
        uint4 q;
        uint2 high;
        uint16_t scales, d;
    };
    const uint4* quants;
    const uint2* high;
    const uint16_t *scales, *supers;

    __device__ __forceinline__ Q6_K(const uint8_t* w, size_t n_groups)
        : quants((const uint4*)w),
          high((const uint2*)(w + plane_bytes(n_groups, 16))),
          scales((const uint16_t*)(w + plane_bytes(n_groups, 16) + plane_bytes(n_groups, 8))),
          supers((const uint16_t*)(w + plane_bytes(n_groups, 16) + plane_bytes(n_groups, 8) + plane_bytes(n_groups, 2))) {}
    __device__ __forceinline__ uint32_t super(size_t superblock) const { return __ldg(supers + superblock); }
    __device__ __forceinline__ Raw load(size_t group, uint32_t super) const {
        return {__ldg(quants + group), __ldg(high + group), __ldg(scales + group), (uint16_t)super};
    }
    __device__ __forceinline__ Raw load(size_t group) const { return load(group, super(group / 8)); }
    DEVICE void words(const Raw& raw, int (&v)[8]) {
        nibbles(raw.q, v);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            uint32_t high = j < 4 ? raw.high.x : raw.high.y;
            int k = j % 4;
            v[j] |= (k <= 2 ? high << (4 - 2 * k) : high >> 2) & 0x30303030;
            v[j] = minus_bytes(v[j], 0x20202020);
        }
    }
    DEVICE float2 scale(const Raw& raw, int half) {
        return make_float2(half_at(raw.d) * (int8_t)(raw.scales >> (8 * half)), 0.0f);
    }
};
