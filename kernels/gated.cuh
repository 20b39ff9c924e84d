// Gated products, y[m][r] = f(gate[r] . x[m] + bias) * (up[r] . x[m] + bias): what follows the sums, whatever the weights are.
//
// A thread block of 256 has 32 rows r, a warp 4 of them. Writes f32 where `y` is given and quantized rows where `yq` is (n_out a
// multiple of 32 then). Shared: 128 M bytes. Alignment: 4 bytes, quantized rows 16 bytes. Measured on the simulator only.
#pragma once
#include "activate.cuh"
#include "q8.cuh"

struct Gated {
    int n_out;
    const float *gate_bias, *up_bias;  // null for none
    int activation;
    float* y;
    int8_t* yq;
    Q8Scale* ys;
};

// Stores the values of 32 neighbouring rows, those of group `group`, for row m of x; a warp does, whose lanes have a value each.
DEVICE void store_gated(const Gated& out, int m, int group, float value) {
    int row = group * WARP + (int)threadIdx.x % WARP;
    if (out.y && row < out.n_out) out.y[(size_t)m * out.n_out + row] = value;
    if (out.yq) quantize_group(value, q8_row(out.yq, m, out.n_out), q8_scales(out.ys, m, out.n_out), group, out.n_out / WARP);
}

// Stores four neighbouring values from row `row` on, a multiple of 4, for row m of x; eight lanes in a row have a group, and all lanes of a warp take
// part. Values are 0 beyond the last row, and lanes that have nothing say so.
DEVICE void store_four_gated(const Gated& out, int m, int row, const float (&values)[4], bool is_there) {
    if (out.y && is_there) {
        float* y = out.y + (size_t)m * out.n_out + row;
        if (out.n_out % 4 == 0 && row < out.n_out) {
            *(float4*)y = make_float4(values[0], values[1], values[2], values[3]);
        } else {
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (row + i < out.n_out) y[i] = values[i];
        }
    }
    if (out.yq) quantize_four(values, row, is_there ? out.n_out : 0, q8_row(out.yq, m, out.n_out), q8_scales(out.ys, m, out.n_out));
}

// Stores values that are in shared memory, ROWS of row m of x from tile[m * ROW] on, from row `first` of y; WARPS warps do, for `n` rows from `before` on.
template <int ROWS, int ROW, int WARPS>
DEVICE void store_gated_tile(const Gated& out, const float* tile, int first, int before, int n) {
    constexpr int GROUPS = ROWS / WARP, AT_ONCE = 4 * WARPS;
    const int mine = threadIdx.x / 8, i = threadIdx.x % 8 * 4;
    for (int index = mine; index - mine < GROUPS * n; index += AT_ONCE) {
        const int m = index / GROUPS, local = index % GROUPS * WARP + i;
        const bool is_there = m < n;
        float values[4] = {};
        if (is_there) {
            const float4 four = *(const float4*)(tile + m * ROW + local);
            values[0] = four.x, values[1] = four.y, values[2] = four.z, values[3] = four.w;
        }
#pragma unroll
        for (int k = 0; k < 4; k++)
            if (first + local + k >= out.n_out) values[k] = 0.0f;
        store_four_gated(out, before + m, first + local, values, is_there);
    }
}

constexpr int GATED_WARP_ROWS = 4;

// `sums.of(row, acc)` gives every lane the sums of a row of the gate in acc[0] and of the same row of up in acc[1].
template <int M, class Sums>
DEVICE void write_gated(const Gated& out, int n_rows, const Sums& sums) {
    __shared__ float tile[M][WARP];
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    int first = blockIdx.x * WARP;
#pragma unroll 1
    for (int i = 0; i < GATED_WARP_ROWS; i++) {
        int local = warp * GATED_WARP_ROWS + i, row = first + local;
        if (row >= out.n_out) break;
        float acc[2][M] = {};
        sums.of(row, acc);
        float gate_add = out.gate_bias ? out.gate_bias[row] : 0.0f, up_add = out.up_bias ? out.up_bias[row] : 0.0f;
#pragma unroll
        for (int m = 0; m < M; m++) {
            if (lane == m) {
                float up = other_factor(out.activation, acc[1][m] + up_add);
                tile[m][local] = activate(out.activation, acc[0][m] + gate_add) * up;
            }
        }
    }
    __syncthreads();
    for (int m = warp; m < n_rows; m += blockDim.x / WARP) {
        store_gated(out, m, blockIdx.x, first + lane < out.n_out ? tile[m][lane] : 0.0f);
    }
}
