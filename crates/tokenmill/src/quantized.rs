//! Quantizing a model of a folder while it loads.
//!
//! Separate from the load, which does not know what its weights were. Invariant: the types are those that a quantized file of the
//! preset would have, chosen before any weight is read.

use std::collections::BTreeMap;

use tokenmill_convert::{ModelShape, Preset, Recipe, TensorShape, choose};
use tokenmill_gguf::TensorType;
use tokenmill_model::{Descriptor, Model as Network};
use tokenmill_quant::Format;

use crate::Error;

/// Chooses the types of an opened folder's tensors, in which they will be loaded.
pub(crate) fn quantize(network: &mut Network, preset: Preset) -> Result<(), Error> {
    if network.gguf().is_some() {
        return Err(Error::QuantizesFile);
    }
    let infos = network.weights().infos();
    let shapes: Vec<TensorShape<'_>> = (infos.iter())
        .map(|info| TensorShape {
            name: &info.name,
            ty: info.ty,
            dims: &info.dims,
        })
        .collect();
    let choices = choose(&facts(network.descriptor()), &Recipe::new(preset), false, &shapes)?;
    let mut types: BTreeMap<String, TensorType> = BTreeMap::new();
    for (info, choice) in infos.iter().zip(choices) {
        // What the folder has quantized already, such as the experts of gpt-oss, stays.
        if choice.ty == info.ty || info.ty.block_len() > 1 {
            continue;
        }
        let has_encoder = Format::of(choice.ty).is_ok_and(Format::has_encoder);
        if choice.needs_importance || !has_encoder {
            return Err(Error::NeedsImportance { preset });
        }
        types.insert(info.name.clone(), choice.ty);
    }
    network.encode_weights(&types)?;
    Ok(())
}

/// What the choice of types asks about a network.
fn facts(descriptor: &Descriptor) -> ModelShape {
    let attention = descriptor.layers.iter().find_map(|layer| layer.mixer.attention());
    let latent = descriptor.layers.iter().find_map(|layer| layer.mixer.latent());
    let (n_heads, n_kv_heads) = match (attention, latent) {
        (Some(attention), _) => (attention.n_heads, attention.n_kv_heads),
        // All heads share the latent rows.
        (None, Some(latent)) => (latent.n_heads, 1),
        (None, None) => (0, 0),
    };
    let experts = descriptor.layers.iter().find_map(|layer| layer.ffn.moe());
    ModelShape {
        architecture: descriptor.arch.clone(),
        n_layers: descriptor.layers.len(),
        n_experts: experts.map_or(0, |experts| experts.router.n_experts),
        n_heads,
        n_kv_heads,
    }
}
