//! [`Descriptor`]: everything that makes one network differ from another, as data.
//!
//! It stands between files and programs: an architecture's file turns metadata into a descriptor, the loader turns
//! a descriptor and weights into a network, which writes its program without knowing an architecture's name.
//! Invariant: a descriptor that passed [`Descriptor::validate`] describes a network that can be built and run.

mod decision;
mod difference;
mod ffn;
mod latent;
mod mixer;
mod output_head;
mod plain;
mod pooling;
mod recurrent;

pub use decision::{DecisionDescriptor, N_QUESTION_TYPES};
pub(crate) use difference::{Difference, ROUNDING, differences};
pub use ffn::{
    BesideDescriptor, DenseDescriptor, FfnDescriptor, GateUpOrder, LatentExperts, MoeDescriptor,
    RouterDescriptor, SharedDescriptor, XieluNumbers,
};
pub use latent::LatentDescriptor;
pub use mixer::{AttentionDescriptor, MixerDescriptor, OutputGate, QkNorm};
pub use output_head::{HeadPart, OutputHead};
pub use pooling::{HeadLayer, PooledOutput, PoolingDescriptor};
pub use recurrent::{
    DeltaGates, DeltaNetDescriptor, KimiDeltaDescriptor, ShortConvDescriptor, SsmDescriptor, SsmKind,
};

use tokenmill_backend::{
    Activation, HeadsShape, KvLayerShape, KvStoreOfLayer, LayerShape, MAX_STREAMS, NetworkShape, NormKind,
    StateLayerShape,
};

use crate::{
    LoadError, RopeDescriptor,
    error::{check, check_positive},
};

/// A network, without its weights.
#[derive(Clone, Debug, PartialEq)]
pub struct Descriptor {
    /// Name of the architecture, as the file gives it.
    pub arch: String,
    /// Tokens in the vocabulary.
    pub n_vocab: usize,
    /// Width of a hidden state.
    pub n_embd: usize,
    /// Context length of the training.
    pub n_ctx_train: usize,
    /// Factor of the token embeddings.
    pub embedding_scale: f32,
    /// Whether a token's input combines its embedding with the hidden state of the token before it, as in an
    /// MTP layer.
    pub reads_hidden: bool,
    /// Embeddings of token types. All tokens get the first.
    pub token_types: Presence,
    /// Number of learned position embeddings, added to those of the tokens; `None` if there are none.
    pub n_learned_positions: Option<usize>,
    /// The norm of the embeddings, if there is one.
    pub embedding_norm: Option<EmbeddingNorm>,
    /// The kind of all norms except those of q and k.
    pub norm: NormDescriptor,
    /// The epsilon of the norms after each half of a layer, if it differs.
    pub post_norm_eps: Option<f32>,
    /// Per-layer embeddings.
    pub layer_embeddings: Option<LayerEmbeddingsDescriptor>,
    /// Parallel streams of hidden states, if there are several.
    pub alt_up: Option<AltUpDescriptor>,
    /// The distinct rotary embeddings of the layers.
    pub ropes: Vec<RopeDescriptor>,
    /// The layers, first to last.
    pub layers: Vec<LayerDescriptor>,
    /// Tensors with unusual names in this architecture's files: the usual name without its layer, and the
    /// file's name.
    pub tensor_names: &'static [(&'static str, &'static str)],
    /// Factor of each layer's contribution to the hidden state.
    pub residual_scale: f32,
    /// Whether there is a norm after the last layer.
    pub has_output_norm: bool,
    /// How a sequence is pooled to one row, for networks trained for that.
    pub pooling: Option<PoolingDescriptor>,
    /// The head that scores the options of questions. Such a network gives a row for each token instead of pooling.
    pub decision: Option<DecisionDescriptor>,
    /// The source of the output head's weights.
    pub head: OutputHead,
    /// Number of ranks that compute parts of the network, whose halves of a layer are summed; 1 for a whole network.
    pub n_ranks: usize,
    /// Whether the output head has a bias.
    pub head_bias: Presence,
    /// Factor of the logits.
    pub logit_scale: f32,
    /// Caps the logits: `cap * tanh(x / cap)`.
    pub logit_softcap: Option<f32>,
    /// Factors for rows of some tensors of a Hugging Face folder. GGUF files have them folded into the
    /// weights.
    pub row_factors: Vec<RowFactors>,
    /// Number of leading layers after which inputs other than tokens add one of their parts to the stream.
    pub n_deep_inputs: usize,
    /// Properties of a tower, which encodes a medium: one sequence per step.
    pub tower: Option<TowerDescriptor>,
    /// Sum of the control vectors added to the stream after each layer, `[n_embd]`; empty for layers, and
    /// networks, without.
    pub control: Vec<Vec<f32>>,
    /// Tensors that files of the architecture may have although decoding does not need them. Every other
    /// tensor must be used.
    pub ignorable: Vec<Ignorable>,
}

