// Matrix operations of warpgroups (sm_90a only): A in registers, B in shared memory, sums in f32; and the barriers and bulk copies that go with them.
//
// A warpgroup is four warps with 16 rows of A each. A lane has sums d[4 n + i] of row lane / 4 + 8 (i / 2) and column 8 n + 2 (lane % 4) + i % 2. Operations
// are asynchronous: between the fence and the wait for their group neither A's registers nor the sums may be touched. B is 64 of k by 8 columns in
// 1024 bytes, swizzled by 128 bytes: the 16 bytes that are chunk c of column n stand at n * 128 + (c ^ n % 8) * 16. Transposed, k and columns change places.
#pragma once
#include "async_copy.cuh"

#define WIDE_SUM(i) "+f"(d[i])
#define WIDE_FOUR(i) WIDE_SUM(i), WIDE_SUM(i + 1), WIDE_SUM(i + 2), WIDE_SUM(i + 3)
#define WIDE_SUMS(i) WIDE_FOUR(i), WIDE_FOUR(i + 4), WIDE_FOUR(i + 8), WIDE_FOUR(i + 12)

// d += A B, or d = A B unless it ADDS, for 64 rows, 16 of k and 16, 32, 64, 128 or 256 columns. Of a TRANSPOSED B the columns of one k are contiguous.
template <bool ADDS = true, bool TRANSPOSED = false>
DEVICE void multiply_wide(float (&d)[8], const uint32_t (&a)[4], uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 {%0,%1,%2,%3,%4,%5,%6,%7},{%8,%9,%10,%11},%12,%13,1,1,%14;"
        : WIDE_FOUR(0), WIDE_FOUR(4)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"((int)ADDS), "n"((int)TRANSPOSED));
}
template <bool ADDS = true, bool TRANSPOSED = false>
DEVICE void multiply_wide(float (&d)[16], const uint32_t (&a)[4], uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 {"
        "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15},"
        "{%16,%17,%18,%19},%20,%21,1,1,%22;"
        : WIDE_SUMS(0)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"((int)ADDS), "n"((int)TRANSPOSED));
}
template <bool ADDS = true, bool TRANSPOSED = false>
DEVICE void multiply_wide(float (&d)[32], const uint32_t (&a)[4], uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
        "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
        "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31},"
        "{%32,%33,%34,%35},%36,%37,1,1,%38;"
        : WIDE_SUMS(0), WIDE_SUMS(16)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"((int)ADDS), "n"((int)TRANSPOSED));
}
template <bool ADDS = true, bool TRANSPOSED = false>
DEVICE void multiply_wide(float (&d)[64], const uint32_t (&a)[4], uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
        "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
        "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
        "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
        "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63},"
        "{%64,%65,%66,%67},%68,%69,1,1,%70;"
        : WIDE_SUMS(0), WIDE_SUMS(16), WIDE_SUMS(32), WIDE_SUMS(48)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"((int)ADDS), "n"((int)TRANSPOSED));
}
template <bool ADDS = true, bool TRANSPOSED = false>
DEVICE void multiply_wide(float (&d)[128], const uint32_t (&a)[4], uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {"
        "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
        "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
        "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
        "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,"
        "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,"
        "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,"
        "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,"
        "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127},"
        "{%128,%129,%130,%131},%132,%133,1,1,%134;"
        : WIDE_SUMS(0), WIDE_SUMS(16), WIDE_SUMS(32), WIDE_SUMS(48), WIDE_SUMS(64), WIDE_SUMS(80), WIDE_SUMS(96), WIDE_SUMS(112)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"((int)ADDS), "n"((int)TRANSPOSED));
}
#undef WIDE_SUMS
#undef WIDE_FOUR
#undef WIDE_SUM

// The descriptor of B at a sixteenth of an address of shared memory, which is a multiple of 1024; 16 of k further are 2 more.
DEVICE uint64_t group_matrix(uint32_t at) {
    uint64_t matrix;
    asm("mov.b64 %0, {%1, %2};" : "=l"(matrix) : "r"(at), "r"(1 << 30 | 1024 / 16));
    return matrix;
}
DEVICE void fence_group() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void commit_group() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits for all groups but the PENDING newest; with 0 the sums may be used.
template <int PENDING, int SUMS>
DEVICE void wait_group(float (&d)[SUMS]) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
    if (PENDING == 0) {
#pragma unroll
        for (int i = 0; i < SUMS; i++) asm volatile("" : "+f"(d[i])::"memory");
    }
}

// Barriers of 8 bytes in shared memory. A phase ends when `count` have arrived and the bytes that are expected have come.
DEVICE void make_barrier(uint32_t at, int count) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(count) : "memory"); }
DEVICE void show_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
DEVICE void await_phase(uint32_t at, int parity) {
    asm volatile("{ .reg .pred p; L_%=: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @!p bra L_%=; }" ::"r"(at), "r"(parity) : "memory");
}
DEVICE void arrive_at(uint32_t at) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory"); }
DEVICE void arrive_expecting(uint32_t at, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
}
// Copies BYTES, a multiple of 16, and says so to a barrier.
template <int BYTES>
DEVICE void copy_bulk(uint32_t to, const uint8_t* from, uint32_t barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from), "n"(BYTES), "r"(barrier)
                 : "memory");
}
