//! The two streams of a device, captures and their cache: their order of work.

use tokenmill_cuda_exec::{
    Capture, CudaExecError, Device, GraphCache, GraphPlan, Ops, QuantizedRows, Stream,
};
use tokenmill_sim_driver::{SimOptions, Simulator};

fn device() -> Device {
    Simulator::new(&SimOptions::default()).device()
}

#[test]
fn work_of_the_other_stream_is_seen_only_behind_a_fence() {
    let device = device();
    let source = device.upload("source", &[1u32, 2, 3]).unwrap();
    let mut target = device.upload("target", &[0u32; 3]).unwrap();
    device
        .copy(Stream::ToDevice, source.view(), &target.view_mut())
        .unwrap();
    // The planted bug is a missing wait. A real device might be quick enough by chance; the simulated one
    // never is.
    assert_eq!(device.download(target.view()).unwrap(), [0, 0, 0]);
    let fence = device.fence().unwrap();
    device.order(Stream::ToDevice, Stream::Compute, &fence).unwrap();
    assert_eq!(device.download(target.view()).unwrap(), [1, 2, 3]);
}

#[test]
fn a_copy_from_the_host_inside_a_capture_is_refused() {
    let simulator = Simulator::new(&SimOptions::default());
    let device = simulator.device();
    let mut target = device.upload("target", &[0u32; 3]).unwrap();
    let mut staging = device.alloc_pinned::<u32>(3).unwrap();
    let capture = Capture::begin(&device).unwrap();
    let refused = staging.upload(Stream::Compute, 0..3, &target.view_mut());
    assert!(
        matches!(refused, Err(CudaExecError::Failed { .. })),
        "{refused:?}"
    );
    assert!(device.alloc::<u32>("inside", 1).is_err());
    drop(capture);
    assert!(!simulator.is_capturing());
    staging.upload(Stream::Compute, 0..3, &target.view_mut()).unwrap();
}

#[test]
fn a_graph_lives_as_long_as_its_epoch() {
    let device = device();
    let ops = Ops::load(&device).unwrap();
    let x = device.upload("x", &[1.0f32; 32]).unwrap();
    let mut rows = QuantizedRows::new(&device, 1, 32).unwrap();
    let mut capture = || {
        let capture = Capture::begin(&device).unwrap();
        ops.quantize(1, 32, x.view(), rows.view_mut()).unwrap();
        capture.finish().unwrap()
    };
    let mut cache: GraphCache<usize> = GraphCache::default();
    assert!(matches!(cache.plan(&4, 1), GraphPlan::Capture));
    cache.insert(4, capture(), ());
    cache.insert(2, capture(), ());
    cache.give_up(3);
    assert!(matches!(cache.plan(&4, 1), GraphPlan::Replay(..)));
    assert!(matches!(cache.plan(&3, 1), GraphPlan::Eager));
    assert_eq!(cache.n_graphs(), 2);
    // A buffer moved: every graph may hold its old address.
    assert!(matches!(cache.plan(&4, 2), GraphPlan::Capture));
    assert!(matches!(cache.plan(&3, 2), GraphPlan::Capture));
    assert_eq!(cache.n_graphs(), 0);
}

#[test]
fn the_shape_used_least_recently_makes_room() {
    let device = device();
    let capture = || Capture::begin(&device).unwrap().finish().unwrap();
    let mut cache: GraphCache<usize> = GraphCache::with_capacity(2);
    for shape in [1, 2] {
        assert!(matches!(cache.plan(&shape, 1), GraphPlan::Capture));
        cache.insert(shape, capture(), ());
    }
    assert!(matches!(cache.plan(&1, 1), GraphPlan::Replay(..)));
    assert!(matches!(cache.plan(&3, 1), GraphPlan::Capture));
    cache.insert(3, capture(), ());
    assert_eq!(cache.n_graphs(), 2);
    assert!(matches!(cache.plan(&1, 1), GraphPlan::Replay(..)));
    assert!(matches!(cache.plan(&3, 1), GraphPlan::Replay(..)));
    assert!(matches!(cache.plan(&2, 1), GraphPlan::Capture));
    // A shape that cannot be captured takes a place too.
    cache.give_up(2);
    assert!(matches!(cache.plan(&1, 1), GraphPlan::Capture));
    assert!(matches!(cache.plan(&2, 1), GraphPlan::Eager));
}
