//! The executor's side of the seam: tickets, refusals, page copies, plans.

use std::sync::Arc;

use tokenmill_backend::{
    Allocation, Backend, BatchError, Executor, ForwardBatch, PageCopy, PageGroup, RowOutput, SampleRow,
    SamplingParams, StepError, StepOutput, Ticket, TokenSource,
    program::{Fusion, Prepared, Slot},
};
use tokenmill_cpu_exec::CpuBackend;
use tokenmill_gguf::TensorType;
use tokenmill_model::{Model, ModelOptions, WindowPages};
use tokenmill_testkit::{
    NaiveBackend, TinyModel,
    engines::{self, Loaded},
    generate::{greedy, greedy_without, ids, run},
    tiny_llama,
};

fn executor() -> Loaded<CpuBackend> {
    let model = TinyModel::random(tiny_llama(), TensorType::F32, 1);
    let options = ModelOptions {
        n_pages: Some(8),
        n_host_pages: 2,
        ..Default::default()
    };
    engines::tiny(&model, engines::cpu(1), &options)
}

fn sampled() -> RowOutput {
    RowOutput::Sample(SampleRow {
        params: Arc::new(SamplingParams::default()),
        history: 0..0,
        n_prompt: 0,
        mask: tokenmill_backend::RowMask::Any,
    })
}

fn one_token(token: TokenSource, position: u32, output: RowOutput) -> ForwardBatch {
    let mut batch = ForwardBatch::default();
    batch.push_sequence([token], position, &[0]);
    batch.want_last(output);
    batch
}

#[test]
fn a_greedy_continuation_goes_on_without_what_is_banned() {
    let mut executor = executor();
    let free = greedy(&mut executor, &[1, 2, 3], 8).unwrap();
    let banned = free[2];
    let found = greedy_without(&mut executor, &[1, 2, 3], 8, &[banned]).unwrap();
    let n_equal = free.iter().position(|&token| token == banned).unwrap();
    assert_eq!(found[..n_equal], free[..n_equal]);
    assert!(
        found.len() == 8 && !found.contains(&banned),
        "{found:?} without {banned}"
    );
}

#[test]
#[should_panic(expected = "the caller names the type of the backend")]
fn a_backend_of_another_type_is_not_handed_out() {
    executor().network().backend::<NaiveBackend>();
}

#[test]
fn two_steps_may_be_open_and_are_read_in_order() {
    let mut executor = executor();
    let mut output = StepOutput::default();
    let first = executor
        .submit(&one_token(TokenSource::Id(1), 0, sampled()))
        .unwrap();
    let second = executor
        .submit(&one_token(TokenSource::SampledRow(0), 1, RowOutput::Logits))
        .unwrap();
    let third = one_token(TokenSource::Id(1), 2, sampled());
    assert_eq!(executor.submit(&third), Err(StepError::TooManyInFlight));
    let found = second.0;
    assert_eq!(
        executor.wait(second, &mut output),
        Err(StepError::UnexpectedTicket { found })
    );
    executor.wait(first, &mut output).unwrap();
    assert_eq!((output.sampled.len(), output.logits.len()), (1, 0));
    executor.wait(Ticket(found), &mut output).unwrap();
    assert_eq!((output.sampled.len(), output.logits.len()), (1, 96));
    let none_left = executor.wait(Ticket(found), &mut output);
    assert_eq!(none_left, Err(StepError::UnexpectedTicket { found }));
    executor.submit(&third).unwrap();
}

#[test]
fn a_row_of_raw_logits_feeds_no_token() {
    let mut executor = executor();
    let batch = one_token(TokenSource::Id(1), 0, RowOutput::Logits);
    run(&mut executor, &batch).unwrap();
    let error = executor
        .submit(&one_token(TokenSource::SampledRow(0), 1, sampled()))
        .unwrap_err();
    assert_eq!(
        error,
        StepError::InvalidBatch(BatchError::RowNotSampled { index: 0, row: 0 })
    );
}

