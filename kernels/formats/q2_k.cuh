// Q2_K: planes 2-bit (8 bytes a group), scales (2 bytes a group: scale in the low and minimum in the high nibble, one byte
// for each 16 weights) and (d, dmin) (two f16 a superblock). A weight is d * scale * q - dmin * minimum.
#pragma once
#include "planes.cuh"

struct Q2_K {
    static constexpr int SUB = 16;
    static constexpr bool SHARES_SUPERS = true;
    static constexpr bool SIGNED = false;
    struct Raw {
        uint2 q;
        uint32_t d;
        uint16_t scales;
    };
    const uint2* quants;
    const uint16_t* scales;
    const uint32_t* supers;

    __device__ __forceinline__ Q2_K(const uint8_t* w, size_t n_groups)
        : quants((const uint2*)w),
          scales((const uint16_t*)(w + plane_bytes(n_groups, 8))),
          supers((const uint32_t*)(w + plane_bytes(n_groups, 8) + plane_bytes(n_groups, 2))) {}
    __device__ __forceinline__ uint32_t super(size_t superblock) const { return __ldg(supers + superblock); }
    __device__ __forceinline__ Raw load(size_t group, uint32_t super) const {
        return {__ldg(quants + group), super, __ldg(scales + group)};
    }
    __device__ __forceinline__ Raw load(size_t group) const { return load(group, super(group / 8)); }
    DEVICE void words(const Raw& raw, int (&v)[8]) { pairs(raw.q, v); }
    DEVICE float2 scale(const Raw& raw, int half) {
        float2 d = half2_at(raw.d);
        int byte = raw.scales >> (8 * half);
        return make_float2(d.x * (byte & 15), -d.y * ((byte >> 4) & 15));
    }
};
