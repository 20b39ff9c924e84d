//! [`VisionFolder`]: the image encoder in a Hugging Face folder, in the form of the file that a converter
//! makes from it.
//!
//! [`FolderAsGguf`](crate::FolderAsGguf) is its text counterpart. Invariant: opening reads headers; the keys
//! that the file will contain were described in the same way as by a load.
//!
//! Source: llama.cpp, `conversion/base.py` (`MmprojModel`), `conversion/gemma.py`, `qwenvl.py` and `qwen3vl.py`.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use tokenmill_backend::Weigh;
use tokenmill_gguf::{Metadata, ReadAt, RegularFile, TensorBytes, TensorType};

use crate::{
    LoadError, WeightInfo, WeightSource, WeightTensor,
    hf_config::HfConfig,
    safetensors_folder::{FileHeader, mapped, plain_type, stored_tensor, weight_files},
    tensor_view::Reordered,
};

use super::{
    VisionFamily, VisionShape,
    folder_keys::{self, PATCHES},
    folder_names::{FolderNames, Part, Place},
    shape_of, tensors, tower,
};

/// The image encoder of a folder, with the names, shapes and keys of a file.
pub struct VisionFolder {
    keys: Metadata,
    weights: FolderWeights,
    shape: VisionShape,
}

/// The encoder's tensors by their names in the file.
struct FolderWeights {
    entries: BTreeMap<String, Entry>,
    names: FolderNames,
}

struct Entry {
    info: WeightInfo,
    bytes: Box<dyn ReadAt>,
    hf_name: String,
}

impl VisionFolder {
    /// Opens a folder with `config.json`, safetensors files and `preprocessor_config.json` or `processor_config.json`.
    ///
    /// # Errors
    /// [`LoadError`]: a folder without image encoder, an unsupported family, or missing or damaged data.
    pub fn open(folder: impl AsRef<Path>) -> Result<Self, LoadError> {
        let folder = folder.as_ref();
        let config = HfConfig::open(&folder.join("config.json"))?;
        let (family, keys, taps) = folder_keys::read(folder, &config)?;
        let weights = FolderWeights::open(folder, FolderNames::of(family, taps))?;
        let shape = shape_of(&keys, &weights)?;
        Ok(Self { keys, weights, shape })
    }

    /// Returns whether a folder has an image encoder of a supported family.
    ///
    /// # Errors
    /// [`LoadError`] if a configuration cannot be read.
    pub fn is_in(folder: impl AsRef<Path>) -> Result<bool, LoadError> {
        let config = HfConfig::open(&folder.as_ref().join("config.json"))?;
        Ok(folder_keys::family_of(&config).is_some())
    }

    /// Checks by a dry run of a load that no tensor is missing or has another shape.
    ///
    /// # Errors
    /// [`LoadError`], if the tensors are invalid.
    pub fn check(&self, backend: &dyn Weigh) -> Result<(), LoadError> {
        let source = tensors::TowerTensors::of(&self.weights, &self.shape);
        tower::check(&source, &self.shape, backend)
    }

    /// Returns `general.architecture`.
    pub fn architecture(&self) -> &'static str {
        super::ARCH
    }

    /// Returns the encoder's input and output sizes.
    pub fn shape(&self) -> &VisionShape {
        &self.shape
    }

    /// Returns the keys that describe the encoder.
    pub fn keys(&self) -> &Metadata {
        &self.keys
    }

    /// Returns the tensors, in the folder's types.
    pub fn weights(&self) -> &dyn WeightSource {
        &self.weights
    }

    /// Returns a function from a tensor's name and the file's type for matrices to a type that overrides it.
    /// Readers require single or half precision for the patch matrix, and half precision for the projection
    /// of Gemma 3.
    pub fn own_types(&self) -> fn(&str, TensorType) -> Option<TensorType> {
        match self.shape.family {
            VisionFamily::Gemma3 => |name, _| {
                let is_projection = name == super::gemma3::PROJECTION;
                let is_of_patches = name.starts_with(PATCHES);
                (is_projection.then_some(TensorType::F16)).or(is_of_patches.then_some(TensorType::F32))
            },
            VisionFamily::Qwen2Vl | VisionFamily::Qwen25Vl | VisionFamily::Qwen3Vl => |name, wanted| {
                let part = name.strip_prefix(PATCHES)?;
                let is_half = wanted == TensorType::F16 && part != "bias";
                Some(if is_half { TensorType::F16 } else { TensorType::F32 })
            },
        }
    }
}

