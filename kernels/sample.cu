// Sampling of rows of logits, and log-probabilities: the token that the host's sampler picks from the same logits.
//
// Compiled with -fmad=false: scores are rounded after each operation, as on the host, so the race has the same winner.
//
// sample_parts: grid: (n_parts, n_rows); block: 256, a thread block a part of PART logits. Leaves of each part:
//   1. logits with bias, mask and penalties in `adjusted`, where the row has any;
//   2. a record (Part): the best logits, raw and adjusted, and where log-probabilities are asked for the sum of the weights;
//   3. where a row keeps up to FEW tokens, at least as many of its likeliest, in no order; and of the raw ones those to report.
// sample_rows: grid: n_rows; block: 1024, a thread block a row, from what the parts left. In order:
//   1. status 1 where a logit is NaN or positive infinity, or all are negative infinity; 2 where nothing is left;
//   2. greedy: the highest logit, the lowest id among equals; else top-k, top-p, min-p, and the exponential race
//      argmax_i (logit[i] - max) / temperature - ln(e[i]), where e[i] is a function of seed, position and i. The whole row is
//      read again only where more than FEW tokens may be kept;
//   3. where asked for: the log-probability of the token under the raw logits, and the likeliest tokens with theirs.
// Shapes: logits, adjusted [n_rows, n_vocab] f32 (adjusted is scratch); rows [n_rows] SampleRow; parts [n_rows, n_parts] Part;
//   history, mask_words, bias_ids, previous (ids sampled by the step before) u32; biases f32; sampled, status [n_rows] u32;
//   logprobs [n_rows] f32; top_ids u32 and top_logprobs f32, at offsets that the rows give. A row with RAW set is left alone.
// Filters select by (logit, id) without a sort: sums are integers, so no order can change them.
// Shared: static, 8.3 and 4.4 KiB. Alignment: 8 bytes. Measured on the simulator only: bench/runs.
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

