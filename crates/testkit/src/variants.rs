//! Networks that together have every feature that a descriptor can name. Each variant changes one thing of
//! [`tiny_llama`]; [`random_variant`] combines several.

use tokenmill_backend::{Activation, KeyHeads, NormKind, RopeStyle, Temperature, Xielu};
use tokenmill_model::{
    AltUpDescriptor, DeltaGates, DeltaNetDescriptor, Descriptor, EmbeddingNorm, FfnDescriptor,
    KimiDeltaDescriptor, LayerDescriptor, LayerEmbeddingsDescriptor, MixerDescriptor, NormPlacement,
    OutputGate, OutputHead, Presence, QkNorm, Residual, RopeScaling, ShortConvDescriptor, SsmDescriptor,
    SsmKind, XieluNumbers, YarnRounding,
};

use crate::{random::Random, tiny_model::tiny_llama};

/// A change of a descriptor, with its name.
pub type Variant = (&'static str, fn(&mut Descriptor));

/// Variants with one feature each.
pub const VARIANTS: &[Variant] = &[
    ("layer norm", |d| d.norm.kind = NormKind::Layer),
    ("layer norm with bias", |d| {
        d.norm.kind = NormKind::Layer;
        d.norm.bias = Presence::Required;
    }),
    ("rms norm with bias", |d| d.norm.bias = Presence::Required),
    ("large epsilon", |d| d.norm.eps = 0.1),
    ("norms after", |d| {
        all(d, |layer| layer.norms = NormPlacement::Post);
    }),
    ("norms before and after", |d| {
        all(d, |layer| layer.norms = NormPlacement::PreAndPost);
    }),
    ("norms of the sums", |d| {
        all(d, |layer| layer.norms = NormPlacement::AfterSum);
    }),
    ("no norm before the mixer", |d| {
        d.layers[0].norms = NormPlacement::PreFfn;
    }),
    ("a norm of the embeddings", |d| {
        d.embedding_norm = Some(EmbeddingNorm::Weighted);
    }),
    ("a norm of the embeddings without a weight", |d| {
        d.embedding_norm = Some(EmbeddingNorm::Plain);
    }),
    ("another epsilon behind each half", |d| {
        all(d, |layer| layer.norms = NormPlacement::PreAndPost);
        d.post_norm_eps = Some(0.3);
    }),
    ("kinds of tokens", |d| d.token_types = Presence::Required),
    ("parallel layers", |d| {
        all(d, |layer| layer.residual = Residual::Parallel);
    }),
    ("parallel layers with two norms", |d| {
        all(d, |layer| layer.residual = Residual::ParallelTwoNorms);
    }),
    ("norm of q and k heads", |d| {
        all(d, |layer| layer.attention_mut().qk_norm = Some(QkNorm::Head));
    }),
    ("norm of q and k heads without a weight", |d| {
        all(d, |layer| layer.attention_mut().qk_norm = Some(QkNorm::PlainHead));
    }),
    ("norm of q and k heads with weights for each", |d| {
        all(d, |layer| layer.attention_mut().qk_norm = Some(QkNorm::EachHead));
    }),
    ("layer norm of q and k heads with weights for each", |d| {
        d.norm.kind = NormKind::Layer;
        all(d, |layer| layer.attention_mut().qk_norm = Some(QkNorm::EachHead));
    }),
    ("attention with a gate of its own", |d| {
        d.layers[1].attention_mut().output_gate = Some(OutputGate::Apart);
        d.layers[1].attention_mut().head_dim_v = 32;
    }),
    ("norm of q and k rows", |d| {
        all(d, |layer| layer.attention_mut().qk_norm = Some(QkNorm::Row));
    }),
    ("biases", |d| {
        all(d, |layer| {
            layer.attention_mut().qkv_bias = Presence::Required;
            layer.attention_mut().output_bias = Presence::Optional;
            layer.dense_mut().bias = Presence::Required;
        });
        d.head_bias = Presence::Required;
    }),
    ("rope of halves", |d| d.ropes[0].style = RopeStyle::Neox),
    ("partial rope", |d| d.ropes[0].n_dims = 8),
    ("partial rope of halves", |d| {
        d.ropes[0].n_dims = 6;
        d.ropes[0].style = RopeStyle::Neox;
    }),
    ("scaling by the context", |d| {
        d.ropes[0].scaling = RopeScaling::Dynamic {
            factor: 4.0,
            original_context: 8,
        };
    }),
    ("linear scaling", |d| {
        d.ropes[0].scaling = RopeScaling::Linear { factor: 4.0 };
    }),
    ("llama3 scaling", |d| {
        d.ropes[0].scaling = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_context: 64,
        };
    }),
    ("YaRN", |d| {
        d.ropes[0].scaling = RopeScaling::Yarn {
            factor: 4.0,
            original_context: 64,
            beta_fast: 32.0,
            beta_slow: 1.0,
            magnitude: None,
            rounding: YarnRounding::Outwards,
        };
    }),
    ("YaRN without rounding", |d| {
        d.ropes[0].scaling = RopeScaling::Yarn {
            factor: 16.0,
            original_context: 64,
            beta_fast: 32.0,
            beta_slow: 1.0,
            magnitude: Some(1.0),
            rounding: YarnRounding::None,
        };
    }),
    ("LongRoPE", |d| {
        d.ropes[0].scaling = RopeScaling::LongRope {
            original_context: 64,
            magnitude: 1.2,
            factors: None,
        };
    }),
    ("frequency factors", |d| d.ropes[0].has_freq_factors = true),
    ("a layer without positions", |d| {
        d.layers[1].attention_mut().rope = None;
    }),
    ("a window in one layer", |d| {
        d.layers[0].attention_mut().window = Some(7);
    }),
    ("windows in all layers", |d| {
        all(d, |layer| layer.attention_mut().window = Some(20));
    }),
    ("a window of one", |d| {
        d.layers[1].attention_mut().window = Some(1);
    }),
    ("capped scores", |d| {
        all(d, |layer| layer.attention_mut().softcap = Some(0.5));
    }),
    ("attention sinks", |d| {
        all(d, |layer| layer.attention_mut().has_sinks = true);
    }),
    ("scores that fall with the distance", |d| {
        all(d, |layer| layer.attention_mut().alibi = Some(8.0));
        d.layers[0].attention_mut().n_heads = 6;
        d.layers[1].attention_mut().softcap = Some(2.0);
    }),
    ("a temperature by position", |d| {
        all(d, |layer| {
            layer.attention_mut().temperature = Some(Temperature {
                scale: 0.4,
                interval: 5,
                offset: 1,
            });
        });
    }),
    ("norms of q and k after rope", |d| {
        all(d, |layer| {
            layer.attention_mut().qk_norm = Some(QkNorm::Head);
            layer.attention_mut().is_normed_after_rope = true;
        });
    }),
    ("keys as values", |d| {
        d.layers[1].attention_mut().takes_keys_as_values = true;
    }),
    ("normed values", |d| {
        all(d, |layer| layer.attention_mut().has_v_norm = true);
    }),
    ("keys and values of another layer", |d| {
        all(d, |layer| layer.attention_mut().qk_norm = Some(QkNorm::Head));
        d.layers[1].attention_mut().shares_kv_of = Some(0);
    }),
    ("a factor at the end of a layer", |d| {
        all(d, |layer| layer.has_output_scale = true);
    }),
    ("a rope of which a part turns", |d| {
        d.ropes[0].scaling = RopeScaling::Proportional { n_rotated: 4 };
    }),
    ("learned positions", |d| d.n_learned_positions = Some(1024)),
    ("another score scale", |d| {
        all(d, |layer| layer.attention_mut().scale = 0.7);
    }),
    ("one KV head", |d| {
        all(d, |layer| layer.attention_mut().n_kv_heads = 1);
    }),
    ("as many KV heads as heads", |d| {
        all(d, |layer| layer.attention_mut().n_kv_heads = 4);
    }),
    ("wide values", |d| {
        all(d, |layer| layer.attention_mut().head_dim_v = 32);
    }),
    ("heads wider than the network", |d| {
        all(d, |layer| {
            layer.attention_mut().head_dim_k = 48;
            layer.attention_mut().head_dim_v = 48;
        });
        d.ropes[0].head_dim = 48;
    }),
    ("layers of different widths", |d| {
        d.layers[0].dense_mut().n_ff = 32;
        d.layers[1].attention_mut().n_heads = 2;
        d.layers[1].attention_mut().n_kv_heads = 1;
    }),
    ("GELU", |d| {
        all(d, |layer| layer.dense_mut().activation = Activation::GeluErf);
    }),
    ("approximate GELU", |d| {
        all(d, |layer| layer.dense_mut().activation = Activation::GeluTanh);
    }),
    ("ReLU", |d| {
        all(d, |layer| layer.dense_mut().activation = Activation::Relu);
    }),
    ("squared ReLU without gate", |d| {
        all(d, |layer| {
            layer.dense_mut().activation = Activation::ReluSquared;
            layer.dense_mut().is_gated = false;
        });
    }),
    ("scaled residuals", |d| d.residual_scale = 0.4),
    ("scaled embeddings", |d| d.embedding_scale = 8.0),
    ("a tied head", |d| d.head = OutputHead::Tied),
    ("scaled logits", |d| d.logit_scale = 0.25),
    ("capped logits", |d| d.logit_softcap = Some(1.0)),
];

