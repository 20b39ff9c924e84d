//! Launches that begin before earlier ones are done: one planted bug of each class, and the saved time.

use std::sync::Arc;

use tokenmill_ptx_sim::{
    Arguments, Assembled, DeviceMemory, DeviceProfile, DevicePtr, Estimate, FindingKind, LaunchConfig,
    LaunchReport, Module, Residency, Start, Written, estimate, launch,
};

use crate::bench::load_error;

const HEADER: &str = ".version 7.8\n.target sm_90\n.address_size 64\n";

/// Writes 7 to the first word of each thread of `x`.
const WRITER: &str = "st.global.u32 [%d2], 7;";
/// Adds 1 to the writer's value, and stores it to `y`.
const READER: &str =
    "griddepcontrol.wait;\nld.global.u32 %r1, [%d2];\nadd.u32 %r1, %r1, 1;\nst.global.u32 [%d3], %r1;";

/// A device with two buffers of a word for each of 32 threads.
struct Chain {
    memory: DeviceMemory,
    x: DevicePtr,
    y: DevicePtr,
}

impl Chain {
    fn new() -> Self {
        let mut memory = DeviceMemory::new();
        let [x, y] = [0; 2].map(|byte| memory.alloc_with(&[byte; 128]).unwrap());
        Self { memory, x, y }
    }

    /// Runs a kernel of 32 threads: `%d2` and `%d3` are the thread's words of `x` and `y`, `%r0` the thread.
    fn run(&mut self, body: &str, in_flight: Option<&Written>) -> LaunchReport {
        let ptx = format!(
            "{HEADER}.visible .entry k(.param .u64 x, .param .u64 y) {{ .reg .pred %p<3>; .reg .b32 %r<9>; .reg .b64 %d<9>;
             ld.param.u64 %d0, [x]; ld.param.u64 %d1, [y]; mov.u32 %r0, %tid.x;
             mad.wide.u32 %d2, %r0, 4, %d0; mad.wide.u32 %d3, %r0, 4, %d1;\n{body}\nret; }}"
        );
        let module = Module::load(&ptx, &mut self.memory).unwrap();
        let config = LaunchConfig {
            in_flight: in_flight.cloned().map(Arc::new),
            reports_written: true,
            ..LaunchConfig::new([1, 1, 1], [32, 1, 1])
        };
        let arguments = Arguments::new().ptr(self.x).ptr(self.y);
        launch(module.kernel("k").unwrap(), &self.memory, &config, &arguments).unwrap()
    }

    fn y(&self) -> u32 {
        let bytes = self.memory.read_vec(self.y, 4).unwrap();
        u32::from_le_bytes(bytes.try_into().unwrap())
    }
}

/// Runs a dependent kernel after the writer and returns its findings and the value that it leaves.
fn behind_writer(body: &str) -> (Vec<FindingKind>, u32) {
    let mut chain = Chain::new();
    let report = chain.run(WRITER, None);
    assert_eq!(report.findings, []);
    assert!(report.written.overlaps(chain.x.0, chain.x.0 + 1));
    assert!(!report.written.overlaps(chain.y.0, chain.y.0 + 128));
    let found = chain.run(body, Some(&report.written));
    let kinds = found.findings.into_iter().map(|finding| finding.kind).collect();
    (kinds, chain.y())
}

#[test]
fn a_kernel_that_waits_reads_what_was_written() {
    assert_eq!(behind_writer(READER), (vec![], 8));
    // Signalling, and reading memory that no launch writes, need no wait.
    let body = format!("griddepcontrol.launch_dependents;\nld.global.nc.u32 %r2, [%d3];\n{READER}");
    assert_eq!(behind_writer(&body), (vec![], 8));
}

