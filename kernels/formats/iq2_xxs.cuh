// IQ2_XXS, IQ2_XS, IQ2_S: planes 2-bit (8 bytes a group: the magnitude), 1-bit (4 bytes; the sign), scales (a byte a group: the low half for
// the first 16 weights, the high half for the last) and d (f16 a superblock). A weight is d / 8 * (2 scale + 1) * table[q]. The
// grid of the file was looked up when the planes were written.
#pragma once
#include "planes.cuh"

struct IQ2_XXS {
    static constexpr int SUB = 16;
    static constexpr bool SHARES_SUPERS = true;
    static constexpr bool SIGNED = true;
    struct Raw {
        uint2 q;
        uint32_t high;
        uint16_t d;
        uint8_t scales;
    };
    const uint2* quants;
    const uint32_t* high;
    const uint8_t* scales;
    const uint16_t* supers;

    __device__ __forceinline__ IQ2_XXS(const uint8_t* w, size_t n_groups)
        : quants((const uint2*)w),
          high((const uint32_t*)(w + plane_bytes(n_groups, 8))),
          scales(w + plane_bytes(n_groups, 8) + plane_bytes(n_groups, 4)),
          supers((const uint16_t*)(w + plane_bytes(n_groups, 8) + plane_bytes(n_groups, 4) + plane_bytes(n_groups, 1))) {}
    __device__ __forceinline__ uint32_t super(size_t superblock) const { return __ldg(supers + superblock); }
    __device__ __forceinline__ Raw load(size_t group, uint32_t super) const {
        return {__ldg(quants + group), __ldg(high + group), (uint16_t)super, __ldg(scales + group)};
    }
    __device__ __forceinline__ Raw load(size_t group) const { return load(group, super(group / 8)); }
    DEVICE void words(const Raw& raw, int (&v)[8]) {
        pairs(raw.q, v);
        add_third_bits(raw.high, v);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            // Four selectors of a byte permutation, from four bytes: 8, 25, 43 and their negatives.
            uint32_t two = v[j] | (uint32_t)v[j] >> 4;
            v[j] = __byte_perm(0x002b1908u, 0x00d5e7f8u, (two & 0xffu) | (two >> 8 & 0xff00u));
        }
    }
    DEVICE float2 scale(const Raw& raw, int half) {
        int odd = 2 * (raw.scales >> (4 * half) & 15) + 1;
        return make_float2(0.125f * half_at(raw.d) * odd, 0.0f);
    }
};
