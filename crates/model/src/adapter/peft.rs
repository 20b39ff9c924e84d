//! LoRA adapters in folders, as the PEFT library writes them: `adapter_config.json` and `adapter_model.safetensors`.
//!
//! A module `M` of the base has the tensors `base_model.model.M.lora_A.weight`, `[rank, n_in]`, and `.lora_B.weight`,
//! `[n_out, rank]`. Its scale is alpha over the rank, or over the rank's root with `use_rslora`; `rank_pattern` and
//! `alpha_pattern` change both for some modules. Other features of adapters (DoRA, trained biases, modules saved whole) are
//! refused by name.
//!
//! Source: PEFT, `src/peft/tuners/lora/{config,layer}.py` and `utils/other.py` (`get_pattern_key`).

use std::{
    collections::{BTreeMap, HashMap},
    io,
    path::Path,
};

use safetensors::tensor::{Metadata, TensorInfo};
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, Error as _},
};
use serde_json::Value;
use tokenmill_backend::{Adapter, AdapterWeight, FloatMatrix};
use tokenmill_gguf::{RegularFile, TensorType};

use super::{
    MAX_ADAPTER_BYTES,
    reader::{AdapterReader, Form, bad, float_matrix},
};
use crate::{
    LoadError, RowFactors,
    hf_layout::{Change, HfLayout, Share},
    safetensors_folder::{plain_type, ungrouped_rows},
};

/// The fields of `adapter_config.json` that affect how an adapter is applied.
#[derive(Debug, Deserialize)]
struct Config {
    #[serde(default)]
    peft_type: Option<String>,
    r: usize,
    lora_alpha: f64,
    #[serde(default)]
    use_rslora: bool,
    #[serde(default)]
    use_dora: bool,
    #[serde(default)]
    bias: Option<String>,
    #[serde(default)]
    modules_to_save: Option<Vec<String>>,
    #[serde(default)]
    use_qalora: bool,
    /// How the matrices were initialized. Some kinds change the base weights too.
    #[serde(default)]
    init_lora_weights: Option<Value>,
    #[serde(default, deserialize_with = "in_order")]
    rank_pattern: Patterns<usize>,
    #[serde(default, deserialize_with = "in_order")]
    alpha_pattern: Patterns<f64>,
    #[serde(default)]
    alora_invocation_tokens: Option<Vec<u32>>,
}

/// Module names with the value for each, in the order of the file.
type Patterns<T> = Vec<(String, T)>;

fn in_order<'de, D: Deserializer<'de>, T: DeserializeOwned>(source: D) -> Result<Patterns<T>, D::Error> {
    let fields = serde_json::Map::deserialize(source)?.into_iter();
    fields
        .map(|(name, value)| Ok((name, serde_json::from_value(value).map_err(D::Error::custom)?)))
        .collect()
}

/// Prefixes of `init_lora_weights` values for which PEFT changes the base weights before it adds the
/// matrices.
const INITS_OF_OTHER_BASES: [&str; 3] = ["pissa", "olora", "corda"];

/// Largest accepted size of a header or configuration, in bytes.
const MAX_HEADER_BYTES: u64 = 100_000_000;
const MAX_CONFIG_BYTES: usize = 1 << 20;

/// Reads a folder.
pub(super) fn read(reader: &AdapterReader, folder: &Path) -> Result<Adapter, LoadError> {
    let [config_name, name] = ["adapter_config.json", "adapter_model.safetensors"];
    let [config_path, path] = [config_name, name].map(|name| folder.join(name));
    let config = read_file(folder, config_name, MAX_CONFIG_BYTES)?;
    if !path.exists() && folder.join("adapter_model.bin").exists() {
        return Err(bad(
            folder,
            "its weights are a PyTorch file only, which is a program and is not read; save them as safetensors",
        ));
    }
    let tensors = read_file(folder, name, MAX_ADAPTER_BYTES + MAX_HEADER_BYTES as usize)?;
    parse(reader, [&config_path, &path], &config, &tensors)
}

/// Parses the bytes of both files.
pub(super) fn parse(
    reader: &AdapterReader,
    [config_path, path]: [&Path; 2],
    config: &[u8],
    tensors: &[u8],
) -> Result<Adapter, LoadError> {
    let config = Config::parse(config).map_err(|reason| bad(config_path, reason))?;
    let weights = read_weights(reader, &config, tensors).map_err(|reason| bad(path, reason))?;
    reader.finish(path, Form::Peft, weights)
}

