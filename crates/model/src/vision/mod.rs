//! [`VisionFile`]: the image encoder of a model, from a file of its own (`mmproj-*.gguf`).
//!
//! The models' files know nothing of images. The tower is a network like others: a [`Descriptor`] with rows
//! of image patches as inputs, which all attend to each other, so its layers are a program like others. A
//! [`Projector`], one file per family, holds the parts before and after it. Invariant: a file's values are
//! checked against its tensors and against [`MAX_PATCHES`] before anything is allocated for them.
//!
//! Source of names and keys: llama.cpp, `tools/mtmd/clip-impl.h`, `gguf-py/gguf/constants.py`.

mod folder;
mod folder_keys;
mod folder_names;
mod gemma3;
mod grid;
mod qwen;
mod tensors;
mod tower;

use std::path::Path;

use tokenmill_backend::{MemoryPlan, Weigh, program::ProgramDevice};
use tokenmill_gguf::{GgufFile, Metadata};

use crate::{LoadError, WeightSource, error::check};

pub use folder::VisionFolder;
pub use grid::{ImageGrid, ImageSize};
use tensors::TowerTensors;
pub use tower::{VisionError, VisionTower};

/// Maximum patches of a tower: 128 per side, four times the largest known number.
pub const MAX_PATCHES: usize = 1 << 14;

/// Maximum rows of an image.
const MAX_ROWS: usize = 1 << 12;

/// An opened file of an image encoder.
pub struct VisionFile {
    file: GgufFile,
    shape: VisionShape,
}

/// The input and output sizes of an image encoder.
#[derive(Clone, Debug, PartialEq)]
pub struct VisionShape {
    /// The family, which determines how rows are computed and where they stand in a prompt.
    pub family: VisionFamily,
    /// The accepted sizes, and the number of rows for each.
    pub size: ImageSize,
    /// Side of a patch in pixels.
    pub patch_size: usize,
    /// Mean of each channel, which is subtracted from values between 0 and 1.
    pub mean: [f32; 3],
    /// Standard deviation of each channel, by which the difference is divided.
    pub std: [f32; 3],
    /// Width of the model's hidden states.
    pub n_embd: usize,
    /// Number of parts of a row after the first; the model adds them after its first layers.
    pub n_deep: usize,
    /// Width inside the tower.
    pub n_vision: usize,
    /// Number of layers.
    pub n_layers: usize,
    /// Side, in patches, of a square that becomes one row.
    n_merged: usize,
    /// Properties of the Qwen families.
    qwen: Option<qwen::QwenShape>,
    n_heads: usize,
    n_ff: usize,
    eps: f32,
}

/// A family of encoders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VisionFamily {
    /// Gemma 3: a square image with averaged patches.
    Gemma3,
    /// Qwen 2 VL: images of any size; rows have two-dimensional positions.
    Qwen2Vl,
    /// Qwen 2.5 VL: as Qwen 2 VL, with windows in most layers.
    Qwen25Vl,
    /// Qwen 3 VL: as Qwen 2 VL, with learned positions, and extra parts of rows for the model's first layers.
    Qwen3Vl,
}

impl VisionFamily {
    /// Returns the family's name in files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gemma3 => "gemma3",
            Self::Qwen2Vl => "qwen2vl_merger",
            Self::Qwen25Vl => "qwen2.5vl_merger",
            Self::Qwen3Vl => "qwen3vl_merger",
        }
    }

    /// Returns whether the rows of an image attend to each other in the model.
    pub fn sees_itself(self) -> bool {
        self == Self::Gemma3
    }

    /// Returns whether the rows of an image have two-dimensional rope positions.
    pub fn has_plane(self) -> bool {
        self != Self::Gemma3
    }
}

/// The supported families, by their names in files.
const FAMILIES: [VisionFamily; 4] = [
    VisionFamily::Gemma3,
    VisionFamily::Qwen2Vl,
    VisionFamily::Qwen25Vl,
    VisionFamily::Qwen3Vl,
];

impl VisionShape {
    /// Returns the maximum number of patches of an image.
    pub fn max_patches(&self) -> usize {
        self.size.max_rows() * self.n_merged * self.n_merged
    }

    /// Returns the maximum number of values of an image.
    fn max_values(&self) -> usize {
        self.max_patches() * self.patch_values()
    }

    /// Returns the number of values held outside the layers while an image is encoded: the pixels and their
    /// patches; for each patch its input, that of the second frame, the output of the layers, the merger's
    /// copy of it and the merger's inner row; the image's rows, and those from one merger.
    fn values_around(&self) -> usize {
        let of_patches = self.max_patches().saturating_mul(5 * self.n_vision);
        let of_rows = self
            .size
            .max_rows()
            .saturating_mul(self.row_width() + self.n_embd);
        (self.max_values().saturating_mul(2))
            .saturating_add(of_patches)
            .saturating_add(of_rows)
    }

    /// Returns the number of values of a patch.
    fn patch_values(&self) -> usize {
        3 * self.patch_size * self.patch_size
    }

    /// Returns the width of a row: the model's hidden width, once for each part.
    pub fn row_width(&self) -> usize {
        (1 + self.n_deep) * self.n_embd
    }
}