#[test]
fn a_refused_batch_changes_nothing() {
    let mut executor = executor();
    let batch = one_token(TokenSource::Id(7), 0, RowOutput::Logits);
    let expected = run(&mut executor, &batch).unwrap().logits;
    let bad = one_token(TokenSource::Id(96), 0, RowOutput::Logits);
    assert!(matches!(executor.submit(&bad), Err(StepError::InvalidBatch(_))));
    assert_eq!(run(&mut executor, &batch).unwrap().logits, expected);
}

#[test]
fn an_empty_batch_is_a_step_without_results() {
    let output = run(&mut executor(), &ForwardBatch::default()).unwrap();
    assert!(output.sampled.is_empty() && output.logits.is_empty());
}

#[test]
fn pages_survive_the_host_tier_and_copies_are_checked() {
    let mut executor = executor();
    let tokens: Vec<u32> = (0..10).collect();
    let last = |executor: &mut dyn Executor, page: u32| {
        let mut batch = ForwardBatch::default();
        batch.push_sequence(ids(&tokens[9..]), 9, &[page]);
        batch.want_last(RowOutput::Logits);
        run(executor, &batch).unwrap().logits
    };
    let mut batch = ForwardBatch::default();
    batch.push_sequence(ids(&tokens[..9]), 0, &[3]);
    run(&mut executor, &batch).unwrap();
    let expected = last(&mut executor, 3);
    executor
        .copy_pages(
            PageGroup::Main,
            &[PageCopy::Download {
                page: 3,
                host_page: 1,
            }],
        )
        .unwrap();
    let mut other = ForwardBatch::default();
    other.push_sequence(ids(&[50, 51, 52, 53, 54, 55, 56, 57, 58, 59]), 0, &[3]);
    run(&mut executor, &other).unwrap();
    assert_ne!(last(&mut executor, 3), expected, "the page was overwritten");
    executor
        .copy_pages(
            PageGroup::Main,
            &[PageCopy::Upload {
                host_page: 1,
                page: 6,
            }],
        )
        .unwrap();
    assert_eq!(last(&mut executor, 6), expected);

    for copy in [
        PageCopy::Duplicate { from: 0, to: 8 },
        PageCopy::Upload {
            host_page: 2,
            page: 0,
        },
    ] {
        let expected = StepError::PageOutOfRange {
            copy,
            n_pages: 8,
            n_host_pages: 2,
        };
        assert_eq!(executor.copy_pages(PageGroup::Main, &[copy]), Err(expected));
    }
}

#[test]
fn the_plan_counts_weights_pages_and_buffers() {
    let tiny = TinyModel::random(tiny_llama(), TensorType::Q8_0, 1);
    let bytes = tiny.to_gguf().unwrap();
    let model = Model::from_gguf(tokenmill_gguf::GgufFile::from_bytes(&bytes).unwrap()).unwrap();
    let backend = engines::cpu(1);
    let options = ModelOptions {
        n_ctx: Some(100),
        max_batch_tokens: 8,
        max_logit_rows: 2,
        ..Default::default()
    };
    let plan = model.plan(&backend, &options).unwrap();
    // 34 bytes hold 32 weights: embedding and head of 96 rows, two layers of q, output (64), k, v (32), gate, up (96) over
    // 64 columns, and down over 96; then five norms, and the frequencies of a rope over 16 values.
    let n_weights = 2 * 96 * 64 + 2 * ((64 + 64 + 32 + 32 + 96 + 96) * 64 + 64 * 96);
    assert_eq!(plan.weights_bytes, n_weights / 32 * 34 + (5 * 64 + 8) * 4);
    // Two layers of 2 heads of 16 for k and v, in half precision, 16 tokens a page, 7 pages for 100 positions.
    assert_eq!((plan.n_pages, plan.kv_page_bytes), (7, 2 * 2 * 2 * 16 * 2 * 16));
    assert_eq!(plan.kv_bytes, 7 * plan.kv_page_bytes);
    // For 8 tokens: the stream, its norm, queries or a product; keys and values; gate and up. For 2 rows of logits: their input.
    let program = model.program(&options).unwrap();
    let executor = engines::tiny(&tiny, engines::cpu(1), &options);
    let prepared = Prepared::new(&program, executor.limits(), [96, 64], Fusion::All);
    let rows = |max_rows, width| Slot::Floats { max_rows, width };
    let of_tokens = [64, 64, 64, 32, 32, 64, 96, 96].map(|width| rows(8, width));
    let of_logits = [96, 64].map(|width| rows(2, width));
    let expected = of_tokens.into_iter().chain(of_logits);
    assert_eq!(prepared.slots(), expected.collect::<Vec<_>>());
    assert_eq!(
        plan.activations_bytes,
        4 * (8 * (4 * 64 + 2 * 32 + 2 * 96) + 2 * (96 + 64))
    );
}

