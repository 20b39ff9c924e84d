//! Tokens with a role, tokens around a text, and chat templates, as three JSON files describe them together.
//!
//! Source: gguf-py, `SpecialVocab`.

use serde_json::Value;
use tokenmill_gguf::{Metadata, StringArray};

use crate::TokenizerError;

/// A role's name in JSON files, and its key in GGUF files.
const ROLES: [(&str, &str); 8] = [
    ("bos", "bos_token_id"),
    ("eos", "eos_token_id"),
    ("unk", "unknown_token_id"),
    // The key has the spelling of the first file that had it.
    ("sep", "seperator_token_id"),
    ("pad", "padding_token_id"),
    ("mask", "mask_token_id"),
    ("eot", "eot_token_id"),
    ("eom", "eom_token_id"),
];

/// The roles whose token may be added to a text automatically.
const ADDED: [&str; 3] = ["bos", "eos", "sep"];

#[derive(Debug, Default)]
pub(super) struct Roles {
    /// By the order of [`ROLES`].
    ids: [Option<u64>; ROLES.len()],
    /// By the order of [`ADDED`].
    adds: [Option<bool>; ADDED.len()],
}

impl Roles {
    /// Reads the roles from `tokenizer.json`, `tokenizer_config.json` and `config.json`; earlier files take
    /// precedence.
    pub(super) fn of(json: &Value, tokenizer_config: &Value, config: &Value) -> Self {
        let mut roles = Self::default();
        let text = |role: &str| token_text(&tokenizer_config[format!("{role}_token")]);
        let (cls, sep) = (text("cls"), text("sep"));
        let bos = text("bos").or(cls);
        let mut eos = text("eos").or(sep);
        let mut eot = None;
        let (mut cls, mut sep) = (cls, sep);
        let processor = &json["post_processor"];
        let processors = processor["processors"].as_array();
        let processors: Vec<&Value> = match processors {
            Some(processors) => processors.iter().collect(),
            None => vec![processor],
        };
        for processor in processors {
            match processor["type"].as_str() {
                Some("RobertaProcessing") => {
                    roles.adds = [Some(true); 3];
                    cls = cls.or(processor["cls"][0].as_str());
                    sep = sep.or(processor["sep"][0].as_str());
                }
                Some("TemplateProcessing") => {
                    let around = Around::of(processor);
                    if let Some(first) = around.first {
                        roles.adds[0] = Some(Some(first) == bos || Some(first) == cls);
                    }
                    if let Some(last) = around.last {
                        if Some(last) != eos {
                            eot = eos;
                            eos = Some(last);
                        }
                        roles.adds[1] = Some(true);
                    }
                    if let Some(between) = around.between {
                        let is_end = |token: Option<&str>| token.is_some() && (token == sep || token == eos);
                        let first = between.first().copied().is_some_and(is_end) && around.last.is_none();
                        let second = between.len() == 2 && is_end(between[1]);
                        roles.adds[2] = Some(first || second);
                        if first || second {
                            sep = sep.or(eos);
                        }
                    }
                }
                _ => {}
            }
        }
        for (idx, role) in ADDED.iter().enumerate() {
            if let Some(adds) = tokenizer_config[format!("add_{role}_token")].as_bool() {
                roles.adds[idx] = Some(adds);
            }
        }
        let added = json["added_tokens"].as_array();
        let id_of = |text: &str| {
            let mut added = added.into_iter().flatten();
            added.find(|token| token["content"] == text)?["id"].as_u64()
        };
        for (idx, (role, _)) in ROLES.iter().enumerate() {
            let named = match *role {
                "bos" => bos,
                "eos" => eos,
                "sep" => sep,
                "eot" => eot,
                "eom" => None,
                other => text(other),
            };
            let key = format!("{role}_token_id");
            let of_config = || {
                config[&key]
                    .as_u64()
                    .or_else(|| config["text_config"][&key].as_u64())
            };
            roles.ids[idx] = named.and_then(id_of).or_else(of_config);
        }
        roles
    }

    /// Writes the keys. Ids beyond the vocabulary are ignored.
    pub(super) fn write(&self, n_vocab: usize, metadata: &mut Metadata) -> Result<(), TokenizerError> {
        for ((_, key), id) in ROLES.iter().zip(self.ids) {
            let id = id.and_then(|id| u32::try_from(id).ok());
            if let Some(id) = id.filter(|&id| (id as usize) < n_vocab) {
                metadata.insert(format!("tokenizer.ggml.{key}"), id)?;
            }
        }
        for (role, adds) in ADDED.iter().zip(self.adds) {
            if let Some(adds) = adds {
                metadata.insert(format!("tokenizer.ggml.add_{role}_token"), adds)?;
            }
        }
        Ok(())
    }
}

/// The tokens that a template puts around a text, and between two.
struct Around<'v> {
    first: Option<&'v str>,
    last: Option<&'v str>,
    /// The tokens between two texts; `None` if the template of pairs has another form.
    between: Option<Vec<Option<&'v str>>>,
}

impl<'v> Around<'v> {
    fn of(processor: &'v Value) -> Self {
        let list = |key: &str| processor[key].as_array().map(Vec::as_slice).unwrap_or_default();
        let special = |part: &'v Value| part["SpecialToken"]["id"].as_str();
        let (single, mut pair) = (list("single"), list("pair"));
        let end = |part: Option<&'v Value>| part.and_then(special).filter(|_| single.len() > 1);
        let (first, last) = (end(single.first()), end(single.last()));
        if first.is_some() && pair.first().and_then(special) == first {
            pair = &pair[1..];
        }
        if last.is_some() && pair.last().and_then(special) == last {
            pair = &pair[..pair.len() - 1];
        }
        let is_text = |part: Option<&Value>, id: &str| part.is_some_and(|part| part["Sequence"]["id"] == id);
        let has_both = pair.len() > 2 && is_text(pair.first(), "A") && is_text(pair.last(), "B");
        let between = has_both.then(|| pair[1..pair.len() - 1].iter().map(special).collect());
        Self { first, last, between }
    }
}

/// Returns the text of a token that is written as a text or as an object.
fn token_text(token: &Value) -> Option<&str> {
    let text = token.as_str().or_else(|| token["content"].as_str());
    text.filter(|text| !text.is_empty())
}

/// Writes the chat template, or several with their names.
pub(super) fn write_templates(
    of_config: &Value,
    of_file: Option<&str>,
    metadata: &mut Metadata,
) -> Result<(), TokenizerError> {
    const KEY: &str = "tokenizer.chat_template";

    let Some(templates) = of_config.as_array() else {
        if let Some(template) = of_config.as_str().or(of_file) {
            metadata.insert(KEY, template)?;
        }
        return Ok(());
    };
    let mut names = StringArray::new();
    for template in templates {
        let (Some(name), Some(text)) = (template["name"].as_str(), template["template"].as_str()) else {
            continue;
        };
        if name == "default" {
            metadata.insert(KEY, text)?;
        } else {
            let name: String = name
                .chars()
                .map(|c| if c.is_alphanumeric() { c } else { '_' })
                .collect();
            metadata.insert(format!("{KEY}.{name}"), text)?;
            names.push(&name);
        }
    }
    if !names.is_empty() {
        metadata.insert("tokenizer.chat_templates", names)?;
    }
    Ok(())
}
