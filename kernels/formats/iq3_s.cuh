// IQ3_S: planes 4-bit (16 bytes a group: 3 bits and the sign), scales (a byte a group, odd) and d (f16 a superblock). A weight is
// d * scale * (2 q - 15). The grid of the file was looked up when the planes were written.
#pragma once
#include "planes.cuh"

struct IQ3_S {
    static constexpr int SUB = 32;
    static constexpr bool SHARES_SUPERS = true;
    static constexpr bool SIGNED = true;
    struct Raw {
        uint4 q;
        uint16_t d;
        uint8_t scale;
    };
    const uint4* quants;
    const uint8_t* scales;
    const uint16_t* supers;

    __device__ __forceinline__ IQ3_S(const uint8_t* w, size_t n_groups)
        : quants((const uint4*)w),
          scales(w + plane_bytes(n_groups, 16)),
          supers((const uint16_t*)(w + plane_bytes(n_groups, 16) + plane_bytes(n_groups, 1))) {}
    __device__ __forceinline__ uint32_t super(size_t superblock) const { return __ldg(supers + superblock); }
    __device__ __forceinline__ Raw load(size_t group, uint32_t super) const {
        return {__ldg(quants + group), (uint16_t)super, __ldg(scales + group)};
    }
    __device__ __forceinline__ Raw load(size_t group) const { return load(group, super(group / 8)); }
    DEVICE void words(const Raw& raw, int (&v)[8]) {
        nibbles(raw.q, v);
#pragma unroll
        for (int j = 0; j < 8; j++) v[j] = minus_bytes(v[j] << 1, 0x0f0f0f0f);
    }
    DEVICE float2 scale(const Raw& raw, int) { return make_float2(half_at(raw.d) * raw.scale, 0.0f); }
};
