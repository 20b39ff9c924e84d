//! [`GgufForm::disagreement`]: what a folder's network has, and the file made of it would not.
//!
//! Separate from the rules of keys, which it guards: whatever they leave out or cannot say is found here, by reading the file's header as
//! a load does. Invariant: nothing here knows an architecture. What converters have in weights or tensors in the place of keys is said
//! of the change ([`Recast`]) that puts it there.

use tokenmill_backend::{KeyHeads, RopeStyle};
use tokenmill_gguf::TensorType;

use crate::{
    Descriptor, FfnDescriptor, LoadError, LongRopeFactors, MixerDescriptor, NotInGguf, OutputHead, QkNorm,
    RopeDescriptor, RopeScaling, WeightSource, XieluNumbers,
    descriptor::{Difference, ROUNDING, first_difference},
};

use super::{GgufForm, Recast};

/// Parts of a field's path, and the keys of configurations that say it.
const KEYS: &[(&str, &str)] = &[
    ("mixer.window", "sliding_window, layer_types"),
    ("mixer.is_chunked", "attention_chunk_size, layer_types"),
    ("mixer.rope", "no_rope_layers, layer_types"),
    (
        "mixer.scale",
        "query_pre_attn_scalar, mscale_all_dim, qk_scale_factor",
    ),
    ("mixer.softcap", "attn_logit_softcapping"),
    (
        "mixer.temperature",
        "attn_temperature_tuning, attn_scale, floor_scale",
    ),
    ("mixer.qk_norm", "use_qk_norm, qk_layernorm"),
    ("mixer.output_gate", "attn_output_gate"),
    ("mixer.shares_kv_of", "num_kv_shared_layers"),
    ("mixer.n_kv_heads", "num_key_value_heads"),
    ("mixer.n_heads", "num_attention_heads"),
    ("mixer.n_state", "ssm_state_size"),
    (".style", "rope_interleave"),
    (".scaling", "rope_scaling"),
    (".base", "rope_theta"),
    (".n_dims", "partial_rotary_factor"),
    ("activation", "hidden_act"),
    (".xielu", "hidden_act"),
    ("ffn.router.groups", "n_group, topk_group"),
    ("ffn.router.is_normalized", "norm_topk_prob"),
    ("ffn.router.scale", "routed_scaling_factor"),
    ("ffn.router.score", "scoring_func"),
    ("ffn.n_ff", "intermediate_size"),
    (".residual", "parallel_attn, use_parallel_residual"),
    ("logit_softcap", "final_logit_softcapping"),
    ("post_norm_eps", "post_norm_eps"),
    ("embedding_scale", "embedding_multiplier"),
    ("residual_scale", "residual_multiplier"),
    ("logit_scale", "logit_scale, logits_scaling, lm_head_multiplier"),
    ("pooling", "1_Pooling/config.json"),
    (".ffn", "decoder_sparse_step, mlp_only_layers, mlp_layer_types"),
];

impl GgufForm {
    /// The first thing in which a file differs from the folder that it is made of: their descriptors, and the tensors of the file.
    pub(crate) fn disagreement(
        &self,
        folder: &Descriptor,
        file: &Descriptor,
        tensors: &dyn WeightSource,
    ) -> Option<Difference> {
        let n_ctx_train = folder.n_ctx_train;
        let mut folder = self.as_in_file(folder, tensors);
        let mut file = comparable(file, tensors);
        match_ropes(&mut folder, &mut file, tensors, n_ctx_train);
        match_xielu(&mut folder, &file);
        // Which layers there are explains much else.
        let of_layers = first_difference(&folder.layers, &file.layers).map(|difference| Difference {
            field: format!("layers{}", difference.field),
            ..difference
        });
        of_layers.or_else(|| first_difference(&folder, &file))
    }

    /// The error that says so.
    pub(crate) fn cannot_say(&self, difference: Difference) -> LoadError {
        let Difference { field, first, second } = difference;
        let keys = KEYS.iter().find(|(part, _)| field.ends_with(part));
        LoadError::NotInGguf(Box::new(NotInGguf {
            arch: self.arch,
            keys: keys.map_or(String::new(), |(_, keys)| {
                format!("; config.json says it with {keys}")
            }),
            field,
            folder: first,
            file: second,
        }))
    }

    /// A folder's network as the file has it, where numbers of keys are in the tensors there.
    fn as_in_file(&self, folder: &Descriptor, tensors: &dyn WeightSource) -> Descriptor {
        let mut folder = comparable(folder, tensors);
        for &(end, recast) in self.recasts {
            match recast {
                Recast::NeighbouringQueries if end == "attn_q.weight" => {
                    for rope in &mut folder.ropes {
                        // The rows of a whole head change places, so all of them must turn.
                        if rope.n_dims == rope.head_dim {
                            rope.style = RopeStyle::Norm;
                        }
                    }
                }
                Recast::EmbeddingScale => {
                    if folder.head == OutputHead::Tied {
                        folder.logit_scale /= folder.embedding_scale;
                    }
                    folder.embedding_scale = 1.0;
                }
                Recast::LogitScale if tensors.contains(end) => folder.logit_scale = 1.0,
                Recast::ScoreScale => folder
                    .layers
                    .iter_mut()
                    .for_each(|layer| unscale(&mut layer.mixer)),
                Recast::TiledRows => {
                    for layer in &mut folder.layers {
                        if let MixerDescriptor::DeltaNet(net) = &mut layer.mixer {
                            net.key_heads = KeyHeads::Tiled;
                        }
                    }
                }
                _ => {}
            }
        }
        if self.has_plain_norms() {
            for layer in &mut folder.layers {
                if let MixerDescriptor::Attention(attention) = &mut layer.mixer
                    && attention.qk_norm == Some(QkNorm::PlainHead)
                {
                    attention.qk_norm = Some(QkNorm::Head);
                    unscale(&mut layer.mixer);
                }
            }
        }
        folder
    }
}

