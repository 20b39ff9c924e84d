//! The operations on recurrent states. Kernels: `short_conv.cu`, `ssm_scan.cu`, `delta_net.cu`.
//!
//! The kernels are loaded only for networks that have states. Invariant: the step's inputs say where a state is, so a launch depends on
//! counts only and is captured like any other. Whole chunks of 16 tokens are computed at once, other tokens one by one; which of the two
//! applies depends on the tokens' positions, not on the other sequences of the step.

use tokenmill_backend::{DeltaDecays, DeltaNet, KeyHeads, ShortConv, SsmScan};

use super::{Ops, check_equal, check_multiple};
use crate::{
    Args, CudaExecError, Device, Kernel, LaunchShape, StateLayerMut, View, ViewMut,
    error::Result,
    states::{MAX_ROW, SLOT_RECORD_WORDS, check_row},
};

/// Tokens that a thread of a convolution takes.
const CONV_TOKENS: usize = 32;
/// Channels that a thread block of a convolution takes.
const CONV_CHANNELS: usize = 128;
/// Threads of a thread block of a recurrence.
const THREADS: usize = 256;
/// Rows of the width of a key that a thread block of a delta rule keeps: the queries and keys of 8 tokens, or, if channels have decays,
/// those of 4 tokens and their decays.
const NET_ROWS: usize = 8 * 2;
const NET_ROWS_OF_CHANNELS: usize = 4 * 3;
/// Lanes of a warp: the most that share a channel's values.
const MAX_LANES: usize = 32;
/// Values of a state that a lane keeps.
const LANE_LEN: usize = 16;
/// The same for short states.
const SHORT_LANE_LEN: usize = 4;
/// States up to this length are short.
const SHORT_STATE: usize = 32;

/// Number of tokens in a chunk.
const CHUNK_TOKENS: usize = 16;
/// Lanes of a kernel for chunks: a warp has 16 columns and 32 of their values, and the warps of a thread block share a column.
const CHUNK_LANES: std::ops::RangeInclusive<usize> = 2..=16;

/// The same if channels have decays: more lanes would need more shared memory than some GPUs have.
const CHANNEL_CHUNK_LANES: std::ops::RangeInclusive<usize> = 2..=8;

/// Returns the dynamic shared memory of a thread block that takes chunks; `chunks.cuh` has the layout.
const fn chunk_bytes(n_lanes: usize) -> usize {
    4 * (6464 + 1024 * n_lanes)
}

/// Returns the same if channels have decays.
const fn channel_chunk_bytes(n_lanes: usize) -> usize {
    chunk_bytes(n_lanes) + 4 * 3 * CHUNK_TOKENS * (LANE_LEN * n_lanes + 8)
}

const _: () = assert!(MAX_LANES * LANE_LEN == MAX_ROW);

/// The kernels of recurrent layers.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecurrentKernels {
    /// For up to 4 and up to 16 taps.
    short_conv: [Kernel; 2],
    /// With one decay for a head, and with one for each index of a state; each for short states and for others.
    ssm_scan: [[Kernel; 2]; 2],
    /// With one decay for a head and with one for each channel of a key.
    delta_net: [Kernel; 2],
    /// The same with chunks; for state space models with one decay per head.
    ssm_chunks: Kernel,
    delta_net_chunks: [Kernel; 2],
}

impl RecurrentKernels {
    fn load(device: &Device) -> Result<Self> {
        Ok(Self {
            short_conv: [
                device.kernel("short_conv", "short_conv_t4")?,
                device.kernel("short_conv", "short_conv_t16")?,
            ],
            ssm_scan: [
                [
                    device.kernel("ssm_scan", "ssm_scan_r4")?,
                    device.kernel("ssm_scan", "ssm_scan_r16")?,
                ],
                [
                    device.kernel("ssm_scan", "ssm_scan_own_r4")?,
                    device.kernel("ssm_scan", "ssm_scan_own_r16")?,
                ],
            ],
            delta_net: [
                device.kernel("delta_net", "delta_net")?,
                device.kernel("delta_net", "delta_net_channels")?,
            ],
            ssm_chunks: device.kernel_with_shared_bytes(
                "ssm_scan",
                "ssm_chunks",
                chunk_bytes(*CHUNK_LANES.end()),
            )?,
            delta_net_chunks: [
                device.kernel_with_shared_bytes(
                    "delta_net",
                    "delta_net_chunks",
                    chunk_bytes(*CHUNK_LANES.end()),
                )?,
                device.kernel_with_shared_bytes(
                    "delta_net",
                    "delta_net_channels_chunks",
                    channel_chunk_bytes(*CHANNEL_CHUNK_LANES.end()),
                )?,
            ],
        })
    }
}

