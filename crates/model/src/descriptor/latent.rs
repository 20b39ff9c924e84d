//! [`LatentDescriptor`]: attention whose keys and values follow from one short row for each token (MLA).
//!
//! Separate from attention, with which it has little more in common than the scores.
//!
//! Source: "DeepSeek-V2: A Strong, Economical, and Efficient Mixture-of-Experts Language Model", 2024, section 2.1.

use tokenmill_backend::{AttentionShape, HeadsShape, KvLayerShape};

use crate::{
    LoadError, RopeDescriptor,
    error::{check, check_positive},
};

use super::{MAX_WIDTH, WIDTH};

/// Latent attention of one layer.
#[derive(Clone, Debug, PartialEq)]
pub struct LatentDescriptor {
    /// Heads.
    pub n_heads: usize,
    /// Width of the row that queries follow from; `None` where they follow from the layer's input.
    pub q_rank: Option<usize>,
    /// Width of the row that keys and values follow from.
    pub kv_rank: usize,
    /// Width of the part of a head's query and key that has no position.
    pub plain_dim: usize,
    /// Width of the other part, whose key all heads have in common.
    pub rotated_dim: usize,
    /// Width of a head's value.
    pub head_dim_v: usize,
    /// Multiplies the scores.
    pub scale: f32,
    /// Index in [`Descriptor::ropes`](crate::Descriptor::ropes); `None` for a layer without positions.
    pub rope: Option<usize>,
}

impl LatentDescriptor {
    /// Width of a query and key head, before it is brought into the latent space.
    pub fn head_dim_k(&self) -> usize {
        self.plain_dim + self.rotated_dim
    }

    /// Width of a stored row.
    pub fn row_width(&self) -> usize {
        self.kv_rank + self.rotated_dim
    }

    /// What a backend prepares for: attention of all heads to the stored rows.
    pub fn shape(&self) -> AttentionShape {
        AttentionShape {
            n_heads: self.n_heads,
            n_kv_heads: 1,
            head_dim_k: self.row_width(),
            head_dim_v: self.kv_rank,
        }
    }

    /// The matrices of each head.
    pub fn heads_shape(&self) -> HeadsShape {
        HeadsShape {
            n_heads: self.n_heads,
            widest_input: self.plain_dim.max(self.kv_rank),
            widest_output: self.kv_rank.max(self.head_dim_v),
        }
    }

    /// What the KV store holds for the layer.
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
