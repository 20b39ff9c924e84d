//! [`SamplerFlags`]: the sampling options, with llama.cpp's names; and [`SamplingArgs`], which adds its
//! defaults.
//!
//! `run`, `chat` and `serve` take the same flags: `run` and `chat` sample with them, and `serve` makes the
//! given ones the defaults of requests. Invariant: a flag has one name, one range and one text in all
//! commands.

use std::{
    process,
    sync::LazyLock,
    time::{SystemTime, UNIX_EPOCH},
};

use clap::{Arg, Args, Command, FromArgMatches as _};
use tokenmill::{sampling::DRY_BREAKERS, text::ModelWords};
use tokenmill_backend::{
    Dry, DynamicTemperature, Mirostat, MirostatVersion, SamplerStep, SamplingParams, SamplingParamsError, Xtc,
};

use crate::{
    failure::Failure,
    help::ADVANCED,
    note::note,
    numbers::{Limit, Seed},
};

/// Holds the options that choose tokens, with llama.cpp's names; one that was not given is `None`.
#[derive(Args, Debug, Clone)]
pub(crate) struct SamplerFlags {
    /// Temperature; 0 always takes the likeliest token
    #[arg(long, alias = "temperature", value_name = "T")]
    pub(crate) temp: Option<f32>,
    /// Keep the K likeliest tokens; 0 keeps all
    #[arg(long, value_name = "K")]
    pub(crate) top_k: Option<u32>,
    /// Keep the likeliest tokens up to this probability; 1 keeps all
    #[arg(long, value_name = "P")]
    pub(crate) top_p: Option<f32>,
    /// Keep tokens at least this many times as likely as the likeliest; 0 keeps all
    #[arg(long, value_name = "P")]
    pub(crate) min_p: Option<f32>,
    /// Locally typical sampling: keep the tokens nearest to the expected surprise, up to this probability; 1 keeps all
    #[arg(long, help_heading = ADVANCED, alias = "typical-p", value_name = "P")]
    pub(crate) typical: Option<f32>,
    /// Keep tokens whose logits are at most this many standard deviations below the highest; 0 keeps all
    #[arg(long, help_heading = ADVANCED, alias = "top-nsigma", value_name = "N", allow_negative_numbers = true)]
    pub(crate) top_n_sigma: Option<f32>,
    /// Probability that XTC removes the likeliest tokens; 0 turns it off
    #[arg(long, help_heading = ADVANCED, value_name = "P")]
    pub(crate) xtc_probability: Option<f32>,
    /// Lowest probability of a token that XTC may remove
    #[arg(long, help_heading = ADVANCED, value_name = "P")]
    pub(crate) xtc_threshold: Option<f32>,
    /// Vary the temperature with the entropy of the tokens, by up to this much to either side; 0 is off
    #[arg(long, help_heading = ADVANCED, value_name = "X")]
    pub(crate) dynatemp_range: Option<f32>,
    /// Exponent of the dynamic temperature
    #[arg(long, help_heading = ADVANCED, value_name = "X")]
    pub(crate) dynatemp_exp: Option<f32>,
    /// Version of mirostat (1 or 2), which keeps the surprise of tokens near a target in place of filters and penalties; 0 is off
    #[arg(long, help_heading = ADVANCED, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=2))]
    pub(crate) mirostat: Option<u8>,
    /// Learning rate of mirostat (eta)
    #[arg(long, help_heading = ADVANCED, value_name = "X")]
    pub(crate) mirostat_lr: Option<f32>,
    /// Target surprise of mirostat, in bits (tau)
    #[arg(long, help_heading = ADVANCED, value_name = "X")]
    pub(crate) mirostat_ent: Option<f32>,
    /// Sampling steps in order, separated by `;`; other steps are skipped
    #[arg(long, help_heading = ADVANCED, value_name = "STEPS", value_parser = parse_steps)]
    samplers: Option<Steps>,
    /// Sampling steps in order, by their letters: edskypmxt
    #[arg(long, help_heading = ADVANCED, alias = "sampling-seq", value_name = "LETTERS", value_parser = parse_letters, conflicts_with = "samplers")]
    sampler_seq: Option<Steps>,
    /// Penalize tokens that already occurred; 1 is off
    #[arg(long, value_name = "X")]
    pub(crate) repeat_penalty: Option<f32>,
    /// Subtract this from the logit of tokens that occurred
    #[arg(long, value_name = "X")]
    pub(crate) presence_penalty: Option<f32>,
    /// Subtract this from a token's logit for each time it occurred
    #[arg(long, value_name = "X")]
    pub(crate) frequency_penalty: Option<f32>,
    /// How many of the newest tokens the penalties look at; -1 looks at the context
    #[arg(long, help_heading = ADVANCED, value_name = "N")]
    pub(crate) repeat_last_n: Option<Limit>,
    /// Strength of DRY, which weakens the continuation of repeated passages; 0 turns it off
    #[arg(long, help_heading = ADVANCED, value_name = "X")]
    pub(crate) dry_multiplier: Option<f32>,
    /// Base of DRY's growth
    #[arg(long, help_heading = ADVANCED, value_name = "X")]
    pub(crate) dry_base: Option<f32>,
    /// Repetitions up to this length cost nothing in DRY
    #[arg(long, help_heading = ADVANCED, value_name = "N")]
    pub(crate) dry_allowed_length: Option<u32>,
    /// How many of the newest tokens DRY searches; -1 searches the context
    #[arg(long, help_heading = ADVANCED, value_name = "N")]
    pub(crate) dry_penalty_last_n: Option<Limit>,
    /// Seed; -1 takes a new one every time
    #[arg(short, long, value_name = "N")]
    pub(crate) seed: Option<Seed>,
}

