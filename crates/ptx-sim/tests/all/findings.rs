//! One planted bug of each class; the report must name the place, and the corrected program must give none.

use tokenmill_ptx_sim::{Checks, Conflict, Finding, FindingKind, LaunchConfig, Space};

use crate::bench::run;

const DECLARE: &str = ".reg .pred %p<9>; .reg .b16 %h<9>; .reg .b32 %r<19>; .reg .b64 %d<9>;";

/// Runs `body` with `%d0` at a buffer of 256 bytes and `%r0` the thread, `%r9` the thread block. Lines count from 1.
fn findings(grid: u32, block: u32, body: &str) -> Vec<Finding> {
    findings_with(&LaunchConfig::new([grid, 1, 1], [block, 1, 1]), body)
}

fn findings_with(config: &LaunchConfig, body: &str) -> Vec<Finding> {
    let ptx = format!(
        ".visible .entry k(.param .u64 a) {{ .shared .align 16 .b8 s[256]; {DECLARE} \
         ld.param.u64 %d0, [a]; mov.u32 %r0, %tid.x; mov.u32 %r9, %ctaid.x; mov.u32 %r8, s;\n{body}\nret; }}"
    );
    run(&ptx, config, &mut [vec![1; 256]]).findings
}

/// Asserts that there is exactly one finding, on PTX line `line`, and returns it.
fn only(found: &[Finding], warp: u32, lane: u32, line: u32) -> FindingKind {
    assert_eq!(found.len(), 1, "{found:#?}");
    let location = &found[0].location;
    assert_eq!(
        (location.kernel.as_str(), location.warp, location.lane),
        ("k", warp, lane),
        "{}",
        found[0]
    );
    assert_eq!(location.instruction.line, line, "{}", found[0]);
    found[0].kind.clone()
}

#[test]
fn accesses_out_of_bounds() {
    let body = "mad.wide.u32 %d1, %r0, 4, %d0;\nld.global.u32 %r1, [%d1];";
    assert_eq!(findings(1, 64, body), []);
    let kind = only(&findings(1, 96, body), 2, 0, 6);
    assert!(matches!(
        kind,
        FindingKind::OutOfBounds {
            space: Space::Global,
            bytes: 4,
            ..
        }
    ));
    let kind = only(&findings(1, 32, "st.global.u32 [%d0+-4], 1;"), 0, 0, 5);
    assert!(matches!(
        kind,
        FindingKind::OutOfBounds {
            space: Space::Global,
            ..
        }
    ));
    let kind = only(
        &findings(1, 32, "mad.lo.u32 %r1, %r0, 16, %r8; st.shared.u32 [%r1+4], 1;"),
        0,
        16,
        5,
    );
    assert!(matches!(
        kind,
        FindingKind::OutOfBounds {
            space: Space::Shared,
            address: 260,
            ..
        }
    ));
}

#[test]
fn misaligned_accesses() {
    let kind = only(&findings(1, 32, "ld.global.u32 %r1, [%d0+2];"), 0, 0, 5);
    assert!(matches!(
        kind,
        FindingKind::Misaligned {
            space: Space::Global,
            bytes: 4,
            ..
        }
    ));
    let kind = only(&findings(1, 1, "st.shared.v2.u32 [%r8+4], {%r0, %r0};"), 0, 0, 5);
    assert!(matches!(
        kind,
        FindingKind::Misaligned {
            space: Space::Shared,
            bytes: 8,
            ..
        }
    ));
}

#[test]
fn uninitialized_reads() {
    let kind = only(
        &findings(1, 1, "st.shared.u16 [%r8], %h0;\nld.shared.u32 %r1, [%r8];"),
        0,
        0,
        6,
    );
    assert!(matches!(
        kind,
        FindingKind::UninitializedRead {
            space: Space::Shared,
            address: 0,
            bytes: 4
        }
    ));
    assert_eq!(
        findings(1, 1, "st.shared.u16 [%r8], %h0;\nld.shared.u16 %h1, [%r8];"),
        []
    );
    let body = ".local .align 4 .b8 depot[8]; mov.u64 %d1, depot; st.local.u32 [%d1], 1;\nld.local.u32 %r1, [%d1+4];";
    let kind = only(&findings(1, 1, body), 0, 0, 6);
    assert!(matches!(
        kind,
        FindingKind::UninitializedRead {
            space: Space::Local,
            ..
        }
    ));
}

