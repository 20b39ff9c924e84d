//! Reads rotary embeddings from a Hugging Face configuration, in its old and new layout.
//!
//! Invariant: an unknown kind of scaling is an error, never plain rope.

use serde_json::Value;
use tokenmill_backend::RopeStyle;

use crate::{
    LoadError, LongRopeFactors, RopeDescriptor, RopeScaling, YarnRounding, hf_config::HfConfig,
    rope::yarn_magnitude,
};

/// Key for the rope base of a folder's class; no file contains it.
pub(crate) const ROPE_BASE: &str = "default_rope_theta";

impl HfConfig {
    /// Returns the rope of layers of a type; some types have their own.
    pub(crate) fn rope(&self, layer_type: &str, head_dim: usize) -> Result<RopeDescriptor, LoadError> {
        let mut parameters = self.rope_parameters()?;
        if parameters.get(layer_type).is_some() {
            parameters = parameters.object(layer_type)?;
        } else if layer_type == "sliding_attention"
            && let Some(base) = self.opt_f32("rope_local_base_freq")?
        {
            return Ok(RopeDescriptor::plain(RopeStyle::Neox, head_dim, base));
        }
        let first = |names: &[&str]| match parameters.first_f32(names)? {
            Some(number) => Ok(Some(number)),
            None => self.first_f32(names),
        };
        let part = first(&["partial_rotary_factor", "rotary_pct"])?;
        let base = first(&["rope_theta", "rotary_emb_base", ROPE_BASE])?;
        let mut rope = RopeDescriptor::plain(RopeStyle::Neox, head_dim, base.unwrap_or(10_000.0));
        rope.n_dims = (head_dim as f32 * part.unwrap_or(1.0)) as usize;
        parameters.scale_rope(&mut rope, self)?;
        Ok(rope)
    }

    /// Returns YaRN's multiplier of the logarithm in the score scale; 0 if scores are not scaled.
    pub(crate) fn yarn_score_multiplier(&self) -> Result<f32, LoadError> {
        Ok(self.rope_parameters()?.opt_f32("mscale_all_dim")?.unwrap_or(0.0))
    }

    /// Returns the object that describes rope. The new layout has everything in `rope_parameters`; the old
    /// one has `rope_theta` at the top and the rest in `rope_scaling`.
    pub(crate) fn rope_parameters(&self) -> Result<Self, LoadError> {
        let is_new = self.get("rope_parameters").is_some();
        self.object(if is_new { "rope_parameters" } else { "rope_scaling" })
    }

    /// Applies the scaling that `self` describes.
    fn scale_rope(&self, rope: &mut RopeDescriptor, config: &Self) -> Result<(), LoadError> {
        let kind_key = ["type", "rope_type"][usize::from(self.get("rope_type").is_some())];
        let kind = self.get(kind_key).and_then(Value::as_str);
        let n_ctx_train = config.opt_usize("max_position_embeddings")?;
        let key = "original_max_position_embeddings";
        let original_context = self.opt_usize(key)?.or(config.opt_usize(key)?);
        let original_context = original_context.or(n_ctx_train).unwrap_or(0);
        let extension = n_ctx_train.unwrap_or(0) as f32 / original_context as f32;
        rope.scaling = match kind {
            // The sections of `mrope` matter for images only.
            None | Some("default" | "mrope") => RopeScaling::None,
            Some("linear") => RopeScaling::Linear {
                factor: self.f32("factor")?,
            },
            Some("llama3") => RopeScaling::Llama3 {
                factor: self.f32("factor")?,
                low_freq_factor: self.f32("low_freq_factor")?,
                high_freq_factor: self.f32("high_freq_factor")?,
                original_context,
            },
            Some("yarn") => {
                let factor = self.opt_f32("factor")?.unwrap_or(extension);
                let mscale = (self.opt_positive("mscale")?).zip(self.opt_positive("mscale_all_dim")?);
                let magnitude = match (self.opt_f32("attention_factor")?, mscale) {
                    (Some(magnitude), _) => Some(magnitude),
                    (None, Some((of_rotated, of_all))) => {
                        Some(yarn_magnitude(factor, of_rotated) / yarn_magnitude(factor, of_all))
                    }
                    (None, None) => None,
                };
                RopeScaling::Yarn {
                    factor,
                    original_context,
                    beta_fast: self.opt_f32("beta_fast")?.unwrap_or(32.0),
                    beta_slow: self.opt_f32("beta_slow")?.unwrap_or(1.0),
                    magnitude,
                    rounding: if self.opt_bool("truncate")?.unwrap_or(true) {
                        YarnRounding::Outwards
                    } else {
                        YarnRounding::None
                    },
                }
            }
            Some("longrope" | "su") => {
                let factors = |key| {
                    self.opt_f32s(key)?
                        .ok_or_else(|| self.wrong(key, "a list of numbers"))
                };
                let given = self.opt_f32("attention_factor")?;
                let factor = self.opt_f32("factor")?.unwrap_or(extension);
                let magnitude = if factor > 1.0 {
                    (1.0 + factor.ln() / (original_context as f32).ln()).sqrt()
                } else {
                    1.0
                };
                RopeScaling::LongRope {
                    original_context,
                    magnitude: given.unwrap_or(magnitude),
                    factors: Some(LongRopeFactors {
                        short: factors("short_factor")?,
                        long: factors("long_factor")?,
                    }),
                }
            }
            Some("proportional") => {
                if self.opt_f32("factor")?.is_some_and(|factor| factor != 1.0) {
                    return Err(self.wrong("factor", "1 with the rope type `proportional`"));
                }
                let n_rotated = rope.n_dims;
                rope.n_dims = rope.head_dim;
                RopeScaling::Proportional { n_rotated }
            }
            // HunYuan's variant: another base at every context length.
            Some("dynamic") if self.get("alpha").is_some() => {
                let n_dims = f64::from(rope.n_dims as u32);
                let stretch = f64::from(self.f32("alpha")?).powf(n_dims / (n_dims - 2.0));
                rope.base = (f64::from(rope.base) * stretch) as f32;
                RopeScaling::None
            }
            Some("dynamic") => RopeScaling::Dynamic {
                factor: self.f32("factor")?,
                original_context,
            },
            Some(_) => {
                let expected = "one of default, linear, llama3, yarn, longrope, mrope, proportional, dynamic";
                return Err(self.wrong(kind_key, expected));
            }
        };
        Ok(())
    }

    /// Reads an optional number; 0 counts as absent.
    fn opt_positive(&self, key: &str) -> Result<Option<f32>, LoadError> {
        Ok(self.opt_f32(key)?.filter(|&number| number != 0.0))
    }
}
