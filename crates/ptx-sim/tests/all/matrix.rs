//! Matrix operations and asynchronous copies against plain loops.

use tokenmill_ptx_sim::LaunchConfig;

use crate::bench::{Values, one_warp, run};

/// One warp computes `C = A B + C` with fragments loaded straight from row-major A, column-major B and row-major C.
fn multiply(shape: &str, n_a: usize, n_b: usize, row_bytes: usize, a: &[u8], b: &[u8], c: &[u8]) -> Vec<u8> {
    let half = if n_a == 4 { row_bytes / 2 } else { 0 };
    let load_a = |index: usize| {
        let offset = 8 * row_bytes * (index % 2) + half * (index / 2);
        format!("ld.global.u32 %a{index}, [%pa+{offset}];\n")
    };
    let load_b = |index: usize| format!("ld.global.u32 %b{index}, [%pb+{}];\n", half * index);
    let body: String = (0..n_a).map(load_a).chain((0..n_b).map(load_b)).collect();
    let list = |name: &str, n: usize| {
        let names: Vec<String> = (0..n).map(|index| format!("%{name}{index}")).collect();
        format!("{{{}}}", names.join(", "))
    };
    let (a_list, b_list) = (list("a", n_a), list("b", n_b));
    let ptx = format!(
        ".visible .entry k(.param .u64 a, .param .u64 b, .param .u64 c) {{
        .reg .b32 %a<4>; .reg .b32 %b<4>; .reg .b32 %c<4>; .reg .b64 %pa, %pb, %pc; .reg .b32 %lane, %g, %t, %x;
        ld.param.u64 %pa, [a]; ld.param.u64 %pb, [b]; ld.param.u64 %pc, [c];
        mov.u32 %lane, %laneid; shr.u32 %g, %lane, 2; and.b32 %t, %lane, 3;
        mul.lo.u32 %x, %g, {row_bytes}; mad.lo.u32 %x, %t, 4, %x;
        mad.wide.u32 %pa, %x, 1, %pa; mad.wide.u32 %pb, %x, 1, %pb;
        mul.lo.u32 %x, %g, 32; mad.lo.u32 %x, %t, 8, %x; mad.wide.u32 %pc, %x, 1, %pc;
        ld.global.v2.u32 {{%c0, %c1}}, [%pc]; ld.global.v2.u32 {{%c2, %c3}}, [%pc+256];
        {body}
        mma.sync.aligned.{shape} {{%c0,%c1,%c2,%c3}}, {a_list}, {b_list}, {{%c0,%c1,%c2,%c3}};
        st.global.v2.u32 [%pc], {{%c0, %c1}}; st.global.v2.u32 [%pc+256], {{%c2, %c3}}; ret; }}"
    );
    let mut buffers = [a.to_vec(), b.to_vec(), c.to_vec()];
    let report = run(&ptx, &one_warp(), &mut buffers);
    assert_eq!(report.findings, []);
    buffers[2].clone()
}

/// Small whole numbers, which every format holds exactly.
fn whole(values: &mut Values, n: usize) -> Vec<i32> {
    (0..n).map(|_| (values.bits() % 17) as i32 - 8).collect()
}

fn product(a: &[i32], b: &[i32], c: &[i32], k: usize) -> Vec<i32> {
    (0..128)
        .map(|index| {
            let (row, column) = (index / 8, index % 8);
            let dot: i32 = (0..k).map(|i| a[row * k + i] * b[column * k + i]).sum();
            c[index] + dot
        })
        .collect()
}

fn f16_bits(value: i32) -> u16 {
    let magnitude = value.unsigned_abs();
    if magnitude == 0 {
        return 0;
    }
    let exponent = magnitude.ilog2();
    let mantissa = (magnitude << (10 - exponent)) & 0x3ff;
    (u32::from(value < 0) << 15 | (exponent + 15) << 10 | mantissa) as u16
}

fn bf16_bits(value: i32) -> u16 {
    ((value as f32).to_bits() >> 16) as u16
}

