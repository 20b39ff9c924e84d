//! Runs NVIDIA PTX on the CPU, exactly and suspiciously.
//!
//! [`Module::load`] decodes PTX text, [`launch`] runs a kernel over a grid on simulated [`DeviceMemory`], and the
//! [`LaunchReport`] has two parts. [`Counters`] hold warp instructions by class, memory sectors, bank conflicts and atomics.
//! [`Finding`]s are faults: accesses out of bounds, misaligned or of uninitialized memory, races between warps and between
//! thread blocks, divergent barriers, asynchronous copies without a wait, and accesses of an early launch before it waits for
//! earlier ones. Each has kernel, thread block, warp, lane and line.
//!
//! The key decision is to run the PTX that ships rather than a twin of the source: tests see the code that devices get. So
//! loading fails for every opcode and modifier that the crate does not execute as the PTX ISA defines it.
//!
//! ```
//! use tokenmill_ptx_sim::{Arguments, DeviceMemory, LaunchConfig, Module, launch};
//!
//! let ptx = "
//!     .version 7.4
//!     .target sm_80
//!     .address_size 64
//!     .visible .entry double_it(.param .u64 data) {
//!         .reg .b32 %r<3>; .reg .b64 %rd<3>;
//!         ld.param.u64 %rd0, [data];
//!         mov.u32 %r0, %tid.x;
//!         mad.wide.u32 %rd1, %r0, 4, %rd0;
//!         ld.global.u32 %r1, [%rd1];
//!         add.u32 %r2, %r1, %r1;
//!         st.global.u32 [%rd1], %r2;
//!         ret;
//!     }";
//! let mut memory = DeviceMemory::new();
//! let module = Module::load(ptx, &mut memory)?;
//! let data = memory.alloc_with(&[1, 0, 0, 0, 2, 0, 0, 0])?;
//! let config = LaunchConfig::new([1, 1, 1], [2, 1, 1]);
//! let report = launch(module.kernel("double_it")?, &memory, &config, &Arguments::new().ptr(data))?;
//! assert!(report.findings.is_empty());
//! assert_eq!(memory.read_vec(data, 8)?, [2, 0, 0, 0, 4, 0, 0, 0]);
//! // A third thread would leave the buffer:
//! let config = LaunchConfig::new([1, 1, 1], [3, 1, 1]);
//! let report = launch(module.kernel("double_it")?, &memory, &config, &Arguments::new().ptr(data))?;
//! assert!(report.findings[0].to_string().contains("warp 0 lane 2 at line 10"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![deny(unsafe_code)]
#![expect(
    clippy::inline_always,
    reason = "lane functions are compiled for an instruction set by inlining them where it is enabled"
)]

mod access_log;
mod counters;
mod decode;
mod error;
mod exec;
mod half;
mod kernel;
mod lanes;
mod launch;
mod memory;
mod occupancy;
mod op;
mod order;
mod parse;
mod read_first;
mod report;
mod residents;
mod timing;
mod trace;
mod types;
mod written;

pub use crate::{
    counters::{BufferTraffic, Counters, SECTOR_BYTES, SharedTraffic, Traffic},
    error::{LaunchError, LoadError, MemoryError},
    kernel::{Kernel, Module},
    launch::{Arguments, Checks, LaunchConfig, LaunchReport, launch},
    memory::{ALLOCATION_ALIGN, DeviceMemory, DevicePtr, GUARD_BYTES},
    op::Class,
    report::{Conflict, Finding, FindingKind, InstructionPlace, Location},
    timing::{Assembled, DeviceProfile, Estimate, Lanes, Latencies, Limiter, Residency, Start, estimate},
    types::Space,
    written::Written,
};

/// The examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
