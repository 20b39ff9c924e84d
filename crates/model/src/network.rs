//! [`Network`]: a descriptor's weights by index, and how they get to a device.
//!
//! Invariants: every tensor has the shape that the descriptor implies; every tensor of the source was used,
//! since an ignored one would mean wrong output; vectors are finite.

use std::sync::Arc;

use tokenmill_backend::{
    Linear, MatrixUsage, NetworkPart, Rope,
    program::{LinearId, MatrixId, NormId, RopeId, VectorId, WeightStore, Weights},
};

use crate::{
    Descriptor, EmbeddingNorm, HeadPart, LayerDescriptor, LoadError, LongRopeFactors, NormDescriptor,
    NormPlacement, OutputHead, Presence, Residual, RopeDescriptor, RopeScaling, WeightSource,
    alt_up::{AltUp, LayerAltUp},
    decision_head::DecisionHead,
    ffn::Ffn,
    layer_embeddings::{LayerEmbedding, LayerEmbeddings},
    loader::{AdaptableWeight, LayerPlace, LoadProgress, Loader, plain_norm},
    mixers::Mixer,
    nextn::{NextnEntry, SharedWeights},
    pooler::Pooler,
};

/// A network's weights.
pub(crate) struct Network {
    /// Names and sizes of the weights, which the others name by index.
    pub(crate) weights: Arc<Weights>,
    pub(crate) token_embd: LinearId,
    pub(crate) embedding_scale: f32,
    /// The embedding of the only token type in use.
    pub(crate) token_type: Option<VectorId>,
    /// The embeddings of positions, `[n_learned_positions, n_embd]`.
    pub(crate) positions: Option<VectorId>,
    pub(crate) embedding_norm: Option<NormId>,
    pub(crate) layer_embeddings: Option<LayerEmbeddings>,
    pub(crate) alt_up: Option<AltUp>,
    /// The weights that compute the input of an MTP layer.
    pub(crate) nextn: Option<NextnEntry>,
    pub(crate) ropes: Vec<RopeId>,
    pub(crate) layers: Vec<Layer>,
    pub(crate) residual_scale: f32,
    pub(crate) output_norm: Option<NormId>,
    pub(crate) pooler: Option<Pooler>,
    pub(crate) decision: Option<DecisionHead>,
    /// Whether the network predicts tokens.
    pub(crate) has_head: bool,
    /// This rank's part of the head, if it is divided.
    pub(crate) head_part: Option<HeadPart>,
    /// `None` if the head is tied to the token embedding.
    pub(crate) output: Option<LinearId>,
    pub(crate) logit_scale: f32,
    pub(crate) logit_softcap: Option<f32>,
    /// The weights that adapters change, in the order of their places.
    pub(crate) adaptable: Vec<AdaptableWeight>,
}

/// One layer's weights.
pub(crate) struct Layer {
    /// The norm before the mixer.
    pub(crate) mixer_norm: Option<NormId>,
    /// `None` for a layer without a mixer.
    pub(crate) mixer: Option<Mixer>,
    /// The norm of the mixer's output.
    pub(crate) mixer_post_norm: Option<NormId>,
    /// The norm of the stream after the mixer is added.
    pub(crate) mixer_sum_norm: Option<NormId>,
    /// The second norm of the stream after the mixer is added, applied to the sum of the layer's input and
    /// the first norm's result.
    pub(crate) mixer_second_norm: Option<NormId>,
    pub(crate) residual: Residual,
    /// The norm before the feed-forward network.
    pub(crate) ffn_norm: Option<NormId>,
    /// `None` for a layer without a feed-forward network.
    pub(crate) ffn: Option<Ffn>,
    /// The norm of the feed-forward network's output.
    pub(crate) ffn_post_norm: Option<NormId>,
    /// The norm of the stream after the feed-forward network is added.
    pub(crate) ffn_sum_norm: Option<NormId>,
    /// The weights for the layer's own embeddings.
    pub(crate) embedding: Option<LayerEmbedding>,
    /// The layer's weights for parallel streams.
    pub(crate) alt_up: Option<LayerAltUp>,
    /// Factor of the stream at the end of the layer.
    pub(crate) output_scale: Option<f32>,
    /// The control vector added to the stream at the end of the layer.
    pub(crate) control: Option<VectorId>,
    /// The index of the part of non-token inputs that is added to the stream at the end of the layer.
    pub(crate) input_part: Option<usize>,
}