/// Reads a file of the folder. A link must resolve to a file inside the folder or, in a snapshot of the Hub,
/// inside its blobs, because clients of a server can load folders that other users created under its root.
fn read_file(folder: &Path, name: &str, max_bytes: usize) -> Result<Vec<u8>, LoadError> {
    RegularFile::read_in_folder(folder, name, max_bytes).map_err(|source| LoadError::Read {
        path: folder.join(name),
        source: if source.kind() == io::ErrorKind::InvalidInput {
            // The error must not tell a client where a link leads.
            let reason = "it is not a file in this folder, or it is a link out of it";
            io::Error::new(io::ErrorKind::InvalidInput, reason)
        } else {
            source
        },
    })
}

impl Config {
    fn parse(json: &[u8]) -> Result<Self, String> {
        let config: Self = serde_json::from_slice(json).map_err(|error| error.to_string())?;
        if let Some(found) = config.peft_type.as_deref().filter(|&found| found != "LORA") {
            return Err(format!("`peft_type` is {found}, expected LORA"));
        }
        if config.use_dora {
            return Err("`use_dora` is set, and only plain LoRA is supported".to_owned());
        }
        if config.use_qalora {
            return Err("`use_qalora` is set, and only plain LoRA is supported".to_owned());
        }
        let init = config
            .init_lora_weights
            .as_ref()
            .and_then(Value::as_str)
            .unwrap_or_default();
        if INITS_OF_OTHER_BASES
            .iter()
            .any(|name| init.to_lowercase().starts_with(name))
        {
            return Err(format!(
                "`init_lora_weights` is {init}, which changes the base's weights; convert the adapter to plain LoRA with PEFT"
            ));
        }
        if config.alora_invocation_tokens.is_some() {
            return Err("`alora_invocation_tokens` is set, and only plain LoRA is supported".to_owned());
        }
        if let Some(found) = config.bias.as_deref().filter(|&found| found != "none") {
            return Err(format!("`bias` is {found}; trained biases are not supported"));
        }
        if let Some(module) = config.modules_to_save.iter().flatten().next() {
            return Err(format!(
                "`modules_to_save` names {module}; modules that are saved whole are not supported"
            ));
        }
        let patterns = config.rank_pattern.iter().map(|(name, _)| name);
        let mut patterns = patterns.chain(config.alpha_pattern.iter().map(|(name, _)| name));
        if let Some(pattern) = patterns.find(|pattern| !is_plain(pattern)) {
            return Err(format!(
                "the pattern {pattern} is a regular expression; only names of modules are supported in rank_pattern and alpha_pattern"
            ));
        }
        Ok(config)
    }

    /// Returns the rank and scale of a module.
    fn rank_and_scale(&self, module: &str) -> (usize, f32) {
        let rank = find_pattern(&self.rank_pattern, module).unwrap_or(self.r);
        let alpha = find_pattern(&self.alpha_pattern, module).unwrap_or(self.lora_alpha);
        let divisor = if self.use_rslora {
            (rank as f64).sqrt()
        } else {
            rank as f64
        };
        (rank, (alpha / divisor) as f32)
    }
}

/// Returns whether a pattern uses no regular-expression syntax except anchors and the dots of names.
fn is_plain(pattern: &str) -> bool {
    !pattern
        .trim_start_matches('^')
        .trim_end_matches('$')
        .contains(|c: char| "*+?()[]{}|\\^$".contains(c))
}

/// Returns the value of the first pattern that matches the end of a module's name at a dot.
fn find_pattern<T: Copy>(patterns: &[(String, T)], module: &str) -> Option<T> {
    let is_match = |pattern: &str| {
        let (anchored, name) = match pattern.strip_prefix('^') {
            Some(name) => (true, name),
            None => (false, pattern),
        };
        let before = module.strip_suffix(name.trim_end_matches('$'));
        before.is_some_and(|before| before.is_empty() || !anchored && before.ends_with('.'))
    };
    (patterns.iter())
        .find(|(pattern, _)| is_match(pattern))
        .map(|&(_, value)| value)
}

/// A tensor of the safetensors file.
struct Stored<'a> {
    name: String,
    ty: TensorType,
    shape: [usize; 2],
    bytes: &'a [u8],
}

