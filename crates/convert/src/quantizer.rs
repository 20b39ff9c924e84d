//! [`Quantizer`]: a GGUF file in, a GGUF file out.
//!
//! Invariant: everything that can be refused is refused before the first weight is read.

use std::{
    fs,
    ops::ControlFlow,
    path::{Path, PathBuf},
};

use tokenmill_gguf::{GgufFile, Metadata, TensorInfo, Value};

use crate::{
    ConvertError, ImportanceMatrix, ModelShape, Recipe, TensorShape, TypeChoice,
    choice::{choose, reference_order},
    coverage::check_is_of_model,
    output_file::OutputFile,
    planned::{BegunFile, Planned, QUANTIZATION_VERSION, WrittenDims, check_room, without_importance},
    ternary::not_ternary,
};

/// Quantizes an opened file.
#[derive(Debug)]
pub struct Quantizer<'a> {
    file: &'a GgufFile,
    recipe: Recipe,
    importance: Option<&'a ImportanceMatrix>,
    allows_requantize: bool,
    keeps_split: bool,
    n_threads: usize,
}

/// The progress of the work.
#[derive(Clone, Copy, Debug)]
pub struct QuantizeProgress<'a> {
    /// Bytes of the input that are done.
    pub n_bytes_done: usize,
    /// Total bytes of its tensors.
    pub n_bytes_total: usize,
    /// The current tensor.
    pub tensor: &'a str,
}

/// A summary of the written files, or of those that would be written.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct QuantizeSummary {
    /// Paths of the files.
    pub paths: Vec<PathBuf>,
    /// Number of tensors.
    pub n_tensors: usize,
    /// Total bytes of the tensors before.
    pub n_bytes_before: usize,
    /// Total bytes of the tensors after.
    pub n_bytes_after: usize,
    /// Total values of the tensors.
    pub n_values: usize,
    /// Number of tensors that change their type.
    pub n_changed: usize,
    /// Tensors with a fallback type because their rows are not whole blocks, with the choice.
    pub fallbacks: Vec<(String, TypeChoice)>,
    /// Tensors quantized without importance although the matrix has it for others. Embeddings are excluded,
    /// because matrices have no entry for them.
    pub without_importance: Vec<String>,
    /// The name of the model that the importance matrix was measured on, if it states one and this model is
    /// another.
    pub measured_on: Option<String>,
    /// A tensor that becomes ternary although its values are not, judging by some of its rows: most of the
    /// model's knowledge would be lost.
    pub not_ternary: Option<String>,
}

impl QuantizeSummary {
    /// Sums up tensors and their chosen types.
    pub(crate) fn of<'t>(planned: impl Iterator<Item = (&'t TensorInfo, TypeChoice)>) -> Self {
        let mut summary = Self::default();
        for (info, choice) in planned {
            let row_bytes = choice.ty.row_bytes(info.row_len()).unwrap_or(0);
            summary.n_tensors += 1;
            summary.n_values += info.n_elements();
            summary.n_changed += usize::from(choice.ty != info.ty);
            summary.n_bytes_before += info.n_bytes;
            summary.n_bytes_after += row_bytes * info.n_rows();
            if choice.instead_of.is_some() {
                summary.fallbacks.push((info.name.clone(), choice));
            }
        }
        summary
    }
}

impl<'a> Quantizer<'a> {
    /// Creates a quantizer for a file and a recipe, with one thread per processor.
    pub fn new(file: &'a GgufFile, recipe: Recipe) -> Self {
        Self {
            file,
            recipe,
            importance: None,
            allows_requantize: false,
            keeps_split: false,
            n_threads: std::thread::available_parallelism().map_or(1, usize::from),
        }
    }

    /// Sets the importance matrix that weighs errors.
    #[must_use]
    pub fn importance(mut self, matrix: &'a ImportanceMatrix) -> Self {
        self.importance = Some(matrix);
        self
    }

    /// Allows quantized tensors to be quantized again, which loses more than quantizing once.
    #[must_use]
    pub fn allow_requantize(mut self) -> Self {
        self.allows_requantize = true;
        self
    }

    /// Writes as many parts as the input has, with the same tensors in each.
    #[must_use]
    pub fn keep_split(mut self) -> Self {
        self.keeps_split = true;
        self
    }

    /// Sets the number of threads.
    #[must_use]
    pub fn threads(mut self, n_threads: usize) -> Self {
        self.n_threads = n_threads.max(1);
        self
    }

    /// Returns a summary without writing. Everything that can be refused before the first weight is read is
    /// refused here.
    ///
    /// # Errors
    /// [`ConvertError`] for incompatible options or input.
    pub fn plan(&self) -> Result<QuantizeSummary, ConvertError> {
        let planned = self.planned()?;
        let mut summary = QuantizeSummary::of(planned.iter().map(|tensor| (tensor.view.info, tensor.choice)));
        if let Some(matrix) = self.importance {
            summary.without_importance = without_importance(&planned);
            summary.measured_on = matrix.other_model(self.file.metadata());
        }
        summary.not_ternary = not_ternary(&planned)?;
        Ok(summary)
    }

