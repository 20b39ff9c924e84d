//! A model on both sides: which parts of it the GPU computes and which the CPU, and what was measured to choose.

pub use tokenmill_placed::{
    Bandwidths, BatchThreshold, DeviceLayers, PartsRequest, PlacementRequest, Traffic,
};

pub use crate::{
    measurements::{MeasuredWhen, Measurements},
    split_plan::{SplitObserver, SplitPlan, SplitReason, SplitRow},
};
