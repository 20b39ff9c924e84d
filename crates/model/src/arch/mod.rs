//! The table of architectures: from a file's metadata to a [`Descriptor`].
//!
//! Each family has one file, and each architecture one row here; the files `gguf_*` and `hf_*` know the key names of
//! the two formats. The rule of a row turns a folder's configuration into keys, and the function for files describes
//! them; `folder_facts` holds what no key states. Invariant: an architecture's row says only what is different
//! about it, and nothing outside this folder knows an architecture's name.

mod afmoe;
mod apertus;
mod bert;
mod bloom;
mod class_defaults;
mod command_r;
mod contradictions;
mod deepseek2;
mod encoder;
mod ernie;
mod exaone;
mod falcon;
mod falcon_h1;
mod folder_facts;
mod gemma;
mod gemma3n;
mod gemma4;
mod gguf_config;
mod gguf_experts;
mod gguf_form;
mod gguf_groups;
mod gguf_keys;
mod gguf_leftovers;
mod gguf_recurrent;
mod glm;
mod gpt2;
mod gpt_neox;
mod gpt_oss;
mod granite;
mod hf_experts;
mod hf_layers;
mod hf_recurrent;
mod hf_sizes;
mod hunyuan;
mod image_inputs;
mod kimi_linear;
mod lfm2;
mod llama;
mod llama4;
mod mamba;
mod minimax_m2;
mod modern_bert;
mod muse_glimmer;
mod nemotron;
mod nemotron_h;
mod olmo;
mod phi;
mod qwen;
mod qwen35;
mod stablelm;
mod starcoder2;
mod structure;
mod text_part;
mod value_keys;

use std::collections::BTreeMap;

use tokenmill_backend::Pooling;
use tokenmill_gguf::Metadata;

use crate::{
    Descriptor, LoadError,
    gguf_header::GgufHeader,
    hf_config::HfConfig,
    hf_layout::{self, Change, HfLayout, Recast, Recasts, UNUSED},
};

use gguf_config::{GgufConfig, n_rows};
pub(crate) use gguf_form::GgufForm;
use gguf_keys::{GgufKeys, Rule};
use value_keys::{Form, with_key};

/// One architecture.
struct Architecture {
    /// Its name in `general.architecture`.
    name: &'static str,
    /// Builds a descriptor from GGUF metadata.
    from_gguf: fn(&GgufConfig<'_>) -> Result<Descriptor, LoadError>,
    /// The Hugging Face configuration classes that it covers.
    hf_classes: &'static [&'static str],
    /// Tensor names in its Hugging Face folders.
    hf_layout: HfLayout,
    /// Collects the keys of a folder: of the GGUF file made from it, and those from which its network is described.
    rule: Rule,
}

impl Architecture {
    /// Returns the first row of an architecture in the table.
    fn named(name: &str) -> &'static Self {
        let found = ARCHITECTURES.iter().find(|row| row.name == name);
        found.expect("descriptors and rows name architectures of the table")
    }
}

/// All architectures.
const ARCHITECTURES: &[Architecture] = &[
    afmoe::ARCHITECTURE,
    apertus::ARCHITECTURE,
    llama::ARCEE,
    bert::BERT,
    bert::ROBERTA,
    bloom::ARCHITECTURE,
    falcon::ARCHITECTURE,
    falcon_h1::ARCHITECTURE,
    gpt2::ARCHITECTURE,
    hunyuan::DENSE,
    hunyuan::MOE,
    hunyuan::HY_V3,
    glm::CHATGLM,
    command_r::COHERE2,
    command_r::COMMAND_R,
    deepseek2::DEEPSEEK_2,
    deepseek2::DOTS_1,
    ernie::DENSE,
    ernie::MOE,
    bert::EUROBERT,
    exaone::EXAONE,
    exaone::EXAONE_4,
    exaone::EXAONE_MOE,
    gemma::GEMMA_2,
    gemma::GEMMA_3,
    gemma3n::ARCHITECTURE,
    gemma4::ARCHITECTURE,
    gemma::EMBEDDING,
    gemma::GEMMA,
    glm::GLM_4,
    glm::GLM_4_MOE,
    gpt_neox::ARCHITECTURE,
    gpt_oss::ARCHITECTURE,
    granite::GRANITE,
    granite::GRANITE_HYBRID,
    granite::GRANITE_MOE,
    bert::JINA_BERT_V2,
    bert::JINA_BERT_V3,
    kimi_linear::ARCHITECTURE,
    lfm2::LFM2,
    lfm2::LFM2_MOE,
    llama::LLAMA,
    llama4::ARCHITECTURE,
    mamba::MAMBA,
    mamba::MAMBA_2,
    granite::MINICPM,
    minimax_m2::ARCHITECTURE,
    llama::MISTRAL_3,
    modern_bert::ARCHITECTURE,
    muse_glimmer::ARCHITECTURE,
    nemotron::ARCHITECTURE,
    bert::NOMIC_BERT,
    nemotron_h::NEMOTRON_H,
    nemotron_h::NEMOTRON_H_MOE,
    olmo::OLMO_2,
    olmo::OLMOE,
    phi::PHI_2,
    phi::PHI_3,
    qwen::QWEN2,
    qwen::QWEN2_VL,
    qwen::QWEN2_MOE,
    qwen::QWEN3,
    qwen::QWEN3_VL,
    qwen::QWEN3_MOE,
    qwen::QWEN3_VL_MOE,
    qwen35::QWEN_35,
    qwen35::QWEN_35_MOE,
    qwen35::QWEN_3_NEXT,
    llama::SEED_OSS,
    llama::SMOLLM_3,
    stablelm::ARCHITECTURE,
    starcoder2::ARCHITECTURE,
];

