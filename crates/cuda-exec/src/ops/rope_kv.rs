//! Rotation, and the storing of keys and values. Kernels: `rope_kv.cu`.

use super::{Ops, check_multiple, with_types};
use tokenmill_backend::{Rope, RopeAxes, RopeStyle};

use crate::{Args, Buffer, CudaExecError, LaunchShape, View, ViewMut, error::Result, kv::KvLayerMut};

/// Returns the kernels' code for the pairs that are rotated.
pub(super) fn code(style: RopeStyle) -> usize {
    match style {
        RopeStyle::Norm => 0,
        RopeStyle::Neox => 1,
    }
}

/// Returns the error for values that a layer has no room for.
pub(super) fn values_in_keys() -> CudaExecError {
    CudaExecError::Unsupported {
        feature: "a store of values where they are in the keys".to_owned(),
    }
}

/// Heads of a token for one warp if there are many tokens: it computes their angles once, and fewer thread blocks run one after the other.
const HEADS_OF_WARP: usize = 8;
/// Smallest number of tokens that give enough warps this way.
const MANY_TOKENS: usize = 256;

/// Returns the number of warps for each token with `n_heads` heads.
fn n_warps(n_heads: usize, n_tokens: usize) -> usize {
    if n_tokens < MANY_TOKENS {
        n_heads
    } else {
        n_heads.div_ceil(HEADS_OF_WARP)
    }
}

/// The positions and slots of a step's tokens.
#[derive(Clone, Copy, Debug)]
pub struct StepPlaces<'a> {
    /// Position of each token, `[T]`; `u32::MAX` for padding.
    pub positions: View<'a, u32>,
    /// Slot of each token in the KV store, `[T]`; `u32::MAX` stores nothing.
    pub slots: View<'a, u32>,
}

/// The inputs and outputs of [`Ops::rope_kv`].
#[derive(Debug)]
pub struct RopeTargets<'a> {
    /// `[T, n_heads, dim_k]`, rotated in place.
    pub q: ViewMut<'a, f32>,
    /// `[T, n_kv_heads, dim_k]`, rotated in place and stored.
    pub k: ViewMut<'a, f32>,
    /// `[T, n_kv_heads, dim_v]`, stored.
    pub v: View<'a, f32>,
    /// RMS norm of each query and key head before the rotation, `[dim_k]` each.
    pub norms: [Option<View<'a, f32>>; 2],
    /// The epsilon of those norms.
    pub eps: f32,
}

impl Ops {
    /// Normalizes, rotates and stores: queries and keys in place, keys and values in the layer's store.
    ///
    /// # Errors
    /// [`CudaExecError::Bounds`](crate::CudaExecError::Bounds), or the driver's.
    pub fn rope_kv(
        &self,
        rope: Option<&Rope<Buffer<f32>>>,
        n_heads: usize,
        places: StepPlaces<'_>,
        targets: RopeTargets<'_>,
        kv: KvLayerMut<'_>,
    ) -> Result<()> {
        let n_tokens = places.positions.len();
        let KvLayerMut { types, shape, k, v } = kv;
        let (dim_k, dim_v, n_kv_heads) = (shape.head_dim_k, shape.head_dim_v, shape.n_kv_heads);
        let norm =
            |norm: Option<View<'_, f32>>| norm.map(|norm| norm.range(0..dim_k)).transpose().map(|_| ());
        let v = v.ok_or_else(values_in_keys)?;
        norm(targets.norms[0])?;
        norm(targets.norms[1])?;
        let inv_freqs = rope
            .map(|rope| rope.inv_freqs.view().range(0..rope.n_dims / 2))
            .transpose()?;
        let args = Args::new()
            .write(targets.q.range(0..n_tokens * n_heads * dim_k)?)
            .write(targets.k.range(0..n_tokens * n_kv_heads * dim_k)?)
            .read(targets.v.range(0..n_tokens * n_kv_heads * dim_v)?)
            .read(places.positions)
            .read(places.slots.range(0..n_tokens)?)
            .read_or_null(inv_freqs)
            .float(rope.map_or(1.0, |rope| rope.magnitude))
            .count(rope.map_or(0, |rope| rope.n_dims))
            .count(rope.map_or(0, |rope| code(rope.style)))
            .read_or_null(targets.norms[0])
            .read_or_null(targets.norms[1])
            .float(targets.eps)
            .count(n_heads)
            .count(n_kv_heads)
            .count(dim_k)
            .count(dim_v)
            .write(k)
            .write(v);
        let shape = LaunchShape::new([n_warps(n_heads + 2 * n_kv_heads, n_tokens), n_tokens, 1], 32)
            .with_shared_bytes(4 * dim_k);
        self.device.launch(
            self.store_kernels(types)?.rope_kv,
            shape,
            &with_types(args, types),
        )
    }

