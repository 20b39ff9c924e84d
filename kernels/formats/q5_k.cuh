// Q5_K: planes 4-bit (16 bytes a group), 1-bit (4 bytes) and header (16 bytes a superblock, as Q4_K). A weight is
// d * scale * q - dmin * minimum.
#pragma once
#include "planes.cuh"

#ifndef TAKES_STRIPS
#define TAKES_STRIPS  // has STRIP_HIGH, so that products of few rows take strips (strips.cuh)
#endif

struct Q5_K {
    static constexpr int STRIP_HIGH = 4;
    static constexpr int SUB = 32;
    static constexpr bool SHARES_SUPERS = false;
    static constexpr bool SIGNED = false;
    struct Raw {
        uint4 q, header;
        uint32_t high;
        int g;
    };
    const uint4* quants;
    const uint32_t* high;
    const uint4* headers;

    __device__ __forceinline__ Q5_K(const uint8_t* w, size_t n_groups)
        : quants((const uint4*)w),
          high((const uint32_t*)(w + plane_bytes(n_groups, 16))),
          headers((const uint4*)(w + plane_bytes(n_groups, 16) + plane_bytes(n_groups, 4))) {}
    __device__ __forceinline__ Raw load(size_t group) const {
        return {__ldg(quants + group), __ldg(headers + group / 8), __ldg(high + group), (int)(group % 8)};
    }
    DEVICE void words(const Raw& raw, int (&v)[8]) {
        nibbles(raw.q, v);
        add_fifth_bits(raw.high, v);
    }
    DEVICE float2 scale(const Raw& raw, int) {
        float2 d = half2_at(raw.header.x);
        int2 sm = k_scale_min(raw.header, raw.g);
        return make_float2(d.x * sm.x, -d.y * sm.y);
    }
};