impl FolderWeights {
    fn open(folder: &Path, mut names: FolderNames) -> Result<Self, LoadError> {
        let mut entries = BTreeMap::<String, Entry>::new();
        for path in weight_files(folder)? {
            let file = RegularFile::open(&path).map_err(|source| LoadError::Read {
                path: path.clone(),
                source,
            })?;
            let file = Arc::new(file);
            let header = FileHeader::read(&file)?;
            // Sorted by name, so that the first error is always the same.
            let tensors: BTreeMap<_, _> = header.tensors().into_iter().collect();
            for (hf_name, tensor) in tensors {
                let bad = |reason: String| LoadError::BadConfig {
                    path: path.clone(),
                    reason,
                };
                let Some(part_name) = names.own_part(&hf_name) else {
                    continue;
                };
                let places = names.places(&part_name);
                if places.is_empty() {
                    return Err(bad(format!("tensor `{hf_name}` has an unknown name")));
                }
                let ty = plain_type(&hf_name, tensor.dtype).map_err(bad)?;
                for Place { name, part } in places {
                    let (info, bytes) = stored_tensor(&file, &header, &hf_name, tensor, (&name, ty))?;
                    let entry = Entry {
                        info,
                        bytes,
                        hf_name: hf_name.clone(),
                    };
                    let entry = take(part, entry).map_err(&bad)?;
                    if let Some(other) = entries.insert(name, entry) {
                        let mut both = [&other.hf_name, &hf_name];
                        both.sort();
                        return Err(bad(format!(
                            "tensors `{}` and `{}` have one place in the encoder",
                            both[0], both[1]
                        )));
                    }
                }
            }
        }
        if entries.is_empty() {
            return Err(LoadError::BadConfig {
                path: PathBuf::from(folder),
                reason: "there is no tensor of an image encoder".to_owned(),
            });
        }
        Ok(Self { entries, names })
    }
}

/// Returns the part of a tensor that is separate in the file.
fn take(part: Part, entry: Entry) -> Result<Entry, String> {
    let Entry {
        mut info,
        bytes,
        hf_name,
    } = entry;
    let bytes = match part {
        Part::Whole => bytes,
        Part::PlusOne => {
            let (mapped_info, bytes) = mapped(info, bytes, Box::new(|_, x| x + 1.0));
            info = mapped_info;
            bytes
        }
        Part::Third(third) => {
            let n_rows = info.dims.last().copied().unwrap_or(0);
            if n_rows == 0 || !n_rows.is_multiple_of(3) {
                return Err(format!(
                    "tensor `{hf_name}` has {n_rows} rows, expected as many queries as keys and values"
                ));
            }
            let (n_part, row_bytes) = (n_rows / 3, info.n_bytes / n_rows);
            info.n_bytes = n_part * row_bytes;
            *info.dims.last_mut().expect("it has rows") = n_part;
            Box::new(Reordered {
                source: bytes,
                order: (third * n_part..(third + 1) * n_part).collect(),
                row_bytes,
            })
        }
        Part::Frame(frame) => {
            let [width, height, 2, n_channels, n_out] = info.dims[..] else {
                return Err(format!(
                    "tensor `{hf_name}` has shape {:?}, the contiguous dimension first, expected patches of two frames",
                    info.dims
                ));
            };
            info.dims = vec![width, height, n_channels, n_out];
            info.n_bytes /= 2;
            let n_planes = n_channels * n_out;
            Box::new(Reordered {
                source: bytes,
                order: (0..n_planes).map(|plane| 2 * plane + frame).collect(),
                row_bytes: info.n_bytes / n_planes,
            })
        }
    };
    Ok(Entry { info, bytes, hf_name })
}

impl WeightSource for FolderWeights {
    fn infos(&self) -> Vec<WeightInfo> {
        self.entries.values().map(|entry| entry.info.clone()).collect()
    }

    fn own_name(&self, name: &str) -> Option<String> {
        match self.entries.get(name) {
            Some(entry) => Some(entry.hf_name.clone()),
            None => self.names.hf_name(name),
        }
    }

    fn tensor(&self, name: &str) -> Option<WeightTensor<'_>> {
        let entry = self.entries.get(name)?;
        Some(WeightTensor {
            ty: entry.info.ty,
            dims: entry.info.dims.clone(),
            bytes: TensorBytes::in_file(&*entry.bytes, 0, entry.info.n_bytes),
        })
    }
}
