//! [`DefaultArgs`] holds the defaults of request fields, with llama.cpp's option names.
//!
//! Separate from the sampling options of `run`, which always have a value: here only the given options replace an API's own defaults.
//! Invariant: values are checked before a model is loaded.

use clap::Args;
use serde_json::{Map, Value};
use tokenmill_server::RequestDefaults;

use crate::{
    failure::Failure,
    numbers::{Limit, Seed},
};

/// Holds the defaults of request fields.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Defaults of requests")]
pub(super) struct DefaultArgs {
    /// Most tokens of an answer if the request does not say it; -1 leaves it to the API [default: -1]
    #[arg(short, long, alias = "predict", value_name = "N")]
    n_predict: Option<Limit>,
    /// Temperature; 0 always takes the likeliest token [default: the API's, as for the options below]
    #[arg(long, alias = "temperature", value_name = "T")]
    temp: Option<f32>,
    /// Keep the K likeliest tokens; 0 keeps all
    #[arg(long, value_name = "K")]
    top_k: Option<u32>,
    /// Keep the likeliest tokens up to this probability
    #[arg(long, value_name = "P")]
    top_p: Option<f32>,
    /// Keep tokens at least this many times as likely as the likeliest
    #[arg(long, value_name = "P")]
    min_p: Option<f32>,
    /// Locally typical sampling
    #[arg(long, alias = "typical-p", value_name = "P")]
    typical: Option<f32>,
    /// Penalty of tokens that already occurred; 1 is off
    #[arg(long, value_name = "X")]
    repeat_penalty: Option<f32>,
    /// Subtracted from the logit of tokens that occurred
    #[arg(long, value_name = "X")]
    presence_penalty: Option<f32>,
    /// Subtracted from a token's logit for each time it occurred
    #[arg(long, value_name = "X")]
    frequency_penalty: Option<f32>,
    /// How many of the newest tokens the penalties look at; -1 for all
    #[arg(long, value_name = "N")]
    repeat_last_n: Option<Limit>,
    /// Seed of every request; -1 draws a new one for each
    #[arg(short, long, value_name = "N")]
    seed: Option<Seed>,
    /// Most tokens of the model's reasoning, whose end is then forced; -1 for no limit
    #[arg(long, value_name = "N")]
    reasoning_budget: Option<Limit>,
}

impl DefaultArgs {
    /// Converts the options to defaults of requests.
    ///
    /// # Errors
    /// Fails on a value out of its range.
    pub(super) fn read(&self, is_verbose: bool) -> Result<RequestDefaults, Failure> {
        let number = |value: Option<f32>| {
            // Print the shortest digits of the f32, not those of the f64.
            let shortest = |value: f32| value.to_string().parse().unwrap_or(f64::from(value));
            value.map(|value| Value::from(shortest(value)))
        };
        let limit = |limit: Limit| limit.bound().map_or(Value::from(-1), Value::from);
        let seed = match self.seed {
            Some(Seed::Fixed(seed)) => Some(Value::from(seed as i64)),
            Some(Seed::Random) | None => None,
        };
        let given = [
            ("temperature", number(self.temp)),
            ("top_k", self.top_k.map(Value::from)),
            ("top_p", number(self.top_p)),
            ("min_p", number(self.min_p)),
            ("typical_p", number(self.typical)),
            ("repeat_penalty", number(self.repeat_penalty)),
            ("presence_penalty", number(self.presence_penalty)),
            ("frequency_penalty", number(self.frequency_penalty)),
            ("repeat_last_n", self.repeat_last_n.map(limit)),
            ("seed", seed),
        ];
        let given = (given.into_iter()).filter_map(|(name, value)| Some((name.to_owned(), value?)));
        let defaults = RequestDefaults {
            sampling: given.collect::<Map<String, Value>>(),
            max_tokens: self.n_predict.and_then(Limit::max_tokens),
            thinking_budget: self.reasoning_budget.and_then(Limit::max_tokens),
            is_verbose,
        };
        defaults.check().map_err(|error| {
            let flag = match error.param().unwrap_or_default() {
                "temperature" => "temp".to_owned(),
                "typical_p" => "typical".to_owned(),
                name => name.replace('_', "-"),
            };
            let reason = error.to_string();
            let reason = reason
                .split_once(": ")
                .map_or(reason.as_str(), |(_, reason)| reason);
            Failure::usage(format!("`--{flag}`: {reason}"))
        })?;
        Ok(defaults)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::json;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        defaults: DefaultArgs,
    }

    fn read(line: &[&str]) -> Result<RequestDefaults, String> {
        let line = Line::try_parse_from([&["t"], line].concat()).map_err(|error| error.to_string())?;
        line.defaults.read(false).map_err(|failure| failure.line())
    }

    #[test]
    fn only_what_is_given_takes_the_place_of_an_apis_default() {
        assert_eq!(read(&[]), Ok(RequestDefaults::default()));
        let line = [
            "-n",
            "64",
            "--temp",
            "0.8",
            "--seed",
            "42",
            "--repeat-last-n=-1",
            "--reasoning-budget",
            "0",
        ];
        let given = read(&line).expect("the line is right");
        assert_eq!(
            Value::Object(given.sampling),
            json!({ "temperature": 0.8, "repeat_last_n": -1, "seed": 42 })
        );
        assert_eq!((given.max_tokens, given.thinking_budget), (Some(64), Some(0)));
        let wrong = read(&["--temp", "3"]).expect_err("it is out of its range");
        assert!(wrong.contains("`--temp`: 3 is not between 0 and 2"), "{wrong}");
    }
}
