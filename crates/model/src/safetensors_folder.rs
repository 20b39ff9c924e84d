//! [`SafetensorsFolder`]: the weights of a Hugging Face folder, under their GGUF names.
//!
//! Invariant: opening reads the headers only; the bytes of a tensor are read on access.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use safetensors::Dtype;
use tokenmill_gguf::{ReadAt, RegularFile, TensorBytes, TensorType};
use tokenmill_quant::Format;

use crate::{
    Descriptor, HeadLayer, LoadError, WeightInfo, WeightSource, WeightTensor,
    arch::GgufForm,
    encoded::Encoded,
    fp8::{Fp8, Fp8Part, is_activation_scale, scaled_weight},
    hf_config::Fp8Scales,
    hf_layout::{HfLayout, Share, UNUSED},
    tensor_view::{Joined, Mxfp4},
};

mod changes;
mod file_header;
mod recast;

use changes::{apply, multiply};
pub(crate) use changes::{mapped, ungrouped_rows};
pub(crate) use file_header::{FileHeader, stored_tensor, weight_files};

/// The tensors of all `.safetensors` files of a folder.
pub(crate) struct SafetensorsFolder {
    /// The tensors by GGUF name.
    tensors: BTreeMap<String, Entry>,
    names: FolderNames,
}

/// The names of tensors in the files.
struct FolderNames {
    /// The name of each tensor's first part, by GGUF name.
    found: BTreeMap<String, String>,
    layout: HfLayout,
}

struct Entry {
    info: WeightInfo,
    bytes: Box<dyn ReadAt>,
}

/// Tensors as stored in the files, by GGUF name and then by share of that tensor.
type StoredTensors = BTreeMap<String, BTreeMap<Share, StoredTensor>>;

struct StoredTensor {
    hf_name: String,
    info: WeightInfo,
    bytes: Box<dyn ReadAt>,
    /// Whether it holds FP8 codes, with scales in another tensor.
    is_fp8: bool,
}

/// The headers of a folder's files read so far.
struct Headers<'a> {
    layout: &'a HfLayout,
    descriptor: &'a Descriptor,
    /// The unit of FP8 scales, if the configuration has FP8 weights.
    fp8_scales: Option<Fp8Scales>,
    /// The GGUF form of the folder, which includes MTP layers.
    form: Option<&'a GgufForm>,
    tensors: StoredTensors,
    /// FP8 scales, by the file's name of the weight.
    scales: BTreeMap<String, StoredTensor>,
}

impl SafetensorsFolder {
    /// Reads the headers of all `.safetensors` files. With a `form`, MTP layers are read too.
    pub(crate) fn open(
        folder: &Path,
        layout: &HfLayout,
        descriptor: &Descriptor,
        fp8_scales: Option<Fp8Scales>,
        form: Option<&GgufForm>,
    ) -> Result<Self, LoadError> {
        let paths = weight_files(folder)?;
        let mut headers = Headers {
            layout,
            descriptor,
            fp8_scales,
            form,
            tensors: StoredTensors::new(),
            scales: BTreeMap::new(),
        };
        for path in paths {
            let file = RegularFile::open(&path).map_err(|source| LoadError::Read { path, source })?;
            headers.read(&Arc::new(file), None)?;
        }
        for layer in descriptor.pooling.iter().flat_map(|pooling| &pooling.head) {
            // Matrices of sentence-transformers have their own folders.
            if let HeadLayer::Linear { name, .. } = layer
                && let Some(number) = name.strip_prefix("dense_")
            {
                let path = folder.join(format!("{number}_Dense/model.safetensors"));
                let file = RegularFile::open(&path).map_err(|source| LoadError::Read { path, source })?;
                headers.read(&Arc::new(file), Some(name))?;
            }
        }
        let bad = |reason| LoadError::BadConfig {
            path: folder.to_owned(),
            reason,
        };
        let mut tensors = BTreeMap::new();
        let mut found = BTreeMap::new();
        for (name, parts) in headers.into_tensors().map_err(bad)? {
            if let Some((_, part)) = parts.first_key_value() {
                found.insert(name.clone(), part.hf_name.clone());
            }
            let mut entry = join(parts).map_err(bad)?;
            for change in layout.changes_of(&name) {
                entry = apply(change, entry, descriptor).map_err(bad)?;
            }
            if let Some(factors) =
                (descriptor.row_factors.iter()).find(|factors| name.ends_with(factors.tensor))
            {
                entry = multiply(factors, entry).map_err(bad)?;
            }
            tensors.insert(name, entry);
        }
        check_vocabulary(&tensors, &found, descriptor.n_vocab).map_err(bad)?;
        let names = FolderNames {
            found,
            layout: *layout,
        };
        Ok(Self { tensors, names })
    }

