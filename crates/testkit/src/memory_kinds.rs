//! Networks that together have every kind of memory of a sequence.
//!
//! Their tests check where that memory is, for how long, and that it comes back unchanged.

use crate::{
    latent_variants::LATENT_VARIANTS,
    variants::{STATE_VARIANTS, VARIANTS, Variant},
};

/// Every kind of memory alone, and kinds next to each other, as changes of [`tiny_llama`](crate::tiny_llama).
pub const MEMORY_KINDS: &[Variant] = &[
    ("keys and values", |_| {}),
    ("windows in all layers", |d| {
        for (layer, window) in d.layers.iter_mut().zip([24, 7]) {
            layer.attention_mut().window = Some(window);
        }
    }),
    ("a window in one layer", |d| {
        d.layers[0].attention_mut().window = Some(24);
    }),
    ("windows of two widths, and a layer without", |d| {
        d.layers.push(d.layers[0].clone());
        d.layers[0].attention_mut().window = Some(24);
        d.layers[2].attention_mut().window = Some(40);
    }),
    ("a window over keys and values of another layer", |d| {
        named(VARIANTS, "keys and values of another layer")(d);
        d.layers.push(d.layers[0].clone());
        d.layers[0].attention_mut().window = Some(24);
        d.layers[1].attention_mut().window = Some(33);
    }),
    ("keys and values of another layer", |d| {
        named(VARIANTS, "keys and values of another layer")(d);
    }),
    ("latent rows", |d| named(LATENT_VARIANTS, "latent attention")(d)),
    ("latent rows next to a window", |d| {
        named(LATENT_VARIANTS, "latent attention in one layer")(d);
        d.layers[1].attention_mut().window = Some(24);
    }),
    ("states of a delta net, and attention", |d| {
        named(STATE_VARIANTS, "a delta net and gated attention")(d);
    }),
    ("states of Mamba 2, and attention with a window", |d| {
        named(STATE_VARIANTS, "Mamba 2")(d);
        d.layers[0].attention_mut().window = Some(24);
    }),
    ("states of Mamba, and attention", |d| {
        named(STATE_VARIANTS, "Mamba")(d);
    }),
    (
        "states of a short convolution, attention, and attention with a window",
        |d| {
            d.layers.push(d.layers[0].clone());
            named(STATE_VARIANTS, "a short convolution")(d);
            d.layers[1].attention_mut().window = Some(24);
        },
    ),
    ("attention and a state in one layer", |d| {
        named(STATE_VARIANTS, "attention and Mamba 2 next to each other")(d);
    }),
    ("states alone", |d| {
        named(STATE_VARIANTS, "delta nets of tiled heads and gates by key head")(d);
    }),
];

fn named(variants: &[Variant], name: &str) -> fn(&mut tokenmill_model::Descriptor) {
    let found = variants.iter().find(|(known, _)| *known == name);
    found.expect("a variant of this name").1
}
