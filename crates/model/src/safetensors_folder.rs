//! [`SafetensorsFolder`]: the weights of a Hugging Face folder, under their GGUF names.
//!
//! Separate from the configuration in the same folder. Invariant: opening reads the headers only; the bytes of a tensor are
//! read when they are asked for.

use std::{collections::BTreeMap, path::Path};

use safetensors::{Dtype, tensor::Metadata};
use tokenmill_gguf::{ReadAt, RegularFile, TensorBytes, TensorType};

use crate::{LoadError, WeightInfo, WeightSource, WeightTensor, arch::HfNames};

/// The tensors of all `.safetensors` files of a folder.
pub(crate) struct SafetensorsFolder {
    files: Vec<RegularFile>,
    /// By GGUF name.
    tensors: BTreeMap<String, Entry>,
}

struct Entry {
    info: WeightInfo,
    file_idx: usize,
    /// Where its bytes start in the file.
    offset: u64,
}

/// Larger headers than this are taken for nonsense, as the format's own reader does.
const MAX_HEADER_BYTES: u64 = 100_000_000;

impl SafetensorsFolder {
    /// Reads the headers of all `.safetensors` files.
    pub(crate) fn open(folder: &Path, names: HfNames) -> Result<Self, LoadError> {
        let cannot_list = |source| LoadError::Read {
            path: folder.to_owned(),
            source,
        };
        let mut paths = Vec::new();
        for entry in std::fs::read_dir(folder).map_err(cannot_list)? {
            let path = entry.map_err(cannot_list)?.path();
            if path
                .extension()
                .is_some_and(|extension| extension == "safetensors")
            {
                paths.push(path);
            }
        }
        paths.sort();
        if paths.is_empty() {
            return Err(LoadError::BadConfig {
                path: folder.to_owned(),
                reason: "there is no .safetensors file beside config.json".to_owned(),
            });
        }
        let mut folder = Self {
            files: Vec::with_capacity(paths.len()),
            tensors: BTreeMap::new(),
        };
        for path in paths {
            let file = RegularFile::open(&path).map_err(|source| LoadError::Read { path, source })?;
            read_header(&file, folder.files.len(), names, &mut folder.tensors)?;
            folder.files.push(file);
        }
        Ok(folder)
    }
}

fn read_header(
    file: &RegularFile,
    file_idx: usize,
    names: HfNames,
    tensors: &mut BTreeMap<String, Entry>,
) -> Result<(), LoadError> {
    let path = file.path();
    let cannot_read = |source| LoadError::Read {
        path: path.to_owned(),
        source,
    };
    let bad = |reason: String| LoadError::BadConfig {
        path: path.to_owned(),
        reason,
    };
    let file_len = file.n_bytes();
    if file_len < 8 {
        return Err(bad(format!(
            "a file of {file_len} bytes has no header; fetch it again"
        )));
    }
    let mut header_len = [0; 8];
    file.read_exact_at(0, &mut header_len).map_err(cannot_read)?;
    let header_len = u64::from_le_bytes(header_len);
    if header_len > MAX_HEADER_BYTES.min(file_len - 8) {
        return Err(bad(format!(
            "a header of {header_len} bytes does not fit the file"
        )));
    }
    let mut header = vec![0; header_len as usize];
    file.read_exact_at(8, &mut header).map_err(cannot_read)?;
    let metadata: Metadata = serde_json::from_slice(&header).map_err(|error| bad(error.to_string()))?;
    let data_start = 8 + header_len;
    for (hf_name, info) in metadata.tensors() {
        let name = gguf_name(&hf_name, names)
            .ok_or_else(|| bad(format!("tensor `{hf_name}` has an unknown name")))?;
        let ty = match info.dtype {
            Dtype::F32 => TensorType::F32,
            Dtype::F16 => TensorType::F16,
            Dtype::BF16 => TensorType::BF16,
            other => {
                return Err(bad(format!(
                    "tensor `{hf_name}` has type {other:?}, expected F32, F16 or BF16"
                )));
            }
        };
        let (start, end) = info.data_offsets;
        if data_start.saturating_add(end as u64) > file_len {
            return Err(bad(format!("tensor `{hf_name}` ends behind the end of the file")));
        }
        let entry = Entry {
            info: WeightInfo {
                name: name.clone(),
                ty,
                dims: info.shape.iter().rev().copied().collect(),
                n_bytes: end - start,
            },
            file_idx,
            offset: data_start + start as u64,
        };
        if tensors.insert(name, entry).is_some() {
            return Err(bad(format!("tensor `{hf_name}` occurs twice")));
        }
    }
    Ok(())
}

impl WeightSource for SafetensorsFolder {
    fn infos(&self) -> Vec<WeightInfo> {
        self.tensors.values().map(|entry| entry.info.clone()).collect()
    }

    fn contains(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    fn tensor(&self, name: &str) -> Option<WeightTensor<'_>> {
        let entry = self.tensors.get(name)?;
        Some(WeightTensor {
            ty: entry.info.ty,
            dims: entry.info.dims.clone(),
            bytes: TensorBytes::in_file(&self.files[entry.file_idx], entry.offset, entry.info.n_bytes),
        })
    }
}

/// The GGUF name of a tensor; `None` where its Hugging Face name is not one of a decoder's. `names` go before the usual ones.
fn gguf_name(hf_name: &str, names: HfNames) -> Option<String> {
    let (stem, part) = hf_name.rsplit_once('.')?;
    let name = match stem {
        "model.embed_tokens" => "token_embd".to_owned(),
        "model.norm" => "output_norm".to_owned(),
        "lm_head" => "output".to_owned(),
        _ => {
            let (layer, name) = stem.strip_prefix("model.layers.")?.split_once('.')?;
            let layer_idx: usize = layer.parse().ok()?;
            let own = names.iter().find(|(hf_name, _)| *hf_name == name);
            let name = match name {
                _ if own.is_some() => own?.1,
                "input_layernorm" => "attn_norm",
                "self_attn.q_proj" => "attn_q",
                "self_attn.k_proj" => "attn_k",
                "self_attn.v_proj" => "attn_v",
                "self_attn.o_proj" => "attn_output",
                "self_attn.q_norm" => "attn_q_norm",
                "self_attn.k_norm" => "attn_k_norm",
                "self_attn.rotary_emb" => "rotary_emb",
                "post_attention_layernorm" => "ffn_norm",
                "mlp.gate_proj" => "ffn_gate",
                "mlp.up_proj" => "ffn_up",
                "mlp.down_proj" => "ffn_down",
                _ => return None,
            };
            format!("blk.{layer_idx}.{name}")
        }
    };
    Some(format!("{name}.{part}"))
}
