// Runs of choices: which rows a thread block multiplies by which expert's matrix.
//
// A choice is a row that goes to an expert; choices are sorted by expert (route.cu). A run is up to M neighbouring choices of one
// expert, so an expert's weights are read once for M of its rows: 1 to 8 by products of rows, 16 or 64 by tiles. A thread block without a
// run returns.
//
// Matrices of heads are multiplied as experts are: head h of every row goes to matrix h. Choices are [n_head_rows, n_experts], and a run is M of
// a head's rows, `n_experts` apart. There are no lists then: runs, starts and rows are null, and n_head_rows is not 0.
#pragma once
#include "reduce.cuh"

constexpr uint32_t NO_RUN = 0xffffffffu;

struct ExpertJob {
    const uint8_t* w;   // the matrices of all experts, one after the other
    const float* bias;  // [n_experts, n_out], null for none
    float* y;           // [n_choices, n_out]
};

struct Run {
    int expert, first, n, step;  // the choices first, first + step .. first + (n - 1) step

    __device__ __forceinline__ int choice(int m) const { return first + m * step; }
};

// The run of this thread block; false where there is none.
template <int M>
DEVICE bool find_run(const uint2* runs, const uint32_t* starts, int n_experts, int n_head_rows, Run& run) {
    if (n_head_rows > 0) {
        int row = (int)blockIdx.y / n_experts * M;
        run.expert = (int)blockIdx.y % n_experts, run.first = row * n_experts + run.expert;
        run.n = min(M, n_head_rows - row), run.step = n_experts;
        return run.n > 0;
    }
    uint2 found = runs[blockIdx.y];
    if (found.x == NO_RUN) return false;
    run.expert = (int)found.x, run.first = (int)found.y, run.step = 1;
    run.n = min(M, (int)starts[run.expert + 1] - run.first);
    return true;
}

// The row that choice m of a run reads; choices beyond the last repeat it.
DEVICE int row_of(const Run& run, const uint32_t* rows, int m) {
    int choice = run.choice(min(m, run.n - 1));
    return rows ? (int)rows[choice] : choice;
}

// Writes the sums of two rows of an expert's matrix.
template <int M>
DEVICE void write_choices(const ExpertJob& job, const Run& run, int row, int n_out, const float (&acc)[2][M]) {
    int lane = threadIdx.x % WARP;
#pragma unroll
    for (int r = 0; r < 2; r++) {
#pragma unroll
        for (int m = 0; m < M; m++) {
            if (lane == r * M + m && row + r < n_out && m < run.n) {
                float sum = acc[r][m];
                if (job.bias) sum += job.bias[(size_t)run.expert * n_out + row + r];
                job.y[(size_t)run.choice(m) * n_out + row + r] = sum;
            }
        }
    }
}

// The rows of x that a tile of an expert's matrix is multiplied by.
struct ChosenTile {
    Run run;
    const uint32_t* rows;

    __device__ __forceinline__ bool has(int i) const { return i < run.n; }
    __device__ __forceinline__ int source(int i) const {
        int choice = run.choice(i);
        return rows ? (int)rows[choice] : choice;
    }
    __device__ __forceinline__ int target(int i) const { return run.choice(i); }
};
