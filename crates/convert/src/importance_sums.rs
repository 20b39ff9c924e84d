//! [`ImportanceSums`]: accumulates an importance matrix while a text is computed.
//!
//! Invariant: sums are kept in double precision, so that the order of a long text's tokens does not matter,
//! and an entry keeps its shape.
//!
//! Source: ggml-org/llama.cpp, `tools/imatrix/imatrix.cpp` (the form of the file).

use std::{collections::BTreeMap, io::BufWriter, path::Path};

use tokenmill_gguf::{GgufError, GgufWriter, Metadata, StringArray, TensorType};

use crate::{ConvertError, importance::MeasuredModel, output_file::OutputFile};

/// Sums of the squared inputs of each matrix.
#[derive(Clone, Debug, Default)]
pub struct ImportanceSums {
    /// Sums by tensor name.
    entries: BTreeMap<String, Entry>,
    model: MeasuredModel,
}

/// The sums of a tensor's matrices.
#[derive(Clone, Debug)]
struct Entry {
    n_columns: usize,
    /// `[n_matrices, n_columns]`.
    sums: Vec<f64>,
    /// Number of input rows of each matrix; a single number if every row goes through all matrices.
    counts: Vec<f64>,
}

/// Identifies a matrix whose inputs are measured.
#[derive(Clone, Copy, Debug)]
pub struct MeasuredMatrix<'a> {
    /// Name of the tensor.
    pub tensor: &'a str,
    /// Number of matrices in the tensor.
    pub n_matrices: usize,
    /// Index of the matrix in the tensor.
    pub matrix_idx: usize,
    /// Whether each row selects its matrices, as with experts, so that each matrix has its own count.
    pub is_chosen: bool,
    /// Width of the inputs.
    pub n_columns: usize,
}

impl ImportanceSums {
    /// Starts without entries.
    pub fn new() -> Self {
        Self::default()
    }

    /// Stores the names of the measured model: its file's `general.architecture` and `general.name`.
    #[must_use]
    pub fn measured_on(mut self, metadata: &Metadata) -> Self {
        self.model = MeasuredModel::of_model(metadata);
        self
    }

    /// Adds input rows of a matrix, `rows: [n, n_columns]`, scaled by `scale`. Tensors outside of layers are skipped, as in llama.cpp.
    ///
    /// # Panics
    /// If a tensor has another shape than before, or there is no such matrix.
    pub fn add(&mut self, matrix: MeasuredMatrix<'_>, rows: &[f32], scale: f32) {
        let MeasuredMatrix {
            tensor,
            n_matrices,
            matrix_idx,
            is_chosen,
            n_columns,
        } = matrix;
        if !tensor.starts_with("blk.") || n_columns == 0 {
            return;
        }
        let n_counts = if is_chosen { n_matrices } else { 1 };
        if !self.entries.contains_key(tensor) {
            let entry = Entry {
                n_columns,
                sums: vec![0.0; n_matrices * n_columns],
                counts: vec![0.0; n_counts],
            };
            self.entries.insert(tensor.to_owned(), entry);
        }
        let entry = self.entries.get_mut(tensor).expect("it was put there");
        assert!(
            entry.n_columns == n_columns
                && entry.sums.len() == n_matrices * n_columns
                && entry.counts.len() == n_counts,
            "a tensor keeps its shape"
        );
        let sums = &mut entry.sums[matrix_idx * n_columns..][..n_columns];
        let scale = f64::from(scale) * f64::from(scale);
        for row in rows.chunks_exact(n_columns) {
            for (sum, &x) in sums.iter_mut().zip(row) {
                *sum += f64::from(x) * f64::from(x) * scale;
            }
            // Matrices that share all rows use the first one's count.
            if is_chosen {
                entry.counts[matrix_idx] += 1.0;
            } else if matrix_idx == 0 {
                entry.counts[0] += 1.0;
            }
        }
    }

