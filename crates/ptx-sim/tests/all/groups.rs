//! The matrix operations of warpgroups against plain loops, and a planted bug for each step that a kernel may omit.

use tokenmill_ptx_sim::{DeviceMemory, FindingKind, LaunchConfig, Module};

use crate::bench::{HEADER, Values, run_module};

/// Rows of A.
const ROWS: usize = 64;

/// Layout of a test's matrices in shared memory.
#[derive(Clone, Copy)]
struct Layout {
    /// Bits 62 and 63 of a descriptor.
    swizzle: u64,
    /// Bytes of a row of the pattern, which hold all of its k.
    row_bytes: usize,
}

const LAYOUTS: [Layout; 4] = [
    Layout {
        swizzle: 0,
        row_bytes: 32,
    },
    Layout {
        swizzle: 1,
        row_bytes: 128,
    },
    Layout {
        swizzle: 2,
        row_bytes: 64,
    },
    Layout {
        swizzle: 3,
        row_bytes: 32,
    },
];

impl Layout {
    fn k(self) -> usize {
        self.row_bytes / 2
    }

    /// Returns the address of an element. Without a swizzle, core matrices of 8 rows by 16 bytes follow each other along k. With one,
    /// rows of 128 bytes are permuted by the row, those of 64 by every second row and those of 32 by every fourth.
    fn offset(self, row: usize, k: usize) -> usize {
        let part = k / 8;
        let place = match self.swizzle {
            0 => return row / 8 * 256 + part * 128 + row % 8 * 16 + k % 8 * 2,
            1 => part ^ (row % 8),
            2 => part ^ (row / 2 % 4),
            _ => part ^ (row / 4 % 2),
        };
        row * self.row_bytes + place * 16 + k % 8 * 2
    }

    fn image(self, values: &[i32], bits: fn(i32) -> u16) -> Vec<u8> {
        let mut bytes = vec![0; values.len() * 2];
        for (index, &value) in values.iter().enumerate() {
            let at = self.offset(index / self.k(), index % self.k());
            bytes[at..at + 2].copy_from_slice(&bits(value).to_le_bytes());
        }
        bytes
    }

    /// Returns the descriptor of a matrix at an address, without the address.
    fn descriptor(self) -> u64 {
        let stride = if self.swizzle == 0 {
            256
        } else {
            8 * self.row_bytes as u64
        };
        self.swizzle << 62 | (stride / 16) << 32 | (128 / 16) << 16
    }
}

fn f16(value: i32) -> u16 {
    if value == 0 {
        return 0;
    }
    let exponent = value.unsigned_abs().ilog2();
    let fraction = (value.unsigned_abs() << (10 - exponent)) & 0x3ff;
    (u16::from(value < 0) << 15) | ((exponent + 15) << 10 | fraction) as u16
}

fn bf16(value: i32) -> u16 {
    ((value as f32).to_bits() >> 16) as u16
}

fn whole(values: &mut Values, n: usize) -> Vec<i32> {
    (0..n).map(|_| (values.bits() % 17) as i32 - 8).collect()
}

/// The parts of the kernel that a test changes.
#[derive(Clone, Copy)]
struct Parts<'a> {
    fill: &'a str,
    after_fill: &'a str,
    fence: &'a str,
    before_wait: &'a str,
    wait: &'a str,
    after_wait: &'a str,
}

const PARTS: Parts<'_> = Parts {
    fill: "st.shared.v4.u32 [%to], {%v0, %v1, %v2, %v3};",
    after_fill: "fence.proxy.async.shared::cta; bar.sync 0;",
    fence: "wgmma.fence.sync.aligned;",
    before_wait: "",
    wait: "wgmma.wait_group.sync.aligned 0;",
    after_wait: "",
};

