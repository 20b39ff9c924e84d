//! Counts the host allocations of a step: none, once the reused buffers have grown, whatever the size of the model, the vocabulary
//! and the context. (On the CPU, host memory is the device's memory too.) The engine's part of a step allocates only memory for the texts.
//!
//! One test, since the counter is the program's.

mod engine;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
};

use tokenmill_backend::{
    Executor, ForwardBatch, PAGE_TOKENS, RowOutput, SampleRow, SamplingParams, StepOutput,
};
use tokenmill_gguf::TensorType;
use tokenmill_model::{Descriptor, ModelOptions};
use tokenmill_testkit::{TinyModel, engines, generate::ids, tiny_llama};

static COUNTS: AtomicBool = AtomicBool::new(false);
static N_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Counts requests to the system's allocator while counting is on.
struct Counting;

/// Smaller ones are the runtime's, such as the name of a thread that is only starting now; nothing that grows is as small.
const SMALLEST_COUNTED: usize = 64;

fn count(n_bytes: usize) {
    if n_bytes >= SMALLEST_COUNTED && COUNTS.load(SeqCst) {
        N_BYTES.fetch_add(n_bytes, SeqCst);
    }
}

// SAFETY: everything is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller keeps the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, n_bytes: usize) -> *mut u8 {
        count(n_bytes);
        // SAFETY: the caller keeps the contract.
        unsafe { System.realloc(memory, layout, n_bytes) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const N_SEQS: usize = 3;
const PROMPT_TOKENS: usize = 17;
const N_DECODE_STEPS: usize = 12;

fn options(n_ctx: usize) -> ModelOptions {
    ModelOptions {
        n_ctx: Some(n_ctx),
        max_batch_tokens: 64,
        max_batch_seqs: N_SEQS,
        max_logit_rows: N_SEQS,
        n_pages: Some(N_SEQS * n_ctx / PAGE_TOKENS),
        ..ModelOptions::default()
    }
}

/// Counts the bytes that a prefill and the decode steps after it allocate, after the same steps ran once before.
fn bytes_of_steps(descriptor: &Descriptor, params: &Arc<SamplingParams>, n_ctx: usize) -> usize {
    let model = TinyModel::random(descriptor.clone(), TensorType::Q8_0, 5);
    let backend = engines::cpu(2);
    let mut executor = engines::tiny(&model, backend, &options(n_ctx));
    // The batches are the engine's, so they are made before anything is counted.
    let batch = |first: usize, n: usize| {
        let mut batch = ForwardBatch::default();
        for seq_idx in 0..N_SEQS {
            let tokens: Vec<u32> = (first..first + n)
                .map(|at| ((at * 7 + seq_idx) % 96) as u32)
                .collect();
            let pages: Vec<u32> = (0..4).map(|page| (4 * seq_idx + page) as u32).collect();
            batch.push_sequence(ids(&tokens), first as u32, &pages);
            let start = batch.history.len() as u32;
            batch.history.extend(&tokens);
            batch.want_last(RowOutput::Sample(SampleRow {
                params: Arc::clone(params),
                history: start..batch.history.len() as u32,
                n_prompt: 0,
                mask: tokenmill_backend::RowMask::Any,
            }));
        }
        batch
    };
    let mut batches = vec![batch(0, PROMPT_TOKENS)];
    batches.extend((0..N_DECODE_STEPS).map(|step| batch(PROMPT_TOKENS + step, 1)));
    let mut output = StepOutput::default();
    let mut run_all = || {
        for batch in &batches {
            let ticket = executor.submit(batch).expect("a valid batch");
            executor.wait(ticket, &mut output).expect("the step succeeds");
        }
    };
    // Reused buffers grow in the first round.
    run_all();
    counted(run_all)
}

/// Counts the bytes that all threads allocate while `work` runs.
fn counted(work: impl FnOnce()) -> usize {
    N_BYTES.store(0, SeqCst);
    COUNTS.store(true, SeqCst);
    work();
    COUNTS.store(false, SeqCst);
    N_BYTES.load(SeqCst)
}

#[test]
fn a_step_allocates_nothing_whatever_the_model_the_vocabulary_and_the_context() {
    let small = tiny_llama();
    let mut many_words = tiny_llama();
    many_words.n_vocab *= 40;
    let mut deep = tiny_llama();
    deep.layers = vec![deep.layers[0].clone(); 6];
    let mut wide = tiny_llama();
    for layer in &mut wide.layers {
        layer.dense_mut().n_ff *= 4;
    }
    let greedy = Arc::new(SamplingParams::default());
    let sampled = Arc::new(SamplingParams {
        temperature: 0.9,
        top_k: 20,
        top_p: 0.9,
        repeat_penalty: 1.1,
        seed: 1,
        ..SamplingParams::default()
    });
    for params in [greedy, sampled] {
        for (what, descriptor, n_ctx) in [
            ("a tiny model", &small, 64),
            ("a larger vocabulary", &many_words, 64),
            ("more layers", &deep, 64),
            ("wider layers", &wide, 64),
            ("a longer context", &small, 512),
        ] {
            assert_eq!(
                bytes_of_steps(descriptor, &params, n_ctx),
                0,
                "{what}: {params:?}"
            );
            let n_bytes = engine::bytes_of_steps(descriptor, &params, n_ctx.max(160));
            assert!(
                n_bytes <= engine::bytes_of_texts(),
                "the engine, {what}: {n_bytes} bytes, but the texts take at most {}: {params:?}",
                engine::bytes_of_texts()
            );
        }
    }
}
