//! [`LatentMixer`]: attention over latent rows (MLA), with the matrices of keys and values absorbed.
//!
//! ```text
//! c = norm(W_kv_a x)    r = rope(W_kr x)               store the row [c, r]
//! p[h], s[h] = W_q[h] x, rope(W_qr[h] x)               or of norm(W_q_a x)
//! a[h] = attention of [W_k_b[h] p[h], s[h]] to the rows, whose values are their c
//! mixed[h] = W_v_b[h] a[h]                             output = W_o mixed
//! ```

use tokenmill_backend::{
    Attention,
    program::{AttentionId, LinearId, NormId, Op, Program, RopeId, Value},
};

use crate::{
    LatentDescriptor, LoadError, Presence,
    loader::{LayerPlace, Loader, RowsOf},
};

/// The weights of latent attention.
pub(crate) struct LatentMixer {
    /// The row for queries, if they are computed from one.
    q_low: Option<LowRow>,
    q_plain: LinearId,
    q_rotated: LinearId,
    kv_low: LinearId,
    kv_norm: NormId,
    k_rotated: LinearId,
    /// One matrix per head.
    k_b: LinearId,
    v_b: LinearId,
    rope: Option<usize>,
    attention: AttentionId,
    pub(super) output: LinearId,
}

/// The weights that compute the row for queries.
struct LowRow {
    linear: LinearId,
    norm: NormId,
}

impl LatentMixer {
    pub(super) fn load(
        place: LayerPlace,
        latent: &LatentDescriptor,
        loader: &mut Loader<'_>,
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

impl LatentMixer {
    /// Writes attention over the rows `x`; returns the rows that the output projection reads.
    pub(super) fn write(&self, program: &mut Program, ropes: &[RopeId], x: Value) -> Value {
        let rope = self.rope.map(|rope_idx| ropes[rope_idx]);
        let (attention, n_heads) = (self.attention, self.attention.n_heads);
        let [kv_low, k_rotated] = [self.kv_low, self.k_rotated].map(|linear| program.linear(linear, x));
        let kv_low = program.norm(self.kv_norm, kv_low);
        let k_rotated = program.rope_if(rope, k_rotated);
        let row = program.join(1, kv_low, k_rotated);
        let layer_idx = attention.layer_idx;
        program.push_last(Op::StoreLatent { layer_idx, row });
        let q_input = match &self.q_low {
            None => x,
            Some(LowRow { linear, norm }) => {
                let low = program.linear(*linear, x);
                program.norm(*norm, low)
            }
        };
        let [q_plain, q_rotated] =
            [self.q_plain, self.q_rotated].map(|linear| program.linear(linear, q_input));
        let q_rotated = program.rope_if(rope, q_rotated);
        let latent = program.heads_linear(self.k_b, n_heads, q_plain);
        let q = program.join(n_heads, latent, q_rotated);
        let attended = program.push(|y| Op::Attention { attention, q, y });
        program.heads_linear(self.v_b, n_heads, attended)
    }
}
