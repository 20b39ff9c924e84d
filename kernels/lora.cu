// lora.cu: what LoRA adapters add to products, for rows that have different adapters.
//
// lora_down: t[job][r][s][i] = the sum of A[i][c] * x[r][c] over the columns c of split s (512 columns each).
// lora_up: y[r][o] += scale * sum of B[o][i] * (t[job][r][0][i] + t[job][r][1][i] + ...) over i.
//
// A and B are those of the adapter of row r at the product's place: the rows come in tiles of up to 16 that have one adapter, and a tile
// points to the table of its adapter, `Change[places]`. Its rows are `rows[first..first + n_rows]`. A tile without rows, and a place without a
// change (rank 0), are nothing to do. Tables, tiles and their rows are in device memory, so a captured launch serves whatever adapters the step has.
//
// lora_down: grid (tiles, splits * ceil(max_rank / 16), jobs); block 256: 16 rows of A, 16 lanes each, which keep their 32 weights in registers.
// lora_up: grid (tiles, ceil(n_out / 128), jobs); block 128, a thread an output, whose row of B is in registers, 16 weights at a time.
// Shapes: x [n_rows, n_in] f32, y [n_rows, n_out] f32, A [rank, n_in] and B [n_out, rank] f32, f16 or bf16 with rows padded to 16 bytes,
// t [jobs, n_rows, splits, rank_stride] f32. Shared memory: 32 KB and 1 KB. The order of additions depends on nothing but the row and its weights,
// so a row's bits do not depend on its company. Measured on the simulator only.
#include "formats/float.cuh"

constexpr int TILE_ROWS = 16;
constexpr int SPLIT = 512;
constexpr int RANKS = 16;
constexpr int LANES = 16;
// Rows whose sums a thread makes at the same time.
constexpr int STEP = 4;

// Rows with one adapter; `table` is the address of its changes.
struct Tile {
    const struct Change* table;
    uint32_t first, n_rows;
};

// What an adapter changes at a place; the types are 0 for f32, 1 for f16, 2 for bf16.
struct Change {
    const uint8_t* a;
    const uint8_t* b;
    int rank;
    float scale;
    int a_type, b_type;
};

DEVICE int pick(int index, int a, int b, int c) { return index == 0 ? a : index == 1 ? b : c; }

// Bytes of a row of `n` values.
DEVICE size_t row_bytes(int type, int n) { return ((size_t)n * (type == 0 ? 4 : 2) + 15) / 16 * 16; }

// Four neighbouring weights that begin at a multiple of four.
DEVICE float4 four_weights(const uint8_t* row, int type, int column) {
    if (type == 0) return __ldg((const float4*)row + column / 4);
    uint2 q = __ldg((const uint2*)row + column / 4);
    if (type == 1) {
        float2 low = __half22float2(*(const __half2*)&q.x), high = __half22float2(*(const __half2*)&q.y);
        return make_float4(low.x, low.y, high.x, high.y);
    }
    return make_float4(__uint_as_float(q.x << 16), __uint_as_float(q.x & 0xffff0000u), __uint_as_float(q.y << 16),
                       __uint_as_float(q.y & 0xffff0000u));
}

// Four neighbouring values of a row of `n`, from a multiple of four on; zeros behind its end.
DEVICE float4 four_inputs(const float* row, int column, int n) {
    if (n % 4 == 0) return load_written((const float4*)(row + column));
    float4 v = make_float4(row[column], 0, 0, 0);
    if (column + 1 < n) v.y = row[column + 1];
    if (column + 2 < n) v.z = row[column + 2];
    if (column + 3 < n) v.w = row[column + 3];
    return v;
}

DEVICE float dot(float4 a, float4 b, float sum) {
    sum = fmaf(a.x, b.x, sum);
    sum = fmaf(a.y, b.y, sum);
    sum = fmaf(a.z, b.z, sum);
    return fmaf(a.w, b.w, sum);
}

