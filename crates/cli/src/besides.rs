//! [`of_generating`]: what a command that generates downloads besides a model.
//!
//! Separate because names are resolved without knowing what a command does with the model. Invariant: nothing is downloaded that the
//! options leave unused.

use tokenmill::Device;

use crate::{
    failure::Failure, load::LoadArgs, model_name::Besides, speculation::SpeculationArgs, vision::VisionArgs,
};

/// The encoder unless `vision` switches it off or names one, or a GPU is asked for a part of the model, and the layers for further tokens where they would guess.
///
/// # Errors
/// Options of `load` that contradict each other.
pub(crate) fn of_generating(
    vision: &VisionArgs,
    speculation: &SpeculationArgs,
    load: &LoadArgs,
) -> Result<Besides, Failure> {
    let device = load.device()?;
    let is_divided = load.is_divided();
    Ok(Besides {
        // A model that is divided takes no images, and where the device is left open the CPU computes it whole.
        encoder: !(matches!(device, Device::Cuda { .. }) && is_divided)
            && !vision.is_off()
            && !vision.names_file(),
        nextn: (matches!(device, Device::Cpu) || !is_divided) && speculation.asks_own_layer(),
    })
}
