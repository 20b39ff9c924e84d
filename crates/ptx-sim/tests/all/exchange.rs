//! Divergence, barriers, shuffles, votes.

use tokenmill_ptx_sim::LaunchConfig;

use crate::bench::{eval, run};

fn lanes() -> [u64; 32] {
    std::array::from_fn(|lane| lane as u64)
}

fn check(body: &str, expected: impl Fn(u64) -> u64) {
    let found = eval(&format!("{body} cvt.u64.u32 %out, %r3;"), &[lanes()]);
    assert_eq!(found, lanes().map(expected), "{body}");
}

#[test]
fn shuffles_in_every_mode() {
    check("shfl.sync.bfly.b32 %r3, %r0, 5, 31, -1;", |lane| lane ^ 5);
    check("shfl.sync.down.b32 %r3, %r0, 3, 31, -1;", |lane| {
        if lane < 29 { lane + 3 } else { lane }
    });
    check("shfl.sync.up.b32 %r3, %r0, 3, 0, -1;", |lane| {
        if lane >= 3 { lane - 3 } else { lane }
    });
    check("shfl.sync.idx.b32 %r3, %r0, 9, 31, -1;", |_| 9);
    // Segments of eight lanes: the mask is in bits 8 to 12.
    check("shfl.sync.down.b32 %r3, %r0, 3, 0x181f, -1;", |lane| {
        if lane % 8 < 5 { lane + 3 } else { lane }
    });
    check("shfl.sync.idx.b32 %r3, %r0, 2, 0x181f, -1;", |lane| {
        lane / 8 * 8 + 2
    });
    check(
        "shfl.sync.down.b32 %r3|%p0, %r0, 3, 31, -1; selp.b32 %r3, 1, 0, %p0;",
        |lane| u64::from(lane < 29),
    );
}

#[test]
fn votes_matches_and_reductions() {
    check(
        "setp.lt.u32 %p0, %r0, 5; vote.sync.ballot.b32 %r3, %p0, -1;",
        |_| 0x1f,
    );
    check(
        "setp.lt.u32 %p0, %r0, 5; vote.sync.ballot.b32 %r3, !%p0, -1;",
        |_| 0xffff_ffe0,
    );
    check(
        "setp.lt.u32 %p0, %r0, 32; vote.sync.all.pred %p1, %p0, -1; selp.b32 %r3, 1, 0, %p1;",
        |_| 1,
    );
    check(
        "setp.eq.u32 %p0, %r0, 31; vote.sync.any.pred %p1, %p0, -1; selp.b32 %r3, 1, 0, %p1;",
        |_| 1,
    );
    check(
        "setp.eq.u32 %p0, %r0, 31; vote.sync.uni.pred %p1, %p0, -1; selp.b32 %r3, 1, 0, %p1;",
        |_| 0,
    );
    check("and.b32 %r1, %r0, 3; match.any.sync.b32 %r3, %r1, -1;", |lane| {
        0x1111_1111 << (lane % 4)
    });
    check("redux.sync.add.u32 %r3, %r0, -1;", |_| 496);
    check("sub.s32 %r1, %r0, 9; redux.sync.min.s32 %r3, %r1, -1;", |_| {
        0xffff_fff7
    });
}

#[test]
fn divergent_lanes_take_their_own_way_and_meet_again() {
    // Collatz steps: every lane loops another number of times, with a branch inside.
    let body = "mov.u32 %r3, 0; add.u32 %r1, %r0, 1;
        $loop: setp.eq.u32 %p0, %r1, 1; @%p0 bra $done;
        and.b32 %r2, %r1, 1; setp.eq.u32 %p1, %r2, 0; @%p1 bra $even;
        mad.lo.u32 %r1, %r1, 3, 1; bra.uni $next;
        $even: shr.u32 %r1, %r1, 1;
        $next: add.u32 %r3, %r3, 1; bra.uni $loop;
        $done: redux.sync.max.u32 %r4, %r3, -1; mad.lo.u32 %r3, %r4, 1000, %r3;";
    let steps = |lane: u64| {
        let mut n = lane + 1;
        let mut steps = 0;
        while n != 1 {
            n = if n.is_multiple_of(2) { n / 2 } else { 3 * n + 1 };
            steps += 1;
        }
        steps
    };
    let most = (0..32).map(steps).max().unwrap();
    check(body, |lane| most * 1000 + steps(lane));
}

#[test]
fn branch_tables_jump_by_index() {
    check(
        "and.b32 %r1, %r0, 3; $table: .branchtargets $a, $b, $c, $a; brx.idx %r1, $table;
         $a: mov.u32 %r3, 10; bra $end; $b: mov.u32 %r3, 20; bra $end; $c: mov.u32 %r3, 30; $end: add.u32 %r3, %r3, 1;",
        |lane| [11, 21, 31, 11][lane as usize % 4],
    );
}

