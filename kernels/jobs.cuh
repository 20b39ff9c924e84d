// Several matrices of one input in one launch: which of them a thread block works on, and by which rows it multiplies.
#pragma once
#include "reduce.cuh"

struct Job {
    const uint8_t* w;
    float* y;
    const float* bias;  // null for none
    int n_out;          // 0 for no job
};

// Picks the job of thread block `block` where each job has ceil(n_out / rows) of them, and makes `block` relative to it.
DEVICE Job pick_job(Job a, Job b, Job c, int rows, int& block) {
    int blocks_a = (a.n_out + rows - 1) / rows, blocks_b = (b.n_out + rows - 1) / rows;
    if (block < blocks_a) return a;
    block -= blocks_a;
    if (block < blocks_b) return b;
    block -= blocks_b;
    return c;
}

// The same where a job has `blocks_of` its n_out thread blocks.
template <class BlocksOf>
DEVICE Job pick_job_by(Job a, Job b, Job c, BlocksOf blocks_of, int& block) {
    if (block < blocks_of(a.n_out)) return a;
    block -= blocks_of(a.n_out);
    if (block < blocks_of(b.n_out)) return b;
    block -= blocks_of(b.n_out);
    return c;
}

// Neighbouring rows of x, as tiles take them: whether one is there, which row of x it is, and which row of y takes its result.
struct Rows {
    int first, n_rows;

    __device__ __forceinline__ bool has(int i) const { return first + i < n_rows; }
    __device__ __forceinline__ int source(int i) const { return first + i; }
    __device__ __forceinline__ int target(int i) const { return first + i; }
};
