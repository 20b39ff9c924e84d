//! The functions of a program that are told about a load while it runs.
//!
//! Options that hold them can be compared. Invariant: two observers are equal if they call the same function.

use crate::{load_plan::LoadPlan, split_plan::SplitPlan};

macro_rules! observers {
    ($($(#[$doc:meta])+ $name:ident($told:ty);)+) => {$(
        $(#[$doc])+
        #[derive(Clone, Copy, Debug)]
        pub struct $name(pub fn($told));

        impl PartialEq for $name {
            fn eq(&self, other: &Self) -> bool {
                std::ptr::fn_addr_eq(self.0, other.0)
            }
        }

        impl Eq for $name {}
    )+};
}

observers! {
    /// Receives the plan of a load on one device, or the plan for each of several.
    PlanObserver(&LoadPlan<'_>);

    /// Receives the plan of a load that is split between the CPU and a GPU.
    SplitObserver(&SplitPlan);

    /// Receives a line for each result of a GPU's check at first use.
    GpuCheckObserver(&str);
}
