// Looks up token embeddings in a quantized table: y[t][i] = scale * table[id(t)][i].
//
// Compiled once a quantized format: -DFORMAT=Q4_K -DHEADER="formats/q4_k.cuh".
//
// grid: n_tokens; block: 128; a thread takes a group of 32 weights at a time. No shared memory.
// Shapes: table [n_vocab, n_embd] as formats/planes.cuh says, tokens [n_tokens] u32, sampled [rows of the step before] u32,
// y [n_tokens, n_embd] f32. A token with its upper bit set is sampled[token without that bit]; ids beyond the vocabulary,
// which only a failed row leaves, count as 0. Alignment: table 256 bytes, y 16 bytes. Measured on the simulator only.
#include HEADER

KERNEL __launch_bounds__(128) embed(const uint8_t* table, int n_vocab, int n_embd, const uint32_t* tokens,
                                    const uint32_t* sampled, float scale, float* y) {
    uint32_t id = tokens[blockIdx.x];
    if (id & 0x80000000u) id = sampled[id & 0x7fffffffu];
    if (id >= (uint32_t)n_vocab) id = 0;
    int groups = n_embd / GROUP;
    FORMAT f(table, (size_t)n_vocab * groups);
    for (int g = threadIdx.x; g < groups; g += blockDim.x) {
        FORMAT::Raw raw = f.load((size_t)id * groups + g);
        int v[8];
        FORMAT::words(raw, v);
        float4* out = (float4*)(y + (size_t)blockIdx.x * n_embd + g * GROUP);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            float2 so = FORMAT::scale(raw, j / 4);
            float4 four;
            four.x = scale * (so.x * (int8_t)v[j] + so.y);
            four.y = scale * (so.x * (int8_t)(v[j] >> 8) + so.y);
            four.z = scale * (so.x * (int8_t)(v[j] >> 16) + so.y);
            four.w = scale * (so.x * (int8_t)(v[j] >> 24) + so.y);
            out[j] = four;
        }
    }
}