#[test]
fn a_missing_wait_is_found() {
    let (found, _) = behind_writer("add.u32 %r1, %r0, 1;");
    assert_eq!(found, [FindingKind::NoWait]);
    // A kernel launched in order needs no wait either.
    let mut chain = Chain::new();
    chain.run(WRITER, None);
    let body = READER.replace("griddepcontrol.wait;", "");
    assert_eq!(chain.run(&body, None).findings, []);
    assert_eq!(chain.y(), 8);
    let (found, left) = behind_writer(&body);
    assert!(
        matches!(
            found[..],
            [
                FindingKind::EarlyRead { .. },
                FindingKind::EarlyWrite { .. },
                FindingKind::NoWait
            ]
        ),
        "{found:?}"
    );
    // It also computed another value than in order.
    assert_ne!(left, 8);
}

#[test]
fn a_read_before_the_wait_is_found_and_sees_other_bytes() {
    let (found, left) = behind_writer(
        "ld.global.u32 %r1, [%d2];\ngriddepcontrol.wait;\nadd.u32 %r1, %r1, 1;\nst.global.u32 [%d3], %r1;",
    );
    assert!(matches!(found[..], [FindingKind::EarlyRead { .. }]), "{found:?}");
    assert_eq!(left, 0x7fff_dead + 1);
    // Each thread needs its own wait.
    let (found, _) = behind_writer(
        "setp.lt.u32 %p0, %r0, 16;\n@%p0 griddepcontrol.wait;\nld.global.u32 %r1, [%d2];\n@%p0 st.global.u32 [%d3], %r1;",
    );
    assert!(matches!(found[..], [FindingKind::EarlyRead { .. }]), "{found:?}");
}

#[test]
fn an_asynchronous_copy_before_the_wait_is_found() {
    let copy = "{ .reg .b32 %s; .shared .align 16 .b8 room[128]; mov.u32 %s, room; mad.lo.u32 %s, %r0, 4, %s;\n\
                cp.async.ca.shared.global [%s], [%d2], 4;\ncp.async.wait_all;\nld.shared.u32 %r1, [%s]; }";
    let (found, _) = behind_writer(&format!("{copy}\ngriddepcontrol.wait;"));
    assert!(matches!(found[..], [FindingKind::EarlyRead { .. }]), "{found:?}");
    assert_eq!(behind_writer(&format!("griddepcontrol.wait;\n{copy}")).0, []);
}

#[test]
fn a_load_that_may_move_before_the_wait_is_found_wherever_it_stands() {
    let (found, _) = behind_writer(&READER.replace("ld.global.u32", "ld.global.nc.u32"));
    assert!(matches!(found[..], [FindingKind::StaleRead { .. }]), "{found:?}");
    let before = "ld.global.nc.u32 %r1, [%d2];\ngriddepcontrol.wait;";
    let (found, _) = behind_writer(before);
    assert!(matches!(found[..], [FindingKind::EarlyRead { .. }]), "{found:?}");
}

#[test]
fn a_write_before_the_wait_is_found() {
    for write in ["st.global.u32 [%d3], 1;", "atom.global.add.u32 %r2, [%d3], 1;"] {
        let (found, _) = behind_writer(&format!("{write}\ngriddepcontrol.wait;"));
        assert!(
            matches!(found[..], [FindingKind::EarlyWrite { .. }]),
            "{write}: {found:?}"
        );
    }
}

#[test]
fn older_architectures_have_no_dependent_launches() {
    let body = ".visible .entry k() { griddepcontrol.wait; ret; }";
    let load = |target: &str| {
        let ptx = format!(".version 7.8\n.target {target}\n.address_size 64\n{body}");
        Module::load(&ptx, &mut DeviceMemory::new()).map(|module| module.target())
    };
    assert_eq!(load("sm_90"), Ok(90));
    assert_eq!(load("sm_90a"), Ok(90));
    assert!(
        load("sm_80")
            .unwrap_err()
            .to_string()
            .contains("griddepcontrol.wait")
    );
    assert!(
        load_error("griddepcontrol.stop;")
            .to_string()
            .contains("griddepcontrol.stop")
    );
}

fn h100() -> &'static DeviceProfile {
    DeviceProfile::find("h100").unwrap()
}

