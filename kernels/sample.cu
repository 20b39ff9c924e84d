// Sampling of rows of logits, and log-probabilities: the token that the host's sampler picks from the same logits.
//
// Compiled with -fmad=false: scores are rounded after each operation, as on the host, so the race has the same winner.
//
// sample_rows: grid: n_rows; block: 1024, a thread block a row. In order:
//   1. status 1 where a logit is NaN or positive infinity, or all are negative infinity;
//   2. logit bias, mask and penalties (a copy in `adjusted`); status 2 where nothing is left;
//   3. greedy: the highest logit, the lowest id among equals; else top-k, top-p, min-p, and the exponential race
//      argmax_i (logit[i] - max) / temperature - ln(e[i]), where e[i] is a function of seed, position and i;
//   4. where asked for: the log-probability of the token under the raw logits, and the likeliest tokens with theirs.
// Shapes: logits, adjusted [n_rows, n_vocab] f32 (adjusted is scratch); rows [n_rows] SampleRow; history, mask_words, bias_ids,
//   previous (ids sampled by the step before) u32; biases f32; sampled, status [n_rows] u32; logprobs [n_rows] f32;
//   top_ids u32 and top_logprobs f32, at offsets that the rows give. A row with RAW set is left alone.
// Filters select by a radix search over (logit, id) instead of a sort: sums are integers, so no order can change them.
// Shared: static, 3.3 KiB. Alignment: 8 bytes. Measured on the simulator only: bench/runs.
#include "reduce.cuh"

constexpr int THREADS = 1024;
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