/// 128 threads fill shared memory with the two images, multiply, and store the accumulators, register by register.
fn kernel(layout: Layout, n: usize, in_registers: bool, parts: Parts<'_>) -> String {
    let (a_bytes, b_bytes) = (ROWS * layout.row_bytes, n * layout.row_bytes);
    let list: Vec<String> = (0..n / 2).map(|index| format!("%c{index}")).collect();
    let list = list.join(", ");
    let multiply = |step: usize| {
        let (adds, at) = (u32::from(step > 0), 32 * step);
        // Without a swizzle, two core matrices further along k.
        let start = at / 16;
        let a = if in_registers {
            let (a0, a1, a2, a3) = (4 * step, 4 * step + 1, 4 * step + 2, 4 * step + 3);
            format!("{{%a{a0}, %a{a1}, %a{a2}, %a{a3}}}")
        } else {
            "%da".to_owned()
        };
        let transposed = if in_registers { "0" } else { "0, 0" };
        format!(
            "setp.ne.u32 %p, {adds}, 0; add.u64 %da, %pa, {start}; add.u64 %db, %pb, {start};
            wgmma.mma_async.sync.aligned.m64n{n}k16.f32.f16.f16 {{{list}}}, {a}, %db, %p, 1, 1, {transposed};\n"
        )
    };
    let load = |index: usize| {
        let (step, register) = (index / 4, index % 4);
        let offset = 8 * layout.row_bytes * (register % 2) + 16 * (register / 2) + 32 * step;
        format!("ld.global.u32 %a{index}, [%row+{offset}];\n")
    };
    let n_steps = layout.k() / 16;
    let loads: String = (0..4 * n_steps).map(load).collect();
    let steps: String = (0..n_steps).map(multiply).collect();
    let store = |index: usize| format!("st.global.u32 [%out+{}], %c{index};\n", 512 * index);
    let stores: String = (0..n / 2).map(store).collect();
    let Parts {
        fill,
        after_fill,
        fence,
        before_wait,
        wait,
        after_wait,
    } = parts;
    let (descriptor, n_accumulators) = (layout.descriptor(), n / 2);
    format!(
        "{}.visible .entry k(.param .u64 images, .param .u64 rows, .param .u64 out) {{
        .shared .align 1024 .b8 s[{}];
        .reg .pred %p, %q; .reg .b32 %c<{n_accumulators}>; .reg .b32 %a<16>; .reg .b32 %v<4>; .reg .b32 %t, %to, %x, %y;
        .reg .b64 %in, %row, %out, %pa, %pb, %da, %db;
        ld.param.u64 %in, [images]; ld.param.u64 %row, [rows]; ld.param.u64 %out, [out];
        mov.u32 %t, %tid.x; mad.wide.u32 %out, %t, 4, %out;
        mul.lo.u32 %to, %t, 16; mad.wide.u32 %in, %to, 1, %in; mov.u32 %x, s; add.u32 %to, %to, %x;
        shr.u32 %x, %t, 5; shl.b32 %x, %x, 4; bfe.u32 %y, %t, 2, 3; add.u32 %x, %x, %y; mul.lo.u32 %x, %x, {};
        and.b32 %y, %t, 3; mad.lo.u32 %x, %y, 4, %x; mad.wide.u32 %row, %x, 1, %row;
        mov.u32 %y, 0;
        L: ld.global.v4.u32 {{%v0, %v1, %v2, %v3}}, [%in]; {fill}
        add.u32 %to, %to, 2048; add.u64 %in, %in, 2048; add.u32 %y, %y, 2048; setp.lt.u32 %q, %y, {};
        @%q bra L;
        {after_fill}
        mov.u32 %x, s; shr.u32 %x, %x, 4; cvt.u64.u32 %pa, %x; or.b64 %pa, %pa, {descriptor}; add.u64 %pb, %pa, {};
        {loads}
        {fence}
        {steps}
        wgmma.commit_group.sync.aligned;
        {before_wait}
        {wait}
        {after_wait}
        {stores}
        ret; }}",
        HEADER.replace("sm_90", "sm_90a"),
        (a_bytes + b_bytes).next_multiple_of(2048),
        layout.row_bytes,
        a_bytes + b_bytes,
        a_bytes / 16,
    )
}

/// Runs the kernel; returns its findings and whether the product is right.
fn multiply(layout: Layout, n: usize, in_registers: bool, parts: Parts<'_>) -> (Vec<FindingKind>, bool) {
    let ptx = kernel(layout, n, in_registers, parts);
    multiply_by(&ptx, layout, n, f16, 1)
}

/// Does the same with a kernel's text, numbers of a type, and a factor of the product.
fn multiply_by(
    ptx: &str,
    layout: Layout,
    n: usize,
    bits: fn(i32) -> u16,
    factor: i32,
) -> (Vec<FindingKind>, bool) {
    let mut values = Values(7);
    let k = layout.k();
    let (a, b) = (whole(&mut values, ROWS * k), whole(&mut values, n * k));
    let mut images = layout.image(&a, bits);
    images.extend(layout.image(&b, bits));
    images.resize(images.len().next_multiple_of(2048), 0);
    let rows = a.iter().flat_map(|&value| bits(value).to_le_bytes()).collect();
    let mut buffers = [images, rows, vec![0; ROWS * n * 4]];
    let report = run_module(ptx, &LaunchConfig::new([1, 1, 1], [128, 1, 1]), &mut buffers);
    let (words, _) = buffers[2].as_chunks::<4>();
    let is_right = (0..ROWS * n).all(|index| {
        let (row, column) = (index / n, index % n);
        let expected: i32 = (0..k).map(|k_| a[row * k + k_] * b[column * k + k_]).sum();
        // A thread has two of every eight columns, in rows 8 apart.
        let register = column / 8 * 4 + row / 8 % 2 * 2 + column % 2;
        let thread = row / 16 * 32 + row % 8 * 4 + column % 8 / 2;
        f32::from_le_bytes(words[register * 128 + thread]) == (factor * expected) as f32
    });
    (
        report.findings.into_iter().map(|finding| finding.kind).collect(),
        is_right,
    )
}