#[test]
fn float_products_match_a_plain_loop() {
    let mut values = Values(7);
    for (shape, k, bits) in [
        ("m16n8k16.row.col.f32.f16.f16.f32", 16, f16_bits as fn(i32) -> u16),
        ("m16n8k16.row.col.f32.bf16.bf16.f32", 16, bf16_bits),
        ("m16n8k8.row.col.f32.f16.f16.f32", 8, f16_bits),
    ] {
        let (a, b, c) = (
            whole(&mut values, 16 * k),
            whole(&mut values, 8 * k),
            whole(&mut values, 128),
        );
        let pack = |values: &[i32]| {
            values
                .iter()
                .flat_map(|&value| bits(value).to_le_bytes())
                .collect::<Vec<_>>()
        };
        let floats = |values: &[i32]| {
            values
                .iter()
                .flat_map(|&value| (value as f32).to_le_bytes())
                .collect::<Vec<_>>()
        };
        let found = multiply(shape, k / 4, k / 8, 2 * k, &pack(&a), &pack(&b), &floats(&c));
        assert_eq!(found, floats(&product(&a, &b, &c, k)), "{shape}");
    }
}

/// A register holds one number, and bits beyond tf32 are cut off.
#[test]
fn tf32_products_match_a_plain_loop() {
    let mut values = Values(5);
    let (a, b, c) = (
        whole(&mut values, 16 * 8),
        whole(&mut values, 8 * 8),
        whole(&mut values, 128),
    );
    for lowest_bits in [0, 0x1fff] {
        let pack = |values: &[i32]| {
            let bits = values.iter().map(|&value| (value as f32).to_bits() | lowest_bits);
            bits.flat_map(u32::to_le_bytes).collect::<Vec<_>>()
        };
        let floats = |values: &[i32]| {
            let floats = values.iter().map(|&value| value as f32);
            floats.flat_map(f32::to_le_bytes).collect::<Vec<_>>()
        };
        let shape = "m16n8k8.row.col.f32.tf32.tf32.f32";
        let found = multiply(shape, 4, 2, 32, &pack(&a), &pack(&b), &floats(&c));
        assert_eq!(found, floats(&product(&a, &b, &c, 8)), "{lowest_bits:x}");
    }
}

#[test]
fn byte_products_match_a_plain_loop() {
    let mut values = Values(11);
    for (shape, k) in [
        ("m16n8k32.row.col.s32.s8.s8.s32", 32),
        ("m16n8k16.row.col.s32.s8.s8.s32", 16),
    ] {
        let mut bytes = |n: usize| (0..n).map(|_| i32::from(values.bits() as i8)).collect::<Vec<_>>();
        let (a, b, c) = (bytes(16 * k), bytes(8 * k), bytes(128));
        let pack = |values: &[i32]| values.iter().map(|&value| value as u8).collect::<Vec<_>>();
        let words = |values: &[i32]| {
            values
                .iter()
                .flat_map(|value| value.to_le_bytes())
                .collect::<Vec<_>>()
        };
        let found = multiply(shape, k / 8, k / 16, k, &pack(&a), &pack(&b), &words(&c));
        assert_eq!(found, words(&product(&a, &b, &c, k)), "{shape}");
    }
}

/// Copies four 8 by 8 matrices to shared memory asynchronously and loads them as fragments.
fn load_matrices(transposed: &str, wait: &str) -> (Vec<u16>, Vec<String>) {
    let ptx = format!(
        ".visible .entry k(.param .u64 a, .param .u64 out) {{
        .shared .align 16 .b8 s[512]; .reg .b32 %r<8>; .reg .b64 %d<4>;
        ld.param.u64 %d0, [a]; ld.param.u64 %d1, [out]; mov.u32 %r0, %tid.x; mov.u32 %r1, s;
        mad.lo.u32 %r2, %r0, 16, %r1; mad.wide.u32 %d2, %r0, 16, %d0;
        cp.async.cg.shared.global [%r2], [%d2], 16; cp.async.commit_group; {wait} bar.warp.sync -1;
        ldmatrix.sync.aligned.m8n8.x4{transposed}.shared.b16 {{%r3, %r4, %r5, %r6}}, [%r2];
        mad.wide.u32 %d3, %r0, 16, %d1; st.global.v4.u32 [%d3], {{%r3, %r4, %r5, %r6}}; ret; }}"
    );
    let input = (0..256u16).flat_map(u16::to_le_bytes).collect();
    let mut buffers = [input, vec![0; 512]];
    let report = run(&ptx, &one_warp(), &mut buffers);
    let (halves, _) = buffers[1].as_chunks::<2>();
    let messages = report.findings.iter().map(ToString::to_string).collect();
    (
        halves.iter().map(|bytes| u16::from_le_bytes(*bytes)).collect(),
        messages,
    )
}

