//! [`ImportanceMatrix`]: the importance of each input of each matrix, measured on a text.
//!
//! It is read from its own file, in llama.cpp's GGUF form or its older one. Invariant: all numbers are finite
//! and not negative, and each entry has exactly the file's numbers; whether they fit a model is checked by
//! the quantizer.
//!
//! Source: ggml-org/llama.cpp, `tools/imatrix/README.md`, `tools/quantize/quantize.cpp`.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
};

use tokenmill_gguf::{
    GgufFile, Metadata, ReadAt as _, RegularFile, TensorInfo, TensorType, Value, looks_like,
};

use crate::{ConvertError, TypeChoice, choice::is_embedding, planned::n_matrices};

/// Largest accepted file: the largest models need some hundred megabytes.
const MAX_BYTES: u64 = 4 << 30;

/// Longest part of the matrix's file name that llama.cpp stores, in bytes.
const MAX_NAME_BYTES: usize = 127;

/// The mean squares of the inputs of a model's matrices.
#[derive(Clone, Debug)]
pub struct ImportanceMatrix {
    /// By tensor name: one number per column, for all experts in turn.
    entries: HashMap<String, Vec<f32>>,
    /// The texts used for the measurement.
    datasets: Vec<String>,
    n_chunks: Option<u32>,
    /// The measured model, if the file states it.
    model: MeasuredModel,
    path: PathBuf,
    is_partial_allowed: bool,
}

/// A model's names for itself. Shapes alone do not distinguish two models of the same design.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MeasuredModel {
    /// `general.architecture`.
    pub(crate) architecture: Option<String>,
    /// `general.name`.
    pub(crate) name: Option<String>,
}

impl MeasuredModel {
    /// Keys of the measured model in an importance matrix file. They are specific to this project; other
    /// programs ignore them.
    pub(crate) const ARCHITECTURE_KEY: &str = "tokenmill.imatrix.architecture";
    pub(crate) const NAME_KEY: &str = "tokenmill.imatrix.name";

    /// Reads the names from a model's metadata.
    pub(crate) fn of_model(metadata: &Metadata) -> Self {
        Self::read(metadata, ["general.architecture", "general.name"])
    }

    fn read(metadata: &Metadata, keys: [&str; 2]) -> Self {
        // A value of another type counts as missing.
        let [architecture, name] = keys.map(|key| metadata.opt_str(key).ok().flatten().map(str::to_owned));
        Self { architecture, name }
    }
}

