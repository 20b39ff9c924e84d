//! Thread blocks that wait for each other: a barrier of the grid, the purpose of each part of it, and endless waits.

use std::sync::Arc;

use tokenmill_ptx_sim::{
    Arguments, Assembled, Conflict, DeviceMemory, DeviceProfile, FindingKind, LaunchConfig, LaunchReport,
    Module, Residency, Start, Written, estimate, launch,
};

use crate::bench::{self, HEADER};

/// Number of launched thread blocks.
const N: u32 = 6;

/// The parts of the barrier that a test changes.
#[derive(Clone, Copy)]
struct Parts<'a> {
    before: &'a str,
    arrive: &'a str,
    load: &'a str,
    after: &'a str,
    until: u32,
}

const PARTS: Parts<'_> = Parts {
    before: "membar.gl;",
    arrive: "atom.global.add.u32 %r4, [%count], 1;",
    load: "ld.volatile.global.u32 %r4, [%count];",
    after: "membar.gl;",
    until: N,
};

/// Each thread block writes its index to `x`; after the barrier it reads the value of its right neighbour and writes it to `y`.
fn kernel(parts: Parts<'_>) -> String {
    let Parts {
        before,
        arrive,
        load,
        after,
        until,
    } = parts;
    format!(
        "{HEADER}.visible .entry k(.param .u64 x, .param .u64 y, .param .u64 count) {{
        .reg .pred %p, %first; .reg .b32 %r<9>; .reg .b64 %x, %y, %count, %to, %from;
        ld.param.u64 %x, [x]; ld.param.u64 %y, [y]; ld.param.u64 %count, [count];
        mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x; mov.u32 %r2, %nctaid.x;
        setp.eq.u32 %first, %r0, 0;
        mad.lo.u32 %r3, %r1, 64, %r0; mad.wide.u32 %to, %r3, 4, %x; st.global.u32 [%to], %r1;
        bar.sync 0;
        @!%first bra JOIN;
        {before}
        {arrive}
        SPIN: {load}
        setp.lt.u32 %p, %r4, {until}; @%p bra SPIN;
        {after}
        JOIN: bar.sync 0;
        add.u32 %r5, %r1, 1; rem.u32 %r5, %r5, %r2; mad.lo.u32 %r5, %r5, 64, %r0; mad.wide.u32 %from, %r5, 4, %x;
        ld.global.u32 %r6, [%from]; mad.wide.u32 %to, %r3, 4, %y; st.global.u32 [%to], %r6;
        ret; }}"
    )
}

pub(crate) struct Ran {
    report: LaunchReport,
    y: Vec<u32>,
}

impl Ran {
    pub(crate) fn kinds(&self) -> Vec<FindingKind> {
        self.report
            .findings
            .iter()
            .map(|finding| finding.kind.clone())
            .collect()
    }
}

pub(crate) fn run_kernel(ptx: &str, change: impl Fn(&mut LaunchConfig, [u64; 3])) -> Ran {
    let mut memory = DeviceMemory::new();
    let module = Module::load(ptx, &mut memory).unwrap();
    let x = memory.alloc(u64::from(N) * 256).unwrap();
    let y = memory.alloc(u64::from(N) * 256).unwrap();
    let count = memory.alloc_with(&[0; 8]).unwrap();
    let mut config = LaunchConfig::new([N, 1, 1], [64, 1, 1]);
    config.instruction_limit = 1 << 20;
    change(&mut config, [x.0, y.0, count.0]);
    let arguments = Arguments::new().ptr(x).ptr(y).ptr(count);
    let report = launch(&module.kernels()[0], &memory, &config, &arguments).unwrap();
    let y = match memory.read_vec(y, N as usize * 256) {
        Ok(bytes) => (bytes
            .as_chunks::<4>()
            .0
            .iter()
            .map(|&bytes| u32::from_le_bytes(bytes)))
        .collect(),
        Err(_) => Vec::new(),
    };
    Ran { report, y }
}