#[test]
fn matrix_loads_give_each_lane_its_fragment() {
    for (name, is_transposed) in [("", false), (".trans", true)] {
        let (found, findings) = load_matrices(name, "cp.async.wait_group 0;");
        assert!(findings.is_empty(), "{findings:?}");
        for lane in 0..32 {
            for matrix in 0..4 {
                for half in 0..2 {
                    let (row, column) = (lane / 4, 2 * (lane % 4) + half);
                    let (row, column) = if is_transposed {
                        (column, row)
                    } else {
                        (row, column)
                    };
                    assert_eq!(
                        found[8 * lane + 2 * matrix + half] as usize,
                        64 * matrix + 8 * row + column
                    );
                }
            }
        }
    }
}

#[test]
fn a_missing_wait_is_seen_and_the_data_is_not_there() {
    let (found, findings) = load_matrices("", "");
    assert!(found.iter().all(|&value| value == 0));
    assert!(
        findings[0].contains("is still being filled by line 8 `cp.async.cg.shared.global`"),
        "{findings:?}"
    );
    // One group may stay unfinished, and it is the needed one.
    let (_, findings) = load_matrices("", "cp.async.wait_group 1;");
    assert_eq!(findings.len(), 1);
}

#[test]
fn a_short_copy_fills_with_zeros() {
    let ptx = ".visible .entry k(.param .u64 a, .param .u64 out) {
        .shared .align 16 .b8 s[512]; .reg .b32 %r<8>; .reg .b64 %d<4>;
        ld.param.u64 %d0, [a]; ld.param.u64 %d1, [out]; mov.u32 %r0, %tid.x; mov.u32 %r1, s;
        mad.lo.u32 %r2, %r0, 16, %r1; and.b32 %r7, %r0, 15;
        cp.async.cg.shared.global [%r2], [%d0], 16, %r7; cp.async.wait_all;
        ld.shared.v4.u32 {%r3, %r4, %r5, %r6}, [%r2];
        mad.wide.u32 %d3, %r0, 16, %d1; st.global.v4.u32 [%d3], {%r3, %r4, %r5, %r6}; ret; }";
    let mut buffers = [vec![0xab; 15], vec![0; 512]];
    let report = run(ptx, &one_warp(), &mut buffers);
    assert_eq!(report.findings, []);
    for (lane, found) in buffers[1].chunks(16).enumerate() {
        let n = lane % 16;
        let expected: Vec<u8> = (0..16).map(|index| if index < n { 0xab } else { 0 }).collect();
        assert_eq!(found, expected);
    }
}

#[test]
fn a_grid_of_matrix_products_runs_on_many_threads() {
    let config = LaunchConfig::new([9, 1, 1], [64, 1, 1]);
    let ptx = ".visible .entry k(.param .u64 out) { .reg .b32 %r<8>; .reg .b64 %d<2>;
        mov.u32 %r0, 0x3c003c00; mov.u32 %r1, 0; mov.u32 %r2, 0; mov.u32 %r3, 0; mov.u32 %r4, 0;
        mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%r1,%r2,%r3,%r4}, {%r0,%r0,%r0,%r0}, {%r0,%r0}, {%r1,%r2,%r3,%r4};
        mov.u32 %r5, %ctaid.x; mov.u32 %r6, %tid.x; mad.lo.u32 %r5, %r5, 64, %r6;
        ld.param.u64 %d0, [out]; mad.wide.u32 %d0, %r5, 4, %d0; st.global.u32 [%d0], %r4; ret; }";
    let mut buffers = [vec![0; 9 * 64 * 4]];
    let report = run(ptx, &config, &mut buffers);
    assert_eq!(report.findings, []);
    assert_eq!(buffers[0], 16f32.to_le_bytes().repeat(9 * 64));
}
