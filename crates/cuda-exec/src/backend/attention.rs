//! Launches attention, and the operations between it and the projections, for [`CudaBackend`].
//!
//! Where a kernel exists for it, a decode step does both in one launch.

use tokenmill_backend::{
    Attention, Backend as _, BackendError, KvLayerShape, Norm, NormKind, Rope, RopeAxes, RopeStoreKv,
    StepShape,
};

use super::{CudaBackend, CudaBuffer, Workspace, places::TurningPositions, prepared};

/// Holds the norms of query and key heads, and the epsilon of their mean squares.
type HeadNorms<'a> = ([Option<crate::View<'a, f32>>; 2], f32);

/// Returns values and their quantized form for writing by attention over a layer of this shape.
fn written(
    output: &mut CudaBuffer,
    n_heads: usize,
    n_tokens: usize,
    heads: KvLayerShape,
) -> (crate::ViewMut<'_, f32>, Option<crate::QuantizedMut<'_>>) {
    // The output of latent attention is read by one matrix per head.
    let rows = if heads.has_values_in_keys {
        [n_tokens * n_heads, heads.head_dim_v]
    } else {
        [n_tokens, n_heads * heads.head_dim_v]
    };
    // The kernel quantizes whole warps of a head.
    if heads.head_dim_v.is_multiple_of(32) {
        output.write_both(rows)
    } else {
        (output.write(), None)
    }
}

/// Returns whether a rope rotates pairs of heads by the positions of their axes, in steps that have such positions.
fn has_axes(rope: Option<&Rope<crate::Buffer<f32>>>) -> bool {
    rope.is_some_and(|rope| rope.axes != RopeAxes::One)
}

impl CudaBackend {
    /// Returns whether the current step's tokens have a position for each axis of this rope.
    fn turns_by_axes(
        &mut self,
        rope: &Rope<crate::Buffer<f32>>,
        n_tokens: usize,
    ) -> Result<bool, BackendError> {
        let turning = prepared(&mut self.workspace).inputs.turning(n_tokens)?;
        Ok(has_axes(Some(rope)) && matches!(turning, Some(TurningPositions::Axes(_))))
    }

    /// Rotates heads by the current step's positions, `heads: [T, row_width]`.
    pub(super) fn turn(
        &mut self,
        rope: &Rope<crate::Buffer<f32>>,
        n_tokens: usize,
        row_width: usize,
        heads: &mut CudaBuffer,
    ) -> Result<(), BackendError> {
        let inputs = &prepared(&mut self.workspace).inputs;
        let turning = inputs.turning(n_tokens)?.filter(|_| has_axes(Some(rope)));
        match turning {
            None => (self.ops).rope(rope, inputs.positions(n_tokens)?, row_width, heads.write())?,
            Some(TurningPositions::Single(positions)) => {
                self.ops.rope(rope, positions, row_width, heads.write())?;
            }
            Some(TurningPositions::Axes(positions)) => {
                self.ops.rope_axes(rope, positions, row_width, heads.write())?;
            }
        }
        Ok(())
    }

    pub(super) fn attend(
        &mut self,
        attention: &Attention<crate::Buffer<f32>>,
        shape: &StepShape,
        q: &CudaBuffer,
        output: &mut CudaBuffer,
    ) -> Result<(), BackendError> {
        let kv = self.kv.as_ref().expect("the KV store was allocated at load");
        let (group, layer_idx) = kv.place(attention.layer_idx);
        let Workspace {
            inputs,
            attention: scratch,
            ..
        } = prepared(&mut self.workspace);
        let heads = self.kv_heads[attention.layer_idx];
        let (values, form) = written(output, attention.n_heads, shape.n_tokens, heads);
        let (step, sees_ahead) = inputs.attention(shape, group, attention.is_causal)?;
        if sees_ahead {
            return Ok(self.ops.attention_of_seen(
                attention,
                &step,
                kv.group(group).layer(layer_idx),
                q.read(),
                values,
                form,
                scratch,
            )?);
        }
        Ok(self.ops.attention(
            attention,
            &step,
            kv.group(group).layer(layer_idx),
            q.read(),
            values,
            form,
            scratch,
        )?)
    }

    pub(super) fn turn_and_store(
        &mut self,
        mut job: RopeStoreKv<'_, Self>,
        n_tokens: usize,
    ) -> Result<(), BackendError> {
        if let Some(rope) = job.rope
            && self.turns_by_axes(rope, n_tokens)?
        {
            return self.turn_by_axes_and_store(rope, job, n_tokens);
        }
        let (norms, eps) = self.head_norms(&mut job, n_tokens)?;
        let (q, k, v) = (job.q, job.k, job.v);
        let workspace = prepared(&mut self.workspace);
        let kv = self.kv.as_mut().expect("the KV store was allocated at load");
        let (group, layer_idx) = kv.place(job.layer_idx);
        let mut places = workspace.inputs.places(n_tokens, group)?;
        if has_axes(job.rope)
            && let Some(TurningPositions::Single(positions)) = workspace.inputs.turning(n_tokens)?
        {
            places.positions = positions;
        }
        Ok(self.ops.rope_kv(
            job.rope,
            job.q_width / self.kv_heads[job.layer_idx].head_dim_k,
            places,
            crate::RopeTargets {
                q: q.write(),
                k: k.write(),
                v: v.read(),
                norms,
                eps,
            },
            kv.group_mut(group).layer_mut(layer_idx),
        )?)
    }

