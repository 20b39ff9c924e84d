//! LoRA adapters in GGUF files, as llama.cpp's `convert_lora_to_gguf.py` writes them.
//!
//! | key or tensor | value |
//! |---|---|
//! | `general.type` | `adapter` |
//! | `general.architecture` | the architecture of the base model |
//! | `adapter.type` | `lora` |
//! | `adapter.lora.alpha` | the scale times the rank; 0 means a scale of 1 |
//! | `NAME.lora_a` | `[n_in, rank]`, the contiguous dimension first |
//! | `NAME.lora_b` | `[rank, n_out]` |
//!
//! Source: llama.cpp, `src/llama-adapter.cpp`.

use std::{collections::BTreeMap, path::Path};

use tokenmill_backend::{Adapter, AdapterWeight};
use tokenmill_gguf::{GgufFile, TensorInfo, TensorType, TensorView};

use super::{
    MAX_ADAPTER_BYTES,
    reader::{AdapterReader, Form, bad, float_matrix, too_large},
};
use crate::LoadError;

/// Reads a file.
pub(super) fn read(reader: &AdapterReader, path: &Path) -> Result<Adapter, LoadError> {
    parse(reader, path, &GgufFile::open(path)?)
}

/// Parses an opened file.
pub(super) fn parse(reader: &AdapterReader, path: &Path, file: &GgufFile) -> Result<Adapter, LoadError> {
    let bad = |reason: String| bad(path, reason);
    let metadata = file.metadata();
    for (key, expected) in [("general.type", "adapter"), ("adapter.type", "lora")] {
        let found = metadata.opt_str(key)?.unwrap_or("absent");
        if found != expected {
            return Err(bad(format!("`{key}` is {found}, expected {expected}")));
        }
    }
    let arch = metadata.str("general.architecture")?;
    if arch != reader.descriptor.arch {
        return Err(bad(format!(
            "it is made for architecture {arch}, but the model is of {}",
            reader.descriptor.arch
        )));
    }
    if metadata.get("adapter.alora.invocation_tokens").is_some() {
        return Err(bad("activated LoRA (`adapter.alora`) is not supported".to_owned()));
    }
    let alpha = metadata.f32("adapter.lora.alpha")?;
    let mut pairs: BTreeMap<&str, [Option<TensorView<'_>>; 2]> = BTreeMap::new();
    for info in file.tensors() {
        let (tensor, which) = if let Some(tensor) = info.name.strip_suffix(".lora_a") {
            (tensor, 0)
        } else if let Some(tensor) = info.name.strip_suffix(".lora_b") {
            (tensor, 1)
        } else {
            return Err(bad(format!(
                "tensor `{}` is neither `.lora_a` nor `.lora_b`; replacing a weight is not supported",
                info.name
            )));
        };
        pairs.entry(tensor).or_default()[which] = file.tensor(&info.name);
    }
    let n_bytes = file.tensors().fold(0_usize, |n_bytes, info| {
        n_bytes.saturating_add(bytes_as_read(info))
    });
    if n_bytes > MAX_ADAPTER_BYTES {
        return Err(bad(too_large()));
    }
    let mut weights = Vec::with_capacity(pairs.len());
    for (tensor, pair) in pairs {
        let [Some(a), Some(b)] = pair else {
            let missing = if pair[0].is_none() { "lora_a" } else { "lora_b" };
            return Err(bad(format!("tensor `{tensor}.{missing}` is missing")));
        };
        let (&[n_in, rank], &[rank_of_b, n_out]) = (&a.info.dims[..], &b.info.dims[..]) else {
            return Err(bad(format!(
                "the matrices of `{tensor}` have shapes {:?} and {:?}, expected two dimensions each",
                a.info.dims, b.info.dims
            )));
        };
        if rank != rank_of_b || rank == 0 || n_in == 0 || n_out == 0 {
            return Err(bad(format!(
                "the matrices of `{tensor}` have shapes {:?} and {:?}, which share no rank of at least 1",
                a.info.dims, b.info.dims
            )));
        }
        let matrix = |view: &TensorView<'_>, shape| {
            let bytes = view.bytes.to_vec().map_err(|source| LoadError::ReadTensor {
                name: view.info.name.clone(),
                source,
            })?;
            float_matrix(view.info.ty, shape, bytes)
                .map_err(|reason| bad(format!("tensor `{}`: {reason}", view.info.name)))
        };
        weights.push(AdapterWeight {
            tensor: tensor.to_owned(),
            scale: if alpha == 0.0 { 1.0 } else { alpha / rank as f32 },
            rank,
            n_in,
            n_out,
            a: matrix(&a, [rank, n_in])?,
            b: matrix(&b, [n_out, rank])?,
        });
    }
    reader.finish(path, Form::Gguf, weights)
}

/// Returns the size in bytes of a tensor's numbers, as [`float_matrix`] returns them.
fn bytes_as_read(info: &TensorInfo) -> usize {
    let n_bytes = match info.ty {
        TensorType::F16 | TensorType::BF16 => size_of::<u16>(),
        _ => size_of::<f32>(),
    };
    info.dims
        .iter()
        .fold(n_bytes, |product, &n| product.saturating_mul(n))
}
