//! Features that encoders share: bidirectional attention, and the pooling of a sequence's rows.
//!
//! The architectures' own files describe only their layers. Invariant: every encoder pools; the default is
//! the mean, as in sentence-transformers.

use serde_json::Value;
use tokenmill_backend::{Activation, Pooling};
use tokenmill_gguf::StringArray;

use crate::{
    Descriptor, EmbeddingNorm, HeadLayer, Ignorable, LoadError, NormPlacement, OutputHead, PooledOutput,
    PoolingDescriptor, Presence,
};

use super::{GgufConfig, GgufKeys, HfConfig, n_rows};

/// A step between the two matrices of a classification head.
#[derive(Clone, Copy)]
pub(super) enum HeadStep {
    /// The hyperbolic tangent.
    Tanh,
    /// GELU, then a norm.
    GeluAndNorm,
}

/// Value of an unset pooling type: -1.
const UNSET: usize = u32::MAX as usize;

/// The folder's sentence-transformers modules after the pooling, by number.
const DENSE: [&str; 5] = ["dense_0", "dense_1", "dense_2", "dense_3", "dense_4"];

impl Descriptor {
    /// Makes attention bidirectional and removes the output head.
    ///
    /// Files give the total width of a window; half of it is on either side.
    pub(super) fn into_encoder(mut self) -> Self {
        self.head = OutputHead::None;
        self.with_layers(|_, layer| {
            let attention = layer.attention_mut();
            attention.is_causal = false;
            attention.window = attention.window.map(|width| width / 2 + 1);
        })
    }

    /// Applies BERT's structure, which its descendants keep: layer norms after embeddings and sums, and token types.
    pub(super) fn with_normed_sums(mut self) -> Self {
        self.embedding_norm = Some(EmbeddingNorm::Weighted);
        self.token_types = Presence::Optional;
        self.has_output_norm = false;
        (self.with_layer_norms(Presence::Required)).with_norms(NormPlacement::AfterSum)
    }
}

impl GgufConfig<'_> {
    /// Adds the pooling of an encoder: by default the mean.
    pub(super) fn pooled(
        &self,
        mut encoder: Descriptor,
        head_step: HeadStep,
        first: Pooling,
    ) -> Result<Descriptor, LoadError> {
        let mean = || PoolingDescriptor::embedding(Pooling::Mean);
        encoder.pooling = Some(self.pooling(head_step, first)?.unwrap_or_else(mean));
        Ok(encoder)
    }

    /// Reads how a file's rows are pooled; `None` if it does not say and has no classification head. `first`
    /// is the pooling before a classification head if the file does not name it.
    pub(super) fn pooling(
        &self,
        head_step: HeadStep,
        first: Pooling,
    ) -> Result<Option<PoolingDescriptor>, LoadError> {
        if let Some(facts) = self.facts {
            return Ok(facts.pooling.clone());
        }
        let kind_of = |code: usize, rest: &str| match code {
            1 => Ok(Pooling::Mean),
            2 => Ok(Pooling::First),
            3 => Ok(Pooling::Last),
            _ => Err(self.unsupported(format!("pooling of type {code} {rest}"))),
        };
        // Files saved by llama.cpp have -1 for an unset type.
        let code_of = |name: &str| Ok::<_, LoadError>(self.opt_usize(name)?.filter(|&code| code != UNSET));
        let code = code_of("pooling_type")?;
        let has_head = self.has_tensor("cls.output.weight") || self.has_tensor("cls.weight");
        if has_head && matches!(code, None | Some(4)) {
            let kind = match code_of("classifier.pooling_type")? {
                None => first,
                Some(code) => kind_of(code, "before its classification head (supported are 1, 2 and 3)")?,
            };
            return Ok(Some(self.rank_head(head_step, kind)));
        }
        let Some(code) = code else {
            return Ok(None);
        };
        let kind = kind_of(code, "(supported are 1, 2, 3, and 4 with a classification head)")?;
        let mut pooling = PoolingDescriptor::embedding(kind);
        for name in DENSE {
            if let Some(dims) = self.tensors.get(format!("{name}.weight").as_str()) {
                self.check_dense(name, dims)?;
                pooling.head.push(linear(name, n_rows(dims)));
            }
        }
        Ok(Some(pooling))
    }

    /// Checks that the keys of a matrix after the pooling match the dimensions of its tensor.
    fn check_dense(&self, name: &str, dims: &[usize]) -> Result<(), LoadError> {
        for (end, dim_idx) in [("feat_in", 0), ("feat_out", 1)] {
            let key = format!("{name}_{end}");
            let (Some(said), Some(&found)) = (self.opt_count(&key)?, dims.get(dim_idx)) else {
                continue;
            };
            if said != found {
                let mut expected = dims.to_vec();
                expected[dim_idx] = said;
                return Err(LoadError::BadKey {
                    key: self.key(&key),
                    source: Box::new(LoadError::WrongShape {
                        name: format!("{name}.weight"),
                        expected,
                        found: dims.to_vec(),
                    }),
                });
            }
        }
        Ok(())
    }

    fn rank_head(&self, head_step: HeadStep, kind: Pooling) -> PoolingDescriptor {
        let mut head = Vec::new();
        if self.has_tensor("cls.weight") {
            head.push(linear("cls", self.n_rows_of("cls.weight")));
            push_step(&mut head, head_step, self.has_tensor("cls.norm.weight"));
        }
        if self.has_tensor("cls.output.weight") {
            head.push(linear("cls.output", self.n_rows_of("cls.output.weight")));
        }
        ranking(kind, head)
    }
}

