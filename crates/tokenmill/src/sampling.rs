//! How tokens are chosen: the parts of [`SamplingParams`](crate::SamplingParams).

pub use tokenmill_backend::{DynamicTemperature, Mirostat, MirostatVersion, SamplerStep, Xtc};

pub use crate::dry_breakers::DRY_BREAKERS;