#[test]
fn shuffles_within_a_divergent_half_name_only_that_half() {
    check(
        "setp.lt.u32 %p0, %r0, 16; @%p0 bra $low;
         shfl.sync.bfly.b32 %r3, %r0, 1, 31, 0xffff0000; bra $end;
         $low: shfl.sync.bfly.b32 %r3, %r0, 2, 31, 0x0000ffff;
         $end: bar.warp.sync -1;",
        |lane| if lane < 16 { lane ^ 2 } else { lane ^ 1 },
    );
}

#[test]
fn lanes_that_left_are_not_waited_for() {
    let found = eval(
        "setp.lt.u32 %p0, %r0, 4; mov.u64 %out, 1; @%p0 st.global.u64 [%to], %out; @%p0 exit;
         vote.sync.ballot.b32 %r3, 1, -1; cvt.u64.u32 %out, %r3;",
        &[lanes()],
    );
    assert_eq!(found, lanes().map(|lane| if lane < 4 { 1 } else { 0xffff_fff0 }));
}

/// Returns warps of a thread block that pass values on through shared memory, ordered by the barriers in
/// `barrier`.
fn hand_on(store_barrier: &str, load_barrier: &str) -> (Vec<u32>, usize) {
    let ptx = format!(
        ".visible .entry k(.param .u64 out) {{ .shared .align 4 .b8 s[512]; .reg .pred %p<3>; .reg .b32 %r<6>; .reg .b64 %d<3>;
        ld.param.u64 %d0, [out]; mov.u32 %r0, %tid.x; mov.u32 %r1, s; mad.lo.u32 %r2, %r0, 4, %r1;
        st.shared.u32 [%r2], %r0; {store_barrier}
        xor.b32 %r3, %r0, 127; mad.lo.u32 %r3, %r3, 4, %r1; ld.shared.u32 %r4, [%r3]; {load_barrier}
        st.shared.u32 [%r2], %r4;
        mad.wide.u32 %d1, %r0, 4, %d0; st.global.u32 [%d1], %r4; ret; }}"
    );
    let mut buffers = [vec![0; 512]];
    let report = run(&ptx, &LaunchConfig::new([1, 1, 1], [128, 1, 1]), &mut buffers);
    let (out, _) = buffers[0].as_chunks::<4>();
    (
        out.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect(),
        report.findings.len(),
    )
}

#[test]
fn barriers_order_shared_memory() {
    let expected: Vec<u32> = (0..128).map(|thread| thread ^ 127).collect();
    assert_eq!(hand_on("bar.sync 0;", "bar.sync 0;"), (expected.clone(), 0));
    assert_eq!(
        hand_on("barrier.sync.aligned 3;", "bar.sync 1, 128;"),
        (expected, 0)
    );
}

#[test]
fn barriers_reduce_predicates() {
    let ptx = ".visible .entry k(.param .u64 out) { .reg .pred %p<4>; .reg .b32 %r<6>; .reg .b64 %d<3>;
        ld.param.u64 %d0, [out]; mov.u32 %r0, %tid.x; setp.lt.u32 %p0, %r0, 40;
        bar.red.popc.u32 %r1, 0, %p0; bar.red.and.pred %p1, 0, %p0; bar.red.or.pred %p2, 0, !%p0;
        selp.b32 %r2, 1000, 0, %p1; selp.b32 %r3, 2000, 0, %p2; add.u32 %r1, %r1, %r2; add.u32 %r1, %r1, %r3;
        mad.wide.u32 %d1, %r0, 4, %d0; st.global.u32 [%d1], %r1; ret; }";
    let mut buffers = [vec![0; 400]];
    let report = run(ptx, &LaunchConfig::new([1, 1, 1], [100, 1, 1]), &mut buffers);
    assert_eq!(report.findings, []);
    assert_eq!(buffers[0], 2040u32.to_le_bytes().repeat(100));
}

#[test]
fn thread_and_block_indices_have_three_axes() {
    let ptx = ".visible .entry k(.param .u64 out) { .reg .b32 %r<12>; .reg .b64 %d<3>;
        mov.u32 %r0, %tid.x; mov.u32 %r1, %tid.y; mov.u32 %r2, %tid.z; mov.u32 %r3, %ctaid.x; mov.u32 %r4, %ctaid.y;
        mov.u32 %r5, %ntid.x; mov.u32 %r6, %ntid.y; mov.u32 %r7, %nctaid.x;
        mad.lo.u32 %r8, %r2, %r6, %r1; mad.lo.u32 %r8, %r8, %r5, %r0;
        mad.lo.u32 %r9, %r4, %r7, %r3; mad.lo.u32 %r9, %r9, 30, %r8;
        ld.param.u64 %d0, [out]; mad.wide.u32 %d0, %r9, 4, %d0; st.global.u32 [%d0], %r9; ret; }";
    let mut buffers = [vec![0xff; 30 * 6 * 4]];
    let report = run(ptx, &LaunchConfig::new([3, 2, 1], [5, 3, 2]), &mut buffers);
    assert_eq!(report.findings, []);
    let expected: Vec<u8> = (0..180u32).flat_map(u32::to_le_bytes).collect();
    assert_eq!(buffers[0], expected);
}
