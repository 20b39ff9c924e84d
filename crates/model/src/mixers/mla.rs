//! [`LatentMixer`]: attention over latent rows (MLA), with the matrices of keys and values absorbed.
//!
//! ```text
//! c = norm(W_kv_a x)    r = rope(W_kr x)               store the row [c, r]
//! p[h], s[h] = W_q[h] x, rope(W_qr[h] x)               or of norm(W_q_a x)
//! a[h] = attention of [W_k_b[h] p[h], s[h]] to the rows, whose values are their c
//! mixed[h] = W_v_b[h] a[h]                             output = W_o mixed
//! ```

use tokenmill_backend::{
    Attention, Backend, BackendError, ExecutorLimits, JoinedRows, Linear, LinearJob, Memory, Norm, Rope,
    StepShape,
};

use crate::{
    Descriptor, LatentDescriptor, LoadError, Presence,
    loader::{LayerPlace, Loader, RowsOf},
};

use super::MixerRows;

/// The weights of latent attention.
pub(crate) struct LatentMixer<M: Memory> {
    /// The row for queries, if they are computed from one.
    q_low: Option<LowRow<M>>,
    q_plain: Linear<M::Matrix, M::Vector>,
    q_rotated: Linear<M::Matrix, M::Vector>,
    kv_low: Linear<M::Matrix, M::Vector>,
    kv_norm: Norm<M::Vector>,
    k_rotated: Linear<M::Matrix, M::Vector>,
    /// One matrix per head.
    k_b: Linear<M::Matrix, M::Vector>,
    v_b: Linear<M::Matrix, M::Vector>,
    rope: Option<usize>,
    attention: Attention<M::Vector>,
    pub(super) output: Linear<M::Matrix, M::Vector>,
}

/// The weights that compute the row for queries.
struct LowRow<M: Memory> {
    linear: Linear<M::Matrix, M::Vector>,
    norm: Norm<M::Vector>,
}

/// Intermediate results of latent attention.
pub(super) struct LatentBuffers<T> {
    /// `[T, q_rank]`, if there is such a row.
    q_low: Option<T>,
    /// `[T, n_heads, plain_dim]`.
    q_plain: T,
    /// `[T, n_heads, rotated_dim]`.
    q_rotated: T,
    /// `[T, kv_rank]`.
    kv_low: T,
    /// `[T, rotated_dim]`.
    k_rotated: T,
    /// `[T, kv_rank + rotated_dim]`.
    row: T,
    /// `[T, n_heads, kv_rank]`: queries in the latent space, then attention's output.
    latent: T,
    /// `[T, n_heads, kv_rank + rotated_dim]`.
    q: T,
}

impl<M: Memory> LatentMixer<M> {
    pub(super) fn load(
        place: LayerPlace,
        latent: &LatentDescriptor,
        loader: &mut Loader<'_, M>,
    ) -> Result<Self, LoadError> {
        let n_embd = loader.descriptor.n_embd;
        let name = |part| place.name(part);
        let LatentDescriptor {
            n_heads,
            kv_rank,
            plain_dim,
            rotated_dim,
            head_dim_v,
            ..
        } = *latent;
        let norm = loader.descriptor.rms_norm();
        let none = Presence::Absent;
        let (q_low, q_name, q_width) = match latent.q_rank {
            None => (None, name("attn_q"), n_embd),
            Some(rank) => {
                let linear = loader.linear(&name("attn_q_a"), rank, n_embd, none)?;
                let norm = loader.norm(&name("attn_q_a_norm"), rank, norm)?;
                (Some(LowRow { linear, norm }), name("attn_q_b"), rank)
            }
        };
        // The file has the rows of the unrotated and the rotated part, head after head.
        let stride = latent.head_dim_k();
        let mut of_heads = |first, n_rows| {
            let rows = RowsOf {
                first,
                n_rows,
                n_total: n_heads * stride,
                n_runs: n_heads,
                stride,
            };
            loader.linear_part(&q_name, rows, q_width, none)
        };
        let (q_plain, q_rotated) = (of_heads(0, plain_dim)?, of_heads(plain_dim, rotated_dim)?);
        let mut of_row = |first, n_rows| {
            let rows = RowsOf::run(first, n_rows, latent.row_width());
            loader.linear_part(&name("attn_kv_a_mqa"), rows, n_embd, none)
        };
        let (kv_low, k_rotated) = (of_row(0, kv_rank)?, of_row(kv_rank, rotated_dim)?);
        // Older files, and folders, join the two matrices of each head, with the key matrix not absorbed.
        let joined = name("attn_kv_b");
        let (k_b, v_b) = if loader.source.contains(&format!("{joined}.weight")) {
            let part = |first, n_rows| RowsOf {
                first,
                n_rows,
                n_total: n_heads * (plain_dim + head_dim_v),
                n_runs: n_heads,
                stride: plain_dim + head_dim_v,
            };
            (
                loader.heads_transposed(&joined, part(0, plain_dim), kv_rank)?,
                loader.heads(&joined, part(plain_dim, head_dim_v), kv_rank)?,
            )
        } else {
            let all = |n_rows| RowsOf::all(n_rows);
            (
                loader.experts(&name("attn_k_b"), n_heads, all(kv_rank), plain_dim, none)?,
                loader.experts(&name("attn_v_b"), n_heads, all(head_dim_v), kv_rank, none)?,
            )
        };
        Ok(Self {
            q_low,
            q_plain,
            q_rotated,
            kv_low,
            kv_norm: loader.norm(&name("attn_kv_a_norm"), kv_rank, norm)?,
            k_rotated,
            k_b,
            v_b,
            rope: latent.rope,
            attention: Attention {
                layer_idx: place.kv_idx,
                n_heads,
                scale: latent.scale,
                is_causal: true,
                window: None,
                is_chunked: false,
                softcap: None,
                sinks: None,
                slopes: None,
            },
            output: loader.linear(&name("attn_output"), n_embd, n_heads * head_dim_v, none)?,
        })
    }
}

