//! [`SamplingArgs`]: the options that say how tokens are chosen, with llama.cpp's names and defaults.

use std::{
    process,
    time::{SystemTime, UNIX_EPOCH},
};

use clap::Args;
use tokenmill::{sampling::DRY_BREAKERS, text::ModelWords};
use tokenmill_backend::{
    Dry, DynamicTemperature, Mirostat, MirostatVersion, SamplerStep, SamplingParams, SamplingParamsError, Xtc,
};

use crate::{
    failure::Failure,
    note::note,
    numbers::{Limit, Seed},
};

/// How tokens are chosen.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct SamplingArgs {
    /// Temperature; 0 always takes the likeliest token
    #[arg(long, alias = "temperature", value_name = "T", default_value_t = SamplingParams::llama_cpp().temperature)]
    pub(crate) temp: f32,
    /// Keep the K likeliest tokens; 0 keeps all
    #[arg(long, value_name = "K", default_value_t = SamplingParams::llama_cpp().top_k)]
    pub(crate) top_k: u32,
    /// Keep the likeliest tokens up to this probability; 1 keeps all
    #[arg(long, value_name = "P", default_value_t = SamplingParams::llama_cpp().top_p)]
    pub(crate) top_p: f32,
    /// Keep tokens at least this many times as likely as the likeliest; 0 keeps all
    #[arg(long, value_name = "P", default_value_t = SamplingParams::llama_cpp().min_p)]
    pub(crate) min_p: f32,
    /// Locally typical sampling: keep the tokens nearest to the expected surprise, up to this probability; 1 keeps all
    #[arg(long, alias = "typical-p", value_name = "P", default_value_t = 1.0)]
    pub(crate) typical: f32,
    /// Keep tokens whose logits are at most this many standard deviations below the highest; 0 keeps all
    #[arg(
        long,
        alias = "top-nsigma",
        value_name = "N",
        default_value_t = 0.0,
        allow_negative_numbers = true
    )]
    pub(crate) top_n_sigma: f32,
    /// Probability that XTC removes the likeliest tokens; 0 turns it off
    #[arg(long, value_name = "P", default_value_t = 0.0)]
    pub(crate) xtc_probability: f32,
    /// Lowest probability of a token that XTC may remove
    #[arg(long, value_name = "P", default_value_t = Xtc::default().threshold)]
    pub(crate) xtc_threshold: f32,
    /// Vary the temperature with the entropy of the tokens, by up to this much to either side; 0 is off
    #[arg(long, value_name = "X", default_value_t = 0.0)]
    pub(crate) dynatemp_range: f32,
    /// Exponent of the dynamic temperature
    #[arg(long, value_name = "X", default_value_t = DynamicTemperature::default().exponent)]
    pub(crate) dynatemp_exp: f32,
    /// Version of mirostat (1 or 2), which keeps the surprise of tokens near a target in place of filters and penalties; 0 is off
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=2))]
    pub(crate) mirostat: u8,
    /// Learning rate of mirostat (eta)
    #[arg(long, value_name = "X", default_value_t = Mirostat::DEFAULT_RATE)]
    pub(crate) mirostat_lr: f32,
    /// Target surprise of mirostat, in bits (tau)
    #[arg(long, value_name = "X", default_value_t = Mirostat::DEFAULT_TARGET)]
    pub(crate) mirostat_ent: f32,
    /// Sampling steps in order, separated by `;`; other steps are skipped [default:
    /// penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature]
    #[arg(long, value_name = "STEPS", value_parser = parse_steps)]
    pub(crate) samplers: Option<Steps>,
    /// Sampling steps in order, by their letters: edskypmxt
    #[arg(long, alias = "sampling-seq", value_name = "LETTERS", value_parser = parse_letters, conflicts_with = "samplers")]
    pub(crate) sampler_seq: Option<Steps>,
    /// Penalize tokens that already occurred; 1 is off
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    pub(crate) repeat_penalty: f32,
    /// Subtract this from the logit of tokens that occurred
    #[arg(long, value_name = "X", default_value_t = 0.0)]
    pub(crate) presence_penalty: f32,
    /// Subtract this from a token's logit for each time it occurred
    #[arg(long, value_name = "X", default_value_t = 0.0)]
    pub(crate) frequency_penalty: f32,
    /// How many of the newest tokens the penalties look at; -1 looks at the context
    #[arg(long, value_name = "N", default_value_t = Limit::AtMost(SamplingParams::llama_cpp().penalty_last_n as usize))]
    pub(crate) repeat_last_n: Limit,
    /// Strength of DRY, which weakens the continuation of repeated passages; 0 turns it off
    #[arg(long, value_name = "X", default_value_t = 0.0)]
    pub(crate) dry_multiplier: f32,
    /// Base of DRY's growth
    #[arg(long, value_name = "X", default_value_t = Dry::default().base)]
    pub(crate) dry_base: f32,
    /// Repetitions up to this length cost nothing in DRY
    #[arg(long, value_name = "N", default_value_t = Dry::default().allowed_length)]
    pub(crate) dry_allowed_length: u32,
    /// How many of the newest tokens DRY searches; -1 searches the context
    #[arg(long, value_name = "N", default_value_t = Limit::Unbounded)]
    pub(crate) dry_penalty_last_n: Limit,
    /// Change a token's logit, for example 15043+1 or 15043-inf; may be repeated
    #[arg(short = 'l', long, value_name = "ID±BIAS", value_parser = parse_bias)]
    pub(crate) logit_bias: Vec<(u32, f32)>,
    /// Seed; -1 takes another one every time
    #[arg(short, long, value_name = "N", default_value_t = Seed::Random)]
    pub(crate) seed: Seed,
}

