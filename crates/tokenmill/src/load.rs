//! The parts of a load beyond [`LoadOptions`](crate::LoadOptions): files, devices, memory plans and the loaded network.
//!
//! They are for programs that open a network themselves, show a plan, or watch a load.

pub use tokenmill_backend::{KvType, MemoryPlan, Side};
pub use tokenmill_model::LoadProgress;
pub use tokenmill_sched::ContextShift;

pub use crate::{
    compute::{Compute, DeviceError},
    device::{check_load, load},
    facts::{ModelFacts, Task},
    load_options::{
        LimitFlags,
        load_flags::LoadFlags,
        option::{EngineOption, Look, OptionGroup, Values, count, engine_options, positive},
    },
    load_plan::LoadPlan,
    loaded::{Loaded, LoadedDevice},
    memory_text::{plan_text, size},
    model_source::{ChatFiles, ModelSource},
    observers::PlanObserver,
    vision::{Projector, projector_beside},
};