fn read_weights(reader: &AdapterReader, config: &Config, file: &[u8]) -> Result<Vec<AdapterWeight>, String> {
    let mut modules: BTreeMap<String, [Option<Stored<'_>>; 2]> = BTreeMap::new();
    for tensor in tensors(file)? {
        let (module, which) = module_of(&tensor.name).ok_or_else(|| {
            format!(
                "tensor `{}` is neither `lora_A` nor `lora_B` of a linear module; other tensors are not supported",
                tensor.name
            )
        })?;
        let module = module.to_owned();
        let place = &mut modules.entry(module).or_default()[which];
        if let Some(other) = place.replace(tensor) {
            return Err(format!("tensor `{}` is there under two names", other.name));
        }
    }
    let mut weights = Vec::with_capacity(modules.len());
    for (module, pair) in modules {
        let [Some(a), Some(b)] = pair else {
            let missing = if pair[0].is_none() { "lora_A" } else { "lora_B" };
            return Err(format!("module {module} has no {missing}"));
        };
        let ([rank, n_in], [n_out, rank_of_b]) = (a.shape, b.shape);
        let (expected, scale) = config.rank_and_scale(&module);
        if rank != rank_of_b || rank != expected || [rank, n_in, n_out].contains(&0) {
            return Err(format!(
                "module {module} has matrices of {:?} and {:?}, and rank {expected} in adapter_config.json",
                a.shape, b.shape
            ));
        }
        let (tensor, layout) = gguf_name(reader, &module)
            .ok_or_else(|| format!("module {module} does not belong to this model, or cannot be adapted"))?;
        let in_words = |tensor: &Stored<'_>, reason: String| format!("tensor `{}`: {reason}", tensor.name);
        let matrix = |tensor: &Stored<'_>| {
            float_matrix(tensor.ty, tensor.shape, tensor.bytes.to_vec())
                .map_err(|reason| in_words(tensor, reason))
        };
        let mut weight = AdapterWeight {
            scale,
            rank,
            n_in,
            n_out,
            a: matrix(&a)?,
            b: matrix(&b)?,
            tensor,
        };
        let changes: Vec<Change> = layout.changes_of(&weight.tensor).collect();
        for change in changes {
            apply(change, reader, &module, &mut weight)?;
        }
        // Weights of a folder are scaled by these factors as they are read; descriptors of GGUF files have
        // none.
        let factors = reader.descriptor.row_factors.iter();
        if let Some(factors) = factors
            .into_iter()
            .find(|factors| weight.tensor.ends_with(factors.tensor))
        {
            weight.b = multiplied(&weight.b, weight.n_out, factors).ok_or_else(|| {
                format!(
                    "module {module} has {} rows, which are not those of the weight",
                    weight.n_out
                )
            })?;
        }
        weights.push(weight);
    }
    Ok(weights)
}

/// Returns the GGUF name of a module's weight and the layout that contains it.
fn gguf_name(reader: &AdapterReader, module: &str) -> Option<(String, &'static HfLayout)> {
    reader.layouts().iter().find_map(|&layout| {
        let (name, share) = layout.gguf_name(&format!("{module}.weight"))?;
        (share == Share::Whole).then_some((name, layout))
    })
}

/// Returns the module of a tensor, and which of the module's two matrices it is.
fn module_of(tensor: &str) -> Option<(&str, usize)> {
    let name = tensor.strip_prefix("base_model.model.").unwrap_or(tensor);
    let matrices = [".lora_A.weight", ".lora_B.weight"];
    (matrices.iter().enumerate()).find_map(|(which, end)| Some((name.strip_suffix(end)?, which)))
}

/// Applies the conversion of a folder's layout to an adapter's change.
fn apply(
    change: Change,
    reader: &AdapterReader,
    module: &str,
    weight: &mut AdapterWeight,
) -> Result<(), String> {
    match change {
        // Adapter matrices have the same orientation for both kinds of linear modules.
        Change::Transpose => Ok(()),
        Change::UngroupQkv => {
            let order = ungrouped_rows(&reader.descriptor).filter(|order| order.len() == weight.n_out);
            let order = order.ok_or_else(|| {
                format!(
                    "module {module} has {} rows, which are not the queries, keys and values of all heads",
                    weight.n_out
                )
            })?;
            weight.b = reordered(&weight.b, weight.n_out, &order);
            Ok(())
        }
        _ => Err(format!(
            "module {module} changes its form while the model loads, and cannot be adapted"
        )),
    }
}

fn reordered(matrix: &FloatMatrix, n_rows: usize, order: &[usize]) -> FloatMatrix {
    let row_bytes = matrix.bytes.len() / n_rows;
    let rows = order
        .iter()
        .flat_map(|&row| &matrix.bytes[row * row_bytes..][..row_bytes]);
    FloatMatrix {
        ty: matrix.ty,
        bytes: rows.copied().collect(),
    }
}

/// Returns the matrix with its rows multiplied; `None` if the number of rows does not match the factors.
fn multiplied(matrix: &FloatMatrix, n_rows: usize, factors: &RowFactors) -> Option<FloatMatrix> {
    if factors.rows.iter().map(|(n_rows, _)| n_rows).sum::<usize>() != n_rows {
        return None;
    }
    let row_bytes = matrix.bytes.len() / n_rows;
    let mut row = vec![0.0; row_bytes / matrix.ty.row_bytes(1)?];
    let factors = (factors.rows.iter()).flat_map(|&(n_rows, factor)| std::iter::repeat_n(factor, n_rows));
    let mut bytes = Vec::with_capacity(n_rows * row.len() * size_of::<f32>());
    for (source, factor) in matrix.bytes.chunks_exact(row_bytes).zip(factors) {
        tokenmill_quant::dequantize_row(matrix.ty, source, &mut row).ok()?;
        bytes.extend(row.iter().flat_map(|value| (value * factor).to_le_bytes()));
    }
    Some(FloatMatrix {
        ty: TensorType::F32,
        bytes,
    })
}

