//! The Qwen VL families against transformers: the pixels and rows of images of any size, the positions that rope turns by, and the
//! logits of prompts with images.
//!
//! `tests/data/make_vision_qwen.py` makes the models and the references.

use std::{fs, path::Path, sync::Arc};

use serde::Deserialize;
use tokenmill_backend::{Executor, ForwardBatch, KvType, PAGE_TOKENS, RowOutput, StepOutput, TokenSource};
use tokenmill_cpu_exec::CpuBackend;
use tokenmill_cuda_exec::CudaBackend;
use tokenmill_gguf::GgufFile;
use tokenmill_image::{Filter, ImageLimits, Rgb};
use tokenmill_model::{ImageGrid, MAX_PATCHES, Model, ModelOptions, VisionFile};
use tokenmill_testkit::{
    Comparisons, NaiveBackend, Random,
    engines::{self, Compiled, CompiledTower, Tower},
};

/// Tolerance against transformers, which computes in single precision, in another order.
const TOLERANCE: f32 = 2e-4;

const PATCH: usize = 4;

#[derive(Deserialize)]
struct Reference {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    images: Vec<String>,
    /// Ids in which each row of an image is `<|image_pad|>`.
    prompt: Vec<u32>,
    /// Patches below and next to each other, of each image.
    grids: Vec<[usize; 2]>,
    /// The first six patches of the first image.
    pixels: Vec<f32>,
    /// Time, row and column of each token.
    positions: Vec<[u32; 3]>,
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

/// The pixels of an image as a tower takes them, and its grid.
fn pixels_of(tower: &dyn Tower, file: &Path) -> (Vec<f32>, ImageGrid) {
    let shape = tower.shape();
    let image = Rgb::decode(&fs::read(file).unwrap(), &ImageLimits::default()).unwrap();
    let grid = shape.size.grid(image.width(), image.height()).unwrap();
    let image = image.resized(grid.width, grid.height, Filter::Bicubic);
    (image.normalized(shape.mean, shape.std), grid)
}

/// The first patches of an image, in the order of transformers: those that become a row follow one another.
fn first_patches(pixels: &[f32], grid: &ImageGrid, n: usize) -> Vec<f32> {
    let mut values = Vec::new();
    for patch in 0..n {
        let (row, quarter) = (patch / 4, patch % 4);
        let top = (row / grid.n_across * 2 + quarter / 2) * PATCH;
        let left = (row % grid.n_across * 2 + quarter % 2) * PATCH;
        for channel in 0..3 {
            for y in top..top + PATCH {
                values.extend((left..left + PATCH).map(|x| pixels[(y * grid.width + x) * 3 + channel]));
            }
        }
    }
    values
}

/// The logits behind each position of a prompt, in chunks that end at `ends`.
fn logits(executor: &mut dyn Executor, case: &Case, rows: &[f32], ends: &[usize]) -> Vec<f32> {
    let width = executor.input_row_width().expect("an executor that takes rows");
    let pad = pad_of(case);
    let rows: Arc<[f32]> = rows.into();
    let pages: Vec<u32> = (0..case.prompt.len().div_ceil(PAGE_TOKENS) as u32).collect();
    let (mut logits, mut first, mut n_rows_done) = (Vec::new(), 0, 0);
    for &end in ends {
        let mut batch = ForwardBatch::default();
        let first_row = n_rows_done;
        let mut source = |&token: &u32| {
            if token != pad {
                return TokenSource::Id(token);
            }
            n_rows_done += 1;
            TokenSource::Row((n_rows_done - 1 - first_row) as u32)
        };
        let sources: Vec<TokenSource> = case.prompt[first..end].iter().map(&mut source).collect();
        batch.push_sequence(sources, first as u32, &pages[..end.div_ceil(PAGE_TOKENS)]);
        batch.input_rows = rows[first_row * width..n_rows_done * width].to_vec();
        batch.input_width = width;
        batch.turn_by(|position| case.positions[position as usize]);
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

/// The token that stands for a row: in these vocabularies the one before the last, `<|im_end|>`, which every prompt has.
fn pad_of(case: &Case) -> u32 {
    case.prompt.iter().copied().max().unwrap() - 1
}

fn options() -> ModelOptions {
    ModelOptions {
        n_ctx: Some(512),
        max_batch_tokens: 512,
        max_logit_rows: 512,
        kv_type: KvType::F32,
        ..ModelOptions::default()
    }
}

/// Compares a backend with the reference, on rows that a tower computes on another backend.
fn check<B, T>(row: &'static str, folder: &str, backend: fn() -> B, of_tower: fn() -> T)
where
    B: Compiled,
    T: CompiledTower,
{
    let mut comparisons = Comparisons::of(row);
    let Some(folder) = comparisons.find(&format!("vision/{folder}")) else {
        return;
    };
    let reference: Reference = serde_json::from_slice(&fs::read(folder.join("ref.json")).unwrap()).unwrap();
    let model = Model::open(folder.join("model.gguf")).unwrap();
    let vision = VisionFile::open(folder.join("mmproj-model.gguf")).unwrap();
    let n_parts = 1 + model.descriptor().n_deep_inputs;
    assert_eq!(vision.shape().row_width(), n_parts * model.descriptor().n_embd);
    let mut tower = engines::tower(&vision, of_tower()).unwrap();
    for case in &reference.cases {
        let mut rows = Vec::new();
        for (image_idx, image) in case.images.iter().enumerate() {
            let (pixels, grid) = pixels_of(&*tower, &folder.join(image));
            assert_eq!(case.grids[image_idx], [2 * grid.n_down, 2 * grid.n_across]);
            if image_idx == 0 {
                let n = case.pixels.len() / (3 * PATCH * PATCH);
                let found = first_patches(&pixels, &grid, n);
                for (expected, found) in case.pixels.iter().zip(&found) {
                    assert!((expected - found).abs() < 2e-5, "pixels of {image}");
                }
            }
            rows.extend(tower.encode(&pixels, &grid).unwrap());
        }
        assert_close("rows of the images", &case.features, &rows);

        let n = case.prompt.len();
        let n_vocab = model.descriptor().n_vocab;
        let load = || engines::load(&model, backend(), &options()).unwrap();
        let whole = logits(&mut load(), case, &rows, &[n]);
        assert_close("last logits", &case.last_logits, &whole[(n - 1) * n_vocab..]);
        let middle = n / 2 * n_vocab;
        assert_close(
            "middle logits",
            &case.middle_logits,
            &whole[middle..middle + n_vocab],
        );
        let best = |row: &[f32]| (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap() as u32;
        assert_eq!(best(&whole[(n - 1) * n_vocab..]), case.greedy[0]);
        // Rows do not see those after them, so that chunks may part an image, and change no bit.
        let chunked = logits(&mut load(), case, &rows, &[1, 12, 13, 40, n - 1, n]);
        let is_equal = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits();
        assert!(whole.iter().zip(&chunked).all(is_equal));
        // Every part of a row counts, from its own token on.
        let n_shown = 1 + case.prompt.iter().position(|&id| id == pad_of(case)).unwrap();
        for part in 0..n_parts {
            let mut other = rows.clone();
            other[part * model.descriptor().n_embd] += 0.5;
            let found = logits(&mut load(), case, &other, &[n_shown]);
            assert_ne!(found, whole[..found.len()], "part {part}");
        }
        comparisons.compared(2 + case.images.len());
    }
}

fn check_naive(row: &'static str, folder: &str) {
    check(row, folder, NaiveBackend::new, NaiveBackend::new);
}

#[test]
fn qwen2vl_sees_as_transformers() {
    check("images of qwen2vl, CPU", "qwen2vl", cpu, cpu);
    check_naive("images of qwen2vl, naive backend", "qwen2vl");
}

#[test]
fn qwen25vl_sees_as_transformers() {
    check("images of qwen2.5vl, CPU", "qwen2.5vl", cpu, cpu);
    check_naive("images of qwen2.5vl, naive backend", "qwen2.5vl");
}

#[test]
fn qwen3vl_sees_as_transformers() {
    check("images of qwen3vl, CPU", "qwen3vl", cpu, cpu);
    check_naive("images of qwen3vl, naive backend", "qwen3vl");
}

#[test]
fn qwen3vlmoe_sees_as_transformers() {
    check("images of qwen3vlmoe, CPU", "qwen3vlmoe", cpu, cpu);
    check_naive("images of qwen3vlmoe, naive backend", "qwen3vlmoe");
}

#[test]
fn the_qwen_families_see_as_transformers_on_the_simulated_gpu() {
    check("images of qwen2vl, simulated GPU", "qwen2vl", gpu, cpu);
    check("images of qwen2.5vl, simulated GPU", "qwen2.5vl", gpu, cpu);
    check("images of qwen3vl, simulated GPU", "qwen3vl", gpu, cpu);
    check("images of qwen3vlmoe, simulated GPU", "qwen3vlmoe", gpu, cpu);
}

#[test]
fn damaged_encoders_are_refused_or_load() {
    let mut comparisons = Comparisons::of("damaged encoders of the Qwen families");
    for family in ["qwen2vl", "qwen2.5vl", "qwen3vl"] {
        let Some(folder) = comparisons.find(&format!("vision/{family}")) else {
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
        let n_header = (whole.windows(11))
            .position(|part| part == b"mm.2.weight")
            .unwrap();
        let mut random = Random::new(7);
        let mut n_refused = 0;
        for _ in 0..200 {
            let mut bytes = whole.clone();
            for _ in 0..=random.below(3) {
                let at = random.below(n_header);
                bytes[at] = random.bits() as u8;
            }
            n_refused += usize::from(load(&bytes).is_none());
        }
        assert!(n_refused > 30, "{n_refused} of {family} were refused");
    }
    comparisons.compared(1);
}