impl<B: Backend> LatentMixer<B> {
    pub(super) fn mix(
        &self,
        backend: &mut B,
        ropes: &[Rope<B::Vector>],
        shape: &StepShape,
        rows: &mut MixerRows<'_, B::Buffer>,
        buffers: &mut LatentBuffers<B::Buffer>,
        wants_output: bool,
    ) -> Result<(), BackendError> {
        let n_tokens = shape.n_tokens;
        let (n_heads, kv_rank, rotated_dim) =
            (self.attention.n_heads, self.kv_low.n_out, self.k_rotated.n_out);
        let LatentBuffers {
            q_low,
            q_plain,
            q_rotated,
            kv_low,
            k_rotated,
            row,
            latent,
            q,
        } = buffers;
        let mut jobs = [(&self.kv_low, &mut *kv_low), (&self.k_rotated, &mut *k_rotated)]
            .map(|(linear, output)| LinearJob { linear, output });
        backend.linear_group(rows.input, n_tokens, &mut jobs)?;
        backend.norm_in_place(&self.kv_norm, n_tokens, kv_rank, kv_low)?;
        let rope = self.rope.map(|rope_idx| &ropes[rope_idx]);
        if let Some(rope) = rope {
            backend.rope(rope, n_tokens, rotated_dim, k_rotated)?;
        }
        let part = |rows, width| JoinedRows { rows, width };
        backend.join(
            n_tokens,
            part(&*kv_low, kv_rank),
            part(&*k_rotated, rotated_dim),
            row,
        )?;
        backend.store_latent(self.attention.layer_idx, n_tokens, row)?;
        if !wants_output {
            return Ok(());
        }
        let q_input = match &self.q_low {
            None => rows.input,
            Some(LowRow { linear, norm }) => {
                let q_low = q_low.as_mut().expect("allocated for latent queries");
                backend.linear(linear, rows.input, n_tokens, q_low)?;
                backend.norm_in_place(norm, n_tokens, norm.width, q_low)?;
                &*q_low
            }
        };
        let mut jobs = [(&self.q_plain, &mut *q_plain), (&self.q_rotated, &mut *q_rotated)]
            .map(|(linear, output)| LinearJob { linear, output });
        backend.linear_group(q_input, n_tokens, &mut jobs)?;
        if let Some(rope) = rope {
            backend.rope(rope, n_tokens, n_heads * rotated_dim, q_rotated)?;
        }
        backend.heads_linear(&self.k_b, n_heads, n_tokens, q_plain, latent)?;
        backend.join(
            n_tokens * n_heads,
            part(&*latent, kv_rank),
            part(&*q_rotated, rotated_dim),
            q,
        )?;
        backend.attention(&self.attention, shape, q, latent)?;
        backend.heads_linear(&self.v_b, n_heads, n_tokens, latent, rows.mixed)
    }
}

impl<T> LatentBuffers<T> {
    pub(super) fn alloc<M: Memory<Buffer = T>>(
        descriptor: &Descriptor,
        limits: &ExecutorLimits,
        memory: &mut M,
    ) -> Result<Option<Self>, BackendError> {
        let layers = || descriptor.layers.iter().filter_map(|layer| layer.mixer.latent());
        let Some(q_rank) = layers().map(|latent| latent.q_rank).max() else {
            return Ok(None);
        };
        let mut of_tokens = |width: fn(&LatentDescriptor) -> usize| {
            let widest = layers().map(width).max().unwrap_or(0);
            memory.alloc(limits.max_batch_tokens, widest)
        };
        Ok(Some(Self {
            q_low: if q_rank.is_some() {
                Some(of_tokens(|latent| latent.q_rank.unwrap_or(0))?)
            } else {
                None
            },
            q_plain: of_tokens(|latent| latent.n_heads * latent.plain_dim)?,
            q_rotated: of_tokens(|latent| latent.n_heads * latent.rotated_dim)?,
            kv_low: of_tokens(|latent| latent.kv_rank)?,
            k_rotated: of_tokens(|latent| latent.rotated_dim)?,
            row: of_tokens(LatentDescriptor::row_width)?,
            latent: of_tokens(|latent| latent.n_heads * latent.kv_rank)?,
            q: of_tokens(|latent| latent.n_heads * latent.row_width())?,
        }))
    }
}
