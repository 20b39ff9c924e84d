//! [`GgufForm::disagreement`]: finds properties of a folder's network that its GGUF file would not express.
//!
//! It guards the key rules: whatever they omit or cannot express is found here, by reading the file's header
//! as a load does. Invariant: nothing here knows an architecture. If a converter stores a value in weights or
//! tensors instead of a key, the [`Recast`] that does so declares it.

use std::collections::HashSet;

use tokenmill_backend::{KeyHeads, RopeStyle};
use tokenmill_gguf::TensorType;

use crate::{
    Descriptor, FfnDescriptor, FieldNotInGguf, LoadError, LongRopeFactors, MixerDescriptor, NotInGguf,
    OutputHead, QkNorm, RopeDescriptor, RopeScaling, WeightSource, XieluNumbers,
    arch::GgufForm,
    descriptor::{Difference, ROUNDING, differences},
    hf_config::HfConfig,
    hf_layout::Recast,
};

/// Suffixes of field paths, with the configuration keys that set the field; the first match counts. Messages
/// name only the keys that the folder has, since each architecture uses few of them.
const KEYS: &[(&str, &[&str])] = &[
    ("mixer.window", &["sliding_window", "layer_types"]),
    ("mixer.is_chunked", &["attention_chunk_size", "layer_types"]),
    ("mixer.rope", &["no_rope_layers", "layer_types"]),
    (
        "mixer.scale",
        &[
            "query_pre_attn_scalar",
            "attention_multiplier",
            "mscale_all_dim",
            "qk_scale_factor",
            "scale_attn_weights",
            "scale_attn_by_inverse_layer_idx",
        ],
    ),
    ("mixer.softcap", &["attn_logit_softcapping"]),
    ("mixer.temperature.scale", &["attn_scale", "llama_4_scaling_beta"]),
    (
        "mixer.temperature.interval",
        &["floor_scale", "original_max_position_embeddings"],
    ),
    (
        "mixer.temperature",
        &[
            "attn_temperature_tuning",
            "attn_scale",
            "floor_scale",
            "llama_4_scaling_beta",
        ],
    ),
    ("mixer.qk_norm", &["use_qk_norm", "qk_layernorm"]),
    ("mixer.output_gate", &["attn_output_gate"]),
    ("mixer.shares_kv_of", &["num_kv_shared_layers"]),
    ("mixer.n_kv_heads", &["num_key_value_heads"]),
    ("mixer.n_heads", &["num_attention_heads"]),
    ("mixer.n_state", &["ssm_state_size"]),
    (".style", &["rope_interleave"]),
    (".scaling.rounding", &["truncate"]),
    (
        ".scaling.magnitude",
        &["attention_factor", "mscale", "mscale_all_dim"],
    ),
    (".scaling.factor", &["factor"]),
    (".scaling.beta_fast", &["beta_fast"]),
    (".scaling.beta_slow", &["beta_slow"]),
    (".scaling.low_freq_factor", &["low_freq_factor"]),
    (".scaling.high_freq_factor", &["high_freq_factor"]),
    (".scaling.original_context", &["original_max_position_embeddings"]),
    (".scaling", &["rope_scaling", "rope_parameters"]),
    (".base", &["rope_theta"]),
    (".n_dims", &["partial_rotary_factor"]),
    ("activation", &["hidden_act", "hidden_activation"]),
    (".xielu", &["hidden_act"]),
    ("ffn.router.groups", &["n_group", "topk_group"]),
    ("ffn.router.is_normalized", &["norm_topk_prob"]),
    ("ffn.router.scale", &["routed_scaling_factor"]),
    ("ffn.router.score", &["scoring_func"]),
    ("ffn.n_ff", &["intermediate_size"]),
    (".residual", &["parallel_attn", "use_parallel_residual"]),
    ("logit_softcap", &["final_logit_softcapping"]),
    ("post_norm_eps", &["post_norm_eps"]),
    ("embedding_scale", &["embedding_multiplier"]),
    ("residual_scale", &["residual_multiplier"]),
    (
        "logit_scale",
        &["logit_scale", "logits_scaling", "lm_head_multiplier"],
    ),
    (
        ".ffn",
        &["decoder_sparse_step", "mlp_only_layers", "mlp_layer_types"],
    ),
];