#[test]
fn warpgroups_multiply_what_lies_in_shared_memory() {
    for layout in LAYOUTS {
        for (n, in_registers) in [(8, false), (24, true), (128, false), (256, true)] {
            let (findings, is_right) = multiply(layout, n, in_registers, PARTS);
            assert_eq!(findings, [], "swizzle {}, n {n}", layout.swizzle);
            assert!(
                is_right,
                "swizzle {}, n {n}, A in registers: {in_registers}",
                layout.swizzle
            );
        }
    }
}

#[test]
fn bf16_and_factors_of_minus_one() {
    for in_registers in [false, true] {
        let ptx = kernel(LAYOUTS[1], 16, in_registers, PARTS);
        let bf16_ptx = ptx.replace(".f32.f16.f16", ".f32.bf16.bf16");
        assert_eq!(multiply_by(&bf16_ptx, LAYOUTS[1], 16, bf16, 1), (vec![], true));
        for (factors, factor) in [("-1, 1", -1), ("1, -1", -1), ("-1, -1", 1)] {
            let ptx = ptx.replace("%p, 1, 1,", &format!("%p, {factors},"));
            assert_eq!(
                multiply_by(&ptx, LAYOUTS[1], 16, f16, factor),
                (vec![], true),
                "{factors}"
            );
        }
        let ptx = ptx.replace("%p, 1, 1,", "%p, 2, 1,");
        let error = Module::load(&ptx, &mut DeviceMemory::new()).unwrap_err();
        assert!(error.to_string().contains("factors of 1 or -1"), "{error}");
    }
}

#[test]
fn registers_move_between_warps_in_eights() {
    let load = |n: u32| {
        let after_fill = format!("{} setmaxnreg.inc.sync.aligned.u32 {n};", PARTS.after_fill);
        let parts = Parts {
            after_fill: &after_fill,
            ..PARTS
        };
        Module::load(&kernel(LAYOUTS[1], 16, true, parts), &mut DeviceMemory::new())
    };
    assert!(load(240).is_ok());
    for n in [16, 244, 264] {
        let error = load(n).unwrap_err().to_string();
        assert!(error.contains("24 to 256 registers, a multiple of 8"), "{error}");
    }
}

#[test]
fn accumulators_are_no_numbers_before_the_wait() {
    for in_registers in [false, true] {
        for wait in ["", "wgmma.wait_group.sync.aligned 1;"] {
            let (findings, is_right) = multiply(LAYOUTS[1], 16, in_registers, Parts { wait, ..PARTS });
            assert_eq!(findings[0], FindingKind::EarlyAccumulator);
            assert!(!is_right);
        }
    }
    // A copy is not an access, but a write is, and so is a write to A's registers.
    let (findings, is_right) = multiply(
        LAYOUTS[1],
        16,
        false,
        Parts {
            before_wait: "mov.b32 %x, %c1;",
            after_wait: "mov.b32 %c1, %x;",
            ..PARTS
        },
    );
    assert_eq!((findings, is_right), (vec![], true));
    for (before_wait, in_registers) in [("add.u32 %c1, %x, 1;", false), ("add.u32 %a1, %x, 1;", true)] {
        let (findings, _) = multiply(LAYOUTS[1], 16, in_registers, Parts { before_wait, ..PARTS });
        assert_eq!(findings, [FindingKind::EarlyAccumulator], "{before_wait}");
    }
    let (findings, _) = multiply(
        LAYOUTS[1],
        16,
        true,
        Parts {
            before_wait: "add.u32 %x, %a1, 1;",
            ..PARTS
        },
    );
    assert_eq!(findings, []);
}

#[test]
fn registers_are_fenced_before_an_operation() {
    for fence in [
        "",
        "wgmma.fence.sync.aligned; add.u32 %c3, %x, 1;",
        "wgmma.fence.sync.aligned; mov.b32 %c3, 0;",
    ] {
        let (findings, _) = multiply(LAYOUTS[1], 16, true, Parts { fence, ..PARTS });
        let is_missing = |kind: &FindingKind| *kind == FindingKind::MissingGroupFence;
        assert!(
            !findings.is_empty() && findings.iter().all(is_missing),
            "{fence}: {findings:?}"
        );
    }
}

