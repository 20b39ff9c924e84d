// Quants of 4 bits that index a table of 16 signed bytes: what IQ4_NL, IQ4_XS, IQ3_XXS, MXFP4 and NVFP4 share; and SuperNibbles, which is
// how IQ4_XS, IQ3_S and IQ3_XXS lie.
#pragma once
#include "planes.cuh"

// Looks 32 quants of a 4-bit plane up; `table` are four words of it. A byte permutation takes one of eight bytes by three bits, so
// both halves of the table are asked and the fourth bit chooses between them.
DEVICE void look_up(uint4 q, const uint4 table, int (&v)[8]) {
    const uint32_t words[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
    for (int j = 0; j < 4; j++) {
        uint32_t four[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint32_t nibbles = words[j] >> (16 * i) & 0xffff, index = nibbles & 0x7777;
            uint32_t low = __byte_perm(table.x, table.y, index), high = __byte_perm(table.z, table.w, index);
            four[i] = __byte_perm(low, high, 0x3210 | (nibbles & 0x8888) >> 1);
        }
        // Of each byte of the plane, the low half belongs to the first 16 weights and the high half to the last.
        v[j] = __byte_perm(four[0], four[1], 0x6420);
        v[j + 4] = __byte_perm(four[0], four[1], 0x7531);
    }
}

// The table of IQ4_NL and IQ4_XS: -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113.
DEVICE uint4 iq4_table() { return make_uint4(0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u); }

// The table of MXFP4 and NVFP4, twice the values of the 4-bit floats: 0, 1, 2, 3, 4, 6, 8, 12 and their negatives.
DEVICE uint4 fp4_table() { return make_uint4(0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu); }

// Planes 4-bit (16 bytes a group), scales (a byte a group) and d (f16 a superblock). What quants and scales mean, a format says.
struct SuperNibbles {
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

    __device__ __forceinline__ SuperNibbles(const uint8_t* w, size_t n_groups)
        : quants((const uint4*)w),
          scales(w + plane_bytes(n_groups, 16)),
          supers((const uint16_t*)(w + plane_bytes(n_groups, 16) + plane_bytes(n_groups, 1))) {}
    __device__ __forceinline__ uint32_t super(size_t superblock) const { return __ldg(supers + superblock); }
    __device__ __forceinline__ Raw load(size_t group, uint32_t super) const {
        return {__ldg(quants + group), (uint16_t)super, __ldg(scales + group)};
    }
    __device__ __forceinline__ Raw load(size_t group) const { return load(group, super(group / 8)); }
};
