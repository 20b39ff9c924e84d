//! [`DefaultArgs`] holds the defaults of request fields, with llama.cpp's option names.
//!
//! The sampling options of `run` always have a value; here only the given options replace an API's own
//! defaults. Invariant: values are checked before a model is loaded.

use clap::{Arg, Args};
use serde_json::{Map, Value};
use tokenmill_server::RequestDefaults;

use crate::{
    failure::Failure,
    help::ADVANCED,
    note::note,
    numbers::{Limit, Seed},
    sampling::{SamplerFlags, flag_of, idle_options, with_default_note},
};

/// Holds the defaults of request fields.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Defaults of requests", mut_arg("temp", with_api_note))]
pub(super) struct DefaultArgs {
    /// Most tokens of an answer if the request sets no limit; -1 leaves it to the API [default: -1]
    #[arg(short, long, alias = "predict", value_name = "N")]
    n_predict: Option<Limit>,
    #[command(flatten)]
    sampling: SamplerFlags,
    /// A text that ends repetitions for DRY, in place of line ends, `:`, `"` and `*`; `none` for no text. May be repeated
    #[arg(long, help_heading = ADVANCED, value_name = "TEXT")]
    dry_sequence_breaker: Vec<String>,
    /// Most reasoning tokens, after which the reasoning is ended; -1 for no limit
    #[arg(long, value_name = "N")]
    reasoning_budget: Option<Limit>,
}

/// Says once for all flags where their defaults come from.
fn with_api_note(arg: Arg) -> Arg {
    with_default_note(arg, "the API's, as for the options below")
}

impl DefaultArgs {
    /// Converts the options to defaults of requests.
    ///
    /// # Errors
    /// Fails on a value out of its range.
    pub(super) fn read(&self, is_verbose: bool) -> Result<RequestDefaults, Failure> {
        let flags = &self.sampling;
        let number = |value: Option<f32>| value.map(RequestDefaults::number);
        let limit = |limit: Limit| limit.bound().map_or(Value::from(-1), Value::from);
        let seed = match flags.seed {
            Some(Seed::Fixed(seed)) => Some(Value::from(seed as i64)),
            Some(Seed::Random) | None => None,
        };
        let steps = flags.steps();
        let breakers = match &self.dry_sequence_breaker[..] {
            [] => None,
            // The word of llama.cpp for an empty list.
            [only] if only == "none" => Some(Value::Array(Vec::new())),
            texts => Some(Value::from(texts)),
        };
        let given = [
            ("temperature", number(flags.temp)),
            ("top_k", flags.top_k.map(Value::from)),
            ("top_p", number(flags.top_p)),
            ("min_p", number(flags.min_p)),
            ("typical_p", number(flags.typical)),
            ("top_n_sigma", number(flags.top_n_sigma)),
            ("xtc_probability", number(flags.xtc_probability)),
            ("xtc_threshold", number(flags.xtc_threshold)),
            ("dynatemp_range", number(flags.dynatemp_range)),
            ("dynatemp_exponent", number(flags.dynatemp_exp)),
            ("mirostat", flags.mirostat.map(Value::from)),
            ("mirostat_eta", number(flags.mirostat_lr)),
            ("mirostat_tau", number(flags.mirostat_ent)),
            (
                "samplers",
                steps.map(|steps| steps.iter().map(|step| step.name()).collect()),
            ),
            ("repeat_penalty", number(flags.repeat_penalty)),
            ("presence_penalty", number(flags.presence_penalty)),
            ("frequency_penalty", number(flags.frequency_penalty)),
            ("repeat_last_n", flags.repeat_last_n.map(limit)),
            ("dry_multiplier", number(flags.dry_multiplier)),
            ("dry_base", number(flags.dry_base)),
            ("dry_allowed_length", flags.dry_allowed_length.map(Value::from)),
            ("dry_penalty_last_n", flags.dry_penalty_last_n.map(limit)),
            ("dry_sequence_breakers", breakers),
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
            let flag = flag_of(error.param().unwrap_or_default());
            let reason = error.to_string();
            let reason = reason
                .split_once(": ")
                .map_or(reason.as_str(), |(_, reason)| reason);
            Failure::usage(format!("`--{flag}`: {reason}"))
        })?;
        Ok(defaults)
    }
}

