//! [`of_generating`]: the files that a generating command downloads along with its model.
//!
//! Names are resolved without knowledge of the command. Invariant: nothing is downloaded that the options
//! leave unused.

use tokenmill::Device;

use crate::{
    failure::Failure, load::LoadArgs, model_name::Companions, speculation::SpeculationArgs,
    vision::VisionArgs,
};

/// Selects the encoder and the MTP layers. The encoder is left out if `vision` switches it off or names one, or if a
/// requested GPU computes only a part of the model; the layers are left out if they would make no drafts.
///
/// # Errors
/// Options of `load` that contradict each other.
pub(crate) fn of_generating(
    vision: &VisionArgs,
    speculation: &SpeculationArgs,
    load: &LoadArgs,
) -> Result<Companions, Failure> {
    let device = load.device()?;
    let is_divided = load.is_divided();
    Ok(Companions {
        // A divided model takes no images. If the device is left open, the CPU then computes the whole model.
        encoder: !(vision.is_off()
            || vision.names_file()
            || matches!(device, Device::Cuda { .. }) && is_divided),
        nextn: (matches!(device, Device::Cpu) || !is_divided) && speculation.asks_own_layer(),
    })
}