impl GgufForm {
    /// Returns the differences between the descriptor of the folder and that of the file made from it.
    /// `tensors` are the file's.
    pub(super) fn disagreement(
        &self,
        folder: &Descriptor,
        file: &Descriptor,
        tensors: &dyn WeightSource,
    ) -> Vec<Difference> {
        let n_ctx_train = folder.n_ctx_train;
        let mut folder = self.as_in_file(folder, tensors);
        let mut file = comparable(file, tensors);
        match_ropes(&mut folder, &mut file, tensors, n_ctx_train);
        match_xielu(&mut folder, &file);
        let mut found = differences(&folder, &file);
        // Differences of the layers come first, because they often explain the others.
        found.sort_by_key(|difference| !difference.field.starts_with("layers"));
        for difference in &mut found {
            if let Some((layer_idx, rest)) = rope_field(&difference.field) {
                difference.field = format!("layers[{layer_idx}].mixer.rope{rest}");
            }
        }
        found
    }

    /// Returns the error for these differences, with the first layer of each field; `None` if there are none.
    pub(super) fn cannot_say(&self, found: Vec<Difference>, config: &HfConfig) -> Option<LoadError> {
        let mut kinds = HashSet::new();
        let fields: Vec<FieldNotInGguf> = (found.into_iter())
            .filter(|difference| kinds.insert(without_numbers(&difference.field)))
            .map(|Difference { field, first, second }| FieldNotInGguf {
                said_by: said_by(&field, config),
                field,
                folder: first,
                file: second,
            })
            .collect();
        (!fields.is_empty()).then(|| {
            LoadError::NotInGguf(Box::new(NotInGguf {
                arch: self.arch,
                fields,
            }))
        })
    }

