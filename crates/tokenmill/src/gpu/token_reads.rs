//! [`token_reads`]: the bytes that a token of a model reads, part by part.
//!
//! Both backends state how they store weights. Invariant: only the experts that a token is routed to count.

use std::collections::BTreeMap;

use tokenmill_backend::{KvLayerShape, NetworkPart, NetworkShape, Side, SplitOperations};
use tokenmill_model::{LoadError, Model, ModelOptions};
use tokenmill_placed::{LayerPlacement, LayerReads, Placed, Placement, TokenReads};

/// Returns the bytes that a token reads at half a model's context. Leaves the backend with another placement.
///
/// # Errors
/// Returns an error if something is wrong with the weights.
pub(super) fn token_reads<H: SplitOperations, D: SplitOperations>(
    model: &Model,
    network: &NetworkShape,
    options: &ModelOptions,
    backend: &mut Placed<H, D>,
) -> Result<TokenReads, LoadError> {
    let mut weights_of = |place: Side, side: Side| {
        let layers = vec![LayerPlacement::whole(place); network.layers.len()];
        backend.set_placement(Placement::new(network, layers));
        model.weights_by_part(backend, options, side)
    };
    let weights = [
        weights_of(Side::Host, Side::Host)?,
        weights_of(Side::Device, Side::Device)?,
    ];
    // With all layers on the host, the device has only the head; an embedding that is also the head counts as input.
    let head = weights_of(Side::Host, Side::Device)?;
    let n_bytes = |of: &BTreeMap<NetworkPart, usize>, part| of.get(&part).map_or(0, |&n| n as u64);
    let of_sides = |part| [0, 1].map(|side| n_bytes(&weights[side], part));
    let descriptor = model.descriptor();
    let kv = kv_bytes(
        &descriptor.kv_layers(),
        &descriptor.kv_windows(),
        options,
        descriptor.n_ctx_train,
    );
    let layers = (network.layers.iter().zip(&descriptor.layers).enumerate())
        .map(|(layer_idx, (shape, layer))| LayerReads {
            mixer: of_sides(NetworkPart::Mixer(layer_idx)),
            ffn: of_sides(NetworkPart::Ffn(layer_idx)),
            experts: of_sides(NetworkPart::Experts(layer_idx)).map(|n_bytes| match shape.experts {
                Some(experts) => n_bytes / experts.n_experts.max(1) as u64 * experts.n_used as u64,
                None => 0,
            }),
            kv: shape.kv.map_or(0, |store| kv[store.idx]),
            has_shared: layer.ffn.dense().is_some(),
        })
        .collect();
    Ok(TokenReads {
        layers,
        head: n_bytes(&head, NetworkPart::Output) + n_bytes(&head, NetworkPart::Input),
    })
}

/// Bytes of keys and values of each layer of the store after half a context, or within the window of it.
fn kv_bytes(
    layers: &[KvLayerShape],
    windows: &[Option<usize>],
    options: &ModelOptions,
    n_ctx_train: usize,
) -> Vec<u64> {
    let n_tokens = options.n_ctx.unwrap_or(n_ctx_train) / 2;
    let value_type = options.kv_value_type.unwrap_or(options.kv_type);
    (layers.iter().zip(windows))
        .map(|(layer, window)| {
            let head =
                options.kv_type.head_bytes(layer.head_dim_k) + value_type.head_bytes(layer.own_value_dim());
            let n_seen = n_tokens.min(window.unwrap_or(usize::MAX));
            (n_seen * layer.n_kv_heads * head) as u64
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use tokenmill_backend::KvType;

    use super::*;

    #[test]
    fn keys_and_values_of_half_a_context_or_a_window_are_read() {
        let layer = KvLayerShape {
            n_kv_heads: 2,
            head_dim_k: 64,
            head_dim_v: 32,
            has_values_in_keys: false,
        };
        let latent = KvLayerShape {
            n_kv_heads: 1,
            has_values_in_keys: true,
            ..layer
        };
        let options = ModelOptions {
            n_ctx: Some(2000),
            kv_type: KvType::F16,
            kv_value_type: Some(KvType::F32),
            ..ModelOptions::default()
        };
        let found = kv_bytes(&[layer, layer, latent], &[None, Some(100), None], &options, 9);
        assert_eq!(found, [1000 * 2 * (128 + 128), 100 * 2 * (128 + 128), 1000 * 128]);
        let whole = ModelOptions {
            n_ctx: None,
            ..options
        };
        assert_eq!(kv_bytes(&[latent], &[None], &whole, 40), [20 * 128]);
    }
}