/// Returns whether a tensor is a module's own weight or bias. PEFT saves these with the matrices of a head or
/// an embedding table, but the base model already has them.
fn is_of_base(tensor: &str, all: &HashMap<String, &TensorInfo>) -> bool {
    let module = [".base_layer.weight", ".base_layer.bias"]
        .into_iter()
        .find_map(|end| tensor.strip_suffix(end));
    module.is_some_and(|module| all.contains_key(&format!("{module}.lora_A.weight")))
}

/// Reads an adapter's tensors from a safetensors file. All must have two dimensions.
fn tensors(file: &[u8]) -> Result<Vec<Stored<'_>>, String> {
    let (len, rest) = file.split_at_checked(8).ok_or("it has no header")?;
    let len = u64::from_le_bytes(len.try_into().expect("8 bytes"));
    if len > MAX_HEADER_BYTES {
        return Err(format!("a header cannot have {len} bytes"));
    }
    let (header, data) = (rest.split_at_checked(len as usize))
        .ok_or_else(|| format!("a header of {len} bytes does not fit the file"))?;
    let metadata: Metadata = serde_json::from_slice(header).map_err(|error| error.to_string())?;
    let mut tensors = Vec::new();
    let all = metadata.tensors();
    for (name, &info) in &all {
        if is_of_base(name, &all) {
            continue;
        }
        let name = name.clone();
        let ty = plain_type(&name, info.dtype)?;
        let &[n_rows, n_cols] = &info.shape[..] else {
            return Err(format!(
                "tensor `{name}` has shape {:?}, expected a matrix",
                info.shape
            ));
        };
        let (start, end) = info.data_offsets;
        let bytes = data
            .get(start..end)
            .ok_or_else(|| format!("tensor `{name}` ends behind the end of the file"))?;
        tensors.push(Stored {
            ty,
            shape: [n_rows, n_cols],
            bytes,
            name,
        });
    }
    // The safetensors reader returns tensors in arbitrary order.
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(tensors)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(fields: &str) -> Result<Config, String> {
        Config::parse(format!(r#"{{"peft_type":"LORA","r":8,"lora_alpha":16{fields}}}"#).as_bytes())
    }

    #[test]
    fn the_scale_follows_rank_alpha_and_patterns() {
        let check = |fields: &str, expected: (usize, f32)| {
            let found = config(fields)
                .unwrap()
                .rank_and_scale("model.layers.1.self_attn.q_proj");
            assert_eq!(found, expected, "{fields}");
        };
        check("", (8, 2.0));
        check(r#","use_rslora":true,"rank_pattern":{"q_proj":16}"#, (16, 4.0));
        check(r#","rank_pattern":{"layers.1.self_attn.q_proj":4}"#, (4, 4.0));
        check(r#","rank_pattern":{"proj":4,"k_proj":2}"#, (8, 2.0));
        check(
            r#","alpha_pattern":{"^model.layers.1.self_attn.q_proj$":8}"#,
            (8, 1.0),
        );
        check(r#","alpha_pattern":{"^q_proj":8}"#, (8, 2.0));
        // The first in file order, as in PEFT.
        check(
            r#","alpha_pattern":{"q_proj":32,"layers.1.self_attn.q_proj":8}"#,
            (8, 4.0),
        );
    }

    #[test]
    fn what_is_more_than_plain_lora_is_refused_by_name() {
        for (fields, part) in [
            (r#","use_dora":true"#, "use_dora"),
            (r#","bias":"all""#, "bias"),
            (r#","use_qalora":true"#, "use_qalora"),
            (r#","init_lora_weights":"pissa_niter_4""#, "pissa_niter_4"),
            (r#","init_lora_weights":"olora""#, "olora"),
            (r#","init_lora_weights":"CorDA""#, "CorDA"),
            (r#","modules_to_save":["lm_head"]"#, "lm_head"),
            (r#","rank_pattern":{".*q_proj":4}"#, ".*q_proj"),
        ] {
            assert!(config(fields).unwrap_err().contains(part), "{fields}");
        }
        assert!(config(r#","modules_to_save":null,"bias":"none""#).is_ok());
        assert!(
            config(r#","init_lora_weights":true"#).is_ok()
                && config(r#","init_lora_weights":"gaussian""#).is_ok()
        );
    }
}
