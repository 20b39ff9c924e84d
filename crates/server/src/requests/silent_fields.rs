//! Writes [`RequestDefaults`] into requests that do not set the fields.
//!
//! All endpoints use it. Invariant: a field that the request sets, under any of its names, wins; a default is
//! read and checked as if the request had set it.

use serde_json::Value;

use crate::{
    ApiError,
    config::request_defaults::RequestDefaults,
    requests::{
        fields::{Body, Field},
        sampling::SamplingFields,
    },
};

/// Names of the field for the longest answer.
const LENGTHS: [&str; 4] = [
    "max_completion_tokens",
    "n_predict",
    "max_tokens",
    "max_output_tokens",
];

/// Names of the field for the reasoning budget.
const BUDGETS: [&str; 4] = [
    "thinking_budget",
    "thinking_token_budget",
    "thinking_budget_tokens",
    "reasoning_budget",
];

/// Name of the field for the prompt in the answer.
const VERBOSE: [&str; 1] = ["verbose"];

/// Lists other names of a field.
fn others_of(name: &str) -> &'static [&'static str] {
    match name {
        "repeat_penalty" => &["repetition_penalty"],
        "typical_p" => &["typ_p"],
        _ => &[],
    }
}

impl RequestDefaults {
    /// Checks the sampling values.
    ///
    /// # Errors
    /// Fails on the first value that is unknown or out of its range, and names it.
    pub fn check(&self) -> Result<(), ApiError> {
        // A number that is not finite.
        if let Some((name, _)) = self.sampling.iter().find(|(_, value)| value.is_null()) {
            return Err(ApiError::invalid(name, "expected a finite number"));
        }
        let fields = Value::Object(self.sampling.clone());
        let fields: SamplingFields = serde_path_to_error::deserialize(&fields)
            .map_err(|error| ApiError::invalid(error.path().to_string(), error.inner().to_string()))?;
        fields.check()
    }

