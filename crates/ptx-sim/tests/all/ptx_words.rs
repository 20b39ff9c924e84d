//! A PTX module and words of its language, for mutations.

/// A module with parameters, shared memory, a predicate, a loop, vectors, a shuffle, a barrier and an atomic operation.
pub(crate) const MODULE: &str = r"
.version 8.3
.target sm_80
.address_size 64
.global .align 4 .b8 table[16] = {1, 2, 3, 4};
.visible .entry sum(
    .param .u64 out, .param .u64 x, .param .u32 n
)
.maxntid 32, 1, 1
{
    .reg .pred %p<3>;
    .reg .b16 %h<3>;
    .reg .b32 %r<12>;
    .reg .f32 %f<6>;
    .reg .b64 %a<6>;
    .shared .align 16 .b8 stage[128];
    ld.param.u64 %a0, [out];
    ld.param.u64 %a1, [x];
    ld.param.u32 %r0, [n];
    cvta.to.global.u64 %a2, %a1;
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %a3, %r1, 16;
    add.s64 %a4, %a2, %a3;
    mov.f32 %f0, 0f00000000;
$loop:
    setp.ge.u32 %p0, %r1, %r0;
    @%p0 bra $done;
    ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%a4];
    fma.rn.f32 %f0, %f1, %f2, %f0;
    add.u32 %r1, %r1, 32;
    bra $loop;
$done:
    mov.u32 %r2, stage;
    st.shared.f32 [%r2+4], %f0;
    bar.sync 0;
    shfl.sync.bfly.b32 %r3|%p1, %r1, 1, 31, -1;
    cvt.rn.f16.f32 %h0, %f0;
    @!%p1 atom.global.add.u32 %r4, [%a0], 1;
    st.global.f32 [%a0], %f0;
    ret;
}
";

/// Words of the language.
pub(crate) const WORDS: [&str; 44] = [
    ".version 8.3",
    ".target",
    ".entry",
    ".func",
    ".param .u64 p",
    ".reg .b32 %r<99999999>;",
    ".shared .b8 s[4294967295];",
    ".global .align 0 .b8 g[1];",
    ".maxntid",
    ".extern",
    "{",
    "}",
    "(",
    ")",
    "[",
    "]",
    ";",
    ",",
    "$loop:",
    "bra $loop;",
    "@%p0",
    "@!%p2",
    "ret;",
    "exit;",
    "bar.sync 0;",
    "mov.u32 %r1, %r2;",
    "ld.global.v4.f32 {%f0, %f1, %f2, %f3}, [%a0];",
    "mad.lo.s32",
    "cvt.rzi.s32.f32",
    "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32",
    "ldmatrix.sync.aligned.m8n8.x4.shared.b16",
    "cp.async.cg.shared.global",
    ".v2",
    ".f64",
    ".pred",
    "%tid.x",
    "%r11",
    "0f7F800000",
    "0xFFFFFFFFFFFFFFFFF",
    "// ",
    "/*",
    "*/",
    "\"",
    "é",
];
