// Sampling of rows of logits, and log-probabilities: the token that the host's sampler picks from the same logits.
//
// Compiled with -fmad=false: scores are rounded after each operation, as on the host, so the race has the same winner.
//
// sample_parts: grid: (n_parts, n_rows); block: 256, a thread block a part of PART logits. Leaves of each part:
//   1. logits with bias, mask and penalties in `adjusted`, where the row has any;
//   2. a record (Part): the best logits, raw and adjusted, and where log-probabilities are asked for the sum of the weights;
//   3. where a row keeps up to FEW tokens, at least as many of its likeliest, in no order; and of the raw ones those to report.
//   4. zeros in the row's record (Many) where more than FEW tokens may be drawn.
// sample_weights, sample_candidates: grid and block as sample_parts, only for steps with such a row; nothing for other rows. The first adds the
//   weights of each part up by buckets, the second lets the tokens race that stay for sure and lists those at the cuts (sample_many.cuh).
// sample_rows: grid: n_rows; block: 1024, a thread block a row, from what the parts left. In order:
//   1. status 1 where a logit is NaN or positive infinity, or all are negative infinity; 2 where nothing is left;
//   2. greedy: the highest logit, the lowest id among equals; else top-k, top-p, min-p, and the exponential race
//      argmax_i (logit[i] - max) / temperature - ln(e[i]), where e[i] is a function of seed, position and i. The whole row is
//      read again only where more than LIST tokens are as likely as those at a cut, to a sixteenth of a logit;
//   3. where asked for: the log-probability of the token under the raw logits, and the likeliest tokens with theirs.
// Shapes: logits, adjusted [n_rows, n_vocab] f32 (adjusted is scratch); rows [n_rows] SampleRow; parts [n_rows, n_parts] Part; manys [n_rows] Many;
//   history, mask_words, bias_ids, previous (ids sampled by the step before) u32; biases f32; sampled, status [n_rows] u32;
//   logprobs [n_rows] f32; top_ids u32 and top_logprobs f32, at offsets that the rows give. A row with RAW set is left alone.
// Filters select by (logit, id) without a sort: sums are integers, so no order can change them.
// Shared: static, 8.1, 6.1, 22.1 and 3.8 KiB. Alignment: 8 bytes. Measured on the simulator only: bench/runs.
#include "sample_many.cuh"

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

KERNEL __launch_bounds__(PART_THREADS, 1)
    sample_parts(const float* logits, float* adjusted, int n_vocab, const SampleRow* rows, const uint32_t* history,
                 const uint32_t* mask_words, const uint32_t* bias_ids, const float* biases, const uint32_t* previous, Part* parts,
                 Many* manys) {
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
    if (blockIdx.x == 0 && draws_many(p, n_vocab)) clear_many(manys[blockIdx.y]);
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
            uint64_t bound = find_bound(keys, 1, highest, min(p.n_top, MOST_REPORTED), MOST_REPORTED, counters);
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
    keep_from(keys, find_bound(keys, 1, highest, p.top_k, FEW, counters), part.kept, FEW, n_kept);
}

KERNEL __launch_bounds__(PART_THREADS, 1)
    sample_weights(const float* logits, const float* adjusted, int n_vocab, const SampleRow* rows, const Part* parts, Many* manys) {
    begin_after_earlier();
    __shared__ WeighShared s;
    const SampleRow p = rows[blockIdx.y];
    if (!draws_many(p, n_vocab) || !is_cut(p, n_vocab)) return;
    const uint32_t first = blockIdx.x * PART, end = min(first + PART, (uint32_t)n_vocab);
    const float* row = (p.flags & ADJUSTS ? adjusted : logits) + (size_t)blockIdx.y * n_vocab;
    weigh_part(row, first, end, parts + (size_t)blockIdx.y * gridDim.x, gridDim.x, manys[blockIdx.y], s);
}

KERNEL __launch_bounds__(PART_THREADS, 1)
    sample_candidates(const float* logits, const float* adjusted, int n_vocab, const SampleRow* rows, const Part* parts, Many* manys) {
    begin_after_earlier();
    __shared__ RaceShared s;
    const SampleRow p = rows[blockIdx.y];
    if (!draws_many(p, n_vocab)) return;
    const uint32_t first = blockIdx.x * PART, end = min(first + PART, (uint32_t)n_vocab);
    const float* row = (p.flags & ADJUSTS ? adjusted : logits) + (size_t)blockIdx.y * n_vocab;
    race_part(row, first, end, n_vocab, parts + (size_t)blockIdx.y * gridDim.x, gridDim.x, p, manys[blockIdx.y], s);
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
    uint64_t bound = find_bound(keys, 1, highest, p.top_k, p.top_k, s.counters);
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
                const Many* manys, int have_raced, uint32_t* sampled, uint32_t* status, float* logprobs, uint32_t* top_ids,
                float* top_logprobs) {
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
    } else if (have_raced && manys[blockIdx.x].n_listed <= LIST) {
        id = draw_many(manys[blockIdx.x], n_parts, row[id_of(best)], p, s);
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