    /// Sets other types in which tensors are read.
    pub(crate) fn encode(&mut self, types: &BTreeMap<String, TensorType>) -> Result<(), LoadError> {
        for (name, &to) in types {
            let Some(mut entry) = self.tensors.remove(name) else {
                continue;
            };
            let (from, row_len) = (entry.info.ty, entry.info.dims[0]);
            let formats = Format::of(from).ok().zip(Format::of(to).ok());
            let is_encodable = |(from, to): &(&Format, &Format)| {
                from.is_float() && to.has_encoder() && row_len.is_multiple_of(to.block_len())
            };
            let Some((from_format, to_format)) = formats.filter(is_encodable) else {
                let error = LoadError::NotEncodable {
                    name: name.clone(),
                    from,
                    to,
                    row_len,
                };
                return Err(error.with_own_name(self));
            };
            let info = &mut entry.info;
            info.stored = Some(info.stored_form());
            info.n_bytes = info.n_bytes / (row_len * from_format.block_bytes())
                * (row_len / to_format.block_len() * to_format.block_bytes());
            info.ty = to;
            entry.bytes = Box::new(Encoded {
                source: entry.bytes,
                from: from_format,
                to: to_format,
                n_cols: row_len,
            });
            self.tensors.insert(name.clone(), entry);
        }
        Ok(())
    }
}

/// Checks the rows of the embedding against the configuration. A tokenizer may have fewer tokens than there
/// are rows.
fn check_vocabulary(
    tensors: &BTreeMap<String, Entry>,
    found: &BTreeMap<String, String>,
    n_vocab: usize,
) -> Result<(), String> {
    const NAME: &str = "token_embd.weight";
    let (Some(embedding), Some(own_name)) = (tensors.get(NAME), found.get(NAME)) else {
        return Ok(());
    };
    match embedding.info.dims[..] {
        [_, n_rows] if n_rows != n_vocab => Err(format!(
            "`vocab_size` in config.json is {n_vocab}, but tensor `{own_name}` has {n_rows} rows"
        )),
        _ => Ok(()),
    }
}

/// Joins the tensors that share a name.
fn join(mut parts: BTreeMap<Share, StoredTensor>) -> Result<Entry, String> {
    let n_parts = parts.len();
    if let Some(StoredTensor { info, bytes, .. }) = parts.remove(&Share::Whole) {
        return match parts.first_key_value() {
            None => Ok(Entry { info, bytes }),
            Some((_, other)) => Err(format!("tensor `{}` is there whole and in parts", other.hf_name)),
        };
    }
    if parts.contains_key(&Share::Blocks) || parts.contains_key(&Share::Scales) {
        return mxfp4(parts);
    }
    let first = parts.first_key_value().expect("a name has at least one tensor");
    let mut info = first.1.info.clone();
    let mut bytes: Vec<Box<dyn ReadAt>> = Vec::with_capacity(n_parts);
    for (part_idx, (share, part)) in parts.into_iter().enumerate() {
        if share != Share::Slice(part_idx) {
            return Err(format!(
                "tensor `{}` is there, and the one numbered {part_idx} is missing",
                part.hf_name
            ));
        }
        if part.info != info {
            return Err(format!(
                "tensor `{}` has type {} and shape {:?}, and the one numbered 0 {} and {:?}",
                part.hf_name,
                part.info.ty.name(),
                part.info.dims,
                info.ty.name(),
                info.dims
            ));
        }
        bytes.push(part.bytes);
    }
    let part_bytes = info.n_bytes;
    info.dims.push(n_parts);
    info.n_bytes = part_bytes
        .checked_mul(n_parts)
        .ok_or("a tensor is absurdly large")?;
    if let Some(stored) = &mut info.stored {
        stored.n_bytes *= n_parts;
    }
    Ok(Entry {
        info,
        bytes: Box::new(Joined {
            parts: bytes,
            part_bytes,
        }),
    })
}