/// Properties of a network that encodes a medium. It keeps no keys and values between steps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TowerDescriptor {
    /// Layers after which the stream is read as well.
    pub taps: Vec<usize>,
}

/// Factors for the rows of a matrix.
#[derive(Clone, Debug, PartialEq)]
pub struct RowFactors {
    /// Suffix of the matrix's name.
    pub tensor: &'static str,
    /// Factors of adjacent rows, first to last, each with its number of rows.
    pub rows: Vec<(usize, f32)>,
}

/// Tensors that decoding does not need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ignorable {
    /// The tensor of this name.
    Tensor(String),
    /// The tensor with this name after `blk.N.` in every layer.
    OfLayers(String),
    /// All tensors of the layers from this one on, such as MTP layers.
    LayersFrom(usize),
}

/// A kind of norm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormDescriptor {
    /// RMS or layer norm.
    pub kind: NormKind,
    /// Epsilon, added under the square root.
    pub eps: f32,
    /// Whether there is a bias in addition to the weight.
    pub bias: Presence,
}

/// Per-layer embeddings of the tokens. Each layer adds its own through a gate at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerEmbeddingsDescriptor {
    /// Width of a layer's embedding.
    pub width: usize,
    /// Activation of the gate.
    pub activation: Activation,
}

/// Parallel streams of hidden states, and a low-rank path around each mixer. A layer works on the first
/// stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AltUpDescriptor {
    /// Number of streams, including the first.
    pub n_streams: usize,
    /// Whether a row multiplies the stream to which a layer's own embedding is added.
    pub output_row: Presence,
    /// Rank of the path around each mixer (LAuReL).
    pub laurel_rank: usize,
}

/// The norm of the embeddings; its kind is the network's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EmbeddingNorm {
    /// With a weight.
    Weighted,
    /// Without a weight.
    Plain,
}

/// One layer: a mixer, which moves information between positions, and a feed-forward network, which works on each.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerDescriptor {
    /// The mixer.
    pub mixer: MixerDescriptor,
    /// The feed-forward network.
    pub ffn: FfnDescriptor,
    /// The positions of the layer's norms.
    pub norms: NormPlacement,
    /// The order of mixer and feed-forward network.
    pub residual: Residual,
    /// Whether the stream is multiplied by a number at the end of the layer.
    pub has_output_scale: bool,
}

impl LayerDescriptor {
    /// Returns the layer's attention, for an architecture's file to change.
    ///
    /// # Panics
    /// If the mixer is of another kind. The file that made the layer knows its kind.
    pub fn attention_mut(&mut self) -> &mut AttentionDescriptor {
        match &mut self.mixer {
            MixerDescriptor::Attention(attention) | MixerDescriptor::Both { attention, .. } => attention,
            other => panic!("{other:?} is no attention"),
        }
    }

    /// Returns the layer's dense feed-forward network, for an architecture's file to change.
    ///
    /// # Panics
    /// If the network is of another kind.
    pub fn dense_mut(&mut self) -> &mut DenseDescriptor {
        match &mut self.ffn {
            FfnDescriptor::Dense(dense) => dense,
            FfnDescriptor::None => panic!("the layer has no feed-forward network"),
            FfnDescriptor::Moe(_) | FfnDescriptor::Beside(_) => panic!("the layer has experts"),
        }
    }
}

/// The positions of a layer's norms, the same for mixer and feed-forward network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormPlacement {
    /// Before each half: `x + f(norm(x))`.
    Pre,
    /// After each half: `x + norm(f(x))`.
    Post,
    /// Before and after each half.
    PreAndPost,
    /// After the addition of each half: `norm(x + f(x))`.
    AfterSum,
    /// As `AfterSum`, with a second norm for the mixer: `norm_2(x + norm(x + f(x)))`.
    AfterSumTwice,
    /// Before the feed-forward network only.
    PreFfn,
}

