// Rows of x as f16 numbers, for products of K-quants in f16 (half_bands.cuh).
//
// They are made of rows as q8.cuh has them. A row and superblock of 256 values has a power of two, no larger than the largest of its groups' scales;
// a number is scale times byte over it, below 254, rounded to 11 bits. Three planes, rows without gaps in each, n_in a multiple of 256:
//
// | plane  | bytes of a row | what it has                                                                                      |
// |--------|----------------|--------------------------------------------------------------------------------------------------|
// | halves | 2 n_in         | f16 numbers; of a group of 32 four chunks of 16 bytes: those of even place of the first 16 and of |
// |        |                | the last, then those of odd place                                                                |
// | sums   | n_in / 8       | of two groups at a time their sums over the power of two in two parts: f16 of both, rests of both |
// | powers | n_in / 64      | f32, one a superblock                                                                             |
#pragma once
#include "early.cuh"
#include "q8.cuh"
#include "reduce.cuh"

struct HalfRows {
    const uint8_t *halves, *sums, *powers;

    // Those from row `row` on.
    __device__ __forceinline__ HalfRows from(size_t row, int n_in) const {
        return {halves + row * n_in * 2, sums + row * (n_in / 8), powers + row * (n_in / 64)};
    }
};

// Two numbers rounded to f16, `low` in the lower half.
DEVICE uint32_t halves_of(float low, float high) {
    uint32_t both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}
