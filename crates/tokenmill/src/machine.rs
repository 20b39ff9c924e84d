//! The machine: its memory, its processors, and threads of low priority.

pub use tokenmill_cpu_exec::{CpuList, Numa, Places, PlacesError};

pub use crate::{
    compute::n_processors,
    low_priority::at_low_priority,
    machine_memory::{
        available_bytes, available_main_bytes, check_memory, fits_with_less_context, lacks_memory,
        machine_bytes, memory_limit,
    },
    memory_limit::MemoryLimit,
};