impl NormPlacement {
    /// Returns whether the input of the mixer is normed.
    pub fn has_pre_mixer(self) -> bool {
        matches!(self, Self::Pre | Self::PreAndPost)
    }

    /// Returns whether the input of the feed-forward network is normed.
    pub fn has_pre_ffn(self) -> bool {
        self.has_pre_mixer() || self == Self::PreFfn
    }

    /// Returns whether the stream is normed after the addition of a half.
    pub fn has_sum(self) -> bool {
        matches!(self, Self::AfterSum | Self::AfterSumTwice)
    }

    /// Returns whether the output of a half is normed.
    pub fn has_post(self) -> bool {
        matches!(self, Self::Post | Self::PreAndPost)
    }
}

/// The order of a layer's halves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Residual {
    /// The feed-forward network sees the mixer's output.
    Sequential,
    /// Both see the layer's input through one norm.
    Parallel,
    /// Both see the layer's input, each through its own norm.
    ParallelTwoNorms,
}

/// Whether an optional tensor exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Presence {
    /// It does not exist.
    #[default]
    Absent,
    /// It is used if the file has it.
    Optional,
    /// A file without it is broken.
    Required,
}

impl Presence {
    /// Returns whether a tensor exists, if that is known.
    pub(crate) fn of(is_there: bool) -> Self {
        if is_there { Self::Required } else { Self::Absent }
    }
}

impl Descriptor {
    /// Returns an RMS norm with the network's epsilon, for parts of a layer that always use one.
    pub(crate) fn rms_norm(&self) -> NormDescriptor {
        NormDescriptor {
            kind: NormKind::Rms,
            eps: self.norm.eps,
            bias: Presence::Absent,
        }
    }

    /// Checks that all sizes fit together.
    ///
    /// # Errors
    /// [`LoadError::BadValue`] for the first that does not fit.
    pub fn validate(&self) -> Result<(), LoadError> {
        check("vocabulary size", self.n_vocab, self.n_vocab > 0, "at least 1")?;
        check(
            "embedding length",
            self.n_embd,
            (1..=MAX_WIDTH).contains(&self.n_embd),
            WIDTH,
        )?;
        check(
            "context length",
            self.n_ctx_train,
            self.n_ctx_train > 0,
            "at least 1",
        )?;
        check(
            "layer count",
            self.layers.len(),
            !self.layers.is_empty(),
            "at least 1",
        )?;
        for eps in [self.norm.eps, self.post_norm_eps.unwrap_or(0.0)] {
            check(
                "norm epsilon",
                eps,
                eps >= 0.0 && eps.is_finite(),
                "a number, not negative",
            )?;
        }
        for (what, scale) in [
            ("embedding scale", self.embedding_scale),
            ("residual scale", self.residual_scale),
            ("logit scale", self.logit_scale),
        ] {
            check(what, scale, scale.is_finite(), "a number")?;
        }
        check_positive("logit softcap", self.logit_softcap.unwrap_or(1.0))?;
        let n_positions = self.n_learned_positions.unwrap_or(1);
        let is_right = (1..=MAX_WIDTH).contains(&n_positions);
        check("number of learned positions", n_positions, is_right, WIDTH)?;
        for rope in &self.ropes {
            rope.validate()?;
        }
        for (layer_idx, layer) in self.layers.iter().enumerate() {
            self.validate_layer(layer)?;
            self.validate_sharing(layer_idx)?;
        }
        if let Some(embeddings) = &self.layer_embeddings {
            check(
                "width of a layer's embeddings",
                embeddings.width,
                (1..=MAX_WIDTH / self.layers.len()).contains(&embeddings.width),
                WIDTH,
            )?;
        }
        check(
            "number of layers that inputs are added behind",
            self.n_deep_inputs,
            self.n_deep_inputs == 0 || self.n_deep_inputs < self.layers.len() && self.alt_up.is_none(),
            "less than all layers, of one stream",
        )?;
        let taps = self.tower.iter().flat_map(|tower| &tower.taps);
        for &tap in taps {
            let is_there = tap < self.layers.len();
            check("layer whose stream is read", tap, is_there, "one that there is")?;
        }
        if let Some(alt_up) = &self.alt_up {
            self.validate_alt_up(alt_up)?;
        }
        if let Some(pooling) = &self.pooling {
            pooling.validate()?;
        }
        if let Some(decision) = self.decision {
            decision.validate(self.layers.len())?;
        }
        if self.is_encoder() {
            check(
                "pooling of an encoder",
                "missing",
                self.pooling.is_some() || self.decision.is_some(),
                "mean, first, last or rank",
            )?;
        }
        Ok(())
    }