impl ImportanceMatrix {
    /// Reads a file: GGUF, or llama.cpp's older form.
    ///
    /// # Errors
    /// [`ConvertError::Io`] and [`ConvertError::NoImportanceMatrix`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, ConvertError> {
        let path = path.as_ref();
        let io_error = |source| ConvertError::Io {
            what: "read",
            path: path.to_owned(),
            source,
        };
        let bad = |reason: String| ConvertError::NoImportanceMatrix {
            path: path.to_owned(),
            reason,
        };
        // A device has no length and no end.
        let file = RegularFile::open(path).map_err(io_error)?;
        let n_bytes = file.n_bytes();
        if n_bytes > MAX_BYTES {
            return Err(bad(format!("it has {n_bytes} bytes, which is far too many")));
        }
        let mut magic = [0; 4];
        let is_gguf = file
            .read_exact_at(0, &mut magic)
            .is_ok_and(|()| &magic == b"GGUF");
        let read = if is_gguf {
            read_gguf(&GgufFile::open(path).map_err(|error| bad(error.to_string()))?)
        } else {
            let mut bytes = vec![0; n_bytes as usize];
            file.read_exact_at(0, &mut bytes).map_err(io_error)?;
            read_old(&bytes)
        };
        let (entries, datasets, n_chunks, model) = read.map_err(bad)?;
        if entries.is_empty() {
            return Err(bad("it has no entries".to_owned()));
        }
        for (name, numbers) in &entries {
            if let Some(number) = numbers.iter().find(|x| !x.is_finite() || **x < 0.0) {
                return Err(bad(format!(
                    "`{name}` has {number}, which is not a mean of squares"
                )));
            }
        }
        Ok(Self {
            entries,
            datasets,
            n_chunks,
            model,
            path: path.to_owned(),
            is_partial_allowed: false,
        })
    }

    /// Allows the matrix to lack all tensors of a kind or of a layer. By default that means another model's
    /// matrix.
    #[must_use]
    pub fn allow_partial(mut self) -> Self {
        self.is_partial_allowed = true;
        self
    }

    /// Returns the numbers of a tensor.
    pub fn get(&self, name: &str) -> Option<&[f32]> {
        self.entries.get(name).map(Vec::as_slice)
    }

    /// Returns the names of the tensors with numbers, in arbitrary order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// Returns the number of tensors with numbers.
    pub fn n_entries(&self) -> usize {
        self.entries.len()
    }

    /// Returns the texts used for the measurement.
    pub fn datasets(&self) -> &[String] {
        &self.datasets
    }

    /// Returns the number of measured chunks of text, if the file states it.
    pub fn n_chunks(&self) -> Option<u32> {
        self.n_chunks
    }

    /// Returns the name of the measured model, if the file states one and it differs from the model with this
    /// metadata.
    pub(crate) fn other_model(&self, metadata: &Metadata) -> Option<String> {
        let own = MeasuredModel::of_model(metadata);
        let differs = |measured: &Option<String>, own: &Option<String>| match (measured, own) {
            (Some(measured), Some(own)) => measured != own,
            _ => false,
        };
        let MeasuredModel { architecture, name } = &self.model;
        if differs(name, &own.name) {
            name.as_ref().map(|name| format!("`{name}`"))
        } else if differs(architecture, &own.architecture) {
            architecture
                .as_ref()
                .map(|architecture| format!("of the architecture `{architecture}`"))
        } else {
            None
        }
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the numbers of a tensor to be quantized from type `before`: one per column of each of its
    /// matrices. `None` if there are none, or if the type does not change.
    ///
    /// # Errors
    /// [`ConvertError::ImportanceShape`], if the tensor belongs to another model.
    pub(crate) fn of_tensor(
        &self,
        info: &TensorInfo,
        before: TensorType,
        choice: &TypeChoice,
    ) -> Result<Option<&[f32]>, ConvertError> {
        if choice.ty == before {
            return Ok(None);
        }
        let Some(numbers) = self.get(&info.name) else {
            return Ok(None);
        };
        let expected = info.row_len() * n_matrices(info);
        if numbers.len() == expected {
            Ok(Some(numbers))
        } else if is_embedding(&info.name) {
            Ok(None)
        } else {
            Err(ConvertError::ImportanceShape {
                name: info.name.clone(),
                expected,
                found: numbers.len(),
            })
        }
    }

    /// Returns whether the matrix may lack all tensors of a kind or of a layer.
    pub(crate) fn is_partial_allowed(&self) -> bool {
        self.is_partial_allowed
    }

    /// Returns the keys that describe the matrix in a quantized file.
    pub(crate) fn keys(&self) -> Vec<(&'static str, Value)> {
        let path = self.path.to_string_lossy();
        let mut keys = vec![("quantize.imatrix.file", Value::from(cut(&path)))];
        if let Some(dataset) = self.datasets.first() {
            keys.push(("quantize.imatrix.dataset", cut(dataset).into()));
        }
        keys.push(("quantize.imatrix.entries_count", (self.n_entries() as u32).into()));
        if let Some(n_chunks) = self.n_chunks.filter(|&n_chunks| n_chunks > 0) {
            keys.push(("quantize.imatrix.chunks_count", n_chunks.into()));
        }
        keys
    }
}

/// Returns the beginning of a text, limited as in llama.cpp.
fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_NAME_BYTES)]
}

/// Entries, texts, number of chunks, and the model.
type Contents = (HashMap<String, Vec<f32>>, Vec<String>, Option<u32>, MeasuredModel);

