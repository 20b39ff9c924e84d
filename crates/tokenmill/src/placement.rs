//! Divides a model between a GPU and the CPU: the parts that each computes, and the measurements behind the choice.

pub use tokenmill_placed::{
    Bandwidths, BatchThreshold, DeviceLayers, PartsRequest, PlacementRequest, Traffic,
};

pub use crate::{
    measurements::{MeasuredWhen, Measurements},
    observers::SplitObserver,
    split_plan::{SplitPlan, SplitReason, SplitRow},
};