    /// Returns whether decoding needs nothing from the layer with this index.
    pub(crate) fn ignores_layer(&self, layer_idx: usize) -> bool {
        (self.ignorable.iter())
            .any(|ignorable| matches!(ignorable, Ignorable::LayersFrom(first) if layer_idx >= *first))
    }

    /// Returns whether tokens see later tokens.
    pub fn is_encoder(&self) -> bool {
        self.attentions().any(|attention| !attention.is_causal)
    }

    /// Returns the width of a row of a step's results.
    pub fn output_width(&self) -> usize {
        if self.decision.is_some() {
            return N_QUESTION_TYPES;
        }
        let pooling = self.pooling.as_ref();
        pooling.map_or(self.n_embd, |pooling| pooling.output_width(self.n_embd))
    }

    fn validate_layer(&self, layer: &LayerDescriptor) -> Result<(), LoadError> {
        layer.mixer.validate(&self.ropes)?;
        layer.ffn.validate()?;
        check(
            "layer",
            "a layer without mixer and feed-forward network",
            !(layer.mixer.is_none() && layer.ffn.is_none()),
            "one of the two",
        )?;
        check(
            "residual of a layer of one half",
            format_args!("{:?}", layer.residual),
            layer.residual == Residual::Sequential || !(layer.mixer.is_none() || layer.ffn.is_none()),
            "Sequential",
        )?;
        check(
            "norm placement of a parallel layer",
            format_args!("{:?}", layer.norms),
            layer.residual == Residual::Sequential || layer.norms == NormPlacement::Pre,
            "Pre",
        )?;
        check(
            "parallel layer",
            "a factor or an embedding of the layer at its end",
            layer.residual == Residual::Sequential
                || !layer.has_output_scale && self.layer_embeddings.is_none(),
            "none",
        )
    }

    fn validate_alt_up(&self, alt_up: &AltUpDescriptor) -> Result<(), LoadError> {
        check(
            "number of streams",
            alt_up.n_streams,
            (2..=MAX_STREAMS).contains(&alt_up.n_streams),
            "between 2 and 16",
        )?;
        check(
            "rank of the path around a mixer",
            alt_up.laurel_rank,
            (1..=MAX_WIDTH).contains(&alt_up.laurel_rank),
            WIDTH,
        )?;
        let is_plain = |layer: &LayerDescriptor| {
            layer.residual == Residual::Sequential
                && layer.norms.has_pre_mixer()
                && !layer.mixer.is_none()
                && !layer.ffn.is_none()
                && !layer.has_output_scale
        };
        check(
            "layers of a network with several streams",
            "a parallel one, one of one half, one without a norm before its halves or one with a factor at its end",
            self.layers.iter().all(is_plain) && !self.is_encoder(),
            "none of these",
        )
    }

    /// Checks that a layer that reads another's keys and values has the same kind of attention.
    fn validate_sharing(&self, layer_idx: usize) -> Result<(), LoadError> {
        let Some(attention) = self.layers[layer_idx].mixer.attention() else {
            return Ok(());
        };
        let Some(owner) = attention.shares_kv_of else {
            return Ok(());
        };
        let found = (self.layers[..layer_idx].get(owner)).and_then(|layer| layer.mixer.attention());
        check(
            "layer whose keys and values another reads",
            owner,
            found.is_some_and(|found| {
                found.shares_kv_of.is_none() && found.kv_shape() == attention.kv_shape()
            }),
            "an earlier one with heads of the same widths that stores its own",
        )
    }

