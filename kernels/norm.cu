// RMS and layer norm, with the residual addition before and the quantization after fused; norms of heads; quantization.
//
// add_norm: hidden[r] += add_scale * delta[r] where delta is given; n = weight * normalize(hidden[r]) + bias, weight and bias
//   optional; written as f32 to `y` and quantized to (yq, ys) where those are given (width a multiple of 32 for yq).
//   kind 0, RMS: x / sqrt(mean(x^2) + eps). kind 1, layer: (x - mean) / sqrt(variance + eps).
//   grid: n_rows; block: 256. hidden, delta, y: [n_rows, width] f32; weight, bias: [width] f32.
// norm_heads: the same in place for runs of `width` values of each row, without addition; weight: [n_weights, width], in turn.
//   grid: (ceil(row_width / width / 4), n_rows); block: 128; a warp normalizes a run.
// norm_wide_heads: the same for wide runs. grid: (row_width / width, n_rows); block: 256, which normalizes a run.
// quantize_rows: x [n_rows, width] f32 to (yq, ys). grid: (ceil(width / 256), n_rows); block: 256.
// Shared: 32 bytes. Alignment: 4 bytes, quantized rows 16 bytes. Measured on the simulator only: bench/runs.
#include "q8.cuh"

KERNEL __launch_bounds__(256) add_norm(float* hidden, const float* delta, float add_scale, const float* weight,
                                       const float* bias, int kind, float eps, int width, float* y, int8_t* yq,
                                       Q8Scale* ys) {
    __shared__ float partial[8];
    float* row = hidden + (size_t)blockIdx.x * width;
    const float* add = delta ? delta + (size_t)blockIdx.x * width : nullptr;
    float sum = 0.0f, squares = 0.0f;
#pragma unroll 1
    for (int i = threadIdx.x; i < width; i += blockDim.x) {
        float x = row[i];
        if (add) {
            x += add_scale * add[i];
            row[i] = x;
        }
        sum += x;
        squares += x * x;
    }
    float mean = 0.0f;
    if (kind == 1) {
        mean = block_sum(sum, partial) / width;
        // The second pass over the row, which this thread wrote itself, avoids cancellation.
        squares = 0.0f;
#pragma unroll 1
        for (int i = threadIdx.x; i < width; i += blockDim.x) {
            float x = row[i] - mean;
            squares += x * x;
        }
    }
    float factor = 1.0f / sqrtf(block_sum(squares, partial) / width + eps);
    int8_t* quantized = yq ? q8_row(yq, blockIdx.x, width) : nullptr;
#pragma unroll 1
    for (int i = threadIdx.x; i < (width + WARP - 1) / WARP * WARP; i += blockDim.x) {
        float value = 0.0f;
        if (i < width) {
            value = (row[i] - mean) * factor;
            if (weight) value *= weight[i];
            if (bias) value += bias[i];
            if (y) y[(size_t)blockIdx.x * width + i] = value;
        }
        if (quantized) quantize_group(value, quantized, q8_scales(ys, blockIdx.x, width), i / WARP, width / WARP);
    }
}

// One run by `n_threads` threads, whose sum `sum_of` takes.
template <typename Sum>
DEVICE void normalize_run(float* row, const float* weight, const float* bias, int kind, float eps, int width, int thread,
                          int n_threads, Sum sum_of) {
    float mean = 0.0f;
    if (kind == 1) {
        float sum = 0.0f;
#pragma unroll 1
        for (int i = thread; i < width; i += n_threads) sum += row[i];
        mean = sum_of(sum) / width;
    }
    float squares = 0.0f;
#pragma unroll 1
    for (int i = thread; i < width; i += n_threads) {
        float x = row[i] - mean;
        squares += x * x;
    }
    float factor = 1.0f / sqrtf(sum_of(squares) / width + eps);
#pragma unroll 1
    for (int i = thread; i < width; i += n_threads) {
        float value = (row[i] - mean) * factor;
        if (weight) value *= weight[i];
        if (bias) value += bias[i];
        row[i] = value;
    }
}

KERNEL __launch_bounds__(128) norm_heads(float* rows, int row_width, const float* weight, int n_weights, const float* bias,
                                         int kind, float eps, int width) {
    int run = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
    if (run >= row_width / width) return;
    float* row = rows + (size_t)blockIdx.y * row_width + (size_t)run * width;
    if (weight) weight += (size_t)(run % n_weights) * width;
    normalize_run(row, weight, bias, kind, eps, width, threadIdx.x % WARP, WARP, [](float x) { return warp_sum(x); });
}

KERNEL __launch_bounds__(256) norm_wide_heads(float* rows, int row_width, const float* weight, int n_weights, const float* bias,
                                              int kind, float eps, int width) {
    __shared__ float partial[8];
    float* row = rows + (size_t)blockIdx.y * row_width + (size_t)blockIdx.x * width;
    if (weight) weight += (size_t)(blockIdx.x % n_weights) * width;
    auto sum_of = [&](float x) { return block_sum(x, partial); };
    normalize_run(row, weight, bias, kind, eps, width, threadIdx.x, blockDim.x, sum_of);
}

KERNEL __launch_bounds__(256) quantize_rows(const float* x, int width, int8_t* yq, Q8Scale* ys) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= width) return;
    float value = x[(size_t)blockIdx.y * width + i];
    quantize_group(value, q8_row(yq, blockIdx.y, width), q8_scales(ys, blockIdx.y, width), i / WARP, width / WARP);
}
