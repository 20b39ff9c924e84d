// Q4_K: planes 4-bit (16 bytes a group) and header (16 bytes a superblock: d and dmin as f16, then the file's 12 bytes of
// 6-bit scales and minima). A weight is d * scale * q - dmin * minimum.
#pragma once
#include "planes.cuh"

#ifndef TAKES_STRIPS
#define TAKES_STRIPS  // has STRIP_HIGH, so that products of few rows take strips (strips.cuh)
#endif

struct Q4_K {
    static constexpr int STRIP_HIGH = 0;
    static constexpr int SUB = 32;
    static constexpr bool SHARES_SUPERS = false;
    static constexpr bool SIGNED = false;
    struct Raw {
        uint4 q, header;
        int g;
    };
    const uint4 *quants, *headers;

    __device__ __forceinline__ Q4_K(const uint8_t* w, size_t n_groups)
        : quants((const uint4*)w), headers((const uint4*)(w + plane_bytes(n_groups, 16))) {}
    __device__ __forceinline__ Raw load(size_t group) const {
        return {__ldg(quants + group), __ldg(headers + group / 8), (int)(group % 8)};
    }
    DEVICE void words(const Raw& raw, int (&v)[8]) { nibbles(raw.q, v); }
    DEVICE float2 scale(const Raw& raw, int) {
        float2 d = half2_at(raw.header.x);
        int2 sm = k_scale_min(raw.header, raw.g);
        return make_float2(d.x * sm.x, -d.y * sm.y);
    }
};