// Order of the host's total comparison: negative zero is below zero.
DEVICE uint32_t total_bits(float x) {
    uint32_t bits = __float_as_uint(x);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// Larger for likelier tokens, for the lower id among equals.
DEVICE uint64_t rank_of(float logit, int id) { return (uint64_t)total_bits(logit) << 32 | (NONE - (uint32_t)id); }
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

struct Shared {
    uint64_t reduce[THREADS / WARP];
    uint64_t weights[256];
    uint32_t counts[256];
    uint64_t prefix, sum;
    uint32_t count;
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

// exp(logit - max) with 46 bits after the point: 2^17 of them fit into 64 bits.
DEVICE uint64_t fixed_weight(float logit, float max) { return (uint64_t)((double)exp_exactly(logit - max) * 70368744177664.0); }

// The lowest rank that stays when ranks at or above `floor` are taken from the top until their weights reach `target`: each
// counts 1, or exp(logit - max) where `is_weighted`.
DEVICE uint64_t select(const float* row, int n, uint64_t floor, bool is_weighted, float max, uint64_t target, Shared& s) {
    uint64_t prefix = 0, reached = 0;
#pragma unroll 1
    for (int shift = 56; shift >= 0; shift -= 8) {
        if (threadIdx.x < 256) s.weights[threadIdx.x] = 0, s.counts[threadIdx.x] = 0;
        __syncthreads();
#pragma unroll 1
        for (int i = threadIdx.x; i < n; i += THREADS) {
            uint64_t rank = rank_of(row[i], i);
            bool is_here = shift == 56 || rank >> (shift + 8) == prefix >> (shift + 8);
            if (rank < floor || !is_here) continue;
            int digit = (int)(rank >> shift) & 255;
            atomicAdd(&s.counts[digit], 1u);
            if (is_weighted) {
                uint64_t weight = fixed_weight(row[i], max);
                if (weight) atomicAdd((unsigned long long*)&s.weights[digit], (unsigned long long)weight);
            }
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            uint64_t sum = reached;
            int last = -1, digit = 255;
            for (; digit >= 0; digit--) {
                if (s.counts[digit] == 0) continue;
                last = digit;
                uint64_t weight = is_weighted ? s.weights[digit] : s.counts[digit];
                if (sum + weight >= target) break;
                sum += weight;
            }
            // Where the target is out of reach by rounding, everything stays.
            s.digit = digit >= 0 ? digit : last;
            s.sum = sum;
            s.count = s.digit >= 0 ? s.counts[s.digit] : 0;
        }
        __syncthreads();
        int digit = s.digit;
        reached = s.sum;
        uint32_t count = s.count;
        __syncthreads();
        if (digit < 0) return floor;
        prefix |= (uint64_t)digit << shift;
        if (count == 1) break;
    }
    return prefix > floor ? prefix : floor;
}

// Bias, mask and penalties, from `raw` to `out`.
DEVICE void adjust(const float* raw, float* out, int n, const SampleRow& p, const uint32_t* history, const uint32_t* mask_words,
                   const uint32_t* bias_ids, const float* biases, const uint32_t* previous) {
#pragma unroll 1
    for (int i = threadIdx.x; i < n; i += THREADS) out[i] = raw[i];
    __syncthreads();
#pragma unroll 1
    for (uint32_t i = p.bias_start + threadIdx.x; i < p.bias_end; i += THREADS) {
        uint32_t id = bias_ids[i];
        bool is_first = id < (uint32_t)n;
        for (uint32_t j = p.bias_start; j < i && is_first; j++) is_first = bias_ids[j] != id;
        if (!is_first) continue;
        float logit = out[id];
        for (uint32_t j = i; j < p.bias_end; j++)
            if (bias_ids[j] == id) logit = fminf(logit + biases[p.biases_start + j - p.bias_start], 3.40282347e38f);
        out[id] = logit;
    }
    __syncthreads();
    if (p.mask_start != NONE) {
#pragma unroll 1
        for (int i = threadIdx.x; i < n; i += THREADS)
            if (!(mask_words[p.mask_start + i / 32] >> (i % 32) & 1)) out[i] = -INFINITY;
        __syncthreads();
    }
    if (p.repeat == 1.0f && p.presence == 0.0f && p.frequency == 0.0f) return;
    uint32_t n_history = p.history_end - p.history_start, n_recent = n_history + (p.newest != NONE);
    auto recent = [&](uint32_t i) { return i < n_history ? history[p.history_start + i] : previous[p.newest]; };
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < n_recent; i += THREADS) {
        uint32_t id = recent(i), count = 0;
        bool is_first = id < (uint32_t)n;
        for (uint32_t j = 0; j < n_recent && is_first; j++) {
            if (recent(j) != id) continue;
            is_first = j >= i;
            count++;
        }
        if (!is_first) continue;
        float logit = out[id];
        float repeated = logit > 0.0f ? logit / p.repeat : logit * p.repeat;
        float cost = (float)count * p.frequency + p.presence;
        out[id] = kept_finite(logit, repeated - cost);
    }
    __syncthreads();
}

// The lowest id with the highest logit, as rank; zeros of both signs are equal.
DEVICE uint64_t best_of(const float* row, int n, Shared& s) {
    uint64_t best = 0;
#pragma unroll 1
    for (int i = threadIdx.x; i < n; i += THREADS) {
        uint64_t rank = (uint64_t)ordered_bits(row[i]) << 32 | (NONE - (uint32_t)i);
        best = rank > best ? rank : best;
    }
    return block_max(best, s.reduce);
}

DEVICE int draw(const float* row, int n, int best, const SampleRow& p, Shared& s) {
    float max = row[best];
    // Forbidden tokens are not candidates.
    uint64_t floor = rank_of(-INFINITY, 0) + 1;
    if (p.top_k > 0 && p.top_k < (uint32_t)n) {
        uint64_t chosen = select(row, n, 0, false, max, p.top_k, s);
        floor = chosen > floor ? chosen : floor;
    }
    if (p.top_p < 1.0f) {
        uint64_t sum = 0;
#pragma unroll 1
        for (int i = threadIdx.x; i < n; i += THREADS)
            if (rank_of(row[i], i) >= floor) sum += fixed_weight(row[i], max);
        sum = block_sum_u64(sum, s);
        uint64_t target = (uint64_t)ceil((double)p.top_p * (double)sum);
        floor = select(row, n, floor, true, max, target > 0 ? target : 1, s);
    }
    float threshold = max + p.ln_min_p;
    uint64_t key = mix(mix(p.seed) + p.position);
    uint64_t winner = 0;
#pragma unroll 1
    for (int i = threadIdx.x; i < n; i += THREADS) {
        float logit = row[i];
        if (rank_of(logit, i) < floor || logit < threshold) continue;
        float score = (logit - max) / p.temperature - ln(exponential(key, i));
        uint64_t rank = (uint64_t)ordered_bits(score) << 32 | (NONE - (uint32_t)i);
        winner = rank > winner ? rank : winner;
    }
    return id_of(block_max(winner, s.reduce));
}

KERNEL __launch_bounds__(THREADS, 1)
    sample_rows(const float* logits, float* adjusted, int n_vocab, const SampleRow* rows, const uint32_t* history,
                const uint32_t* mask_words, const uint32_t* bias_ids, const float* biases, const uint32_t* previous,
                uint32_t* sampled, uint32_t* status, float* logprobs, uint32_t* top_ids, float* top_logprobs) {
    __shared__ Shared s;
    const SampleRow p = rows[blockIdx.x];
    if (p.flags & RAW) return;
    const int n = n_vocab;
    const float* raw = logits + (size_t)blockIdx.x * n;
    uint32_t n_wrong = 0;
#pragma unroll 1
    for (int i = threadIdx.x; i < n; i += THREADS) n_wrong += !(raw[i] < INFINITY);
    int is_wrong = __syncthreads_or(n_wrong > 0);
    int raw_best = id_of(best_of(raw, n, s));
    uint32_t code = is_wrong || raw[raw_best] == -INFINITY ? NOT_FINITE : DONE;
    int id = raw_best;
    if (code == DONE) {
        const float* row = raw;
        int best = raw_best;
        if (p.flags & ADJUSTS) {
            float* out = adjusted + (size_t)blockIdx.x * n;
            adjust(raw, out, n, p, history, mask_words, bias_ids, biases, previous);
            row = out;
            best = id_of(best_of(row, n, s));
        }
        if (row[best] == -INFINITY) {
            code = NOTHING_ALLOWED;
        } else {
            id = p.flags & GREEDY ? best : draw(row, n, best, p, s);
        }
    }
    if (threadIdx.x == 0) {
        sampled[blockIdx.x] = code == DONE ? (uint32_t)id : NONE;
        status[blockIdx.x] = code;
    }
    if (code != DONE || !(p.flags & LOGPROBS)) return;
    float max = raw[raw_best];
    uint64_t sum = 0;
#pragma unroll 1
    for (int i = threadIdx.x; i < n; i += THREADS) sum += fixed_weight(raw[i], max);
    sum = block_sum_u64(sum, s);
    float log_sum = (float)((double)max + log((double)sum / 70368744177664.0));
    if (threadIdx.x == 0) logprobs[blockIdx.x] = raw[id] - log_sum;
    uint64_t last = ~0ull;
#pragma unroll 1
    for (uint32_t k = 0; k < p.n_top; k++) {
        uint64_t next = 0;
#pragma unroll 1
        for (int i = threadIdx.x; i < n; i += THREADS) {
            uint64_t rank = rank_of(raw[i], i);
            if (rank < last && rank > next) next = rank;
        }
        last = block_max(next, s.reduce);
        if (threadIdx.x == 0) {
            int token = id_of(last);
            top_ids[p.top_start + k] = (uint32_t)token;
            top_logprobs[p.top_start + k] = raw[token] - log_sum;
        }
    }
}
