// Quantized activations: what matrix kernels of quantized weights read.
//
// A row of K values (K a multiple of 32, cut into K / 32 groups) has two planes. Bytes, K of them: the first 16 bytes of all
// groups, then the last 16 bytes of all groups, so that lanes which take neighbouring groups load neighbouring 16 bytes.
// Records, K / 32 of them: { float scale; int16 sum_low, sum_high } with the sums of a group's halves. A value is
// scale * byte. Rows follow each other without gaps in both planes.
#pragma once
#include "reduce.cuh"

struct __align__(8) Q8Scale {
    float scale;
    short sum_low, sum_high;
};

// One warp quantizes group `g` of a row, one value a lane: scale = max |x| / 127, byte = round-to-even(x / scale).
DEVICE void quantize_group(float x, int8_t* row, Q8Scale* scales, int g, int n_groups) {
    int lane = threadIdx.x % WARP;
    float peak = warp_max(fabsf(x));
    float inverse = peak > 0.0f ? 127.0f / peak : 0.0f;
    int q = __float2int_rn(x * inverse);
    int sum = q;
#pragma unroll
    for (int m = 8; m > 0; m /= 2) sum += __shfl_xor_sync(FULL_WARP, sum, m);
    int sum_high = __shfl_sync(FULL_WARP, sum, 16);
    // Four lanes' bytes go out as one word.
    int word = (q & 0xff) << (8 * (lane % 4));
    word |= __shfl_xor_sync(FULL_WARP, word, 1);
    word |= __shfl_xor_sync(FULL_WARP, word, 2);
    int half = lane / 16;
    if (lane % 4 == 0) reinterpret_cast<int*>(row)[(half * n_groups + g) * 4 + lane % 16 / 4] = word;
    if (lane == 0) {
        Q8Scale record;
        record.scale = peak / 127.0f;
        record.sum_low = (short)sum;
        record.sum_high = (short)sum_high;
        scales[g] = record;
    }
}

// What `quantize_four` stores, of C times 4 neighbouring values of a lane.
template <int C>
struct Fours {
    uint32_t word[C];
    Q8Scale record[C];  // in every lane of a group

    // All in step: one after the other, each is a chain of shuffles and divisions.
    __device__ __forceinline__ Fours(const float (&x)[C][4]) {
        float peak[C];
        int sum[C] = {};
#pragma unroll
        for (int c = 0; c < C; c++) peak[c] = fmaxf(fmaxf(fabsf(x[c][0]), fabsf(x[c][1])), fmaxf(fabsf(x[c][2]), fabsf(x[c][3])));
#pragma unroll
        for (int m = 1; m < 8; m *= 2)
#pragma unroll
            for (int c = 0; c < C; c++) peak[c] = fmaxf(peak[c], __shfl_xor_sync(FULL_WARP, peak[c], m));
#pragma unroll
        for (int c = 0; c < C; c++) {
            const float inverse = peak[c] > 0.0f ? 127.0f / peak[c] : 0.0f;
            word[c] = 0;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const int q = __float2int_rn(x[c][j] * inverse);
                sum[c] += q;
                word[c] |= (uint32_t)(q & 0xff) << (8 * j);
            }
        }
#pragma unroll
        for (int m = 1; m < 4; m *= 2)
#pragma unroll
            for (int c = 0; c < C; c++) sum[c] += __shfl_xor_sync(FULL_WARP, sum[c], m);
#pragma unroll
        for (int c = 0; c < C; c++) {
            record[c].scale = peak[c] / 127.0f;
            const int other = __shfl_xor_sync(FULL_WARP, sum[c], 4);
            // The first half's sum first.
            const bool is_first = threadIdx.x % 8 < 4;
            record[c].sum_low = (short)(is_first ? sum[c] : other);
            record[c].sum_high = (short)(is_first ? other : sum[c]);
        }
    }

    // Puts the c-th, whose first value is the i-th of a row of `width`, where it is within.
    __device__ __forceinline__ void store(int c, int i, int width, int8_t* row, Q8Scale* scales) const {
        const int g = i / WARP, half = i % WARP / 16, n_groups = width / WARP;
        if (i < width) reinterpret_cast<uint32_t*>(row)[(half * n_groups + g) * 4 + i % 16 / 4] = word[c];
        if (i < width && i % WARP == 0) scales[g] = record[c];
    }
};

// Eight lanes quantize a group, 4 neighbouring values each, as `quantize_group` does; `i` is the index of the first of the 4. All lanes of the
// warp take part, those beyond the row with zeros.
DEVICE void quantize_four(const float (&x)[4], int i, int width, int8_t* row, Q8Scale* scales) {
    float peak = fmaxf(fmaxf(fabsf(x[0]), fabsf(x[1])), fmaxf(fabsf(x[2]), fabsf(x[3])));
#pragma unroll
    for (int m = 1; m < 8; m *= 2) peak = fmaxf(peak, __shfl_xor_sync(FULL_WARP, peak, m));
    float inverse = peak > 0.0f ? 127.0f / peak : 0.0f;
    int sum = 0;
    unsigned word = 0;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        int q = __float2int_rn(x[j] * inverse);
        sum += q;
        word |= (unsigned)(q & 0xff) << (8 * j);
    }
    sum += __shfl_xor_sync(FULL_WARP, sum, 1);
    sum += __shfl_xor_sync(FULL_WARP, sum, 2);
    int sum_high = __shfl_xor_sync(FULL_WARP, sum, 4);
    if (i >= width) return;
    int g = i / WARP, half = i % WARP / 16, n_groups = width / WARP;
    reinterpret_cast<unsigned*>(row)[(half * n_groups + g) * 4 + i % 16 / 4] = word;
    if (i % WARP == 0) {
        Q8Scale record;
        record.scale = peak / 127.0f;
        record.sum_low = (short)sum;
        record.sum_high = (short)sum_high;
        scales[g] = record;
    }
}

// Where a row of `n` values begins.
DEVICE int8_t* q8_row(int8_t* bytes, size_t row, int n) { return bytes + row * n; }
DEVICE const int8_t* q8_row(const int8_t* bytes, size_t row, int n) { return bytes + row * n; }
DEVICE Q8Scale* q8_scales(Q8Scale* scales, size_t row, int n) { return scales + row * (n / 32); }
DEVICE const Q8Scale* q8_scales(const Q8Scale* scales, size_t row, int n) { return scales + row * (n / 32); }
