//! [`Vision`] holds a model's image encoder and the rows of recent images.
//!
//! The model computes with the rows on any device; the encoder works on the host. Invariants: one image at a
//! time is decoded and encoded, so that many requests take the memory of one; an image's rows depend only on
//! its bytes.

use std::{
    collections::VecDeque,
    fmt,
    fs::{self, File},
    io::{self, Read as _, Seek as _, SeekFrom},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use sha2::{Digest as _, Sha256};
use tokenmill_backend::{MemoryPlan, RopeAxes};
use tokenmill_cpu_exec::CpuBackend;
use tokenmill_image::{Filter, ImageLimits, Rgb};
use tokenmill_model::{Model as Network, VisionFamily, VisionFile, VisionShape, VisionTower};
use tokenmill_sched::{Media, MediaPlaces, MediaSpan};
use tokenmill_text::ImageWords;

use crate::{
    Error,
    compute::Compute,
    images::PromptImage,
    low_priority::at_low_priority,
    model_source::{ModelSource, is_projector_name},
    reply::Prompt,
};

/// Images whose rows are kept.
const MAX_KEPT: usize = 16;
/// Bytes of rows that are kept; the newest image's are in any case.
const MAX_KEPT_BYTES: usize = 256 << 20;
/// Places of an encoder's file that tell it from others, and bytes of each.
const N_SAMPLES: u64 = 64;
const SAMPLE_BYTES: u64 = 4096;

/// Where the image encoder of a model is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Projector {
    /// In a file next to the model whose name has `mmproj` in it, if one there fits; it is loaded when an image comes.
    #[default]
    Beside,
    /// In this file, which is loaded with the model.
    File(PathBuf),
    /// Nowhere: images are refused.
    None,
}

/// Encodes a model's images.
pub(crate) struct Vision {
    path: PathBuf,
    /// Tells the encoder's file from others: the same image has other rows with another.
    identity: Sha256,
    shape: VisionShape,
    memory: MemoryPlan,
    compute: Compute,
    /// The encoder, once it is loaded.
    tower: Mutex<Option<VisionTower>>,
    kept: Mutex<VecDeque<(u128, Arc<[f32]>)>>,
}

impl fmt::Debug for Vision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vision")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

/// Returns the texts that stand for images in a family's prompts.
pub(crate) fn image_words(family: VisionFamily) -> ImageWords {
    match family {
        // Source: transformers, `Gemma3Processor`.
        VisionFamily::Gemma3 => ImageWords {
            mark: "<start_of_image>",
            before: "\n\n",
            after: "<end_of_image>\n\n",
            keeps_mark: true,
        },
        // Source: transformers, `Qwen2VLProcessor`. The template has the texts around them.
        VisionFamily::Qwen2Vl | VisionFamily::Qwen25Vl | VisionFamily::Qwen3Vl => ImageWords {
            mark: "<|image_pad|>",
            before: "",
            after: "",
            keeps_mark: false,
        },
    }
}

/// Returns the texts around an image's mark in a text without a template.
pub(crate) fn around_in_text(words: &ImageWords) -> [&'static str; 2] {
    // Qwen's templates write these themselves.
    if words.mark == "<|image_pad|>" {
        return ["<|vision_start|>", "<|vision_end|>"];
    }
    [words.before, words.after]
}

impl Vision {
    /// Opens a model's image encoder, if it has one; only a header is read, unless a file is named.
    ///
    /// # Errors
    /// [`Error::Projector`] for a named file, [`Error::TakesNoImages`] for a model or a device that takes only tokens.
    pub(crate) fn open(
        projector: &Projector,
        source: &ModelSource,
        network: &Network,
        input_row_width: Option<usize>,
        compute: &Compute,
    ) -> Result<Option<Self>, Error> {
        if input_row_width.is_none() && *projector == Projector::Beside {
            return Ok(None);
        }
        let Some((path, file)) = find(projector, source, network)? else {
            return Ok(None);
        };
        if input_row_width.is_none() {
            return Err(Error::TakesNoImages { path });
        }
        let vision = Self {
            memory: plan_of(&path, &file, compute)?,
            identity: identity_of(&path).map_err(|source| Error::Read {
                path: path.clone(),
                source,
            })?,
            path,
            shape: file.shape().clone(),
            compute: compute.clone(),
            tower: Mutex::new(None),
            kept: Mutex::default(),
        };
        if matches!(projector, Projector::File(_)) {
            *lock(&vision.tower) = Some(vision.load(&file, compute.is_quiet)?);
        }
        Ok(Some(vision))
    }

