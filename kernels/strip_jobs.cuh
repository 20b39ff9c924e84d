// What thread blocks do with strips: products of up to three matrices, and gate and up.
#pragma once
#include "tall_strips.cuh"

// Floats from one column of a warp's sums to the next, by M; so columns that are stored or read together are in different banks.
template <int M>
constexpr int SUMS_ROW = STRIP + (M >= 8 ? 4 : M == 4 ? 8 : 0);
template <int M>
constexpr int SUMS_STRIP = M * SUMS_ROW<M> + 16;

// Leaves a warp's sums in shared memory.
template <int M>
DEVICE void leave_sums(const float (&acc)[2][COLUMNS_OF<M>], float* sums) {
    int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int r = 0; r < 2; r++) {
#pragma unroll
        for (int c = 0; c < COLUMNS_OF<M>; c++) {
            int m = c / 2 * 8 + 2 * t + c % 2;
            if (m < M) sums[m * SUMS_ROW<M> + g + 8 * r] = acc[r][c];
        }
    }
}

// What a thread block of 128 has of a job: a strip, which its 4 warps share, or of a tall matrix several strips for each warp.
// ADDS: y += add_scale * (w x + bias). NORMED: x is what `row` gives. Neither is for tall matrices.
template <class F, int M, bool ADDS = false, bool NORMED = false>
DEVICE void multiply_strip(const Job& job, int block, const Input<M>& x, float add_scale = 1.0f, const NormedRow& row_of_x = {}) {
    constexpr int STAGES = M == 16 ? 2 : 4, WARPS = STRIPS_OF_TALL;
    using S = Strip<F, M, STAGES, NORMED>;
    if constexpr (!ADDS && !NORMED && M < 16) {
        if (is_tall_matrix<F, M>(job.n_out, x.n_in)) {
            multiply_tall<F, M>(job, block, x);
            return;
        }
    }
    const int warp = threadIdx.x / WARP, first = block * STRIP;
    if (first >= job.n_out) return;
    int n_rows = min(STRIP, job.n_out - first);
    float acc[2][S::COLUMNS] = {};
    uint8_t* own = strip_room + warp * S::WARP_BYTES;
    uint16_t* table = (uint16_t*)(strip_room + WARPS * S::WARP_BYTES);
    const StripJob own_job = {job.w, (size_t)job.n_out, (size_t)first, n_rows};
    const int row = threadIdx.x % STRIP;
    float held = 0.0f;
    const float* ahead = ADDS && (int)threadIdx.x < STRIP && row < n_rows ? job.y + first + row : nullptr;
    sum_strip<F, M, STAGES, WARPS, NORMED>(own_job, x, warp, own, table, acc, ahead, held, row_of_x,
                                           strip_room + WARPS * S::WARP_BYTES + (S::HAS_HALVES ? TABLE_BYTES<TABLE> : 0));
    __syncthreads();
    float* sums = (float*)strip_room;
    leave_sums<M>(acc, sums + warp * M * SUMS_ROW<M>);
    __syncthreads();
    // Two columns a warp, of which neither is in the other's banks.
    int which = threadIdx.x / STRIP % 2;
    for (int first_m = 0; first_m < M; first_m += 8) {
        constexpr int HALF = M < 2 ? 1 : M < 8 ? M / 2 : 4;
        int m = first_m + warp + which * HALF;
        if (warp >= HALF || m >= min(M, x.n_rows) || row >= n_rows) continue;
        float sum = 0.0f;
#pragma unroll
        for (int slice = 0; slice < WARPS; slice++) sum += sums[(slice * M + m) * SUMS_ROW<M> + row];
        if (job.bias) sum += job.bias[first + row];
        if (ADDS) sum = held + add_scale * sum;
        job.y[(size_t)m * job.n_out + first + row] = sum;
    }
}

// What a thread block of 128 has of a gate and up: 32 rows of both, which are 4 strips, one for each warp.
template <class F, int M, bool NORMED = false>
DEVICE void multiply_gated_strips(const uint8_t* gate, const uint8_t* up, const Gated& out, const Input<M>& x, const NormedRow& row_of_x = {}) {
    constexpr int STAGES = (F::STRIP_HIGH == 0 && M <= 2 ? 4 : 2) * (NORMED ? 2 : 1), STRIPS = 4;
    using S = Strip<F, M, STAGES, NORMED>;
    int lane = threadIdx.x % WARP, strip = threadIdx.x / WARP;
    // The second strip of the last thread block may be beyond the matrix; it adds up a row that nobody asks for.
    int first = min((int)blockIdx.x * WARP + strip % 2 * STRIP, out.n_out - 1);
    float acc[2][S::COLUMNS] = {};
    uint16_t* table = (uint16_t*)(strip_room + STRIPS * S::WARP_BYTES + strip * TABLE_BYTES<TABLE>);
    const StripJob job = {strip < 2 ? gate : up, (size_t)out.n_out, (size_t)first, min(STRIP, out.n_out - first)};
    float held = 0.0f;
    sum_strip<F, M, STAGES, 1, NORMED>(job, x, 0, strip_room + strip * S::WARP_BYTES, table, acc, nullptr, held, row_of_x,
                                       strip_room + STRIPS * S::WARP_BYTES + (S::HAS_HALVES ? STRIPS * TABLE_BYTES<TABLE> : 0));
    __syncthreads();
    float* sums = (float*)strip_room;
    leave_sums<M>(acc, sums + strip * SUMS_STRIP<M>);
    __syncthreads();
    for (int m = strip; m < x.n_rows; m += STRIPS) {
        int row = (int)blockIdx.x * WARP + lane;
        auto sum_of = [&](int which) { return sums[(2 * which + lane / STRIP) * SUMS_STRIP<M> + m * SUMS_ROW<M> + lane % STRIP]; };
        float value = 0.0f;
        if (row < out.n_out) {
            float up_sum = sum_of(1) + (out.up_bias ? out.up_bias[row] : 0.0f);
            float gate_sum = sum_of(0) + (out.gate_bias ? out.gate_bias[row] : 0.0f);
            value = activate(out.activation, gate_sum) * other_factor(out.activation, up_sum);
        }
        store_gated(out, m, blockIdx.x, value);
    }
}

// What a thread block of 128 has of a job, by whichever way its format is multiplied.
template <class F, int M>
DEVICE void multiply_rows(const Job& job, int block, const Input<M>& x) {
    if constexpr (HAS_STRIPS<F>) {
        multiply_strip<F, M>(job, block, x);
    } else {
        matvec<F, M>(job, block, x);
    }
}
