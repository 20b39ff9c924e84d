//! The engine over a split network: batches by either route, cached prefixes, and steps that fail.

use std::time::Duration;

use tokenmill_backend::{KvType, Side, SplitOperations};
use tokenmill_cpu_exec::CpuBackend;
use tokenmill_gguf::TensorType;
use tokenmill_model::ModelOptions;
use tokenmill_placed::{LayerPlacement, Placed, Placement};
use tokenmill_sched::{Engine, EngineConfig, GenerateParams};
use tokenmill_sim_driver::{Fault, SimOptions, Simulator};
use tokenmill_testkit::{
    MEMORY_KINDS, TinyModel,
    engines::{self, Loadable},
    tiny_llama,
};

/// The placement of the contract: attention on the CPU, feed-forward networks on the GPU.
const HALVES: LayerPlacement = LayerPlacement {
    mixer: Side::Host,
    ffn: Side::Device,
    experts: Side::Device,
};

fn cpu() -> CpuBackend {
    engines::cpu(1)
}

fn model() -> TinyModel {
    TinyModel::random(tiny_llama(), TensorType::F16, 11)
}

fn options(n_pages: usize) -> ModelOptions {
    ModelOptions {
        n_ctx: Some(128),
        max_batch_tokens: 64,
        max_batch_seqs: 8,
        max_logit_rows: 8,
        n_pages: Some(n_pages),
        n_host_pages: 16,
        kv_type: KvType::F16,
        ..ModelOptions::default()
    }
}

fn whole(model: &TinyModel) -> Engine {
    let executor = engines::tiny(model, cpu(), &options(64));
    Engine::start(executor, EngineConfig::default())
}

fn split<D>(model: &TinyModel, device: D, placement: Placement, n_pages: usize) -> Engine
where
    D: SplitOperations + 'static,
    Placed<CpuBackend, D>: Loadable,
{
    let backend = Placed::new(cpu(), device, placement);
    let executor = engines::tiny(model, backend, &options(n_pages));
    Engine::start(executor, EngineConfig::default())
}

fn halves(model: &TinyModel, min_device_tokens: usize) -> Placement {
    let layers = vec![HALVES; model.descriptor.layers.len()];
    Placement::new(&model.descriptor.shape(), layers).with_min_device_tokens(min_device_tokens)
}

fn greedy(max_tokens: usize) -> GenerateParams {
    GenerateParams {
        max_tokens: Some(max_tokens),
        ..GenerateParams::default()
    }
}

/// Prompts of different lengths with the same beginning.
fn prompts(n: u32) -> Vec<Vec<u32>> {
    (0..n)
        .map(|own| {
            (0..20)
                .chain((0..3 + 5 * own).map(|idx| (idx * 11 + own) % 96))
                .collect()
        })
        .collect()
}

pub(crate) fn wait_until_no_page_is_held(engine: &Engine) {
    for _ in 0..400 {
        if engine.stats().n_pages_in_use == 0 {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("pages are held: {:?}", engine.stats());
}

#[test]
fn ragged_batches_are_the_same_on_either_route() {
    let model = model();
    let prompts = prompts(6);
    let alone = whole(&model);
    let expected: Vec<_> = prompts
        .iter()
        .map(|prompt| alone.generate(prompt, &greedy(12)).unwrap().tokens)
        .collect();
    for threshold in [1, 3, usize::MAX] {
        let engine = split(&model, cpu(), halves(&model, threshold), 64);
        let outputs = engine.batch_generate(&prompts, &greedy(12)).unwrap();
        let found: Vec<_> = outputs.into_iter().map(|output| output.unwrap().tokens).collect();
        assert_eq!(found, expected, "{threshold}");
        wait_until_no_page_is_held(&engine);
    }
}

#[test]
fn cached_prefixes_and_moved_pages_change_no_token() {
    for (name, change) in MEMORY_KINDS {
        let mut descriptor = tiny_llama();
        change(&mut descriptor);
        let model = TinyModel::random(descriptor, TensorType::F16, 11);
        // So few pages that some move to the host tier and back.
        let placement = Placement::last_layers(&model.descriptor.shape(), 1);
        let engine = split(&model, cpu(), placement, 12);
        let alone = whole(&model);
        let mut n_cached = 0;
        for round in 0..2 {
            for prompt in prompts(5) {
                let output = engine.generate(&prompt, &greedy(6)).unwrap();
                let expected = alone.generate(&prompt, &greedy(6)).unwrap();
                assert_eq!(output.tokens, expected.tokens, "{name}, round {round}");
                n_cached += output.usage.cached_tokens;
            }
        }
        assert!(n_cached > 0, "{name}: nothing came from the cache");
        wait_until_no_page_is_held(&engine);
    }
}

#[test]
fn a_step_that_fails_on_the_device_puts_all_pages_back() {
    let model = model();
    for placement in [
        halves(&model, 1),
        Placement::last_layers(&model.descriptor.shape(), 1),
    ] {
        for fault in [Fault::Launch { after: 9 }, Fault::Download { after: 3 }] {
            let simulator = Simulator::new(&SimOptions::default());
            let device = engines::gpu_of(&simulator);
            let engine = split(&model, device, placement.clone(), 64);
            let prompts = [vec![1, 2, 3], vec![4, 5]];
            let expected: Vec<_> = (engine.batch_generate(&prompts, &greedy(4)).unwrap().into_iter())
                .map(|output| output.unwrap().tokens)
                .collect();
            simulator.inject(fault);
            let outputs = engine.batch_generate(&prompts, &greedy(4)).unwrap();
            assert!(outputs.iter().any(Result::is_err), "{fault:?}");
            wait_until_no_page_is_held(&engine);
            let again: Vec<_> = (engine.batch_generate(&prompts, &greedy(4)).unwrap().into_iter())
                .map(|output| output.unwrap().tokens)
                .collect();
            assert_eq!(again, expected, "{fault:?}");
        }
    }
}
