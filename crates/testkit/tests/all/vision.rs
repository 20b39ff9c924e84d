//! Models that see, against transformers: the rows that an encoder computes for an image, and the logits of a prompt with
//! images.
//!
//! `tests/data/make_vision.py` makes the models and the references.

use std::fs;

use tokenmill_backend::{Executor, ForwardBatch, PAGE_TOKENS, StepOutput, TokenSource};
use tokenmill_gguf::GgufFile;
use tokenmill_image::Filter;
use tokenmill_model::{Model, VisionFile};
use tokenmill_testkit::{
    Comparisons, NaiveBackend,
    engines::{self, Loadable},
};

use crate::vision_scene::{
    Reference, all_logits, assert_close, assert_same_bits, cpu, gpu, is_loaded, n_refused, options, pixels_of,
};

/// Context length for the longest prompt.
const N_CTX: usize = 256;

/// A prompt and its images, to run in chunks.
struct Prompt<'a> {
    tokens: &'a [u32],
    /// The first row of each image, and the rows of all.
    starts: Vec<usize>,
    rows: &'a [f32],
    n_rows: usize,
}

impl Prompt<'_> {
    fn image_at(&self, at: usize) -> Option<usize> {
        self.starts
            .iter()
            .position(|&start| (start..start + self.n_rows).contains(&at))
    }

    /// Returns the logits after each position, in chunks that end at `ends`.
    fn logits(&self, executor: &mut dyn Executor, ends: &[usize]) -> Vec<f32> {
        let width = executor.input_row_width().expect("an executor that takes rows");
        let pages: Vec<u32> = (0..self.tokens.len().div_ceil(PAGE_TOKENS) as u32).collect();
        let mut logits = Vec::new();
        let mut first = 0;
        for &end in ends {
            let mut batch = ForwardBatch::default();
            let sources: Vec<TokenSource> = (first..end)
                .map(|at| match self.image_at(at) {
                    None => TokenSource::Id(self.tokens[at]),
                    Some(image) => {
                        let row = image * self.n_rows + at - self.starts[image];
                        batch
                            .input_rows
                            .extend_from_slice(&self.rows[row * width..(row + 1) * width]);
                        TokenSource::Row((batch.input_rows.len() / width - 1) as u32)
                    }
                })
                .collect();
            let rows = std::mem::take(&mut batch.input_rows);
            batch.push_sequence(sources, first as u32, &pages[..end.div_ceil(PAGE_TOKENS)]);
            batch.input_rows = rows;
            batch.input_width = width;
            for &start in self
                .starts
                .iter()
                .filter(|&&start| first < start + self.n_rows && start < end)
            {
                batch.see_each_other(start.max(first) as u32..(start + self.n_rows) as u32);
            }
            logits.extend(all_logits(executor, batch));
            first = end;
        }
        logits
    }
}