    /// Does the same as [`Self::turn_and_store`] for tokens with a position for each axis. The image of another sequence may bring a
    /// sequence into such a step, so heads are normed by the kernel that all other steps use.
    fn turn_by_axes_and_store(
        &mut self,
        rope: &Rope<crate::Buffer<f32>>,
        job: RopeStoreKv<'_, Self>,
        n_tokens: usize,
    ) -> Result<(), BackendError> {
        let RopeStoreKv {
            layer_idx,
            q_norm,
            k_norm,
            q_width,
            k_width,
            q,
            k,
            v,
            ..
        } = job;
        if q_norm.is_some() || k_norm.is_some() {
            let normed = RopeStoreKv {
                layer_idx,
                q_norm,
                k_norm,
                rope: None,
                q_width,
                k_width,
                q: &mut *q,
                k: &mut *k,
                v,
            };
            self.turn_and_store(normed, n_tokens)?;
        }
        self.turn(rope, n_tokens, q_width, q)?;
        self.turn(rope, n_tokens, k_width, k)?;
        self.store_kv(layer_idx, n_tokens, k, v)
    }

    /// Does both in one launch if a kernel exists for the step and the layer.
    pub(super) fn turn_and_attend(
        &mut self,
        mut job: RopeStoreKv<'_, Self>,
        attention: &Attention<crate::Buffer<f32>>,
        shape: &StepShape,
        output: &mut CudaBuffer,
    ) -> Result<(), BackendError> {
        let heads = self.kv_heads[job.layer_idx];
        let kv = self.kv.as_mut().expect("the KV store was allocated at load");
        let (group, layer_idx) = kv.place(job.layer_idx);
        let types = kv.group_mut(group).layer_mut(layer_idx).types;
        let Workspace {
            inputs,
            attention: scratch,
            ..
        } = prepared(&mut self.workspace);
        let (step, _) = inputs.attention(shape, group, attention.is_causal)?;
        let shares = (self.ops).attends_shared(attention, &step, heads, types, scratch);
        let turns_otherwise = has_axes(job.rope) && inputs.turning(shape.n_tokens)?.is_some();
        if shares || turns_otherwise || !crate::Ops::can_turn(attention, &step, heads, types) {
            let q = job.q;
            let job = RopeStoreKv { q: &mut *q, ..job };
            self.turn_and_store(job, shape.n_tokens)?;
            return self.attend(attention, shape, q, output);
        }
        let (norms, eps) = self.head_norms(&mut job, shape.n_tokens)?;
        let Workspace {
            inputs,
            attention: scratch,
            ..
        } = prepared(&mut self.workspace);
        let kv = self.kv.as_mut().expect("the KV store was allocated at load");
        let (values, form) = written(output, attention.n_heads, shape.n_tokens, heads);
        Ok(self.ops.turn_attention(
            attention,
            &inputs.attention(shape, group, attention.is_causal)?.0,
            job.rope,
            crate::NewRows {
                q: job.q.read(),
                k: job.k.read(),
                v: job.v.read(),
                slots: inputs.places(shape.n_tokens, group)?.slots,
                norms,
                eps,
            },
            kv.group_mut(group).layer_mut(layer_idx),
            values,
            form,
            scratch,
        )?)
    }

    /// Returns the norms that the kernels compute themselves (RMS norms of heads with a weight). Other norms are computed here, in
    /// place.
    fn head_norms<'a>(
        &self,
        job: &mut RopeStoreKv<'a, Self>,
        n_tokens: usize,
    ) -> Result<HeadNorms<'a>, BackendError> {
        let head_dim = self.kv_heads[job.layer_idx].head_dim_k;
        let eps = job.q_norm.map_or(0.0, |norm| norm.eps);
        let is_fused = |norm: &Norm<crate::Buffer<f32>>| {
            norm.kind == NormKind::Rms
                && norm.width == head_dim
                && norm.bias.is_none()
                && norm.eps == eps
                && (norm.weight.as_ref()).is_some_and(|weight| weight.len() == norm.width)
        };
        let mut norms = [None, None];
        let all = [
            (job.q_norm, job.q_width, &mut *job.q),
            (job.k_norm, job.k_width, &mut *job.k),
        ];
        for (place, (norm, row_width, rows)) in norms.iter_mut().zip(all) {
            match norm {
                Some(norm) if is_fused(norm) => *place = norm.weight.as_ref().map(crate::Buffer::view),
                Some(norm) => self.ops.norm_in_place(norm, n_tokens, row_width, rows.write())?,
                None => {}
            }
        }
        Ok((norms, eps))
    }
}