/// Notes defaults of samplers that only requests turn on.
pub(super) fn note_idle(defaults: &RequestDefaults) {
    for (flag, switch) in idle_defaults(defaults) {
        note!("`--{flag}` applies to requests that turn its sampler on; `--{switch}` turns it on for all");
    }
}

/// Lists the options whose sampler is off in requests that are silent, each with the option that turns it on.
fn idle_defaults(defaults: &RequestDefaults) -> Vec<(String, String)> {
    let given = &defaults.sampling;
    let is_on = |switch: &str| {
        given
            .get(switch)
            .and_then(Value::as_f64)
            .is_some_and(|n| n != 0.0)
    };
    idle_options(|need| given.contains_key(need.name) && !is_on(need.switch.name))
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
    }

    #[test]
    fn samplers_of_llama_cpp_become_the_fields_of_requests() {
        let line = "--top-n-sigma 1.5 --xtc-probability 0.5 --xtc-threshold 0.2 --dynatemp-range 0.3 --dynatemp-exp 2 --mirostat 2 \
                    --mirostat-lr 0.2 --mirostat-ent 4 --samplers top_k;temp --dry-multiplier 0.8 --dry-base 2 --dry-allowed-length 3 \
                    --dry-penalty-last-n=-1 --dry-sequence-breaker none";
        let line: Vec<&str> = line.split_whitespace().collect();
        let given = read(&line).expect("the line is right");
        let expected = json!({
            "top_n_sigma": 1.5, "xtc_probability": 0.5, "xtc_threshold": 0.2, "dynatemp_range": 0.3, "dynatemp_exponent": 2.0,
            "mirostat": 2, "mirostat_eta": 0.2, "mirostat_tau": 4.0, "samplers": ["top_k", "temperature"], "dry_multiplier": 0.8,
            "dry_base": 2.0, "dry_allowed_length": 3, "dry_penalty_last_n": -1, "dry_sequence_breakers": [],
        });
        assert_eq!(Value::Object(given.sampling), expected);
        let letters = read(&["--sampler-seq", "kt"]).expect("the line is right");
        assert_eq!(letters.sampling["samplers"], json!(["top_k", "temperature"]));
    }

    #[test]
    fn defaults_of_samplers_that_no_default_turns_on_are_told() {
        let idle = |line: &str| {
            let line: Vec<&str> = line.split_whitespace().collect();
            idle_defaults(&read(&line).expect("the line is right"))
        };
        let all = "--xtc-threshold 0.2 --dynatemp-exp 2 --mirostat-lr 0.2 --mirostat-ent 4 --dry-base 2 --dry-allowed-length 3 \
                   --dry-penalty-last-n=-1 --dry-sequence-breaker none";
        let found = idle(&format!("{all} --mirostat 0"));
        let flags: Vec<&str> = found.iter().map(|(flag, _)| flag.as_str()).collect();
        let expected = [
            "xtc-threshold",
            "dynatemp-exp",
            "mirostat-lr",
            "mirostat-ent",
            "dry-base",
            "dry-allowed-length",
            "dry-penalty-last-n",
            "dry-sequence-breaker",
        ];
        assert_eq!(flags, expected);
        assert_eq!(found[7].1, "dry-multiplier");
        let switches = "--xtc-probability 0.5 --dynatemp-range 0.3 --mirostat 2 --dry-multiplier 0.8";
        assert!(idle(&format!("{all} {switches}")).is_empty());
    }

    #[test]
    fn a_value_out_of_its_range_names_its_flag() {
        for (line, expected) in [
            ("--temp=3", "`--temp`: 3 is not between 0 and 2"),
            ("--temp=inf", "`--temp`: expected a finite number"),
            ("--dynatemp-range=-1", "`--dynatemp-range`: -1 is not"),
            ("--xtc-probability=1.5", "`--xtc-probability`: 1.5 is not"),
            ("--dry-base=0.5", "`--dry-base`"),
            ("--dry-sequence-breaker=", "`--dry-sequence-breaker`"),
        ] {
            let wrong = read(&[line, "--dry-multiplier=1"]).expect_err("it is out of its range");
            assert!(wrong.contains(expected), "{wrong}");
        }
    }
}
