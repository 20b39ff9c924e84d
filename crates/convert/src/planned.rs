//! [`Planned`]: a tensor with its conversion; and [`BegunFile`], which writes a file of them.
//!
//! Tensors come from files and from folders. Invariants: at most some tens of megabytes of a tensor are in
//! memory at a time, whatever its size; the output exists completely or not at all.

use std::{
    io::{BufWriter, Write},
    path::Path,
};

use tokenmill_gguf::{GgufError, GgufWriter, Metadata, TensorDataWriter, TensorInfo, TensorType, TensorView};
use tokenmill_quant::{Format, QuantError};

use crate::{
    ConvertError, TypeChoice,
    choice::{is_embedding, is_float},
    output_file::OutputFile,
    rows::Conversion,
};

/// Bytes of a tensor converted at a time: some seconds of the slowest type, after which the work can be
/// stopped.
const SLAB_BYTES: usize = 8 << 20;

/// The version of the block layouts, as counted by llama.cpp.
pub(crate) const QUANTIZATION_VERSION: u32 = 2;

/// A tensor with its conversion.
pub(crate) struct Planned<'a> {
    pub(crate) view: TensorView<'a>,
    pub(crate) choice: TypeChoice,
    pub(crate) importance: Option<&'a [f32]>,
    /// Its type in the file to be quantized, which may be hypothetical.
    pub(crate) before: TensorType,
    /// Whether floats are checked even if their type does not change.
    pub(crate) rewrites: bool,
}

/// A file that has a temporary name and no bytes yet.
pub(crate) struct BegunFile<'p, 'a> {
    path: &'p Path,
    output: OutputFile,
    writer: GgufWriter,
    tensors: Vec<&'p Planned<'a>>,
}

/// The dimensions that a tensor has in the file.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WrittenDims {
    /// Dimensions of the source, as llama.cpp's converter writes them.
    AsInSource,
    /// Without trailing dimensions of 1, as llama-quantize writes them.
    WithoutLastOnes,
}

impl WrittenDims {
    fn of(self, dims: &[usize]) -> Vec<u64> {
        let n_dims = match self {
            Self::AsInSource => dims.len(),
            Self::WithoutLastOnes => dims.iter().rposition(|&dim| dim != 1).map_or(1, |last| last + 1),
        };
        dims.iter().take(n_dims).map(|&dim| dim as u64).collect()
    }
}

impl<'p, 'a> BegunFile<'p, 'a> {
    pub(crate) fn new(
        path: &'p Path,
        metadata: Metadata,
        tensors: Vec<&'p Planned<'a>>,
        dims: WrittenDims,
    ) -> Result<Self, ConvertError> {
        let mut writer = GgufWriter::with_metadata(metadata);
        for tensor in &tensors {
            let info = tensor.view.info;
            writer.add_tensor(&info.name, tensor.choice.ty, &dims.of(&info.dims))?;
        }
        Ok(Self {
            path,
            output: OutputFile::create(path)?,
            writer,
            tensors,
        })
    }

    /// Writes the file. It gets its name when it is finished.
    pub(crate) fn write(
        self,
        n_threads: usize,
        report: &mut dyn FnMut(&str, usize) -> Result<(), ConvertError>,
    ) -> Result<OutputFile, ConvertError> {
        let Self {
            path,
            output,
            writer,
            tensors,
        } = self;
        let write_error = |error| match error {
            GgufError::Write { reason } => ConvertError::Io {
                what: "write to",
                path: path.to_owned(),
                source: reason,
            },
            other => other.into(),
        };
        let output = BufWriter::with_capacity(1 << 20, output);
        let mut out = writer.write_header(output).map_err(write_error)?;
        let mut slab = Vec::new();
        for tensor in tensors {
            let name = &tensor.view.info.name;
            tensor
                .write(n_threads, &mut slab, &mut out, &mut |n_bytes| {
                    report(name, n_bytes)
                })
                .map_err(|error| match error {
                    ConvertError::Gguf(error) => write_error(error),
                    other => other,
                })?;
        }
        let output = out.finish().map_err(write_error)?;
        output.into_inner().map_err(|error| ConvertError::Io {
            what: "write to",
            path: path.to_owned(),
            source: error.into_error(),
        })
    }
}

