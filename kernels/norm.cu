// RMS and layer norm, with the residual addition before and the quantization after fused; norms of heads; quantization.
//
// add_norm: hidden[r] += add_scale * delta[r] where delta is given; n = weight * normalize(hidden[r]) + bias, weight and bias
//   optional; written as f32 to `y` and quantized to (yq, ys) where those are given (width a multiple of 32 for yq).
//   kind 0, RMS: x / sqrt(mean(x^2) + eps). kind 1, layer: (x - mean) / sqrt(variance + eps).
//   grid: n_rows; block: 256. hidden, delta, y: [n_rows, width] f32; weight, bias: [width] f32.
// add_norm_held, add_norm_held_wide: the same for widths that are multiples of 32, up to 4096 and 8192. A thread holds 4 neighbouring values
//   of each 2048 in registers, so that every load, of weight and bias too, is made before the reduction. block: 512. Alignment: 16 bytes.
// norm_heads: the same in place for runs of `width` values of each row, without addition; weight: [n_weights, width], in turn.
//   grid: (ceil(row_width / width / 4), n_rows); block: 128; a warp normalizes a run.
// norm_wide_heads: the same for wide runs. grid: (row_width / width, n_rows); block: 256, which normalizes a run.
//   Both read a run once and hold it in registers, its weight and bias too: runs of multiples of 4 values whose vectors are aligned to 16 bytes,
//   up to 512 and 8192 values. Others are read again for each of their sums.
// quantize_rows: x [n_rows, width] f32 to (yq, ys), twice 4 values a thread. grid: (ceil(width / 2048), n_rows); block: 256.
// Shared: 32 bytes, of held rows 64. Alignment: 4 bytes, quantized rows and x of quantize_rows 16 bytes. Measured on the simulator only: bench/runs.
#include "q8.cuh"

