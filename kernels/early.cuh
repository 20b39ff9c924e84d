// Launches that begin before those before them are done: programmatic dependent launch, from compute capability 9.0 on.
//
// A kernel that calls `await_earlier` is launched so that its thread blocks may come to the multiprocessors while the launch before still runs.
// Until then its threads read nothing but weights and what the host gave the step, and write nothing to device memory; and they never read what
// kernels write by `__ldg`, which may be made earlier than it stands. The simulator finds what breaks this. Of a launch at least one thread
// waits, so that whoever waits for it has waited for those before it too. A kernel that does not wait is launched behind all that is before it.
//
// In the PTX the two instructions are comments that begin with `//early `: GPUs without them get the text as it is, and for others the marks are
// taken away (`crates/cuda-exec/src/modules/variant.rs`). Modules of sm_90a alone are no such pairs.
#pragma once

// Lets the next launch begin, once all thread blocks of this one have come here: its weights are on their way meanwhile.
static __device__ __forceinline__ void let_next_begin() { asm volatile("//early griddepcontrol.launch_dependents;"); }

// Waits until all launches before this one are done and what they wrote is there.
static __device__ __forceinline__ void await_earlier() { asm volatile("//early griddepcontrol.wait;" ::: "memory"); }

// What a kernel has written, in one load. Written out, since the compiler cuts ordinary loads into the parts that are used, and keeps so many of them
// on their way that registers run short; and they must not move before the wait.
static __device__ __forceinline__ uint4 load_written(const uint4* p) {
    uint4 x;
    asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "l"(__cvta_generic_to_global(p)));
    return x;
}
static __device__ __forceinline__ uint2 load_written(const uint2* p) {
    uint2 x;
    asm volatile("ld.global.v2.u32 {%0,%1}, [%2];" : "=r"(x.x), "=r"(x.y) : "l"(__cvta_generic_to_global(p)));
    return x;
}
static __device__ __forceinline__ float4 load_written(const float4* p) {
    float4 x;
    asm volatile("ld.global.v4.f32 {%0,%1,%2,%3}, [%4];"
                 : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
                 : "l"(__cvta_generic_to_global(p)));
    return x;
}

// Both, for kernels that have nothing to do before.
static __device__ __forceinline__ void begin_after_earlier() {
    let_next_begin();
    await_earlier();
}
