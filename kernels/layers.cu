// Operations that few networks need: columns of rows, rows joined of two or of the parts of ranks, xIELU, and rows cut by their spread.
//
// take_columns  y[r] = x[r][first .. first + width]; x [n_rows, row_width] f32.
// join          y[r] = [a[r], b[r]]; a [n_rows, width_a], b [n_rows, width - width_a] f32.
// join_parts    y[r][c] = part[p][r][c - first], p = c / part_width; parts [n_rows, part_width] f32 one behind the other, each of which has the
//               columns from `first` = p part_width on, or the last ones of `width`.
// xielu         rows = x > 0 ? alpha_p x^2 + beta x : alpha_n (exp(min(x, eps)) - 1 - x) + beta x, in place; optionally quantized to
//               (yq, ys) (width a multiple of 32).
// cut_below     rows[r] = max(rows[r] - (mean + cutoff sqrt(variance)), 0), in place, both being those of rows[r].
// All: rows of `width` f32; block 256. Grid (ceil(width / 256), n_rows) without shared memory; cut_below: grid n_rows, 32 bytes of
// shared memory. Measured on the simulator only.
#include "q8.cuh"

KERNEL __launch_bounds__(256) take_columns(const float* x, int row_width, int first, int width, float* y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= width) return;
    y[(size_t)blockIdx.y * width + i] = x[(size_t)blockIdx.y * row_width + first + i];
}

KERNEL __launch_bounds__(256) join(const float* a, const float* b, int width_a, int width, float* y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= width) return;
    size_t row = blockIdx.y;
    y[row * width + i] = i < width_a ? a[row * width_a + i] : b[row * (width - width_a) + i - width_a];
}

KERNEL __launch_bounds__(256) join_parts(const float* parts, int n_rows, int part_width, int width, float* y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= width) return;
    size_t row = blockIdx.y;
    int part = i / part_width, first = min(part * part_width, width - part_width);
    y[row * width + i] = parts[((size_t)part * n_rows + row) * part_width + i - first];
}

KERNEL __launch_bounds__(256)
    xielu(float* rows, float alpha_p, float alpha_n, float beta, float eps, int width, int8_t* yq, Q8Scale* ys) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= width) return;
    size_t at = (size_t)blockIdx.y * width + i;
    float x = rows[at];
    // A value that is no number goes the second way and stays none: min would drop it.
    float bounded = x > eps ? eps : x;
    float value = x > 0.0f ? alpha_p * x * x + beta * x : (expm1f(bounded) - x) * alpha_n + beta * x;
    rows[at] = value;
    if (yq) quantize_group(value, q8_row(yq, blockIdx.y, width), q8_scales(ys, blockIdx.y, width), i / WARP, width / WARP);
}

KERNEL __launch_bounds__(256) cut_below(float* rows, float cutoff, int width) {
    __shared__ float partial[8];
    float* row = rows + (size_t)blockIdx.x * width;
    float sum = 0.0f, squares = 0.0f;
#pragma unroll 1
    for (int i = threadIdx.x; i < width; i += blockDim.x) sum += row[i];
    float mean = block_sum(sum, partial) / width;
    // A second pass over the row avoids cancellation.
#pragma unroll 1
    for (int i = threadIdx.x; i < width; i += blockDim.x) {
        float x = row[i] - mean;
        squares += x * x;
    }
    float least = mean + cutoff * sqrtf(block_sum(squares, partial) / width);
#pragma unroll 1
    for (int i = threadIdx.x; i < width; i += blockDim.x) row[i] = fmaxf(row[i] - least, 0.0f);
}
