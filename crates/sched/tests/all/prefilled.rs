//! Tests that other requests do not evict held pages of a prompt, and that dropping the handle frees them.

use tokenmill_gguf::TensorType;
use tokenmill_model::ModelOptions;
use tokenmill_sched::{Engine, EngineConfig, GenerateParams};
use tokenmill_testkit::{TinyModel, engines, tiny_llama};

const PAGE: usize = 16;
const N_PAGES: usize = 12;

fn engine() -> Engine {
    let model = TinyModel::random(tiny_llama(), TensorType::F32, 7);
    let options = ModelOptions {
        n_ctx: Some(N_PAGES * PAGE),
        max_batch_tokens: 64,
        max_batch_seqs: 2,
        max_logit_rows: 2,
        n_pages: Some(N_PAGES),
        ..ModelOptions::default()
    };
    let executor = engines::tiny(&model, engines::cpu(2), &options);
    Engine::start(executor, EngineConfig::default())
}

fn prompt(first: u32, n: usize) -> Vec<u32> {
    (0..n as u32).map(|at| (at * 7 + first) % 90).collect()
}

fn cached_tokens(engine: &Engine, prompt: &[u32]) -> usize {
    let params = GenerateParams {
        max_tokens: Some(1),
        ..GenerateParams::default()
    };
    engine.generate(prompt, &params).unwrap().usage.cached_tokens
}

#[test]
fn held_pages_outlast_requests_that_need_all_others() {
    let engine = engine();
    let kept = prompt(1, 5 * PAGE + 3);
    let held = engine.prefill(&kept).unwrap();
    assert_eq!(held.n_tokens(), 5 * PAGE);
    assert_eq!(held.logits(), engine.prefill_batch(&kept).unwrap());
    // Each needs more pages than are free besides the held ones, so the cache is emptied twice.
    for first in [40, 60] {
        cached_tokens(&engine, &prompt(first, 6 * PAGE + 1));
    }
    assert_eq!(cached_tokens(&engine, &kept), 5 * PAGE);
    drop(held);
    for first in [41, 61] {
        cached_tokens(&engine, &prompt(first, 10 * PAGE));
    }
    assert_eq!(cached_tokens(&engine, &kept), 0);
}

#[test]
fn a_prompt_shorter_than_a_page_holds_none() {
    let engine = engine();
    let held = engine.prefill(&prompt(3, PAGE - 1)).unwrap();
    assert_eq!(held.n_tokens(), 0);
    assert_eq!(held.logits().len(), engine.limits().n_vocab);
    assert!(engine.prefill(&[]).is_err());
}
