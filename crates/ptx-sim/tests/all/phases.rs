//! Barriers in shared memory and the bulk copies that report to them: a producer warp and a consumer warp, and the steps that
//! each may omit.

use tokenmill_ptx_sim::{Conflict, DeviceMemory, FindingKind, LaunchConfig, Module};

use crate::bench::{HEADER, run};

/// The parts of the kernel that a test changes.
#[derive(Clone, Copy)]
struct Parts<'a> {
    after_init: &'a str,
    expected: u32,
    empty_wait: &'a str,
    full_wait: &'a str,
    release: &'a str,
}

const PARTS: Parts<'_> = Parts {
    after_init: "fence.mbarrier_init.release.cluster;",
    expected: 256,
    // The first phase of an empty buffer is free.
    empty_wait: "xor.b32 %x, %par, 1; mbarrier.try_wait.parity.shared::cta.b64 %p, [e], %x;",
    full_wait: "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 %p, [f], %par;",
    release: "bar.warp.sync -1; @%one mbarrier.arrive.release.cta.shared::cta.b64 _, [e];",
};

/// Warp 0 copies 16 pieces of 256 bytes through one buffer; warp 1 adds 1 to each word and stores it.
fn kernel(parts: Parts<'_>) -> String {
    let Parts {
        after_init,
        expected,
        empty_wait,
        full_wait,
        release,
    } = parts;
    format!(
        ".visible .entry k(.param .u64 in, .param .u64 out) {{
        .shared .align 16 .b8 s[256]; .shared .align 8 .b8 f[8]; .shared .align 8 .b8 e[8];
        .reg .pred %p, %one, %q; .reg .b32 %t, %x, %i, %par, %v, %to; .reg .b64 %in, %out; .reg .b64 %v2<2>; .reg .b32 %w<2>;
        ld.param.u64 %in, [in]; ld.param.u64 %out, [out];
        mov.u32 %t, %tid.x; and.b32 %x, %t, 31; setp.eq.u32 %one, %x, 0;
        mad.wide.u32 %out, %x, 8, %out; mov.u32 %to, s; mad.lo.u32 %to, %x, 8, %to;
        setp.eq.u32 %q, %t, 0;
        @%q mbarrier.init.shared::cta.b64 [f], 1; @%q mbarrier.init.shared::cta.b64 [e], 1; {after_init}
        bar.sync 0;
        mov.u32 %i, 0; setp.ge.u32 %q, %t, 32; @%q bra CONSUMER;
        PRODUCER: and.b32 %par, %i, 1;
        @!%one bra NEXT;
        {empty_wait}
        mbarrier.arrive.expect_tx.shared::cta.b64 _, [f], {expected};
        cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [s], [%in], 256, [f];
        NEXT: add.u64 %in, %in, 256; add.u32 %i, %i, 1; setp.lt.u32 %q, %i, 16; @%q bra PRODUCER;
        ret;
        CONSUMER: and.b32 %par, %i, 1;
        {full_wait}
        ld.shared.v2.u32 {{%w0, %w1}}, [%to]; add.u32 %w0, %w0, 1; add.u32 %w1, %w1, 1;
        {release}
        st.global.v2.u32 [%out], {{%w0, %w1}};
        add.u64 %out, %out, 256; add.u32 %i, %i, 1; setp.lt.u32 %q, %i, 16; @%q bra CONSUMER;
        ret; }}"
    )
}

fn pass_through(parts: Parts<'_>) -> (Vec<FindingKind>, bool) {
    let values: Vec<u32> = (0..1024u32)
        .map(|value| value.wrapping_mul(2_654_435_761))
        .collect();
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let mut buffers = [bytes, vec![0; 4096]];
    let report = run(
        &kernel(parts),
        &LaunchConfig::new([2, 1, 1], [64, 1, 1]),
        &mut buffers,
    );
    let (words, _) = buffers[1].as_chunks::<4>();
    let is_right =
        (words.iter().zip(&values)).all(|(&found, value)| u32::from_le_bytes(found) == value.wrapping_add(1));
    let kinds = report
        .findings
        .into_iter()
        .map(|finding| finding.kind)
        // Both thread blocks store the same to the same place.
        .filter(|kind| !matches!(kind, FindingKind::GlobalRace { .. }))
        .collect();
    (kinds, is_right)
}

#[test]
fn pieces_pass_through_one_buffer() {
    let (findings, is_right) = pass_through(PARTS);
    assert_eq!(findings, []);
    assert!(is_right);
}

#[test]
fn bytes_are_not_there_before_the_wait() {
    let (findings, is_right) = pass_through(Parts {
        full_wait: "",
        ..PARTS
    });
    assert!(
        matches!(
            findings[0],
            FindingKind::UninitializedRead { .. } | FindingKind::UnfinishedCopy { .. }
        ),
        "{findings:?}"
    );
    assert!(!is_right);
}

