//! Allocations that the launches so far left in the L2 cache.

use tokenmill_ptx_sim::{DeviceProfile, DevicePtr, Residency};

#[test]
fn what_was_touched_last_stays() {
    let mut device = DeviceProfile::find("h100").unwrap().clone();
    device.l2_bytes = 100;
    let mut residency = Residency::new();
    let kept = |residency: &Residency, at| residency.kept(DevicePtr(at), &device);
    residency.touch(DevicePtr(1), 40, &device);
    residency.touch(DevicePtr(2), 50, &device);
    assert_eq!((kept(&residency, 1), kept(&residency, 2)), (40, 50));
    residency.touch(DevicePtr(3), 60, &device);
    assert_eq!([1, 2, 3].map(|at| kept(&residency, at)), [0, 0, 60]);
    // Touching an allocation again brings nothing new.
    residency.touch(DevicePtr(4), 40, &device);
    residency.touch(DevicePtr(3), 60, &device);
    assert_eq!([3, 4].map(|at| kept(&residency, at)), [60, 40]);
    // A larger allocation than the cache evicts everything and does not stay either.
    residency.touch(DevicePtr(5), 101, &device);
    assert_eq!([3, 4, 5].map(|at| kept(&residency, at)), [0; 3]);
}
