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