/// Variants with operations that few networks need.
pub(crate) const LAYER_VARIANTS: &[Variant] = &[
    ("embeddings of each layer", |d| {
        d.layer_embeddings = Some(LayerEmbeddingsDescriptor {
            width: 12,
            activation: Activation::GeluTanh,
        });
    }),
    ("embeddings of each layer, and a factor at its end", |d| {
        d.layer_embeddings = Some(LayerEmbeddingsDescriptor {
            width: 32,
            activation: Activation::Silu,
        });
        all(d, |layer| layer.has_output_scale = true);
        d.layers[0].norms = NormPlacement::PreAndPost;
    }),
    ("several streams", |d| {
        d.alt_up = Some(ALT_UP);
    }),
    (
        "several streams, with embeddings of each layer and sparse activations",
        |d| {
            d.alt_up = Some(AltUpDescriptor {
                n_streams: 2,
                output_row: Presence::Absent,
                laurel_rank: 40,
            });
            d.layer_embeddings = Some(LayerEmbeddingsDescriptor {
                width: 12,
                activation: Activation::GeluTanh,
            });
            all(d, |layer| layer.norms = NormPlacement::PreAndPost);
            d.layers[0].dense_mut().cutoff = Some(0.4);
        },
    ),
    ("streams and the embeddings added to the others", |d| {
        d.alt_up = Some(ALT_UP);
        d.layer_embeddings = Some(LayerEmbeddingsDescriptor {
            width: 16,
            activation: Activation::Silu,
        });
        d.layers[1].attention_mut().shares_kv_of = Some(0);
    }),
    ("attention in chunks", |d| {
        d.layers[0].attention_mut().window = Some(7);
        d.layers[0].attention_mut().is_chunked = true;
    }),
    ("attention in chunks of a page and more", |d| {
        all(d, |layer| {
            layer.attention_mut().window = Some(20);
            layer.attention_mut().is_chunked = true;
        });
        d.layers[1].attention_mut().window = Some(1);
    }),
    ("xIELU", |d| {
        all(d, |layer| {
            layer.dense_mut().is_gated = false;
            layer.dense_mut().xielu = Some(XieluNumbers::InTensors);
        });
        d.layers[1].dense_mut().xielu = Some(XieluNumbers::Known(Xielu::from_trained(0.4, -0.9, 0.5, -1e-6)));
    }),
];