/// Pooling type for no pooling, as decoders have.
const NO_POOLING: usize = 0;

/// Returns the names of all architectures that can be loaded.
pub fn architectures() -> Vec<&'static str> {
    // An architecture may have one row per folder layout.
    let mut names: Vec<_> = ARCHITECTURES.iter().map(|row| row.name).collect();
    names.dedup();
    names
}

/// Lists the possible tensor names in folders of an architecture.
pub(crate) fn layouts(arch: &str) -> Vec<&'static HfLayout> {
    let rows = ARCHITECTURES.iter().filter(|row| row.name == arch);
    rows.map(|row| &row.hf_layout).collect()
}

/// Returns how the tensors of an architecture's files differ from those of its folders.
pub(crate) fn recasts_of(arch: &str) -> Recasts {
    let row = ARCHITECTURES.iter().find(|row| row.name == arch);
    row.map_or(&[], |row| row.hf_layout.recasts)
}

/// Returns a header's architecture and typed access to its metadata.
fn open_gguf(header: GgufHeader<'_>) -> Result<(&'static Architecture, GgufConfig<'_>), LoadError> {
    let found = header.arch;
    let row = (ARCHITECTURES.iter())
        .find(|row| row.name == found)
        .ok_or_else(|| LoadError::UnknownArchitecture {
            found: found.to_owned(),
            supported: architectures(),
        })?;
    let embedding = (header.tensors)
        .get("token_embd.weight")
        .ok_or_else(|| LoadError::MissingTensor {
            name: "token_embd.weight".to_owned(),
        })?;
    let config = GgufConfig::of(row.name, n_rows(embedding), header.metadata, header.tensors);
    Ok((row, config))
}

/// Describes the network of an architecture's file.
fn describe(row: &Architecture, config: &GgufConfig<'_>) -> Result<Descriptor, LoadError> {
    let mut descriptor = (row.from_gguf)(config)?;
    // Only the architecture knows the kind of its norms.
    descriptor.norm.eps = config.norm_epsilon(descriptor.norm.kind)?;
    Ok(descriptor)
}

/// Describes the first MTP layer of a GGUF file, or of a folder in GGUF form, as a network with one layer.
/// Also returns the layer's index in the file. `None` if the file has no such layer.
pub(crate) fn describe_nextn(header: GgufHeader<'_>) -> Result<Option<(Descriptor, usize)>, LoadError> {
    let (row, config) = open_gguf(header)?;
    let (layer_idx, n_nextn) = config.layer_counts()?;
    // Some files count layers that they omit.
    if n_nextn == 0 || !config.has_tensor(&format!("blk.{layer_idx}.nextn.eh_proj.weight")) {
        return Ok(None);
    }
    let config = GgufConfig {
        with_nextn: true,
        ..config
    };
    let named = |error| with_key(error, Form::Gguf(&config));
    let mut descriptor = describe(row, &config).map_err(named)?;
    // Some architectures build the list of layers themselves.
    let Some(layer) = descriptor.layers.into_iter().nth(layer_idx) else {
        return Ok(None);
    };
    descriptor.layers = vec![layer];
    descriptor.validate().map_err(named)?;
    Ok(Some((descriptor, layer_idx)))
}

/// Describes the network of a GGUF file's header.
pub(crate) fn describe_header(header: GgufHeader<'_>) -> Result<Descriptor, LoadError> {
    let (row, config) = open_gguf(header)?;
    let named = |error| with_key(error, Form::Gguf(&config));
    let mut descriptor = describe(row, &config).map_err(named)?;
    let n_layers = descriptor.layers.len() + config.opt_usize("nextn_predict_layers")?.unwrap_or(0);
    config.check_layers(n_layers).map_err(named)?;
    gguf_leftovers::refuse(&config, &descriptor).map_err(named)?;
    contradictions::refuse(&config, &descriptor).map_err(named)?;
    let has_experts = descriptor.layers.iter().any(|layer| layer.ffn.moe().is_some());
    if let n_experts @ 1.. = config.n_experts()?
        && !has_experts
    {
        let n_dense = config.opt_usize("leading_dense_block_count")?.unwrap_or(0);
        if n_dense >= descriptor.layers.len() {
            return Err(named(LoadError::BadValue {
                what: "count of dense layers that come first",
                found: n_dense.to_string(),
                expected: "less than the layer count, since there are experts",
            }));
        }
        return Err(config.unsupported(format!("a mixture of {n_experts} experts")));
    }
    if !has_experts && let Some((name, dims)) = config.tensor_of_experts() {
        return Err(LoadError::ExpertCount {
            name: name.to_owned(),
            expected: 0,
            found: dims.last().copied().unwrap_or(0),
        });
    }
    if descriptor.pooling.is_none()
        && descriptor.decision.is_none()
        && config.opt_usize("pooling_type")? != Some(NO_POOLING)
    {
        // A decoder trained for embeddings or ranking states its pooling. Its mean is computed over rows that
        // arrive in chunks.
        let pooling = config.pooling(encoder::HeadStep::Tanh, Pooling::Last)?;
        descriptor.pooling = pooling.filter(|pooling| pooling.kind == Pooling::Last);
    }
    descriptor.validate().map_err(named)?;
    Ok(descriptor)
}

