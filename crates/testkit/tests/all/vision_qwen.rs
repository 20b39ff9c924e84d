//! The Qwen VL families against transformers: the pixels and rows of images of any size, the positions by which rope rotates, and
//! the logits of prompts with images.
//!
//! `tests/data/make_vision_qwen.py` makes the models and the references.

use std::fs;

use tokenmill_backend::{Executor, ForwardBatch, PAGE_TOKENS, TokenSource};
use tokenmill_image::Filter;
use tokenmill_model::{ImageGrid, Model, VisionFile};
use tokenmill_testkit::{
    Comparisons, NaiveBackend,
    engines::{self, Loadable},
};

use crate::vision_scene::{
    Case, Reference, all_logits, assert_close, assert_same_bits, cpu, gpu, is_loaded, n_refused, options,
    pixels_of,
};

const PATCH: usize = 4;

/// Context length for the longest prompt.
const N_CTX: usize = 512;

/// Returns the first patches of an image, in the order of transformers, in which the patches of one row are adjacent.
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

/// Returns the logits after each position of a prompt, in chunks that end at `ends`.
fn logits(executor: &mut dyn Executor, case: &Case, rows: &[f32], ends: &[usize]) -> Vec<f32> {
    let width = executor.input_row_width().expect("an executor that takes rows");
    let pad = pad_of(case);
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
        logits.extend(all_logits(executor, batch));
        first = end;
    }
    logits
}

/// Returns the token that stands for a row: in these vocabularies the one before the last, `<|im_end|>`, which every prompt has.
fn pad_of(case: &Case) -> u32 {
    case.prompt.iter().copied().max().unwrap() - 1
}

/// Compares a backend with the reference, on rows that a tower computes on another backend.
fn check<B, T>(row: &'static str, folder: &str, backend: fn() -> B, of_tower: fn() -> T)
where
    B: Loadable,
    T: Loadable,
{
    let mut comparisons = Comparisons::of(row);
    let Some(folder) = comparisons.find(&format!("vision/{folder}")) else {
        return;
    };
    let model = Model::open(folder.join("model.gguf")).unwrap();
    let vision = VisionFile::open(folder.join("mmproj-model.gguf")).unwrap();
    let n_parts = 1 + model.descriptor().n_deep_inputs;
    assert_eq!(vision.shape().row_width(), n_parts * model.descriptor().n_embd);
    let mut tower = vision.load_on(of_tower()).unwrap();
    for case in &Reference::open(&folder).cases {
        let mut rows = Vec::new();
        for (image_idx, image) in case.images.iter().enumerate() {
            let (pixels, grid) = pixels_of(&tower, &folder.join(image), Filter::Bicubic);
            assert_eq!(case.grids[image_idx], [2 * grid.n_down, 2 * grid.n_across]);
            if image_idx == 0 {
                let n = case.pixels.len() / (3 * PATCH * PATCH);
                case.check_pixels(&first_patches(&pixels, &grid, n), image);
            }
            rows.extend(tower.encode(&pixels, &grid).unwrap());
        }
        assert_close("rows of the images", &case.features, &rows);

        let n = case.prompt.len();
        let load = || engines::load(&model, backend(), &options(N_CTX)).unwrap();
        let whole = logits(&mut load(), case, &rows, &[n]);
        case.check_logits(&whole);
        // Rows do not see later ones, so chunks may split an image without changing a bit.
        let chunked = logits(&mut load(), case, &rows, &[1, 12, 13, 40, n - 1, n]);
        assert_same_bits(&whole, &chunked);
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
        assert!(is_loaded(&whole));
        let n_header = (whole.windows(11))
            .position(|part| part == b"mm.2.weight")
            .unwrap();
        let n_refused = n_refused(&whole, n_header, 200);
        assert!(n_refused > 30, "{n_refused} of {family} were refused");
    }
    comparisons.compared(1);
}