/// A layer with each kind of recurrent memory next to one with attention, and networks that consist only of
/// such layers.
pub(crate) const STATE_VARIANTS: &[Variant] = &[
    ("a delta net", |d| {
        d.layers[0].mixer = MixerDescriptor::DeltaNet(DELTA_NET);
    }),
    ("delta nets of tiled heads and gates by key head", |d| {
        let net = DeltaNetDescriptor {
            key_heads: KeyHeads::Tiled,
            gates: DeltaGates::ByKeyHead,
            head_dim_v: 6,
            n_taps: 2,
            ..DELTA_NET
        };
        all(d, |layer| layer.mixer = MixerDescriptor::DeltaNet(net));
    }),
    ("Mamba 2", |d| d.layers[1].mixer = MixerDescriptor::Ssm(MAMBA_2)),
    ("Mamba 2 in groups, without norm", |d| {
        let ssm = SsmDescriptor {
            kind: SsmKind::Mamba2 { has_norm: false },
            n_groups: 2,
            head_dim: 12,
            conv_bias: Presence::Absent,
            ..MAMBA_2
        };
        all(d, |layer| {
            layer.mixer = MixerDescriptor::Ssm(ssm);
            layer.ffn = FfnDescriptor::None;
        });
    }),
    ("Mamba 2 with norms in groups", |d| {
        let ssm = SsmDescriptor {
            n_groups: 2,
            ..MAMBA_2
        };
        d.layers[0].mixer = MixerDescriptor::Ssm(ssm);
        d.layers[1].mixer = MixerDescriptor::None;
    }),
    ("Mamba", |d| {
        d.layers[0].mixer = MixerDescriptor::Ssm(mamba(false));
    }),
    ("Mamba with norms", |d| {
        d.layers[1].mixer = MixerDescriptor::Ssm(mamba(true));
    }),
    ("a short convolution", |d| {
        d.layers[0].mixer = MixerDescriptor::ShortConv(ShortConvDescriptor {
            n_channels: 64,
            n_taps: 3,
            bias: Presence::Absent,
        });
    }),
    ("a wide short convolution with biases", |d| {
        d.layers[1].mixer = MixerDescriptor::ShortConv(ShortConvDescriptor {
            n_channels: 100,
            n_taps: 5,
            bias: Presence::Required,
        });
    }),
    ("attention and Mamba 2 next to each other", |d| {
        d.layers[1].mixer = both(d, MAMBA_2);
    }),
    ("attention and Mamba 2 of another width in parallel layers", |d| {
        let ssm = SsmDescriptor {
            n_heads: 6,
            ..MAMBA_2
        };
        let mixer = both(d, ssm);
        all(d, |layer| {
            layer.mixer = mixer.clone();
            layer.residual = Residual::Parallel;
        });
    }),
    ("a delta net and gated attention", |d| {
        d.layers[0].mixer = MixerDescriptor::DeltaNet(DELTA_NET);
        d.layers[1].attention_mut().output_gate = Some(OutputGate::InQuery);
    }),
    ("a delta net that decays channel by channel", |d| {
        d.layers[0].mixer = MixerDescriptor::KimiDelta(KIMI_DELTA);
    }),
    ("delta nets that decay channel by channel", |d| {
        all(d, |layer| {
            layer.mixer = MixerDescriptor::KimiDelta(KimiDeltaDescriptor {
                n_heads: 2,
                head_dim: 20,
                n_taps: 2,
            });
        });
    }),
];