/// Combines the numbers of an MXFP4 tensor, `[.., n / 32, 16]` bytes, with its scales, `[.., n / 32]`.
fn mxfp4(mut parts: BTreeMap<Share, StoredTensor>) -> Result<Entry, String> {
    let both = (parts.remove(&Share::Blocks), parts.remove(&Share::Scales));
    let ((Some(blocks), Some(scales)), true) = (both, parts.is_empty()) else {
        return Err("a tensor in MXFP4 lacks its blocks or its scales, or is there twice".to_owned());
    };
    let dims = match &blocks.info.dims[..] {
        [16, rest @ ..] if rest == scales.info.dims && !rest.is_empty() => rest,
        found => {
            return Err(format!(
                "tensor `{}` has shape {found:?}, and its scales have {:?}; expected 16 bytes for each scale",
                blocks.hf_name, scales.info.dims
            ));
        }
    };
    if blocks.info.ty != TensorType::I8 || scales.info.ty != TensorType::I8 {
        return Err(format!(
            "tensor `{}` and its scales are not bytes",
            blocks.hf_name
        ));
    }
    let mut dims = dims.to_vec();
    dims[0] = dims[0].checked_mul(32).ok_or("a tensor is absurdly large")?;
    Ok(Entry {
        info: WeightInfo {
            name: blocks.info.name,
            ty: TensorType::MXFP4,
            dims,
            n_bytes: blocks.info.n_bytes + scales.info.n_bytes,
            stored: None,
        },
        bytes: Box::new(Mxfp4 {
            blocks: blocks.bytes,
            scales: scales.bytes,
        }),
    })
}

impl Headers<'_> {
    /// Adds the tensors of a file: those of the network, or those of the `module` after it, which is a single
    /// matrix.
    fn read(&mut self, file: &Arc<RegularFile>, module: Option<&str>) -> Result<(), LoadError> {
        let Self {
            layout,
            descriptor,
            form,
            ..
        } = *self;
        let path = file.path();
        let bad = |reason: String| LoadError::BadConfig {
            path: path.to_owned(),
            reason,
        };
        let header = FileHeader::read(file)?;
        for (hf_name, info) in header.tensors() {
            // Layers that nothing reads have names of their own.
            let is_ignorable =
                (layout.layer_idx(&hf_name)).is_some_and(|layer_idx| descriptor.ignores_layer(layer_idx));
            let n_layers = descriptor.layers.len();
            let draft_name = form.and_then(|form| form.draft_name(layout, &hf_name, n_layers));
            if draft_name.is_none() && (layout.ignores(&hf_name) || is_ignorable) {
                continue;
            }
            let stored = |name: &str, ty, is_fp8| -> Result<StoredTensor, LoadError> {
                let (info, bytes) = stored_tensor(file, &header, &hf_name, info, (name, ty))?;
                Ok(StoredTensor {
                    info,
                    bytes,
                    hf_name: hf_name.clone(),
                    is_fp8,
                })
            };
            let twice = |other: &StoredTensor| {
                // The safetensors reader returns tensors in arbitrary order.
                let mut names = [&other.hf_name, &hf_name];
                names.sort();
                bad(format!(
                    "tensors `{}` and `{}` have one place in the network",
                    names[0], names[1]
                ))
            };
            if self.fp8_scales.is_some() {
                if let Some(weight) = scaled_weight(&hf_name) {
                    let ty = plain_type(&hf_name, info.dtype).map_err(bad)?;
                    let scales = stored(weight, ty, false)?;
                    if let Some(other) = self.scales.insert(weight.to_owned(), scales) {
                        return Err(twice(&other));
                    }
                    continue;
                }
                if is_activation_scale(&hf_name) {
                    continue;
                }
            }
            let name = match module {
                None => draft_name.or_else(|| layout.gguf_name(&hf_name)),
                Some(module) => {
                    (hf_name.strip_prefix("linear.")).map(|part| (format!("{module}.{part}"), Share::Whole))
                }
            };
            let (name, share) = name.ok_or_else(|| bad(format!("tensor `{hf_name}` has an unknown name")))?;
            if name.ends_with(UNUSED) {
                continue;
            }
            let (ty, is_fp8) = match info.dtype {
                Dtype::F32 => (TensorType::F32, false),
                Dtype::F16 => (TensorType::F16, false),
                Dtype::BF16 => (TensorType::BF16, false),
                Dtype::U8 if matches!(share, Share::Blocks | Share::Scales) => (TensorType::I8, false),
                Dtype::F8_E4M3 if self.fp8_scales.is_some() => (TensorType::I8, true),
                Dtype::F8_E4M3 => {
                    return Err(bad(format!(
                        "tensor `{hf_name}` has type F8_E4M3, but `quantization_config` in config.json does not have the \
                     `quant_method` fp8"
                    )));
                }
                other => {
                    let expected = match self.fp8_scales {
                        Some(_) => "F32, F16, BF16 or F8_E4M3",
                        None => "F32, F16 or BF16",
                    };
                    return Err(bad(format!(
                        "tensor `{hf_name}` has type {other:?}, expected {expected}"
                    )));
                }
            };
            let tensor = stored(&name, ty, is_fp8)?;
            let others = self.tensors.entry(name).or_default();
            if let Some(other) = others.get(&share) {
                return Err(twice(other));
            }
            others.insert(share, tensor);
        }
        Ok(())
    }

    /// Returns the tensors, with FP8 weights combined with their scales.
    fn into_tensors(mut self) -> Result<StoredTensors, String> {
        let parts = self.tensors.values_mut().flat_map(BTreeMap::values_mut);
        for part in parts.filter(|part| part.is_fp8) {
            let name = &part.hf_name;
            let (Some(kind), Some(scales)) = (self.fp8_scales, self.scales.remove(name)) else {
                return Err(format!(
                    "tensor `{name}` has type F8_E4M3, and `{name}_scale_inv` or `{name}_scale` is missing"
                ));
            };
            let codes = std::mem::replace(&mut part.bytes, Box::new(&[][..]));
            let weight = Fp8Part {
                hf_name: name,
                info: &part.info,
                bytes: codes,
            };
            let scales = Fp8Part {
                hf_name: &scales.hf_name,
                info: &scales.info,
                bytes: scales.bytes,
            };
            let (info, view) = Fp8::new(weight, scales, kind)?;
            (part.info, part.bytes, part.is_fp8) = (info, Box::new(view), false);
        }
        match self.scales.into_values().next() {
            None => Ok(self.tensors),
            Some(scales) => Err(format!(
                "tensor `{}` is there, but `{}` is not, or not in F8_E4M3",
                scales.hf_name, scales.info.name
            )),
        }
    }
}

