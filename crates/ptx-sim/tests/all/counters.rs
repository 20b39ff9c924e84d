//! Instructions, sectors and bank conflicts, counted by hand.

use tokenmill_ptx_sim::{Class, Counters, LaunchConfig};

use crate::bench::run;

/// Runs `body` with `%d0` at a buffer of 64 KiB, `%r0` the thread and `%r8` shared memory.
fn counters(block: u32, body: &str) -> Counters {
    let ptx = format!(
        ".visible .entry k(.param .u64 a) {{ .shared .align 16 .b8 s[16384]; .reg .pred %p<4>; .reg .b32 %r<19>; .reg .b64 %d<9>;
         ld.param.u64 %d0, [a]; mov.u32 %r0, %tid.x; mov.u32 %r8, s;\n{body}\nret; }}"
    );
    let report = run(
        &ptx,
        &LaunchConfig::new([2, 1, 1], [block, 1, 1]),
        &mut [vec![1; 1 << 16]],
    );
    report.counters
}

#[test]
fn instructions_are_counted_by_class_and_warp() {
    let counters = counters(
        64,
        "add.f32 %r1, %r0, %r0; add.f32 %r1, %r1, %r1; setp.lt.u32 %p0, %r0, 32; @%p0 mul.lo.u32 %r1, %r1, %r1;",
    );
    assert_eq!(counters.of(Class::Float32), 2 * 2 * 2);
    assert_eq!(counters.of(Class::Integer), 2 * 2 * 2);
    assert_eq!(counters.of(Class::Branch), 2 * 2);
    assert_eq!(counters.thread_blocks, 2);
}

#[test]
fn sectors_of_global_accesses() {
    let load = |stride: u32, bytes: u32, offset: u32| {
        let vector = if bytes == 16 {
            "v4.u32 {%r1,%r2,%r3,%r4}"
        } else {
            "u32 %r1"
        };
        let loads = counters(
            32,
            &format!("mad.wide.u32 %d1, %r0, {stride}, %d0; ld.global.{vector}, [%d1+{offset}];"),
        )
        .loads;
        assert_eq!(loads.requests, 2);
        (loads.sectors / 2, loads.necessary_sectors / 2)
    };
    assert_eq!(load(4, 4, 0), (4, 4));
    assert_eq!(load(4, 4, 16), (5, 4));
    assert_eq!(load(16, 16, 0), (16, 16));
    assert_eq!(load(32, 4, 0), (32, 4));
    assert_eq!(load(36, 4, 0), (32, 4));
    assert_eq!(load(0, 4, 0), (1, 1));
    assert_eq!(load(8, 4, 0), (8, 4));
}

#[test]
fn buffers_know_how_often_their_sectors_were_read() {
    let counters = counters(
        32,
        "mad.wide.u32 %d1, %r0, 4, %d0; ld.global.u32 %r1, [%d1]; ld.global.u32 %r2, [%d1+64];",
    );
    let buffer = counters.buffers.values().next().unwrap();
    assert_eq!((buffer.loaded_sectors, buffer.unique_loaded_sectors), (16, 6));
    assert_eq!(buffer.stored_sectors, 0);
}

#[test]
fn bank_conflicts_of_shared_accesses() {
    let store = |stride: u32, vector: &str| {
        let shared = counters(
            32,
            &format!("mad.lo.u32 %r1, %r0, {stride}, %r8; st.shared.{vector};"),
        )
        .shared;
        (shared.wavefronts / 2, shared.ideal_wavefronts / 2)
    };
    let (one, four) = ("u32 [%r1], %r0", "v4.u32 [%r1], {%r0,%r0,%r0,%r0}");
    assert_eq!(store(4, one), (1, 1));
    assert_eq!(store(8, one), (2, 1));
    assert_eq!(store(128, one), (32, 1));
    assert_eq!(store(132, one), (1, 1));
    assert_eq!(store(0, one), (1, 1));
    assert_eq!(store(16, four), (4, 4));
    assert_eq!(store(32, four), (8, 4));
    assert_eq!(store(144, four), (4, 4));
}