/// Scores that are scaled by the width of a head alone.
fn unscale(mixer: &mut MixerDescriptor) {
    if let MixerDescriptor::Attention(attention) | MixerDescriptor::Both { attention, .. } = mixer {
        attention.scale = 1.0 / (attention.head_dim_k as f32).sqrt();
    }
}

/// A network without what names tensors and what a load finds out, and with a rope of its own in the place of each layer.
fn comparable(descriptor: &Descriptor, tensors: &dyn WeightSource) -> Descriptor {
    let mut descriptor = descriptor.clone();
    // A class of folders may become one of several architectures, and the context is what a file recommends.
    descriptor.arch.clear();
    descriptor.n_ctx_train = 0;
    descriptor.tensor_names = &[];
    descriptor.ignorable.clear();
    // Weights have it.
    descriptor.row_factors.clear();
    if descriptor.head == OutputHead::OwnIfPresent {
        descriptor.head = if tensors.contains("output.weight") {
            OutputHead::Own
        } else {
            OutputHead::Tied
        };
    }
    let ropes = std::mem::take(&mut descriptor.ropes);
    for layer in &mut descriptor.layers {
        if let Some(rope_idx) = rope_of(&mut layer.mixer) {
            descriptor.ropes.push(ropes[*rope_idx].clone());
            *rope_idx = descriptor.ropes.len() - 1;
        }
    }
    descriptor
}

fn rope_of(mixer: &mut MixerDescriptor) -> Option<&mut usize> {
    match mixer {
        MixerDescriptor::Attention(attention) | MixerDescriptor::Both { attention, .. } => {
            attention.rope.as_mut()
        }
        MixerDescriptor::Latent(latent) => latent.rope.as_mut(),
        _ => None,
    }
}

/// Takes ropes of the same frequencies for the same, in whatever way they are said, up to the context that the network was made for.
fn match_ropes(
    folder: &mut Descriptor,
    file: &mut Descriptor,
    tensors: &dyn WeightSource,
    n_ctx_train: usize,
) {
    for (of_folder, of_file) in folder.ropes.iter().zip(&mut file.ropes) {
        let contexts = [
            1,
            original_context(of_folder),
            original_context(of_file),
            n_ctx_train,
        ];
        let is_same = of_folder.n_dims == of_file.n_dims
            && (contexts.into_iter().filter(|&n_ctx| n_ctx <= n_ctx_train))
                .all(|n_ctx| is_near(&turns(of_folder, tensors, n_ctx), &turns(of_file, tensors, n_ctx)));
        if is_same {
            of_file.scaling = of_folder.scaling.clone();
            of_file.base = of_folder.base;
            of_file.has_freq_factors = of_folder.has_freq_factors;
        }
    }
}

fn original_context(rope: &RopeDescriptor) -> usize {
    match rope.scaling {
        RopeScaling::LongRope { original_context, .. } | RopeScaling::Dynamic { original_context, .. } => {
            original_context
        }
        _ => 1,
    }
}

/// How far each pair of a rope turns with a position, and last its magnitude.
fn turns(rope: &RopeDescriptor, tensors: &dyn WeightSource, n_ctx: usize) -> Vec<f32> {
    let factors = match &rope.scaling {
        RopeScaling::LongRope {
            original_context,
            factors,
            ..
        } => {
            let is_long = n_ctx > *original_context;
            match factors {
                Some(LongRopeFactors { long, .. }) if is_long => Some(long.clone()),
                Some(LongRopeFactors { short, .. }) => Some(short.clone()),
                None if is_long => numbers(tensors, "rope_factors_long.weight"),
                None => numbers(tensors, "rope_factors_short.weight"),
            }
        }
        _ if rope.has_freq_factors => numbers(tensors, "rope_freqs.weight"),
        _ => None,
    };
    let (mut turns, magnitude) = rope.for_context(n_ctx).frequencies(factors.as_deref());
    turns.push(magnitude);
    turns
}

/// The numbers of a tensor of divisors, which is there in F32 or not at all.
fn numbers(tensors: &dyn WeightSource, name: &str) -> Option<Vec<f32>> {
    let tensor = (tensors.tensor(name)).filter(|tensor| tensor.ty == TensorType::F32)?;
    let bytes = tensor.bytes.to_vec().ok()?;
    let numbers = bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes));
    Some(numbers.collect())
}

fn is_near(a: &[f32], b: &[f32]) -> bool {
    /// Pairs that turn less than this never turn: converters write a huge divisor for none.
    const STILL: f32 = 1e-20;
    let is_near = |(&x, &y): (&f32, &f32)| {
        let difference = f64::from(x - y).abs();
        difference <= ROUNDING * f64::from(x.abs().max(y.abs())) || x.abs() < STILL && y.abs() < STILL
    };
    a.len() == b.len() && a.iter().zip(b).all(is_near)
}

/// Numbers of xIELU are tensors in folders and keys in files.
fn match_xielu(folder: &mut Descriptor, file: &Descriptor) {
    for (of_folder, of_file) in folder.layers.iter_mut().zip(&file.layers) {
        if let (FfnDescriptor::Dense(own), FfnDescriptor::Dense(other)) = (&mut of_folder.ffn, &of_file.ffn)
            && own.xielu == Some(XieluNumbers::InTensors)
            && other.xielu.is_some()
        {
            own.xielu = other.xielu;
            // xIELU is in its place.
            own.activation = other.activation;
        }
    }
}
