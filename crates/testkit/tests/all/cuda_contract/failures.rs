//! Failures end at most one step, never the others, and leave no stream capturing.

use tokenmill_backend::{BackendError, Executor, KvType, PageCopy, PageGroup, StepError, StepOutput};
use tokenmill_gguf::TensorType;
use tokenmill_model::{LoadError, ModelOptions};
use tokenmill_sim_driver::{Fault, SimOptions, Simulator};
use tokenmill_testkit::engines;

use super::scene::{OnGpu, advance, assert_same_bits, batch_of, model, options, sequences};

/// Returns the logits of four decode steps, with a fault before the first.
fn after(fault: Option<Fault>) -> (Vec<Vec<f32>>, OnGpu) {
    let mut gpu = OnGpu::new(TensorType::Q8_0);
    let mut all = sequences(3);
    advance(&mut gpu.executor, all.iter_mut().collect()).unwrap();
    if let Some(fault) = fault {
        gpu.simulator.inject(fault);
    }
    let rows = (0..4)
        .flat_map(|_| advance(&mut gpu.executor, all.iter_mut().collect()).unwrap())
        .collect();
    assert!(!gpu.simulator.is_capturing());
    (rows, gpu)
}

#[test]
fn a_capture_that_fails_leaves_the_step_to_eager_launches() {
    let (expected, captured) = after(None);
    assert_eq!(captured.simulator.graph_counts(), (1, 4));
    for fault in [Fault::BeginCapture, Fault::EndCapture] {
        let (rows, gpu) = after(Some(fault));
        assert_same_bits(&format!("{fault:?}"), &expected, &rows);
        // The shape is not tried again.
        assert_eq!(gpu.simulator.graph_counts(), (0, 0), "{fault:?}");
    }
}

#[test]
fn an_error_inside_a_capture_ends_it() {
    let (expected, _) = after(None);
    for nth in [0, 1, 7, 15] {
        let (rows, gpu) = after(Some(Fault::Launch { after: nth }));
        assert_same_bits(&format!("launch {nth}"), &expected, &rows);
        // The recording up to the error is discarded.
        assert_eq!(gpu.simulator.graph_counts().1, 0, "nothing was replayed");
        assert_eq!(gpu.executor.backend().n_graphs(), 0);
    }
}

#[test]
fn a_launch_that_fails_fails_its_step_and_no_other() {
    let mut gpu = OnGpu::eager(TensorType::F32);
    let mut undisturbed = OnGpu::eager(TensorType::F32);
    let (mut all, mut expected) = (sequences(2), sequences(2));
    advance(&mut gpu.executor, all.iter_mut().collect()).unwrap();
    advance(&mut undisturbed.executor, expected.iter_mut().collect()).unwrap();
    gpu.simulator.inject(Fault::Launch { after: 5 });
    let error = advance(&mut gpu.executor, all.iter_mut().collect()).unwrap_err();
    assert!(matches!(error, StepError::Device { .. }), "{error}");
    // The same step, again.
    let found = advance(&mut gpu.executor, all.iter_mut().collect()).unwrap();
    let rows = advance(&mut undisturbed.executor, expected.iter_mut().collect()).unwrap();
    assert_same_bits("after the failure", &rows, &found);
}

#[test]
fn a_lost_device_stays_lost_and_takes_nobody_with_it() {
    for is_captured in [false, true] {
        let mut gpu = if is_captured {
            OnGpu::new(TensorType::F32)
        } else {
            OnGpu::eager(TensorType::F32)
        };
        let mut beside = OnGpu::new(TensorType::F32);
        let mut all = sequences(2);
        advance(&mut gpu.executor, all.iter_mut().collect()).unwrap();
        if is_captured {
            advance(&mut gpu.executor, all.iter_mut().collect()).unwrap();
        }
        gpu.simulator.inject(Fault::Lose { after: 3 });
        // Launches of a replay count, too.
        let error = advance(&mut gpu.executor, all.iter_mut().collect()).unwrap_err();
        assert!(matches!(error, StepError::DeviceLost { .. }), "{error}");
        for _ in 0..2 {
            let again = advance(&mut gpu.executor, all.iter_mut().collect()).unwrap_err();
            assert!(matches!(again, StepError::DeviceLost { .. }), "{again}");
        }
        let copies = [PageCopy::Duplicate { from: 0, to: 1 }];
        let error = gpu.executor.copy_pages(PageGroup::Main, &copies).unwrap_err();
        assert!(matches!(error, StepError::DeviceLost { .. }), "{error}");
        drop(gpu);
        let mut others = sequences(2);
        advance(&mut beside.executor, others.iter_mut().collect()).unwrap();
    }
}

