//! [`open_family`]: reads the keys of a file that was trained for decisions.

use std::collections::BTreeMap;

use tokenmill_gguf::{GgufFile, Metadata};
use tokenmill_model::{Model as Network, PooledOutput};
use tokenmill_text::{ChatPrompt, Tokenizer, template::ChatTemplate};

use super::{DecisionFamily, FAMILIES, FamilyKind, HeadLayout, Labels, N_RATINGS};
use crate::{Error, decide_error::DecideError};

/// The template of the prompts.
const TEMPLATE: &str = "tokenizer.chat_template.systemone";

/// The token before each option.
const MASK: &str = "tokenizer.ggml.mask_token_id";

/// The token after each option of Kev.
const BOX_END: &str = "<|box_end|>";

/// Fewest labels of a family: a yes/no question has two options.
const MIN_LABELS: usize = 2;

/// Most labels of a family.
const MAX_LABELS: usize = 255;

/// The question types with temperatures, and what stands after a type where they depend on the number of options.
const TYPES: [&str; 3] = ["choice", "score", "noul"];
const BUCKETS: [&str; 8] = ["", ".2", ".3_5", ".6_10", ".11", ".small", ".mid", ".large"];

/// Returns the family that a network's file names, if it can be asked.
pub(crate) fn family_name(network: &Network) -> Option<&'static str> {
    let key = format!("{}.decision.type", network.descriptor().arch);
    let metadata = network.gguf().map(GgufFile::metadata)?;
    let found = metadata.opt_str(&key).ok().flatten()?;
    FAMILIES.into_iter().find(|family| *family == found)
}

/// Returns whether the rows of a network are the queries and keys of options: it is no reranker, although its file has the same tensor.
pub(crate) fn has_pointer_head(network: &Network) -> bool {
    let is_kev = family_name(network) == Some("kev");
    let descriptor = network.descriptor();
    let has_rows = (descriptor.pooling.as_ref()).is_some_and(|pooling| pooling.output == PooledOutput::Rank);
    is_kev && has_rows && descriptor.output_width().is_multiple_of(2)
}

/// Reads the family of a model; `None` if it was not trained for decisions.
///
/// # Errors
/// [`DecideError::UnknownFamily`], and the key, template or token that the file lacks or has wrong.
pub(crate) fn open_family(network: &Network, tokenizer: &Tokenizer) -> Result<Option<DecisionFamily>, Error> {
    let Some(metadata) = network.gguf().map(GgufFile::metadata) else {
        return Ok(None);
    };
    let arch = &network.descriptor().arch;
    let key = |name: &str| format!("{arch}.decision.{name}");
    let Some(family) = metadata.opt_str(&key("type"))? else {
        return Ok(None);
    };
    let has_head = network.descriptor().decision.is_some();
    let kind = match family {
        "openjev" => FamilyKind::OpenJev(letters(tokenizer).at_least(MIN_LABELS)?),
        "lev" => FamilyKind::Lev(codes(tokenizer).at_least(N_RATINGS)?),
        "nimble" => FamilyKind::Nimble(codes(tokenizer).at_least(MIN_LABELS)?),
        "laya" if !has_head => {
            return Err(DecideError::FamilyKey {
                key: key("block_count"),
                expected: "the number of blocks of its head",
            }
            .into());
        }
        "kev" if !has_pointer_head(network) => {
            return Err(DecideError::FamilyKey {
                key: "cls.output.weight".to_owned(),
                expected: "a query and a key of one width",
            }
            .into());
        }
        "laya" => FamilyKind::Laya(head_layout(metadata, tokenizer, &key("max_head_tokens"))?),
        "kev" => FamilyKind::Kev {
            mark: tokenizer
                .special_token(BOX_END)
                .ok_or(DecideError::FamilyToken { token: BOX_END })?,
        },
        found => {
            return Err(DecideError::UnknownFamily {
                found: found.to_owned(),
                supported: &FAMILIES,
            }
            .into());
        }
    };
    let Some(template) = metadata.opt_str(TEMPLATE)? else {
        return Err(DecideError::FamilyKey {
            key: TEMPLATE.to_owned(),
            expected: "the template of its prompts",
        }
        .into());
    };
    Ok(Some(DecisionFamily {
        kind,
        prompt: ChatPrompt::new(
            ChatTemplate::new(template).map_err(DecideError::FamilyTemplate)?,
            tokenizer,
        ),
        temperatures: temperatures(metadata, &key("temperature"))?,
    }))
}