/// Returns whether a Hugging Face folder has MTP layers according to its configuration.
pub(crate) fn counts_nextn(config: &HfConfig) -> bool {
    let keys = ["num_nextn_predict_layers", "mtp_num_hidden_layers"];
    (keys.iter()).any(|key| config.opt_usize(key).is_ok_and(|n_layers| n_layers > Some(0)))
}

/// The configuration and layout of a Hugging Face folder.
pub(crate) struct HfNetwork {
    pub(crate) descriptor: Descriptor,
    /// The file made from the folder.
    pub(crate) form: GgufForm,
    /// The names of its tensors.
    pub(crate) layout: HfLayout,
    /// The configuration with its class's defaults for missing fields.
    pub(crate) config: HfConfig,
}

/// Describes the network of a Hugging Face folder.
pub(crate) fn describe_hf(config: &HfConfig) -> Result<HfNetwork, LoadError> {
    // The third version's own code reuses the class name of another network.
    let found = if bert::is_version_3(config) {
        bert::JINA_BERT_V3.hf_classes[0]
    } else {
        config.class()?
    };
    if !text_part::has_text_part(found) {
        return describe_class(found, config);
    }
    let class = text_part::network_of(config).ok_or_else(|| {
        config.wrong(
            "model_type",
            "that of a network whose class can be loaded, for the text part",
        )
    })?;
    let network = describe_class(class, config)?;
    Ok(HfNetwork {
        layout: text_part::layout(&network.layout),
        ..network
    })
}

/// Describes the network of a class.
fn describe_class(class: &str, config: &HfConfig) -> Result<HfNetwork, LoadError> {
    let row = (ARCHITECTURES.iter())
        .find(|row| row.hf_classes.contains(&class))
        .ok_or_else(|| LoadError::UnknownArchitecture {
            found: class.to_owned(),
            supported: ARCHITECTURES
                .iter()
                .flat_map(|row| row.hf_classes)
                .copied()
                .collect(),
        })?;
    let config = class_defaults::filled(class, config);
    let named = |error| with_key(error, Form::Folder(&config));
    let mut descriptor = describe_keys_of(row, &config).map_err(named)?;
    if descriptor.pooling.is_none() {
        let pooling = config.sentence_pooling()?;
        descriptor.pooling = pooling.filter(|pooling| pooling.kind == Pooling::Last);
    }
    row.name.clone_into(&mut descriptor.arch);
    descriptor.validate().map_err(named)?;
    Ok(HfNetwork {
        form: GgufForm::of(row, &descriptor),
        descriptor,
        layout: row.hf_layout,
        config,
    })
}

/// Describes the network of a folder from its keys.
fn describe_keys_of(row: &Architecture, config: &HfConfig) -> Result<Descriptor, LoadError> {
    let mut keys = GgufKeys::new(row, config)?;
    (row.rule)(&mut keys)?;
    if let Some(name) = row.hf_layout.arch_with_experts.filter(|_| keys.facts.has_experts) {
        return describe_keys_of(Architecture::named(name), config);
    }
    let (n_vocab, mut metadata) = (keys.sizes.n_vocab, Metadata::new());
    let facts = keys.write(&mut metadata)?;
    let keys = GgufConfig {
        facts: Some(&facts),
        ..GgufConfig::of(row.name, n_vocab, &metadata, BTreeMap::new())
    };
    let mut descriptor = describe(row, &keys)?;
    facts.complete(&mut descriptor);
    Ok(descriptor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_name_architectures_of_the_table() {
        for row in ARCHITECTURES {
            if let Some(name) = row.hf_layout.arch_with_experts {
                assert!(architectures().contains(&name), "{name}");
            }
        }
    }
    #[test]
    fn a_missing_shared_expert_is_named_as_in_folders_of_its_family() {
        for (arch, expected) in [
            ("qwen2moe", "layers.1.mlp.shared_expert.gate_proj.weight"),
            ("qwen35moe", "layers.1.mlp.shared_expert.gate_proj.weight"),
            ("deepseek2", "layers.1.mlp.shared_experts.gate_proj.weight"),
            ("glm4moe", "layers.1.mlp.shared_experts.gate_proj.weight"),
        ] {
            let row = ARCHITECTURES.iter().find(|row| row.name == arch).expect(arch);
            let found = row.hf_layout.hf_name("blk.1.ffn_gate_shexp.weight");
            assert_eq!(found.as_deref(), Some(expected), "{arch}");
        }
    }
}