#[test]
fn a_refused_batch_touches_nothing() {
    let mut gpu = OnGpu::new(TensorType::F32);
    let mut sequence = sequences(1).remove(0);
    let (uploads, _) = gpu.simulator.copy_counts();
    sequence.pages[0] = 10_000;
    let batch = batch_of(&[&mut sequence], None);
    assert!(matches!(
        gpu.executor.submit(&batch),
        Err(StepError::InvalidBatch(_))
    ));
    assert_eq!(gpu.simulator.copy_counts().0, uploads);
    let mut output = StepOutput::default();
    let mut fresh = sequences(1).remove(0);
    let ticket = gpu.executor.submit(&batch_of(&[&mut fresh], None)).unwrap();
    gpu.executor.wait(ticket, &mut output).unwrap();
}

#[test]
fn too_little_memory_is_known_before_anything_is_uploaded() {
    let model = model(TensorType::F32);
    let load = |total_bytes: u64, options: &ModelOptions| {
        let simulator = Simulator::new(&SimOptions {
            total_bytes,
            ..SimOptions::default()
        });
        let loaded = engines::build(&model.descriptor, &model, engines::gpu_of(&simulator), options);
        (loaded.err(), simulator)
    };
    let wide = ModelOptions {
        n_ctx: Some(1 << 20),
        n_pages: Some(1 << 16),
        ..options()
    };
    assert!(load(8 << 30, &options()).0.is_none());
    let (error, simulator) = load(400 << 20, &wide);
    let Some(LoadError::Backend(BackendError::DoesNotFit {
        needed_bytes,
        free_bytes,
        kv_tokens,
        fitting_kv_tokens,
        ..
    })) = error
    else {
        panic!("{error:?}");
    };
    assert!(needed_bytes > free_bytes && free_bytes <= 400 << 20);
    assert_eq!(kv_tokens, 1 << 20);
    assert!(fitting_kv_tokens > 0 && fitting_kv_tokens < kv_tokens);
    assert_eq!(simulator.copy_counts(), (0, 0));
    // The number of tokens that the error suggests does fit.
    let fitting = ModelOptions {
        n_pages: Some(fitting_kv_tokens / 16),
        ..wide.clone()
    };
    assert!(load(400 << 20, &fitting).0.is_none());
    let (error, _) = load(16 << 20, &wide);
    assert!(
        error
            .as_ref()
            .is_some_and(|error| error.to_string().contains("no context would fit")),
        "{error:?}"
    );
}

#[test]
fn a_step_of_more_tokens_than_a_grid_has_blocks_is_refused_before_anything_is_uploaded() {
    let model = model(TensorType::F32);
    let load = |max_batch_tokens| {
        let simulator = Simulator::new(&SimOptions {
            total_bytes: 64 << 30,
            ..SimOptions::default()
        });
        let backend = engines::gpu_of(&simulator);
        let options = ModelOptions {
            max_batch_tokens,
            ..options()
        };
        let loaded = engines::build(&model.descriptor, &model, backend, &options);
        (loaded.err(), simulator)
    };
    assert!(load(65_535).0.is_none());
    let (error, simulator) = load(65_536);
    let Some(LoadError::Backend(error @ BackendError::Unsupported { .. })) = error else {
        panic!("{error:?}");
    };
    assert_eq!(
        error.to_string(),
        "the CUDA backend does not support steps of 65536 tokens, only of 65535 and fewer"
    );
    assert_eq!(simulator.copy_counts(), (0, 0));
}

#[test]
fn a_kv_type_without_kernels_is_refused_before_anything_is_uploaded() {
    let model = model(TensorType::F32);
    let simulator = Simulator::new(&SimOptions::default());
    let backend = engines::gpu_of(&simulator);
    let options = ModelOptions {
        kv_type: KvType::Q8_0,
        ..options()
    };
    let error = engines::build(&model.descriptor, &model, backend, &options).err();
    assert!(
        matches!(error, Some(LoadError::Backend(BackendError::Unsupported { .. }))),
        "{error:?}"
    );
    assert_eq!(simulator.copy_counts(), (0, 0));
}

#[test]
fn page_moves_before_one_that_fails_are_waited_for() {
    let mut gpu = OnGpu::new(TensorType::F32);
    let mut undisturbed = OnGpu::new(TensorType::F32);
    let (mut all, mut expected) = (sequences(1), sequences(1));
    advance(&mut gpu.executor, all.iter_mut().collect()).unwrap();
    advance(&mut undisturbed.executor, expected.iter_mut().collect()).unwrap();
    let from = all[0].pages[0];
    let copies = [
        PageCopy::Duplicate { from, to: 20 },
        PageCopy::Download {
            page: from,
            host_page: 0,
        },
    ];
    gpu.simulator.inject(Fault::Download { after: 0 });
    let error = gpu.executor.copy_pages(PageGroup::Main, &copies).unwrap_err();
    assert!(matches!(error, StepError::Device { .. }), "{error}");
    // The page that was copied before the failure is complete for the next step.
    all[0].pages[0] = 20;
    let found = advance(&mut gpu.executor, all.iter_mut().collect()).unwrap();
    let rows = advance(&mut undisturbed.executor, expected.iter_mut().collect()).unwrap();
    assert_same_bits("after the failure", &rows, &found);
}