    /// Writes the defaults into the fields that a request does not set.
    pub(crate) fn fill(&self, body: &mut Body, fields: &[Field]) {
        let has = |name: &str| fields.iter().any(|field| field.name == name);
        if has("options") {
            body.with_object("options", |options| {
                for (name, value) in &self.sampling {
                    options.entry(name.clone()).or_insert_with(|| value.clone());
                }
                if let Some(n_tokens) = self.max_tokens {
                    options.entry("num_predict").or_insert(n_tokens.into());
                }
            });
            return;
        }
        // Every endpoint that generates has a temperature. Where an API lacks a field for a sampler, the
        // operator's default still applies.
        if has("temperature") {
            for (name, value) in &self.sampling {
                let is_said = others_of(name).iter().any(|other| body.get(other).is_some());
                if !is_said {
                    body.set_default(name, value.clone());
                }
            }
        }
        let others: [(&[&str], Option<Value>); 3] = [
            (&LENGTHS, self.max_tokens.map(Value::from)),
            (&BUDGETS, self.thinking_budget.map(Value::from)),
            (&VERBOSE, self.is_verbose.then(|| Value::from(true))),
        ];
        for (names, value) in others {
            let is_said = names.iter().any(|name| body.get(name).is_some());
            let name = names.iter().find(|name| has(name));
            if let (Some(value), Some(name), false) = (value, name, is_said) {
                body.set_default(name, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, json};

    use super::*;
    use crate::endpoints::tables;

    fn filled(request: &Value, fields: &[Field]) -> Value {
        let sampling = json!({ "temperature": 0.5, "repeat_penalty": 1.1, "seed": 7 });
        let defaults = RequestDefaults {
            sampling: sampling.as_object().cloned().expect("an object"),
            max_tokens: Some(9),
            thinking_budget: Some(3),
            is_verbose: false,
        };
        defaults.check().expect("the values are in their ranges");
        let mut body = Body::parse(request.to_string().as_bytes(), fields).expect("known fields");
        defaults.fill(&mut body, fields);
        body.read().expect("any object")
    }

    #[test]
    fn a_silent_request_gets_the_fields_that_its_endpoint_has() {
        for (fields, expected) in [
            (
                tables::chat(),
                json!({ "temperature": 0.5, "repeat_penalty": 1.1, "seed": 7, "max_completion_tokens": 9, "thinking_budget": 3 }),
            ),
            (
                tables::llama_completion(),
                json!({ "temperature": 0.5, "repeat_penalty": 1.1, "seed": 7, "n_predict": 9 }),
            ),
            (
                tables::messages(),
                json!({ "temperature": 0.5, "repeat_penalty": 1.1, "seed": 7, "max_tokens": 9 }),
            ),
            (
                tables::ollama_chat(),
                json!({ "options": { "temperature": 0.5, "repeat_penalty": 1.1, "seed": 7, "num_predict": 9 } }),
            ),
            (tables::embedding(), json!({})),
        ] {
            assert_eq!(filled(&json!({}), fields), expected);
        }
    }

    #[test]
    fn every_sampler_of_llama_cpp_has_a_default_on_every_api() {
        let sampling = json!({
            "top_n_sigma": 1.0, "xtc_probability": 0.5, "xtc_threshold": 0.2, "dynatemp_range": 0.5, "dynatemp_exponent": 2.0,
            "mirostat": 2, "mirostat_tau": 4.0, "mirostat_eta": 0.2, "samplers": ["top_k"], "dry_multiplier": 0.8, "dry_base": 2.0,
            "dry_allowed_length": 3, "dry_penalty_last_n": 64, "dry_sequence_breakers": ["x"],
        });
        let defaults = RequestDefaults {
            sampling: sampling.as_object().cloned().expect("an object"),
            ..RequestDefaults::default()
        };
        defaults.check().expect("the values are in their ranges");
        for fields in [
            tables::chat(),
            tables::completion(),
            tables::response(),
            tables::messages(),
            tables::llama_completion(),
            tables::llama_infill(),
        ] {
            let mut body = Body::parse(b"{}", fields).expect("an object");
            defaults.fill(&mut body, fields);
            assert_eq!(body.read::<Value>().expect("any object"), sampling);
        }
        let mut body = Body::parse(b"{}", tables::ollama_chat()).expect("an object");
        defaults.fill(&mut body, tables::ollama_chat());
        crate::dialects::ollama::options::check_options(&body, 8).expect("each is an option");
        assert_eq!(
            body.read::<Value>().expect("any object"),
            json!({ "options": sampling })
        );
    }

    #[test]
    fn what_a_request_says_by_any_name_counts() {
        let said = json!({ "temperature": 1.0, "repetition_penalty": 2.0, "seed": 1, "max_tokens": -1, "reasoning_budget": 0 });
        assert_eq!(filled(&said, tables::chat()), said);
        let silent = filled(
            &json!({ "options": { "temperature": null } }),
            tables::ollama_chat(),
        );
        assert_eq!(silent["options"]["temperature"], 0.5);
        let said =
            json!({ "options": { "temperature": 1.0, "repeat_penalty": 2.0, "seed": 1, "num_predict": -1 } });
        assert_eq!(filled(&said, tables::ollama_chat()), said);
    }

    #[test]
    fn values_out_of_range_are_refused_by_name() {
        for (name, value) in [
            ("temperature", json!(3)),
            ("top_k", json!("many")),
            ("min_p", json!(2)),
            ("dry_multiplier", RequestDefaults::number(f32::INFINITY)),
        ] {
            let defaults = RequestDefaults {
                sampling: Map::from_iter([(name.to_owned(), value)]),
                ..RequestDefaults::default()
            };
            let error = defaults.check().expect_err(name);
            assert_eq!(error.param(), Some(name), "{error}");
        }
    }
}