#[test]
fn the_plan_of_a_windowed_model_counts_its_window_and_not_its_context() {
    let mut descriptor = tiny_llama();
    for layer in &mut descriptor.layers {
        layer.attention_mut().window = Some(100);
    }
    let bytes = TinyModel::random(descriptor, TensorType::Q8_0, 1)
        .to_gguf()
        .unwrap();
    let model = Model::from_gguf(tokenmill_gguf::GgufFile::from_bytes(&bytes).unwrap()).unwrap();
    let backend = engines::cpu(1);
    let plan_for = |n_ctx, window_pages| {
        let options = ModelOptions {
            n_ctx: Some(n_ctx),
            max_batch_tokens: 64,
            max_batch_seqs: 2,
            window_pages,
            ..Default::default()
        };
        model.plan(&backend, &options).unwrap()
    };
    let long = plan_for(32_768, WindowPages::Own);
    // Two sequences with a window of 7 pages and 2 more, as much again for the cache, and two steps of 64 tokens.
    assert_eq!(long.n_pages, 2 * 2 * (7 + 2) + 2 * 4);
    assert_eq!(long.kv_bytes, long.n_pages * 2 * 2 * 2 * 16 * 2 * 16);
    assert_eq!(plan_for(4096, WindowPages::Own).kv_bytes, long.kv_bytes);
    assert_eq!(plan_for(32_768, WindowPages::Shared).n_pages, 2048);
}

#[test]
fn the_plan_of_the_workspace_is_what_the_largest_steps_hold() {
    let model = TinyModel::random(tiny_llama(), TensorType::Q8_0, 1);
    let options = ModelOptions {
        n_ctx: Some(600),
        n_pages: Some(3 * 38),
        max_batch_tokens: 24,
        max_batch_seqs: 3,
        ..Default::default()
    };
    for n_threads in [1, 2] {
        let mut executor = engines::tiny(&model, engines::cpu(n_threads), &options);
        let planned = executor.backend().bytes_of(&Allocation::Workspace(
            &model.descriptor.shape(),
            executor.limits(),
        ));
        // A prompt, then the last tokens of three long sequences.
        for (n_seqs, n_tokens, position) in [(1, 24, 0), (3, 8, 590), (3, 1, 599)] {
            let mut batch = ForwardBatch::default();
            for seq_idx in 0..n_seqs {
                let pages: Vec<u32> = (seq_idx * 38..(seq_idx + 1) * 38).collect();
                let n_pages = (position as usize + n_tokens).div_ceil(16);
                batch.push_sequence(
                    (0..n_tokens).map(|i| TokenSource::Id(i as u32)),
                    position,
                    &pages[..n_pages],
                );
            }
            batch.want_last(RowOutput::Logits);
            let ticket = executor.submit(&batch).unwrap();
            executor.wait(ticket, &mut StepOutput::default()).unwrap();
        }
        assert_eq!(executor.backend().held_workspace_bytes(), planned);
    }
}