/// The sequences of a step, and the places of their states.
#[derive(Clone, Copy, Debug)]
pub struct StateRuns<'a> {
    /// Offsets of the sequences in the tokens, `[n_seqs + 1]`.
    pub seq_starts: View<'a, u32>,
    /// Records of the sequences' slots, `[n_seqs]`.
    pub slots: View<'a, u32>,
    /// Sequences.
    pub n_seqs: usize,
    /// Tokens of the step.
    pub n_tokens: usize,
    /// Tokens of the longest sequence.
    pub longest: usize,
    /// Positions of the tokens, `[n_tokens]`: chunks begin at multiples of their length.
    pub positions: View<'a, u32>,
}

impl StateRuns<'_> {
    /// Returns whether a sequence may have a whole chunk.
    fn may_have_chunks(&self, n_lanes: usize, lanes: &std::ops::RangeInclusive<usize>) -> bool {
        self.longest >= CHUNK_TOKENS && lanes.contains(&n_lanes)
    }
}

/// A run of adjacent columns of rows.
#[derive(Clone, Copy, Debug)]
pub struct ColumnsView<'a> {
    /// The rows.
    pub rows: View<'a, f32>,
    /// Values of a row.
    pub row_width: usize,
    /// The first column.
    pub first: usize,
}

impl<'a> ColumnsView<'a> {
    /// Returns the view from the first column of the first of `n_rows` rows on, for rows of `width` values.
    fn values(self, n_rows: usize, width: usize) -> Result<View<'a, f32>> {
        if self.first + width > self.row_width {
            return Err(CudaExecError::Bounds {
                range: self.first..self.first + width,
                len: self.row_width,
            });
        }
        // A step without tokens has no rows.
        let end = n_rows * self.row_width;
        self.rows.range(self.first.min(end)..end)
    }

    /// Returns whether the columns are aligned, so that four values of a row from a multiple of four on start at a multiple of 16 bytes.
    fn is_aligned(self) -> bool {
        self.row_width.is_multiple_of(4) && self.first.is_multiple_of(4)
    }
}

/// The rows that [`Ops::ssm_scan`] reads.
#[derive(Clone, Copy, Debug)]
pub struct ScanRows<'a> {
    /// `[n_tokens, n_heads * head_dim]`.
    pub x: ColumnsView<'a>,
    /// `[n_tokens, n_groups * n_state]`.
    pub b: ColumnsView<'a>,
    /// `[n_tokens, n_groups * n_state]`.
    pub c: ColumnsView<'a>,
    /// `[n_tokens, n_heads]`.
    pub dt: View<'a, f32>,
}

/// The rows that [`Ops::delta_net`] reads.
#[derive(Clone, Copy, Debug)]
pub struct NetRows<'a> {
    /// Queries, keys and values, `[n_tokens, qkv_width]`.
    pub qkv: View<'a, f32>,
    /// `[n_tokens, n_v_heads]`, or `[n_tokens, n_v_heads, head_dim_k]` with decays of channels.
    pub alpha: View<'a, f32>,
    /// `[n_tokens, n_v_heads]`.
    pub beta: View<'a, f32>,
}

/// Returns the number of lanes that share a channel's state of `len` values, a power of two.
fn lanes_of(len: usize, lane_len: usize) -> Result<usize> {
    check_row(len)?;
    Ok(len.div_ceil(lane_len).max(1).next_power_of_two())
}