    /// Returns the number of tensors with sums.
    pub fn n_entries(&self) -> usize {
        self.entries.len()
    }

    /// Returns the first tensor with sums that are not finite.
    pub fn not_finite(&self) -> Option<&str> {
        let mut entries = self.entries.iter();
        let found = entries.find(|(_, entry)| entry.sums.iter().any(|sum| !sum.is_finite()));
        found.map(|(name, _)| name.as_str())
    }

    /// Writes the importance matrix in GGUF form, as measured on `n_chunks` of `chunk_tokens` tokens of a
    /// text called `dataset`.
    ///
    /// # Errors
    /// [`ConvertError::Io`] and [`ConvertError::Gguf`].
    pub fn write(
        &self,
        path: impl AsRef<Path>,
        dataset: &str,
        n_chunks: u32,
        chunk_tokens: u32,
    ) -> Result<(), ConvertError> {
        let path = path.as_ref();
        let writer = self.header(dataset, n_chunks, chunk_tokens)?;
        let file = OutputFile::create(path)?;
        file.check_room(writer.n_file_bytes()?)?;
        self.write_to(file, writer, path)
    }

    /// Checks that there is room for the file that [`Self::write`] writes. The sums of one chunk have the
    /// same size as those of all, so this can be called before a long run.
    ///
    /// # Errors
    /// [`ConvertError::NoRoom`], or an error that the file cannot be written.
    pub fn check_room(
        &self,
        path: impl AsRef<Path>,
        dataset: &str,
        n_chunks: u32,
        chunk_tokens: u32,
    ) -> Result<(), ConvertError> {
        let n_bytes = self.header(dataset, n_chunks, chunk_tokens)?.n_file_bytes()?;
        let path = path.as_ref();
        if OutputFile::is_in_place(path) {
            return Ok(());
        }
        OutputFile::create(path)?.check_room(n_bytes)
    }

    /// Returns the metadata and the list of tensors.
    fn header(&self, dataset: &str, n_chunks: u32, chunk_tokens: u32) -> Result<GgufWriter, ConvertError> {
        let mut writer = GgufWriter::new();
        let metadata = writer.metadata_mut();
        metadata.insert("general.type", "imatrix")?;
        metadata.insert("imatrix.datasets", [dataset].into_iter().collect::<StringArray>())?;
        metadata.insert("imatrix.chunk_count", n_chunks)?;
        metadata.insert("imatrix.chunk_size", chunk_tokens)?;
        for (key, text) in [
            (MeasuredModel::ARCHITECTURE_KEY, &self.model.architecture),
            (MeasuredModel::NAME_KEY, &self.model.name),
        ] {
            if let Some(text) = text {
                metadata.insert(key, text.as_str())?;
            }
        }
        for (name, entry) in &self.entries {
            let n_counts = entry.counts.len();
            let dims = [(entry.sums.len() / n_counts) as u64, n_counts as u64];
            writer.add_tensor(&format!("{name}.in_sum2"), TensorType::F32, &dims)?;
            writer.add_tensor(&format!("{name}.counts"), TensorType::F32, &[1, n_counts as u64])?;
        }
        Ok(writer)
    }

    fn write_to(&self, file: OutputFile, writer: GgufWriter, path: &Path) -> Result<(), ConvertError> {
        let write_error = |error| match error {
            GgufError::Write { reason } => ConvertError::Io {
                what: "write to",
                path: path.to_owned(),
                source: reason,
            },
            other => other.into(),
        };
        let mut out = writer.write_header(BufWriter::new(file)).map_err(write_error)?;
        for entry in self.entries.values() {
            for numbers in [&entry.sums, &entry.counts] {
                let bytes: Vec<u8> = numbers.iter().flat_map(|&x| (x as f32).to_le_bytes()).collect();
                out.write(&bytes).map_err(write_error)?;
            }
        }
        let output = out.finish().map_err(write_error)?;
        let file = output.into_inner().map_err(|error| ConvertError::Io {
            what: "write to",
            path: path.to_owned(),
            source: error.into_error(),
        })?;
        file.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ImportanceMatrix;

    fn matrix(tensor: &str, n_columns: usize) -> MeasuredMatrix<'_> {
        MeasuredMatrix {
            tensor,
            n_matrices: 1,
            matrix_idx: 0,
            is_chosen: false,
            n_columns,
        }
    }