fn run(parts: Parts<'_>, n_resident: u64) -> Ran {
    run_kernel(&kernel(parts), |config, _| config.resident_blocks = n_resident)
}

fn expected() -> Vec<u32> {
    (0..N * 64).map(|at| (at / 64 + 1) % N).collect()
}

#[test]
fn a_barrier_of_the_grid_lets_all_resident_blocks_through() {
    for n_resident in [0, N.into()] {
        let ran = run(PARTS, n_resident);
        assert_eq!(ran.kinds(), []);
        assert_eq!(ran.y, expected());
    }
    // The same again: the order of thread blocks does not vary.
    assert_eq!(run(PARTS, 0).report, run(PARTS, 0).report);
}

#[test]
fn arrivals_may_have_no_result_and_loads_may_acquire() {
    for (arrive, load, before, after) in [
        (
            "red.global.add.u32 [%count], 1;",
            PARTS.load,
            PARTS.before,
            PARTS.after,
        ),
        (
            PARTS.arrive,
            "ld.acquire.gpu.global.u32 %r4, [%count];",
            PARTS.before,
            "",
        ),
        (
            PARTS.arrive,
            "atom.global.or.b32 %r4, [%count], 0;",
            PARTS.before,
            "",
        ),
        (
            PARTS.arrive,
            "atom.global.cas.b32 %r4, [%count], 77, 77;",
            PARTS.before,
            "",
        ),
    ] {
        let ran = run(
            Parts {
                before,
                arrive,
                load,
                after,
                ..PARTS
            },
            0,
        );
        assert_eq!(ran.kinds(), [], "{arrive} {load}");
        assert_eq!(ran.y, expected());
    }
}

#[test]
fn more_blocks_than_are_resident_deadlock_by_name() {
    let ran = run(PARTS, 4);
    let [finding] = ran.report.findings.as_slice() else {
        panic!("{:?}", ran.report.findings)
    };
    assert!(
        matches!(
            finding.kind,
            FindingKind::EndlessSpin {
                waiting_blocks: 4,
                blocks_not_begun: 2,
                ..
            }
        ),
        "{finding}"
    );
    assert!(finding.kind.is_fatal());
    let text = finding.to_string();
    assert!(
        text.starts_with("k block (0, 0, 0) warp 0 lane 0 at line 14 `ld.volatile.global.u32`"),
        "{text}"
    );
    assert!(
        text.ends_with("4 thread blocks wait, 2 more never fit on the device"),
        "{text}"
    );
}

#[test]
fn a_missing_fence_is_a_race() {
    for parts in [
        Parts { before: "", ..PARTS },
        Parts { after: "", ..PARTS },
        // A fence that other thread blocks do not see.
        Parts {
            before: "membar.cta;",
            ..PARTS
        },
        Parts {
            before: "",
            load: "ld.acquire.gpu.global.u32 %r4, [%count];",
            ..PARTS
        },
    ] {
        let kinds = run(parts, 0).kinds();
        assert!(
            matches!(
                kinds.as_slice(),
                [FindingKind::GlobalRace {
                    conflict: Conflict::WriteRead,
                    ..
                }]
            ),
            "{kinds:?}"
        );
    }
    // A barrier that releases before all have arrived does not help either.
    let kinds = run(Parts { until: 1, ..PARTS }, 0).kinds();
    assert!(!kinds.is_empty());
}

/// The first thread block to arrive last sets a flag, for which the others wait: the order passes through it.
#[test]
fn order_passes_through_another_thread_block() {
    let parts = |load| Parts {
        before: "membar.gl;",
        arrive: "atom.global.add.u32 %r4, [%count], 1; setp.lt.u32 %p, %r4, 5; @%p bra SPIN; membar.gl; st.volatile.global.u32 [%count+4], 1;",
        load,
        after: "membar.gl;",
        until: 1,
    };
    let ran = run(parts("ld.volatile.global.u32 %r4, [%count+4];"), 0);
    assert_eq!(ran.kinds(), []);
    assert_eq!(ran.y, expected());
    let without = Parts {
        after: "",
        ..parts("ld.volatile.global.u32 %r4, [%count+4];")
    };
    assert!(!run(without, 0).kinds().is_empty());
}

