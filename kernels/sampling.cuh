// Rows and parts of sampling: records, ranks of tokens, weights, the race, and bounds among keys that the threads of a block hold.
//
// Shared by the kernels of sample.cu and by draws among many tokens (sample_many.cuh).
#pragma once
#include "reduce.cuh"

constexpr int THREADS = 1024;
constexpr int PART = 2048;         // logits of a part
constexpr int PART_THREADS = 256;
constexpr int FEW = 64;            // tokens that a part leaves at most
constexpr int MOST_REPORTED = 32;  // the same of raw logits; no row reports more than 20
constexpr int MOST_PARTS = 128;
constexpr uint32_t NONE = 0xffffffffu;

enum Flags { GREEDY = 1, ADJUSTS = 2, LOGPROBS = 4, RAW = 8 };
enum Status { DONE = 0, NOT_FINITE = 1, NOTHING_ALLOWED = 2 };

// What the host says about a row; 80 bytes.
struct __align__(8) SampleRow {
    uint64_t seed;
    uint32_t position;
    uint32_t flags;
    float temperature;
    uint32_t top_k;     // 0 keeps all
    float top_p;        // 1 keeps all
    float ln_min_p;     // negative infinity keeps all
    float repeat, presence, frequency;
    uint32_t history_start, history_end;  // already cut to the newest tokens that count
    uint32_t newest;                      // row of `previous` that follows the history, or NONE
    uint32_t mask_start;                  // or NONE
    uint32_t bias_start, bias_end;        // of bias_ids
    uint32_t biases_start;                // of biases
    uint32_t n_top, top_start;
};

// What a part leaves; empty places are 0.
struct __align__(8) Part {
    uint64_t raw_best, best;  // by ordered_bits; BROKEN where a raw logit is NaN or positive infinity
    uint64_t raw_sum;         // of fixed_weight, with the part's highest raw logit as the maximum
    uint64_t kept[FEW], reported[MOST_REPORTED];
};
static_assert(sizeof(Part) == 8 * 99, "as sample.rs allocates it");
constexpr uint64_t BROKEN = ~0ull;