    #[test]
    fn matrices_that_all_rows_go_through_have_one_count() {
        let mut sums = ImportanceSums::new();
        for row in [[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]] {
            for (matrix_idx, number) in row.into_iter().enumerate() {
                let head = MeasuredMatrix {
                    n_matrices: 3,
                    matrix_idx,
                    ..matrix("blk.0.attn_k_b.weight", 1)
                };
                sums.add(head, &[number], 1.0);
            }
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("imatrix.gguf");
        sums.write(&path, "wiki.txt", 1, 2).unwrap();
        let file = tokenmill_gguf::GgufFile::open(&path).unwrap();
        let dims = |name: &str| file.tensor(name).unwrap().info.dims.clone();
        assert_eq!(dims("blk.0.attn_k_b.weight.in_sum2"), [3, 1]);
        assert_eq!(dims("blk.0.attn_k_b.weight.counts"), [1, 1]);
        let matrix = ImportanceMatrix::open(&path).unwrap();
        assert_eq!(matrix.get("blk.0.attn_k_b.weight"), Some(&[5.0, 4.0, 5.0][..]));
    }

    #[test]
    fn what_is_written_reads_back_as_means_of_squares() {
        let mut sums = ImportanceSums::new();
        sums.add(matrix("blk.0.attn_q.weight", 2), &[1.0, 2.0, 3.0, 4.0], 1.0);
        let expert = MeasuredMatrix {
            n_matrices: 2,
            matrix_idx: 1,
            is_chosen: true,
            ..matrix("blk.0.ffn_up_exps.weight", 1)
        };
        sums.add(expert, &[6.0], 0.5);
        sums.add(matrix("output.weight", 2), &[1.0, 1.0], 1.0);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("imatrix.gguf");
        sums.write(&path, "wiki.txt", 3, 512).unwrap();
        let read = ImportanceMatrix::open(&path).unwrap();
        assert_eq!((read.n_entries(), sums.not_finite()), (2, None));
        assert_eq!(read.get("blk.0.attn_q.weight"), Some(&[5.0, 10.0][..]));
        // No row went to the first expert.
        assert_eq!(read.get("blk.0.ffn_up_exps.weight"), Some(&[1.0, 9.0][..]));
        assert_eq!(
            (read.n_chunks(), read.datasets()),
            (Some(3), &["wiki.txt".to_owned()][..])
        );
        // If the file names no model, no model counts as another one.
        let mut other = Metadata::new();
        other.insert("general.name", "B").unwrap();
        assert_eq!(read.other_model(&other), None);
        let mut own = Metadata::new();
        own.insert("general.architecture", "llama").unwrap();
        own.insert("general.name", "A").unwrap();
        sums = sums.measured_on(&own);
        sums.write(&path, "wiki.txt", 3, 512).unwrap();
        let read = ImportanceMatrix::open(&path).unwrap();
        assert_eq!(read.other_model(&own), None);
        assert_eq!(read.other_model(&other), Some("`A`".to_owned()));
        let mut of_other_kind = Metadata::new();
        of_other_kind.insert("general.architecture", "qwen2").unwrap();
        assert_eq!(
            read.other_model(&of_other_kind),
            Some("of the architecture `llama`".to_owned())
        );
        sums.add(matrix("blk.0.attn_q.weight", 2), &[f32::INFINITY, 0.0], 1.0);
        assert_eq!(sums.not_finite(), Some("blk.0.attn_q.weight"));
    }
}
