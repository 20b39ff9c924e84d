//! [`Biases`] of tokens, as a map or as llama.cpp's list of pairs.
//!
//! A client may name a token by its id or by a text. Invariant: in a map the digits of a name are an id, and
//! in a list a text is a text.

use std::{collections::BTreeMap, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{self, MapAccess, SeqAccess, Visitor},
};

use super::check_range;
use crate::{ApiError, errors::api_error::shortened};

/// Biases by token id, from a map or from llama.cpp's list of pairs.
#[derive(Clone, Debug, Default)]
pub(super) struct Biases(BTreeMap<Biased, f32>);

/// One bias as llama.cpp writes it.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a number, or false, which forbids the token")]
enum Bias {
    Number(f32),
    Switch(bool),
}

/// Names the biased tokens: one token, or those of a text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(untagged, expecting = "expected a token id or a text")]
enum Biased {
    Token(u32),
    Text(String),
}

impl Bias {
    fn value<E: de::Error>(&self) -> Result<f32, E> {
        match *self {
            Self::Number(bias) => Ok(bias),
            Self::Switch(false) => Ok(FORBIDS),
            Self::Switch(true) => Err(E::custom("expected a number, or false, which forbids the token")),
        }
    }
}

impl<'de> Deserialize<'de> for Biases {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // By hand, so that an error keeps the path of its pair.
        deserializer.deserialize_any(BiasesVisitor)
    }
}

struct BiasesVisitor;

impl<'de> Visitor<'de> for BiasesVisitor {
    type Value = Biases;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of token ids or texts to biases, or a list of pairs of both")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Biases, A::Error> {
        let mut biases = BTreeMap::new();
        while let Some((token, bias)) = map.next_entry::<String, Bias>()? {
            // The names of a map are texts; digits mean an id.
            let biased = match token.parse() {
                Ok(id) => Biased::Token(id),
                Err(_) => Biased::Text(token),
            };
            biases.insert(biased, bias.value()?);
        }
        Ok(Biases(biases))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut pairs: A) -> Result<Biases, A::Error> {
        let mut biases = BTreeMap::new();
        while let Some((token, bias)) = pairs.next_element::<(Biased, Bias)>()? {
            biases.insert(token, bias.value()?);
        }
        Ok(Biases(biases))
    }
}

/// The lowest bias, which forbids a token, as the official API documents.
const FORBIDS: f32 = -100.0;

/// Checks the biases, and gives those of texts to all tokens of the text.
pub(super) fn read_bias(
    biases: Biases,
    tokens_of: impl Fn(&str) -> Vec<u32>,
) -> Result<Vec<(u32, f32)>, ApiError> {
    let mut read = BTreeMap::new();
    for (biased, bias) in biases.0 {
        let param = match &biased {
            Biased::Token(id) => format!("logit_bias.{id}"),
            Biased::Text(text) => format!("logit_bias.{}", shortened(text)),
        };
        check_range(&param, Some(bias), FORBIDS, 100.0)?;
        let bias = if bias <= FORBIDS { f32::NEG_INFINITY } else { bias };
        match biased {
            Biased::Token(id) => {
                read.insert(id, bias);
            }
            Biased::Text(text) if text.is_empty() => {
                return Err(ApiError::invalid(param, "the text has no tokens"));
            }
            Biased::Text(text) => read.extend(tokens_of(&text).into_iter().map(|id| (id, bias))),
        }
    }
    Ok(read.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(biases: Value) -> Vec<(u32, f32)> {
        read_bias(serde_json::from_value(biases).unwrap(), |text| {
            text.bytes().map(u32::from).collect()
        })
        .unwrap()
    }

    #[test]
    fn digits_are_an_id_in_a_map_and_a_text_in_a_list() {
        assert_eq!(read(json!({ "5": 1 })), [(5, 1.0)]);
        assert_eq!(
            read(json!([["5", 1], [7, 2]])),
            [(7, 2.0), (u32::from(b'5'), 1.0)]
        );
    }
}