impl VisionFile {
    /// Opens a file; only its header is read.
    ///
    /// # Errors
    /// [`LoadError`], if the file is invalid or its family is not supported.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, LoadError> {
        Self::from_gguf(GgufFile::open(path)?)
    }

    /// Creates an encoder from an opened file.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn from_gguf(file: GgufFile) -> Result<Self, LoadError> {
        let shape = read_shape(&file)?;
        Ok(Self { file, shape })
    }

    /// Returns the encoder's input and output sizes.
    pub fn shape(&self) -> &VisionShape {
        &self.shape
    }

    /// Returns the memory that a load on `backend` will take, including the step that encodes an image; only
    /// headers are read.
    ///
    /// # Errors
    /// As [`Self::load_on`].
    pub fn plan(&self, backend: &dyn Weigh) -> Result<MemoryPlan, LoadError> {
        let mut plan = tower::plan_of(&TowerTensors::of(&self.file, &self.shape), &self.shape, backend)?;
        let around = (self.file.tensors())
            .filter(|info| info.name.starts_with("mm.") || tensors::is_around(&info.name, self.shape.family));
        plan.weights_bytes =
            (around.map(|info| info.n_bytes)).fold(plan.weights_bytes, usize::saturating_add);
        let around = self.shape.values_around().saturating_mul(size_of::<f32>());
        plan.activations_bytes = plan.activations_bytes.saturating_add(around);
        Ok(plan)
    }

    /// Loads it on a device that computes in host memory.
    ///
    /// # Errors
    /// [`LoadError`]: a tensor that is missing or has a wrong shape, or a backend's error.
    pub fn load_on(&self, device: impl Into<Box<dyn ProgramDevice>>) -> Result<VisionTower, LoadError> {
        VisionTower::load(
            &TowerTensors::of(&self.file, &self.shape),
            &self.shape,
            device.into(),
        )
    }
}

fn read_shape(file: &GgufFile) -> Result<VisionShape, LoadError> {
    let metadata = file.metadata();
    let arch = metadata.str("general.architecture")?;
    if arch != ARCH {
        return Err(LoadError::UnknownArchitecture {
            found: arch.to_owned(),
            supported: vec![ARCH],
        });
    }
    shape_of(metadata, file)
}

/// `general.architecture` of image encoders.
const ARCH: &str = "clip";

/// Reads the sizes of an encoder from its keys and tensors.
fn shape_of(metadata: &Metadata, weights: &dyn WeightSource) -> Result<VisionShape, LoadError> {
    let unsupported = |feature: String| LoadError::UnsupportedFeature {
        arch: ARCH.to_owned(),
        feature,
    };
    let family = match metadata.opt_str("clip.vision.projector_type")? {
        Some(name) => name,
        None => metadata.str("clip.projector_type")?,
    };
    let supported = FAMILIES.map(VisionFamily::name).join(", ");
    let family = (FAMILIES.into_iter().find(|row| row.name() == family))
        .ok_or_else(|| unsupported(format!("projector `{family}` (supported are {supported})")))?;
    let number = |key: &str| {
        let value = metadata.u32(&format!("clip.vision.{key}"))?;
        Ok::<_, LoadError>(value as usize)
    };
    let image = number("image_size")?;
    let shape = VisionShape {
        family,
        size: ImageSize::Square {
            side: image,
            n_side: 0,
        },
        patch_size: number("patch_size")?,
        mean: channels(metadata, "clip.vision.image_mean")?,
        std: channels(metadata, "clip.vision.image_std")?,
        n_embd: 0,
        n_deep: 0,
        n_merged: 1,
        qwen: None,
        n_vision: number("embedding_length")?,
        n_layers: number("block_count")?,
        n_heads: number("attention.head_count")?,
        n_ff: number("feed_forward_length")?,
        eps: metadata.f32("clip.vision.attention.layer_norm_epsilon")?,
    };
    let patch = shape.patch_size;
    let divides = |whole: usize, part: usize| part > 0 && whole >= part && whole.is_multiple_of(part);
    check(
        "image size",
        image,
        divides(image, patch),
        "a multiple of the patch size",
    )?;
    // Checked before the number is squared.
    let is_small = image / patch <= MAX_PATCHES.isqrt();
    check(
        "number of patches to a side",
        image / patch,
        is_small,
        "at most 128",
    )?;
    check("patch size", patch, patch <= 64, "at most 64")?;
    check(
        "number of layers of the encoder",
        shape.n_layers,
        (1..=1024).contains(&shape.n_layers),
        "between 1 and 1024",
    )?;
    check(
        "number of heads of the encoder",
        shape.n_heads,
        divides(shape.n_vision, shape.n_heads),
        "a divisor of the embedding length",
    )?;
    check(
        "embedding length of the encoder",
        shape.n_vision,
        (1..=1 << 20).contains(&shape.n_vision),
        "between 1 and 2^20",
    )?;
    for std in shape.std {
        check(
            "deviation of the pixels",
            std,
            std > 0.0 && std.is_finite(),
            "a positive number",
        )?;
    }
    for mean in shape.mean {
        check("mean of the pixels", mean, mean.is_finite(), "a number")?;
    }
    match family {
        VisionFamily::Gemma3 => gemma3::finish(metadata, weights, image / patch, &shape),
        VisionFamily::Qwen2Vl | VisionFamily::Qwen25Vl | VisionFamily::Qwen3Vl => {
            qwen::finish(metadata, weights, image / patch, &shape)
        }
    }
}

/// Reads three numbers, one per channel.
fn channels(metadata: &Metadata, key: &str) -> Result<[f32; 3], LoadError> {
    let numbers = metadata.f32_array(key)?;
    <[f32; 3]>::try_from(numbers).map_err(|_| LoadError::BadValue {
        what: "mean or deviation of the pixels",
        found: format!("{} numbers in `{key}`", numbers.len()),
        expected: "three numbers",
    })
}
