//! Attention and what stands between it and the projections, as [`CudaBackend`] launches them.
//!
//! Separate from the other operations because a decode step has both in one launch, where there is a kernel for it.

use tokenmill_backend::{Attention, BackendError, KvLayerShape, Norm, NormKind, RopeStoreKv, StepShape};

use super::{CudaBackend, CudaBuffer, Workspace, prepared};

/// The norms of query and key heads, and what is added to their mean squares.
type HeadNorms<'a> = ([Option<crate::View<'a, f32>>; 2], f32);

/// Values and their quantized form, as attention over a layer of this shape writes them.
fn written(
    output: &mut CudaBuffer,
    n_heads: usize,
    n_tokens: usize,
    heads: KvLayerShape,
) -> (crate::ViewMut<'_, f32>, Option<crate::QuantizedMut<'_>>) {
    // What latent attention gives is read by a matrix of each head.
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

impl CudaBackend {
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
        Ok(self.ops.attention(
            attention,
            &inputs.attention(shape, group)?,
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
        let (norms, eps) = self.head_norms(&mut job, n_tokens)?;
        let (q, k, v) = (job.q, job.k, job.v);
        let workspace = prepared(&mut self.workspace);
        let kv = self.kv.as_mut().expect("the KV store was allocated at load");
        let (group, layer_idx) = kv.place(job.layer_idx);
        Ok(self.ops.rope_kv(
            job.rope,
            job.q_width / self.kv_heads[job.layer_idx].head_dim_k,
            workspace.inputs.places(n_tokens, group)?,
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

    /// Both in one launch where there is a kernel for the step and the layer.
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
        let step = inputs.attention(shape, group)?;
        let shares = (self.ops).attends_shared(attention, &step, heads, types, scratch);
        if shares || !crate::Ops::can_turn(attention, &step, heads, types) {
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
            &inputs.attention(shape, group)?,
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

    /// The norms that the kernels compute themselves: of heads, by RMS and weight. Others are computed here, in place.
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