    /// Returns the widths that a backend prepares for.
    pub fn shape(&self) -> NetworkShape {
        // All streams but the first have one matrix each.
        let stream_heads = self.alt_up.map(|alt_up| HeadsShape {
            n_heads: alt_up.n_streams - 1,
            widest_input: self.n_embd,
            widest_output: self.n_embd,
        });
        NetworkShape {
            n_embd: self.n_embd,
            layers: (self.layers.iter().enumerate())
                .map(|(layer_idx, layer)| LayerShape {
                    attention: layer.mixer.attention_shape(),
                    heads: (layer.mixer.latent().map(LatentDescriptor::heads_shape)).or(stream_heads),
                    widest_input: (layer.mixer.widest_input())
                        .max(if self.reads_hidden { 2 * self.n_embd } else { 0 })
                        .max(layer.ffn.widest_input())
                        .max(self.layer_embeddings.map_or(0, |embeddings| embeddings.width))
                        .max(self.alt_up.map_or(0, |alt_up| alt_up.laurel_rank)),
                    has_latent_rows: layer.mixer.latent().is_some(),
                    kv: layer.mixer.kv_shape().map(|_| KvStoreOfLayer {
                        idx: self.kv_idx(layer_idx),
                        is_owner: layer.mixer.shares_kv_of().is_none(),
                    }),
                    state: layer.mixer.state_shape(),
                    experts: layer.ffn.moe().map(MoeDescriptor::shape),
                })
                .collect(),
            has_streams: self.alt_up.is_some(),
            reads_hidden: self.reads_hidden,
        }
    }

    /// Returns whether every sequence ends with its step.
    fn is_one_step(&self) -> bool {
        self.is_encoder() || self.tower.is_some()
    }

    /// Returns the shapes of the KV store's layers. Layers of an encoder or a tower need keys and values only
    /// while they run, so layers of the same shape share one layer of the store.
    pub fn kv_layers(&self) -> Vec<KvLayerShape> {
        let is_one_step = self.is_one_step();
        let mut shapes = Vec::new();
        let owners = (self.layers.iter()).filter(|layer| layer.mixer.shares_kv_of().is_none());
        for shape in owners.filter_map(|layer| layer.mixer.kv_shape()) {
            if !(is_one_step && shapes.contains(&shape)) {
                shapes.push(shape);
            }
        }
        shapes
    }

    /// Returns the layer of the KV store that a layer uses; 0 for one that reads no keys.
    pub(crate) fn kv_idx(&self, layer_idx: usize) -> usize {
        let mixer = &self.layers[layer_idx].mixer;
        let Some(shape) = mixer.kv_shape() else {
            return 0;
        };
        if let Some(owner) = mixer.shares_kv_of() {
            return self.kv_idx(owner);
        }
        if !self.is_one_step() {
            let earlier = self.layers[..layer_idx].iter().map(|layer| &layer.mixer);
            let owners = earlier.filter(|mixer| mixer.kv_shape().is_some() && mixer.shares_kv_of().is_none());
            return owners.count();
        }
        let found = (self.kv_layers().into_iter()).position(|known| known == shape);
        found.expect("the store has every shape")
    }

    /// Returns the layers with attention, first to last.
    pub(crate) fn attentions(&self) -> impl Iterator<Item = &AttentionDescriptor> {
        self.layers.iter().filter_map(|layer| layer.mixer.attention())
    }

    /// Returns the shape of a sequence's state, layer by layer, in the order of the store.
    pub fn state_layers(&self) -> impl Iterator<Item = StateLayerShape> {
        self.layers.iter().filter_map(|layer| layer.mixer.state_shape())
    }

    /// Returns, for each layer of the KV store, the width of the widest window through which it is read;
    /// `None` if some layer reads it without a window.
    pub fn kv_windows(&self) -> Vec<Option<usize>> {
        let mut windows = vec![Some(0); self.kv_layers().len()];
        if self.is_one_step() {
            windows.fill(None);
            return windows;
        }
        for (layer_idx, layer) in self.layers.iter().enumerate() {
            if layer.mixer.kv_shape().is_some() {
                let window = layer.mixer.attention().and_then(|attention| attention.window);
                let widest = &mut windows[self.kv_idx(layer_idx)];
                *widest = widest.zip(window).map(|(widest, window)| window.max(widest));
            }
        }
        windows
    }

    /// Returns the width of the widest window, if every layer that stores keys and values has one and nothing
    /// else is read.
    pub fn kv_window(&self) -> Option<usize> {
        let windows: Option<Vec<usize>> = self.kv_windows().into_iter().collect();
        windows?.into_iter().max()
    }
}

/// Largest accepted width. Sums of products of larger numbers could overflow.
const MAX_WIDTH: usize = 1 << 24;
const WIDTH: &str = "between 1 and 2^24";