impl Network {
    /// Stores all weights except the `shared` ones, for sequences of up to `n_ctx` positions.
    ///
    /// # Errors
    /// The first [`LoadError`].
    pub(crate) fn load(
        descriptor: &Descriptor,
        source: &dyn WeightSource,
        n_ctx: usize,
        store: &mut dyn WeightStore,
        shared: Option<SharedWeights>,
        on_progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Self, LoadError> {
        let mut loader = Loader::new(descriptor, source, n_ctx, store, on_progress);
        let loaded = Self::load_with(&mut loader, shared).and_then(|mut network| {
            loader.check_all_used()?;
            network.adaptable = loader.adaptable;
            network.weights = Arc::new(loader.weights);
            Ok(network)
        });
        // Errors about a folder use the folder's own tensor names.
        loaded.map_err(|error| error.with_own_name(source))
    }

    /// Returns the width of an input that is not a token.
    pub(crate) fn input_row_width(&self) -> usize {
        let n_deep = self
            .layers
            .iter()
            .filter(|layer| layer.input_part.is_some())
            .count();
        (1 + n_deep) * self.token_embd.n_in
    }

    /// Returns the matrices that another network shares, in the order in which it loads them.
    pub(crate) fn shared_matrices(&self, shared: SharedWeights) -> Vec<MatrixId> {
        let output = self.output.filter(|_| shared.has_output);
        let linears = [Some(self.token_embd), output].into_iter().flatten();
        linears.map(|linear| linear.matrix).collect()
    }

    fn load_with(loader: &mut Loader<'_>, shared: Option<SharedWeights>) -> Result<Self, LoadError> {
        let descriptor = loader.descriptor;
        let (n_vocab, n_embd) = (descriptor.n_vocab, descriptor.n_embd);
        let is_tied = match descriptor.head {
            OutputHead::Own | OutputHead::Part(_) | OutputHead::None => false,
            OutputHead::Tied => true,
            OutputHead::OwnIfPresent => !loader.source.contains("output.weight"),
        };
        let usage = if is_tied {
            MatrixUsage::Tied
        } else {
            MatrixUsage::Embedding
        };
        // The bias of a tied head is used with the head alone; looking up an embedding adds none.
        loader.enter(NetworkPart::Output);
        let tied_bias = if is_tied {
            loader.vector("output.bias", n_vocab, descriptor.head_bias)?
        } else {
            None
        };
        loader.enter(NetworkPart::Input);
        let token_embd = Linear {
            matrix: match shared {
                Some(_) => loader.share_matrix("token_embd.weight", [n_vocab, n_embd], usage),
                None => loader.matrix("token_embd.weight", n_vocab, n_embd, usage)?,
            },
            bias: tied_bias,
            n_out: n_vocab,
            n_in: n_embd,
            adapter_place: None,
        };
        loader.enter(NetworkPart::Common);
        let ropes = (descriptor.ropes.iter())
            .map(|rope| load_rope(rope, loader))
            .collect::<Result<_, _>>()?;
        let mut state_idx = 0;
        let layers = (descriptor.layers.iter().enumerate())
            .map(|(layer_idx, layer)| {
                let place = LayerPlace {
                    layer_idx,
                    kv_idx: descriptor.kv_idx(layer_idx),
                    state_idx,
                };
                state_idx += usize::from(layer.mixer.state_shape().is_some());
                Layer::load(place, layer, loader)
            })
            .collect::<Result<_, _>>()?;
        loader.enter(NetworkPart::Output);
        let has_head = descriptor.head != OutputHead::None;
        let output = if is_tied || !has_head {
            None
        } else if shared.is_some_and(|shared| shared.has_output) {
            Some(Linear {
                matrix: loader.share_matrix("output.weight", [n_vocab, n_embd], MatrixUsage::Linear),
                bias: loader.vector("output.bias", n_vocab, descriptor.head_bias)?,
                n_out: n_vocab,
                n_in: n_embd,
                adapter_place: None,
            })
        } else {
            let n_rows = match descriptor.head {
                OutputHead::Part(part) => part.n_each,
                _ => n_vocab,
            };
            Some(loader.linear("output", n_rows, n_embd, descriptor.head_bias)?)
        };
        let output_norm = loader.norm_if(descriptor.has_output_norm, "output_norm")?;
        let pooler = match &descriptor.pooling {
            Some(pooling) => Some(Pooler::load(pooling, loader)?),
            None => None,
        };
        let decision = match descriptor.decision {
            Some(decision) => Some(DecisionHead::load(decision, loader)?),
            None => None,
        };
        loader.enter(NetworkPart::Input);
        let positions = match descriptor.n_learned_positions {
            Some(n_positions) => Some(loader.table("position_embd.weight", n_positions, n_embd)?),
            None => None,
        };
        Ok(Self {
            weights: Arc::default(),
            token_embd,
            embedding_scale: descriptor.embedding_scale,
            token_type: loader.first_row("token_types.weight", n_embd, descriptor.token_types)?,
            positions,
            embedding_norm: match descriptor.embedding_norm {
                None => None,
                Some(EmbeddingNorm::Weighted) => {
                    Some(loader.norm("token_embd_norm", n_embd, descriptor.norm)?)
                }
                Some(EmbeddingNorm::Plain) => Some(plain_norm(descriptor.norm, n_embd)),
            },
            layer_embeddings: match &descriptor.layer_embeddings {
                None => None,
                Some(embeddings) => Some(LayerEmbeddings::load(embeddings, loader)?),
            },
            alt_up: match &descriptor.alt_up {
                None => None,
                Some(alt_up) => Some(AltUp::load(alt_up, loader)?),
            },
            nextn: if descriptor.reads_hidden {
                Some(NextnEntry::load(loader)?)
            } else {
                None
            },
            ropes,
            layers,
            residual_scale: descriptor.residual_scale,
            output_norm,
            pooler,
            decision,
            has_head,
            head_part: match descriptor.head {
                OutputHead::Part(part) => Some(part),
                _ => None,
            },
            output,
            logit_scale: descriptor.logit_scale,
            logit_softcap: descriptor.logit_softcap,
            adaptable: Vec::new(),
        })
    }
}

impl Layer {
    /// Returns the norm at the start of the layer.
    pub(crate) fn first_norm(&self) -> Option<NormId> {
        match self.mixer {
            Some(_) => self.mixer_norm,
            None => self.ffn_norm,
        }
    }

