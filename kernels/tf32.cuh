// Products of tf32 numbers on tensor cores, which add in f32.
//
// A tf32 number is an f32 whose low 13 bits do not count: it has the range of f32 and 11 bits of a number, so f16 and bf16 are tf32 as they
// are, and an f32 is two of them, its value and the rest, of which 21 bits count. Fragments are those of mma.m16n8k8: with g = lane / 4 and
// t = lane % 4 a lane has rows g and g + 8 of A and column g of B, each with k = t and t + 4.
#pragma once
#include "reduce.cuh"

// A number as two of tf32, whose low 13 bits are zero.
struct Split {
    uint32_t value, rest;
};

DEVICE Split split_tf32(float x) {
    uint32_t value = __float_as_uint(x) & 0xffffe000u;
    return {value, __float_as_uint(x - __uint_as_float(value)) & 0xffffe000u};
}

DEVICE void mma_tf32(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
