//! The bytes that launches report as written.

use tokenmill_ptx_sim::{Arguments, DeviceMemory, DevicePtr, LaunchConfig, Module, Written, launch};

use crate::bench::HEADER;

/// Runs one thread that executes `stores` with the start of `buffer` in `%d0`, and returns the written
/// ranges.
fn written_by(stores: &str, memory: &mut DeviceMemory, buffer: DevicePtr) -> Written {
    let ptx = format!(
        "{HEADER}.visible .entry k(.param .u64 a) {{ .reg .b64 %d<2>; ld.param.u64 %d0, [a];\n{stores}\nret; }}"
    );
    let module = Module::load(&ptx, memory).unwrap();
    let config = LaunchConfig {
        reports_written: true,
        ..LaunchConfig::new([1, 1, 1], [1, 1, 1])
    };
    let report = launch(
        module.kernel("k").unwrap(),
        memory,
        &config,
        &Arguments::new().ptr(buffer),
    );
    report.unwrap().written
}

#[test]
fn ranges_join_and_are_found() {
    let mut memory = DeviceMemory::new();
    let buffer = memory.alloc(32).unwrap();
    let ranges = |written: &Written| -> Vec<(u64, u64)> {
        (written.ranges().iter())
            .map(|&(start, end)| (start - buffer.0, end - buffer.0))
            .collect()
    };
    let mut written = written_by(
        "st.global.u32 [%d0+8], 1; st.global.u32 [%d0], 1; st.global.u16 [%d0+4], 1; st.global.u32 [%d0+20], 1;",
        &mut memory,
        buffer,
    );
    assert_eq!(ranges(&written), [(0, 6), (8, 12), (20, 24)]);
    let more = written_by("st.global.u16 [%d0+6], 1;", &mut memory, buffer);
    written.extend(&more);
    assert_eq!(ranges(&written), [(0, 12), (20, 24)]);
    for (start, end, expected) in [
        (0, 1, true),
        (11, 13, true),
        (12, 20, false),
        (19, 21, true),
        (24, 30, false),
    ] {
        assert_eq!(
            written.overlaps(buffer.0 + start, buffer.0 + end),
            expected,
            "{start}..{end}"
        );
    }
}