impl SamplerFlags {
    /// Returns the given sampling steps.
    pub(crate) fn steps(&self) -> Option<&[SamplerStep]> {
        let steps = self.samplers.as_ref().or(self.sampler_seq.as_ref());
        steps.map(|Steps(steps)| &steps[..])
    }
}

/// Adds to an option's help, in words, the behavior without it.
pub(crate) fn with_default_note(arg: Arg, default: &str) -> Arg {
    let text = arg.get_help().map(ToString::to_string).unwrap_or_default();
    arg.help(format!("{text} [default: {default}]"))
}

/// Holds the options of one text: [`SamplerFlags`] with llama.cpp's defaults.
#[derive(Args, Debug, Clone)]
#[command(
    next_help_heading = "Sampling",
    mut_args(with_llama_cpp_default),
    mut_arg("samplers", with_step_order)
)]
pub(crate) struct SamplingArgs {
    #[command(flatten)]
    flags: SamplerFlags,
    /// Change a token's logit, for example 15043+1 or 15043-inf; may be repeated
    #[arg(short = 'l', long, help_heading = ADVANCED, value_name = "ID±BIAS", value_parser = parse_bias)]
    logit_bias: Vec<(u32, f32)>,
}

/// Holds the default of each flag that has one, by the flag's field.
static LLAMA_CPP_DEFAULTS: LazyLock<[(&str, String); 22]> = LazyLock::new(|| {
    let params = SamplingParams::llama_cpp();
    let (dry, xtc) = (Dry::default(), Xtc::default());
    let off = 0.0_f32.to_string();
    [
        ("temp", params.temperature.to_string()),
        ("top_k", params.top_k.to_string()),
        ("top_p", params.top_p.to_string()),
        ("min_p", params.min_p.to_string()),
        ("typical", params.typical_p.to_string()),
        ("top_n_sigma", params.top_n_sigma.to_string()),
        ("xtc_probability", off.clone()),
        ("xtc_threshold", xtc.threshold.to_string()),
        ("dynatemp_range", off.clone()),
        ("dynatemp_exp", DynamicTemperature::default().exponent.to_string()),
        ("mirostat", off.clone()),
        ("mirostat_lr", Mirostat::DEFAULT_RATE.to_string()),
        ("mirostat_ent", Mirostat::DEFAULT_TARGET.to_string()),
        ("repeat_penalty", params.repeat_penalty.to_string()),
        ("presence_penalty", params.presence_penalty.to_string()),
        ("frequency_penalty", params.frequency_penalty.to_string()),
        ("repeat_last_n", params.penalty_last_n.to_string()),
        ("dry_multiplier", off),
        ("dry_base", dry.base.to_string()),
        ("dry_allowed_length", dry.allowed_length.to_string()),
        ("dry_penalty_last_n", Limit::Unbounded.to_string()),
        ("seed", Seed::Random.to_string()),
    ]
});