/// Checks that there is room for all files before the first byte of any is written.
///
/// # Errors
/// [`ConvertError::NoRoom`].
pub(crate) fn check_room(files: &[BegunFile<'_, '_>]) -> Result<(), ConvertError> {
    let n_bytes = files.iter().map(|file| file.writer.n_file_bytes());
    let n_bytes: Vec<u64> = n_bytes.collect::<Result<_, _>>()?;
    for BegunFile { output, .. } in files {
        // Links may lead parts to different places.
        let beside = (files.iter().zip(&n_bytes)).filter(|(file, _)| file.output.folder() == output.folder());
        output.check_room(beside.map(|(_, n_bytes)| n_bytes).sum())?;
    }
    Ok(())
}

/// Returns the tensors that are quantized without importance although others have it. Matrices have no entry
/// for embeddings.
pub(crate) fn without_importance(planned: &[Planned<'_>]) -> Vec<String> {
    let lacking = planned.iter().filter(|tensor| {
        let info = tensor.view.info;
        tensor.importance.is_none() && tensor.choice.ty != tensor.before && !is_embedding(&info.name)
    });
    lacking.map(|tensor| tensor.view.info.name.clone()).collect()
}

impl Planned<'_> {
    /// Refuses impossible conversions before any weight is read.
    pub(crate) fn check(&self, allows_requantize: bool) -> Result<(), ConvertError> {
        let info = self.view.info;
        if self.choice.ty == info.ty {
            return Ok(());
        }
        if !is_float(info.ty) && !allows_requantize {
            return Err(ConvertError::Requantized {
                name: info.name.clone(),
                ty: info.ty,
                to: self.choice.ty,
            });
        }
        let quant = |source: QuantError| ConvertError::Quant {
            name: info.name.clone(),
            source,
        };
        Format::of(info.ty).map_err(quant)?;
        let format = Format::of(self.choice.ty).map_err(quant)?;
        let lacks_importance =
            self.importance.is_none() && (self.choice.needs_importance || !format.has_encoder());
        if lacks_importance {
            return Err(ConvertError::NeedsImportance {
                name: info.name.clone(),
                ty: self.choice.ty,
            });
        }
        Ok(())
    }

    /// Writes the tensor slab by slab.
    fn write<W: Write>(
        &self,
        n_threads: usize,
        slab: &mut Vec<u8>,
        out: &mut TensorDataWriter<W>,
        report: &mut dyn FnMut(usize) -> Result<(), ConvertError>,
    ) -> Result<(), ConvertError> {
        let info = self.view.info;
        let read_error = |source| ConvertError::ReadTensor {
            name: info.name.clone(),
            source,
        };
        let is_same = self.choice.ty == info.ty;
        if is_same && !(self.rewrites && is_float(info.ty)) {
            for start in (0..info.n_bytes).step_by(SLAB_BYTES) {
                let end = info.n_bytes.min(start + SLAB_BYTES);
                out.write(self.view.bytes.read(start..end, slab).map_err(read_error)?)?;
                report(end - start)?;
            }
            return Ok(());
        }
        let quant = |source: QuantError| ConvertError::Quant {
            name: info.name.clone(),
            source,
        };
        let conversion = Conversion {
            name: &info.name,
            bytes: self.view.bytes,
            from: Format::of(info.ty).map_err(quant)?,
            to: Format::of(self.choice.ty).map_err(quant)?,
            row_len: info.row_len(),
            rows_per_matrix: info.n_rows() / n_matrices(info),
            importance: self.importance,
        };
        let (from_bytes, to_bytes) = conversion.row_bytes()?;
        let slab_rows = (SLAB_BYTES / from_bytes.max(to_bytes)).max(1);
        for first in (0..info.n_rows()).step_by(slab_rows) {
            let n_rows = slab_rows.min(info.n_rows() - first);
            slab.resize(n_rows * to_bytes, 0);
            conversion.convert(first, slab, n_threads)?;
            out.write(slab)?;
            report(n_rows * from_bytes)?;
        }
        Ok(())
    }
}

/// Returns the number of matrices of a tensor: one per expert.
pub(crate) fn n_matrices(info: &TensorInfo) -> usize {
    info.dims.iter().skip(2).product()
}
