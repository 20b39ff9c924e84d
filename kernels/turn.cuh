// Norm and rotation of a head in shared memory, a warp's work: what rope_kv.cu and attention_decode.cu share. Both compute the same bits.
#pragma once
#include "reduce.cuh"

// What queries and keys go through before attention.
struct Turn {
    const float* inv_freqs;  // [n_dims / 2]; null for no rotation
    float magnitude;
    int n_dims, style;               // pairs are neighbours (0, NORM) or halves (1, NEOX)
    const float *q_norm, *k_norm;    // [dim]; null for none
    float eps;
};

// Multiplies the values of a head by `norm` and by the inverse of the root of their mean square; `squares` is the sum of those of a lane, which are every
// 32nd. A lane's own values, so it waits for no other.
DEVICE void normalize_head(float* values, float squares, const float* norm, float eps, int dim) {
    constexpr int AT_ONCE = 4;
    const int lane = threadIdx.x % WARP;
    const float factor = 1.0f / sqrtf(warp_sum(squares) / dim + eps);
#pragma unroll 1
    for (int first = lane; first < dim; first += AT_ONCE * WARP) {
        float weights[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) weights[k] = first + k * WARP < dim ? norm[first + k * WARP] : 0.0f;
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++)
            if (first + k * WARP < dim) values[first + k * WARP] = values[first + k * WARP] * factor * weights[k];
    }
}

// Turns pair i of a head.
DEVICE void turn_pair(float* values, int i, int half, int style, float magnitude, float sin, float cos) {
    int first = style == 0 ? 2 * i : i, second = style == 0 ? 2 * i + 1 : i + half;
    float a = values[first], b = values[second];
    values[first] = magnitude * (a * cos - b * sin);
    values[second] = magnitude * (a * sin + b * cos);
}