/// Estimates a grid of `n_blocks` of 32 threads: `%d0` is a buffer, `%r9` the thread block.
fn estimated(body: &str, n_blocks: u32, start: &Start) -> Estimate {
    let ptx = format!(
        "{HEADER}.visible .entry k(.param .u64 a) {{ .reg .b32 %r<600>; .reg .f32 %f<600>; .reg .b64 %d<9>;
         ld.param.u64 %d0, [a]; mov.u32 %r0, %tid.x; mov.u32 %r9, %ctaid.x;\n{body}\nret; }}"
    );
    let mut memory = DeviceMemory::sparse(1 << 34);
    let module = Module::load(&ptx, &mut memory).unwrap();
    let data = memory.alloc(1 << 30).unwrap();
    estimate(
        module.kernel("k").unwrap(),
        &memory,
        &LaunchConfig::new([n_blocks, 1, 1], [32, 1, 1]),
        &Arguments::new().ptr(data),
        &Assembled::without_code(32),
        h100(),
        &mut Residency::new(),
        start,
    )
    .unwrap()
}

/// Returns a chain of additions that takes about so many microseconds.
fn busy(us: f64) -> String {
    let n = (us * 1e3 * h100().clock_ghz / h100().latency.arithmetic) as usize;
    "add.f32 %f1, %f1, %f1;\n".repeat(n)
}

#[track_caller]
fn assert_us(found: f64, expected: f64) {
    assert!((found - expected).abs() < 0.05, "{found} us, expected {expected}");
}

#[test]
fn the_time_to_launch_passes_while_the_launch_before_runs() {
    let device = h100();
    let early = format!("griddepcontrol.launch_dependents;\n{}", busy(3.0));
    let before = estimated(&early, 1, &Start::after(device));
    assert_us(before.lets_next_us, 0.0);
    assert_us(before.gap_us, device.launch_us);
    let next = |before: &Estimate| estimated("griddepcontrol.wait;", 1, &Start::early(before, device)).gap_us;
    assert_us(next(&before), device.dependent_us);
    // A launch without the signal lets the next begin when it is done.
    let silent = estimated(&busy(3.0), 1, &Start::after(device));
    assert_us(silent.lets_next_us, silent.us);
    assert_us(next(&silent), device.launch_us);
    // A launch that signals late hides a part.
    let late = format!(
        "{}bra $late;\n$late:\ngriddepcontrol.launch_dependents;\n{}",
        busy(3.0),
        busy(0.3)
    );
    let late = estimated(&late, 1, &Start::after(device));
    assert_us(next(&late), device.launch_us - 0.3);
}

#[test]
fn what_is_loaded_before_the_wait_is_there_behind_it() {
    let device = h100();
    let load = "mad.wide.u32 %d1, %r9, 4096, %d0;\nld.global.f32 %f1, [%d1];";
    let add = "add.f32 %f2, %f1, %f1;";
    let before = estimated(
        &format!("griddepcontrol.launch_dependents;\n{}", busy(3.0)),
        1,
        &Start::after(device),
    );
    let start = Start::early(&before, device);
    let behind = estimated(&format!("griddepcontrol.wait;\n{load}\n{add}"), 1, &start);
    let ahead = estimated(&format!("{load}\ngriddepcontrol.wait;\n{add}"), 1, &start);
    let saved_clocks = (behind.us - ahead.us) * 1e3 * device.clock_ghz;
    assert!(
        (saved_clocks - device.latency.dram).abs() < 40.0,
        "{saved_clocks}"
    );
    assert!(ahead.in_flight_peak > 0.0);
    // A launch that fills the multiprocessors lets none begin early.
    let full = estimated(
        &format!("griddepcontrol.launch_dependents;\n{}", busy(3.0)),
        132 * 32,
        &Start::after(device),
    );
    let start = Start::early(&full, device);
    let crowded = estimated(&format!("{load}\ngriddepcontrol.wait;\n{add}"), 1, &start);
    assert_us(crowded.us, behind.us);
}
