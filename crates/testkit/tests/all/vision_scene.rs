//! References of models that see, images as their towers take them, and the comparisons that every family
//! shares. Families differ only in how rows of images are placed and see each other.

use std::{fs, path::Path};

use serde::Deserialize;
use tokenmill_backend::{Executor, ForwardBatch, KvType, RowOutput, StepOutput};
use tokenmill_cpu_exec::CpuBackend;
use tokenmill_cuda_exec::CudaBackend;
use tokenmill_gguf::GgufFile;
use tokenmill_image::{Filter, ImageLimits, Rgb};
use tokenmill_model::{ImageGrid, MAX_PATCHES, ModelOptions, VisionFile, VisionTower};
use tokenmill_testkit::{NaiveBackend, Random, engines};

/// Tolerance against transformers, which computes in single precision, in another order.
const TOLERANCE: f32 = 2e-4;

#[derive(Deserialize)]
pub(crate) struct Reference {
    pub(crate) cases: Vec<Case>,
}

impl Reference {
    pub(crate) fn open(folder: &Path) -> Self {
        serde_json::from_slice(&fs::read(folder.join("ref.json")).unwrap()).unwrap()
    }
}

#[derive(Deserialize)]
pub(crate) struct Case {
    pub(crate) images: Vec<String>,
    /// Ids in which one token stands for each row of an image.
    pub(crate) prompt: Vec<u32>,
    /// Rows and columns of patches of each image, if images have any size.
    #[serde(default)]
    pub(crate) grids: Vec<[usize; 2]>,
    /// The first pixels of the first image.
    pub(crate) pixels: Vec<f32>,
    /// Time, row and column of each token, if rope rotates by them.
    #[serde(default)]
    pub(crate) positions: Vec<[u32; 3]>,
    pub(crate) features: Vec<f32>,
    last_logits: Vec<f32>,
    middle_logits: Vec<f32>,
    greedy: Vec<u32>,
}

impl Case {
    #[track_caller]
    pub(crate) fn check_pixels(&self, found: &[f32], image: &str) {
        for (expected, found) in self.pixels.iter().zip(found) {
            assert!((expected - found).abs() < 2e-5, "pixels of {image}");
        }
    }

    /// Compares the logits after each position of the prompt with those of the reference.
    #[track_caller]
    pub(crate) fn check_logits(&self, found: &[f32]) {
        let n = self.prompt.len();
        let n_vocab = found.len() / n;
        let last = &found[(n - 1) * n_vocab..];
        assert_close("last logits", &self.last_logits, last);
        let middle = &found[n / 2 * n_vocab..][..n_vocab];
        assert_close("middle logits", &self.middle_logits, middle);
        let best = (0..last.len()).max_by(|&a, &b| last[a].total_cmp(&last[b]));
        assert_eq!(best.unwrap() as u32, self.greedy[0]);
    }
}

pub(crate) fn cpu() -> CpuBackend {
    engines::cpu(2)
}

/// Returns a GPU whose bits do not depend on how a prompt is divided.
pub(crate) fn gpu() -> CudaBackend {
    engines::gpu().with_batch_invariance(true)
}

#[track_caller]
pub(crate) fn assert_close(what: &str, expected: &[f32], found: &[f32]) {
    assert_eq!(expected.len(), found.len(), "{what}");
    for (at, (a, b)) in expected.iter().zip(found).enumerate() {
        // Written so that NaN fails.
        let is_close = (a - b).abs() <= TOLERANCE;
        assert!(is_close, "{what}: value {at} is {b} instead of {a}");
    }
}

#[track_caller]
pub(crate) fn assert_same_bits(expected: &[f32], found: &[f32]) {
    assert_eq!(expected.len(), found.len());
    let both = expected.iter().zip(found);
    assert!(both.into_iter().all(|(a, b)| a.to_bits() == b.to_bits()));
}

/// Returns the pixels of an image as a tower takes them, and its grid.
pub(crate) fn pixels_of(tower: &VisionTower, file: &Path, filter: Filter) -> (Vec<f32>, ImageGrid) {
    let shape = tower.shape();
    let image = Rgb::decode(&fs::read(file).unwrap(), &ImageLimits::default()).unwrap();
    let grid = shape.size.grid(image.width(), image.height()).unwrap();
    let image = image.resized(grid.width, grid.height, filter);
    (image.normalized(shape.mean, shape.std), grid)
}

/// Returns options for prompts of so many tokens.
pub(crate) fn options(n_tokens: usize) -> ModelOptions {
    ModelOptions {
        n_ctx: Some(n_tokens),
        max_batch_tokens: n_tokens,
        max_logit_rows: n_tokens,
        kv_type: KvType::F32,
        ..ModelOptions::default()
    }
}

/// Runs a batch; returns the logits after each of its tokens.
pub(crate) fn all_logits(executor: &mut dyn Executor, mut batch: ForwardBatch) -> Vec<f32> {
    let n = batch.n_tokens();
    batch.logit_rows = (0..n as u32).collect();
    batch.outputs.resize(n, RowOutput::Logits);
    let ticket = executor.submit(&batch).unwrap();
    let mut output = StepOutput::default();
    executor.wait(ticket, &mut output).unwrap();
    output.logits
}

/// Makes a tower from the bytes of an encoder's file; returns whether that works.
pub(crate) fn is_loaded(bytes: &[u8]) -> bool {
    let load = || {
        let vision = VisionFile::from_gguf(GgufFile::from_bytes(bytes).ok()?).ok()?;
        let shape = vision.shape().clone();
        let (n_patches, n_rows) = (shape.max_patches(), shape.size.max_rows());
        assert!((1..=MAX_PATCHES).contains(&n_patches) && n_rows <= n_patches);
        vision.load_on(NaiveBackend::new()).ok()
    };
    load().is_some()
}

/// Damages bytes of an encoder's header again and again; returns how often the file was refused.
pub(crate) fn n_refused(whole: &[u8], n_header: usize, n_cases: usize) -> usize {
    let mut random = Random::new(7);
    let damaged = (0..n_cases).map(|_| {
        let mut bytes = whole.to_vec();
        for _ in 0..=random.below(3) {
            bytes[random.below(n_header)] = random.bits() as u8;
        }
        bytes
    });
    damaged.filter(|bytes| !is_loaded(bytes)).count()
}
