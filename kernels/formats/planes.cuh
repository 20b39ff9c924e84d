// How quantized matrices lie on the device: cut into planes, so that every load is aligned and neighbouring lanes read
// neighbouring bytes.
//
// A matrix [n_out, n_in] is cut into *groups* of 32 weights along a row; group g of row r has index
// r * (n_in / 32) + g in every plane. A plane holds a fixed number of bytes for each group (or for each 8 groups, a
// superblock of 256), planes follow each other, each starting at a multiple of 256 bytes. The order of the planes and
// their bytes is said in each format's header; `crates/cuda-exec/src/planes.rs` writes them.
//
// Within a group, weight i = 4 j + b (word j, byte b) lies so that a word of four weights comes out of one mask:
//   4-bit plane, 16 bytes: word j of 4 holds weights 4j+b in the low and 16+4j+b in the high nibble of byte b;
//   2-bit plane,  8 bytes: word j/4 holds weight 4j+b in bits 2(j%4) .. of byte b;
//   1-bit plane,  4 bytes: bit j of byte b is weight 4j+b;
//   8-bit plane, 32 bytes: weights in order.
//
// A format is a struct with: Raw (one group as loaded), load(group), words(raw, v) giving 8 words of four weights q each,
// SIGNED (whether q is signed), and scale(raw, half) giving (s, o) such that a weight is s * q + o, for the first and
// the last 16 weights of the group; SUB is 32 where both are the same. Where SHARES_SUPERS, what the 8 groups of a superblock have
// in common is 2 or 4 bytes: super(superblock) gives it, and load(group, super) takes it instead of loading it.
#pragma once
#include "../reduce.cuh"

constexpr int GROUP = 32;

DEVICE size_t plane_bytes(size_t n_groups, int bytes_per_group) { return (n_groups * bytes_per_group + 255) / 256 * 256; }

DEVICE float2 half2_at(uint32_t bits) {
    __half2_raw raw;
    raw.x = (unsigned short)bits;
    raw.y = (unsigned short)(bits >> 16);
    return __half22float2(__half2(raw));
}

DEVICE float half_at(uint16_t bits) {
    __half_raw raw;
    raw.x = bits;
    return __half2float(__half(raw));
}

DEVICE void nibbles(uint4 q, int (&v)[8]) {
    v[0] = q.x & 0x0f0f0f0f;
    v[1] = q.y & 0x0f0f0f0f;
    v[2] = q.z & 0x0f0f0f0f;
    v[3] = q.w & 0x0f0f0f0f;
    v[4] = (q.x >> 4) & 0x0f0f0f0f;
    v[5] = (q.y >> 4) & 0x0f0f0f0f;
    v[6] = (q.z >> 4) & 0x0f0f0f0f;
    v[7] = (q.w >> 4) & 0x0f0f0f0f;
}

DEVICE void add_fifth_bits(uint32_t high, int (&v)[8]) {
#pragma unroll
    for (int j = 0; j < 8; j++) v[j] |= (j <= 4 ? high << (4 - j) : high >> (j - 4)) & 0x10101010;
}

DEVICE void pairs(uint2 q, int (&v)[8]) {
#pragma unroll
    for (int j = 0; j < 4; j++) {
        v[j] = (q.x >> (2 * j)) & 0x03030303;
        v[j + 4] = (q.y >> (2 * j)) & 0x03030303;
    }
}

DEVICE void add_third_bits(uint32_t high, int (&v)[8]) {
#pragma unroll
    for (int j = 0; j < 8; j++) v[j] |= (j <= 2 ? high << (2 - j) : high >> (j - 2)) & 0x04040404;
}

// Subtracts a small constant from four bytes below 128; the results are signed.
DEVICE int minus_bytes(int v, int four_times) { return ((v | 0x80808080) - four_times) ^ 0x80808080; }

// Scale and minimum of group g of the 12 packed bytes that Q4_K and Q5_K have: 6 bits each.
DEVICE int2 k_scale_min(uint4 header, int g) {
    // header.x is (d, dmin); y, z, w are the bytes.
    int shift = 8 * (g & 3);
    int low = header.y >> shift, middle = header.z >> shift, high = header.w >> shift;
    // Both forms are computed: lanes of one warp have different groups.
    int2 first = make_int2(low & 63, middle & 63);
    int2 second = make_int2((high & 15) | ((low & 0xc0) >> 2), ((high >> 4) & 15) | ((middle & 0xc0) >> 2));
    return g < 4 ? first : second;
}
