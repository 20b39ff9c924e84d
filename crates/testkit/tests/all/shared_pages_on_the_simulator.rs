//! Requests with one long common prompt on the simulated device: the prefix cache gives them the same pages, and decode steps read those once for
//! all.
//!
//! The contexts of the engine's other tests are too short to be shared. The shared pages add in another order than each sequence's own, so tokens
//! are compared with those of the CPU, and may differ if two were equally likely.

use std::time::Duration;

use tokenmill_backend::{KvType, SamplingParams};
use tokenmill_cuda_exec::{
    Buffers, CudaBackend, Device, DeviceOptions, FirstUse, HeadsNeed, Needs, StepDown,
};
use tokenmill_gguf::TensorType;
use tokenmill_model::{Descriptor, ModelOptions};
use tokenmill_sched::{Engine, EngineConfig, GenerateParams, Output};
use tokenmill_sim_driver::{Defect, SimOptions, Simulator, When};
use tokenmill_testkit::{Random, TinyModel, engines, tiny_llama};

/// Tokens of the common prompt, and requests after it: 35 times 256 tokens are not read again.
const N_COMMON: usize = 256;
const N_REQUESTS: usize = 36;
const N_CTX: usize = 320;

/// Log-probabilities this close count as equal: products in other orders and keys that may round the other way in f16.
const TOLERANCE: f32 = 0.02;

/// One layer with heads of 64.
fn descriptor() -> Descriptor {
    let mut descriptor = tiny_llama();
    descriptor.layers.truncate(1);
    descriptor.n_ctx_train = N_CTX;
    let attention = descriptor.layers[0].attention_mut();
    (attention.head_dim_k, attention.head_dim_v) = (64, 64);
    attention.scale = 0.125;
    descriptor.ropes[0].head_dim = 64;
    descriptor.ropes[0].n_dims = 64;
    descriptor
}

fn options() -> ModelOptions {
    ModelOptions {
        n_ctx: Some(N_CTX),
        max_batch_tokens: 256,
        max_batch_seqs: N_REQUESTS,
        max_logit_rows: N_REQUESTS,
        n_pages: Some(N_REQUESTS * 6),
        kv_type: KvType::F16,
        ..ModelOptions::default()
    }
}

/// Returns the outputs of all requests together, after one that leaves the common prompt in the prefix cache.
fn generate(engine: &Engine, prompts: &[Vec<u32>]) -> Vec<Output> {
    let params = GenerateParams {
        sampling: SamplingParams {
            n_logprobs: Some(2),
            ..SamplingParams::default()
        },
        max_tokens: Some(6),
        ..GenerateParams::default()
    };
    engine.generate(&prompts[0], &params).unwrap();
    (engine.batch_generate(prompts, &params).unwrap().into_iter())
        .map(Result::unwrap)
        .collect()
}

/// Returns the same on the simulated device, and how often shared pages were attended to.
fn on_device(model: &TinyModel, prompts: &[Vec<u32>], uses_shared_pages: bool) -> (Vec<Output>, u64) {
    let simulator = Simulator::new(&SimOptions::default());
    let backend = (engines::gpu_of(&simulator)).with_shared_pages(uses_shared_pages);
    on_backend(model, prompts, &simulator, backend)
}

fn on_backend(
    model: &TinyModel,
    prompts: &[Vec<u32>],
    simulator: &Simulator,
    backend: CudaBackend,
) -> (Vec<Output>, u64) {
    let launches = || {
        let counters = simulator.counters();
        ["attention_shared_f16_d64", "attention_rest_f16_d64"]
            .map(|kernel| counters.get(kernel).map_or(0, |(n, _)| *n))
    };
    let before = launches();
    let executor = engines::tiny(model, backend, &options());
    let outputs = generate(&Engine::start(executor, EngineConfig::default()), prompts);
    let after = launches();
    let n_shared = after[0] - before[0];
    assert_eq!(after[1] - before[1], n_shared);
    (outputs, n_shared)
}

