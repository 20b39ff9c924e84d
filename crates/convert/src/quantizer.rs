//! [`Quantizer`]: a GGUF file in, a GGUF file out.
//!
//! Here file and choice meet. Invariant: what can be refused is refused before the first weight is read.

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

/// How far the work has come.
#[derive(Clone, Copy, Debug)]
pub struct QuantizeProgress<'a> {
    /// Bytes of the input that are done.
    pub n_bytes_done: usize,
    /// Bytes of all its tensors.
    pub n_bytes_total: usize,
    /// The tensor that is worked on.
    pub tensor: &'a str,
}

/// What was written, or would be.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct QuantizeSummary {
    /// The files.
    pub paths: Vec<PathBuf>,
    /// Tensors.
    pub n_tensors: usize,
    /// Bytes of all tensors before.
    pub n_bytes_before: usize,
    /// Bytes of all tensors after.
    pub n_bytes_after: usize,
    /// Values of all tensors.
    pub n_values: usize,
    /// Tensors that get another type.
    pub n_changed: usize,
    /// Tensors that got another type because their rows are not whole blocks, with their choice.
    pub fallbacks: Vec<(String, TypeChoice)>,
    /// Tensors that were quantized without the importance that the matrix has for others. Embeddings are not among them: matrices
    /// have no entry for them.
    pub without_importance: Vec<String>,
    /// The model that the importance matrix was measured on, in words, where it says one and this is another.
    pub measured_on: Option<String>,
    /// A tensor that becomes ternary though its values are not, by some of its rows: most of what the model has learned is lost.
    pub not_ternary: Option<String>,
}

impl QuantizeSummary {
    /// Adds up tensors and the types that were chosen for them.
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
    /// Begins with a file and what it shall become, on as many threads as there are processors.
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

    /// Weighs errors by an importance matrix.
    #[must_use]
    pub fn importance(mut self, matrix: &'a ImportanceMatrix) -> Self {
        self.importance = Some(matrix);
        self
    }

    /// Lets tensors that are quantized already be quantized again, which loses more than doing it once.
    #[must_use]
    pub fn allow_requantize(mut self) -> Self {
        self.allows_requantize = true;
        self
    }

    /// Writes as many parts as the input has, each with its tensors.
    #[must_use]
    pub fn keep_split(mut self) -> Self {
        self.keeps_split = true;
        self
    }

    /// Sets the threads.
    #[must_use]
    pub fn threads(mut self, n_threads: usize) -> Self {
        self.n_threads = n_threads.max(1);
        self
    }

    /// Says what would be written, without doing it. All that can be refused before the first weight is read is refused here.
    ///
    /// # Errors
    /// [`ConvertError`]: what does not go together.
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

    /// Writes the file, or its parts, next to it and renames it at the end. `on_progress` may stop the work.
    ///
    /// # Errors
    /// [`ConvertError`]: what does not go together, what cannot be read or written, and weights that are no numbers. No file is
    /// left then.
    pub fn write(
        &self,
        path: impl AsRef<Path>,
        on_progress: &mut dyn FnMut(QuantizeProgress<'_>) -> ControlFlow<()>,
    ) -> Result<QuantizeSummary, ConvertError> {
        let path = path.as_ref();
        let n_parts = if self.keeps_split { self.file.n_parts() } else { 1 };
        let paths: Vec<PathBuf> = if n_parts == 1 {
            vec![path.to_owned()]
        } else {
            (0..n_parts).map(|part| part_path(path, part, n_parts)).collect()
        };
        self.check_outputs(&paths)?;
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
        // Parts get their names together, so that a failure leaves none of them.
        finished.into_iter().try_for_each(OutputFile::finish)?;
        summary.paths = paths;
        Ok(summary)
    }

    /// Refuses an output that is a file of the input, under whatever name.
    fn check_outputs(&self, outputs: &[PathBuf]) -> Result<(), ConvertError> {
        let inputs: Vec<PathBuf> = (self.file.paths())
            .filter_map(|path| fs::canonicalize(path).ok())
            .collect();
        let is_input = |path: &&PathBuf| fs::canonicalize(path).is_ok_and(|path| inputs.contains(&path));
        match outputs.iter().find(is_input) {
            Some(path) => Err(ConvertError::SameFile { path: path.clone() }),
            None => Ok(()),
        }
    }

    /// The tensors in the order of the input, with what they become.
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

    /// The metadata of a part: that of the input with what has changed, at its end as in the reference.
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

/// The path of a part of a split file: `model.gguf` becomes `model-00001-of-00003.gguf`.
fn part_path(path: &Path, part: usize, n_parts: usize) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let stem = name.strip_suffix(".gguf").unwrap_or(&name);
    path.with_file_name(format!("{stem}-{:05}-of-{n_parts:05}.gguf", part + 1))
}