/// Sizes beyond the limit of a kernel for small ones.
pub(crate) const WIDE_VARIANTS: &[Variant] = &[
    ("a delta net of wide keys", |d| {
        d.layers[1].mixer = MixerDescriptor::DeltaNet(DeltaNetDescriptor {
            head_dim_k: 36,
            ..DELTA_NET
        });
    }),
    ("Mamba 2 with long states", |d| {
        d.layers[0].mixer = MixerDescriptor::Ssm(SsmDescriptor {
            n_state: 40,
            ..MAMBA_2
        });
    }),
];

const KIMI_DELTA: KimiDeltaDescriptor = KimiDeltaDescriptor {
    n_heads: 3,
    head_dim: 16,
    n_taps: 4,
};

const ALT_UP: AltUpDescriptor = AltUpDescriptor {
    n_streams: 4,
    output_row: Presence::Required,
    laurel_rank: 24,
};

const DELTA_NET: DeltaNetDescriptor = DeltaNetDescriptor {
    n_k_heads: 2,
    n_v_heads: 4,
    head_dim_k: 12,
    head_dim_v: 16,
    n_taps: 4,
    key_heads: KeyHeads::Grouped,
    gates: DeltaGates::Apart,
};

const MAMBA_2: SsmDescriptor = SsmDescriptor {
    kind: SsmKind::Mamba2 { has_norm: true },
    n_heads: 4,
    head_dim: 16,
    n_groups: 1,
    n_state: 20,
    n_taps: 4,
    conv_bias: Presence::Required,
    bias: Presence::Absent,
};

/// Returns a mixer with the attention of the first layer next to a state space model.
fn both(d: &mut Descriptor, ssm: SsmDescriptor) -> MixerDescriptor {
    MixerDescriptor::Both {
        attention: d.layers[0].attention_mut().clone(),
        ssm,
    }
}

fn mamba(has_norms: bool) -> SsmDescriptor {
    SsmDescriptor {
        kind: SsmKind::Mamba {
            dt_rank: 6,
            has_norms,
        },
        n_heads: 72,
        head_dim: 1,
        n_state: 8,
        ..MAMBA_2
    }
}

/// Returns several variants at once, if they can be combined.
pub fn random_variant(random: &mut Random) -> (String, Descriptor) {
    loop {
        let mut descriptor = tiny_llama();
        let mut names = Vec::new();
        for _ in 0..2 + random.below(4) {
            let (name, change) = random.pick(VARIANTS);
            change(&mut descriptor);
            names.push(*name);
        }
        let is_tied_with_bias =
            descriptor.head == OutputHead::Tied && descriptor.head_bias != Presence::Absent;
        if descriptor.validate().is_ok() && !is_tied_with_bias {
            return (names.join(", "), descriptor);
        }
    }
}

fn all(descriptor: &mut Descriptor, change: impl Fn(&mut LayerDescriptor)) {
    descriptor.layers.iter_mut().for_each(change);
}