#[test]
fn races_between_warps() {
    let write_read = |barrier: &str| {
        format!(
            "mad.lo.u32 %r1, %r0, 4, %r8; st.shared.u32 [%r1], %r0;\n{barrier}\nxor.b32 %r2, %r1, 128;\nld.shared.u32 %r3, [%r2];"
        )
    };
    assert_eq!(findings(1, 64, &write_read("bar.sync 0;")), []);
    let found = findings_with(&LaunchConfig::new([1, 1, 1], [64, 1, 1]), &write_read(""));
    // The first warp reads words that the second writes later: they are unwritten, and then overwritten.
    assert!(found.iter().any(|finding| matches!(
        finding.kind,
        FindingKind::SharedRace {
            conflict: Conflict::WriteRead,
            other_warp: 0,
            ..
        }
    )));
    let kind = only(&findings(1, 64, "st.shared.u32 [%r8], %r0;"), 1, 0, 5);
    assert!(matches!(
        kind,
        FindingKind::SharedRace {
            conflict: Conflict::WriteWrite,
            other_warp: 0,
            ..
        }
    ));
    let read_write = "mad.lo.u32 %r1, %r0, 4, %r8; st.shared.u32 [%r1], %r0; bar.sync 0;\nld.shared.u32 %r3, [%r8];\nsetp.eq.u32 %p0, %r0, 32;\n@%p0 st.shared.u32 [%r8], 7;";
    let kind = only(&findings(1, 64, read_write), 1, 0, 8);
    let FindingKind::SharedRace {
        conflict: Conflict::ReadWrite,
        other,
        ..
    } = kind
    else {
        panic!("{kind:?}");
    };
    assert_eq!(other.line, 6);
    let atomic =
        "setp.lt.u32 %p0, %r0, 1; @%p0 st.shared.u32 [%r8], 0; bar.sync 0;\nred.shared.add.u32 [%r8], 1;";
    assert_eq!(findings(1, 64, atomic), []);
    assert_eq!(
        findings(1, 64, "mad.lo.u32 %r1, %r0, 2, %r8; st.shared.u16 [%r1], %h0;"),
        []
    );
}

#[test]
fn races_between_thread_blocks() {
    let own = "mad.lo.u32 %r1, %r9, 32, %r0; mad.wide.u32 %d1, %r1, 4, %d0; st.global.u32 [%d1], %r0;";
    assert_eq!(findings(2, 32, own), []);
    let kind = only(
        &findings(2, 32, "mad.wide.u32 %d1, %r0, 4, %d0;\nst.global.u32 [%d1], %r9;"),
        0,
        0,
        6,
    );
    let FindingKind::GlobalRace {
        conflict: Conflict::WriteWrite,
        other,
        ..
    } = kind
    else {
        panic!("{kind:?}");
    };
    assert_eq!((other.block, other.instruction.line), ([0, 0, 0], 6));
    let neighbour =
        format!("{own}\nxor.b32 %r2, %r1, 63;\nmad.wide.u32 %d2, %r2, 4, %d0;\nld.global.u32 %r3, [%d2];");
    let found = findings(2, 32, &neighbour);
    assert!(
        matches!(
            found[0].kind,
            FindingKind::GlobalRace {
                conflict: Conflict::WriteRead,
                ..
            }
        ),
        "{found:?}"
    );
    assert_eq!(findings(4, 32, "red.global.add.u32 [%d0], 1;"), []);
    let mixed = findings(
        4,
        32,
        "red.global.add.u32 [%d0], 1;\nsetp.eq.u32 %p0, %r9, 3;\n@%p0 st.global.u32 [%d0], 5;",
    );
    assert!(
        matches!(mixed[0].kind, FindingKind::GlobalRace { .. }),
        "{mixed:?}"
    );
}

#[test]
fn the_last_thread_block_may_read_what_others_released() {
    let body = |fence: &str| {
        format!(
            "mad.wide.u32 %d1, %r9, 4, %d0; st.global.u32 [%d1+16], %r9;\n{fence}\n\
             atom.global.add.u32 %r1, [%d0], 1; setp.ne.u32 %p0, %r1, 0x01010104; @%p0 bra $end;\n\
             ld.global.v4.u32 {{%r2, %r3, %r4, %r5}}, [%d0+16]; st.global.u32 [%d0], 0;\n$end:"
        )
    };
    // The counter starts at 0x01010101.
    assert_eq!(findings(4, 1, &body("membar.gl;")), []);
    let found = findings(4, 1, &body(""));
    assert!(
        matches!(
            found[0].kind,
            FindingKind::GlobalRace {
                conflict: Conflict::WriteRead,
                ..
            }
        ),
        "{found:?}"
    );
}

