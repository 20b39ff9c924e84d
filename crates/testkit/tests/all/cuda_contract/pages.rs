//! Pages on their way to the host and back, and the last position of a context.

use tokenmill_backend::{BatchError, Executor, PageCopy, PageGroup, StepError};
use tokenmill_gguf::TensorType;
use tokenmill_testkit::generate::run;

use super::scene::{N_CTX, OnGpu, Sequence, advance, assert_same_bits, batch_of, sequences};

/// Makes a sequence of two pages and a bit, and the same one stored in other pages.
fn scene() -> Sequence {
    Sequence {
        tokens: (0..37).map(|i| i * 5 % 96).collect(),
        ..sequences(1).remove(0)
    }
}

#[test]
fn pages_survive_the_way_to_the_host_and_back() {
    let mut gpu = OnGpu::new(TensorType::F32);
    let mut sequence = scene();
    let expected = {
        let mut undisturbed = OnGpu::new(TensorType::F32);
        let mut sequence = scene();
        advance(&mut undisturbed.executor, vec![&mut sequence]).unwrap();
        advance(&mut undisturbed.executor, vec![&mut sequence]).unwrap()
    };
    advance(&mut gpu.executor, vec![&mut sequence]).unwrap();
    let download = |page, host_page| PageCopy::Download { page, host_page };
    let upload = |host_page, page| PageCopy::Upload { host_page, page };
    let [a, b, c] = [sequence.pages[0], sequence.pages[1], sequence.pages[2]];
    gpu.executor
        .copy_pages(PageGroup::Main, &[download(a, 0), download(b, 1), download(c, 2)])
        .unwrap();
    // Another sequence takes the pages, right after the copies.
    let mut other = Sequence {
        tokens: (0..40).map(|i| i * 7 % 96).collect(),
        n_stored: 0,
        pages: vec![a, b, c, sequence.pages[3]],
    };
    advance(&mut gpu.executor, vec![&mut other]).unwrap();
    // The first sequence returns to other pages, which the next step uses.
    sequence.pages = vec![20, 22, 21, 23];
    gpu.executor
        .copy_pages(PageGroup::Main, &[upload(0, 20), upload(1, 22), upload(2, 21)])
        .unwrap();
    let found = advance(&mut gpu.executor, vec![&mut sequence]).unwrap();
    assert_same_bits("after the way back", &expected, &found);
}

#[test]
fn pages_move_beside_a_step_and_a_copy_on_write_is_whole() {
    let mut gpu = OnGpu::new(TensorType::F32);
    let mut original = scene();
    advance(&mut gpu.executor, vec![&mut original]).unwrap();
    // A second sequence shares all full pages and gets a copy of the last; both continue, differently.
    let mut branch = original.clone();
    branch.pages = vec![original.pages[0], original.pages[1], 30, 31];
    branch.tokens.pop();
    branch.tokens.push(7);
    gpu.executor
        .copy_pages(
            PageGroup::Main,
            &[PageCopy::Duplicate {
                from: original.pages[2],
                to: 30,
            }],
        )
        .unwrap();
    let rows = advance(&mut gpu.executor, vec![&mut original, &mut branch]).unwrap();
    let alone = |tokens: &[u32]| {
        let mut fresh = OnGpu::new(TensorType::F32);
        let mut sequence = scene();
        advance(&mut fresh.executor, vec![&mut sequence]).unwrap();
        sequence.tokens = tokens.to_vec();
        // With others in the batch, so that the kernels are the same.
        let mut beside = scene();
        beside.pages = vec![40, 41, 42, 43];
        advance(&mut fresh.executor, vec![&mut beside]).unwrap();
        advance(&mut fresh.executor, vec![&mut sequence, &mut beside]).unwrap()[0].clone()
    };
    let n = original.tokens.len() - 1;
    let expected = [alone(&original.tokens[..n]), alone(&branch.tokens[..n])];
    assert_same_bits("both branches", &expected, &rows);
}

#[test]
fn the_last_position_is_stored_and_the_next_is_refused() {
    let mut gpu = OnGpu::new(TensorType::F32);
    let mut sequence = sequences(1).remove(0);
    sequence.tokens = (0..N_CTX as u32 - 2).map(|i| i % 96).collect();
    advance(&mut gpu.executor, vec![&mut sequence]).unwrap();
    // Positions 62 and 63, captured and replayed, in the last slots of the last page.
    advance(&mut gpu.executor, vec![&mut sequence]).unwrap();
    advance(&mut gpu.executor, vec![&mut sequence]).unwrap();
    assert_eq!(sequence.n_stored, N_CTX);
    let n_launches = gpu.executor.backend().device().n_launches();
    sequence.pages.push(99);
    let error = run(&mut gpu.executor, &batch_of(&[&mut sequence], None)).unwrap_err();
    assert!(
        matches!(error, StepError::InvalidBatch(BatchError::ContextExceeded { .. })),
        "{error}"
    );
    assert_eq!(
        gpu.executor.backend().device().n_launches(),
        n_launches,
        "nothing was launched"
    );
}
