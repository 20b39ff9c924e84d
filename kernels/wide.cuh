// Products of K-quants with many rows of x on Hopper: matrix operations of warpgroups (sm_90a only).
//
// A thread block multiplies 128 rows of a matrix, 64 for each of its two warpgroups, by 256 rows of x. Weights become f16 in registers,
// as operand A: a lane reads the 16 bytes of a group of 32 for each of its two rows, and which k each of its weights is counted as is free,
// since `wide_tiles` writes x in the same order. x is operand B: tiles of 256 rows and 64 of k, swizzled as the operations want them,
// come by one bulk copy each, STAGES - 2 ahead. A barrier of each stage says that it is full, another that both warpgroups have read it.
//
// A weight is (d * scale) * q - dmin * minimum in f16, times a power of two of the matrix so that small scales are not subnormal; each of
// the two factors and the result is rounded to f16 (2^-11). Sums are f32 over all of k. Tokens of a row's bits depend on nothing but the row.
#pragma once
#include "async_copy.cuh"

constexpr int WIDE_ROWS = 128, WIDE_COLUMNS = 256, WIDE_K = 64, WIDE_STAGES = 6;
constexpr int WIDE_TILE = WIDE_COLUMNS * WIDE_K * 2, WIDE_SHARED = WIDE_STAGES * WIDE_TILE + 1024;

DEVICE void multiply_wide(float (&d)[128], const uint32_t (&a)[4], uint64_t b, int adds) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %133, 0; wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127},{%128,%129,%130,%131},%132,p,1,1,0; }"
        : "+f"(d[0]),"+f"(d[1]),"+f"(d[2]),"+f"(d[3]),"+f"(d[4]),"+f"(d[5]),"+f"(d[6]),"+f"(d[7]),"+f"(d[8]),"+f"(d[9]),"+f"(d[10]),"+f"(d[11]),"+f"(d[12]),"+f"(d[13]),"+f"(d[14]),"+f"(d[15]),"+f"(d[16]),"+f"(d[17]),"+f"(d[18]),"+f"(d[19]),"+f"(d[20]),"+f"(d[21]),"+f"(d[22]),"+f"(d[23]),"+f"(d[24]),"+f"(d[25]),"+f"(d[26]),"+f"(d[27]),"+f"(d[28]),"+f"(d[29]),"+f"(d[30]),"+f"(d[31]),"+f"(d[32]),"+f"(d[33]),"+f"(d[34]),"+f"(d[35]),"+f"(d[36]),"+f"(d[37]),"+f"(d[38]),"+f"(d[39]),"+f"(d[40]),"+f"(d[41]),"+f"(d[42]),"+f"(d[43]),"+f"(d[44]),"+f"(d[45]),"+f"(d[46]),"+f"(d[47]),"+f"(d[48]),"+f"(d[49]),"+f"(d[50]),"+f"(d[51]),"+f"(d[52]),"+f"(d[53]),"+f"(d[54]),"+f"(d[55]),"+f"(d[56]),"+f"(d[57]),"+f"(d[58]),"+f"(d[59]),"+f"(d[60]),"+f"(d[61]),"+f"(d[62]),"+f"(d[63]),"+f"(d[64]),"+f"(d[65]),"+f"(d[66]),"+f"(d[67]),"+f"(d[68]),"+f"(d[69]),"+f"(d[70]),"+f"(d[71]),"+f"(d[72]),"+f"(d[73]),"+f"(d[74]),"+f"(d[75]),"+f"(d[76]),"+f"(d[77]),"+f"(d[78]),"+f"(d[79]),"+f"(d[80]),"+f"(d[81]),"+f"(d[82]),"+f"(d[83]),"+f"(d[84]),"+f"(d[85]),"+f"(d[86]),"+f"(d[87]),"+f"(d[88]),"+f"(d[89]),"+f"(d[90]),"+f"(d[91]),"+f"(d[92]),"+f"(d[93]),"+f"(d[94]),"+f"(d[95]),"+f"(d[96]),"+f"(d[97]),"+f"(d[98]),"+f"(d[99]),"+f"(d[100]),"+f"(d[101]),"+f"(d[102]),"+f"(d[103]),"+f"(d[104]),"+f"(d[105]),"+f"(d[106]),"+f"(d[107]),"+f"(d[108]),"+f"(d[109]),"+f"(d[110]),"+f"(d[111]),"+f"(d[112]),"+f"(d[113]),"+f"(d[114]),"+f"(d[115]),"+f"(d[116]),"+f"(d[117]),"+f"(d[118]),"+f"(d[119]),"+f"(d[120]),"+f"(d[121]),"+f"(d[122]),"+f"(d[123]),"+f"(d[124]),"+f"(d[125]),"+f"(d[126]),"+f"(d[127])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(adds));
}
DEVICE void fence_group() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void commit_group() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING>
DEVICE void wait_group(float (&d)[128]) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
    if (PENDING == 0) {
#pragma unroll
        for (int i = 0; i < 128; i++) asm volatile("" : "+f"(d[i])::"memory");
    }
}
DEVICE void make_barrier(uint32_t at, int count) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(count) : "memory"); }
DEVICE void await_phase(uint32_t at, int parity) {
    asm volatile("{ .reg .pred p; L_%=: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @!p bra L_%=; }" ::"r"(at), "r"(parity) : "memory");
}
DEVICE void arrive_at(uint32_t at) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory"); }
DEVICE void copy_tile(uint32_t to, const uint8_t* from, uint32_t full) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(full), "n"(WIDE_TILE) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from), "n"(WIDE_TILE), "r"(full)
                 : "memory");
}

// Weights of the 16 bytes of one group in one row, as f16 pairs: step s of 8 has pairs 2 s and 2 s + 1.
DEVICE void halves_of(uint32_t word, __half2 scale, __half2 offset, uint32_t (&low)[2], uint32_t (&high)[2]) {
    const __half2 bias = __half2(__half_raw{0x6400}, __half_raw{0x6400});
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t bits = ((word >> (4 * (i / 2) + 8 * (i % 2))) & 0x000f000f) | 0x64006400;
        __half2 w = __hfma2(__hsub2(*(__half2*)&bits, bias), scale, offset);
        (i < 2 ? low : high)[i % 2] = *(uint32_t*)&w;
    }
}

struct WideHeader {
    uint4 bits;
    // Scale and offset of a group, times `up`.
    __device__ __forceinline__ void factors(int group, float up, __half2& scale, __half2& offset) const {
        float2 d = half2_at(bits.x);
        int2 sm = k_scale_min(bits, group);
        scale = __float2half2_rn(d.x * up * sm.x);
        offset = __float2half2_rn(-d.y * up * sm.y);
    }
};

struct WideRows {
    const uint4 *quants[2], *headers[2];
    uint4 q[2][2];  // by half of the superblock, by row
    WideHeader h[2];
    __device__ __forceinline__ void load(int super, int t) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            h[r].bits = __ldg(headers[r] + super);
#pragma unroll
            for (int half = 0; half < 2; half++) q[half][r] = __ldg(quants[r] + super * 8 + half * 4 + t);
        }
    }
};
