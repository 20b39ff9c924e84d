//! Attention over latent rows, and products with the matrices of heads. Kernels: `latent_attention.cu`, and `experts.cu` for the
//! products.
//!
//! Invariant: the splits of a run of one token depend only on its position, so its result depends neither on the grid nor on the
//! other runs of the step.

use tokenmill_backend::{Attention, KvLayerShape, KvType};

use super::{
    AttentionScratch, AttentionStep, MAX_GRID_ROWS, Ops, Product, QuantizedMut, QuantizedView, check_equal,
};
use crate::{
    Args, Buffer, CudaExecError, Device, Kernel, LaunchShape, View, ViewMut, error::Result, kv::KvLayer,
};

/// Positions of a tile.
const TILE: usize = 32;
/// Largest number of splits of a context.
const MAX_SPLITS: usize = 64;
/// Query rows of a thread block, by kernel.
const QUERY_ROWS: [usize; 2] = [16, 32];
/// Widest keys and values, by module variant.
const WIDTHS: [[usize; 2]; 2] = [[128, 128], [576, 512]];

/// The kernels: by the width of rows, then by query rows.
#[derive(Debug)]
pub(super) struct LatentKernels {
    attention: [[Kernel; 2]; 2],
    combine: Kernel,
}

impl LatentKernels {
    fn load(device: &Device) -> Result<Self> {
        let kernel = |dim: usize, n_rows: usize| {
            let name = format!("latent_d{dim}_r{n_rows}");
            device.kernel_with_shared_bytes("latent_attention", &name, shared_bytes(dim, n_rows))
        };
        let [few, many] = QUERY_ROWS;
        let [[narrow, _], [wide, _]] = WIDTHS;
        Ok(Self {
            attention: [
                [kernel(narrow, few)?, kernel(narrow, many)?],
                [kernel(wide, few)?, kernel(wide, many)?],
            ],
            combine: device.kernel("latent_attention", "latent_combine")?,
        })
    }
}

/// Returns the dynamic shared memory: two tiles of rows, padded, and a quarter of the scores for each of four warps.
fn shared_bytes(dim: usize, n_rows: usize) -> usize {
    2 * TILE * (dim + 8) * 2 + n_rows * 4 * (TILE + 8) * 4
}

/// Checks that a launch can take the matrices of `n_heads` heads.
///
/// # Errors
/// [`CudaExecError::Unsupported`].
pub(crate) fn check_heads(n_heads: usize) -> Result<()> {
    if n_heads <= MAX_GRID_ROWS {
        return Ok(());
    }
    Err(CudaExecError::Unsupported {
        feature: format!("matrices of {n_heads} heads (at most {MAX_GRID_ROWS})"),
    })
}

/// Returns the smallest number of positions of a split, such that partial results are less than half of the bytes read.
fn min_split(n_heads: usize) -> usize {
    (8 * n_heads).next_multiple_of(TILE).clamp(64, 1024)
}

/// Returns the largest number of splits of a context of `n_positions`.
pub(super) fn n_splits(n_positions: usize, n_heads: usize) -> usize {
    n_positions.div_ceil(min_split(n_heads)).clamp(1, MAX_SPLITS)
}

/// Returns the variant for rows of this shape; `None` if the general kernel attends.
fn variant(attention: &Attention<Buffer<f32>>, ty: KvType, shape: KvLayerShape) -> Option<usize> {
    let Attention {
        is_causal,
        window,
        softcap,
        sinks,
        slopes,
        ..
    } = attention;
    let is_plain = *is_causal && window.is_none() && softcap.is_none() && sinks.is_none() && slopes.is_none();
    if !(shape.has_values_in_keys && shape.n_kv_heads == 1 && ty == KvType::F16 && is_plain) {
        return None;
    }
    let fits = |[dim_k, dim_v]: &[usize; 2]| shape.head_dim_k <= *dim_k && shape.head_dim_v <= *dim_v;
    WIDTHS.iter().position(fits)
}

/// Runs whose contexts are split between thread blocks.
#[derive(Clone, Copy)]
struct SplitRuns<'a> {
    variant: usize,
    /// Starts of runs among the tokens, `[n_runs + 1]`; only runs of one token are computed. `None` if each token is a run.
    seq_starts: Option<View<'a, u32>>,
    n_runs: usize,
}

/// Appends the arguments that decoding and prefill share.
fn with_store<'a>(
    args: Args<'a>,
    attention: &Attention<Buffer<f32>>,
    step: AttentionStep<'a>,
    kv: KvLayer<'a>,
) -> Args<'a> {
    args.read(step.page_starts)
        .read(step.pages)
        .read(kv.k)
        .float(attention.scale)
        .count(attention.n_heads)
        .count(kv.shape.head_dim_k)
        .count(kv.shape.head_dim_v)
        .count(min_split(attention.n_heads))
}

impl Ops {
    /// Loads the kernels for latent rows. Without them [`Self::attention`] uses the general ones.
    ///
    /// # Errors
    /// [`CudaExecError::DriverTooOld`], or the driver's.
    pub fn load_latent(&mut self) -> Result<()> {
        if self.latent.is_none() {
            self.latent = Some(LatentKernels::load(&self.device)?);
        }
        Ok(())
    }

