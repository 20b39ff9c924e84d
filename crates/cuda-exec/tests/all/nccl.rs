//! Sums over the ranks of an NCCL communicator, and the ends of waits for one, through the functions of a simulated
//! NCCL.

use std::{
    thread,
    time::{Duration, Instant},
};

use tokenmill_backend::HostGroup;
use tokenmill_cuda_exec::{Capture, CudaExecError, Device, NcclRank};
use tokenmill_sim_driver::{SimOptions, Simulator};

fn simulators(n: usize) -> (Vec<Simulator>, Vec<Device>) {
    let simulators: Vec<_> = (0..n).map(|_| Simulator::new(&SimOptions::default())).collect();
    let devices = simulators.iter().map(Simulator::device).collect();
    (simulators, devices)
}

/// Adds up each rank's list, and returns the sums on each rank.
fn sums(
    devices: &[Device],
    group: &HostGroup,
    list: impl Fn(usize) -> Vec<f32> + Sync,
) -> Vec<Result<Vec<f32>, CudaExecError>> {
    let ranks = NcclRank::join(&Simulator::nccl(), devices, group).unwrap();
    thread::scope(|scope| {
        let threads: Vec<_> = (devices.iter().zip(ranks).enumerate())
            .map(|(idx, (device, mut rank))| {
                let list = &list;
                scope.spawn(move || {
                    let mut values = device.upload("values", &list(idx))?;
                    rank.all_reduce(&values.view_mut())?;
                    let found = device.download(values.view());
                    // Notifies waiting ranks, as a rank's thread does.
                    if found.is_err() {
                        group.fail(idx);
                    }
                    found
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn all_ranks_have_the_same_bits() {
    for n_ranks in [1, 2, 4, 8] {
        let (_simulators, devices) = simulators(n_ranks);
        // Numbers whose sum depends on the order.
        let list = |rank: usize| -> Vec<f32> {
            (0..1000)
                .map(|idx| [1e8, 1.0, -1e8, 0.5, 3.0][(rank + idx) % 5])
                .collect()
        };
        let found = sums(&devices, &HostGroup::new(n_ranks), list);
        let first = found[0].clone().unwrap();
        for other in found {
            assert_eq!(other.unwrap(), first, "{n_ranks}");
        }
        let in_order = |idx: usize| (0..n_ranks).fold(0.0, |sum, rank| sum + list(rank)[idx]);
        assert_eq!(first, (0..1000).map(in_order).collect::<Vec<f32>>());
    }
}

#[test]
fn every_rank_gets_the_values_of_all_in_their_order() {
    for n_ranks in [1, 2, 4] {
        let (_simulators, devices) = simulators(n_ranks);
        let ranks = NcclRank::join(&Simulator::nccl(), &devices, &HostGroup::new(n_ranks)).unwrap();
        thread::scope(|scope| {
            for (idx, (device, mut rank)) in devices.iter().zip(ranks).enumerate() {
                scope.spawn(move || {
                    let own = device.upload("own", &[idx as f32, 0.5]).unwrap();
                    let mut all = device.upload("all", &vec![-1.0f32; 2 * n_ranks + 1]).unwrap();
                    rank.all_gather(own.view(), &all.view_mut()).unwrap();
                    let mut expected: Vec<f32> = (0..n_ranks).flat_map(|of| [of as f32, 0.5]).collect();
                    expected.push(-1.0);
                    assert_eq!(device.download(all.view()).unwrap(), expected);
                    let mut short = device.upload("short", &vec![0.0f32; 2 * n_ranks - 1]).unwrap();
                    let refused = rank.all_gather(own.view(), &short.view_mut());
                    assert!(
                        matches!(refused, Err(CudaExecError::Bounds { .. })),
                        "{refused:?}"
                    );
                });
            }
        });
    }
}

#[test]
fn a_captured_sum_is_added_up_at_each_replay() {
    let (_simulators, devices) = simulators(2);
    let group = HostGroup::new(2);
    let ranks = NcclRank::join(&Simulator::nccl(), &devices, &group).unwrap();
    thread::scope(|scope| {
        for (device, mut rank) in devices.iter().zip(ranks) {
            scope.spawn(move || {
                let mut values = device.upload("values", &[1.0f32, 3.0]).unwrap();
                let capture = Capture::begin(device).unwrap();
                rank.all_reduce(&values.view_mut()).unwrap();
                rank.all_reduce(&values.view_mut()).unwrap();
                let mut graph = capture.finish().unwrap();
                assert_eq!(device.download(values.view()).unwrap(), [1.0, 3.0], "nothing ran");
                graph.replay().unwrap();
                graph.replay().unwrap();
                assert_eq!(device.download(values.view()).unwrap(), [16.0, 48.0]);
            });
        }
    });
}

#[test]
fn sums_of_different_lengths_are_told_and_end_the_communicator() {
    let (_simulators, devices) = simulators(2);
    let found = sums(&devices, &HostGroup::new(2), |rank| vec![1.0; 2 + rank]);
    for outcome in found {
        let error = outcome.unwrap_err().to_string();
        assert_eq!(
            error,
            "adding up over the ranks failed: NCCL error 5: invalid usage"
        );
    }
}

/// Lets only rank 0 arrive while `act` runs; returns its error, and how long it waited.
fn left_alone(group: &HostGroup, act: impl FnOnce()) -> (String, Duration) {
    let (_simulators, devices) = simulators(2);
    let mut ranks = NcclRank::join(&Simulator::nccl(), &devices, group).unwrap();
    thread::scope(|scope| {
        let (device, rank) = (&devices[0], &mut ranks[0]);
        let waiting = scope.spawn(move || {
            let mut values = device.upload("values", &[1.0f32]).unwrap();
            rank.all_reduce(&values.view_mut()).unwrap();
            let began = Instant::now();
            let error = device.download(values.view()).unwrap_err();
            let waited = began.elapsed();
            // An aborted communicator refuses further calls; the device itself works.
            let later = rank.all_reduce(&values.view_mut()).unwrap_err();
            assert!(matches!(later, CudaExecError::Lost { .. }), "{later}");
            assert!(
                later.to_string().contains("the communicator was aborted: "),
                "{later}"
            );
            let other = device.upload("values", &[7u32]).unwrap();
            assert_eq!(device.download(other.view()).unwrap(), [7]);
            (error.to_string(), waited)
        });
        act();
        waiting.join().unwrap()
    })
}

#[test]
fn a_rank_that_fails_ends_the_wait_of_another() {
    let group = HostGroup::new(2);
    let (error, waited) = left_alone(&group, || group.fail(1));
    assert_eq!(
        error,
        "adding up over the ranks failed: rank 1 of the group failed"
    );
    assert!(waited < Duration::from_secs(20), "{waited:?}");
}

#[test]
fn a_rank_that_does_not_come_is_waited_for_as_long_as_the_group_says() {
    let (error, waited) = left_alone(&HostGroup::with_patience(2, Duration::from_millis(1200)), || ());
    assert_eq!(
        error,
        "adding up over the ranks failed: a rank of the group did not come within 1 s"
    );
    assert!(waited >= Duration::from_millis(1200), "{waited:?}");
}

#[test]
fn the_end_of_a_rank_does_not_wait_for_the_others() {
    let (_simulators, devices) = simulators(2);
    let group = HostGroup::new(2);
    let mut ranks = NcclRank::join(&Simulator::nccl(), &devices, &group).unwrap();
    let mut values = devices[0].upload("values", &[1.0f32]).unwrap();
    let capture = Capture::begin(&devices[0]).unwrap();
    ranks[0].all_reduce(&values.view_mut()).unwrap();
    let graph = capture.finish().unwrap();
    drop(graph);
    let began = Instant::now();
    drop(ranks);
    assert!(began.elapsed() < Duration::from_secs(4), "no graph has it");
}

#[test]
fn a_rank_that_ends_lets_its_device_free_memory_without_the_others() {
    let (_simulators, devices) = simulators(2);
    let mut ranks = NcclRank::join(&Simulator::nccl(), &devices, &HostGroup::new(2)).unwrap();
    let mut values = devices[0].upload("values", &[1.0f32]).unwrap();
    ranks[0].all_reduce(&values.view_mut()).unwrap();
    ranks[0].end();
    let began = Instant::now();
    drop(values);
    assert!(
        began.elapsed() < Duration::from_secs(10),
        "freeing waits for the device"
    );
}

#[test]
fn gpus_that_nccl_does_not_join_are_refused() {
    // The same GPU twice.
    let (simulators, _devices) = simulators(1);
    let twice = [simulators[0].device(), simulators[0].device()];
    let error = NcclRank::join(&Simulator::nccl(), &twice, &HostGroup::new(2)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "joining the GPUs by NCCL failed: NCCL error 5: invalid usage"
    );
}
