// Asynchronous copies into shared memory, and how fragments for tensor cores come out of it.
//
// A thread sees what its own copies brought after it waited for their group, other threads after a barrier too. All of these say
// that they touch memory, so that the compiler moves no ordinary access over them. Alignment: that of the bytes copied.
#pragma once
#include "reduce.cuh"

DEVICE uint32_t shared_at(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }

// Copies 16 bytes to OFFSET bytes behind an address of shared memory.
template <int OFFSET>
DEVICE void copy_once(uint32_t to, const uint8_t* from) {
    asm volatile("cp.async.cg.shared.global [%0+%2], [%1], 16;" ::"r"(to), "l"(from), "n"(OFFSET) : "memory");
}
// The same for 4, 8 or 16 bytes that other thread blocks of the multiprocessor may ask for too.
template <int BYTES>
DEVICE void copy_shared(uint32_t to, const uint8_t* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(from), "n"(BYTES) : "memory");
}
// Copies 16 bytes, or zeros where `is_there` is false.
DEVICE void copy16(void* to, const void* from, bool is_there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_at(to)), "l"(from), "r"(is_there ? 16 : 0)
                 : "memory");
}
DEVICE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits for all groups of copies but the PENDING newest.
template <int PENDING>
DEVICE void wait_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// Four matrices of 8 rows of 16 bytes, OFFSET bytes behind the addresses: a lane gives that of row lane % 8 of matrix lane / 8.
template <int OFFSET = 0>
DEVICE void load_words(uint32_t (&r)[4], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4+%5];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at), "n"(OFFSET)
                 : "memory");
}