impl FolderNames {
    /// Returns the file's name of a tensor, or the name that it would have in this folder.
    fn of(&self, gguf_name: &str) -> Option<String> {
        if let Some(found) = self.found.get(gguf_name) {
            return Some(found.clone());
        }
        let name = self.layout.hf_name(gguf_name)?;
        // The prefix of layer names is usually the prefix of other names too.
        let start = format!("{}0.", self.layout.layers);
        let prefix = (self.found.values())
            .find_map(|name| name.find(&start).map(|at| &name[..at]))
            .unwrap_or_default();
        Some(if name.starts_with(HEAD) {
            let beside = prefix.strip_suffix("model.");
            let beside = beside.filter(|rest| rest.is_empty() || rest.ends_with('.'));
            format!("{}{name}", beside.unwrap_or_default())
        } else {
            format!("{prefix}{name}")
        })
    }
}

/// Returns the type of a tensor that is neither quantized nor scaled, or the fault.
pub(crate) fn plain_type(name: &str, dtype: Dtype) -> Result<TensorType, String> {
    match dtype {
        Dtype::F32 => Ok(TensorType::F32),
        Dtype::F16 => Ok(TensorType::F16),
        Dtype::BF16 => Ok(TensorType::BF16),
        other => Err(format!(
            "tensor `{name}` has type {other:?}, expected F32, F16 or BF16"
        )),
    }
}

/// The name of the head, which is outside the network `model`.
const HEAD: &str = "lm_head.";

impl WeightSource for SafetensorsFolder {
    fn infos(&self) -> Vec<WeightInfo> {
        self.tensors.values().map(|entry| entry.info.clone()).collect()
    }

    fn own_name(&self, name: &str) -> Option<String> {
        self.names.of(name)
    }

    fn tensor(&self, name: &str) -> Option<WeightTensor<'_>> {
        let entry = self.tensors.get(name)?;
        Some(WeightTensor {
            ty: entry.info.ty,
            dims: entry.info.dims.clone(),
            bytes: TensorBytes::in_file(&*entry.bytes, 0, entry.info.n_bytes),
        })
    }
}