impl SamplingArgs {
    /// Notes options that change nothing because their sampler is off.
    pub(crate) fn note_idle(&self) {
        for (flag, switch) in self.idle() {
            note!("`--{flag}` changes nothing without `--{switch}`");
        }
    }

    /// Lists options with other values than the default whose sampler is off, each with the option that turns it on.
    fn idle(&self) -> Vec<(String, String)> {
        let is_given = |value: &str| match value {
            "xtc_threshold" => self.xtc_threshold != Xtc::default().threshold,
            "dynatemp_exponent" => self.dynatemp_exp != DynamicTemperature::default().exponent,
            "mirostat_eta" => self.mirostat_lr != Mirostat::DEFAULT_RATE,
            "mirostat_tau" => self.mirostat_ent != Mirostat::DEFAULT_TARGET,
            "dry_base" => self.dry_base != Dry::default().base,
            "dry_allowed_length" => self.dry_allowed_length != Dry::default().allowed_length,
            "dry_penalty_last_n" => self.dry_penalty_last_n.bound().is_some(),
            _ => false,
        };
        let is_on = |switch: &str| match switch {
            "xtc_probability" => self.xtc_probability != 0.0,
            "dynatemp_range" => self.dynatemp_range != 0.0,
            "mirostat" => self.mirostat != 0,
            _ => self.dry_multiplier != 0.0,
        };
        idle_options(is_given, is_on)
    }

