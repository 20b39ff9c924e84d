//! [`Writer`]: tensors from anywhere in, a GGUF file out.
//!
//! [`Quantizer`](crate::Quantizer), in contrast, reads a file: here the caller provides tensors and metadata.
//! Invariant: a NaN or infinite weight is never written, even if its type does not change.

use std::{ops::ControlFlow, path::Path};

use tokenmill_gguf::{GgufWriter, Metadata, TensorBytes, TensorInfo, TensorType, TensorView, Value};

use crate::{
    ConvertError, ImportanceMatrix, ModelShape, OutType, QuantizeProgress, QuantizeSummary, Recipe,
    TensorShape, TypeChoice,
    choice::{choose, is_float},
    coverage::check_is_of_model,
    out_type::type_of,
    planned::{BegunFile, Planned, QUANTIZATION_VERSION, WrittenDims, check_room, without_importance},
    size_label::size_label,
    ternary::not_ternary,
};

/// The tensors of a file to be written.
#[derive(Debug, Default)]
pub struct Writer<'a> {
    infos: Vec<TensorInfo>,
    bytes: Vec<TensorBytes<'a>>,
    out: OutType,
    importance: Option<&'a ImportanceMatrix>,
    exception: Option<TypeOf>,
    n_threads: Option<usize>,
}

/// A function from a tensor's name and the type of the file's matrices to a type that overrides the tensor's.
pub type TypeOf = fn(&str, TensorType) -> Option<TensorType>;

/// Values of `general.file_type` for F32 files, F16 files, and so on.
const ALL_F32: u32 = 0;
const MOSTLY_F16: u32 = 1;
const MOSTLY_Q8_0: u32 = 7;
const MOSTLY_BF16: u32 = 32;
const MOSTLY_MXFP4: u32 = 38;

impl<'a> Writer<'a> {
    /// Creates a writer from tensors: each with its name, type, dimensions with the contiguous one first, and
    /// bytes. Their order is that of the file.
    ///
    /// # Errors
    /// [`ConvertError::Gguf`] for a name or dimensions that a file cannot have.
    pub fn new(
        tensors: impl IntoIterator<Item = (String, TensorType, Vec<usize>, TensorBytes<'a>)>,
        out: OutType,
    ) -> Result<Self, ConvertError> {
        // The GGUF writer checks names and dimensions.
        let mut header = GgufWriter::new();
        let mut all_bytes = Vec::new();
        for (name, ty, dims, bytes) in tensors {
            let dims: Vec<u64> = dims.into_iter().map(|dim| dim as u64).collect();
            header.add_tensor(&name, ty, &dims)?;
            all_bytes.push(bytes);
        }
        Ok(Self {
            infos: header.tensors().to_vec(),
            bytes: all_bytes,
            out,
            importance: None,
            exception: None,
            n_threads: None,
        })
    }

    /// Sets the importance matrix that weighs errors; it requires a preset.
    #[must_use]
    pub fn importance(mut self, matrix: &'a ImportanceMatrix) -> Self {
        self.importance = Some(matrix);
        self
    }

    /// Overrides the type of some tensors by name.
    #[must_use]
    pub fn exception(mut self, type_of: TypeOf) -> Self {
        self.exception = Some(type_of);
        self
    }

    /// Sets the number of threads; the default is one per processor.
    #[must_use]
    pub fn threads(mut self, n_threads: usize) -> Self {
        self.n_threads = Some(n_threads.max(1));
        self
    }

    /// Returns `general.size_label`: the number of parameters, such as `7.2B` or `8x7B`.
    pub fn size_label(&self) -> Option<String> {
        size_label(&self.infos)
    }

    /// Returns `general.file_type`.
    pub fn file_type(&self) -> u32 {
        let has_mxfp4 = self.infos.iter().any(|info| info.ty == TensorType::MXFP4);
        match (self.out, self.matrix_type()) {
            (OutType::Preset(preset), _) => preset.file_type(),
            (_, TensorType::Q8_0) => MOSTLY_Q8_0,
            _ if has_mxfp4 => MOSTLY_MXFP4,
            (_, TensorType::F16) => MOSTLY_F16,
            (_, TensorType::BF16) => MOSTLY_BF16,
            _ => ALL_F32,
        }
    }

    /// Returns the version of the quantized blocks.
    pub fn quantization_version(&self) -> u32 {
        QUANTIZATION_VERSION
    }

    /// Returns the keys for the type of the file and for the importance matrix, in the order in which
    /// [`Quantizer`](crate::Quantizer) writes them at the end of the metadata.
    pub fn keys_of_type(&self) -> Vec<(&'static str, Value)> {
        let mut keys = vec![
            ("general.quantization_version", Value::from(QUANTIZATION_VERSION)),
            ("general.file_type", self.file_type().into()),
        ];
        keys.extend(self.importance.iter().flat_map(|matrix| matrix.keys()));
        keys
    }

    /// Returns the type of matrices before a preset is applied.
    fn matrix_type(&self) -> TensorType {
        let matrices = || self.infos.iter().filter(|info| info.dims.len() > 1);
        match self.out {
            OutType::F32 => TensorType::F32,
            OutType::F16 => TensorType::F16,
            OutType::Bf16 => TensorType::BF16,
            OutType::Q8_0 => TensorType::Q8_0,
            // Tensors that a preset does not quantize then lose nothing.
            OutType::Preset(_) if matrices().any(|info| info.ty == TensorType::F32) => TensorType::F32,
            OutType::Auto | OutType::Preset(_) => {
                let has = |ty| matrices().any(|info| info.ty == ty);
                // F16 keeps more bits of an F32 number than BF16, and is llama.cpp's choice.
                if has(TensorType::F16) || has(TensorType::F32) && !has(TensorType::BF16) {
                    TensorType::F16
                } else {
                    TensorType::BF16
                }
            }
        }
    }

    /// Returns the types before a preset is applied.
    fn types_before(&self) -> Vec<TensorType> {
        let wanted = self.matrix_type();
        let own = |info: &TensorInfo| self.exception.and_then(|type_of| type_of(&info.name, wanted));
        (self.infos.iter())
            .map(|info| own(info).unwrap_or_else(|| type_of(&info.into(), wanted)))
            .collect()
    }

    /// Returns the conversion of each tensor.
    fn choices(&self, metadata: &Metadata, before: &[TensorType]) -> Result<Vec<TypeChoice>, ConvertError> {
        let OutType::Preset(preset) = self.out else {
            let choice = |ty| TypeChoice {
                ty,
                instead_of: None,
                needs_importance: false,
            };
            return Ok(before.iter().copied().map(choice).collect());
        };
        let shapes: Vec<TensorShape<'_>> = (self.infos.iter().zip(before))
            .map(|(info, &ty)| TensorShape {
                ty,
                ..TensorShape::from(info)
            })
            .collect();
        let (model, recipe) = (ModelShape::of(metadata)?, Recipe::new(preset));
        let mut choices = choose(&model, &recipe, self.importance.is_some(), &shapes)?;
        for (choice, &ty) in choices.iter_mut().zip(before) {
            if !is_float(ty) {
                // Quantizing the folder's quantized tensors again would lose more.
                choice.ty = ty;
            }
        }
        Ok(choices)
    }

    /// Returns a summary without writing; reads at most some rows.
    ///
    /// # Errors
    /// [`ConvertError`] for incompatible options or input.
    pub fn plan(&self, metadata: &Metadata) -> Result<QuantizeSummary, ConvertError> {
        let planned = self.planned(metadata)?;
        let tensors = planned.iter().map(|tensor| (tensor.view.info, tensor.choice));
        let mut summary = QuantizeSummary::of(tensors);
        if let Some(matrix) = self.importance {
            summary.without_importance = without_importance(&planned);
            summary.measured_on = matrix.other_model(metadata);
        }
        summary.not_ternary = not_ternary(&planned)?;
        Ok(summary)
    }

    fn planned(&self, metadata: &Metadata) -> Result<Vec<Planned<'_>>, ConvertError> {
        if self.importance.is_some() && !matches!(self.out, OutType::Preset(_)) {
            return Err(ConvertError::ImportanceUnused {
                out: self.out.to_string(),
            });
        }
        let before = self.types_before();
        let choices = self.choices(metadata, &before)?;
        let views = (self.infos.iter().zip(&self.bytes)).map(|(info, &bytes)| TensorView { info, bytes });
        let mut planned = Vec::with_capacity(self.infos.len());
        for ((view, choice), before) in views.zip(choices).zip(before) {
            let importance = match self.importance {
                Some(matrix) => matrix.of_tensor(view.info, before, &choice)?,
                None => None,
            };
            planned.push(Planned {
                view,
                choice,
                importance,
                before,
                rewrites: true,
            });
        }
        if let Some(matrix) = self.importance {
            check_is_of_model(matrix, &planned)?;
        }
        planned.iter().try_for_each(|tensor| tensor.check(false))?;
        Ok(planned)
    }

