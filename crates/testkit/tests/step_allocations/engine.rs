//! Counts the engine's allocations in decode steps, apart from the executor's: scheduling, batches, commits and events. The tokens of the
//! texts, their pages and the names of these pages are kept in lists that double.

use std::time::{Duration, Instant};

use tokenmill_backend::{PAGE_TOKENS, SamplingParams};
use tokenmill_gguf::TensorType;
use tokenmill_model::{Descriptor, ModelOptions};
use tokenmill_sched::{Engine, EngineConfig, Event, GenerateParams, Generation};
use tokenmill_testkit::{TinyModel, engines};

use super::SMALLEST_COUNTED;

const N_SEQS: usize = 3;
const PROMPT_TOKENS: usize = 12;
/// Tokens of each request before counting starts.
const N_BEFORE: usize = 24;
/// Tokens of each request while allocations are counted: several pages.
const N_COUNTED: usize = 4 * PAGE_TOKENS;
/// Events that a stream holds before its request pauses. All streams are full before counting starts, so that their lists have grown. The
/// events of the steps under way then still fit into these lists.
const STREAM_BUFFER: usize = 5;
const STREAM_ROOM: usize = 8;

/// Bytes of a page's name.
const KEY_BYTES: usize = 16;

/// Counts the bytes that lists take while they grow from `n_before` to `n` entries of `entry_bytes`, doubling from `least` on. Allocations
/// below [`SMALLEST_COUNTED`] are ignored.
fn doublings(least: usize, n_before: usize, n: usize, entry_bytes: usize) -> usize {
    std::iter::successors(Some(least), |room| Some(2 * room))
        .take_while(|room| *room < n)
        .filter(|room| *room >= n_before)
        .map(|room| 2 * room * entry_bytes)
        .filter(|&n_bytes| n_bytes >= SMALLEST_COUNTED)
        .sum()
}

/// Returns the most bytes that the texts take.
pub(crate) fn bytes_of_texts() -> usize {
    let n_before = PROMPT_TOKENS + N_BEFORE;
    let n = n_before + N_COUNTED + STREAM_ROOM;
    let pages = |n_tokens: usize| n_tokens / PAGE_TOKENS;
    let names = doublings(4, pages(n_before), pages(n), KEY_BYTES);
    let page_table = doublings(4, pages(n_before), pages(n) + 1, size_of::<u32>());
    let tokens = doublings(PROMPT_TOKENS, n_before, n, size_of::<u32>());
    N_SEQS * (tokens + names + page_table)
}

/// Counts the bytes that decode steps of [`N_SEQS`] requests allocate, over [`N_COUNTED`] tokens of each.
pub(crate) fn bytes_of_steps(descriptor: &Descriptor, sampling: &SamplingParams, n_ctx: usize) -> usize {
    let model = TinyModel::random(descriptor.clone(), TensorType::Q8_0, 5);
    let options = ModelOptions {
        n_ctx: Some(n_ctx),
        max_batch_tokens: 64,
        max_batch_seqs: N_SEQS,
        max_logit_rows: N_SEQS,
        n_pages: Some(N_SEQS * n_ctx / PAGE_TOKENS),
        ..ModelOptions::default()
    };
    let executor = engines::tiny(&model, engines::cpu(2), &options);
    let config = EngineConfig {
        stream_buffer: STREAM_BUFFER,
        ..EngineConfig::default()
    };
    let engine = Engine::start(executor, config);
    let params = GenerateParams {
        sampling: sampling.clone(),
        max_tokens: Some(n_ctx - PAGE_TOKENS),
        ..GenerateParams::default()
    };
    let submit = |first: usize, n: usize| -> Vec<Generation> {
        let prompts = (first..first + n).map(|number| {
            (0..PROMPT_TOKENS)
                .map(move |at| ((at * 7 + number) % 96) as u32)
                .collect()
        });
        prompts
            .map(|prompt| engine.submit(prompt, params.clone()).expect("there is room"))
            .collect()
    };
    // Texts of the same length first let reused buffers grow, in steps of one row up to all.
    for n_requests in 1..=N_SEQS {
        let mut longer = submit(n_requests * N_SEQS, n_requests);
        take(&mut longer, n_ctx - PAGE_TOKENS);
    }
    let mut requests = submit(0, N_SEQS);
    take(&mut requests, N_BEFORE);
    wait_until_all_are_paused(&engine);
    super::counted(|| take(&mut requests, N_COUNTED))
}

/// Takes `n` tokens of each request.
fn take(requests: &mut [Generation], n: usize) {
    for _ in 0..n {
        for request in &mut *requests {
            let event = request.next().expect("the request goes on");
            assert!(matches!(event, Event::Token(_)), "{event:?}");
        }
    }
}

/// Waits until all streams are full and nothing is computed.
fn wait_until_all_are_paused(engine: &Engine) {
    let begun = Instant::now();
    while engine.stats().n_paused < N_SEQS {
        assert!(begun.elapsed() < Duration::from_mins(1), "{:?}", engine.stats());
        std::thread::sleep(Duration::from_millis(1));
    }
}
