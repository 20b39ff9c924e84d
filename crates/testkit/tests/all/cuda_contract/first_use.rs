//! Tests the checks of a model's own steps at the first use of a GPU, against the CPU and in each way of launching.

use tokenmill_cuda_exec::{CudaBackend, Finding, StepDown, Way, compare_steps, compare_ways};
use tokenmill_gguf::TensorType;
use tokenmill_sim_driver::{Defect, When};
use tokenmill_testkit::engines::OnBackend;

use super::scene::{OnGpu, on_cpu};

const TYPE: TensorType = TensorType::Q8_0;

fn with(defect: Option<Defect>) -> OnGpu {
    let gpu = OnGpu::new(TYPE);
    if let Some(defect) = defect {
        gpu.simulator.plant(defect);
    }
    gpu
}

fn wrong(kernel: &str, when: When) -> Defect {
    Defect::Wrong {
        kernel: kernel.to_owned(),
        when,
    }
}

fn set(executor: &mut (dyn OnBackend<CudaBackend> + Send + 'static), way: Way) {
    let backend = executor.backend_mut();
    backend.set_graphs(way.uses_graphs);
    backend.device().set_launches(way.launches);
}

fn ways(gpu: &mut OnGpu) -> Result<(), Finding> {
    compare_ways(&mut *gpu.executor, [true; 2], set, |executor| {
        executor.backend().capture_failure().map(str::to_owned)
    })
}

#[test]
fn a_gpu_without_a_defect_gives_the_same_bits_in_every_way() {
    let mut gpu = with(None);
    compare_steps(&mut *gpu.executor, &mut *on_cpu(TYPE)).unwrap();
    ways(&mut gpu).unwrap();
    let (n_captured, n_replayed) = gpu.simulator.graph_counts();
    assert!(n_captured >= 2 && n_replayed > 50, "{n_captured}, {n_replayed}");
    assert!(gpu.simulator.n_early_launches() > 0);
}

#[test]
fn a_wrong_model_is_found_against_the_cpu() {
    let mut gpu = with(Some(wrong("turn_attention", When::Always)));
    let wrong_attention = compare_steps(&mut *gpu.executor, &mut *on_cpu(TYPE));
    // Attention over f32 keys uses another kernel.
    assert!(wrong_attention.is_ok(), "{wrong_attention:?}");
    let mut gpu = with(Some(wrong("attention_f32", When::Always)));
    let finding = compare_steps(&mut *gpu.executor, &mut *on_cpu(TYPE)).unwrap_err();
    assert!(finding.reason.contains("of their spread"), "{finding}");
    assert_eq!(finding.remedy, None);
}

#[test]
fn wrong_replays_are_given_up() {
    let finding = ways(&mut with(Some(wrong("matvec", When::Replayed)))).unwrap_err();
    assert_eq!(finding.remedy, Some(StepDown::Eager), "{finding}");
    assert!(finding.check.contains("captured and replayed"), "{finding}");
}

#[test]
fn wrong_early_launches_are_given_up() {
    let finding = ways(&mut with(Some(wrong("matvec", When::Early)))).unwrap_err();
    assert_eq!(finding.remedy, Some(StepDown::InOrder), "{finding}");
    assert!(finding.check.contains("launched early"), "{finding}");
}

/// If no step can be captured, all are queued launch by launch. The bits are right, but each step would try again.
#[test]
fn a_capture_that_fails_is_given_up() {
    let mut gpu = with(Some(Defect::Capture));
    let finding = ways(&mut gpu).unwrap_err();
    assert_eq!(finding.remedy, Some(StepDown::Eager), "{finding}");
    assert!(finding.reason.contains("cannot be captured"), "{finding}");
    assert_eq!(gpu.simulator.graph_counts(), (0, 0));
    // Without captures, none can fail.
    let without = compare_ways(&mut *gpu.executor, [false, true], set, |executor| {
        executor.backend().capture_failure().map(str::to_owned)
    });
    without.unwrap();
}

/// If captures fail because of early launches, the early launches are given up before the captures.
#[test]
fn failed_early_captures_give_up_early_launches_only() {
    let mut gpu = with(Some(Defect::EarlyCapture));
    let finding = ways(&mut gpu).unwrap_err();
    assert_eq!(finding.remedy, Some(StepDown::InOrder), "{finding}");
    assert!(finding.reason.contains("cannot be captured"), "{finding}");
    assert!(gpu.simulator.graph_counts().0 > 0);
}