    /// The parameters for a model. A random seed is drawn here, so that it can be reported.
    ///
    /// # Errors
    /// A number outside its range.
    pub(crate) fn params(&self, words: &ModelWords, n_ctx: usize) -> Result<SamplingParams, Failure> {
        let newest = |limit: Limit| {
            let n_tokens = limit.bound().unwrap_or(n_ctx).min(n_ctx);
            u32::try_from(n_tokens).unwrap_or(u32::MAX)
        };
        let dry = (self.dry_multiplier != 0.0).then(|| Dry {
            multiplier: self.dry_multiplier,
            base: self.dry_base,
            allowed_length: self.dry_allowed_length,
            last_n: newest(self.dry_penalty_last_n),
            breakers: words.dry_breakers(&DRY_BREAKERS),
        });
        let params = SamplingParams {
            temperature: self.temp,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            typical_p: self.typical,
            top_n_sigma: self.top_n_sigma,
            xtc: (self.xtc_probability != 0.0).then_some(Xtc {
                probability: self.xtc_probability,
                threshold: self.xtc_threshold,
            }),
            dynamic_temperature: (self.dynatemp_range != 0.0).then_some(DynamicTemperature {
                range: self.dynatemp_range,
                exponent: self.dynatemp_exp,
            }),
            mirostat: MirostatVersion::from_number(self.mirostat)
                .map(|version| Mirostat::new(version, self.mirostat_ent, self.mirostat_lr)),
            order: None,
            repeat_penalty: self.repeat_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            penalty_last_n: newest(self.repeat_last_n),
            dry,
            logit_bias: self.logit_bias.clone(),
            seed: match self.seed {
                Seed::Fixed(seed) => seed,
                Seed::Random => random_seed(),
            },
            n_logprobs: None,
            scores_draw: false,
        };
        params
            .validate(words.tokenizer().n_vocab())
            .map_err(|error| refusal(&error))?;
        let steps = self.samplers.as_ref().or(self.sampler_seq.as_ref());
        Ok(match steps {
            Some(Steps(steps)) => params.with_steps(steps),
            None => params,
        })
    }
}

/// Values of samplers, each with the parameter that turns its sampler on.
const NEEDS: [(&str, &str); 8] = [
    ("xtc_threshold", "xtc_probability"),
    ("dynatemp_exponent", "dynatemp_range"),
    ("mirostat_eta", "mirostat"),
    ("mirostat_tau", "mirostat"),
    ("dry_base", "dry_multiplier"),
    ("dry_allowed_length", "dry_multiplier"),
    ("dry_penalty_last_n", "dry_multiplier"),
    ("dry_sequence_breakers", "dry_multiplier"),
];

/// Lists the given options whose sampler is off, each with the option that turns it on.
pub(crate) fn idle_options(
    is_given: impl Fn(&str) -> bool,
    is_on: impl Fn(&str) -> bool,
) -> Vec<(String, String)> {
    (NEEDS.into_iter())
        .filter(|(value, switch)| is_given(value) && !is_on(switch))
        .map(|(value, switch)| (flag_of(value), flag_of(switch)))
        .collect()
}

/// Says which option is out of its range.
fn refusal(error: &SamplingParamsError) -> Failure {
    let (SamplingParamsError::OutOfRange { name, value, .. }, Some(expected)) =
        (error, error.expected_range())
    else {
        return Failure::usage(error.to_string());
    };
    Failure::usage(format!("`--{}` is {value}, expected {expected}", flag_of(name)))
}

/// Returns the option for a parameter, both as llama.cpp names them.
pub(crate) fn flag_of(parameter: &str) -> String {
    match parameter {
        "temperature" => "temp".to_owned(),
        "typical_p" => "typical".to_owned(),
        "dynatemp_exponent" => "dynatemp-exp".to_owned(),
        "mirostat_tau" => "mirostat-ent".to_owned(),
        "mirostat_eta" => "mirostat-lr".to_owned(),
        "dry_sequence_breakers" => "dry-sequence-breaker".to_owned(),
        name => name.replace('_', "-"),
    }
}

/// Holds sampling steps, in order.
#[derive(Clone, Debug)]
pub(crate) struct Steps(pub(crate) Vec<SamplerStep>);

/// Parses names of steps.
///
/// # Errors
/// Fails on a name that no step has.
pub(crate) fn parse_steps(text: &str) -> Result<Steps, String> {
    let steps = text.split(';').filter(|name| !name.is_empty()).map(|name| {
        SamplerStep::from_name(name.trim()).ok_or_else(|| {
            let known = SamplerStep::DEFAULT_ORDER.map(SamplerStep::name).join(", ");
            format!("unknown sampling step `{name}`; the steps are {known}")
        })
    });
    steps.collect::<Result<_, _>>().map(Steps)
}