    /// Writes the file under a temporary name and renames it at the end. `on_progress` may stop the work.
    ///
    /// # Errors
    /// [`ConvertError`] for incompatible options or input, I/O errors, and weights that are not finite. Then
    /// no file is left.
    pub fn write(
        &self,
        path: impl AsRef<Path>,
        metadata: Metadata,
        on_progress: &mut dyn FnMut(QuantizeProgress<'_>) -> ControlFlow<()>,
    ) -> Result<QuantizeSummary, ConvertError> {
        let path = path.as_ref();
        let mut summary = self.plan(&metadata)?;
        let planned = self.planned(&metadata)?;
        let dims = if matches!(self.out, OutType::Preset(_)) {
            WrittenDims::WithoutLastOnes
        } else {
            WrittenDims::AsInSource
        };
        let begun = BegunFile::new(path, metadata, planned.iter().collect(), dims)?;
        check_room(std::slice::from_ref(&begun))?;
        let mut done = 0;
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
        let n_threads =
            (self.n_threads).unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
        begun.write(n_threads, &mut report)?.finish()?;
        summary.paths = vec![path.to_owned()];
        Ok(summary)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_type_of_a_file_follows_the_matrices() {
        use TensorType::{BF16, F16, F32};

        let check = |types: &[TensorType], expected: TensorType| {
            let bytes = [0_u8; 4 * 64];
            let tensors = types.iter().enumerate().map(|(idx, &ty)| {
                let n_bytes = ty.row_bytes(32).unwrap() * 2;
                let name = format!("blk.{idx}.attn_q.weight");
                (name, ty, vec![32, 2], TensorBytes::from(&bytes[..n_bytes]))
            });
            let norm = ("output_norm.weight".to_owned(), TensorType::F32, vec![32]);
            let norm = (norm.0, norm.1, norm.2, TensorBytes::from(&bytes[..4 * 32]));
            let writer = Writer::new(tensors.chain([norm]), OutType::Auto).unwrap();
            assert_eq!(writer.matrix_type(), expected, "{types:?}");
        };
        check(&[F16, F16], F16);
        check(&[BF16, BF16], BF16);
        check(&[F32, BF16], BF16);
        check(&[F32, F16], F16);
        check(&[F32, F32], F16);
    }
}