#[test]
fn ordinary_stores_are_fenced_before_an_operation_reads_them() {
    let findings = |after_fill: &str| multiply(LAYOUTS[1], 16, false, Parts { after_fill, ..PARTS }).0;
    let is_missing = |kind: &FindingKind| matches!(kind, FindingKind::MissingProxyFence { .. });
    assert!(is_missing(&findings("bar.sync 0;")[0]));
    // A fence by the reader after the barrier works too; before the stores of others are visible it does not.
    assert_eq!(findings("bar.sync 0; fence.proxy.async;"), []);
    let found = findings("fence.proxy.async;");
    let is_race = |kind: &FindingKind| matches!(kind, FindingKind::SharedRace { .. });
    assert!(found.iter().any(is_race), "{found:?}");
    // Another store after the fence needs another.
    let found = findings("fence.proxy.async; st.shared.u32 [%to+-2048], %v0; bar.sync 0;");
    assert!(is_missing(&found[0]), "{found:?}");
}

#[test]
fn what_an_operation_reads_is_not_overwritten_before_its_wait() {
    let body = "mov.u32 %to, s; setp.eq.u32 %q, %t, 0; ";
    let store = "@%q st.shared.u32 [%to+8208], 0;";
    // The barrier orders the store after the issue, but not after the operation. This also holds for the warp's own store.
    let own = "@%q st.shared.u32 [%to+16], 0;";
    let early = format!("{body} bar.sync 0; {store} bar.sync 0;");
    let (findings, _) = multiply(
        LAYOUTS[1],
        16,
        false,
        Parts {
            before_wait: &format!("{body} {own}"),
            ..PARTS
        },
    );
    assert!(
        matches!(findings[0], FindingKind::SharedRace { .. }),
        "{findings:?}"
    );
    let (findings, _) = multiply(
        LAYOUTS[1],
        16,
        false,
        Parts {
            before_wait: &early,
            ..PARTS
        },
    );
    assert!(
        matches!(findings[0], FindingKind::SharedRace { .. }),
        "{findings:?}"
    );
    let late = format!("{body} bar.sync 0; {store}");
    let (findings, is_right) = multiply(
        LAYOUTS[1],
        16,
        false,
        Parts {
            after_wait: &late,
            ..PARTS
        },
    );
    assert_eq!((findings, is_right), (vec![], true));
}

#[test]
fn a_warpgroup_does_the_same_in_all_its_warps() {
    let different = "setp.lt.u32 %q, %t, 32; @%q sub.u64 %pb, %pb, 64;";
    let fence = format!("{} {different}", PARTS.fence);
    let (findings, _) = multiply(
        LAYOUTS[1],
        16,
        false,
        Parts {
            fence: &fence,
            ..PARTS
        },
    );
    assert!(findings.contains(&FindingKind::DivergentGroup), "{findings:?}");
}

#[test]
fn descriptors_outside_of_shared_memory_or_with_an_offset_end_the_launch() {
    for (change, is_bounds) in [
        ("add.u64 %pb, %pb, 4096;", true),
        ("or.b64 %pb, %pb, 562949953421312;", false),
    ] {
        let fence = format!("{} {change}", PARTS.fence);
        let (findings, _) = multiply(
            LAYOUTS[1],
            16,
            false,
            Parts {
                fence: &fence,
                ..PARTS
            },
        );
        assert_eq!(
            matches!(findings[0], FindingKind::OutOfBounds { .. }),
            is_bounds,
            "{findings:?}"
        );
        assert_eq!(
            matches!(findings[0], FindingKind::BadDescriptor { .. }),
            !is_bounds
        );
    }
}

#[test]
fn only_the_architecture_that_has_them_loads_them() {
    let ptx = kernel(LAYOUTS[1], 16, true, PARTS);
    for other in ["sm_90", "sm_100a", "sm_80"] {
        let error = Module::load(&ptx.replace("sm_90a", other), &mut DeviceMemory::new()).unwrap_err();
        assert!(
            error.to_string().contains("is not executed by this interpreter"),
            "{error}"
        );
    }
    let module = Module::load(&ptx, &mut DeviceMemory::new()).unwrap();
    assert!(module.is_for(90) && ![80, 89, 100, 120].iter().any(|&other| module.is_for(other)));
    // Other shapes are rejected too.
    let transposed = ptx.replace("%p, 1, 1, 0;", "%p, 1, 1, 2;");
    let error = Module::load(&transposed, &mut DeviceMemory::new()).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("0 or 1 for whether a matrix is transposed"),
        "{error}"
    );
    assert!(Module::load(&ptx.replace("m64n16k16", "m64n20k16"), &mut DeviceMemory::new()).is_err());
}
