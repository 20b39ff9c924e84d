//! [`LatentDescriptor`]: attention with keys and values computed from one short row per token (MLA).
//!
//! It shares little with ordinary attention beyond the scores.
//!
//! Source: "DeepSeek-V2: A Strong, Economical, and Efficient Mixture-of-Experts Language Model", 2024,
//! section 2.1.

use tokenmill_backend::{AttentionShape, HeadsShape, KvLayerShape};

use crate::{
    LoadError, RopeDescriptor,
    error::{check, check_positive},
};

use super::{MAX_WIDTH, WIDTH};

/// Latent attention of one layer.
#[derive(Clone, Debug, PartialEq)]
pub struct LatentDescriptor {
    /// Number of heads.
    pub n_heads: usize,
    /// Width of the row from which queries are computed; `None` if they are computed from the layer's input.
    pub q_rank: Option<usize>,
    /// Width of the row from which keys and values are computed.
    pub kv_rank: usize,
    /// Width of the part of a head's query and key without position.
    pub plain_dim: usize,
    /// Width of the rotated part, whose key all heads share.
    pub rotated_dim: usize,
    /// Width of a head's value.
    pub head_dim_v: usize,
    /// Factor of the scores.
    pub scale: f32,
    /// Index in [`Descriptor::ropes`](crate::Descriptor::ropes); `None` for a layer without positions.
    pub rope: Option<usize>,
}

impl LatentDescriptor {
    /// Returns the width of a query and key head, before projection to the latent space.
    pub fn head_dim_k(&self) -> usize {
        self.plain_dim + self.rotated_dim
    }

    /// Returns the width of a stored row.
    pub fn row_width(&self) -> usize {
        self.kv_rank + self.rotated_dim
    }

    /// Returns the attention that a backend prepares for: all heads attend to the stored rows.
    pub fn shape(&self) -> AttentionShape {
        AttentionShape {
            n_heads: self.n_heads,
            n_kv_heads: 1,
            head_dim_k: self.row_width(),
            head_dim_v: self.kv_rank,
        }
    }

    /// Returns the shape of the per-head matrices.
    pub fn heads_shape(&self) -> HeadsShape {
        HeadsShape {
            n_heads: self.n_heads,
            widest_input: self.plain_dim.max(self.kv_rank),
            widest_output: self.kv_rank.max(self.head_dim_v),
        }
    }

    /// Returns the layer's contents of the KV store.
    pub fn kv_shape(&self) -> KvLayerShape {
        KvLayerShape {
            n_kv_heads: 1,
            head_dim_k: self.row_width(),
            head_dim_v: self.kv_rank,
            has_values_in_keys: true,
        }
    }

    pub(super) fn validate(&self, ropes: &[RopeDescriptor]) -> Result<(), LoadError> {
        check(
            "head count",
            self.n_heads,
            (1..=MAX_WIDTH).contains(&self.n_heads),
            "at least 1",
        )?;
        for (what, width) in [
            ("rank of latent queries", self.q_rank.unwrap_or(1)),
            ("rank of latent keys and values", self.kv_rank),
            ("width of the keys without positions", self.plain_dim),
            ("width of the rotated keys", self.rotated_dim),
            ("width of latent values", self.head_dim_v),
        ] {
            check(
                what,
                width,
                (1..=MAX_WIDTH / self.n_heads).contains(&width),
                WIDTH,
            )?;
        }
        check_positive("attention scale", self.scale)?;
        if let Some(rope) = self.rope.map(|rope_idx| &ropes[rope_idx]) {
            check(
                "rope dimension count",
                rope.n_dims,
                rope.n_dims <= self.rotated_dim,
                "at most the width of the rotated keys",
            )?;
            check(
                "width of the rotated keys",
                self.rotated_dim,
                rope.head_dim == self.rotated_dim,
                "the width that the layer's rope was made for",
            )?;
        }
        Ok(())
    }
}
