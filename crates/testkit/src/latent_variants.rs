//! Networks that together have every feature of latent attention that a descriptor can name.

use tokenmill_model::{Descriptor, LatentDescriptor, MixerDescriptor};

use crate::variants::Variant;

/// Variants with one feature each.
pub(crate) const LATENT_VARIANTS: &[Variant] = &[
    ("latent attention", |d| all(d, |_| ())),
    ("latent attention in one layer", |d| {
        d.layers[0].mixer = MixerDescriptor::Latent(LATENT);
    }),
    ("latent queries", |d| all(d, |latent| latent.q_rank = Some(24))),
    ("latent attention without positions", |d| {
        all(d, |latent| latent.rope = None);
    }),
    ("latent attention of another scale", |d| {
        all(d, |latent| latent.scale = 0.5);
    }),
    ("latent rows of odd widths", |d| {
        all(d, |latent| {
            latent.kv_rank = 21;
            latent.plain_dim = 10;
            latent.head_dim_v = 18;
        });
    }),
    ("wide latent rows of one head", |d| {
        all(d, |latent| {
            latent.n_heads = 1;
            latent.kv_rank = 80;
            latent.q_rank = Some(100);
        });
    }),
];

/// Rows beyond the limit of a kernel for short ones.
pub(crate) const WIDE_LATENT_VARIANTS: &[Variant] = &[("latent rows of more than 128 values", |d| {
    all(d, |latent| {
        latent.kv_rank = 160;
        latent.n_heads = 2;
    });
})];

const LATENT: LatentDescriptor = LatentDescriptor {
    n_heads: 4,
    q_rank: None,
    kv_rank: 32,
    plain_dim: 12,
    rotated_dim: 16,
    head_dim_v: 20,
    scale: 0.2,
    rope: Some(0),
};

fn all(descriptor: &mut Descriptor, change: impl Fn(&mut LatentDescriptor)) {
    for layer in &mut descriptor.layers {
        let mut latent = LATENT;
        change(&mut latent);
        layer.mixer = MixerDescriptor::Latent(latent);
    }
}
