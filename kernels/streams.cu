// Operations on several streams of hidden states (AltUp): the first in rows of its own, the n others together.
//
// repeat_rows        others[r][i] = rows[r]
// match_magnitudes   others[r][i] *= sqrt(mean(first[r]^2)) / sqrt(max(mean(others[r][i]^2), 1e-5))
// predict_streams    s[i] += sum_j factors[r][i][j] s[j], with s[0] = first[r] and s[1 + i] = others[r][i] as they were before
// correct_streams    e = first[r] - predicted[r];  first[r] = predicted[r] + (1 + factors[r][0]) e;
//                    others[r][i] += (1 + factors[r][1 + i]) e
// add_to_others      others[r][i] += rows[r]
// multiply_by_row    rows[r] *= row
// Shapes, all f32: rows, first, predicted [n_rows, width]; others [n_rows, n, width]; row [width]; factors [n_rows, n + 1, n + 1] for
// predict_streams, [n_rows, n + 1] for correct_streams.
// Grids: repeat_rows and add_to_others (ceil(width / 256), n_rows, n); match_magnitudes (n_rows, n), a thread block a stream, 32 bytes of
// shared memory; the others (ceil(width / 256), n_rows), a thread having a column of all streams. Block: 256.
// predict_streams_n{4,16}: up to 4 and up to 16 streams, which a thread keeps in registers.
// Alignment: 4 bytes. Measured on the simulator only.
#include "reduce.cuh"

constexpr float MIN_MEAN_SQUARE = 1e-5f;

DEVICE int column() { return blockIdx.x * blockDim.x + threadIdx.x; }

// Where the stream of this thread block begins.
DEVICE size_t stream_start(int width) { return ((size_t)blockIdx.y * gridDim.z + blockIdx.z) * width; }

KERNEL __launch_bounds__(256) repeat_rows(const float* rows, int width, float* others) {
    int i = column();
    if (i >= width) return;
    others[stream_start(width) + i] = rows[(size_t)blockIdx.y * width + i];
}

KERNEL __launch_bounds__(256) match_magnitudes(const float* first, int width, float* others) {
    __shared__ float partial[8];
    const float* target = first + (size_t)blockIdx.x * width;
    float* own = others + ((size_t)blockIdx.x * gridDim.y + blockIdx.y) * width;
    float target_squares = 0.0f, own_squares = 0.0f;
#pragma unroll 1
    for (int i = threadIdx.x; i < width; i += blockDim.x) {
        target_squares += target[i] * target[i];
        own_squares += own[i] * own[i];
    }
    float target_mean = block_sum(target_squares, partial) / width;
    float own_mean = block_sum(own_squares, partial) / width;
    float factor = sqrtf(target_mean) / sqrtf(fmaxf(own_mean, MIN_MEAN_SQUARE));
#pragma unroll 1
    for (int i = threadIdx.x; i < width; i += blockDim.x) own[i] *= factor;
}

template <int N>
DEVICE void predict(const float* factors, int n_others, int width, float* first, float* others) {
    int i = column(), n = n_others + 1;
    if (i >= width) return;
    const float* of_row = factors + (size_t)blockIdx.y * n * n;
    float* own = first + (size_t)blockIdx.y * width + i;
    float* rest = others + (size_t)blockIdx.y * n_others * width + i;
    float old[N];
#pragma unroll
    for (int j = 0; j < N; j++) old[j] = j == 0 ? *own : j < n ? rest[(size_t)(j - 1) * width] : 0.0f;
#pragma unroll
    for (int s = 0; s < N; s++) {
        if (s >= n) break;
        float sum = 0.0f;
#pragma unroll
        for (int j = 0; j < N; j++)
            if (j < n) sum += of_row[s * n + j] * old[j];
        sum += old[s];
        if (s == 0) *own = sum;
        else rest[(size_t)(s - 1) * width] = sum;
    }
}

KERNEL __launch_bounds__(256) predict_streams_n4(const float* factors, int n_others, int width, float* first, float* others) {
    predict<4>(factors, n_others, width, first, others);
}

KERNEL __launch_bounds__(256) predict_streams_n16(const float* factors, int n_others, int width, float* first, float* others) {
    predict<16>(factors, n_others, width, first, others);
}

KERNEL __launch_bounds__(256)
    correct_streams(const float* factors, const float* predicted, int n_others, int width, float* first, float* others) {
    int i = column();
    if (i >= width) return;
    const float* of_row = factors + (size_t)blockIdx.y * (n_others + 1);
    size_t at = (size_t)blockIdx.y * width + i;
    float error = first[at] - predicted[at];
    first[at] = predicted[at] + (1.0f + of_row[0]) * error;
    float* rest = others + (size_t)blockIdx.y * n_others * width + i;
#pragma unroll 1
    for (int s = 0; s < n_others; s++) rest[(size_t)s * width] += (1.0f + of_row[1 + s]) * error;
}

KERNEL __launch_bounds__(256) add_to_others(const float* rows, int width, float* others) {
    int i = column();
    if (i >= width) return;
    others[stream_start(width) + i] += rows[(size_t)blockIdx.y * width + i];
}

KERNEL __launch_bounds__(256) multiply_by_row(float* rows, const float* row, int width) {
    int i = column();
    if (i >= width) return;
    rows[(size_t)blockIdx.y * width + i] *= row[i];
}
