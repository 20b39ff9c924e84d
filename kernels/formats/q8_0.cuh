// Q8_0: planes of the first and of the last 16 weights of each group (16 bytes each, signed), and scale (f16). A weight is
// scale * q. Two planes, because lanes that read 16 of every 32 bytes would touch each sector twice.
#pragma once
#include "planes.cuh"

#ifndef TAKES_BYTE_BANDS
#define TAKES_BYTE_BANDS  // products of many rows take bands (byte_bands.cuh)
#endif

struct Q8_0 {
    static constexpr bool ARE_BYTES = true;
    static constexpr int SUB = 32;
    static constexpr bool SHARES_SUPERS = false;
    static constexpr bool SIGNED = true;
    struct Raw {
        uint4 low, high;
        uint16_t d;
    };
    const uint4 *low, *high;
    const uint16_t* scales;

    __device__ __forceinline__ Q8_0(const uint8_t* w, size_t n_groups)
        : low((const uint4*)w),
          high((const uint4*)(w + plane_bytes(n_groups, 16))),
          scales((const uint16_t*)(w + 2 * plane_bytes(n_groups, 16))) {}
    __device__ __forceinline__ Raw load(size_t group) const {
        return {__ldg(low + group), __ldg(high + group), __ldg(scales + group)};
    }
    DEVICE void words(const Raw& raw, int (&v)[8]) {
        v[0] = raw.low.x, v[1] = raw.low.y, v[2] = raw.low.z, v[3] = raw.low.w;
        v[4] = raw.high.x, v[5] = raw.high.y, v[6] = raw.high.z, v[7] = raw.high.w;
    }
    DEVICE float2 scale(const Raw& raw, int) { return make_float2(half_at(raw.d), 0.0f); }
};
