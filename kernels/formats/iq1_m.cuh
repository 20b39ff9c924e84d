// IQ1_M, IQ1_S: planes 2-bit (8 bytes a group), scales (2 bytes a group, one for each 16 weights: the scale in three bits, then for each 8
// weights whether they are shifted down) and d (f16 a superblock). A weight is d / 8 * (2 scale + 1) * (8 q - 8 + 1), or minus
// 1 where it is shifted down. The grid of the file was looked up when the planes were written.
#pragma once
#include "planes.cuh"

struct IQ1_M {
    static constexpr int SUB = 16;
    static constexpr bool SHARES_SUPERS = true;
    static constexpr bool SIGNED = true;
    struct Raw {
        uint2 q;
        uint16_t scales, d;
    };
    const uint2* quants;
    const uint16_t *scales, *supers;

    __device__ __forceinline__ IQ1_M(const uint8_t* w, size_t n_groups)
        : quants((const uint2*)w),
          scales((const uint16_t*)(w + plane_bytes(n_groups, 8))),
          supers((const uint16_t*)(w + plane_bytes(n_groups, 8) + plane_bytes(n_groups, 2))) {}
    __device__ __forceinline__ uint32_t super(size_t superblock) const { return __ldg(supers + superblock); }
    __device__ __forceinline__ Raw load(size_t group, uint32_t super) const {
        return {__ldg(quants + group), __ldg(scales + group), (uint16_t)super};
    }
    __device__ __forceinline__ Raw load(size_t group) const { return load(group, super(group / 8)); }
    DEVICE void words(const Raw& raw, int (&v)[8]) {
        pairs(raw.q, v);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            int eight = j / 2, is_down = raw.scales >> (8 * (eight / 2) + 3 + eight % 2) & 1;
            v[j] = minus_bytes(v[j] << 3, is_down ? 0x09090909 : 0x07070707);
        }
    }
    DEVICE float2 scale(const Raw& raw, int half) {
        int odd = 2 * (raw.scales >> (8 * half) & 7) + 1;
        return make_float2(0.125f * half_at(raw.d) * odd, 0.0f);
    }
};