KERNEL __launch_bounds__(256) add_norm(float* hidden, const float* delta, float add_scale, const float* weight,
                                       const float* bias, int kind, float eps, int width, float* y, int8_t* yq,
                                       Q8Scale* ys) {
    begin_after_earlier();
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

// The same where 4 C values a thread are a run: read once, and its weight and bias before earlier launches are done.
template <int C, typename Sum>
DEVICE void normalize_held_run(float* row, const float* weight, const float* bias, int kind, float eps, int width, int thread,
                               int n_threads, Sum sum_of) {
    float4 x[C], w[C], b[C];
    const float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (int c = 0; c < C; c++) {
        const int i = 4 * (c * n_threads + thread);
        w[c] = weight && i < width ? __ldg((const float4*)(weight + i)) : make_float4(1.0f, 1.0f, 1.0f, 1.0f);
        b[c] = bias && i < width ? __ldg((const float4*)(bias + i)) : zero;
    }
    await_earlier();
#pragma unroll
    for (int c = 0; c < C; c++) {
        const int i = 4 * (c * n_threads + thread);
        x[c] = i < width ? *(const float4*)(row + i) : zero;
    }
    float mean = 0.0f;
    if (kind == 1) {
        float sum = 0.0f;
#pragma unroll
        for (int c = 0; c < C; c++) sum += (x[c].x + x[c].y) + (x[c].z + x[c].w);
        mean = sum_of(sum) / width;
    }
    float squares = 0.0f;
#pragma unroll
    for (int c = 0; c < C; c++) {
        const int i = 4 * (c * n_threads + thread);
        x[c].x -= mean, x[c].y -= mean, x[c].z -= mean, x[c].w -= mean;
        if (i < width) squares += (x[c].x * x[c].x + x[c].y * x[c].y) + (x[c].z * x[c].z + x[c].w * x[c].w);
    }
    const float factor = 1.0f / sqrtf(sum_of(squares) / width + eps);
#pragma unroll
    for (int c = 0; c < C; c++) {
        const int i = 4 * (c * n_threads + thread);
        const float4 y = make_float4(x[c].x * factor * w[c].x + b[c].x, x[c].y * factor * w[c].y + b[c].y,
                                     x[c].z * factor * w[c].z + b[c].z, x[c].w * factor * w[c].w + b[c].w);
        if (i < width) *(float4*)(row + i) = y;
    }
}

// Whether runs of a width and their vectors, null or not, are read 16 bytes at a time.
DEVICE bool has_fours(const float* row, const float* weight, const float* bias, int width) {
    return width % 4 == 0 && (((size_t)row | (size_t)weight | (size_t)bias) & 15) == 0;
}

KERNEL __launch_bounds__(128) norm_heads(float* rows, int row_width, const float* weight, int n_weights, const float* bias,
                                         int kind, float eps, int width) {
    constexpr int C = 4;
    let_next_begin();
    const int run = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP, lane = threadIdx.x % WARP;
    if (run >= row_width / width) return;
    float* row = rows + (size_t)blockIdx.y * row_width + (size_t)run * width;
    if (weight) weight += (size_t)(run % n_weights) * width;
    auto sum_of = [](float x) { return warp_sum(x); };
    if (width <= 4 * C * WARP && has_fours(row, weight, bias, width)) {
        normalize_held_run<C>(row, weight, bias, kind, eps, width, lane, WARP, sum_of);
    } else {
        await_earlier();
        normalize_run(row, weight, bias, kind, eps, width, lane, WARP, sum_of);
    }
}

KERNEL __launch_bounds__(256) norm_wide_heads(float* rows, int row_width, const float* weight, int n_weights, const float* bias,
                                              int kind, float eps, int width) {
    constexpr int C = 8;
    let_next_begin();
    __shared__ float partial[8];
    float* row = rows + (size_t)blockIdx.y * row_width + (size_t)blockIdx.x * width;
    if (weight) weight += (size_t)(blockIdx.x % n_weights) * width;
    auto sum_of = [&](float x) { return block_sum(x, partial); };
    if (width <= 4 * C * (int)blockDim.x && has_fours(row, weight, bias, width)) {
        normalize_held_run<C>(row, weight, bias, kind, eps, width, threadIdx.x, blockDim.x, sum_of);
    } else {
        await_earlier();
        normalize_run(row, weight, bias, kind, eps, width, threadIdx.x, blockDim.x, sum_of);
    }
}

KERNEL __launch_bounds__(256) quantize_rows(const float* x, int width, int8_t* yq, Q8Scale* ys) {
    begin_after_earlier();
    constexpr int C = 2, APART = 1024;
    const int first = (int)blockIdx.x * C * APART + 4 * (int)threadIdx.x;
    float values[C][4];
#pragma unroll
    for (int c = 0; c < C; c++) {
        const int i = first + c * APART;
        const float4 four = i < width ? load_written((const float4*)(x + (size_t)blockIdx.y * width + i)) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        values[c][0] = four.x, values[c][1] = four.y, values[c][2] = four.z, values[c][3] = four.w;
    }
    const Fours<C> fours(values);
#pragma unroll
    for (int c = 0; c < C; c++) fours.store(c, first + c * APART, width, q8_row(yq, blockIdx.y, width), q8_scales(ys, blockIdx.y, width));
}

constexpr int HELD_THREADS = 512;

template <int C>
DEVICE void normalize_held(float* hidden, const float* delta, float add_scale, const float* weight, const float* bias, int kind,
                          float eps, int width, float* y, int8_t* yq, Q8Scale* ys) {
    __shared__ float partial[HELD_THREADS / WARP];
    float* row = hidden + (size_t)blockIdx.x * width;
    const float* add = delta ? delta + (size_t)blockIdx.x * width : nullptr;
    float4 x[C], d[C], w[C], b[C];
    const float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    let_next_begin();
#pragma unroll
    for (int c = 0; c < C; c++) {
        int i = 4 * (c * HELD_THREADS + (int)threadIdx.x);
        bool is_here = i < width;
        w[c] = is_here && weight ? __ldg((const float4*)(weight + i)) : make_float4(1.0f, 1.0f, 1.0f, 1.0f);
        b[c] = is_here && bias ? __ldg((const float4*)(bias + i)) : zero;
    }
    await_earlier();
#pragma unroll
    for (int c = 0; c < C; c++) {
        int i = 4 * (c * HELD_THREADS + (int)threadIdx.x);
        bool is_here = i < width;
        x[c] = is_here ? *(const float4*)(row + i) : zero;
        d[c] = is_here && add ? *(const float4*)(add + i) : zero;
    }
    float sum = 0.0f, squares = 0.0f;
#pragma unroll
    for (int c = 0; c < C; c++) {
        int i = 4 * (c * HELD_THREADS + (int)threadIdx.x);
        if (add) {
            x[c].x += add_scale * d[c].x, x[c].y += add_scale * d[c].y;
            x[c].z += add_scale * d[c].z, x[c].w += add_scale * d[c].w;
            if (i < width) *(float4*)(row + i) = x[c];
        }
        sum += (x[c].x + x[c].y) + (x[c].z + x[c].w);
        squares += (x[c].x * x[c].x + x[c].y * x[c].y) + (x[c].z * x[c].z + x[c].w * x[c].w);
    }
    float mean = 0.0f;
    if (kind == 1) {
        mean = block_sum(sum, partial) / width;
        // A second pass over the row avoids cancellation.
        squares = 0.0f;
#pragma unroll
        for (int c = 0; c < C; c++) {
            int i = 4 * (c * HELD_THREADS + (int)threadIdx.x);
            float u[4] = {x[c].x - mean, x[c].y - mean, x[c].z - mean, x[c].w - mean};
            if (i < width) squares += (u[0] * u[0] + u[1] * u[1]) + (u[2] * u[2] + u[3] * u[3]);
        }
    }
    float factor = 1.0f / sqrtf(block_sum(squares, partial) / width + eps);
    float v[C][4];
#pragma unroll
    for (int c = 0; c < C; c++) {
        int i = 4 * (c * HELD_THREADS + (int)threadIdx.x);
        v[c][0] = (x[c].x - mean) * factor * w[c].x + b[c].x, v[c][1] = (x[c].y - mean) * factor * w[c].y + b[c].y;
        v[c][2] = (x[c].z - mean) * factor * w[c].z + b[c].z, v[c][3] = (x[c].w - mean) * factor * w[c].w + b[c].w;
        if (i >= width) v[c][0] = v[c][1] = v[c][2] = v[c][3] = 0.0f;
        if (y && i < width) *(float4*)(y + (size_t)blockIdx.x * width + i) = make_float4(v[c][0], v[c][1], v[c][2], v[c][3]);
    }
    if (!yq) return;
    const Fours<C> fours(v);
#pragma unroll
    for (int c = 0; c < C; c++)
        fours.store(c, 4 * (c * HELD_THREADS + (int)threadIdx.x), width, q8_row(yq, blockIdx.x, width), q8_scales(ys, blockIdx.x, width));
}

#define ADD_NORM_HELD(NAME, C)                                                                                                 \
    KERNEL __launch_bounds__(HELD_THREADS) NAME(float* hidden, const float* delta, float add_scale, const float* weight,           \
                                                const float* bias, int kind, float eps, int width, float* y, int8_t* yq,           \
                                                Q8Scale* ys) {                                                                     \
        normalize_held<C>(hidden, delta, add_scale, weight, bias, kind, eps, width, y, yq, ys);                                     \
    }

ADD_NORM_HELD(add_norm_held, 2)
ADD_NORM_HELD(add_norm_held_wide, 4)
