// The RMS norm of a row of the stream as the begin of the products of it: each thread block norms and quantizes the row for itself, into its own shared
// memory. Bits are those of add_norm_held (norm.cu), whose 512 threads are 4 times the 128 here.
//
// y = weight * x / sqrt(mean(x^2) + eps), a multiple of 256 values, NORMED_COLUMNS at most. The first thread block writes it, too: y f32, yq and ys quantized.
// In shared memory a superblock is 256 bytes as q8.cuh has a row of 8 groups, then its 8 scales. Alignment: 16 bytes.
#pragma once
#include "q8.cuh"

constexpr int NORMED_COLUMNS = 2048, NORMED_SUPER = 320;

struct NormedRow {
    const float *hidden, *weight;  // [width]; weight null for none
    float eps;
    float* y;
    int8_t* yq;
    Q8Scale* ys;
};

// The weight of a row's norm, as the threads of a thread block hold it.
struct NormWeight {
    static constexpr int EACH = 4 * 128, CHUNKS = NORMED_COLUMNS / EACH;
    float4 w[CHUNKS];

    __device__ __forceinline__ NormWeight(const NormedRow& row, int width) {
#pragma unroll
        for (int c = 0; c < CHUNKS; c++) {
            const int i = c * EACH + 4 * (int)threadIdx.x;
            w[c] = i < width && row.weight ? __ldg((const float4*)(row.weight + i)) : make_float4(1.0f, 1.0f, 1.0f, 1.0f);
        }
    }
};

// Waits for earlier launches, and norms; `meanwhile` is called once the row is on its way. All 128 threads of the thread block call it; there is a barrier at
// its end.
template <class Meanwhile>
DEVICE void norm_row(const NormedRow& row, int width, const NormWeight& weight, uint8_t* room, Meanwhile meanwhile) {
    constexpr int EACH = NormWeight::EACH, CHUNKS = NormWeight::CHUNKS, PARTS = 4;  // threads of add_norm_held for one here
    __shared__ float partial[4 * PARTS];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const float4(&w)[CHUNKS] = weight.w;
    float4 x[CHUNKS];
    const float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    await_earlier();
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        const int i = c * EACH + 4 * (int)threadIdx.x;
        x[c] = i < width ? load_written((const float4*)(row.hidden + i)) : zero;
    }
    meanwhile();
    float squares[PARTS] = {};
#pragma unroll
    for (int c = 0; c < CHUNKS; c++)
        squares[c % PARTS] += (x[c].x * x[c].x + x[c].y * x[c].y) + (x[c].z * x[c].z + x[c].w * x[c].w);
#pragma unroll
    for (int k = 0; k < PARTS; k++) squares[k] = warp_sum(squares[k]);
    if (lane == 0)
#pragma unroll
        for (int k = 0; k < PARTS; k++) partial[warp + 4 * k] = squares[k];
    __syncthreads();
    float sum = partial[lane % (4 * PARTS)];
#pragma unroll
    for (int m = WARP / 4; m > 0; m /= 2) sum += __shfl_xor_sync(FULL_WARP, sum, m);
    const float factor = 1.0f / sqrtf(sum / width + row.eps);
    float v[CHUNKS][4];
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        v[c][0] = x[c].x * factor * w[c].x + 0.0f, v[c][1] = x[c].y * factor * w[c].y + 0.0f;
        v[c][2] = x[c].z * factor * w[c].z + 0.0f, v[c][3] = x[c].w * factor * w[c].w + 0.0f;
    }
    const Fours<CHUNKS> fours(v);
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        const int i = c * EACH + 4 * (int)threadIdx.x;
        uint8_t* bytes = room + i / 256 * NORMED_SUPER;
        fours.store(c, i < width ? i % 256 : 256, 256, (int8_t*)bytes, (Q8Scale*)(bytes + 256));
    }
    __syncthreads();
    if (blockIdx.x > 0) return;
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        const int i = c * EACH + 4 * (int)threadIdx.x;
        if (i < width) *(float4*)(row.y + i) = make_float4(v[c][0], v[c][1], v[c][2], v[c][3]);
    }
    const int n_groups = width / WARP;
    for (int k = threadIdx.x; k < 2 * n_groups; k += 128) {
        const int half = k / n_groups, g = k % n_groups;
        const uint8_t* bytes = room + g / 8 * NORMED_SUPER;
        ((uint4*)row.yq)[k] = *(const uint4*)(bytes + (half * 8 + g % 8) * 16);
        if (half == 0) row.ys[g] = *(const Q8Scale*)(bytes + 256 + g % 8 * 8);
    }
}