    fn load(place: LayerPlace, layer: &LayerDescriptor, loader: &mut Loader<'_>) -> Result<Self, LoadError> {
        let norms = layer.norms;
        let (has_mixer, has_ffn) = (!layer.mixer.is_none(), !layer.ffn.is_none());
        let has_ffn_norm = has_ffn && norms.has_pre_ffn() && layer.residual != Residual::Parallel;
        let has = |part: &str| loader.source.contains(&place.name(part));
        let (mixer_norm, ffn_norm) = if !has_mixer || has_ffn_norm && has("attn_norm_2.weight") {
            // The norm of the feed-forward network has the first name in Falcon's files, and in layers with
            // nothing else.
            ("attn_norm_2", "attn_norm")
        } else if !norms.has_post() && !has("ffn_norm.weight") && has("post_attention_norm.weight") {
            // Some files name the second norm by its position.
            ("attn_norm", "post_attention_norm")
        } else {
            ("attn_norm", "ffn_norm")
        };
        let is_after_sum = norms.has_sum();
        let is_twice = norms == NormPlacement::AfterSumTwice;
        let post_norm = |has_half: bool, part: &str, loader: &mut Loader<'_>| {
            let norm = NormDescriptor {
                eps: loader
                    .descriptor
                    .post_norm_eps
                    .unwrap_or(loader.descriptor.norm.eps),
                ..loader.descriptor.norm
            };
            if has_half && norms.has_post() {
                (loader.norm(&place.name(part), loader.descriptor.n_embd, norm)).map(Some)
            } else {
                Ok(None)
            }
        };
        loader.enter(NetworkPart::Mixer(place.layer_idx));
        Ok(Self {
            mixer_norm: loader.norm_if(has_mixer && norms.has_pre_mixer(), &place.name(mixer_norm))?,
            mixer: Mixer::load(place, &layer.mixer, loader)?,
            mixer_post_norm: post_norm(has_mixer, "post_attention_norm", loader)?,
            mixer_sum_norm: loader.norm_if(has_mixer && is_after_sum, &place.name("attn_output_norm"))?,
            mixer_second_norm: loader.norm_if(has_mixer && is_twice, &place.name("attn_norm_2"))?,
            residual: layer.residual,
            ffn_norm: {
                loader.enter(NetworkPart::Ffn(place.layer_idx));
                loader.norm_if(has_ffn_norm, &place.name(ffn_norm))?
            },
            ffn: Ffn::load(place, &layer.ffn, loader)?,
            ffn_post_norm: post_norm(has_ffn, "post_ffw_norm", loader)?,
            ffn_sum_norm: loader.norm_if(has_ffn && is_after_sum, &place.name("layer_output_norm"))?,
            embedding: match &loader.descriptor.layer_embeddings {
                None => None,
                Some(embeddings) => Some(LayerEmbedding::load(place, embeddings, loader)?),
            },
            alt_up: match &loader.descriptor.alt_up {
                None => None,
                Some(alt_up) => Some(LayerAltUp::load(place, alt_up, loader)?),
            },
            output_scale: if layer.has_output_scale {
                let scale = loader.all_values(&place.name("layer_output_scale.weight"), &[1])?;
                Some(scale[0])
            } else {
                None
            },
            control: match loader.descriptor.control.get(place.layer_idx) {
                Some(direction) if !direction.is_empty() => {
                    Some(loader.add_vector(&place.name("control"), direction)?)
                }
                _ => None,
            },
            input_part: (place.layer_idx < loader.descriptor.n_deep_inputs).then_some(place.layer_idx + 1),
        })
    }
}

