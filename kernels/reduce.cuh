// Reductions over a warp and over a thread block, and the argument order of f32.
//
// Shared by all ops. Every reduction has one fixed order, so a result depends neither on the grid nor on timing.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

#include "early.cuh"

#define KERNEL extern "C" __global__ void
#define DEVICE static __device__ __forceinline__

// A number that the compiler does not know to be the same as before.
DEVICE int asked_again(int number) {
    asm volatile("" : "+r"(number));
    return number;
}

constexpr unsigned FULL_WARP = 0xffffffffu;
constexpr int WARP = 32;

DEVICE float warp_sum(float x) {
#pragma unroll
    for (int m = WARP / 2; m > 0; m /= 2) x += __shfl_xor_sync(FULL_WARP, x, m);
    return x;
}

// The sum of each value over the warp, in every lane.
template <int R, int M>
DEVICE void warp_sums(float (&x)[R][M]) {
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int m = 0; m < M; m++) x[r][m] = warp_sum(x[r][m]);
}

DEVICE float warp_max(float x) {
#pragma unroll
    for (int m = WARP / 2; m > 0; m /= 2) x = fmaxf(x, __shfl_xor_sync(FULL_WARP, x, m));
    return x;
}

DEVICE uint64_t warp_max(uint64_t x) {
#pragma unroll
    for (int m = WARP / 2; m > 0; m /= 2) {
        uint64_t other = __shfl_xor_sync(FULL_WARP, x, m);
        x = other > x ? other : x;
    }
    return x;
}

// Sums over a thread block of whole warps; every thread gets the sum. `shared` holds one float per warp and may be used
// again after the next barrier.
DEVICE float block_sum(float x, float* shared) {
    x = warp_sum(x);
    if (threadIdx.x % WARP == 0) shared[threadIdx.x / WARP] = x;
    __syncthreads();
    int lane = threadIdx.x % WARP;
    float total = lane < blockDim.x / WARP ? shared[lane] : 0.0f;
    total = warp_sum(total);
    __syncthreads();
    return total;
}

DEVICE uint64_t block_max(uint64_t x, uint64_t* shared) {
    x = warp_max(x);
    if (threadIdx.x % WARP == 0) shared[threadIdx.x / WARP] = x;
    __syncthreads();
    int lane = threadIdx.x % WARP;
    uint64_t best = lane < blockDim.x / WARP ? shared[lane] : 0;
    best = warp_max(best);
    __syncthreads();
    return best;
}

// Maps f32 to u32 so that the order of numbers becomes the order of integers; both zeros are one number.
DEVICE uint32_t ordered_bits(float x) {
    uint32_t bits = __float_as_uint(x + 0.0f);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

DEVICE float from_ordered_bits(uint32_t key) {
    return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}
