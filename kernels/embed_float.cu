// Looks up token embeddings in a float table: y[t][i] = scale * table[id(t)][i].
//
// Compiled once a float format: -DFORMAT=F16.
//
// grid: n_tokens; block: 128; a thread takes a chunk of 16 bytes at a time. No shared memory.
// Shapes and tokens as embed.cu; rows of the table are padded to 16 bytes. Measured on the simulator only.
#include "formats/float.cuh"

KERNEL __launch_bounds__(128) embed(const uint4* table, int n_vocab, int n_embd, const uint32_t* tokens,
                                    const uint32_t* sampled, float scale, float* y) {
    uint32_t id = tokens[blockIdx.x];
    if (id & 0x80000000u) id = sampled[id & 0x7fffffffu];
    if (id >= (uint32_t)n_vocab) id = 0;
    constexpr int LEN = FORMAT::LEN;
    int chunks = (n_embd + LEN - 1) / LEN;
    for (int chunk = threadIdx.x; chunk < chunks; chunk += blockDim.x) {
        float v[LEN];
        FORMAT::values(__ldg(table + (size_t)id * chunks + chunk), v);
        float* out = y + (size_t)blockIdx.x * n_embd + chunk * LEN;
#pragma unroll
        for (int j = 0; j < LEN; j++)
            if (chunk * LEN + j < n_embd) out[j] = scale * v[j];
    }
}