fn load_rope(rope: &RopeDescriptor, loader: &mut Loader<'_>) -> Result<RopeId, LoadError> {
    let n_pairs = rope.n_dims / 2;
    let factors = match &rope.scaling {
        RopeScaling::LongRope {
            original_context,
            factors,
            ..
        } => {
            let is_long = loader.n_ctx > *original_context;
            if let Some(LongRopeFactors { short, long }) = factors {
                Some(if is_long { long } else { short }.clone())
            } else {
                // Both tensors exist, but only one is used.
                let short = divisors("rope_factors_short.weight", n_pairs, Presence::Required, loader)?;
                let long = divisors("rope_factors_long.weight", n_pairs, Presence::Required, loader)?;
                if is_long { long } else { short }
            }
        }
        _ if rope.has_freq_factors => divisors("rope_freqs.weight", n_pairs, Presence::Optional, loader)?,
        _ => None,
    };
    let (inv_freqs, magnitude) = rope.for_context(loader.n_ctx).frequencies(factors.as_deref());
    Ok(Rope {
        style: rope.style,
        head_dim: rope.head_dim,
        n_dims: rope.n_dims,
        inv_freqs: loader.add_vector("rope.frequencies", &inv_freqs)?,
        magnitude,
        axes: rope.axes,
    })
}

/// Loads the divisors of rope's frequencies.
fn divisors(
    name: &str,
    n_pairs: usize,
    presence: Presence,
    loader: &mut Loader<'_>,
) -> Result<Option<Vec<f32>>, LoadError> {
    let factors = loader.values(name, n_pairs, presence)?;
    let values = factors.as_deref().unwrap_or_default();
    match values.iter().position(|&factor| factor <= 0.0) {
        None => Ok(factors),
        Some(index) => Err(LoadError::NotPositive {
            name: name.to_owned(),
            index,
            value: values[index],
        }),
    }
}