    pub(crate) fn shape(&self) -> &VisionShape {
        &self.shape
    }

    /// The memory that the encoder takes once it is loaded.
    pub(crate) fn memory(&self) -> &MemoryPlan {
        &self.memory
    }

    fn load(&self, file: &VisionFile, is_quiet: bool) -> Result<VisionTower, Error> {
        let backend = CpuBackend::placed(
            self.compute.n_threads,
            self.compute.cpu_features,
            self.compute.places.clone(),
        );
        let mut backend = backend.map_err(|error| unusable(&self.path)(error.into()))?;
        let loaded = if is_quiet {
            // The threads that compute were started before, and keep the usual priority.
            backend.set_load_threads(1);
            at_low_priority(|| file.load_on(backend))
        } else {
            file.load_on(backend)
        };
        loaded.map_err(unusable(&self.path))
    }

    /// Makes the rows of a prompt's images. It takes as long as the encoder does: seconds for a large one. Nothing once it is asked
    /// before an image whether they are wanted, and they are not.
    ///
    /// # Errors
    /// [`Error::Image`], or the encoder's error.
    pub(crate) fn media(
        &self,
        prompt: &Prompt,
        salt: u64,
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<Option<Arc<[Media]>>, Error> {
        let media = |(image_idx, image): (usize, &PromptImage)| {
            if !is_wanted() {
                return Ok(None);
            }
            let content = content_of(&self.identity, &image.file, salt);
            let rows = self.rows_of(image_idx, image, content)?;
            let family = self.shape.family;
            let span = MediaSpan {
                start: image.start,
                end: image.start + image.grid.n_rows(),
                content,
                sees_itself: family.sees_itself(),
                places: if family.has_plane() {
                    MediaPlaces::Plane {
                        n_across: image.grid.n_across,
                    }
                } else {
                    MediaPlaces::Line
                },
            };
            Ok(Some(Media { span, rows }))
        };
        prompt.images.iter().enumerate().map(media).collect()
    }

    fn rows_of(&self, image_idx: usize, image: &PromptImage, content: u128) -> Result<Arc<[f32]>, Error> {
        let grid = &image.grid;
        let find = || {
            let kept = lock(&self.kept);
            let found = kept.iter().find(|(kept, _)| *kept == content);
            found.map(|(_, rows)| Arc::clone(rows))
        };
        if let Some(rows) = find() {
            return Ok(rows);
        }
        let mut tower = lock(&self.tower);
        // The previous holder of the tower may have encoded the same image.
        if let Some(rows) = find() {
            return Ok(rows);
        }
        let image = Rgb::decode(&image.file, &ImageLimits::default());
        let image = image.map_err(|source| Error::Image { image_idx, source })?;
        let shape = &self.shape;
        let filter = match shape.family {
            VisionFamily::Gemma3 => Filter::Bilinear,
            VisionFamily::Qwen2Vl | VisionFamily::Qwen25Vl | VisionFamily::Qwen3Vl => Filter::Bicubic,
        };
        let pixels = image.resized(grid.width, grid.height, filter);
        drop(image);
        let pixels = pixels.normalized(shape.mean, shape.std);
        if tower.is_none() {
            let file = VisionFile::open(&self.path).map_err(unusable(&self.path))?;
            // A request waits for it.
            *tower = Some(self.load(&file, false)?);
        }
        let tower = tower.as_mut().expect("it was just loaded");
        let rows: Arc<[f32]> = tower.encode(&pixels, grid)?.into();
        let mut kept = lock(&self.kept);
        kept.push_front((content, Arc::clone(&rows)));
        let mut n_bytes = 0;
        let n_fitting = (kept.iter())
            .take_while(|(_, rows)| {
                n_bytes += size_of_val::<[f32]>(rows);
                n_bytes <= MAX_KEPT_BYTES
            })
            .count();
        kept.truncate(n_fitting.clamp(1, MAX_KEPT));
        Ok(rows)
    }
}

/// Locks a mutex even after a panic elsewhere: its data is consistent between two calls.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Identifies an encoder's file by its size, and bytes from places all over it.
fn identity_of(path: &Path) -> io::Result<Sha256> {
    let mut file = File::open(path)?;
    let len = file.metadata()?.len();
    let mut digest = Sha256::new().chain_update(len.to_le_bytes());
    let mut sample = Vec::new();
    for place in 0..N_SAMPLES {
        file.seek(SeekFrom::Start(
            len.saturating_sub(SAMPLE_BYTES) * place / (N_SAMPLES - 1),
        ))?;
        sample.clear();
        (&mut file).take(SAMPLE_BYTES).read_to_end(&mut sample)?;
        digest.update(&sample);
    }
    Ok(digest)
}

/// A hash of an encoder, an image's file and the salt of its request that cannot be found twice.
fn content_of(encoder: &Sha256, file: &[u8], salt: u64) -> u128 {
    let digest = (encoder.clone())
        .chain_update(salt.to_le_bytes())
        .chain_update(file)
        .finalize();
    let half = digest[..16].try_into().expect("a digest has 32 bytes");
    u128::from_le_bytes(half)
}

/// Returns the memory that the encoder of a model will take, if it has one; only headers are read.
///
/// # Errors
/// Returns the errors of [`Vision::open`].
pub(crate) fn plan(
    projector: &Projector,
    source: &ModelSource,
    network: &Network,
    compute: &Compute,
) -> Result<Option<MemoryPlan>, Error> {
    let found = find(projector, source, network)?;
    found
        .map(|(path, file)| plan_of(&path, &file, compute))
        .transpose()
}

/// Whether a model has an image encoder; only headers are read.
///
/// # Errors
/// [`Error::Projector`] and its like of a file that is named.
pub(crate) fn is_there(
    projector: &Projector,
    source: &ModelSource,
    network: &Network,
) -> Result<bool, Error> {
    Ok(find(projector, source, network)?.is_some())
}

/// Finds the file of a model's encoder, if it has one; reads only headers.
///
/// # Errors
/// [`Error::Projector`] and related errors for a named file.
pub(crate) fn path_of(
    projector: &Projector,
    source: &ModelSource,
    network: &Network,
) -> Result<Option<PathBuf>, Error> {
    Ok(find(projector, source, network)?.map(|(path, _)| path))
}

/// Finds the encoder of a model, if it has one.
fn find(
    projector: &Projector,
    source: &ModelSource,
    network: &Network,
) -> Result<Option<(PathBuf, VisionFile)>, Error> {
    Ok(match projector {
        Projector::None => None,
        Projector::Beside => find_beside(source, network),
        Projector::File(path) => Some((path.clone(), open_for(path, network)?)),
    })
}

fn plan_of(path: &Path, file: &VisionFile, compute: &Compute) -> Result<MemoryPlan, Error> {
    let backend = CpuBackend::placed(compute.n_threads, compute.cpu_features, compute.places.clone());
    let backend = backend.map_err(|error| unusable(path)(error.into()))?;
    let mut plan = file.plan(&backend).map_err(unusable(path))?;
    plan.activations_bytes = (plan.activations_bytes).saturating_add(max_kept_bytes(file.shape()));
    Ok(plan)
}

/// Bytes that the rows which are kept take at most.
fn max_kept_bytes(shape: &VisionShape) -> usize {
    let of_image = (shape.size.max_rows()).saturating_mul(shape.row_width() * size_of::<f32>());
    of_image
        .saturating_mul(MAX_KEPT)
        .min(MAX_KEPT_BYTES)
        .max(of_image)
}

/// Architectures that there are encoders for.
pub(crate) const SIGHTED: [&str; 4] = ["gemma3", "qwen2vl", "qwen3vl", "qwen3vlmoe"];

/// Opens an encoder and checks that its rows are such as a network takes.
fn open_for(path: &Path, network: &Network) -> Result<VisionFile, Error> {
    let file = VisionFile::open(path).map_err(unusable(path))?;
    let descriptor = network.descriptor();
    let shape = file.shape();
    let expected = (1 + descriptor.n_deep_inputs) * descriptor.n_embd;
    if shape.n_embd != descriptor.n_embd || shape.row_width() != expected {
        return Err(Error::ProjectorWidth {
            path: path.to_owned(),
            found: shape.row_width(),
            expected,
        });
    }
    let archs: &[&str] = match shape.family {
        VisionFamily::Gemma3 => &["gemma3"],
        VisionFamily::Qwen2Vl | VisionFamily::Qwen25Vl => &["qwen2vl"],
        VisionFamily::Qwen3Vl => &["qwen3vl", "qwen3vlmoe"],
    };
    if !archs.contains(&descriptor.arch.as_str()) {
        return Err(Error::ProjectorFamily {
            path: path.to_owned(),
            family: shape.family.name(),
            arch: descriptor.arch.clone(),
        });
    }
    let knows_planes = descriptor.ropes.iter().all(|rope| rope.axes != RopeAxes::One);
    if shape.family.has_plane() && !knows_planes {
        return Err(Error::ProjectorPlane {
            path: path.to_owned(),
        });
    }
    Ok(file)
}

/// The image encoder that lies next to a model, in the same folder.
pub fn projector_beside(source: &ModelSource, network: &Network) -> Option<PathBuf> {
    find_beside(source, network).map(|(path, _)| path)
}

/// The encoder next to a model that fits it: that in 16 bits first, as downloads choose it.
fn find_beside(source: &ModelSource, network: &Network) -> Option<(PathBuf, VisionFile)> {
    let folder = match source {
        ModelSource::File(path) => match path.parent()? {
            here if here.as_os_str().is_empty() => Path::new("."),
            folder => folder,
        },
        ModelSource::Demo | ModelSource::Folder(_) => return None,
    };
    let names = fs::read_dir(folder).ok()?.filter_map(Result::ok);
    let mut names: Vec<String> = (names.filter_map(|entry| entry.file_name().into_string().ok()))
        .filter(|name| is_projector_name(name))
        .collect();
    let preference = |name: &str| {
        let name = name.to_ascii_lowercase();
        let is_bf16 = name.contains("bf16");
        match (name.contains("f16"), is_bf16) {
            (true, false) => 0,
            (_, true) => 1,
            _ if name.contains("q8_0") => 2,
            _ => 3,
        }
    };
    names.sort_by_key(|name| (preference(name), name.clone()));
    names.into_iter().find_map(|name| {
        let path = folder.join(name);
        let file = open_for(&path, network).ok()?;
        Some((path, file))
    })
}

fn unusable(path: &Path) -> impl FnOnce(tokenmill_model::LoadError) -> Error + use<'_> {
    |source| Error::Projector {
        path: path.to_owned(),
        source: Box::new(source),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_depends_on_every_byte_and_the_salt() {
        let folder = tempfile::tempdir().unwrap();
        let encoder = |bytes: &[u8]| {
            let path = folder.path().join("mmproj.gguf");
            fs::write(&path, bytes).unwrap();
            identity_of(&path).unwrap()
        };
        let first = encoder(&[7; 9_000]);
        let content = content_of(&first, b"image", 1);
        assert_eq!(content, content_of(&encoder(&[7; 9_000]), b"image", 1));
        assert_ne!(content, content_of(&first, b"imagf", 1));
        assert_ne!(content, content_of(&first, b"image", 2));
        let mut other = vec![7; 9_000];
        other[8_999] = 8;
        for other in [&other[..], &[7; 8_999], b""] {
            assert_ne!(content, content_of(&encoder(other), b"image", 1));
        }
    }
}