/// Compares a backend with the reference, on rows that a tower computes on another backend.
fn check_gemma3<B, T>(row: &'static str, backend: fn() -> B, of_tower: fn() -> T)
where
    B: Loadable,
    T: Loadable,
{
    let mut comparisons = Comparisons::of(row);
    let Some(folder) = comparisons.find("vision/gemma3") else {
        return;
    };
    let model = Model::open(folder.join("model.gguf")).unwrap();
    let vision = VisionFile::open(folder.join("mmproj-model.gguf")).unwrap();
    assert_eq!(vision.shape().n_embd, model.descriptor().n_embd);
    let mut tower = vision.load_on(of_tower()).unwrap();
    let grid = tower.shape().size.grid(1, 1).unwrap();
    let n_rows = grid.n_rows();
    for case in &Reference::open(&folder).cases {
        let mut rows = Vec::new();
        for (image_idx, image) in case.images.iter().enumerate() {
            let (pixels, _) = pixels_of(&tower, &folder.join(image), Filter::Bilinear);
            if image_idx == 0 {
                case.check_pixels(&pixels, image);
            }
            rows.extend(tower.encode(&pixels, &grid).unwrap());
        }
        assert_close("rows of the images", &case.features, &rows);

        let soft = case.prompt.iter().copied().max().unwrap();
        let starts = (case.prompt.windows(2).enumerate())
            .filter(|(_, pair)| pair[0] != soft && pair[1] == soft)
            .map(|(at, _)| at + 1);
        let prompt = Prompt {
            tokens: &case.prompt,
            starts: starts.collect(),
            rows: &rows,
            n_rows,
        };
        assert_eq!(prompt.starts.len(), case.images.len());
        let n = case.prompt.len();
        let n_vocab = model.descriptor().n_vocab;
        let load = || engines::load(&model, backend(), &options(N_CTX)).unwrap();
        let whole = prompt.logits(&mut load(), &[n]);
        case.check_logits(&whole);

        // In chunks that split no image, and with the second half of an image after pages that hold the first.
        let (start, end) = (prompt.starts[0], prompt.starts[0] + n_rows);
        let chunked = prompt.logits(&mut load(), &[1, start, end, end + 3, n]);
        assert_same_bits(&whole, &chunked);
        let mut executor = load();
        prompt.logits(&mut executor, &[n]);
        let rest = Prompt {
            tokens: &case.prompt,
            starts: prompt.starts.clone(),
            rows: prompt.rows,
            n_rows,
        };
        let again = rest_of(&rest, &mut executor, start + n_rows / 2);
        let from = (start + n_rows / 2) * n_vocab;
        assert_same_bits(&whole[from..], &again);
        // Bidirectional attention within an image changes the rows.
        let mut other = rows.clone();
        other[0] += 0.5;
        let other = Prompt {
            rows: &other,
            starts: prompt.starts.clone(),
            ..prompt
        };
        assert_ne!(other.logits(&mut load(), &[n])[..], whole[..]);
        comparisons.compared(2 + case.images.len());
    }
}

/// Returns the logits from position `from` on; an executor holds the earlier pages.
fn rest_of(prompt: &Prompt<'_>, executor: &mut dyn Executor, from: usize) -> Vec<f32> {
    let width = executor.input_row_width().unwrap();
    let n = prompt.tokens.len();
    let pages: Vec<u32> = (0..n.div_ceil(PAGE_TOKENS) as u32).collect();
    let mut batch = ForwardBatch {
        input_rows: prompt.rows.to_vec(),
        input_width: width,
        ..ForwardBatch::default()
    };
    let sources = (from..n).map(|at| match prompt.image_at(at) {
        None => TokenSource::Id(prompt.tokens[at]),
        Some(image) => TokenSource::Row((image * prompt.n_rows + at - prompt.starts[image]) as u32),
    });
    batch.push_sequence(sources, from as u32, &pages);
    assert_eq!(batch.input_rows.len() % width, 0);
    for &start in prompt
        .starts
        .iter()
        .filter(|&&start| from < start + prompt.n_rows)
    {
        batch.see_each_other(start.max(from) as u32..(start + prompt.n_rows) as u32);
    }
    all_logits(executor, batch)
}

#[test]
fn gemma3_sees_as_transformers_on_the_cpu() {
    check_gemma3("images of gemma3, CPU", cpu, cpu);
}

#[test]
fn gemma3_sees_as_transformers_on_the_naive_backend() {
    check_gemma3(
        "images of gemma3, naive backend",
        NaiveBackend::new,
        NaiveBackend::new,
    );
}

#[test]
fn gemma3_sees_as_transformers_on_the_simulated_gpu() {
    check_gemma3("images of gemma3, simulated GPU", gpu, cpu);
}

#[test]
fn batches_with_rows_that_are_not_there_are_refused() {
    let mut comparisons = Comparisons::of("refused rows of images");
    let Some(folder) = comparisons.find("vision/gemma3") else {
        return;
    };
    let model = Model::open(folder.join("model.gguf")).unwrap();
    let mut executor = engines::load(&model, cpu(), &options(N_CTX)).unwrap();
    let width = executor.input_row_width().unwrap();
    let check = |executor: &mut dyn Executor, change: fn(&mut ForwardBatch), expected: &str| {
        let mut batch = ForwardBatch::default();
        batch.push_sequence(
            [TokenSource::Id(1), TokenSource::Row(0), TokenSource::Row(1)],
            0,
            &[0],
        );
        batch.input_rows = vec![0.5; 2 * width];
        batch.input_width = width;
        batch.see_each_other(1..3);
        change(&mut batch);
        match executor.submit(&batch) {
            Ok(ticket) => {
                executor.wait(ticket, &mut StepOutput::default()).unwrap();
                assert_eq!(expected, "");
            }
            Err(error) => assert!(
                !expected.is_empty() && error.to_string().contains(expected),
                "{error}"
            ),
        }
    };
    check(&mut executor, |_| {}, "");
    check(
        &mut executor,
        |batch| batch.tokens[2] = TokenSource::Row(2),
        "token 2 is input row 2, but there are 2 rows",
    );
    check(
        &mut executor,
        |batch| batch.input_rows.truncate(batch.input_rows.len() - 1),
        "`input_rows` has",
    );
    // After the step, before the token itself, and before the end that the previous token sees.
    check(&mut executor, |batch| batch.last_seen[2] = 3, "token 2 sees");
    check(&mut executor, |batch| batch.last_seen[2] = 1, "token 2 sees");
    check(
        &mut executor,
        |batch| {
            batch.last_seen[0] = 2;
            batch.last_seen[1] = 1;
        },
        "token 1 sees",
    );
    check(
        &mut executor,
        |batch| batch.last_seen.truncate(batch.last_seen.len() - 1),
        "`last_seen` has",
    );
    check(
        &mut executor,
        |batch| batch.input_width -= 1,
        "row of `input_rows`",
    );
    check(
        &mut executor,
        |batch| batch.rope_positions = vec![[0; 3]; 2],
        "`rope_positions` has",
    );
    // Windows that exclude the token itself, that end after the step, and that go back.
    check(&mut executor, |batch| batch.window_seen = vec![[0, 2]; 3], "");
    check(
        &mut executor,
        |batch| batch.window_seen = vec![[0, 2]; 2],
        "`window_seen` has",
    );
    check(
        &mut executor,
        |batch| batch.window_seen = vec![[1, 2]; 3],
        "token 0 sees",
    );
    check(
        &mut executor,
        |batch| batch.window_seen = vec![[0, 3]; 3],
        "token 0 sees",
    );
    check(
        &mut executor,
        |batch| batch.window_seen = vec![[0, 2], [0, 1], [0, 2]],
        "token 1 sees",
    );
    comparisons.compared(1);
}

#[test]
fn damaged_encoders_are_refused_or_load() {
    let mut comparisons = Comparisons::of("damaged image encoders");
    let Some(folder) = comparisons.find("vision/gemma3") else {
        return;
    };
    let whole = fs::read(folder.join("mmproj-model.gguf")).unwrap();
    assert!(is_loaded(&whole));
    let vision = VisionFile::open(folder.join("mmproj-model.gguf")).unwrap();
    let refused = vision
        .load_on(gpu())
        .err()
        .expect("a GPU has no rows of the host");
    let refused = refused.to_string();
    assert!(refused.contains("rows in the host's memory"), "{refused}");
    // A width that only the header claims is refused before anything is allocated for it.
    let patched = |key: &str, value: u32| {
        let mut bytes = whole.clone();
        let at = (bytes.windows(key.len()))
            .position(|part| part == key.as_bytes())
            .unwrap();
        let at = at + key.len();
        assert_eq!(
            bytes[at..at + 4],
            4_u32.to_le_bytes(),
            "{key} is a number of 32 bits"
        );
        bytes[at + 4..at + 8].copy_from_slice(&value.to_le_bytes());
        bytes
    };
    for width in [1 << 20, 0xffff_fc00] {
        let bytes = patched("clip.vision.embedding_length", width);
        let file = GgufFile::from_bytes(&bytes).unwrap();
        let refused = VisionFile::from_gguf(file).err().unwrap().to_string();
        assert!(refused.contains("embedding length"), "{width}: {refused}");
    }
    let n_refused = n_refused(&whole, whole.len() - 25_000, 600);
    assert!(n_refused > 100, "{n_refused} were refused");
    comparisons.compared(1);
}