    /// Writes the file, or its parts, under temporary names and renames them at the end. `on_progress` may
    /// stop the work.
    ///
    /// # Errors
    /// [`ConvertError`] for incompatible options or input, I/O errors, and weights that are not finite. Then
    /// no file is left.
    pub fn write(
        &self,
        path: impl AsRef<Path>,
        on_progress: &mut dyn FnMut(QuantizeProgress<'_>) -> ControlFlow<()>,
    ) -> Result<QuantizeSummary, ConvertError> {
        let paths = self.outputs(path)?;
        let n_parts = paths.len();
        let mut summary = self.plan()?;
        let mut planned = self.planned()?;
        if n_parts == 1 {
            planned
                .sort_by(|a, b| reference_order(&a.view.info.name).cmp(&reference_order(&b.view.info.name)));
        }
        let mut begun = Vec::with_capacity(n_parts);
        for (part, path) in paths.iter().enumerate() {
            let is_own = |tensor: &&Planned<'_>| n_parts == 1 || tensor.view.info.part == part;
            let metadata = self.metadata(part, n_parts, planned.len())?;
            begun.push(BegunFile::new(
                path,
                metadata,
                planned.iter().filter(is_own).collect(),
                WrittenDims::WithoutLastOnes,
            )?);
        }
        check_room(&begun)?;
        let mut done = 0;
        let mut finished = Vec::new();
        for file in begun {
            let mut report = |name: &str, n_bytes: usize| {
                done += n_bytes;
                let progress = QuantizeProgress {
                    n_bytes_done: done,
                    n_bytes_total: summary.n_bytes_before,
                    tensor: name,
                };
                match on_progress(progress) {
                    ControlFlow::Continue(()) => Ok(()),
                    ControlFlow::Break(()) => Err(ConvertError::Stopped),
                }
            };
            finished.push(file.write(self.n_threads, &mut report)?);
        }
        // All parts get their names at the end, so that a failure leaves none of them.
        finished.into_iter().try_for_each(OutputFile::finish)?;
        summary.paths = paths;
        Ok(summary)
    }

    /// Returns the files that [`write`](Self::write) writes: one, or one for each part.
    ///
    /// # Errors
    /// [`ConvertError::SameFile`] for a file of the input, under any name.
    pub fn outputs(&self, path: impl AsRef<Path>) -> Result<Vec<PathBuf>, ConvertError> {
        let path = path.as_ref();
        let n_parts = if self.keeps_split { self.file.n_parts() } else { 1 };
        let outputs: Vec<PathBuf> = if n_parts == 1 {
            vec![path.to_owned()]
        } else {
            (0..n_parts).map(|part| part_path(path, part, n_parts)).collect()
        };
        let inputs: Vec<PathBuf> = (self.file.paths())
            .filter_map(|path| fs::canonicalize(path).ok())
            .collect();
        let is_input = |path: &&PathBuf| fs::canonicalize(path).is_ok_and(|path| inputs.contains(&path));
        match outputs.iter().find(is_input) {
            Some(path) => Err(ConvertError::SameFile { path: path.clone() }),
            None => Ok(outputs),
        }
    }

    /// Returns the tensors in the order of the input, with their conversions.
    fn planned(&self) -> Result<Vec<Planned<'a>>, ConvertError> {
        let model = ModelShape::of(self.file.metadata())?;
        let infos: Vec<_> = self.file.tensors().collect();
        let shapes: Vec<TensorShape<'_>> = infos.iter().map(|&info| info.into()).collect();
        let choices = choose(&model, &self.recipe, self.importance.is_some(), &shapes)?;
        let mut planned = Vec::with_capacity(infos.len());
        for (info, choice) in infos.into_iter().zip(choices) {
            let view = self.file.tensor(&info.name).expect("the file lists it");
            let importance = match self.importance {
                Some(matrix) => matrix.of_tensor(info, info.ty, &choice)?,
                None => None,
            };
            planned.push(Planned {
                view,
                choice,
                importance,
                before: info.ty,
                rewrites: false,
            });
        }
        if let Some(matrix) = self.importance {
            check_is_of_model(matrix, &planned)?;
        }
        for tensor in &planned {
            tensor.check(self.allows_requantize)?;
        }
        Ok(planned)
    }

    /// Returns the metadata of a part: the input's, with the changed keys at its end as in llama.cpp.
    fn metadata(&self, part: usize, n_parts: usize, n_tensors: usize) -> Result<Metadata, ConvertError> {
        const SPLIT_KEYS: [&str; 3] = ["split.no", "split.count", "split.tensors.count"];
        let mut new: Vec<(&str, Value)> = Vec::new();
        if part == 0 {
            new.push(("general.quantization_version", QUANTIZATION_VERSION.into()));
            new.push(("general.file_type", self.recipe.preset.file_type().into()));
        }
        if let (Some(matrix), 0) = (self.importance, part) {
            new.extend(matrix.keys());
        }
        if n_parts > 1 {
            new.push(("split.no", (part as u16).into()));
            new.push(("split.count", (n_parts as u16).into()));
            new.push(("split.tensors.count", (n_tensors as i32).into()));
        }
        let mut metadata = Metadata::new();
        if part == 0 {
            for (key, value) in self.file.metadata().iter() {
                let is_replaced = new.iter().any(|(new, _)| *new == key);
                if !is_replaced && !SPLIT_KEYS.contains(&key) {
                    metadata.insert(key, value.clone())?;
                }
            }
        }
        for (key, value) in new {
            metadata.insert(key, value)?;
        }
        Ok(metadata)
    }
}

/// Returns the path of a part of a split file: `model.gguf` becomes `model-00001-of-00003.gguf`.
fn part_path(path: &Path, part: usize, n_parts: usize) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let stem = name.strip_suffix(".gguf").unwrap_or(&name);
    path.with_file_name(format!("{stem}-{:05}-of-{n_parts:05}.gguf", part + 1))
}