impl Ops {
    /// Loads the kernels of recurrent layers, before any step.
    ///
    /// # Errors
    /// [`CudaExecError::DriverTooOld`], or the driver's.
    pub fn load_recurrence(&mut self) -> Result<()> {
        self.recurrent = Some(RecurrentKernels::load(&self.device)?);
        Ok(())
    }

    fn recurrent(&self) -> &RecurrentKernels {
        self.recurrent.as_ref().expect("loaded with the states")
    }

    /// Convolves each sequence's rows; see [`ShortConv`]. `input`, `output`: `[n_tokens, n_channels]`.
    ///
    /// # Errors
    /// [`CudaExecError::Shape`], [`CudaExecError::Bounds`], or the driver's.
    ///
    /// # Panics
    /// When [`Self::load_recurrence`] was not called.
    pub fn short_conv(
        &self,
        conv: &ShortConv<View<'_, f32>>,
        step: StateRuns<'_>,
        layer: StateLayerMut<'_>,
        input: View<'_, f32>,
        output: ViewMut<'_, f32>,
    ) -> Result<()> {
        let (n_channels, n_taps) = (conv.n_channels, conv.n_taps);
        if !(2..=16).contains(&n_taps) {
            return Err(CudaExecError::Unsupported {
                feature: format!("convolutions of {n_taps} rows, only of 2 to 16"),
            });
        }
        let state_len = n_channels * (n_taps - 1);
        check_equal("states of a convolution", layer.shape.conv_len, state_len)?;
        let len = step.n_tokens * n_channels;
        let args = Args::new()
            .read(input.range(0..len)?)
            .read(conv.weight.range(0..n_channels * n_taps)?)
            .read_or_null(conv.bias.map(|bias| bias.range(0..n_channels)).transpose()?)
            .count(n_channels)
            .count(n_taps)
            .count(usize::from(conv.has_silu))
            .read(step.seq_starts)
            .read(step.slots.range(0..step.n_seqs * SLOT_RECORD_WORDS)?)
            .write(layer.slots)
            .count(layer.stride)
            .write(output.range(0..len)?);
        let grid = [
            n_channels.div_ceil(CONV_CHANNELS),
            step.longest.div_ceil(CONV_TOKENS).max(1),
            step.n_seqs,
        ];
        let kernel = self.recurrent().short_conv[usize::from(n_taps > 4)];
        self.device
            .launch(kernel, LaunchShape::new(grid, CONV_CHANNELS as u32), &args)
    }

    /// Runs a state space model over each sequence's rows; see [`SsmScan`]. `output`: `[n_tokens, n_heads * head_dim]`.
    ///
    /// # Errors
    /// [`CudaExecError::Unsupported`] for states of more than 512 values, or as [`Self::short_conv`].
    ///
    /// # Panics
    /// As [`Self::short_conv`].
    pub fn ssm_scan(
        &self,
        scan: &SsmScan<View<'_, f32>>,
        step: StateRuns<'_>,
        layer: StateLayerMut<'_>,
        rows: ScanRows<'_>,
        output: ViewMut<'_, f32>,
    ) -> Result<()> {
        let (n_heads, n_state) = (scan.n_heads, scan.n_state);
        let width = n_heads * scan.head_dim;
        check_equal(
            "states of a state space model",
            layer.shape.matrix_len,
            width * n_state,
        )?;
        check_multiple("the number of heads", n_heads, scan.n_groups)?;
        let is_long = n_state > SHORT_STATE;
        let lane_len = if is_long { LANE_LEN } else { SHORT_LANE_LEN };
        let n_lanes = lanes_of(n_state, lane_len)?;
        let n_tokens = step.n_tokens;
        let ScanRows { x, b, c, dt } = rows;
        let group_width = scan.n_groups * n_state;
        let is_aligned = n_state.is_multiple_of(4) && b.is_aligned() && c.is_aligned();
        let n_decays = if scan.has_own_decays {
            n_state * n_heads
        } else {
            n_heads
        };
        let n_columns = THREADS / n_lanes;
        let has_chunks = is_long
            && !scan.has_own_decays
            && scan.head_dim.is_multiple_of(n_columns)
            && step.may_have_chunks(n_lanes, &CHUNK_LANES)
            && !self.is_batch_invariant;
        let mut args = Args::new()
            .read(x.values(n_tokens, width)?)
            .count(x.row_width)
            .read(b.values(n_tokens, group_width)?)
            .count(b.row_width)
            .read(c.values(n_tokens, group_width)?)
            .count(c.row_width)
            .read(dt.range(0..n_tokens * n_heads)?)
            .count(n_heads)
            .count(scan.head_dim)
            .count(scan.n_groups)
            .count(n_state)
            .count(n_lanes)
            .count(usize::from(is_aligned))
            .read(scan.a.range(0..n_decays)?)
            .read(scan.skip.range(0..n_heads)?)
            .read(scan.dt_bias.range(0..n_heads)?)
            .read(step.seq_starts)
            .read(step.slots.range(0..step.n_seqs * SLOT_RECORD_WORDS)?);
        let grid = [width.div_ceil(n_columns), step.n_seqs, 1];
        let mut shape = LaunchShape::new(grid, THREADS as u32);
        let mut kernel = self.recurrent().ssm_scan[usize::from(scan.has_own_decays)][usize::from(is_long)];
        if has_chunks {
            args = args.read(step.positions);
            shape = shape.with_shared_bytes(chunk_bytes(n_lanes));
            kernel = self.recurrent().ssm_chunks;
        }
        let args = args
            .write(layer.slots)
            .count(layer.stride)
            .count(layer.matrix_start)
            .write(output.range(0..n_tokens * width)?);
        self.device.launch(kernel, shape, &args)
    }