struct Shared {
    uint64_t reduce[THREADS / WARP];
    uint64_t weights[256];
    uint32_t counts[256];
    uint64_t few[FEW];
    uint64_t sum;
    uint32_t count, n_few;
    uint32_t counters[3];
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

// A bound that `least` to `most` of all keys are at or above; 1 where fewer than `least` are not 0. Keys differ but for 0, and none is above
// `highest`.
template <int KEYS>
DEVICE uint64_t find_bound(const uint64_t (&keys)[KEYS], uint64_t highest, uint32_t least, uint32_t most, uint32_t (&counters)[3]) {
    __syncthreads();
    if (threadIdx.x < 3) counters[threadIdx.x] = 0;
    __syncthreads();
    uint64_t low = 1, high = highest;
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

// Bias, mask and penalties of the logits `first` .. `end`, which are in `tile`.
DEVICE void adjust_part(float* tile, uint32_t first, uint32_t end, const SampleRow& p, const uint32_t* history,
                        const uint32_t* mask_words, const uint32_t* bias_ids, const float* biases, const uint32_t* previous) {
#pragma unroll 1
    for (uint32_t i = p.bias_start + threadIdx.x; i < p.bias_end; i += PART_THREADS) {
        uint32_t id = bias_ids[i];
        bool is_first = id >= first && id < end;
        for (uint32_t j = p.bias_start; j < i && is_first; j++) is_first = bias_ids[j] != id;
        if (!is_first) continue;
        float logit = tile[id - first];
        for (uint32_t j = i; j < p.bias_end; j++)
            if (bias_ids[j] == id) logit = fminf(logit + biases[p.biases_start + j - p.bias_start], 3.40282347e38f);
        tile[id - first] = logit;
    }
    __syncthreads();
    if (p.mask_start != NONE) {
#pragma unroll 1
        for (uint32_t i = first + threadIdx.x; i < end; i += PART_THREADS)
            if (!(mask_words[p.mask_start + i / 32] >> (i % 32) & 1)) tile[i - first] = -INFINITY;
        __syncthreads();
    }
    if (p.repeat == 1.0f && p.presence == 0.0f && p.frequency == 0.0f) return;
    uint32_t n_history = p.history_end - p.history_start, n_recent = n_history + (p.newest != NONE);
    auto recent = [&](uint32_t i) { return i < n_history ? history[p.history_start + i] : previous[p.newest]; };
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < n_recent; i += PART_THREADS) {
        uint32_t id = recent(i), count = 0;
        bool is_first = id >= first && id < end;
        for (uint32_t j = 0; j < n_recent && is_first; j++) {
            if (recent(j) != id) continue;
            is_first = j >= i;
            count++;
        }
        if (!is_first) continue;
        float logit = tile[id - first];
        float repeated = logit > 0.0f ? logit / p.repeat : logit * p.repeat;
        float cost = (float)count * p.frequency + p.presence;
        tile[id - first] = kept_finite(logit, repeated - cost);
    }
    __syncthreads();
}

DEVICE uint64_t best_rank(float logit, uint32_t id) { return (uint64_t)ordered_bits(logit) << 32 | (NONE - id); }

// Whether a draw is among the tokens that the parts kept.
DEVICE bool keeps_few(const SampleRow& p, int n) {
    return !(p.flags & GREEDY) && p.top_k > 0 && p.top_k <= FEW && p.top_k < (uint32_t)n;
}

KERNEL __launch_bounds__(PART_THREADS, 1)
    sample_parts(const float* logits, float* adjusted, int n_vocab, const SampleRow* rows, const uint32_t* history,
                 const uint32_t* mask_words, const uint32_t* bias_ids, const float* biases, const uint32_t* previous, Part* parts) {
    begin_after_earlier();
    constexpr int KEYS = PART / PART_THREADS;
    __shared__ float tile[PART];
    __shared__ uint64_t reduce[PART_THREADS / WARP];
    __shared__ uint32_t counters[3], n_kept;
    const SampleRow p = rows[blockIdx.y];
    if (p.flags & RAW) return;
    const uint32_t first = blockIdx.x * PART, end = min(first + PART, (uint32_t)n_vocab);
    const float* row = logits + (size_t)blockIdx.y * n_vocab;
    Part& part = parts[(size_t)blockIdx.y * gridDim.x + blockIdx.x];
    float raw[KEYS];
    uint64_t raw_best = 0;
#pragma unroll
    for (int k = 0; k < KEYS; k++) {
        uint32_t i = first + threadIdx.x + k * PART_THREADS;
        raw[k] = i < end ? row[i] : -INFINITY;
    }
#pragma unroll
    for (int k = 0; k < KEYS; k++) {
        uint32_t i = first + threadIdx.x + k * PART_THREADS;
        uint64_t rank = !(raw[k] < INFINITY) ? BROKEN : i < end ? best_rank(raw[k], i) : 0;
        raw_best = rank > raw_best ? rank : raw_best;
    }
    raw_best = block_max(raw_best, reduce);
    uint64_t keys[KEYS];
    if (p.flags & LOGPROBS) {
        float max = row[id_of(raw_best == BROKEN ? best_rank(0.0f, first) : raw_best)];
        uint64_t sum = 0, highest = 0;
#pragma unroll
        for (int k = 0; k < KEYS; k++) {
            uint32_t i = first + threadIdx.x + k * PART_THREADS;
            if (raw[k] > -INFINITY && raw[k] < INFINITY && max > -INFINITY) sum += fixed_weight(raw[k], max);
            keys[k] = i < end ? rank_of(raw[k], i) : 0;
            highest = keys[k] > highest ? keys[k] : highest;
        }
#pragma unroll
        for (int m = WARP / 2; m > 0; m /= 2) sum += __shfl_xor_sync(FULL_WARP, sum, m);
        if (threadIdx.x % WARP == 0) reduce[threadIdx.x / WARP] = sum;
        __syncthreads();
        if (threadIdx.x == 0) {
            sum = 0;
            for (int i = 0; i < PART_THREADS / WARP; i++) sum += reduce[i];
            part.raw_sum = sum;
        }
        __syncthreads();
        if (p.n_top > 0) {
            highest = block_max(highest, reduce);
            uint64_t bound = find_bound(keys, highest, min(p.n_top, MOST_REPORTED), MOST_REPORTED, counters);
            keep_from(keys, bound, part.reported, MOST_REPORTED, n_kept);
        }
    }
    uint64_t best = raw_best;
    if (p.flags & ADJUSTS) {
#pragma unroll
        for (int k = 0; k < KEYS; k++) tile[threadIdx.x + k * PART_THREADS] = raw[k];
        __syncthreads();
        adjust_part(tile, first, end, p, history, mask_words, bias_ids, biases, previous);
        float* out = adjusted + (size_t)blockIdx.y * n_vocab;
        best = 0;
#pragma unroll
        for (int k = 0; k < KEYS; k++) {
            uint32_t i = first + threadIdx.x + k * PART_THREADS;
            raw[k] = tile[threadIdx.x + k * PART_THREADS];
            if (i >= end) continue;
            out[i] = raw[k];
            uint64_t rank = best_rank(raw[k], i);
            best = rank > best ? rank : best;
        }
        best = block_max(best, reduce);
    }
    if (threadIdx.x == 0) part.raw_best = raw_best, part.best = best;
    if (!keeps_few(p, n_vocab)) return;
    uint64_t highest = 0;
#pragma unroll
    for (int k = 0; k < KEYS; k++) {
        uint32_t i = first + threadIdx.x + k * PART_THREADS;
        keys[k] = i < end ? rank_of(raw[k], i) : 0;
        highest = keys[k] > highest ? keys[k] : highest;
    }
    highest = block_max(highest, reduce);
    keep_from(keys, find_bound(keys, highest, p.top_k, FEW, counters), part.kept, FEW, n_kept);
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

// As `draw`, from what the parts kept of a row whose best logit is `max`.
DEVICE int draw_few(const Part* parts, int n_parts, float max, const SampleRow& p, Shared& s) {
    constexpr int KEYS = MOST_PARTS * FEW / THREADS;
    uint64_t keys[KEYS];
#pragma unroll
    for (int k = 0; k < KEYS; k++) {
        int part = (threadIdx.x + k * THREADS) / FEW;
        keys[k] = part < n_parts ? parts[part].kept[threadIdx.x % FEW] : 0;
    }
    // Both zeros are one number for the best, and two for ranks.
    uint64_t highest = rank_of(max == 0.0f ? 0.0f : max, 0);
    uint64_t bound = find_bound(keys, highest, p.top_k, p.top_k, s.counters);
    // Forbidden tokens are not candidates.
    uint64_t floor = rank_of(-INFINITY, 0) + 1;
    keep_from(keys, bound > floor ? bound : floor, s.few, FEW, s.n_few);
    __syncthreads();
    int n = s.n_few;
    bool is_one = threadIdx.x < n;
    uint64_t mine = is_one ? s.few[threadIdx.x] : 0, before = 0, sum = 0;
    float logit = logit_of(mine);
    uint64_t weight = is_one ? fixed_weight(logit, max) : 0;
    if (threadIdx.x < FEW) s.weights[threadIdx.x] = weight;
    __syncthreads();
    uint64_t winner = 0;
    if (is_one) {
#pragma unroll 4
        for (int i = 0; i < n; i++) {
            before += s.few[i] > mine ? s.weights[i] : 0;
            sum += s.weights[i];
        }
        uint64_t target = p.top_p < 1.0f ? (uint64_t)ceil((double)p.top_p * (double)sum) : ~0ull;
        if (before < (target > 0 ? target : 1) && !(logit < max + p.ln_min_p)) {
            int id = id_of(mine);
            uint64_t key = mix(mix(p.seed) + p.position);
            float score = (logit - max) / p.temperature - ln(exponential(key, id));
            winner = best_rank(score, id);
        }
    }
    return id_of(block_max(winner, s.reduce));
}

// The log-probability of a token and of the likeliest ones, by what the parts left of the raw logits.
DEVICE void report(const Part* parts, int n_parts, const float* raw, float max, int id, const SampleRow& p, float* logprob,
                   uint32_t* top_ids, float* top_logprobs, Shared& s) {
    uint64_t share = 0;
    if (threadIdx.x < n_parts) {
        const Part& part = parts[threadIdx.x];
        float its_max = raw[id_of(part.raw_best)];
        if (its_max > -INFINITY) share = (uint64_t)((double)part.raw_sum * exp((double)its_max - (double)max));
    }
    uint64_t sum = block_sum_u64(share, s);
    float log_sum = (float)((double)max + log((double)sum / 70368744177664.0));
    if (threadIdx.x == 0) *logprob = raw[id] - log_sum;
    constexpr int KEYS = MOST_PARTS * MOST_REPORTED / THREADS;
    uint64_t keys[KEYS];
#pragma unroll
    for (int k = 0; k < KEYS; k++) {
        int part = (threadIdx.x + k * THREADS) / MOST_REPORTED;
        keys[k] = p.n_top > 0 && part < n_parts ? parts[part].reported[threadIdx.x % MOST_REPORTED] : 0;
    }
    uint64_t last = ~0ull;
#pragma unroll 1
    for (uint32_t i = 0; i < p.n_top; i++) {
        uint64_t next = 0;
#pragma unroll
        for (int k = 0; k < KEYS; k++)
            if (keys[k] < last && keys[k] > next) next = keys[k];
        last = block_max(next, s.reduce);
        if (threadIdx.x == 0) {
            int token = id_of(last);
            top_ids[p.top_start + i] = (uint32_t)token;
            top_logprobs[p.top_start + i] = raw[token] - log_sum;
        }
    }
}

KERNEL __launch_bounds__(THREADS, 1)
    sample_rows(const float* logits, const float* adjusted, int n_vocab, int n_parts, const SampleRow* rows, const Part* all_parts,
                uint32_t* sampled, uint32_t* status, float* logprobs, uint32_t* top_ids, float* top_logprobs) {
    begin_after_earlier();
    __shared__ Shared s;
    const SampleRow p = rows[blockIdx.x];
    if (p.flags & RAW) return;
    const float* raw = logits + (size_t)blockIdx.x * n_vocab;
    const float* row = p.flags & ADJUSTS ? adjusted + (size_t)blockIdx.x * n_vocab : raw;
    const Part* parts = all_parts + (size_t)blockIdx.x * n_parts;
    bool has_part = threadIdx.x < n_parts;
    uint64_t raw_best = block_max(has_part ? parts[threadIdx.x].raw_best : 0, s.reduce);
    uint64_t best = block_max(has_part ? parts[threadIdx.x].best : 0, s.reduce);
    uint32_t code = DONE;
    int id = 0;
    if (raw_best == BROKEN || raw[id_of(raw_best)] == -INFINITY) {
        code = NOT_FINITE;
    } else if (row[id_of(best)] == -INFINITY) {
        code = NOTHING_ALLOWED;
    } else if (p.flags & GREEDY) {
        id = id_of(best);
    } else if (keeps_few(p, n_vocab)) {
        id = draw_few(parts, n_parts, row[id_of(best)], p, s);
    } else {
        id = draw(row, n_vocab, id_of(best), p, s);
    }
    if (threadIdx.x == 0) {
        sampled[blockIdx.x] = code == DONE ? (uint32_t)id : NONE;
        status[blockIdx.x] = code;
    }
    if (code != DONE || !(p.flags & LOGPROBS)) return;
    report(parts, n_parts, raw, raw[id_of(raw_best)], id, p, logprobs + blockIdx.x, top_ids, top_logprobs, s);
}