#[test]
fn a_store_that_releases_needs_no_fence() {
    // A chain: each thread block waits for the previous one, and adds to its value.
    let chain = |store: &str| {
        format!(
            "{HEADER}.visible .entry k(.param .u64 x, .param .u64 y, .param .u64 count) {{
            .reg .pred %p; .reg .b32 %r<9>; .reg .b64 %x, %count;
            ld.param.u64 %x, [x]; ld.param.u64 %count, [count];
            mov.u32 %r0, %tid.x; setp.ne.u32 %p, %r0, 0; @%p ret;
            mov.u32 %r1, %ctaid.x; mov.u32 %r2, %nctaid.x; sub.u32 %r3, %r2, %r1; sub.u32 %r3, %r3, 1;
            setp.eq.u32 %p, %r3, 0; @%p bra FIRST;
            SPIN: ld.acquire.gpu.global.u32 %r4, [%count]; setp.ne.u32 %p, %r4, %r3; @%p bra SPIN;
            ld.global.u32 %r5, [%x]; add.u32 %r5, %r5, 1; st.global.u32 [%x], %r5; bra NEXT;
            FIRST: st.global.u32 [%x], 1;
            NEXT: add.u32 %r3, %r3, 1; {store} [%count], %r3;
            ret; }}"
        )
    };
    // The last in the grid begins, so all others wait for a later one.
    assert_eq!(
        run_kernel(&chain("st.release.gpu.global.u32"), |_, _| ()).kinds(),
        []
    );
    let kinds = run_kernel(&chain("st.relaxed.gpu.global.u32"), |_, _| ()).kinds();
    assert!(
        kinds
            .iter()
            .any(|kind| matches!(kind, FindingKind::GlobalRace { .. })),
        "{kinds:?}"
    );
    // With room for all but one, the missing one never begins.
    let ran = run_kernel(&chain("st.release.gpu.global.u32"), |config, _| {
        config.resident_blocks = u64::from(N) - 1;
    });
    assert!(
        matches!(
            ran.kinds()[..],
            [FindingKind::EndlessSpin {
                waiting_blocks: 5,
                blocks_not_begun: 1,
                ..
            }]
        ),
        "{:?}",
        ran.kinds()
    );
}

#[test]
fn a_value_that_is_never_written_is_named() {
    let ran = run(
        Parts {
            until: N + 1,
            ..PARTS
        },
        0,
    );
    assert!(
        matches!(
            ran.kinds()[..],
            [FindingKind::EndlessSpin {
                waiting_blocks: 6,
                blocks_not_begun: 0,
                ..
            }]
        ),
        "{:?}",
        ran.kinds()
    );
    // One thread block alone waits; the others have ended.
    let alone = kernel(Parts {
        arrive: "setp.ne.u32 %p, %r1, 3; @%p bra JOIN;",
        until: 9,
        ..PARTS
    });
    let ran = run_kernel(&alone, |_, _| ());
    let finding = ran
        .report
        .findings
        .iter()
        .find(|finding| finding.kind.is_fatal())
        .unwrap();
    assert_eq!(finding.location.block, [3, 0, 0]);
    assert!(
        matches!(
            finding.kind,
            FindingKind::EndlessSpin {
                waiting_blocks: 1,
                blocks_not_begun: 0,
                ..
            }
        ),
        "{finding}"
    );
}