// Order of the host's total comparison: negative zero is below zero.
DEVICE uint32_t total_bits(float x) {
    uint32_t bits = __float_as_uint(x);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// Larger for likelier tokens, for the lower id among equals.
DEVICE uint64_t rank_of(float logit, int id) { return (uint64_t)total_bits(logit) << 32 | (NONE - (uint32_t)id); }
DEVICE float logit_of(uint64_t rank) {
    uint32_t bits = (uint32_t)(rank >> 32);
    return __uint_as_float(bits & 0x80000000u ? bits & 0x7fffffffu : ~bits);
}
DEVICE int id_of(uint64_t rank) { return (int)(NONE - (uint32_t)rank); }

// exp rounded from f64: what a library that rounds well gives in f32.
DEVICE float exp_exactly(float x) { return x < -104.0f ? 0.0f : (float)exp((double)x); }

DEVICE uint64_t mix(uint64_t state) {
    uint64_t z = state + 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

DEVICE float ln(float x) {
    uint32_t bits = __float_as_uint(x) - 0x3F2AAAABu;
    int exponent = (int)bits >> 23;
    float m = __uint_as_float((bits & 0x007FFFFFu) + 0x3F2AAAABu);
    float s = (m - 1.0f) / (m + 1.0f);
    float z = s * s;
    float series = z * (1.0f / 3.0f + z * (0.2f + z * (1.0f / 7.0f + z * (1.0f / 9.0f))));
    float ln_m = 2.0f * s + 2.0f * s * series;
    return (float)exponent * 0.69314718056f + ln_m;
}

// The exponential random number of token `id`.
DEVICE float exponential(uint64_t key, uint32_t id) {
    uint32_t bits = (uint32_t)(mix(key + (uint64_t)id * 0x9E3779B97F4A7C15ull) >> 32);
    float u = fminf(((float)bits + 0.5f) * 2.3283064e-10f, 0.99999994f);
    return u < 2.4414062e-4f ? u + 0.5f * u * u : -ln(1.0f - u);
}

DEVICE float kept_finite(float before, float after) {
    if (before == -INFINITY) return before;
    if (after != after) return -3.40282347e38f;
    return fminf(fmaxf(after, -3.40282347e38f), 3.40282347e38f);
}

DEVICE uint64_t best_rank(float logit, uint32_t id) { return (uint64_t)ordered_bits(logit) << 32 | (NONE - id); }

// Whether a draw is among the tokens that the parts kept.
DEVICE bool keeps_few(const SampleRow& p, int n) {
    return !(p.flags & GREEDY) && p.top_k > 0 && p.top_k <= FEW && p.top_k < (uint32_t)n;
}

struct Shared {
    uint64_t reduce[THREADS / WARP];
    uint64_t weights[256];
    uint32_t counts[256];
    uint64_t few[FEW];
    uint64_t sum;
    uint32_t count, n_few;
    uint32_t counters[3], sums[3][4];
    int digit;
};

DEVICE uint64_t block_sum_u64(uint64_t x, Shared& s) {
#pragma unroll
    for (int m = WARP / 2; m > 0; m /= 2) x += __shfl_xor_sync(FULL_WARP, x, m);
    if (threadIdx.x % WARP == 0) s.reduce[threadIdx.x / WARP] = x;
    __syncthreads();
    uint64_t total = s.reduce[threadIdx.x % WARP];
#pragma unroll
    for (int m = WARP / 2; m > 0; m /= 2) total += __shfl_xor_sync(FULL_WARP, total, m);
    __syncthreads();
    return total;
}

// exp(logit - max) with 46 bits after the point, at most 2^46: the sum of 2^18 - 1 of them fits into 64 bits.
DEVICE uint64_t fixed_weight(float logit, float max) { return (uint64_t)((double)exp_exactly(logit - max) * 70368744177664.0); }

// How many of all threads' keys are at or above a bound. Calls are numbered, since each takes another counter; all are 0 before the first.
template <int KEYS>
DEVICE uint32_t count_from(const uint64_t (&keys)[KEYS], uint64_t bound, int call, uint32_t (&counters)[3]) {
    uint32_t count = 0;
#pragma unroll
    for (int i = 0; i < KEYS; i++) count += keys[i] >= bound;
#pragma unroll
    for (int m = WARP / 2; m > 0; m /= 2) count += __shfl_xor_sync(FULL_WARP, count, m);
    if (threadIdx.x % WARP == 0) atomicAdd(&counters[call % 3], count);
    if (threadIdx.x == 0) counters[(call + 1) % 3] = 0;
    __syncthreads();
    return counters[call % 3];
}

// A bound that `least` to `most` of all keys are at or above; `low` where fewer than `least` are. Keys differ but for 0, and those that are
// not 0 are between `low`, which is not, and `high`.
template <int KEYS>
DEVICE uint64_t find_bound(const uint64_t (&keys)[KEYS], uint64_t low, uint64_t high, uint32_t least, uint32_t most,
                           uint32_t (&counters)[3]) {
    __syncthreads();
    if (threadIdx.x < 3) counters[threadIdx.x] = 0;
    __syncthreads();
    int call = 0;
    if (count_from(keys, low, call++, counters) <= most) return low;
    // More than `most` are at or above low, fewer than `least` above high.
#pragma unroll 1
    while (low < high) {
        uint64_t middle = low + (high - low) / 2 + 1;
        uint32_t count = count_from(keys, middle, call++, counters);
        if (count >= least && count <= most) return middle;
        if (count > most) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    return low;
}

// Puts the keys from a bound on into a list of `room`, and 0 behind them.
template <int KEYS>
DEVICE void keep_from(const uint64_t (&keys)[KEYS], uint64_t bound, uint64_t* list, int room, uint32_t& n) {
    __syncthreads();
    if (threadIdx.x == 0) n = 0;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < KEYS; i++)
        if (keys[i] >= bound) list[atomicAdd(&n, 1u)] = keys[i];
    __syncthreads();
    for (int i = (int)n + threadIdx.x; i < room; i += blockDim.x) list[i] = 0;
}
