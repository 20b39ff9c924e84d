//! Writes an answer's settings as llama.cpp's `/completion` and `/props` report them.
//!
//! A sampler that is off has its neutral values.

use serde_json::{Value, json};
use tokenmill::TextParams;
use tokenmill_backend::{Mirostat, SamplerStep, SamplingParams};

/// Seed that llama.cpp writes if each request draws its own.
const NO_SEED: u32 = u32::MAX;

/// Writes the settings of an answer. `end_ids` end a generation, unless it ignores them.
pub(crate) fn generation_settings(params: &TextParams, n_ctx: usize, end_ids: &[u32]) -> Value {
    let sampling = &params.sampling;
    let mut biases: Vec<(u32, f32)> = sampling.logit_bias.clone();
    if params.ignore_eos {
        biases.extend(end_ids.iter().map(|&id| (id, f32::NEG_INFINITY)));
    }
    // Infinity becomes `null`, as in llama.cpp.
    let biases = biases
        .iter()
        .map(|(token, bias)| json!({ "token": token, "bias": bias }));
    let mut settings = of_sampling(sampling);
    let steps = sampling.order.as_deref().unwrap_or(&SamplerStep::DEFAULT_ORDER);
    settings["samplers"] = steps.iter().map(|step| step.name()).collect();
    settings["logit_bias"] = biases.collect();
    settings["n_ctx"] = n_ctx.into();
    settings["n_predict"] = params.max_tokens.map_or(-1, i64::from).into();
    settings["max_tokens"] = settings["n_predict"].clone();
    settings["stop"] = json!(params.stops);
    settings["ignore_eos"] = params.ignore_eos.into();
    settings
}

/// Writes the sampling settings.
fn of_sampling(sampling: &SamplingParams) -> Value {
    let last_n = |n: u32| if n == u32::MAX { -1 } else { i64::from(n) };
    let dry = sampling.dry.clone().unwrap_or_default();
    let xtc = sampling.xtc.unwrap_or_default();
    let mirostat = sampling.mirostat.as_ref();
    let dynamic = sampling.dynamic_temperature.unwrap_or_default();
    json!({
        "seed": sampling.seed,
        "temperature": sampling.temperature,
        "dynatemp_range": dynamic.range,
        "dynatemp_exponent": dynamic.exponent,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "top_n_sigma": sampling.top_n_sigma,
        "xtc_probability": xtc.probability,
        "xtc_threshold": xtc.threshold,
        "typical_p": sampling.typical_p,
        "repeat_last_n": last_n(sampling.penalty_last_n),
        "repeat_penalty": sampling.repeat_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "dry_multiplier": dry.multiplier,
        "dry_base": dry.base,
        "dry_allowed_length": dry.allowed_length,
        "dry_penalty_last_n": last_n(dry.last_n),
        "adaptive_target": -1.0,
        "adaptive_decay": 0.9,
        "mirostat": mirostat.map_or(0, |mirostat| mirostat.version.number()),
        "mirostat_tau": mirostat.map_or(Mirostat::DEFAULT_TARGET, |mirostat| mirostat.target),
        "mirostat_eta": mirostat.map_or(Mirostat::DEFAULT_RATE, |mirostat| mirostat.rate),
        "n_keep": 0,
        "n_discard": 0,
        "n_probs": sampling.n_logprobs.unwrap_or(0),
        "post_sampling_probs": sampling.scores_draw,
        "min_keep": 0,
    })
}

/// Writes the default settings; `own` overrides llama.cpp's.
pub(crate) fn default_settings(own: &serde_json::Map<String, Value>, max_tokens: Option<u32>) -> Value {
    let mut settings = json!({
        "seed": NO_SEED,
        "n_predict": max_tokens.map_or(-1, i64::from),
    });
    for defaults in [crate::dialects::llama_cpp::defaults().as_object(), Some(own)]
        .into_iter()
        .flatten()
    {
        for (name, value) in defaults {
            settings[name] = value.clone();
        }
    }
    settings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignore_eos_biases_end_tokens() {
        let params = |ignore_eos| TextParams {
            ignore_eos,
            ..TextParams::default()
        };
        assert_eq!(
            generation_settings(&params(false), 8, &[2])["logit_bias"],
            json!([])
        );
        let settings = generation_settings(&params(true), 8, &[2]);
        assert_eq!(
            (&settings["samplers"][0], &settings["dry_base"]),
            (&json!("penalties"), &json!(1.75))
        );
        assert_eq!(settings["logit_bias"], json!([{ "token": 2, "bias": null }]));
        assert_eq!(
            (&settings["n_predict"], &settings["n_ctx"]),
            (&json!(-1), &json!(8))
        );
    }

    #[test]
    fn the_servers_defaults_go_before_those_of_llama_cpp() {
        let own = json!({ "temperature": 0.1, "seed": 42 });
        let own = own.as_object().expect("an object");
        let settings = default_settings(own, Some(64));
        assert_eq!(
            (
                &settings["temperature"],
                &settings["seed"],
                &settings["n_predict"],
                &settings["top_k"]
            ),
            (&json!(0.1), &json!(42), &json!(64), &json!(40))
        );
    }
}
