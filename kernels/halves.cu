// x made f16 once for all thread blocks of a product of K-quants in f16: half_rows.cuh says how rows lie.
//
// | kernel     | what a thread block of 256 takes | grid                          |
// |------------|----------------------------------|-------------------------------|
// | halve_rows | 8 superblocks of a row           | (rows, ceil(n_in / 256 / 8)) |
//
// Shapes: x quantized as q8.cuh says, [n_rows, n_in]; rows of the grid beyond n_rows repeat the last, so that thread blocks of products need not ask
// whether a row is there. Shared: none. Alignment: 16 bytes. Measured on the simulator only: bench/runs.
#include "half_rows.cuh"

KERNEL __launch_bounds__(256, 1)
    halve_rows(const int8_t* xq, const Q8Scale* xs, int n_in, int n_rows, uint8_t* halves, uint8_t* sums, uint8_t* powers) {
    begin_after_earlier();
    const int lane = threadIdx.x % WARP, super = blockIdx.y * 8 + threadIdx.x / WARP, n_supers = n_in / 256;
    const size_t to = blockIdx.x;
    const int row = min((int)blockIdx.x, n_rows - 1), group = lane / 4;
    if (super >= n_supers) return;
    // A lane has 8 bytes: of group lane / 4 a half of a half.
    const int half = lane % 4 / 2, part = lane % 2;
    const uint2 record = load_written((const uint2*)(q8_scales(xs, row, n_in) + super * 8 + group));
    const uint2 bytes = load_written((const uint2*)(q8_row(xq, row, n_in) + half * (n_in / 2) + super * 128 + group * 16 + part * 8));
    const float scale = __uint_as_float(record.x);
    float peak = scale;
#pragma unroll
    for (int m = 4; m < WARP; m *= 2) peak = fmaxf(peak, __shfl_xor_sync(FULL_WARP, peak, m));
    // Numbers that are next to nothing or infinite have the first or last power whose inverse is a normal number.
    const uint32_t exponent = min(max(__float_as_uint(peak) >> 23 & 0xff, 1u), 253u);
    const float ratio = scale * __uint_as_float((254 - exponent) << 23);
    uint32_t even[2], odd[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int word = (int)(i == 0 ? bytes.x : bytes.y);
        const float x0 = ratio * (float)(signed char)word, x1 = ratio * (float)(signed char)(word >> 8);
        const float x2 = ratio * (float)(signed char)(word >> 16), x3 = ratio * (float)(word >> 24);
        even[i] = halves_of(x0, x2);
        odd[i] = halves_of(x1, x3);
    }
    uint8_t* chunk = halves + to * n_in * 2 + super * 512 + group * 64 + half * 16 + part * 8;
    *(uint2*)chunk = make_uint2(even[0], even[1]);
    *(uint2*)(chunk + 32) = make_uint2(odd[0], odd[1]);
    const int both = (int)record.y;
    const float sum = ratio * (float)((int)(short)both + (both >> 16));
    const float value = __half2float(__float2half_rn(sum));
    const uint32_t parts = halves_of(value, sum - value), next = __shfl_down_sync(FULL_WARP, parts, 4);
    if (lane % 8 == 0)
        *(uint2*)(sums + to * (n_in / 8) + super * 32 + lane) = make_uint2(__byte_perm(parts, next, 0x5410), __byte_perm(parts, next, 0x7632));
    if (lane == 0) *(float*)(powers + (to * n_supers + super) * 4) = __uint_as_float(exponent << 23);
}