#[test]
fn a_wait_for_the_other_parity_waits_for_nothing() {
    let (findings, is_right) = pass_through(Parts {
        full_wait: "xor.b32 %x, %par, 1; mbarrier.try_wait.parity.shared::cta.b64 %p, [f], %x;",
        ..PARTS
    });
    assert!(
        matches!(findings[0], FindingKind::UnfinishedCopy { address: 0, .. }),
        "{findings:?}"
    );
    assert!(!is_right);
}

#[test]
fn a_buffer_is_not_filled_again_before_it_is_read() {
    let (findings, _) = pass_through(Parts {
        empty_wait: "",
        ..PARTS
    });
    assert!(
        findings.iter().any(|kind| matches!(
            kind,
            FindingKind::UnfinishedCopy { .. } | FindingKind::BarrierMisuse { .. }
        )),
        "{findings:?}"
    );
    // Released before it is read: the copy may arrive in between.
    let (findings, _) = pass_through(Parts {
        full_wait: "mbarrier.try_wait.parity.shared::cta.b64 %p, [f], %par; @%one mbarrier.arrive.shared::cta.b64 _, [e];",
        release: "",
        ..PARTS
    });
    let is_found = |kind: &FindingKind| {
        let is_race = matches!(
            kind,
            FindingKind::SharedRace {
                conflict: Conflict::ReadWrite,
                ..
            }
        );
        is_race || matches!(kind, FindingKind::UnfinishedCopy { .. })
    };
    assert!(findings.iter().any(is_found), "{findings:?}");
}

#[test]
fn a_count_of_bytes_that_never_comes_is_reported() {
    for (expected, left) in [(272, 16), (240, -16)] {
        let (findings, _) = pass_through(Parts { expected, ..PARTS });
        let endless = FindingKind::EndlessWait {
            address: 256,
            arrivals_left: 0,
            bytes_left: left,
        };
        assert!(findings.contains(&endless), "{findings:?}");
    }
    let (findings, _) = pass_through(Parts { release: "", ..PARTS });
    assert!(
        findings.iter().any(|kind| matches!(
            kind,
            FindingKind::EndlessWait {
                address: 264,
                arrivals_left: 1,
                bytes_left: 0
            }
        )),
        "{findings:?}"
    );
}

#[test]
fn copies_need_a_barrier_that_they_can_see() {
    let (findings, _) = pass_through(Parts {
        after_init: "",
        ..PARTS
    });
    assert_eq!(findings, [FindingKind::MissingProxyFence { address: 256 }]);
    let (findings, _) = pass_through(Parts {
        after_init: "fence.proxy.async; @%q mbarrier.inval.shared::cta.b64 [f];",
        ..PARTS
    });
    assert!(
        matches!(findings[0], FindingKind::BarrierMisuse { address: 256, .. }),
        "{findings:?}"
    );
}

#[test]
fn a_thread_block_does_not_end_before_its_copies() {
    let ptx = ".visible .entry k(.param .u64 in) {
        .shared .align 16 .b8 s[64]; .shared .align 8 .b8 f[8]; .reg .b64 %in; ld.param.u64 %in, [in];
        mbarrier.init.shared.b64 [f], 1; fence.proxy.async;
        mbarrier.arrive.expect_tx.shared.b64 _, [f], 64;
        cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [s], [%in], 64, [f]; ret; }";
    let report = run(ptx, &LaunchConfig::new([1, 1, 1], [1, 1, 1]), &mut [vec![0; 64]]);
    assert_eq!(report.findings.len(), 1);
    assert!(matches!(
        report.findings[0].kind,
        FindingKind::UnfinishedCopy { address: 0, .. }
    ));
}

#[test]
fn one_lane_is_elected() {
    let ptx = ".visible .entry k(.param .u64 out) {
        .reg .b64 %out; .reg .pred %p, %q; .reg .b32 %t, %d; ld.param.u64 %out, [out];
        mov.u32 %t, %tid.x; mad.wide.u32 %out, %t, 4, %out;
        setp.ge.u32 %q, %t, 5; @!%q ret;
        elect.sync %d|%p, 0xffffffe0; @%p add.u32 %d, %d, 100; st.global.u32 [%out], %d; ret; }";
    let mut buffers = [vec![0; 128]];
    let report = run(ptx, &LaunchConfig::new([1, 1, 1], [32, 1, 1]), &mut buffers);
    assert_eq!(report.findings, []);
    let (words, _) = buffers[0].as_chunks::<4>();
    let words: Vec<u32> = words.iter().map(|&word| u32::from_le_bytes(word)).collect();
    assert_eq!(&words[..7], [0, 0, 0, 0, 0, 105, 5]);
}

#[test]
fn older_architectures_do_not_load_bulk_copies() {
    let ptx = format!("{HEADER}{}", kernel(PARTS));
    let error = Module::load(&ptx.replace("sm_90", "sm_80"), &mut DeviceMemory::new()).unwrap_err();
    assert!(
        error.to_string().contains("is not executed by this interpreter"),
        "{error}"
    );
}
