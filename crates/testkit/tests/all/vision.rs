//! Models that see, against transformers: the rows that an encoder makes of an image, and the logits of a prompt with images.
//!
//! `tests/data/make_vision.py` makes the models and the references.

use std::{fs, path::Path};

use serde::Deserialize;
use tokenmill_backend::{Executor, ForwardBatch, KvType, PAGE_TOKENS, RowOutput, StepOutput, TokenSource};
use tokenmill_cpu_exec::CpuBackend;
use tokenmill_cuda_exec::CudaBackend;
use tokenmill_gguf::GgufFile;
use tokenmill_image::{Filter, ImageLimits, Rgb};
use tokenmill_model::{MAX_PATCHES, Model, ModelOptions, VisionFile};
use tokenmill_testkit::{
    Comparisons, NaiveBackend, Random,
    engines::{self, Compiled, CompiledTower, Tower},
};

/// Tolerance against transformers, which computes in single precision, in another order.
const TOLERANCE: f32 = 2e-4;

#[derive(Deserialize)]
struct Reference {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    images: Vec<String>,
    /// Ids in which each row of an image is `<image_soft_token>`.
    prompt: Vec<u32>,
    pixels: Vec<f32>,
    features: Vec<f32>,
    last_logits: Vec<f32>,
    middle_logits: Vec<f32>,
    greedy: Vec<u32>,
}

fn cpu() -> CpuBackend {
    engines::cpu(2)
}

/// Returns a GPU whose bits do not depend on how a prompt is divided.
fn gpu() -> CudaBackend {
    engines::gpu().with_batch_invariance(true)
}

#[track_caller]
fn assert_close(what: &str, expected: &[f32], found: &[f32]) {
    assert_eq!(expected.len(), found.len(), "{what}");
    for (at, (a, b)) in expected.iter().zip(found).enumerate() {
        // Written so that NaN fails.
        let is_close = (a - b).abs() <= TOLERANCE;
        assert!(is_close, "{what}: value {at} is {b} instead of {a}");
    }
}

/// The pixels of an image as a tower takes them.
fn pixels_of(tower: &dyn Tower, file: &Path) -> Vec<f32> {
    let shape = tower.shape();
    let image = Rgb::decode(&fs::read(file).unwrap(), &ImageLimits::default()).unwrap();
    let grid = shape.size.grid(image.width(), image.height()).unwrap();
    let image = image.resized(grid.width, grid.height, Filter::Bilinear);
    image.normalized(shape.mean, shape.std)
}

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

    /// The logits behind each position, in chunks that end at `ends`.
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
            batch.logit_rows = (0..(end - first) as u32).collect();
            batch.outputs.resize(end - first, RowOutput::Logits);
            let ticket = executor.submit(&batch).unwrap();
            let mut output = StepOutput::default();
            executor.wait(ticket, &mut output).unwrap();
            logits.extend_from_slice(&output.logits);
            first = end;
        }
        logits
    }
}

fn options() -> ModelOptions {
    ModelOptions {
        n_ctx: Some(256),
        max_batch_tokens: 256,
        max_logit_rows: 256,
        kv_type: KvType::F32,
        ..ModelOptions::default()
    }
}

/// Compares a backend with the reference, on rows that a tower computes on another backend.
fn check_gemma3<B, T>(row: &'static str, backend: fn() -> B, of_tower: fn() -> T)
where
    B: Compiled,
    T: CompiledTower,
{
    let mut comparisons = Comparisons::of(row);
    let Some(folder) = comparisons.find("vision/gemma3") else {
        return;
    };
    let reference: Reference = serde_json::from_slice(&fs::read(folder.join("ref.json")).unwrap()).unwrap();
    let model = Model::open(folder.join("model.gguf")).unwrap();
    let vision = VisionFile::open(folder.join("mmproj-model.gguf")).unwrap();
    assert_eq!(vision.shape().n_embd, model.descriptor().n_embd);
    let mut tower = engines::tower(&vision, of_tower()).unwrap();
    let grid = tower.shape().size.grid(1, 1).unwrap();
    let n_rows = grid.n_rows();
    for case in &reference.cases {
        let mut rows = Vec::new();
        for (image_idx, image) in case.images.iter().enumerate() {
            let pixels = pixels_of(&*tower, &folder.join(image));
            if image_idx == 0 {
                for (expected, found) in case.pixels.iter().zip(&pixels) {
                    assert!((expected - found).abs() < 2e-5, "pixels of {image}");
                }
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
        let load = || engines::load(&model, backend(), &options()).unwrap();
        let whole = prompt.logits(&mut load(), &[n]);
        assert_close("last logits", &case.last_logits, &whole[(n - 1) * n_vocab..]);
        let middle = n / 2 * n_vocab;
        assert_close(
            "middle logits",
            &case.middle_logits,
            &whole[middle..middle + n_vocab],
        );
        let best = |row: &[f32]| (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap() as u32;
        assert_eq!(best(&whole[(n - 1) * n_vocab..]), case.greedy[0]);

        // In chunks that part no image, and with the second half of an image behind pages that hold the first.
        let (start, end) = (prompt.starts[0], prompt.starts[0] + n_rows);
        let chunked = prompt.logits(&mut load(), &[1, start, end, end + 3, n]);
        assert!(
            whole
                .iter()
                .zip(&chunked)
                .all(|(a, b)| a.to_bits() == b.to_bits())
        );
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
        assert!(
            whole[from..]
                .iter()
                .zip(&again)
                .all(|(a, b)| a.to_bits() == b.to_bits())
        );
        // Rows that see each other are not rows that do not.
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

/// The logits from position `from` on, whose earlier pages an executor holds.
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
    batch.logit_rows = (0..(n - from) as u32).collect();
    batch.outputs.resize(n - from, RowOutput::Logits);
    let ticket = executor.submit(&batch).unwrap();
    let mut output = StepOutput::default();
    executor.wait(ticket, &mut output).unwrap();
    output.logits
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
    let mut executor = engines::load(&model, cpu(), &options()).unwrap();
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
    // Behind the step, before itself, and before what the token ahead of it sees.
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
    // Windows without the token itself, behind the step, and that go back.
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
    let mut comparisons = Comparisons::of("damaged encoders of images");
    let Some(folder) = comparisons.find("vision/gemma3") else {
        return;
    };
    let whole = fs::read(folder.join("mmproj-model.gguf")).unwrap();
    let load = |bytes: &[u8]| {
        let file = GgufFile::from_bytes(bytes).ok()?;
        let vision = VisionFile::from_gguf(file).ok()?;
        let shape = vision.shape().clone();
        let (n_patches, n_rows) = (shape.max_patches(), shape.size.max_rows());
        assert!((1..=MAX_PATCHES).contains(&n_patches) && n_rows <= n_patches);
        engines::tower(&vision, NaiveBackend::new()).ok()
    };
    assert!(load(&whole).is_some());
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
    let mut random = Random::new(7);
    let n_header = whole.len() - 25_000;
    let mut n_refused = 0;
    for _ in 0..600 {
        let mut bytes = whole.clone();
        for _ in 0..=random.below(3) {
            let at = random.below(n_header);
            bytes[at] = random.bits() as u8;
        }
        n_refused += usize::from(load(&bytes).is_none());
    }
    assert!(n_refused > 100, "{n_refused} were refused");
    comparisons.compared(1);
}
