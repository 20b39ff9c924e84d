//! Divides a model between a GPU and the CPU: the parts that each computes, and the measurements on which the choice rests.

pub use tokenmill_placed::{
    Bandwidths, BatchThreshold, DeviceLayers, PartsRequest, PlacementRequest, Traffic,
};

pub use crate::{
    measurements::{MeasuredWhen, Measurements},
    observers::SplitObserver,
    split_plan::{SplitPlan, SplitReason, SplitRow},
};
