//! OpenAI's API: request and response types of each endpoint.
//!
//! Types and their checks only; the handlers generate the answers. Each endpoint has a `FIELDS` table from
//! which the documentation is printed.

pub mod chat;
pub mod completion;
pub(crate) mod decision;
pub mod embedding;
pub(crate) mod items;
pub mod message;
mod parts;
pub mod rerank;
pub mod response;
pub(crate) mod template_variables;

use serde::Deserialize;

use crate::ApiError;

/// `stop`: one string or a list.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "expected a string or a list of strings")]
pub enum Stop {
    /// One string.
    One(String),
    /// Several.
    Many(Vec<String>),
}

/// Most stop strings a request may have. OpenAI allows 4; agents in the field send more.
const MAX_STOPS: usize = 16;

/// Most bytes of all stop strings of a request.
const MAX_STOP_BYTES: usize = 4 << 10;

impl Stop {
    /// The stop strings.
    ///
    /// # Errors
    /// Fails on too many, too long or empty stop strings.
    pub fn to_strings(&self) -> Result<Vec<String>, ApiError> {
        let strings = match self {
            Self::One(string) => std::slice::from_ref(string),
            Self::Many(strings) => strings,
        };
        if strings.len() > MAX_STOPS {
            return Err(ApiError::invalid(
                "stop",
                format!("{} strings, at most {MAX_STOPS}", strings.len()),
            ));
        }
        let n_bytes: usize = strings.iter().map(String::len).sum();
        if n_bytes > MAX_STOP_BYTES {
            return Err(ApiError::invalid(
                "stop",
                format!("{n_bytes} bytes, at most {MAX_STOP_BYTES} in all"),
            ));
        }
        if strings.iter().any(String::is_empty) {
            return Err(ApiError::invalid(
                "stop",
                "an empty stop string would end every answer at once",
            ));
        }
        Ok(strings.to_vec())
    }
}

/// `stream_options`.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamOptions {
    /// Whether a last chunk carries `usage`.
    #[serde(default)]
    pub include_usage: bool,
    /// Whether chunks are padded against traffic analysis; this server never pads, so only `false` is possible.
    include_obfuscation: Option<bool>,
    /// Whether every chunk carries `usage`; the last one does, so only `false` is possible.
    continuous_usage_stats: Option<bool>,
}

impl StreamOptions {
    /// Checks that the options fit the request.
    ///
    /// # Errors
    /// Options without `stream`, or an option that is not implemented.
    pub fn check(options: Option<Self>, is_stream: bool) -> Result<Self, ApiError> {
        let Some(options) = options else {
            return Ok(Self::default());
        };
        if !is_stream {
            return Err(ApiError::invalid("stream_options", "only with `stream: true`"));
        }
        if options.include_obfuscation == Some(true) {
            return Err(ApiError::UnsupportedField {
                param: "stream_options.include_obfuscation".to_owned(),
                reason: "chunks are never padded",
            });
        }
        if options.continuous_usage_stats == Some(true) {
            return Err(ApiError::UnsupportedField {
                param: "stream_options.continuous_usage_stats".to_owned(),
                reason: "the usage comes once, in the last chunk",
            });
        }
        Ok(options)
    }
}

/// Most tokens of an answer.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(try_from = "i64")]
pub enum TokenLimit {
    /// As many as the context has room for, written as -1.
    Unbounded,
    /// This many.
    AtMost(u32),
}

impl TokenLimit {
    /// The number, where there is one.
    pub fn at_most(self) -> Option<u32> {
        match self {
            Self::Unbounded => None,
            Self::AtMost(n) => Some(n),
        }
    }
}

impl TryFrom<i64> for TokenLimit {
    type Error = String;

    fn try_from(n: i64) -> Result<Self, String> {
        match n {
            -1 => Ok(Self::Unbounded),
            n => u32::try_from(n)
                .map(Self::AtMost)
                .map_err(|_| format!("{n} is not a number of tokens, or -1 for no limit")),
        }
    }
}

/// Checks that an answer may be as long as it must be.
///
/// # Errors
/// More tokens at least than at most.
pub(crate) fn check_min_tokens(min_tokens: u32, max_tokens: Option<u32>) -> Result<(), ApiError> {
    match max_tokens {
        Some(max_tokens) if min_tokens > max_tokens => Err(ApiError::invalid(
            "min_tokens",
            format!("{min_tokens} is more than the {max_tokens} tokens that the answer has at most"),
        )),
        _ => Ok(()),
    }
}

/// Checks `n`.
///
/// # Errors
/// 0, or more than `maximum`.
pub fn check_n(n: Option<u32>, maximum: u32) -> Result<u32, ApiError> {
    match n.unwrap_or(1) {
        n if (1..=maximum).contains(&n) => Ok(n),
        n => Err(ApiError::invalid(
            "n",
            format!("{n} is not between 1 and {maximum}"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stop_strings_are_bounded_in_number_and_in_bytes() {
        let of = |n_strings: usize, n_bytes: usize| Stop::Many(vec!["x".repeat(n_bytes); n_strings]);
        for fitting in [
            of(MAX_STOPS, MAX_STOP_BYTES / MAX_STOPS),
            of(1, MAX_STOP_BYTES),
            of(0, 0),
        ] {
            assert!(fitting.to_strings().is_ok());
        }
        for refused in [
            of(MAX_STOPS + 1, 1),
            of(1, MAX_STOP_BYTES + 1),
            of(2, 0),
            of(MAX_STOPS, MAX_STOP_BYTES / MAX_STOPS + 1),
            Stop::One("x".repeat(7 << 20)),
        ] {
            let error = refused.to_strings().expect_err("it is beyond a bound");
            assert_eq!(error.param(), Some("stop"));
        }
    }
}