/// Lanes of one warp and warps of one thread block wait for each other too.
#[test]
fn a_spin_does_not_starve_its_own_warp() {
    let ptx = format!(
        "{HEADER}.visible .entry k(.param .u64 x, .param .u64 y, .param .u64 count) {{
        .reg .pred %p; .reg .b32 %r<9>; .reg .b64 %count;
        ld.param.u64 %count, [count]; mov.u32 %r0, %tid.x; mov.u32 %r1, 0;
        TAKE: atom.global.cas.b32 %r4, [%count], 0, 1; setp.ne.u32 %p, %r4, 0; @%p bra TAKE;
        membar.gl; ld.volatile.global.u32 %r5, [%count+4]; add.u32 %r5, %r5, 1; st.volatile.global.u32 [%count+4], %r5;
        membar.gl; st.volatile.global.u32 [%count], 0;
        ret; }}"
    );
    assert_eq!(run_kernel(&ptx, |_, _| ()).kinds(), []);
}

#[test]
fn launches_that_begin_early_wait_for_their_own_blocks() {
    // Only this launch uses the barrier before the wait: the previous launch writes elsewhere.
    let parts = Parts {
        after: "membar.gl; griddepcontrol.wait;",
        ..PARTS
    };
    let ptx = kernel(parts).replace("setp.eq.u32 %first", "griddepcontrol.wait; setp.eq.u32 %first");
    let in_flight = |config: &mut LaunchConfig, _: [u64; 3]| {
        config.in_flight = Some(Arc::new(Written::default()));
    };
    let ran = run_kernel(&ptx, in_flight);
    assert_eq!(ran.kinds(), []);
    assert_eq!(ran.y, expected());
    // A barrier whose counter is incremented before the wait may affect the previous launch.
    let ran = run_kernel(&kernel(parts), in_flight);
    assert!(
        (ran.kinds().iter()).any(|kind| matches!(kind, FindingKind::EarlyWrite { .. })),
        "{:?}",
        ran.kinds()
    );
}

#[test]
fn the_time_of_a_wait_is_estimated_and_a_deadlock_refused() {
    let device = DeviceProfile::find("h200").unwrap();
    let estimated = |parts| {
        let mut memory = DeviceMemory::new();
        let module = Module::load(&kernel(parts), &mut memory).unwrap();
        let [x, y] = [0; 2].map(|_| memory.alloc(u64::from(N) * 256).unwrap());
        let count = memory.alloc_with(&[0; 8]).unwrap();
        let arguments = Arguments::new().ptr(x).ptr(y).ptr(count);
        let config = LaunchConfig::new([N, 1, 1], [64, 1, 1]);
        estimate(
            &module.kernels()[0],
            &memory,
            &config,
            &arguments,
            &Assembled::without_code(32),
            device,
            &mut Residency::new(),
            &Start::after(device),
        )
    };
    let us = estimated(PARTS).unwrap().us;
    // Two trips to L2 for the barrier and two more for data, whatever the number of polls.
    assert!((0.5..4.0).contains(&us), "{us}");
    let error = estimated(Parts {
        until: N + 1,
        ..PARTS
    })
    .unwrap_err();
    assert!(
        error.to_string().contains("deadlock: waits for a write"),
        "{error}"
    );
}

