//! [`FolderFacts`]: properties of a folder's network that GGUF has no key for.
//!
//! A folder becomes keys, and the function that describes files describes the keys; the facts complete the description.
//! Invariant: a fact is here only if readers of files take it from tensors or from the architecture.

use tokenmill_backend::{Activation, ExpertScore, RopeStyle};

use crate::{
    Descriptor, FfnDescriptor, Ignorable, LayerDescriptor, LoadError, MixerDescriptor, OutputHead,
    PoolingDescriptor, Presence, RopeDescriptor,
};

use super::{HfConfig, gguf_config::nextn_layers, hf_sizes::HfSizes};

/// A change of a network that was described from keys.
type Amendment = Box<dyn Fn(&mut Descriptor)>;

/// Properties that no key states. `None` leaves a property to the architecture.
#[derive(Default)]
pub(super) struct FolderFacts {
    /// The activation of all feed-forward networks.
    pub(super) activation: Option<Activation>,
    /// Biases of queries, keys and values.
    pub(super) qkv_bias: Option<Presence>,
    /// Bias of attention's output.
    pub(super) output_bias: Option<Presence>,
    /// Biases of the dense network.
    pub(super) ffn_bias: Option<Presence>,
    /// The source of the output head's weights.
    pub(super) head: OutputHead,
    /// The first rope, with a scaling that files may store as tensors.
    pub(super) rope: Option<RopeDescriptor>,
    /// The window of each layer with attention.
    pub(super) windows: Vec<Option<usize>>,
    /// Whether each layer has rope.
    pub(super) has_rope: Option<Vec<bool>>,
    /// The factor of each layer's scores.
    pub(super) score_scales: Option<Vec<f32>>,
    /// Whether queries and keys are normed.
    pub(super) has_qk_norm: bool,
    /// Whether there are layers with experts.
    pub(super) has_experts: bool,
    /// Whether each layer has experts, if the folder lists it.
    pub(super) expert_layers: Option<Vec<bool>>,
    /// How routers weigh experts.
    pub(super) router: Option<RouterFacts>,
    /// Width of the experts' shared network, if it follows from a count of experts.
    pub(super) n_shared_ff: Option<usize>,
    /// Biases of the experts' shared network.
    pub(super) shared_bias: Presence,
    /// The rope of layers with a window, if they have their own.
    pub(super) local_rope: Option<RopeDescriptor>,
    /// How a sequence is pooled.
    pub(super) pooling: Option<PoolingDescriptor>,
    /// Context length of the training; files may state another.
    pub(super) n_ctx_train: usize,
    /// Tensors that decoding does not need.
    pub(super) ignorable: Vec<Ignorable>,
    /// Changes that one architecture needs.
    amendments: Vec<Amendment>,
}

/// How routers weigh experts.
#[derive(Clone, Copy, Debug)]
pub(super) struct RouterFacts {
    /// The score of an expert, if the folder names it.
    pub(super) score: Option<ExpertScore>,
    /// Whether the weights of a token's experts are normalized.
    pub(super) is_normalized: bool,
    /// The factor of the weights.
    pub(super) scale: f32,
}

impl FolderFacts {
    /// Returns the facts of a decoder whose layers are alike.
    pub(super) fn of(config: &HfConfig, sizes: &HfSizes) -> Result<Self, LoadError> {
        let n_nextn = config.opt_usize("num_nextn_predict_layers")?.unwrap_or(0);
        Ok(Self {
            head: match config.opt_bool("tie_word_embeddings")? {
                Some(false) => OutputHead::Own,
                // If a folder has both tensors nevertheless, its own head is used.
                Some(true) | None => OutputHead::OwnIfPresent,
            },
            rope: Some(sizes.rope.clone()),
            windows: vec![None; sizes.n_layers],
            n_ctx_train: sizes.n_ctx_train,
            ignorable: nextn_layers(sizes.n_layers, n_nextn),
            ..Self::default()
        })
    }

    /// Sets whether rope pairs are adjacent in the folder too.
    pub(super) fn rotate_neighbours(&mut self) {
        if let Some(rope) = &mut self.rope {
            rope.style = RopeStyle::Norm;
        }
    }

    /// Adds a change of the network that only one architecture needs.
    pub(super) fn amend(&mut self, amendment: impl Fn(&mut Descriptor) + 'static) {
        self.amendments.push(Box::new(amendment));
    }

    /// Does the same as [`Self::amend`], for each layer, with its index.
    pub(super) fn amend_layers(&mut self, amendment: impl Fn(usize, &mut LayerDescriptor) + 'static) {
        self.amend(move |descriptor| {
            for (layer_idx, layer) in descriptor.layers.iter_mut().enumerate() {
                amendment(layer_idx, layer);
            }
        });
    }

    /// Completes a network that was described from keys.
    pub(super) fn complete(&self, descriptor: &mut Descriptor) {
        // The folder's tensors have names of their own.
        descriptor.tensor_names = &[];
        descriptor
            .ignorable
            .retain(|ignorable| matches!(ignorable, Ignorable::Tensor(_)));
        descriptor.ignorable.splice(0..0, self.ignorable.iter().cloned());
        descriptor.n_ctx_train = self.n_ctx_train;
        for (layer_idx, layer) in descriptor.layers.iter_mut().enumerate() {
            match (&mut layer.ffn, self.activation) {
                (FfnDescriptor::Dense(dense), activation) => {
                    dense.activation = activation.unwrap_or(dense.activation);
                    dense.bias = self.ffn_bias.unwrap_or(dense.bias);
                }
                (FfnDescriptor::Moe(moe), Some(activation)) => {
                    moe.activation = activation;
                    if let Some(shared) = &mut moe.shared {
                        shared.dense.activation = activation;
                    }
                }
                _ => {}
            }
            let scale = self.score_scales.as_ref().map(|scales| scales[layer_idx]);
            let attention = match &mut layer.mixer {
                MixerDescriptor::Attention(attention) | MixerDescriptor::Both { attention, .. } => attention,
                MixerDescriptor::Latent(latent) => {
                    latent.scale = scale.unwrap_or(latent.scale);
                    continue;
                }
                _ => continue,
            };
            attention.qkv_bias = self.qkv_bias.unwrap_or(attention.qkv_bias);
            attention.output_bias = self.output_bias.unwrap_or(attention.output_bias);
            if let Some(has_rope) = &self.has_rope {
                attention.rope = has_rope[layer_idx].then(|| attention.rope.unwrap_or(0));
            }
            attention.scale = scale.unwrap_or(attention.scale);
        }
        for amend in &self.amendments {
            amend(descriptor);
        }
    }
}