    /// Attends as [`Self::attention`] does, if there are kernels for these rows; returns whether it did.
    pub(super) fn latent_attention(
        &self,
        attention: &Attention<Buffer<f32>>,
        step: &AttentionStep<'_>,
        kv: KvLayer<'_>,
        q: View<'_, f32>,
        output: &mut ViewMut<'_, f32>,
        quantized: &mut Option<QuantizedMut<'_>>,
        scratch: &mut AttentionScratch,
    ) -> Result<bool> {
        // The step's longest context determines the length of these kernels' splits.
        let Some(kernels) = self.latent.as_ref().filter(|_| !self.is_batch_invariant) else {
            return Ok(false);
        };
        let Some(variant) = variant(attention, kv.types[0], kv.shape) else {
            return Ok(false);
        };
        let n_heads = attention.n_heads;
        let (dim_k, dim_v) = (kv.shape.head_dim_k, kv.shape.head_dim_v);
        let n_tokens = step.positions.len();
        let Some(runs) = step.runs else {
            let split = SplitRuns {
                variant,
                seq_starts: None,
                n_runs: n_tokens,
            };
            self.split_latent_attention(split, attention, step, kv, q, output, quantized, scratch)?;
            return Ok(true);
        };
        // One thread block would walk a long context alone for the few rows of a token.
        if runs.has_single {
            let split = SplitRuns {
                variant,
                seq_starts: Some(runs.seq_starts),
                n_runs: runs.seq_starts.len() - 1,
            };
            self.split_latent_attention(split, attention, step, kv, q, output, &mut None, scratch)?;
        }
        let min_tokens = if runs.has_single { 2 } else { 1 };
        if runs.longest >= min_tokens {
            let [_, many] = kernels.attention[variant];
            let args = Args::new()
                .read(q.range(0..n_tokens * n_heads * dim_k)?)
                .write(output.reborrow().range(0..n_tokens * n_heads * dim_v)?)
                .read(step.positions)
                .read(step.seq_of)
                .read(runs.seq_starts);
            let args = with_store(args, attention, *step, kv)
                .count(min_tokens)
                .write_or_null::<f32>(None);
            let n_rows = QUERY_ROWS[1];
            let grid = [
                (runs.longest * n_heads).div_ceil(n_rows),
                1,
                runs.seq_starts.len() - 1,
            ];
            let shared_bytes = shared_bytes(WIDTHS[variant][0], n_rows);
            let launch = LaunchShape::new(grid, 8 * n_rows as u32).with_shared_bytes(shared_bytes);
            self.device.launch(many, launch, &args)?;
        }
        if let Some(rows) = quantized {
            self.quantize(n_tokens * n_heads, dim_v, output.as_view(), rows.reborrow())?;
        }
        Ok(true)
    }

    /// Attends from runs of one token, whose contexts are split between thread blocks.
    fn split_latent_attention(
        &self,
        split: SplitRuns<'_>,
        attention: &Attention<Buffer<f32>>,
        step: &AttentionStep<'_>,
        kv: KvLayer<'_>,
        q: View<'_, f32>,
        output: &mut ViewMut<'_, f32>,
        quantized: &mut Option<QuantizedMut<'_>>,
        scratch: &mut AttentionScratch,
    ) -> Result<()> {
        let SplitRuns {
            variant,
            seq_starts,
            n_runs,
        } = split;
        let kernels = self.latent.as_ref().expect("the caller has found them");
        let n_heads = attention.n_heads;
        let (dim_k, dim_v) = (kv.shape.head_dim_k, kv.shape.head_dim_v);
        let n_tokens = step.positions.len();
        let [few, many] = kernels.attention[variant];
        let (kernel, n_rows) = if n_heads <= QUERY_ROWS[0] {
            (few, QUERY_ROWS[0])
        } else {
            (many, QUERY_ROWS[1])
        };
        let n_splits = step.latent_splits(n_heads);
        let run_len = n_heads * n_splits * (dim_v + 2);
        let n_at_once = (scratch.partial.len() / run_len).clamp(1, self.max_grid_rows);
        for first in (0..n_runs).step_by(n_at_once) {
            let end = (first + n_at_once).min(n_runs);
            let n_here = end - first;
            // The runs of a list may be any tokens of the step.
            let tokens = if seq_starts.is_some() {
                0..n_tokens
            } else {
                first..end
            };
            let seq_starts = seq_starts
                .map(|starts| starts.range(first..end + 1))
                .transpose()?;
            let of_tokens = |width: usize| tokens.start * width..tokens.end * width;
            let positions = step.positions.range(tokens.clone())?;
            let args = Args::new()
                .read(q.range(of_tokens(n_heads * dim_k))?)
                .write_or_null::<f32>(None)
                .read(positions)
                .read(step.seq_of.range(tokens.clone())?)
                .read_or_null(seq_starts);
            let partial = scratch.partial.view_mut().range(0..n_here * run_len)?;
            let args = with_store(args, attention, *step, kv).count(1).write(partial);
            let grid = [n_heads.div_ceil(n_rows), n_splits, n_here];
            let shared_bytes = shared_bytes(WIDTHS[variant][0], n_rows);
            let launch = LaunchShape::new(grid, 8 * n_rows as u32).with_shared_bytes(shared_bytes);
            self.device.launch(kernel, launch, &args)?;
            let rows = match quantized {
                Some(rows) => {
                    let of_heads = tokens.len() * n_heads;
                    Some(rows.reborrow().rows(tokens.start * n_heads, of_heads, dim_v)?)
                }
                None => None,
            };
            let (bytes, scales) = QuantizedMut::split(rows);
            let args = Args::new()
                .read(scratch.partial.view().range(0..n_here * run_len)?)
                .read(positions)
                .read_or_null(seq_starts)
                .count(n_splits)
                .count(min_split(n_heads))
                .count(dim_v)
                .write(output.reborrow().range(of_tokens(n_heads * dim_v))?)
                .write_or_null(bytes)
                .write_or_null(scales);
            let launch = LaunchShape::new([n_heads, n_here, dim_v.div_ceil(128)], 128);
            self.device.launch(kernels.combine, launch, &args)?;
        }
        Ok(())
    }