#[track_caller]
fn check(found: &[Output], expected: &[Output]) {
    let mut n_parted = 0;
    for (found, expected) in found.iter().zip(expected) {
        for (found, expected) in found.generated.iter().zip(&expected.generated) {
            if found.id != expected.id {
                assert!(
                    expected.top[0].logprob - expected.top[1].logprob <= TOLERANCE,
                    "{:?}",
                    expected.top
                );
                n_parted += 1;
                break;
            }
            let (found, expected) = (found.logprob.unwrap(), expected.logprob.unwrap());
            assert!((found - expected).abs() <= TOLERANCE, "{found} {expected}");
        }
    }
    assert!(n_parted <= 1, "{n_parted} of {} part at ties", expected.len());
}

#[test]
fn requests_behind_one_prompt_share_its_pages_and_give_the_cpus_tokens() {
    let model = TinyModel::random(descriptor(), TensorType::F16, 11);
    let mut random = Random::new(7);
    let mut token = || random.below(model.descriptor.n_vocab) as u32;
    let common: Vec<u32> = (0..N_COMMON).map(|_| token()).collect();
    let prompts: Vec<Vec<u32>> = (0..N_REQUESTS)
        .map(|request| {
            let own = (0..=request % 5).map(|_| token());
            common.iter().copied().chain(own).collect()
        })
        .collect();
    let executor = engines::tiny(&model, engines::cpu(1), &options());
    let expected = generate(&Engine::start(executor, EngineConfig::default()), &prompts);
    let (shared, n_shared) = on_device(&model, &prompts, true);
    assert!(n_shared > 0, "no step shared pages");
    check(&shared, &expected);
    let (apart, n_shared) = on_device(&model, &prompts, false);
    assert_eq!(n_shared, 0);
    check(&apart, &expected);

    // The check at the first use gives up shared pages on a GPU that is wrong there, and the tokens are right without.
    let simulator = Simulator::new(&SimOptions::default());
    simulator.plant(Defect::Wrong {
        kernel: "attention_shared".to_owned(),
        when: When::Always,
    });
    let wrong = engines::gpu_of(&simulator);
    let (wrong, _) = on_backend(&model, &prompts, &simulator, wrong);
    let is_apart = |(found, expected): (&Output, &Output)| {
        let found = found.generated.iter().map(|token| token.logprob.unwrap());
        let expected = expected.generated.iter().map(|token| token.logprob.unwrap());
        found
            .zip(expected)
            .any(|(a, b)| (a - b).abs() > TOLERANCE || a.is_nan())
    };
    assert!(
        wrong.iter().zip(&expected).any(is_apart),
        "the defect changes nothing"
    );
    let options = DeviceOptions {
        buffers: Buffers::Apart,
        texts: Some(Simulator::texts()),
        ..DeviceOptions::default()
    };
    let open = |options| Device::open_with(&Simulator::api(), simulator.ordinal(), options);
    let needs = Needs {
        types: vec![TensorType::F16],
        table_types: vec![TensorType::F16],
        expert_types: Vec::new(),
        kv_types: [KvType::F16; 2],
        heads: vec![HeadsNeed { dim: 64, group: 2 }],
        is_recurrent: false,
        is_batch_invariant: false,
    };
    let mut found = FirstUse::default();
    (found.check_kernels(&options, &needs, Duration::from_mins(1), open, |_, _| ())).unwrap();
    assert_eq!(found.steps, [StepDown::Apart], "{found:?}");
    assert!(
        found.findings[0].kernel.starts_with("attention_shared/"),
        "{found:?}"
    );
    let device = open(options.without(&found.steps)).unwrap();
    let backend = CudaBackend::new(device).unwrap();
    let (without, n_shared) = on_backend(&model, &prompts, &simulator, backend);
    assert_eq!(n_shared, 0);
    check(&without, &expected);
}
