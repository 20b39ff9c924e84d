//! Decode steps launched early, captured and replayed, against launches in order: the first launch after which memory differs.
//!
//! (The search by single launches runs all of them in order.) Only the first launches of a step are run, in both ways, and their number is
//! bisected until one launch makes the difference. Invariant: both ways begin with the same bytes in every buffer that a step changes.

use anyhow::{Context as _, ensure};
use serde_json::json;
use tokenmill_cuda_exec::{CudaBackend, Device, Launches, RecordedLaunch, Snapshot, Way};
use tokenmill_model::ModelExecutor;

use super::{
    Culprit,
    steps::{N_PROMPT, prompt, step},
};

/// A decode step after a prompt.
struct Scene<'a> {
    executor: &'a mut ModelExecutor,
    device: Device,
    token: u32,
    /// The buffers that a step changes, with their contents before it.
    before: Snapshot,
    /// The launches of a step.
    n_launches: usize,
    /// Number of times that a step is launched in each way, since a violated order does not show each time.
    n_repeats: usize,
}

const IN_ORDER: Way = Way {
    uses_graphs: false,
    launches: Launches::InOrder,
};

impl<'a> Scene<'a> {
    fn new(executor: &'a mut ModelExecutor, n_repeats: usize) -> anyhow::Result<Self> {
        let device = executor.backend::<CudaBackend>().device().clone();
        executor
            .backend_mut::<CudaBackend>()
            .set_graphs(IN_ORDER.uses_graphs);
        device.set_launches(IN_ORDER.launches);
        let prompt = prompt(executor);
        step(executor, &prompt, 0)?;
        let before = device.snapshot()?;
        let (done, launches) = device.launches_of(|| step(executor, &prompt[..1], N_PROMPT));
        done?;
        Ok(Self {
            before: before.changed(&device.snapshot()?),
            executor,
            device,
            token: prompt[0],
            n_launches: launches.len(),
            n_repeats,
        })
    }

    /// Runs the first `n` launches of the step in a way; returns the memory that the step changes.
    fn play(&mut self, way: Way, n: usize) -> anyhow::Result<Snapshot> {
        self.executor
            .backend_mut::<CudaBackend>()
            .set_graphs(way.uses_graphs);
        self.device.set_launches(way.launches);
        self.device.restore(&self.before)?;
        let (device, token) = (self.device.clone(), self.token);
        // A part of a step gives no token, which is not an error here.
        let _ = device.with_first_launches(n, || step(self.executor, &[token], N_PROMPT));
        Ok(device.snapshot_like(&self.before)?)
    }

    /// Returns the memory after the first `n` launches in a way, if it differs from that of launches in order.
    fn difference(&mut self, way: Way, n: usize) -> anyhow::Result<Option<Snapshot>> {
        let expected = self.play(IN_ORDER, n)?;
        for _ in 0..self.n_repeats {
            let found = self.play(way, n)?;
            if found != expected {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Returns the launch of this number in order, with its buffers.
    fn record(&mut self, index: usize) -> anyhow::Result<RecordedLaunch> {
        self.executor
            .backend_mut::<CudaBackend>()
            .set_graphs(IN_ORDER.uses_graphs);
        self.device.set_launches(IN_ORDER.launches);
        self.device.restore(&self.before)?;
        let (device, token) = (self.device.clone(), self.token);
        let (_, record) = device.record_launch(index, || step(self.executor, &[token], N_PROMPT));
        record.context("the launch is not repeated")
    }
}

/// Returns the first launch after which memory differs from launches in order; each way is tried `n_repeats` times.
///
/// # Errors
/// A device that fails with launches in order, or steps whose results vary.
pub(super) fn search(executor: &mut ModelExecutor, n_repeats: usize) -> anyhow::Result<Option<Culprit>> {
    let mut scene = Scene::new(executor, n_repeats)?;
    let n_launches = scene.n_launches;
    ensure!(
        scene.difference(IN_ORDER, n_launches)?.is_none(),
        "steps with launches in order are not the same each time"
    );
    let ways = [
        ("captured and replayed", true, Launches::InOrder),
        ("launched early", false, Launches::Early),
        ("captured, replayed and launched early", true, Launches::Early),
    ];
    for (name, uses_graphs, launches) in ways {
        let way = Way {
            uses_graphs,
            launches,
        };
        let Some(mut found) = scene.difference(way, n_launches)? else {
            continue;
        };
        let (mut equal, mut other) = (0, n_launches);
        while other - equal > 1 {
            let middle = usize::midpoint(equal, other);
            match scene.difference(way, middle)? {
                None => equal = middle,
                Some(snapshot) => (other, found) = (middle, snapshot),
            }
        }
        let mut launch = scene.record(other - 1)?;
        let kernel = format!("{}/{}", launch.module, launch.name);
        let mut differing = Vec::new();
        for (index, buffer) in launch.buffers.iter_mut().enumerate() {
            let right = buffer.after.as_ref().unwrap_or(&buffer.before);
            let Some(bytes) = found.of(buffer).filter(|bytes| *bytes != right.as_slice()) else {
                continue;
            };
            let n_other = bytes.iter().zip(right).filter(|(a, b)| a != b).count();
            differing.push(json!({ "buffer": index, "element": buffer.element, "bytes": bytes.len(), "other_bytes": n_other }));
            // The dump has the results of this way of launching.
            buffer.after = Some(bytes.to_vec());
        }
        return Ok(Some(Culprit {
            stage: "ways of launching",
            place: format!("launch {} of {n_launches} of a decode step", other - 1),
            kernel,
            reason: format!("{name}, it leaves other bits than with launches in order"),
            is_confirmed: !differing.is_empty(),
            launch: Some(launch),
            buffers: json!(differing),
        }));
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use tokenmill_cuda_exec::{DeviceOptions, Recording};
    use tokenmill_sim_driver::{Defect, SimOptions, Simulator, When};

    use super::*;
    use crate::device_bisect::steps;

    fn found(defect: Option<Defect>) -> Option<Culprit> {
        let simulator = Simulator::new(&SimOptions::default());
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tiny.gguf");
        crate::synth::run(&crate::synth::Args::new("tiny-llama", "Q4_K_M", &path)).unwrap();
        let model = tokenmill_model::Model::open(&path).unwrap();
        let device = simulator.device_as(DeviceOptions {
            recording: Recording::On,
            ..DeviceOptions::default()
        });
        let mut executor = steps::load(&model, device).unwrap();
        if let Some(defect) = defect {
            simulator.plant(defect);
        }
        search(&mut executor, 1).unwrap()
    }

    #[test]
    fn a_kernel_that_is_wrong_only_in_graphs_or_only_early_is_named() {
        assert!(found(None).is_none());
        for (when, way) in [
            (When::Replayed, "captured and replayed"),
            (When::Early, "launched early"),
        ] {
            let culprit = found(Some(Defect::Wrong {
                kernel: "matvec_gated".to_owned(),
                when,
            }));
            let culprit = culprit.unwrap();
            assert!(culprit.kernel.contains("/matvec_gated"), "{}", culprit.kernel);
            assert!(culprit.reason.starts_with(way), "{}", culprit.reason);
            assert!(culprit.is_confirmed);
        }
    }
}