/// Reads sums of squares and their counts: `NAME.in_sum2` and `NAME.counts`.
fn read_gguf(file: &GgufFile) -> Result<Contents, String> {
    const SUMS: &str = ".in_sum2";
    let metadata = file.metadata();
    let text = |error: tokenmill_gguf::GgufError| error.to_string();
    match metadata.opt_str("general.type").map_err(text)? {
        Some("imatrix") => {}
        _ => return Err("`general.type` is not `imatrix`; the file is a model".to_owned()),
    }
    let floats = |name: &str| -> Result<(Vec<f32>, Vec<usize>), String> {
        let tensor = file
            .tensor(name)
            .ok_or_else(|| format!("tensor `{name}` is missing"))?;
        if tensor.info.ty != TensorType::F32 {
            return Err(format!(
                "tensor `{name}` has type {}, expected F32",
                tensor.info.ty
            ));
        }
        let mut bytes = vec![0; tensor.bytes.len()];
        tensor
            .bytes
            .read_into(0, &mut bytes)
            .map_err(|error| error.to_string())?;
        let (numbers, _) = bytes.as_chunks::<4>();
        Ok((
            numbers.iter().map(|&x| f32::from_le_bytes(x)).collect(),
            tensor.info.dims.clone(),
        ))
    };
    let mut entries = HashMap::new();
    for info in file.tensors() {
        let Some(name) = info.name.strip_suffix(SUMS) else {
            continue;
        };
        let (mut sums, dims) = floats(&info.name)?;
        let (counts, _) = floats(&format!("{name}.counts"))?;
        if counts.is_empty() || sums.len() != dims[0] * counts.len() {
            return Err(format!(
                "`{name}` has {} sums and {} counts, expected {} sums for each",
                sums.len(),
                counts.len(),
                dims[0]
            ));
        }
        for (sums, &count) in sums.chunks_exact_mut(dims[0]).zip(&counts) {
            for sum in sums {
                // No token reached this expert, so all its inputs count alike.
                *sum = if count > 0.0 { *sum / count } else { 1.0 };
            }
        }
        entries.insert(name.to_owned(), sums);
    }
    let datasets = metadata.opt_string_array("imatrix.datasets").map_err(text)?;
    let datasets = datasets.map_or_else(Vec::new, |names| names.iter().map(str::to_owned).collect());
    let n_chunks = metadata.opt_u32("imatrix.chunk_count").map_err(text)?;
    let keys = [MeasuredModel::ARCHITECTURE_KEY, MeasuredModel::NAME_KEY];
    Ok((entries, datasets, n_chunks, MeasuredModel::read(metadata, keys)))
}

/// Reads the older form: the number of entries; for each its name, the number of calls, and numbers
/// multiplied by that; then optionally the number of chunks and the name of the text.
fn read_old(bytes: &[u8]) -> Result<Contents, String> {
    let mut rest = bytes;
    let short = || "it ends too early".to_owned();
    let mut entries = HashMap::new();
    let n_entries = take_i32(&mut rest).ok_or_else(short)?;
    if !(1..=1_000_000).contains(&n_entries) {
        const TELLING_BYTES: usize = 512;
        return Err(format!(
            "it starts with `{}` and looks like {}",
            bytes[..4].escape_ascii(),
            looks_like(&bytes[..bytes.len().min(TELLING_BYTES)])
        ));
    }
    for _ in 0..n_entries {
        let name = take_text(&mut rest).ok_or_else(short)?;
        let n_calls = take_i32(&mut rest).ok_or_else(short)?;
        let n_numbers = take_i32(&mut rest).ok_or_else(short)?;
        let n_numbers = usize::try_from(n_numbers).map_err(|_| short())?;
        let (numbers, tail) = rest
            .split_at_checked(n_numbers.saturating_mul(4))
            .ok_or_else(short)?;
        rest = tail;
        let divisor = if n_calls > 0 { n_calls as f32 } else { 1.0 };
        let numbers = numbers
            .as_chunks::<4>()
            .0
            .iter()
            .map(|&x| f32::from_le_bytes(x) / divisor);
        entries.insert(name, numbers.collect());
    }
    let n_chunks = take_i32(&mut rest).and_then(|n| u32::try_from(n).ok());
    let datasets = take_text(&mut rest).into_iter().collect();
    Ok((entries, datasets, n_chunks, MeasuredModel::default()))
}