#[test]
fn divergent_barriers_and_exchanges() {
    let kind = only(
        &findings(1, 64, "setp.lt.u32 %p0, %r0, 40;\n@%p0 bar.sync 0;"),
        1,
        0,
        6,
    );
    let expected = FindingKind::DivergentBarrier {
        reached: 0xff,
        alive: u32::MAX,
    };
    assert_eq!(kind, expected);
    let apart = "setp.lt.u32 %p0, %r0, 40; @%p0 bra $a;\nbar.sync 0; bra $b;\n$a: bar.sync 0;\n$b:";
    assert_eq!(findings(1, 64, apart)[0].location.warp, 1);
    let kind = only(
        &findings(
            1,
            32,
            "setp.lt.u32 %p0, %r0, 8; @%p0 bra $a;\nshfl.sync.bfly.b32 %r1, %r0, 1, 31, -1; bra $b;\n$a: mov.u32 %r2, 1; bar.sync 0;\n$b:",
        ),
        0,
        8,
        6,
    );
    assert_eq!(
        kind,
        FindingKind::DivergentExchange {
            reached: 0xffff_ff00,
            members: u32::MAX
        }
    );
    let kind = only(
        &findings(1, 32, "shfl.sync.down.b32 %r1, %r0, 1, 31, 0x0000ffff;"),
        0,
        15,
        5,
    );
    assert_eq!(kind, FindingKind::InactiveLaneRead { source_lane: 16 });
}

#[test]
fn deadlocks_endless_loops_and_traps() {
    let kind = only(
        &findings(
            1,
            64,
            "setp.lt.u32 %p0, %r0, 32; @%p0 bra $a;\nbar.sync 1, 96; bra $b;\n$a: bar.sync 2, 64;\n$b:",
        ),
        0,
        0,
        7,
    );
    assert_eq!(
        kind,
        FindingKind::Deadlock {
            waiting_warps: 2,
            alive_warps: 2
        }
    );
    let mut config = LaunchConfig::new([1, 1, 1], [32, 1, 1]);
    config.instruction_limit = 1000;
    let kind = only(
        &findings_with(&config, "$a: add.u32 %r1, %r1, 1;\nbra $a;"),
        0,
        0,
        5,
    );
    assert_eq!(kind, FindingKind::InstructionLimit { limit: 1000 });
    assert_eq!(
        only(&findings(1, 32, "setp.eq.u32 %p0, %r0, 3; @%p0 trap;"), 0, 3, 5),
        FindingKind::Trap
    );
}

#[test]
fn checks_can_be_left_out_but_bounds_cannot() {
    let mut config = LaunchConfig::new([2, 1, 1], [64, 1, 1]);
    config.checks = Checks::NONE;
    assert_eq!(
        findings_with(
            &config,
            "ld.shared.u32 %r1, [%r8]; st.shared.u32 [%r8], %r1; st.global.u32 [%d0], %r9;"
        ),
        []
    );
    assert_eq!(findings_with(&config, "ld.global.u32 %r1, [%d0+256];").len(), 1);
}

#[test]
fn reports_name_the_source_line_when_compiled_with_line_information() {
    let found = findings(1, 1, ".loc 1 42 7\nld.global.u32 %r1, [%d0+256];");
    assert_eq!(found[0].location.instruction.source, None);
    let ptx = ".visible .entry k(.param .u64 a) { .reg .b32 %r<2>; .reg .b64 %d<2>; ld.param.u64 %d0, [a];
        .loc 1 42 7, function_name $info, inlined_at 1 9 3
        ld.global.u32 %r1, [%d0+256]; ret; }
        .file 1 \"norm.cu\"
        .section .debug_str { $info: .b8 95, 90 }";
    let report = run(ptx, &LaunchConfig::new([1, 1, 1], [1, 1, 1]), &mut [vec![1; 256]]);
    let message = report.findings[0].to_string();
    assert!(
        message.starts_with(
            "k block (0, 0, 0) warp 0 lane 0 at line 6 `ld.global.u32` (norm.cu:42): 4 bytes at global 0x"
        ),
        "{message}"
    );
    assert!(
        message.contains("256 bytes into the allocation of 256 bytes"),
        "{message}"
    );
}