    /// Runs the gated delta rule over each sequence's rows; see [`DeltaNet`]. `output`: `[n_tokens, n_v_heads * head_dim_v]`.
    ///
    /// # Errors
    /// [`CudaExecError::Unsupported`] for keys of more than 512 values, or as [`Self::short_conv`].
    ///
    /// # Panics
    /// As [`Self::short_conv`].
    pub fn delta_net(
        &self,
        net: &DeltaNet<View<'_, f32>>,
        step: StateRuns<'_>,
        layer: StateLayerMut<'_>,
        rows: NetRows<'_>,
        output: ViewMut<'_, f32>,
    ) -> Result<()> {
        let (n_v_heads, dim_k, dim_v) = (net.n_v_heads, net.head_dim_k, net.head_dim_v);
        let n_values = n_v_heads * dim_v;
        check_equal("states of a delta rule", layer.shape.matrix_len, n_values * dim_k)?;
        check_multiple("the number of value heads", n_v_heads, net.n_k_heads)?;
        let n_lanes = lanes_of(dim_k, LANE_LEN)?;
        let n_tokens = step.n_tokens;
        let n_decays = n_v_heads * net.decays_of_head();
        let mut args = Args::new()
            .read(rows.qkv.range(0..n_tokens * net.qkv_width())?)
            .read(rows.alpha.range(0..n_tokens * n_decays)?)
            .read(rows.beta.range(0..n_tokens * n_v_heads)?)
            .count(net.n_k_heads)
            .count(n_v_heads)
            .count(dim_k)
            .count(dim_v)
            .count(usize::from(net.key_heads == KeyHeads::Tiled))
            .count(n_lanes)
            .read(net.a.range(0..n_v_heads)?)
            .read(net.dt_bias.range(0..n_decays)?)
            .read(step.seq_starts)
            .read(step.slots.range(0..step.n_seqs * SLOT_RECORD_WORDS)?);
        let n_blocks = n_v_heads * dim_v.div_ceil(THREADS / n_lanes);
        let of_channels = net.decays == DeltaDecays::OfChannels;
        let lanes = if of_channels {
            CHANNEL_CHUNK_LANES
        } else {
            CHUNK_LANES
        };
        let has_chunks = step.may_have_chunks(n_lanes, &lanes) && !self.is_batch_invariant;
        let kept_bytes = |n_rows: usize| n_rows * LANE_LEN * n_lanes * size_of::<f32>();
        let shared_bytes = match (net.decays, has_chunks) {
            (DeltaDecays::OfHeads, false) => kept_bytes(NET_ROWS),
            (DeltaDecays::OfHeads, true) => chunk_bytes(n_lanes),
            (DeltaDecays::OfChannels, false) => kept_bytes(NET_ROWS_OF_CHANNELS),
            (DeltaDecays::OfChannels, true) => channel_chunk_bytes(n_lanes),
        };
        let kernels = self.recurrent();
        let mut kernel = kernels.delta_net[usize::from(of_channels)];
        if has_chunks {
            args = args.read(step.positions);
            kernel = kernels.delta_net_chunks[usize::from(of_channels)];
        }
        let args = args
            .write(layer.slots)
            .count(layer.stride)
            .count(layer.matrix_start)
            .write(output.range(0..n_tokens * n_values)?);
        let shape =
            LaunchShape::new([n_blocks, step.n_seqs, 1], THREADS as u32).with_shared_bytes(shared_bytes);
        self.device.launch(kernel, shape, &args)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_lie_inside_their_rows_and_a_step_may_have_none() {
        let device = crate::driver::simulated(&tokenmill_sim_driver::Simulator::new(
            &tokenmill_sim_driver::SimOptions::default(),
        ));
        let rows = device.upload("rows", &[0.0f32; 20]).unwrap();
        let columns = |first| ColumnsView {
            rows: rows.view(),
            row_width: 10,
            first,
        };
        assert_eq!(columns(4).values(2, 6).unwrap().len(), 16);
        assert_eq!(columns(4).values(0, 6).unwrap().len(), 0);
        assert!(columns(5).values(2, 6).is_err());
    }

    #[test]
    fn heads_that_do_not_divide_are_refused() {
        let device = crate::driver::simulated(&tokenmill_sim_driver::Simulator::new(
            &tokenmill_sim_driver::SimOptions::default(),
        ));
        let mut ops = Ops::load(&device).unwrap();
        ops.load_recurrence().unwrap();
        let values = device.upload("values", &[0.0f32; 256]).unwrap();
        let words = device.upload("words", &[0u32; 8]).unwrap();
        let mut output = device.alloc("output", 256).unwrap();
        let step = StateRuns {
            seq_starts: words.view(),
            slots: words.view(),
            n_seqs: 1,
            n_tokens: 1,
            longest: 1,
            positions: words.view(),
        };
        let layout = tokenmill_backend::StateLayout {
            layers: vec![tokenmill_backend::StateLayerShape {
                conv_len: 0,
                matrix_len: 3 * 4 * 4,
                matrix_row: 4,
            }],
            n_states: 1,
        };
        let mut states = crate::StateSlots::new(&device, &layout).unwrap();
        let view = values.view();
        let columns = ColumnsView {
            rows: view,
            row_width: 64,
            first: 0,
        };
        let scan = SsmScan {
            state_idx: 0,
            n_heads: 3,
            head_dim: 4,
            n_groups: 2,
            n_state: 4,
            a: view,
            has_own_decays: false,
            skip: view,
            dt_bias: view,
        };
        let rows = ScanRows {
            x: columns,
            b: columns,
            c: columns,
            dt: view,
        };
        let refused = ops.ssm_scan(&scan, step, states.layer_mut(0), rows, output.view_mut());
        assert!(
            matches!(refused, Err(CudaExecError::Shape { found: 3, .. })),
            "{refused:?}"
        );
        let net = DeltaNet {
            state_idx: 0,
            n_k_heads: 2,
            n_v_heads: 3,
            head_dim_k: 4,
            head_dim_v: 4,
            key_heads: KeyHeads::Grouped,
            decays: DeltaDecays::OfHeads,
            a: view,
            dt_bias: view,
        };
        let rows = NetRows {
            qkv: view,
            alpha: view,
            beta: view,
        };
        let refused = ops.delta_net(&net, step, states.layer_mut(0), rows, output.view_mut());
        assert!(
            matches!(refused, Err(CudaExecError::Shape { found: 3, .. })),
            "{refused:?}"
        );
        let refused = ops.take_columns(view, [2, 10], [5, 6], output.view_mut());
        assert!(
            matches!(refused, Err(CudaExecError::Bounds { .. })),
            "{refused:?}"
        );
    }
}