    /// Stores keys and values `[T, ..]` as they are.
    ///
    /// # Errors
    /// As [`Self::rope_kv`].
    pub fn store_kv(
        &self,
        places: StepPlaces<'_>,
        [k, v]: [View<'_, f32>; 2],
        kv: KvLayerMut<'_>,
    ) -> Result<()> {
        let len = places.positions.len() * kv.shape.n_kv_heads * kv.shape.head_dim_v;
        if kv.v.is_none() {
            return Err(values_in_keys());
        }
        self.store(places, k, Some(v.range(0..len)?), kv)
    }

    /// Stores keys `[T, ..]` as they are, in a layer whose values are part of its keys.
    ///
    /// # Errors
    /// As [`Self::rope_kv`].
    pub fn store_keys(&self, places: StepPlaces<'_>, k: View<'_, f32>, kv: KvLayerMut<'_>) -> Result<()> {
        self.store(places, k, None, kv)
    }

    fn store(
        &self,
        places: StepPlaces<'_>,
        k: View<'_, f32>,
        v: Option<View<'_, f32>>,
        kv: KvLayerMut<'_>,
    ) -> Result<()> {
        let n_tokens = places.positions.len();
        let (shape, types) = (kv.shape, kv.types);
        let k_len = n_tokens * shape.n_kv_heads * shape.head_dim_k;
        let n_of_head = if v.is_some() { 2 } else { 1 };
        // Without queries, norms and frequencies the kernel writes back the keys it read; without thread blocks for values it reads none.
        let args = Args::new()
            .read_or_null::<f32>(None)
            .read(k.range(0..k_len)?)
            .read_or_null(v)
            .read(places.positions)
            .read(places.slots.range(0..n_tokens)?)
            .read_or_null::<f32>(None)
            .float(1.0)
            .count(0)
            .count(0)
            .read_or_null::<f32>(None)
            .read_or_null::<f32>(None)
            .float(0.0)
            .count(0)
            .count(shape.n_kv_heads)
            .count(shape.head_dim_k)
            .count(shape.head_dim_v)
            .write(kv.k)
            .write_or_null(kv.v);
        let grid = [n_of_head * shape.n_kv_heads, n_tokens, 1];
        let launch = LaunchShape::new(grid, 32).with_shared_bytes(4 * shape.head_dim_k);
        self.device.launch(
            self.store_kernels(types)?.rope_kv,
            launch,
            &with_types(args, types),
        )
    }

    /// Rotates the heads of rows `[T, row_width]` in place.
    ///
    /// # Errors
    /// [`CudaExecError::Shape`](crate::CudaExecError::Shape) if heads do not fill a row, or as [`Self::rope_kv`].
    pub fn rope(
        &self,
        rope: &Rope<Buffer<f32>>,
        positions: View<'_, u32>,
        row_width: usize,
        rows: ViewMut<'_, f32>,
    ) -> Result<()> {
        let head_dim = rope.head_dim;
        check_multiple("the width of a row", row_width, head_dim)?;
        let n_tokens = positions.len();
        let args = Args::new()
            .write(rows.range(0..n_tokens * row_width)?)
            .read(positions)
            .read(rope.inv_freqs.view().range(0..rope.n_dims / 2)?)
            .float(rope.magnitude)
            .count(rope.n_dims)
            .count(code(rope.style))
            .count(head_dim)
            .count(row_width);
        let shape = LaunchShape::new([row_width / head_dim, n_tokens, 1], 32);
        self.device.launch(self.rope, shape, &args)
    }

    /// Rotates the heads of rows `[T, row_width]` in place, each pair by one of its token's three positions, `positions: [T, 3]`.
    ///
    /// # Errors
    /// As [`Self::rope`].
    pub fn rope_axes(
        &self,
        rope: &Rope<Buffer<f32>>,
        positions: View<'_, u32>,
        row_width: usize,
        rows: ViewMut<'_, f32>,
    ) -> Result<()> {
        let head_dim = rope.head_dim;
        check_multiple("the width of a row", row_width, head_dim)?;
        let n_tokens = positions.len() / 3;
        let (takes_turns, n_pairs) = match rope.axes {
            // The first position then turns all pairs.
            RopeAxes::One => (false, [rope.n_dims / 2, 0, 0]),
            RopeAxes::Sections(n_pairs) => (false, n_pairs),
            RopeAxes::Interleaved(n_pairs) => (true, n_pairs),
        };
        let args = Args::new()
            .write(rows.range(0..n_tokens * row_width)?)
            .read(positions.range(0..3 * n_tokens)?)
            .read(rope.inv_freqs.view().range(0..rope.n_dims / 2)?)
            .float(rope.magnitude)
            .count(rope.n_dims)
            .count(code(rope.style))
            .count(head_dim)
            .count(row_width)
            .count(usize::from(takes_turns))
            .count(n_pairs[0])
            .count(n_pairs[1])
            .count(n_pairs[2]);
        let shape = LaunchShape::new([row_width / head_dim, n_tokens, 1], 32);
        self.device.launch(self.rope_axes, shape, &args)
    }
}