/// Parses letters of steps.
///
/// # Errors
/// Fails on a letter that no step has.
pub(crate) fn parse_letters(text: &str) -> Result<Steps, String> {
    let steps = text.chars().map(|letter| {
        SamplerStep::from_letter(letter).ok_or_else(|| {
            let known: String = SamplerStep::DEFAULT_ORDER
                .map(SamplerStep::letter)
                .iter()
                .collect();
            format!("unknown sampling step `{letter}`; the letters are {known}")
        })
    });
    steps.collect::<Result<_, _>>().map(Steps)
}

/// Reads `ID+BIAS` or `ID-BIAS`.
fn parse_bias(text: &str) -> Result<(u32, f32), String> {
    let parsed = text.find(['+', '-']).and_then(|at| {
        let (id, bias) = text.split_at(at);
        Some((id.parse().ok()?, bias.parse().ok()?))
    });
    parsed.ok_or_else(|| "expected a token id and a bias, such as 15043+1 or 15043-inf".to_owned())
}

/// A seed that differs from run to run, small enough to be typed again.
fn random_seed() -> u64 {
    let nanos = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_nanos());
    // The multiplier of a well-mixed linear generator spreads the low bits.
    let mixed = (nanos as u64 ^ u64::from(process::id()) << 32).wrapping_mul(0xd134_2543_de82_ef95);
    mixed >> 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        sampling: SamplingArgs,
    }

    #[test]
    fn an_option_without_the_one_that_turns_its_sampler_on_is_idle() {
        let idle = |line: &str| {
            let line = [&["t"], &line.split(' ').collect::<Vec<_>>()[..]].concat();
            let line = <Line as clap::Parser>::try_parse_from(line).expect("the line is right");
            let flags = line.sampling.idle().into_iter().map(|(flag, _)| flag);
            flags.collect::<Vec<_>>()
        };
        let all = "--xtc-threshold 0.2 --dynatemp-exp 2 --mirostat-lr 0.2 --mirostat-ent 4 --dry-base 2 --dry-allowed-length 3 \
                   --dry-penalty-last-n 64";
        let flags: Vec<&str> = all
            .split(' ')
            .filter_map(|word| word.strip_prefix("--"))
            .collect();
        assert_eq!(idle(all), flags);
        let switches = "--xtc-probability 0.5 --dynatemp-range 0.3 --mirostat 2 --dry-multiplier 0.8";
        assert_eq!(idle(&format!("{all} {switches}")), [""; 0]);
        assert_eq!(idle("--dry-base 1.75"), [""; 0], "it is the default");
    }

    #[test]
    fn biases_are_read_as_llama_cpp_reads_them() {
        assert_eq!(parse_bias("15043+1"), Ok((15043, 1.0)));
        assert_eq!(parse_bias("2-0.5"), Ok((2, -0.5)));
        assert_eq!(parse_bias("7-inf"), Ok((7, f32::NEG_INFINITY)));
        assert!(parse_bias("x+1").is_err());
        assert!(parse_bias("12").is_err());
    }

    #[test]
    fn steps_are_read_as_llama_cpp_reads_them() {
        use SamplerStep::{Temperature, TopK, TopP};
        assert_eq!(
            parse_steps("top_k;nucleus;temp").unwrap().0,
            [TopK, TopP, Temperature]
        );
        assert_eq!(parse_letters("kpt").unwrap().0, [TopK, TopP, Temperature]);
        assert!(parse_steps("").unwrap().0.is_empty());
        assert!(parse_steps("top_k;infill").unwrap_err().contains("`infill`"));
        assert!(parse_letters("kz").unwrap_err().contains("`z`"));
    }
}
