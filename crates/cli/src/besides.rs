//! [`of_generating`]: what a command that generates downloads besides a model.
//!
//! Separate because names are resolved without knowing what a command does with the model. Invariant: nothing is downloaded that the
//! options leave unused.

use tokenmill::Device;

use crate::{
    failure::Failure, load::LoadArgs, model_name::Besides, speculation::SpeculationArgs, vision::VisionArgs,
};

/// The encoder unless `vision` switches it off or names one, and the layers for further tokens where they would guess.
///
/// # Errors
/// Options of `load` that contradict each other.
pub(crate) fn of_generating(
    vision: &VisionArgs,
    speculation: &SpeculationArgs,
    load: &LoadArgs,
) -> Result<Besides, Failure> {
    let is_on_cpu = matches!(load.device()?, Device::Cpu);
    Ok(Besides {
        encoder: !vision.is_off() && !vision.names_file(),
        nextn: is_on_cpu && speculation.asks_own_layer(),
    })
}