/// Gives a flag its default; any other option stays as it is.
fn with_llama_cpp_default(arg: Arg) -> Arg {
    match (LLAMA_CPP_DEFAULTS.iter()).find(|(id, _)| arg.get_id().as_str() == *id) {
        Some((_, default)) => arg.default_value(default.as_str()),
        None => arg,
    }
}

/// Names the steps that are taken without `--samplers`.
fn with_step_order(arg: Arg) -> Arg {
    with_default_note(arg, &SamplerStep::DEFAULT_ORDER.map(SamplerStep::name).join(";"))
}

/// Returns the value of a flag of [`SamplingArgs`].
fn value<T>(flag: Option<T>) -> T {
    flag.expect("each flag of these has a default")
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
        let flags = &self.flags;
        idle_options(|need| (need.is_changed)(flags) && !(need.switch.is_on)(flags))
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
        let flags = &self.flags;
        let dry = (value(flags.dry_multiplier) != 0.0).then(|| Dry {
            multiplier: value(flags.dry_multiplier),
            base: value(flags.dry_base),
            allowed_length: value(flags.dry_allowed_length),
            last_n: newest(value(flags.dry_penalty_last_n)),
            breakers: words.dry_breakers(&DRY_BREAKERS),
        });
        let params = SamplingParams {
            temperature: value(flags.temp),
            top_k: value(flags.top_k),
            top_p: value(flags.top_p),
            min_p: value(flags.min_p),
            typical_p: value(flags.typical),
            top_n_sigma: value(flags.top_n_sigma),
            xtc: (value(flags.xtc_probability) != 0.0).then(|| Xtc {
                probability: value(flags.xtc_probability),
                threshold: value(flags.xtc_threshold),
            }),
            dynamic_temperature: (value(flags.dynatemp_range) != 0.0).then(|| DynamicTemperature {
                range: value(flags.dynatemp_range),
                exponent: value(flags.dynatemp_exp),
            }),
            mirostat: MirostatVersion::from_number(value(flags.mirostat))
                .map(|version| Mirostat::new(version, value(flags.mirostat_ent), value(flags.mirostat_lr))),
            order: None,
            repeat_penalty: value(flags.repeat_penalty),
            presence_penalty: value(flags.presence_penalty),
            frequency_penalty: value(flags.frequency_penalty),
            penalty_last_n: newest(value(flags.repeat_last_n)),
            dry,
            logit_bias: self.logit_bias.clone(),
            seed: match value(flags.seed) {
                Seed::Fixed(seed) => seed,
                Seed::Random => random_seed(),
            },
            n_logprobs: None,
            scores_draw: false,
        };
        params
            .validate(words.tokenizer().n_vocab())
            .map_err(|error| refusal(&error))?;
        Ok(match flags.steps() {
            Some(steps) => params.with_steps(steps),
            None => params,
        })
    }

    /// Says whether each run draws the same random numbers.
    pub(crate) fn has_fixed_seed(&self) -> bool {
        value(self.flags.seed) != Seed::Random
    }
}

/// Holds the flags of a command line without any: each has its default.
static DEFAULT_FLAGS: LazyLock<SamplerFlags> = LazyLock::new(|| {
    let command = SamplingArgs::augment_args(Command::new("defaults").no_binary_name(true));
    let matches = command.try_get_matches_from([""; 0]);
    let args = matches.and_then(|matches| SamplingArgs::from_arg_matches(&matches));
    args.expect("no option is required").flags
});