    /// Returns the folder's network as the file describes it: values that the file stores in tensors are
    /// taken out.
    fn as_in_file(&self, folder: &Descriptor, tensors: &dyn WeightSource) -> Descriptor {
        let mut folder = comparable(folder, tensors);
        for &(end, recast) in self.recasts() {
            match recast {
                Recast::NeighbouringQueries if end == "attn_q.weight" => {
                    for rope in &mut folder.ropes {
                        // The conversion permutes the rows of the whole head, so all of them must rotate.
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

/// Returns the layer and the remaining path of a rope's field. Ropes are compared as a separate list.
fn rope_field(field: &str) -> Option<(&str, &str)> {
    field.strip_prefix("ropes[")?.split_once(']')
}

/// Returns a field's path without layer numbers.
fn without_numbers(field: &str) -> String {
    field.chars().filter(|c| !c.is_ascii_digit()).collect()
}

/// Returns the configuration keys that set a field, in words; empty if unknown.
fn said_by(field: &str, config: &HfConfig) -> String {
    if field.starts_with("pooling") {
        return "1_Pooling/config.json says it".to_owned();
    }
    // In layers with two mixers, the first one's fields are one level deeper.
    let field = field.replace("mixer.attention.", "mixer.");
    let Some((_, keys)) = KEYS.iter().find(|(end, _)| field.ends_with(end)) else {
        return String::new();
    };
    let there: Vec<String> = keys.iter().filter_map(|key| config.path_of(key)).collect();
    if there.is_empty() {
        format!(
            "config.json has no {}, so the folder's class says it",
            keys.join(", no ")
        )
    } else {
        format!("config.json says it with {}", there.join(", "))
    }
}

/// Resets a score scale to the default, which depends on the head width only.
fn unscale(mixer: &mut MixerDescriptor) {
    if let MixerDescriptor::Attention(attention) | MixerDescriptor::Both { attention, .. } = mixer {
        attention.scale = 1.0 / (attention.head_dim_k as f32).sqrt();
    }
}

/// Returns a network without tensor names and without properties that a load detects, and with one rope entry
/// per layer.
fn comparable(descriptor: &Descriptor, tensors: &dyn WeightSource) -> Descriptor {
    let mut descriptor = descriptor.clone();
    // A folder's class may map to several architectures, and the context length is only a recommendation of
    // the file.
    descriptor.arch.clear();
    descriptor.n_ctx_train = 0;
    descriptor.tensor_names = &[];
    descriptor.ignorable.clear();
    // The file's weights include them.
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
        let rope = match rope_of(&mut layer.mixer) {
            Some(rope_idx) => ropes[std::mem::take(rope_idx)].clone(),
            // The entry of a layer without rope.
            None => RopeDescriptor::plain(RopeStyle::Norm, 2, 10_000.0),
        };
        descriptor.ropes.push(rope);
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

/// Treats ropes as equal if their frequencies are equal up to the trained context, however they are
/// expressed. The same applies to magnitudes when the frequencies differ.
fn match_ropes(
    folder: &mut Descriptor,
    file: &mut Descriptor,
    tensors: &dyn WeightSource,
    n_ctx_train: usize,
) {
    // A layer that exists on one side only is reported separately.
    let n_layers = folder.ropes.len().min(file.ropes.len());
    folder.ropes.truncate(n_layers);
    file.ropes.truncate(n_layers);
    for layer_idx in 0..n_layers {
        let has_rope =
            |descriptor: &mut Descriptor| rope_of(&mut descriptor.layers[layer_idx].mixer).is_some();
        if !has_rope(folder) || !has_rope(file) {
            // So is a rope that exists on one side only.
            file.ropes[layer_idx] = folder.ropes[layer_idx].clone();
            continue;
        }
        match_rope(
            &mut folder.ropes[layer_idx],
            &mut file.ropes[layer_idx],
            tensors,
            n_ctx_train,
        );
    }
}

fn match_rope(
    of_folder: &mut RopeDescriptor,
    of_file: &mut RopeDescriptor,
    tensors: &dyn WeightSource,
    n_ctx_train: usize,
) {
    let contexts = [
        1,
        original_context(of_folder),
        original_context(of_file),
        n_ctx_train,
    ];
    let (mut turns_alike, mut is_as_large) = (of_folder.n_dims == of_file.n_dims, true);
    let mut magnitudes = [1.0; 2];
    for n_ctx in contexts.into_iter().filter(|&n_ctx| n_ctx <= n_ctx_train) {
        let [(own, own_magnitude), (other, magnitude)] =
            [&*of_folder, &*of_file].map(|rope| turns(rope, tensors, n_ctx));
        turns_alike &= is_near(&own, &other);
        is_as_large &= is_near(&[own_magnitude], &[magnitude]);
        magnitudes = [own_magnitude, magnitude];
    }
    // Some configurations leave the magnitude to the formula.
    for (rope, of_rope) in [&mut *of_folder, &mut *of_file].into_iter().zip(magnitudes) {
        if let RopeScaling::Yarn { magnitude, .. } = &mut rope.scaling {
            *magnitude = Some(of_rope);
        }
    }
    if turns_alike || !tensors.contains(FREQ_FACTORS) {
        // Readers look for the tensor and find none.
        of_file.has_freq_factors = of_folder.has_freq_factors;
    }
    if turns_alike {
        of_file.base = of_folder.base;
        let mut scaling = of_folder.scaling.clone();
        if is_as_large || set_magnitude(&mut scaling, magnitudes[1]) {
            of_file.scaling = scaling;
        }
    }
}

/// The tensor of frequency divisors.
const FREQ_FACTORS: &str = "rope_freqs.weight";

/// Sets a scaling's multiplier of rotated values; returns false if the scaling has none.
fn set_magnitude(scaling: &mut RopeScaling, number: f32) -> bool {
    match scaling {
        RopeScaling::Yarn { magnitude, .. } => *magnitude = Some(number),
        RopeScaling::LongRope { magnitude, .. } => *magnitude = number,
        _ => return false,
    }
    true
}

fn original_context(rope: &RopeDescriptor) -> usize {
    match rope.scaling {
        RopeScaling::LongRope { original_context, .. } | RopeScaling::Dynamic { original_context, .. } => {
            original_context
        }
        _ => 1,
    }
}

/// Returns the rotation per position of each pair of a rope, and its magnitude.
fn turns(rope: &RopeDescriptor, tensors: &dyn WeightSource, n_ctx: usize) -> (Vec<f32>, f32) {
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
        _ if rope.has_freq_factors => numbers(tensors, FREQ_FACTORS),
        _ => None,
    };
    rope.for_context(n_ctx).frequencies(factors.as_deref())
}

/// Returns the numbers of a tensor of divisors, which is either F32 or absent.
fn numbers(tensors: &dyn WeightSource, name: &str) -> Option<Vec<f32>> {
    let tensor = (tensors.tensor(name)).filter(|tensor| tensor.ty == TensorType::F32)?;
    let bytes = tensor.bytes.to_vec().ok()?;
    let numbers = bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes));
    Some(numbers.collect())
}

fn is_near(a: &[f32], b: &[f32]) -> bool {
    /// Rotations below this count as none: converters write a huge divisor for pairs that do not rotate.
    const STILL: f32 = 1e-20;
    let is_near = |(&x, &y): (&f32, &f32)| {
        let difference = f64::from(x - y).abs();
        difference <= ROUNDING * f64::from(x.abs().max(y.abs())) || x.abs() < STILL && y.abs() < STILL
    };
    a.len() == b.len() && a.iter().zip(b).all(is_near)
}

/// Matches the parameters of xIELU, which are tensors in folders and keys in files.
fn match_xielu(folder: &mut Descriptor, file: &Descriptor) {
    for (of_folder, of_file) in folder.layers.iter_mut().zip(&file.layers) {
        if let (FfnDescriptor::Dense(own), FfnDescriptor::Dense(other)) = (&mut of_folder.ffn, &of_file.ffn)
            && own.xielu == Some(XieluNumbers::InTensors)
            && other.xielu.is_some()
        {
            own.xielu = other.xielu;
            // xIELU replaces the activation.
            own.activation = other.activation;
        }
    }
}
