//! Hand-over from one thread block to another by a flag: which stores release, which loads acquire, and the scope
//! of both.

use tokenmill_ptx_sim::{Conflict, FindingKind, LaunchConfig};

use crate::{
    bench::{HEADER, run},
    spins::run_kernel,
};

/// Lets the first thread block write data and set a flag, and the second read the flag and the data; returns the
/// findings.
fn hand_over(set: &str, see: &str) -> Vec<FindingKind> {
    let ptx = format!(
        "{HEADER}.visible .entry k(.param .u64 x, .param .u64 y, .param .u64 count) {{
        .reg .pred %p; .reg .b32 %r<9>; .reg .b64 %x, %y, %count;
        ld.param.u64 %x, [x]; ld.param.u64 %y, [y]; ld.param.u64 %count, [count];
        mov.u32 %r0, %tid.x; setp.ne.u32 %p, %r0, 0; @%p ret;
        mov.u32 %r1, %ctaid.x; setp.eq.u32 %p, %r1, 1; @%p bra SPIN; setp.eq.u32 %p, %r1, 0; @!%p ret;
        st.global.u32 [%x], 7; {set} ret;
        SPIN: {see} setp.eq.u32 %p, %r4, 0; @%p bra SPIN;
        ld.global.u32 %r5, [%x]; st.global.u32 [%y], %r5; ret; }}"
    );
    run_kernel(&ptx, |_, _| ()).kinds()
}

fn is_race(kinds: &[FindingKind]) -> bool {
    let is_one = |kind: &FindingKind| {
        matches!(
            kind,
            FindingKind::GlobalRace {
                conflict: Conflict::WriteRead,
                ..
            }
        )
    };
    !kinds.is_empty() && kinds.iter().all(is_one)
}

const SET: &str = "st.release.gpu.global.u32 [%count], 1;";
const SEE: &str = "ld.acquire.gpu.global.u32 %r4, [%count];";

#[test]
fn a_store_that_releases_acquires_nothing() {
    let relaxed = "ld.relaxed.gpu.global.u32 %r4, [%count];";
    assert_eq!(hand_over(SET, SEE), []);
    assert_eq!(hand_over(SET, &format!("{relaxed} membar.gl;")), []);
    let kinds = hand_over(
        SET,
        &format!("{relaxed} st.release.gpu.global.u32 [%count+4], 1;"),
    );
    assert!(is_race(&kinds), "{kinds:?}");
    // A fence after that store still turns the load into an acquire.
    let both = format!("{relaxed} st.release.gpu.global.u32 [%count+4], 1; membar.gl;");
    assert_eq!(hand_over(SET, &both), []);
}

#[test]
fn a_store_that_releases_does_so_at_its_own_address() {
    let elsewhere = "st.release.gpu.global.u32 [%count+4], 1; st.relaxed.gpu.global.u32 [%count], 1;";
    let kinds = hand_over(elsewhere, SEE);
    assert!(is_race(&kinds), "{kinds:?}");
    let there = format!("{SET} st.relaxed.gpu.global.u32 [%count], 2;");
    assert_eq!(hand_over(&there, SEE), []);
}

#[test]
fn accesses_with_the_scope_of_a_thread_block_order_no_others() {
    let [set, see] = [SET, SEE].map(|one| one.replace(".gpu", ".cta"));
    for (set, see) in [(set.as_str(), SEE), (SET, see.as_str())] {
        let kinds = hand_over(set, see);
        assert!(is_race(&kinds), "{set} {see} {kinds:?}");
    }
    // A fence of GPU scope does not help either: they do not read another thread block's flag.
    for order in ["acquire", "relaxed"] {
        let see = format!("ld.{order}.cta.global.u32 %r4, [%count]; membar.gl;");
        let kinds = hand_over(SET, &see);
        assert!(is_race(&kinds), "{see} {kinds:?}");
    }
    let set = "membar.gl; st.relaxed.cta.global.u32 [%count], 1;";
    let kinds = hand_over(set, SEE);
    assert!(is_race(&kinds), "{kinds:?}");
}

/// Two warps of one thread block, one of which waits for the other's flag in shared memory.
#[test]
fn they_meet_without_a_race_within_the_thread_block() {
    let ptx = |scope: &str| {
        format!(
            ".visible .entry k(.param .u64 x) {{
            .shared .align 4 .b8 flag[4]; .reg .pred %p; .reg .b32 %r<4>; .reg .b64 %x; ld.param.u64 %x, [x];
            mov.u32 %r0, %tid.x; setp.ne.u32 %p, %r0, 0; @%p bra WAIT;
            st.shared.u32 [flag], 0;
            WAIT: bar.sync 0; setp.eq.u32 %p, %r0, 32; @%p bra SPIN; setp.eq.u32 %p, %r0, 0; @!%p ret;
            st.release.{scope}.shared.u32 [flag], 5; ret;
            SPIN: ld.acquire.{scope}.shared.u32 %r1, [flag]; setp.eq.u32 %p, %r1, 0; @%p bra SPIN;
            st.global.u32 [%x], %r1; ret; }}"
        )
    };
    for scope in ["cta", "gpu"] {
        let mut buffers = [vec![0; 4]];
        let report = run(
            &ptx(scope),
            &LaunchConfig::new([1, 1, 1], [64, 1, 1]),
            &mut buffers,
        );
        assert_eq!(report.findings, [], "{scope}");
        assert_eq!(buffers[0], [5, 0, 0, 0], "{scope}");
    }
}
