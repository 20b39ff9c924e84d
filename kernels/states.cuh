// Where the recurrent states of a step's sequences are.
//
// A layer keeps its states in slots of `stride` floats (a multiple of 64, so that slots are aligned for the widest loads): first the last
// inputs of its convolution, then its matrices. A record of the step's inputs names each sequence's slots. Slots that a step
// writes are touched by no other sequence, so a thread block owns what it reads and writes.
#pragma once
#include "reduce.cuh"

constexpr uint32_t NO_SLOT = 0xffffffffu;

// `from` is NO_SLOT for a sequence that begins with zeros. `save_after` is the token of the step after which the state is copied to
// `save`; NO_SLOT where none is.
struct __align__(16) SeqState {
    uint32_t from, to, save_after, save;
};

// A sequence's tokens, and its slots. A sequence that pads a decode step has no token, and its row of outputs is that of its number.
struct Run {
    uint32_t first, end;
    SeqState slots;
};

DEVICE Run run_of(const uint32_t* seq_starts, const SeqState* states, uint32_t seq) {
    return {seq_starts[seq], seq_starts[seq + 1], states[seq]};
}

// ln(1 + exp(x)), which is x itself where the difference is below a rounding. The rounding of 1 + u is in both factors of the quotient and
// cancels there, so small values keep their digits.
DEVICE float softplus(float x) {
    float u = expf(x), sum = 1.0f + u;
    if (x > 20.0f) return x;
    return sum == 1.0f ? u : logf(sum) * (u / (sum - 1.0f));
}

// Four values from index `i` of `n` values on, zeros behind the last. With `is_aligned`, `n` and the address are such that the four lie
// together or not at all.
DEVICE float4 four_at(const float* values, int i, int n, bool is_aligned) {
    float4 four = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (is_aligned) {
        if (i < n) four = *reinterpret_cast<const float4*>(values + i);
        return four;
    }
    if (i < n) four.x = values[i];
    if (i + 1 < n) four.y = values[i + 1];
    if (i + 2 < n) four.z = values[i + 2];
    if (i + 3 < n) four.w = values[i + 3];
    return four;
}

DEVICE void put_four(float* values, int i, int n, bool is_aligned, float4 four) {
    if (is_aligned) {
        if (i < n) *reinterpret_cast<float4*>(values + i) = four;
        return;
    }
    if (i < n) values[i] = four.x;
    if (i + 1 < n) values[i + 1] = four.y;
    if (i + 2 < n) values[i + 2] = four.z;
    if (i + 3 < n) values[i + 3] = four.w;
}

// The sum over neighbouring `lanes` lanes, a power of two; each of them gets it.
DEVICE float lanes_sum(float x, int lanes) {
#pragma unroll 1
    for (int m = lanes / 2; m > 0; m /= 2) x += __shfl_xor_sync(FULL_WARP, x, m);
    return x;
}
