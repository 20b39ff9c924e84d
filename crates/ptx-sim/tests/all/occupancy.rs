//! How many thread blocks of a kernel a multiprocessor holds at once.

use tokenmill_ptx_sim::DeviceProfile;

#[test]
fn blocks_fit_by_registers_warps_and_shared_memory() {
    let device = DeviceProfile::find("h100").unwrap();
    let check = |threads, registers, shared, expected| {
        assert_eq!(
            device.resident_blocks(threads, registers, shared),
            expected,
            "{threads} threads, {registers} registers, {shared} bytes"
        );
    };
    check(128, 32, 0, 16);
    check(128, 115, 0, 4);
    check(256, 86, 0, 2);
    check(256, 155, 0, 1);
    check(32, 16, 0, 32);
    check(128, 32, 100 << 10, 2);
    check(1024, 255, 0, 0);
}
