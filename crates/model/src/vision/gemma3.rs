//! Gemma 3: SigLIP over a square image of one size; squares of neighbouring patches are averaged, normed and projected.
//!
//! ```text
//! rows = tower(patches)                  [n_side * n_side, n_vision]
//! pooled = mean of each square of rows   [n_rows, n_vision]
//! output = W rms_norm(pooled)            [n_rows, n_embd]
//! ```
//!
//! Source: transformers, `Gemma3MultiModalProjector`; llama.cpp, `tools/mtmd/models/siglip.cpp`.

use tokenmill_backend::{
    BackendError, Linear, MatrixData, MatrixUsage, NormKind,
    program::{HostRows, LinearId, NormId},
};
use tokenmill_gguf::{Metadata, TensorType};
use tokenmill_quant::dequantize_row;

use crate::{LoadError, NormDescriptor, Presence, WeightSource, error::check, loader::Loader};

use super::{ImageGrid, ImageSize, MAX_ROWS, VisionShape};

/// Default side of the squares of patches that become a row.
const SQUARE: usize = 4;

/// The projection after the averages.
pub(super) const PROJECTION: &str = "mm.input_projection.weight";

/// Fills in values that follow from the rest of the file.
pub(super) fn finish(
    metadata: &Metadata,
    weights: &dyn WeightSource,
    n_side: usize,
    shape: &VisionShape,
) -> Result<VisionShape, LoadError> {
    let square = metadata.opt_u32("clip.vision.projector.scale_factor")?;
    let square = square.map_or(SQUARE, |square| square as usize);
    let divides = square > 0 && n_side.is_multiple_of(square);
    check(
        "scale factor of the projector",
        square,
        divides,
        "a divisor of the patches to a side",
    )?;
    let n_side_out = n_side / square;
    let n_rows = n_side_out * n_side_out;
    check(
        "number of rows of an image",
        n_rows,
        n_rows <= MAX_ROWS,
        "at most 4096",
    )?;
    let projection = weights
        .tensor(PROJECTION)
        .ok_or_else(|| LoadError::MissingTensor {
            name: PROJECTION.to_owned(),
        })?;
    let n_embd = projection.dims.first().copied().unwrap_or(0);
    check(
        "width of an image's rows",
        n_embd,
        (1..=1 << 20).contains(&n_embd),
        "between 1 and 2^20",
    )?;
    // Checked before anything is allocated for a width that the file only claims.
    check(
        "embedding length of the encoder",
        shape.n_vision,
        projection.dims[..] == [n_embd, shape.n_vision],
        "that of the projection's inputs",
    )?;
    Ok(VisionShape {
        size: ImageSize::Square {
            side: n_side * shape.patch_size,
            n_side: n_side_out,
        },
        n_merged: square,
        n_embd,
        ..shape.clone()
    })
}

/// The projector after the tower.
pub(super) struct Projector {
    norm: NormId,
    projection: LinearId,
    /// Side, in patches, of a square that becomes one row.
    n_merged: usize,
}

impl Projector {
    pub(super) fn load(shape: &VisionShape, loader: &mut Loader<'_>) -> Result<Self, LoadError> {
        let (n_in, n_out) = (shape.n_vision, shape.n_embd);
        let norm = NormDescriptor {
            kind: NormKind::Rms,
            eps: shape.eps,
            bias: Presence::Absent,
        };
        let norm = loader.norm("mm.soft_emb_norm", n_in, norm)?;
        // The file stores it as in the paper, `[n_in, n_out]` with outputs adjacent.
        let values = projection_values(loader, n_in, n_out)?;
        let columns = (0..n_out).flat_map(|col| values.iter().skip(col).step_by(n_out));
        let bytes: Vec<u8> = columns.flat_map(|value| value.to_le_bytes()).collect();
        let matrix = loader.add_matrix(&MatrixData {
            name: PROJECTION,
            ty: TensorType::F32,
            n_out,
            n_in,
            bytes: bytes.as_slice().into(),
            usage: MatrixUsage::Linear,
        })?;
        Ok(Self {
            norm,
            projection: Linear {
                matrix,
                bias: None,
                n_out,
                n_in,
                adapter_place: None,
            },
            n_merged: shape.n_merged,
        })
    }
}

/// Returns the numbers of the projection, `[n_in, n_out]`, decoded from any type.
fn projection_values(loader: &mut Loader<'_>, n_in: usize, n_out: usize) -> Result<Vec<f32>, LoadError> {
    let name = || PROJECTION.to_owned();
    let source = loader.source;
    let tensor = source
        .tensor(PROJECTION)
        .ok_or_else(|| LoadError::MissingTensor { name: name() })?;
    if matches!(tensor.ty, TensorType::F32 | TensorType::F16 | TensorType::BF16) {
        return loader.all_values(PROJECTION, &[n_out, n_in]);
    }
    if tensor.dims != [n_out, n_in] {
        return Err(LoadError::WrongShape {
            name: name(),
            expected: vec![n_out, n_in],
            found: tensor.dims,
        });
    }
    let unsupported = || LoadError::VectorType {
        name: name(),
        found: tensor.ty.name(),
    };
    let row_bytes = tensor.ty.row_bytes(n_out).ok_or_else(unsupported)?;
    let bytes = (tensor.bytes.to_vec()).map_err(|source| LoadError::ReadTensor { name: name(), source })?;
    let mut values = vec![0.0; n_in * n_out];
    for (row, bytes) in values.chunks_exact_mut(n_out).zip(bytes.chunks_exact(row_bytes)) {
        dequantize_row(tensor.ty, bytes, row).map_err(|_| unsupported())?;
    }
    Ok(values)
}

impl Projector {
    /// Computes an image's rows from the tower's output, `rows: [n_side * n_side, n_vision]`.
    pub(super) fn run(
        &self,
        device: &mut dyn HostRows,
        grid: &ImageGrid,
        rows: &[f32],
    ) -> Result<Vec<f32>, BackendError> {
        let width = self.norm.width;
        let n_rows = grid.n_rows();
        let pooled = mean_of_squares(rows, width, grid.n_across * self.n_merged, self.n_merged);
        let mut normed = vec![0.0; n_rows * width];
        device.norm(self.norm, &pooled, n_rows, &mut normed)?;
        let mut output = vec![0.0; n_rows * self.projection.n_out];
        device.linear(self.projection, &normed, n_rows, &mut output)?;
        Ok(output)
    }
}

/// Returns the means of squares of `square` by `square` rows, from rows that form a square of `n_side` by
/// `n_side`.
fn mean_of_squares(rows: &[f32], width: usize, n_side: usize, square: usize) -> Vec<f32> {
    let n_out = n_side / square;
    let mut means = vec![0.0; n_out * n_out * width];
    for (patch, row) in rows.chunks_exact(width).enumerate() {
        let (y, x) = (patch / n_side / square, patch % n_side / square);
        for (mean, value) in means[(y * n_out + x) * width..][..width].iter_mut().zip(row) {
            *mean += value;
        }
    }
    let share = 1.0 / (square * square) as f32;
    for mean in &mut means {
        *mean *= share;
    }
    means
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn squares_are_averaged_where_they_lie() {
        // Four by four rows of one value, their index.
        let rows: Vec<f32> = (0..16u8).map(f32::from).collect();
        assert_eq!(mean_of_squares(&rows, 1, 4, 2), [2.5, 4.5, 10.5, 12.5]);
        assert_eq!(mean_of_squares(&rows, 1, 4, 4), [7.5]);
        // Rows of two values.
        assert_eq!(mean_of_squares(&rows[..8], 2, 2, 2), [3.0, 4.0]);
    }
}