fn ranking(kind: Pooling, head: Vec<HeadLayer>) -> PoolingDescriptor {
    PoolingDescriptor {
        kind,
        head,
        output: PooledOutput::Rank,
    }
}

/// Returns a matrix of a head, with a bias if there is a tensor of it.
fn linear(name: &'static str, n_out: usize) -> HeadLayer {
    HeadLayer::Linear {
        name,
        n_out,
        bias: Presence::Optional,
    }
}

fn push_step(head: &mut Vec<HeadLayer>, head_step: HeadStep, has_norm: bool) {
    match head_step {
        HeadStep::Tanh => head.push(HeadLayer::Tanh),
        HeadStep::GeluAndNorm => {
            head.push(HeadLayer::Activation(Activation::GeluErf));
            if has_norm {
                head.push(HeadLayer::Norm { name: "cls.norm" });
            }
        }
    }
}

impl HfConfig {
    /// Reads the pooling from sentence-transformers' files in the folder; `None` if there are none.
    pub(super) fn sentence_pooling(&self) -> Result<Option<PoolingDescriptor>, LoadError> {
        let Some(config) = self.beside("1_Pooling/config.json")? else {
            return Ok(None);
        };
        let modes = [
            ("pooling_mode_cls_token", Some(Pooling::First)),
            ("pooling_mode_mean_tokens", Some(Pooling::Mean)),
            ("pooling_mode_lasttoken", Some(Pooling::Last)),
            ("pooling_mode_max_tokens", None),
            ("pooling_mode_mean_sqrt_len_tokens", None),
            ("pooling_mode_weightedmean_tokens", None),
        ];
        let mut kinds = Vec::new();
        for (key, kind) in modes {
            if config.is(key)? {
                kinds.push(kind.ok_or_else(|| config.wrong(key, "false"))?);
            }
        }
        let [kind] = kinds[..] else {
            return Err(config.wrong("pooling_mode_mean_tokens", "one pooling mode that is true"));
        };
        let mut pooling = PoolingDescriptor::embedding(kind);
        for (number, name) in DENSE.into_iter().enumerate() {
            let Some(config) = self.beside(&format!("{number}_Dense/config.json"))? else {
                continue;
            };
            pooling.head.push(HeadLayer::Linear {
                name,
                n_out: config.count("out_features")?,
                bias: config.presence("bias")?,
            });
            let activation = config.get("activation_function").and_then(Value::as_str);
            match activation.and_then(|name| name.rsplit('.').next()) {
                None | Some("Identity") => {}
                Some("Tanh") => pooling.head.push(HeadLayer::Tanh),
                Some(_) => return Err(config.wrong("activation_function", "Identity or Tanh")),
            }
        }
        Ok(Some(pooling))
    }

    /// Returns the classification head of a folder: `cls`, then `cls.output` with a row for each label.
    pub(super) fn rank_pooling(
        &self,
        head_step: HeadStep,
        kind: Pooling,
        n_embd: usize,
    ) -> Result<PoolingDescriptor, LoadError> {
        let n_labels = match self.get("id2label") {
            Some(Value::Object(labels)) => labels.len(),
            Some(_) => return Err(self.wrong("id2label", "an object")),
            None => self.opt_usize("num_labels")?.unwrap_or(2),
        };
        let mut head = vec![linear("cls", n_embd)];
        push_step(&mut head, head_step, true);
        head.push(linear("cls.output", n_labels));
        Ok(ranking(kind, head))
    }

    /// Returns whether the class of the network classifies sequences.
    pub(super) fn is_classifier(&self) -> Result<bool, LoadError> {
        Ok(self.class()?.ends_with("ForSequenceClassification"))
    }
}

/// Reads how the rows of a folder are pooled. The head before the labels is `cls`, whose tensors and those of the
/// other `heads` only classifiers and training use.
pub(super) fn find_pooling(keys: &mut GgufKeys<'_>, heads: &[&str]) -> Result<(), LoadError> {
    let config = keys.config;
    keys.facts.pooling = if config.is_classifier()? {
        Some(config.rank_pooling(HeadStep::Tanh, Pooling::First, keys.sizes.n_embd)?)
    } else {
        for head in heads {
            for end in ["weight", "bias"] {
                (keys.facts.ignorable).push(Ignorable::Tensor(format!("{head}.{end}")));
            }
        }
        config.sentence_pooling()?
    };
    Ok(())
}

/// Collects the keys of BERT and its descendants.
pub(super) fn write_keys(keys: &mut GgufKeys<'_>, has_rope: bool) -> Result<(), LoadError> {
    keys.sizes()?;
    keys.copy_count("attention.head_count", &["num_attention_heads", "n_head"])?;
    if has_rope {
        keys.rope()?;
    }
    keys.norm_eps()?;
    keys.head_widths()?;
    keys.set("attention.causal", false);
    keys.pooling()?;
    labels(keys);
    Ok(())
}

/// Sets the labels of a classifier.
pub(super) fn labels(keys: &mut GgufKeys<'_>) {
    let is_classifier = keys.config.is_classifier().unwrap_or(false);
    let Some(Value::Object(labels)) = keys.config.get("id2label").filter(|_| is_classifier) else {
        return;
    };
    let mut labels: Vec<(u64, &str)> = (labels.iter())
        .filter_map(|(id, label)| Some((id.parse().ok()?, label.as_str()?)))
        .collect();
    labels.sort_unstable();
    let labels: StringArray = labels.into_iter().map(|(_, label)| label).collect();
    keys.set("classifier.output_labels", labels);
}
