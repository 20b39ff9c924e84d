// IQ4_XS: planes 4-bit (16 bytes a group), scales (a signed byte a group) and d (f16 a superblock). A weight is
// d * scale * table[q].
#pragma once
#include "codebook.cuh"

struct IQ4_XS {
    static constexpr int SUB = 32;
    static constexpr bool SHARES_SUPERS = true;
    static constexpr bool SIGNED = true;
    struct Raw {
        uint4 q;
        uint16_t d;
        int8_t scale;
    };
    const uint4* quants;
    const int8_t* scales;
    const uint16_t* supers;

    __device__ __forceinline__ IQ4_XS(const uint8_t* w, size_t n_groups)
        : quants((const uint4*)w),
          scales((const int8_t*)(w + plane_bytes(n_groups, 16))),
          supers((const uint16_t*)(w + plane_bytes(n_groups, 16) + plane_bytes(n_groups, 1))) {}
    __device__ __forceinline__ uint32_t super(size_t superblock) const { return __ldg(supers + superblock); }
    __device__ __forceinline__ Raw load(size_t group, uint32_t super) const {
        return {__ldg(quants + group), (uint16_t)super, __ldg(scales + group)};
    }
    __device__ __forceinline__ Raw load(size_t group) const { return load(group, super(group / 8)); }
    DEVICE void words(const Raw& raw, int (&v)[8]) { look_up(raw.q, iq4_table(), v); }
    DEVICE float2 scale(const Raw& raw, int) { return make_float2(half_at(raw.d) * raw.scale, 0.0f); }
};