fn temperatures(metadata: &Metadata, stem: &str) -> Result<BTreeMap<String, f64>, Error> {
    let mut temperatures = BTreeMap::new();
    for name in TYPES
        .iter()
        .flat_map(|name| BUCKETS.map(|bucket| format!("{name}{bucket}")))
    {
        let key = format!("{stem}.{name}");
        let Some(temperature) = metadata.opt_f32(&key)? else {
            continue;
        };
        if !(temperature > 0.0 && temperature.is_finite()) {
            return Err(DecideError::FamilyKey {
                key,
                expected: "a positive number",
            }
            .into());
        }
        temperatures.insert(name, f64::from(temperature));
    }
    Ok(temperatures)
}

fn head_layout(metadata: &Metadata, tokenizer: &Tokenizer, bound: &str) -> Result<HeadLayout, Error> {
    let mask = metadata
        .opt_u32(MASK)?
        .filter(|&id| (id as usize) < tokenizer.n_vocab());
    let max_tokens = metadata.opt_usize(bound)?.filter(|&bound| bound > 0);
    Ok(HeadLayout {
        mark: mask.ok_or(DecideError::FamilyToken {
            token: "the mask before an option",
        })?,
        separator: tokenizer.separator().ok_or(DecideError::FamilyToken {
            token: "the separator of parts",
        })?,
        max_tokens: max_tokens.ok_or_else(|| DecideError::FamilyKey {
            key: bound.to_owned(),
            expected: "the most tokens of a question and its options",
        })?,
    })
}

impl Labels {
    /// Checks that there are enough.
    fn at_least(self, n: usize) -> Result<Self, DecideError> {
        if self.tokens.len() < n {
            return Err(DecideError::FamilyToken {
                token: "one for each of the first letters from A on",
            });
        }
        Ok(self)
    }
}

/// A to Z, then a to z, up to the first that is no token of its own.
fn letters(tokenizer: &Tokenizer) -> Labels {
    let letters = ('A'..='Z').chain('a'..='z').map(String::from);
    let known = letters.map_while(|text| Some((only_token(tokenizer, &text)?, text)));
    labels(known)
}

/// A to Z, then AA to ZZ, those that are tokens of their own.
fn codes(tokenizer: &Tokenizer) -> Labels {
    let pairs = ('A'..='Z').flat_map(|first| ('A'..='Z').map(move |second| format!("{first}{second}")));
    let codes = ('A'..='Z').map(String::from).chain(pairs);
    labels(codes.filter_map(|text| Some((only_token(tokenizer, &text)?, text))))
}

fn labels(known: impl Iterator<Item = (u32, String)>) -> Labels {
    let (tokens, texts) = known.take(MAX_LABELS).unzip();
    Labels { texts, tokens }
}

fn only_token(tokenizer: &Tokenizer, text: &str) -> Option<u32> {
    let options = tokenmill_text::EncodeOptions {
        add_special: false,
        parse_special: false,
    };
    match tokenizer.encode(text, options)[..] {
        [token] => Some(token),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vocabulary_without_letters_is_refused_before_any_question() {
        let known = |texts: &[&str]| labels(texts.iter().map(|&text| (7, text.to_owned())));
        assert!(known(&["A", "B"]).at_least(MIN_LABELS).is_ok());
        let refused = known(&["A"]).at_least(MIN_LABELS).unwrap_err().to_string();
        assert!(
            refused.ends_with("a token that they need: one for each of the first letters from A on"),
            "{refused}"
        );
    }
}