    /// Multiplies each head's part of each row by the head's matrix:
    /// `output[r][h] = matrix[h] * input[r][h]`;
    /// `input: [n_rows, n_heads, n_in]`, in both forms if both exist, `output: [n_rows, n_heads, n_out]`.
    ///
    /// # Errors
    /// [`CudaExecError::Shape`], [`CudaExecError::Bounds`], or the driver's.
    pub fn heads_linear(
        &self,
        [n_rows, n_heads]: [usize; 2],
        floats: View<'_, f32>,
        quantized: Option<QuantizedView<'_>>,
        product: Product<'_>,
    ) -> Result<()> {
        let Product {
            matrix,
            bias,
            mut output,
        } = product;
        let (n_in, n_out) = (matrix.n_in(), matrix.n_out() / n_heads);
        check_equal("the rows of all heads", matrix.n_out(), n_heads * n_out)?;
        check_equal(
            "the length of a bias",
            bias.map_or(n_heads * n_out, |bias| bias.len()),
            n_heads * n_out,
        )?;
        let kernels = matrix.kernels.experts.ok_or(CudaExecError::Unsupported {
            feature: "product of heads' matrices that were not loaded for it".to_owned(),
        })?;
        let run_len = match n_rows {
            0..=16 if self.is_batch_invariant => 16,
            0..=8 => n_rows.next_power_of_two(),
            9..=16 => 16,
            _ => 64,
        };
        let tiled = kernels.of_runs(run_len);
        check_heads(n_heads)?;
        let n_at_once = (self.max_grid_rows / n_heads).max(1) * run_len;
        for first in (0..n_rows).step_by(n_at_once) {
            let end = (first + n_at_once).min(n_rows);
            let n_here = end - first;
            let len = |width: usize| first * n_heads * width..end * n_heads * width;
            let args = Args::new()
                .read(matrix.view())
                .read_or_null::<u8>(None)
                .read_or_null(bias)
                .read_or_null::<f32>(None)
                .write(output.reborrow().range(len(n_out))?)
                .write_or_null::<f32>(None)
                .count(n_heads)
                .count(n_here)
                .count(n_out)
                .count(n_in)
                .read_or_null::<u32>(None)
                .read_or_null::<u32>(None)
                .read_or_null::<u32>(None);
            let args = if matrix.takes_quantized_input() {
                let quantized = quantized.ok_or(CudaExecError::Unsupported {
                    feature: "product of quantized weights with f32 rows".to_owned(),
                })?;
                let rows = quantized.rows(first * n_heads, n_here * n_heads, n_in)?;
                args.read(rows.bytes).read(rows.scales)
            } else {
                args.read(floats.range(len(n_in))?)
            };
            let grid = [
                n_out.div_ceil(tiled.tile[0]),
                n_heads * n_here.div_ceil(run_len),
                1,
            ];
            let launch = LaunchShape::new(grid, tiled.n_threads);
            self.device.launch(tiled.kernel, launch, &args)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_are_long_enough_for_their_partial_results_and_few() {
        for n_heads in [1, 2, 16, 20, 64, 128, 200] {
            let len = min_split(n_heads);
            assert!(len.is_multiple_of(TILE) && (64..=1024).contains(&len));
        }
        assert_eq!(min_split(16), 128);
        assert_eq!(n_splits(0, 16), 1);
        assert_eq!(n_splits(128, 16), 1);
        assert_eq!(n_splits(129, 16), 2);
        assert_eq!(n_splits(1 << 20, 16), MAX_SPLITS);
    }

    #[test]
    fn the_kernels_fit_the_shared_memory_of_every_gpu() {
        // 100 KiB of an SM, 1 KiB of which the driver keeps.
        for [dim, _] in WIDTHS {
            for n_rows in QUERY_ROWS {
                assert!(shared_bytes(dim, n_rows) <= 99 << 10);
            }
        }
        assert_eq!(shared_bytes(576, 32), 95_232);
    }
}
