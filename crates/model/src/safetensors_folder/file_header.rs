//! [`FileHeader`]: the tensors described in a `.safetensors` file, and the list of a folder's files.
//!
//! Invariant: every returned tensor is non-empty and ends within its file.
//!
//! Source: <https://github.com/huggingface/safetensors>, "Format".

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use safetensors::tensor::{Metadata, TensorInfo};
use tokenmill_gguf::{ReadAt, RegularFile, TensorType};

use crate::{LoadError, WeightInfo, tensor_view::Stored};

/// The header of a file.
pub(crate) struct FileHeader {
    metadata: Metadata,
    data_start: u64,
}

/// Largest accepted header, as in the format's own reader.
const MAX_HEADER_BYTES: u64 = 100_000_000;

impl FileHeader {
    /// Reads the header of a file.
    pub(crate) fn read(file: &RegularFile) -> Result<Self, LoadError> {
        let cannot_read = |source| LoadError::Read {
            path: file.path().to_owned(),
            source,
        };
        let file_len = file.n_bytes();
        if file_len < 8 {
            return Err(bad(
                file,
                format!("a file of {file_len} bytes has no header; fetch it again"),
            ));
        }
        let mut header_len = [0; 8];
        file.read_exact_at(0, &mut header_len).map_err(cannot_read)?;
        let header_len = u64::from_le_bytes(header_len);
        if header_len > MAX_HEADER_BYTES.min(file_len - 8) {
            return Err(bad(
                file,
                format!("a header of {header_len} bytes does not fit the file"),
            ));
        }
        let mut header = vec![0; header_len as usize];
        file.read_exact_at(8, &mut header).map_err(cannot_read)?;
        let metadata = serde_json::from_slice(&header).map_err(|error| bad(file, error.to_string()))?;
        Ok(Self {
            metadata,
            data_start: 8 + header_len,
        })
    }

    /// Returns the tensors by their names in the file, in arbitrary order.
    pub(crate) fn tensors(&self) -> HashMap<String, &TensorInfo> {
        self.metadata.tensors()
    }
}

fn bad(file: &RegularFile, reason: String) -> LoadError {
    LoadError::BadConfig {
        path: file.path().to_owned(),
        reason,
    }
}

/// Returns a tensor of a file under a given name and type.
pub(crate) fn stored_tensor(
    file: &Arc<RegularFile>,
    header: &FileHeader,
    hf_name: &str,
    tensor: &TensorInfo,
    (name, ty): (&str, TensorType),
) -> Result<(WeightInfo, Box<dyn ReadAt>), LoadError> {
    // After this check, later code can divide by row lengths and list rows.
    if tensor.shape.contains(&0) {
        return Err(bad(
            file,
            format!(
                "tensor `{hf_name}` has shape {:?}, which holds nothing",
                tensor.shape
            ),
        ));
    }
    let (start, end) = tensor.data_offsets;
    if header.data_start.saturating_add(end as u64) > file.n_bytes() {
        return Err(bad(
            file,
            format!("tensor `{hf_name}` ends behind the end of the file"),
        ));
    }
    let info = WeightInfo {
        name: name.to_owned(),
        ty,
        dims: tensor.shape.iter().rev().copied().collect(),
        n_bytes: end - start,
        stored: None,
    };
    let bytes = Stored {
        file: Arc::clone(file),
        offset: header.data_start + start as u64,
    };
    Ok((info, Box::new(bytes)))
}

/// Returns the paths of all `.safetensors` files of a folder, by name.
///
/// # Errors
/// [`LoadError`], if the folder has none or lacks a part of the weights.
pub(crate) fn weight_files(folder: &Path) -> Result<Vec<PathBuf>, LoadError> {
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
    check_parts(folder, &paths)?;
    Ok(paths)
}

/// Refuses a folder that lacks files named by its index or implied by the other files' names.
fn check_parts(folder: &Path, paths: &[PathBuf]) -> Result<(), LoadError> {
    let is_there = |name: &str| {
        paths
            .iter()
            .any(|path| path.file_name().is_some_and(|own| own == name))
    };
    let missing = |name: String| LoadError::BadConfig {
        path: folder.to_owned(),
        reason: format!("`{name}` is missing, a part of the weights; fetch it again"),
    };
    let index = folder.join("model.safetensors.index.json");
    if let Ok(bytes) = RegularFile::read(&index, MAX_HEADER_BYTES as usize) {
        let index: serde_json::Value =
            serde_json::from_slice(&bytes).map_err(|error| LoadError::BadConfig {
                path: index,
                reason: error.to_string(),
            })?;
        let names = index["weight_map"].as_object().into_iter().flatten();
        let mut names: Vec<&str> = names.filter_map(|(_, name)| name.as_str()).collect();
        names.sort_unstable();
        if let Some(name) = names.into_iter().find(|name| !is_there(name)) {
            return Err(missing(name.to_owned()));
        }
    }
    for path in paths {
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        let parts = name.strip_suffix(".safetensors").and_then(|stem| {
            let (stem, count) = stem.rsplit_once("-of-")?;
            let (stem, _) = stem.rsplit_once('-')?;
            Some((stem, count, count.parse::<usize>().ok()?))
        });
        // A number larger than any real count of parts is not a count.
        if let Some((stem, count, n_parts)) = parts.filter(|(_, count, n)| count.len() == 5 && *n <= 10_000) {
            let names = (1..=n_parts).map(|part| format!("{stem}-{part:05}-of-{count}.safetensors"));
            if let Some(name) = names.into_iter().find(|name| !is_there(name)) {
                return Err(missing(name));
            }
        }
    }
    Ok(())
}
