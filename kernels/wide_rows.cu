// x made f16 tiles once for all thread blocks of a wide product: wide_rows.cuh says how they lie.
//
// | kernel     | what a thread block of 256 takes              | grid                                              |
// |------------|-----------------------------------------------|---------------------------------------------------|
// | wide_tiles | 8 rows, every gridDim.y-th superblock of them | (rows that are written / 8, 1 to n_in / 256)       |
//
// Shapes: x quantized as q8.cuh says, [n_rows, n_in], n_in a multiple of 256. Shared: none. Alignment: 16 bytes; tiles 128 bytes. Measured on the
// simulator only: bench/runs.
#include "early.cuh"
#include "half_rows.cuh"
#include "wide_rows.cuh"

// Byte `k` of a word, less 128. Conversions would be slower.
DEVICE float byte_as_float(uint32_t word, int k) { return __uint_as_float(__byte_perm(word, 0x4b000000, 0x7440 + k)) - 8388736.0f; }

KERNEL __launch_bounds__(256, 2) wide_tiles(const int8_t* xq, const Q8Scale* xs, int n_in, int n_rows, uint8_t* tiles, float* powers) {
    begin_after_earlier();
    const int lane = threadIdx.x % WARP, m = blockIdx.x * 8 + threadIdx.x / WARP, n_groups = n_in / 32;
    const int row = min(m, n_rows - 1);
    const uint2* records = (const uint2*)q8_scales(xs, row, n_in);
    float peak = 0.0f;
#pragma unroll 4
    for (int group = lane; group < n_groups; group += WARP) peak = fmaxf(peak, __uint_as_float(load_written(records + group).x));
    peak = warp_max(peak);
    // Numbers that are next to nothing or infinite have the first or last power whose inverse is a normal number.
    const uint32_t exponent = m < n_rows ? min(max(__float_as_uint(peak) >> 23 & 0xff, 1u), 253u) : 127;
    const float inverse = m < n_rows ? __uint_as_float((254 - exponent) << 23) : 0.0f;
    if (blockIdx.y == 0 && lane == 0) powers[m] = __uint_as_float(exponent << 23);
    // A lane writes one chunk of each half of a superblock; its columns are the same two of four groups' words of 4.
    const int s = lane % 16 / 2, h = lane % 2, half = lane / 16;
    const size_t n_steps = n_in / WIDE_K;
    uint8_t* to = tiles + m / WIDE_TILE_ROWS * n_steps * WIDE_TILE + m % WIDE_TILE_ROWS * 128 + ((s % 4 * 2 + h) ^ m % 8) * 16;
    const uint8_t* bytes = (const uint8_t*)q8_row(xq, row, n_in) + (s % 2) * (n_in / 2) + s / 2 * 4;
    for (int super = blockIdx.y; super < n_in / 256; super += gridDim.y) {
        uint32_t words[4];
#pragma unroll
        for (int t = 0; t < 4; t++) {
            const int group = super * 8 + half * 4 + t;
            const float ratio = inverse * __uint_as_float(load_written(records + group).x);
            const uint32_t word = __ldcg((const uint32_t*)(bytes + group * 16)) ^ 0x80808080;
            words[t] = halves_of(ratio * byte_as_float(word, h), ratio * byte_as_float(word, h + 2));
        }
        *(uint4*)(to + (super * 4 + half * 2 + s / 4) * (size_t)WIDE_TILE) = make_uint4(words[0], words[1], words[2], words[3]);
    }
}