KERNEL __launch_bounds__(256) lora_down(const Tile* tiles, const uint32_t* rows, const float* x, int n_in, int n_rows, int place0, int place1, int place2,
                                        float* t, int rank_stride) {
    __shared__ float4 xs[TILE_ROWS][SPLIT / 4];
    let_next_begin();
    int n_splits = (n_in + SPLIT - 1) / SPLIT;
    int split = blockIdx.y % n_splits, first_rank = blockIdx.y / n_splits * RANKS;
    int lane = threadIdx.x % LANES, rank_idx = first_rank + threadIdx.x / LANES, first_column = split * SPLIT;
    Tile tile = tiles[blockIdx.x];
    Change change = {};
    if (tile.n_rows > 0) change = tile.table[pick(blockIdx.z, place0, place1, place2)];
    float4 w[SPLIT / LANES / 4];
    const uint8_t* row = change.a + row_bytes(change.a_type, n_in) * rank_idx;
#pragma unroll
    for (int i = 0; i < SPLIT / LANES / 4; i++) {
        int column = first_column + (i * LANES + lane) * 4;
        w[i] = rank_idx < change.rank && column < n_in ? four_weights(row, change.a_type, column) : make_float4(0, 0, 0, 0);
    }
    await_earlier();
    if (first_rank >= change.rank) return;
    int n_filled = ((int)tile.n_rows + STEP - 1) / STEP * STEP;
#pragma unroll
    for (int j = 0; j < TILE_ROWS * SPLIT / 4 / 256; j++) {
        int r = (j * 256 + threadIdx.x) / (SPLIT / 4), i = threadIdx.x % (SPLIT / 4);
        if (r >= n_filled) break;
        int column = first_column + 4 * i;
        float4 v = make_float4(0, 0, 0, 0);
        if (r < (int)tile.n_rows && column < n_in) v = four_inputs(x + (size_t)rows[tile.first + r] * n_in, column, n_in);
        xs[r][i] = v;
    }
    __syncthreads();
    float* to = t + ((size_t)blockIdx.z * n_rows * n_splits + split) * rank_stride + rank_idx;
    for (int r = 0; r < n_filled; r += STEP) {
        float sums[STEP] = {};
#pragma unroll
        for (int i = 0; i < SPLIT / LANES / 4; i++)
#pragma unroll
            for (int k = 0; k < STEP; k++) sums[k] = dot(w[i], xs[r + k][i * LANES + lane], sums[k]);
#pragma unroll
        for (int m = LANES / 2; m > 0; m /= 2)
#pragma unroll
            for (int k = 0; k < STEP; k++) sums[k] += __shfl_xor_sync(FULL_WARP, sums[k], m);
        float sum = sums[0];
#pragma unroll
        for (int k = 1; k < STEP; k++) sum = lane == k ? sums[k] : sum;
        if (lane < STEP && r + lane < (int)tile.n_rows && rank_idx < change.rank)
            to[(size_t)rows[tile.first + r + lane] * n_splits * rank_stride] = sum;
    }
}

KERNEL __launch_bounds__(128) lora_up(const Tile* tiles, const uint32_t* rows, const float* t, int n_rows, int rank_stride, int n_splits, int place0, int place1,
                                      int place2, float* y0, float* y1, float* y2, int n_out0, int n_out1, int n_out2) {
    __shared__ float4 ts[TILE_ROWS][RANKS / 4];
    let_next_begin();
    int job = blockIdx.z, o = blockIdx.y * blockDim.x + threadIdx.x;
    int n_out = pick(job, n_out0, n_out1, n_out2);
    float* y = job == 0 ? y0 : job == 1 ? y1 : y2;
    Tile tile = tiles[blockIdx.x];
    Change change = {};
    if (tile.n_rows > 0) change = tile.table[pick(job, place0, place1, place2)];
    const uint8_t* row = change.b + row_bytes(change.b_type, change.rank) * o;
    float sums[TILE_ROWS] = {};
    const float* from = t + (size_t)job * n_rows * n_splits * rank_stride;
    await_earlier();
    if (blockIdx.y * blockDim.x >= n_out || change.rank == 0) return;
    for (int first_rank = 0; first_rank < change.rank; first_rank += RANKS) {
        float4 w[RANKS / 4];
#pragma unroll
        for (int i = 0; i < RANKS / 4; i++) {
            int column = first_rank + 4 * i;
            w[i] = o < n_out && column < change.rank ? four_weights(row, change.b_type, column) : make_float4(0, 0, 0, 0);
        }
        __syncthreads();
        for (int i = threadIdx.x; i < (int)tile.n_rows * RANKS; i += blockDim.x) {
            int rank_idx = first_rank + i % RANKS;
            const float* parts = from + (size_t)rows[tile.first + i / RANKS] * n_splits * rank_stride + rank_idx;
            float sum = 0.0f;
            if (rank_idx < change.rank)
                for (int s = 0; s < n_splits; s++) sum += parts[s * rank_stride];
            ((float*)ts)[i] = sum;
        }
        __syncthreads();
#pragma unroll
        for (int r = 0; r < TILE_ROWS; r++) {
            if (r >= (int)tile.n_rows) break;
#pragma unroll
            for (int i = 0; i < RANKS / 4; i++) sums[r] = dot(w[i], ts[r][i], sums[r]);
        }
    }
    if (o >= n_out) return;
#pragma unroll
    for (int r = 0; r < TILE_ROWS; r++) {
        if (r >= (int)tile.n_rows) break;
        float* to = y + (size_t)rows[tile.first + r] * n_out + o;
        *to = fmaf(change.scale, sums[r], *to);
    }
}