fn take_i32(rest: &mut &[u8]) -> Option<i32> {
    let (number, tail) = rest.split_first_chunk::<4>()?;
    *rest = tail;
    Some(i32::from_le_bytes(*number))
}

fn take_text(rest: &mut &[u8]) -> Option<String> {
    let len = usize::try_from(take_i32(rest)?).ok()?;
    let (text, tail) = rest.split_at_checked(len)?;
    *rest = tail;
    String::from_utf8(text.to_vec()).ok()
}

#[cfg(test)]
mod tests {
    use tokenmill_gguf::GgufWriter;

    use super::*;

    fn old_form(n_calls: i32, numbers: &[f32]) -> Vec<u8> {
        let name = b"blk.0.attn_q.weight";
        let mut bytes = 1_i32.to_le_bytes().to_vec();
        bytes.extend((name.len() as i32).to_le_bytes());
        bytes.extend(name);
        bytes.extend(n_calls.to_le_bytes());
        bytes.extend((numbers.len() as i32).to_le_bytes());
        bytes.extend(numbers.iter().flat_map(|x| x.to_le_bytes()));
        bytes.extend(7_i32.to_le_bytes());
        bytes.extend(4_i32.to_le_bytes());
        bytes.extend(b"wiki");
        bytes
    }

    #[test]
    fn the_older_form_is_read_whole_or_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("imatrix.dat");
        let bytes = old_form(2, &[1.0, 4.0]);
        std::fs::write(&path, &bytes).unwrap();
        let matrix = ImportanceMatrix::open(&path).unwrap();
        assert_eq!(matrix.get("blk.0.attn_q.weight"), Some(&[0.5, 2.0][..]));
        assert_eq!(
            (matrix.n_chunks(), matrix.datasets()),
            (Some(7), &["wiki".to_owned()][..])
        );
        // The text and the chunks are optional; with less the file is incomplete.
        let n_needed = bytes.len() - 12;
        for len in 0..bytes.len() {
            std::fs::write(&path, &bytes[..len]).unwrap();
            assert_eq!(ImportanceMatrix::open(&path).is_ok(), len >= n_needed, "{len}");
        }
        for (number, text) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf"), (-1.5, "-1.5")] {
            std::fs::write(&path, old_form(1, &[1.0, number])).unwrap();
            let error = ImportanceMatrix::open(&path).unwrap_err().to_string();
            let end = format!("`blk.0.attn_q.weight` has {text}, which is not a mean of squares");
            assert!(error.ends_with(&end), "{error}");
        }
    }

    #[test]
    fn sums_are_divided_by_the_counts_of_each_expert() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("imatrix.gguf");
        let write = |kind: &str, n_counts: u64| {
            let mut writer = GgufWriter::new();
            writer.metadata_mut().insert("general.type", kind).unwrap();
            writer
                .add_tensor("x.weight.in_sum2", TensorType::F32, &[2, 2])
                .unwrap();
            writer
                .add_tensor("x.weight.counts", TensorType::F32, &[1, n_counts])
                .unwrap();
            let mut out = writer
                .write_header(std::fs::File::create(&path).unwrap())
                .unwrap();
            let bytes = |numbers: &[f32]| numbers.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
            out.write(&bytes(&[2.0, 4.0, 5.0, 6.0])).unwrap();
            out.write(&bytes(&[2.0, 0.0, 3.0][..n_counts as usize])).unwrap();
            out.finish().unwrap();
            ImportanceMatrix::open(&path)
        };
        assert_eq!(
            write("imatrix", 2).unwrap().get("x.weight"),
            Some(&[1.0, 2.0, 1.0, 1.0][..])
        );
        let error = write("imatrix", 3).unwrap_err().to_string();
        assert!(error.contains("has 4 sums and 3 counts"), "{error}");
        let error = write("model", 2).unwrap_err().to_string();
        assert!(error.ends_with("the file is a model"), "{error}");
    }
}