/// Returns a persistent kernel: each thread block, one warp, computes every so many rows of a product with a matrix of 64 by 64, and after a barrier of the
/// grid the same rows of a second product, whose input is the result of the first.
fn two_products(barrier: &str) -> String {
    let sums: String = [16, 8, 4, 2, 1]
        .map(|lanes| format!("shfl.sync.bfly.b32 %r9, %r4, {lanes}, 31, -1; add.u32 %r4, %r4, %r9;"))
        .concat();
    format!(
        ".visible .entry k(.param .u64 x, .param .u64 w, .param .u64 h, .param .u64 y, .param .u64 count) {{
        .reg .pred %p, %first; .reg .b32 %r<12>; .reg .b64 %x, %w, %h, %y, %count, %from, %to, %at;
        ld.param.u64 %x, [x]; ld.param.u64 %w, [w]; ld.param.u64 %h, [h]; ld.param.u64 %y, [y]; ld.param.u64 %count, [count];
        mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x; mov.u32 %r2, %nctaid.x; setp.eq.u32 %first, %r0, 0; mov.u32 %r10, 0;
        PRODUCT: mov.u32 %r3, %r1;
        ROW: setp.ge.u32 %p, %r3, 64; @%p bra BARRIER;
        mad.lo.u32 %r6, %r3, 64, %r0; mad.wide.u32 %at, %r6, 4, %w; mad.wide.u32 %from, %r0, 4, %x;
        ld.global.u32 %r7, [%at]; ld.global.u32 %r8, [%from]; mul.lo.u32 %r4, %r7, %r8;
        ld.global.u32 %r7, [%at+128]; ld.global.u32 %r8, [%from+128]; mad.lo.u32 %r4, %r7, %r8, %r4;
        {sums}
        mad.wide.u32 %to, %r3, 4, %h; @%first st.global.u32 [%to], %r4;
        add.u32 %r3, %r3, %r2; bra ROW;
        BARRIER: setp.gt.u32 %p, %r10, 0; @%p ret;
        add.u32 %r10, %r10, %r2;
        @!%first bra JOIN;
        {barrier}
        JOIN: bar.sync 0;
        mov.u64 %x, %h; mov.u64 %h, %y; add.u64 %w, %w, 16384; bra PRODUCT; }}"
    )
}

#[test]
fn a_persistent_kernel_multiplies_twice() {
    let words = |n: u32, salt: u32| -> Vec<u32> { (0..n).map(|at| at.wrapping_mul(salt) >> 20).collect() };
    let (x, w) = (words(64, 2_654_435_761), words(2 * 64 * 64, 40_503 * 65_537));
    let product = |w: &[u32], x: &[u32]| -> Vec<u32> {
        let dot =
            |row: &[u32]| (row.iter().zip(x)).fold(0u32, |sum, (&a, &b)| sum.wrapping_add(a.wrapping_mul(b)));
        w.chunks(64).map(dot).collect()
    };
    let expected = product(&w[4096..], &product(&w[..4096], &x));
    let bytes = |words: &[u32]| {
        words
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect::<Vec<u8>>()
    };
    let run = |barrier: &str, n_blocks: u32, n_resident: u64| {
        let mut buffers = [bytes(&x), bytes(&w), vec![0; 256], vec![0; 256], vec![0; 4]];
        let config = LaunchConfig {
            resident_blocks: n_resident,
            ..LaunchConfig::new([n_blocks, 1, 1], [32, 1, 1])
        };
        let report = bench::run(&two_products(barrier), &config, &mut buffers);
        let kinds: Vec<FindingKind> = report.findings.into_iter().map(|finding| finding.kind).collect();
        (buffers[3] == bytes(&expected), kinds)
    };
    let barrier = |before: &str, after: &str| {
        format!(
            "{before} red.global.add.u32 [%count], 1; SPIN: ld.volatile.global.u32 %r11, [%count]; setp.lt.u32 %p, %r11, %r10; @%p bra SPIN; {after}"
        )
    };
    let right = barrier("membar.gl;", "membar.gl;");
    for n_blocks in [1, 7, 64] {
        assert_eq!(
            run(&right, n_blocks, n_blocks.into()),
            (true, vec![]),
            "{n_blocks}"
        );
    }
    let (is_right, found) = run(&right, 8, 7);
    assert!(!is_right);
    assert!(
        matches!(
            found[..],
            [FindingKind::EndlessSpin {
                waiting_blocks: 7,
                blocks_not_begun: 1,
                ..
            }]
        ),
        "{found:?}"
    );
    // Without a barrier some rows are read before they are written; without one of its fences they may be.
    for wrong in [
        "",
        &barrier("", "membar.gl;"),
        &barrier("membar.gl;", ""),
        &barrier("membar.cta;", "membar.gl;"),
    ] {
        let (_, found) = run(wrong, 7, 7);
        assert!(
            matches!(
                found[..],
                [
                    FindingKind::GlobalRace {
                        conflict: Conflict::WriteRead,
                        ..
                    },
                    ..
                ]
            ),
            "{wrong}: {found:?}"
        );
    }
}