/// Says whether a flag has another value than its default.
fn is_changed<T: PartialEq>(flags: &SamplerFlags, flag: fn(&SamplerFlags) -> T) -> bool {
    flag(flags) != flag(&DEFAULT_FLAGS)
}

/// A parameter that turns a sampler on. It is off by default.
pub(crate) struct Switch {
    /// The parameter.
    pub(crate) name: &'static str,
    /// Whether the options turn the sampler on.
    is_on: fn(&SamplerFlags) -> bool,
}

/// A value of a sampler, with the parameter that turns its sampler on.
pub(crate) struct Need {
    /// The value's parameter.
    pub(crate) name: &'static str,
    /// The parameter that the value needs.
    pub(crate) switch: &'static Switch,
    /// Whether the options have another value than the default.
    is_changed: fn(&SamplerFlags) -> bool,
}

/// Makes a [`Switch`] of its parameter and its flag.
macro_rules! switch {
    ($name:literal, $flag:ident) => {
        Switch {
            name: $name,
            is_on: |flags| is_changed(flags, |flags| flags.$flag),
        }
    };
}

/// Makes a [`Need`] of its parameter, its switch and its flag.
macro_rules! need {
    ($name:literal, $switch:ident, $flag:ident) => {
        Need {
            name: $name,
            switch: &$switch,
            is_changed: |flags| is_changed(flags, |flags| flags.$flag),
        }
    };
}

static XTC: Switch = switch!("xtc_probability", xtc_probability);
static DYNAMIC_TEMPERATURE: Switch = switch!("dynatemp_range", dynatemp_range);
static MIROSTAT: Switch = switch!("mirostat", mirostat);
static DRY: Switch = switch!("dry_multiplier", dry_multiplier);

static NEEDS: [Need; 8] = [
    need!("xtc_threshold", XTC, xtc_threshold),
    need!("dynatemp_exponent", DYNAMIC_TEMPERATURE, dynatemp_exp),
    need!("mirostat_eta", MIROSTAT, mirostat_lr),
    need!("mirostat_tau", MIROSTAT, mirostat_ent),
    need!("dry_base", DRY, dry_base),
    need!("dry_allowed_length", DRY, dry_allowed_length),
    need!("dry_penalty_last_n", DRY, dry_penalty_last_n),
    Need {
        name: "dry_sequence_breakers",
        switch: &DRY,
        // Only `serve` has an option for them, which is not a sampler flag.
        is_changed: |_| false,
    },
];

/// Lists the options of the values that are `is_idle`, each with the option that turns its sampler on.
pub(crate) fn idle_options(is_idle: impl Fn(&Need) -> bool) -> Vec<(String, String)> {
    (NEEDS.iter())
        .filter(|need| is_idle(need))
        .map(|need| (flag_of(need.name), flag_of(need.switch.name)))
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
struct Steps(Vec<SamplerStep>);

/// Parses names of steps.
///
/// # Errors
/// Fails on a name that no step has.
fn parse_steps(text: &str) -> Result<Steps, String> {
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
fn parse_letters(text: &str) -> Result<Steps, String> {
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
        let defaults = "--xtc-threshold 0.1 --dynatemp-exp 1 --mirostat-lr 0.1 --mirostat-ent 5 --dry-base 1.75 --dry-allowed-length 2 \
                        --dry-penalty-last-n=-1";
        assert_eq!(idle(defaults), [""; 0], "they are the defaults");
    }

    #[test]
    fn each_flag_has_a_default_where_one_text_is_computed_only() {
        let shared = SamplerFlags::augment_args(Command::new("flags"));
        let of_text = SamplingArgs::augment_args(Command::new("text"));
        for flag in shared.get_arguments() {
            let id = flag.get_id();
            let n_defaults = |flag: &Arg| flag.get_default_values().len();
            assert_eq!(n_defaults(flag), 0, "{id}");
            let same = of_text.get_arguments().find(|other| other.get_id() == id);
            let is_optional = ["samplers", "sampler_seq"].contains(&id.as_str());
            assert_eq!(same.map(n_defaults), Some(usize::from(!is_optional)), "{id}");
        }
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
